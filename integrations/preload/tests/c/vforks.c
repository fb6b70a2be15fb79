/* Children of vfork run on their parent's memory, with its thread's cache, while another thread claims all caches. No
   block may be handed out twice, and nothing may abort. The argument is the number of seconds. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>

enum { KEPT = 160 };

static atomic_int stop;
static atomic_long children, trims;

struct kept {
    void *at;
    size_t size;
    uint64_t seed;
};

/* Few classes, so that a thread often finds its cache empty and must fetch blocks, which is where it checks for claims. */
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

/* All at once, so that the cache runs empty and full. */
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

static void *vforks(void *seed) {
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

int main(int argc, char **argv) {
    pthread_t threads[5];
    void *(*const begin[5])(void *) = {vforks, vforks, allocates, claims, claims};
    free(hidden(malloc(1000000)));
    for (uintptr_t i = 0; i < 5; i++) CHECK(pthread_create(&threads[i], NULL, begin[i], (void *)(i + 1)) == 0);
    struct timespec time = {argc > 1 ? atoi(argv[1]) : 3, 0};
    nanosleep(&time, NULL);
    atomic_store(&stop, 1);
    for (int i = 0; i < 5; i++) pthread_join(threads[i], NULL);
    if (getenv("COUNTS")) dprintf(2, "%ld children, %ld trims\n", atomic_load(&children), atomic_load(&trims));
    CHECK(atomic_load(&children) > 20 && atomic_load(&trims) > 20);
    puts("ok");
}
