/* A library whose constructor runs before most. The program frees the memory that it allocates. */
#include "check.h"

void *early[SIZE_COUNT];

__attribute__((constructor(101))) static void construct(void) {
    for (size_t i = 0; i < SIZE_COUNT - 1; i++) {
        early[i] = malloc(SIZES[i]);
        fill(early[i], SIZES[i], i);
    }
}
