/* A library whose constructor comes before most. What it allocates, the program frees. */
#include "check.h"

void *early[SIZE_COUNT];

__attribute__((constructor(101))) static void construct(void) {
    for (size_t i = 0; i < SIZE_COUNT - 1; i++) {
        early[i] = malloc(SIZES[i]);
        fill(early[i], SIZES[i], i);
    }
}
