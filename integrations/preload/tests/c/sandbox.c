/* Allocates, frees, grows and shrinks hundreds of MiB on two threads in a sandbox that kills. The program enters it
   after many allocations ("late"), or before the first large request ("early"). madvise is allowed only with the values
   that glibc uses. */
#include "sandbox.h"

#include <pthread.h>

#define MIB ((size_t)1 << 20)

static void *work(void *number) {
    uint64_t seed = (uint64_t)(uintptr_t)number;
    enum { SLOTS = 400 };
    static __thread void *slots[SLOTS];
    static __thread size_t sizes[SLOTS];
    for (size_t step = 0; step < 6000; step++) {
        uint64_t random = mix(seed * 1000003 + step);
        size_t slot = random % SLOTS, size = SIZES[random / 7 % (SIZE_COUNT - 1)];
        if (slots[slot]) CHECK(is_filled(slots[slot], sizes[slot] < 64 ? sizes[slot] : 64, slot));
        if (random % 5 == 0) {
            free(slots[slot]);
            CHECK((slots[slot] = hidden(calloc(1, size))) && is_filled(slots[slot], 0, 0) && is_zero(slots[slot], size < 4096 ? size : 4096));
        } else {
            CHECK((slots[slot] = hidden(realloc(slots[slot], size))));
        }
        sizes[slot] = size;
        fill(slots[slot], size, slot);
    }
    for (int i = 0; i < SLOTS; i++) {
        free(slots[i]);
        slots[i] = NULL;
    }
    /* Across the border of zones and back, and buffers that are hardly touched. */
    for (int round = 0; round < 4; round++) {
        char *large = hidden(malloc(40 * MIB));
        CHECK(large);
        fill(large, 40 * MIB, seed);
        CHECK((large = hidden(realloc(large, 200 * MIB))) && is_filled(large, 64, seed));
        memset(large + 100 * MIB, 1, 50 * MIB);
        CHECK((large = hidden(realloc(large, 3 * MIB))) && is_filled(large, 64, seed));
        free(large);
        char *sparse = hidden(calloc(60, MIB));
        CHECK(sparse && is_zero(sparse, MIB));
        sparse[30 * MIB] = 1;
        free(sparse);
    }
    return NULL;
}

static void *nothing(void *none) {
    return none;
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    if (strcmp(argv[1], "late") == 0) work((void *)3);
    /* For the calls that glibc makes only once. */
    free(hidden(malloc(100)));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0);
    int advices[] = {MADV_DONTNEED};
    enter_sandbox(advices, 1, strcmp(argv[2], "syscall") == 0);
    work((void *)1);
    CHECK(pthread_create(&thread, NULL, work, (void *)2) == 0);
    work((void *)3);
    malloc_trim(0);
    CHECK(pthread_join(thread, NULL) == 0);
    malloc_trim(0);
    work((void *)4);
    CHECK(write(1, "ok\n", 3) == 3);
}
