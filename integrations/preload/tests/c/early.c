/* Allocation before any constructor has run, in constructors, in atexit handlers and in destructors. With LIBRARY defined, this file is the
   library. */
#ifdef LIBRARY
/* A library whose constructor runs before most others. The program frees the memory that the constructor allocates. */
#include "check.h"

void *early[SIZE_COUNT];

__attribute__((constructor(101))) static void construct(void) {
    for (size_t i = 0; i < SIZE_COUNT - 1; i++) {
        early[i] = malloc(SIZES[i]);
        fill(early[i], SIZES[i], i);
    }
}
#else
#include "check.h"

extern void *early[];
static void *before_all[SIZE_COUNT];
static void *kept[SIZE_COUNT];

static void before_constructors(void) {
    for (size_t i = 0; i < SIZE_COUNT - 1; i++) {
        before_all[i] = calloc(1, SIZES[i]);
        fill(before_all[i], SIZES[i], 100 + i);
    }
}
__attribute__((section(".preinit_array"), used)) static void (*preinit)(void) = before_constructors;

static void churn(void) {
    for (size_t i = 0; i < SIZE_COUNT; i++) free(hidden(malloc(SIZES[i])));
}

static void at_exit(void) {
    churn();
    for (size_t i = 0; i < SIZE_COUNT; i++) {
        CHECK(is_filled(kept[i], SIZES[i], 200 + i));
        free(kept[i]);
    }
}

__attribute__((destructor)) static void destruct(void) {
    churn();
    dprintf(1, "ok\n");
}

int main(void) {
    atexit(at_exit);
    for (size_t i = 0; i < SIZE_COUNT; i++) {
        kept[i] = malloc(SIZES[i]);
        fill(kept[i], SIZES[i], 200 + i);
    }
    for (size_t i = 0; i < SIZE_COUNT - 1; i++) {
        CHECK(is_filled(early[i], SIZES[i], i) && is_filled(before_all[i], SIZES[i], 100 + i));
        early[i] = hidden(realloc(early[i], 2 * SIZES[i]));
        before_all[i] = hidden(realloc(before_all[i], 2 * SIZES[i]));
        CHECK(malloc_usable_size(early[i]) >= 2 * SIZES[i]);
        free(early[i]);
        free(before_all[i]);
    }
    exit(0);
}
#endif
