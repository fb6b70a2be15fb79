/* Threads and children that allocate. The first argument selects the program. */
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;
static atomic_int stop;

/* Children are forked while other threads allocate. The children allocate, find their inherited memory unchanged, and exit. */
static void *busy(void *seed) {
    for (uint64_t step = (uintptr_t)seed * 1000003; !atomic_load(&stop); step++) {
        size_t size = SIZES[mix(step) % (SIZE_COUNT - 2)];
        void *at = malloc(size);
        fill(at, size, step);
        CHECK(is_filled(at, size, step));
        free(at);
    }
    return NULL;
}

PROGRAM(forks) {
    if (argc > 1) return 7;
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++) pthread_create(&threads[i], NULL, busy, (void *)(i + 1));
    for (int round = 0; round < 20; round++) {
        void *inherited[SIZE_COUNT];
        for (size_t i = 0; i < SIZE_COUNT - 1; i++) {
            inherited[i] = malloc(SIZES[i]);
            fill(inherited[i], SIZES[i], i + round);
        }
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(60);
            for (size_t i = 0; i < SIZE_COUNT - 1; i++) {
                CHECK(is_filled(inherited[i], SIZES[i], i + round));
                free(inherited[i]);
            }
            for (uint64_t step = 0; step < 100; step++) {
                size_t size = SIZES[mix(step) % (SIZE_COUNT - 1)];
                void *at = hidden(realloc(hidden(malloc(size / 2 + 1)), size));
                fill(at, size, step);
                CHECK(is_filled(at, size, step));
                free(at);
            }
            malloc_trim(0);
            if (round % 2) exit(0);
            _exit(0);
        }
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        for (size_t i = 0; i < SIZE_COUNT - 1; i++) {
            CHECK(is_filled(inherited[i], SIZES[i], i + round));
            free(inherited[i]);
        }
        if (round % 5 == 0) {
            char *arguments[] = {argv[0], (char *)"forks", (char *)"child", NULL};
            CHECK(posix_spawn(&child, argv[0], NULL, NULL, arguments, environ) == 0);
            CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
        }
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    puts("ok");
    return 0;
}

/* vforked children run on their parent's memory, with its thread's cache, while another thread claims all caches. No block may be handed
   out twice, and nothing may abort. The argument is the number of seconds. */
enum { KEPT = 160 };

static atomic_long children, trims;

struct kept {
    void *at;
    size_t size;
    uint64_t seed;
};

/* Uses few size classes, so a thread often finds its cache empty and must fetch blocks, which is when it checks for claims. */
static size_t size_of(uint64_t number) {
    static const size_t sizes[] = {48, 48, 160, 1000, 1000, 3000, 20000, 60000};
    return sizes[number % 8];
}

/* Replaces some of the blocks. Returns 0 if one has changed. */
static int churn(struct kept *kept, uint64_t seed, int steps) {
    for (int step = 0; step < steps; step++) {
        uint64_t number = mix(seed + step);
        struct kept *one = &kept[number % KEPT];
        if (one->at && !is_filled(one->at, one->size, one->seed)) return 0;
        free(one->at);
        one->size = size_of(number >> 32);
        one->seed = number;
        one->at = hidden(malloc(one->size));
        if (!one->at) return 0;
        fill(one->at, one->size, one->seed);
    }
    return 1;
}

/* Frees all blocks, so the cache fills up, and runs empty when the thread allocates again. */
static int drain(struct kept *kept) {
    for (int i = 0; i < KEPT; i++) {
        if (kept[i].at && !is_filled(kept[i].at, kept[i].size, kept[i].seed)) return 0;
        free(kept[i].at);
        kept[i].at = NULL;
    }
    return 1;
}

static void *claims(void *unused) {
    while (!atomic_load(&stop)) {
        malloc_trim(0);
        atomic_fetch_add(&trims, 1);
    }
    return unused;
}

static void *allocates(void *seed) {
    struct kept *kept = calloc(KEPT, sizeof *kept);
    for (uint64_t step = 0; !atomic_load(&stop); step += 400) {
        CHECK(churn(kept, (uintptr_t)seed * 1000003 + step, 400));
        CHECK(drain(kept));
    }
    free(kept);
    return NULL;
}

static void *vforking(void *seed) {
    struct kept *volatile kept = calloc(KEPT, sizeof *kept);
    for (volatile uint64_t round = 0; !atomic_load(&stop); round++) {
        pid_t child = vfork();
        CHECK(child >= 0);
        if (child == 0) {
            int is_well = churn(kept, (uintptr_t)seed * 7777777 + 400 * round, 400);
            if (is_well && round % 2) is_well = drain(kept);
            _exit(is_well ? 0 : 98);
        }
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK(churn(kept, (uintptr_t)seed * 5555555 + 400 * round, 40));
        atomic_fetch_add(&children, 1);
    }
    CHECK(drain(kept));
    free(kept);
    return NULL;
}

PROGRAM(vforks) {
    pthread_t threads[5];
    void *(*const begin[5])(void *) = {vforking, vforking, allocates, claims, claims};
    free(hidden(malloc(1000000)));
    for (uintptr_t i = 0; i < 5; i++) CHECK(pthread_create(&threads[i], NULL, begin[i], (void *)(i + 1)) == 0);
    struct timespec time = {argc > 1 ? atoi(argv[1]) : 3, 0};
    nanosleep(&time, NULL);
    atomic_store(&stop, 1);
    for (int i = 0; i < 5; i++) pthread_join(threads[i], NULL);
    if (getenv("COUNTS")) dprintf(2, "%ld children, %ld trims\n", atomic_load(&children), atomic_load(&trims));
    CHECK(atomic_load(&children) > 20 && atomic_load(&trims) > 20);
    puts("ok");
    return 0;
}

/* Other threads change the environment while the library reads its settings. */
static void *change(void *seed) {
    char name[32], value[2000];
    memset(value, 'v', sizeof value - 1);
    value[sizeof value - 1] = 0;
    for (uint64_t step = (uintptr_t)seed; !atomic_load(&stop); step++) {
        snprintf(name, sizeof name, "VARIABLE_%d", (int)(mix(step) % 100));
        setenv(name, value + mix(step) % 1900, 1);
        setenv("ZK_ALLOC_MIN_BYTES", "no number", 1);
        if (step % 3 == 0) unsetenv(name);
    }
    return NULL;
}

PROGRAM(environment) {
    pthread_t threads[3];
    for (uintptr_t i = 0; i < 3; i++) pthread_create(&threads[i], NULL, change, (void *)(i * 1000));
    usleep(2000);
    for (int round = 0; round < 2000; round++) {
        for (size_t i = 0; i < SIZE_COUNT - 1; i++) free(hidden(malloc(SIZES[i])));
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    puts("ok");
    return 0;
}

/* A program whose main thread ends first. The process must end with its last thread, no matter which threads the library has. */
static void *last(void *unused) {
    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; i < SIZE_COUNT; i++) free(hidden(malloc(SIZES[i])));
        usleep(1000);
    }
    dprintf(1, "ok\n");
    return unused;
}

PROGRAM(last_thread) {
    for (size_t i = 0; i < SIZE_COUNT; i++) {
        void *at = malloc(SIZES[i]);
        memset(at, 1, SIZES[i]);
        free(hidden(at));
    }
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, last, NULL) == 0);
    pthread_detach(thread);
    pthread_exit(NULL);
    return 0;
}

/* The arena serves its first request on a small stack: on a thread with the smallest stack, or in a signal handler on its own stack. The
   first argument selects one of them. With "idle" as the second argument, the program makes no request. */
#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif

enum { FRESH = 0xA5, GUARD = 65536, LEAST = 16384 };

static volatile int done;
static int is_idle;

/* Makes requests that take the paths of blocks, of page runs and of huge runs, the largest first. */
static void requests(void) {
    static void *held[SIZE_COUNT];
    if (is_idle) {
        done = 1;
        return;
    }
    for (int round = 0; round < 3; round++) {
        for (size_t i = SIZE_COUNT; i-- > 0;) {
            size_t size = SIZES[i];
            void *at = round % 2 ? calloc(1, size) : malloc(size);
            CHECK(at);
            fill(at, size, i);
            held[i] = realloc(at, 2 * size);
            CHECK(held[i] && is_filled(held[i], size, i));
        }
        if (round == 1) malloc_trim(0);
        for (size_t i = 0; i < SIZE_COUNT; i++) free(held[i]);
    }
    malloc_trim(0);
    done = 1;
}

static void *thread(void *unused) {
    requests();
    return unused;
}

static void handler(int unused) {
    (void)unused;
    requests();
}

static unsigned char *stack(size_t size) {
    unsigned char *at = mmap(NULL, GUARD + size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED && mprotect(at, GUARD, PROT_NONE) == 0);
    memset(at + GUARD, FRESH, size);
    return at + GUARD;
}

PROGRAM(little_stack) {
    CHECK(argc > 1);
    is_idle = argc > 2 && strcmp(argv[2], "idle") == 0;
    size_t size = argc > 3 ? (size_t)atoi(argv[3]) : LEAST;
    if (strcmp(argv[1], "handler") == 0) {
        /* The kernel saves the interrupted code's registers on this stack, which takes more space if they are larger. */
        if (argc <= 3) size = getauxval(AT_MINSIGSTKSZ) <= 4096 ? 8192 : getauxval(AT_MINSIGSTKSZ) + 4096;
    }
    unsigned char *own = stack(size);
    if (strcmp(argv[1], "handler") == 0) {
        stack_t place = {.ss_sp = own, .ss_size = size};
        struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
        CHECK(sigaltstack(&place, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0 && raise(SIGUSR1) == 0);
    } else {
        pthread_t id;
        pthread_attr_t attributes;
        CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstack(&attributes, own, size) == 0);
        CHECK(pthread_create(&id, &attributes, thread, NULL) == 0 && pthread_join(id, NULL) == 0);
    }
    CHECK(done);
    size_t fresh = 0;
    while (fresh < size && own[fresh] == FRESH) fresh++;
    if (getenv("COUNTS")) dprintf(2, "%zu bytes of stack were used\n", size - fresh);
    puts("ok");
    return 0;
}

int main(int argc, char **argv) {
    static const struct program programs[] = {
        {"forks", forks},
        {"vforks", vforks},
        {"environment", environment},
        {"last thread", last_thread},
        {"little stack", little_stack},
        {NULL, NULL},
    };
    return run_program(programs, argc, argv);
}
