/* A library takes all early thread keys. Every thread still has a cache, which a later thread adopts. "pairs" prints the time to allocate and free 64
   bytes, in tenths of a nanosecond. With LIBRARY defined, this is the library. */
#ifdef LIBRARY
/* Takes the keys for which glibc needs no memory, before all other code. */
#include <pthread.h>
#include <stdlib.h>

pthread_key_t first_key = -1;

__attribute__((constructor)) static void take_keys(void) {
    if (getenv("NO_KEYS")) return;
    for (int i = 0; i < 40; i++) {
        pthread_key_t key;
        if (pthread_key_create(&key, NULL) != 0) abort();
        if (i == 0) first_key = key;
    }
}
#else
#include "check.h"

#include <pthread.h>
#include <time.h>

extern pthread_key_t first_key;

/* Whether this thread gets the block that it freed last, as from a cache. Slabs would return the lowest free block. */
static int has_cache(void) {
    void *one = hidden(malloc(200)), *other = hidden(malloc(200));
    void *low = one < other ? one : other, *high = one < other ? other : one;
    free(low);
    free(high);
    void *next = hidden(malloc(200));
    int is_last = next == high;
    free(next);
    return is_last;
}

static void *thread(void *unused) {
    (void)unused;
    return has_cache() ? NULL : hidden(&first_key);
}

static long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000 + now.tv_nsec;
}

static int by_value(const void *a, const void *b) { return *(const long *)a < *(const long *)b ? -1 : 1; }

int main(int argc, char **argv) {
    enum { ROUNDS = 201, PAIRS = 2000 };
    CHECK(argc > 1);
    if (!getenv("NO_KEYS")) CHECK(first_key == 0);
    free(hidden(malloc(1000000)));
    if (strcmp(argv[1], "pairs") == 0) {
        static long rounds[ROUNDS];
        for (int round = 0; round < ROUNDS; round++) {
            long began = now_ns();
            for (int pair = 0; pair < PAIRS; pair++) free(hidden(malloc(64)));
            rounds[round] = now_ns() - began;
        }
        qsort(rounds, ROUNDS, sizeof *rounds, by_value);
        printf("%ld\n", rounds[ROUNDS / 2] * 10 / PAIRS);
        return 0;
    }
    CHECK(has_cache());
    for (int i = 0; i < 2500; i++) {
        pthread_t id;
        void *result;
        CHECK(pthread_create(&id, NULL, thread, NULL) == 0 && pthread_join(id, &result) == 0 && !result);
    }
    puts("ok");
}
#endif
