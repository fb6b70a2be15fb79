/* Programs that run under limits, and programs whose memory the test measures. The first argument selects the program. */
#include "check.h"
#include "../../include/zk_alloc.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

/* A limit of 4 GiB of address space, set by the program after many allocations ("late") or by its parent ("early"). The limit must leave
   room for threads, libraries and mappings. */
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

PROGRAM(address_space) {
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
    /* The allocator can still get new memory, in addition to the memory that it had before the limit was set. */
    void *more[40];
    for (int i = 0; i < 40; i++) {
        CHECK((more[i] = hidden(malloc(10 * MIB))));
        fill(more[i], 10 * MIB, 100 + i);
    }
    /* A request beyond the limit must fail, as mmap would. */
    errno = 0;
    CHECK(!hidden(malloc(5000 * MIB)) && errno == ENOMEM);
    for (int i = 0; i < 60; i++) CHECK(is_filled(kept[i], 5 * MIB, i));
    for (int i = 0; i < 40; i++) CHECK(is_filled(more[i], 10 * MIB, 100 + i));
    for (int i = 0; i < 10; i++) CHECK(munmap(mapped[i], 100 * MIB) == 0);
    for (int i = 0; i < 40; i++) free(more[i]);
    for (int i = 0; i < 60; i++) free(kept[i]);
    puts("ok");
    return 0;
}

/* The system refuses address space or memory. glibc serves the requests that the arena can't, as far as possible. */
PROGRAM(refusals) {
    CHECK(argc == 2);
    struct rlimit limit = {(rlim_t)atol(argv[1]) << 20, (rlim_t)atol(argv[1]) << 20};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    void *kept[64];
    int count = 0;
    while (count < 64 && (kept[count] = malloc(4 << 20))) {
        fill(kept[count], 4 << 20, count);
        count++;
    }
    CHECK(count < 64 && errno == ENOMEM && count > 4);
    /* Shrinking never fails. */
    kept[0] = hidden(realloc(kept[0], 3 << 20));
    CHECK(kept[0]);
    for (int i = 1; i < count; i++) CHECK(is_filled(kept[i], 4 << 20, i));
    for (int i = 0; i < count; i++) free(kept[i]);
    CHECK((kept[0] = hidden(malloc(8 << 20))));
    free(kept[0]);
    puts("ok");
    return 0;
}

/* ZK_ALLOC_MAX_BYTES=64M and ZK_ALLOC_MAX_HARD=1: requests beyond the limit fail, with ENOMEM in errno. At half of the limit, the library calls
   `near_limit`. */
/* Volatile, because the compiler assumes that malloc calls no function of this file. */
static volatile int calls;

static void near_limit(size_t resident_bytes, size_t max_bytes) {
    CHECK(max_bytes == 64 * MIB && resident_bytes >= 32 * MIB);
    free(hidden(malloc(MIB)));
    calls++;
}

static int fails(void *at) {
    int is_refused = at == NULL && errno == ENOMEM;
    errno = 0;
    return is_refused;
}

PROGRAM(hard_limit) {
    zk_on_memory_limit(50, near_limit);
    char *first = hidden(malloc(16 * MIB));
    CHECK(first && calls == 0);
    first = hidden(realloc(first, 40 * MIB));
    CHECK(first && calls == 1);
    fill(first, 40 * MIB, 1);
    void *at;
    errno = 0;
    CHECK(fails(hidden(malloc(40 * MIB))));
    CHECK(fails(hidden(malloc(hidden_size((size_t)4 << 30)))));
    CHECK(fails(hidden(calloc(40, MIB))));
    CHECK(fails(hidden(realloc(first, 80 * MIB))));
    CHECK(fails(hidden(memalign(8192, 40 * MIB))));
    CHECK(posix_memalign(&at, 64, 40 * MIB) == ENOMEM && errno == 0);
    CHECK(is_filled(first, 40 * MIB, 1));
    int served = 0;
    while (served < 10000 && (at = hidden(malloc(20000)))) served++;
    CHECK(served < 10000 && errno == ENOMEM);
    first = hidden(realloc(first, 8 * MIB));
    CHECK(first && is_filled(first, 64, 1));
    CHECK(hidden(malloc(16 * MIB)));
    CHECK(calls >= 1);
    puts("ok");
    return 0;
}

/* The library maps memory when it needs it, at addresses that it chooses in advance. This program maps some of them. The library must leave
   them alone, and must recognise that glibc's memory there is not its own. */
PROGRAM(foreign_mappings) {
    /* The lowest and the highest address that the library will use next are near its first block and its first large
       block. */
    char *block = hidden(malloc(100)), *large = hidden(malloc(3 * MIB)), *huge = hidden(malloc(70 * MIB));
    CHECK(block && large && huge);
    char *wanted[] = {large + 40 * MIB, huge + 200 * MIB};
    for (int i = 0; i < 2; i++) {
        char *at = (char *)((uintptr_t)wanted[i] / MIB * MIB);
        CHECK(mmap(at, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == at);
        fill(at, MIB, 7);
        wanted[i] = at;
    }
    void *kept[60];
    for (int i = 0; i < 60; i++) {
        size_t size = i % 3 ? 2 * MIB : 80 * MIB;
        CHECK((kept[i] = hidden(malloc(size))));
        fill(kept[i], size, i);
    }
    for (int i = 0; i < 2; i++) {
        CHECK(is_filled(wanted[i], MIB, 7));
        /* Builds a chunk like those that glibc's malloc gets from mmap: its length comes first, with a flag for mmap. */
        size_t *chunk = (size_t *)wanted[i];
        chunk[0] = 0;
        chunk[1] = MIB | 2;
        CHECK(malloc_usable_size(chunk + 2) == MIB - 16);
        fill(chunk + 2, 1000, 9);
        char *grown = hidden(realloc(chunk + 2, 3 * MIB));
        CHECK(grown && is_filled(grown, 64, 9));
        free(grown);
    }
    for (int i = 0; i < 60; i++) {
        CHECK(is_filled(kept[i], i % 3 ? 2 * MIB : 80 * MIB, i));
        free(kept[i]);
    }
    puts("ok");
    return 0;
}

/* ZK_ALLOC_RELEASE_SIGNAL: the signal returns free memory. If the program installs a handler of its own, that handler counts signals
   instead. */
static volatile sig_atomic_t own;

static void handle(int number) {
    (void)number;
    own++;
}

static size_t resident(void) {
    struct zk_alloc_stats stats;
    CHECK(zk_stats(&stats, sizeof stats));
    return stats.resident_bytes;
}

PROGRAM(release_signal) {
    /* Memory that the program reuses stays resident when it is freed. */
    for (int time = 0; time < 2; time++) {
        void *at = hidden(malloc(64 << 20));
        CHECK(at);
        memset(at, 1, 64 << 20);
        free(at);
    }
    CHECK(resident() > 32 << 20);
    errno = EDOM;
    CHECK(raise(SIGUSR1) == 0);
    CHECK(errno == EDOM);
    CHECK(resident() < 4 << 20);
    CHECK(signal(SIGUSR1, handle) != SIG_DFL);
    CHECK(raise(SIGUSR1) == 0 && own == 1);
    puts("ok");
    return 0;
}

/* Prints the size of the process's address space before and after the first request that the arena serves. Before that request, the arena
   maps nothing. */
static long address_space_mib(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld", &pages) == 1);
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024) / 1024;
}

PROGRAM(reservation) {
    printf("%ld\n", address_space_mib());
    free(hidden(malloc(1 << 20)));
    printf("%ld\n", address_space_mib());
    return 0;
}

/* Keeps 50 MiB alive, and frees 150 MiB more. Then prints "ok", and waits while the test examines it. */
PROGRAM(waiting) {
    void *kept = hidden(malloc(50 * MIB)), *gone = hidden(malloc(150 * MIB));
    CHECK(kept && gone);
    memset(kept, 1, 50 * MIB);
    memset(gone, 1, 150 * MIB);
    free(gone);
    puts("ok");
    fflush(stdout);
    char byte;
    CHECK(read(0, &byte, 1) == 0);
    CHECK(*(char *)kept == 1);
    return 0;
}

int main(int argc, char **argv) {
    static const struct program programs[] = {
        {"address space", address_space},
        {"refusals", refusals},
        {"hard limit", hard_limit},
        {"foreign mappings", foreign_mappings},
        {"release signal", release_signal},
        {"reservation", reservation},
        {"waiting", waiting},
        {NULL, NULL},
    };
    return run_program(programs, argc, argv);
}
