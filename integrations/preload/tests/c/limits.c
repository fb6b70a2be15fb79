/* A limit of 4 GiB of address space, set by the program after many allocations ("late") or by its parent ("early").
   There must be room for threads, libraries and mappings. */
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define MIB ((size_t)1 << 20)
#define THREADS 20

static pthread_barrier_t all_there;

static void *work(void *number) {
    uint64_t seed = (uint64_t)(uintptr_t)number;
    pthread_barrier_wait(&all_there);
    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; i < SIZE_COUNT - 1; i++) {
            void *at = hidden(malloc(SIZES[i]));
            CHECK(at);
            fill(at, SIZES[i], seed + i);
            CHECK(is_filled(at, SIZES[i], seed + i));
            free(at);
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    void *kept[60];
    for (int i = 0; i < 60; i++) {
        CHECK((kept[i] = hidden(malloc(5 * MIB))));
        fill(kept[i], 5 * MIB, i);
    }
    if (strcmp(argv[1], "late") == 0) {
        struct rlimit limit = {4096 * MIB, 4096 * MIB};
        CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    }
    CHECK(pthread_barrier_init(&all_there, NULL, THREADS) == 0);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(dlopen(argv[2], RTLD_NOW));
    void *mapped[10];
    for (int i = 0; i < 10; i++) {
        mapped[i] = mmap(NULL, 100 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(mapped[i] != MAP_FAILED);
    }
    /* The allocator goes on, beyond the memory that it had before the limit. */
    void *more[40];
    for (int i = 0; i < 40; i++) {
        CHECK((more[i] = hidden(malloc(10 * MIB))));
        fill(more[i], 10 * MIB, 100 + i);
    }
    /* A request beyond the limit is refused, as mmap would refuse it. */
    errno = 0;
    CHECK(!hidden(malloc(5000 * MIB)) && errno == ENOMEM);
    for (int i = 0; i < 60; i++) CHECK(is_filled(kept[i], 5 * MIB, i));
    for (int i = 0; i < 40; i++) CHECK(is_filled(more[i], 10 * MIB, 100 + i));
    for (int i = 0; i < 10; i++) CHECK(munmap(mapped[i], 100 * MIB) == 0);
    for (int i = 0; i < 40; i++) free(more[i]);
    for (int i = 0; i < 60; i++) free(kept[i]);
    puts("ok");
}
