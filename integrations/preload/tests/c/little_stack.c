/* The arena serves its first request with little stack: on a thread with the smallest stack, or in a signal handler on
   its own stack. The first argument selects one of them. With "idle" as the second, the program makes no request. */
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/mman.h>

#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif

enum { FRESH = 0xA5, GUARD = 65536, LEAST = 16384 };

static volatile int done;
static int is_idle;

/* The largest first. They take the paths of blocks, of page runs and of huge runs. */
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

int main(int argc, char **argv) {
    CHECK(argc > 1);
    is_idle = argc > 2 && strcmp(argv[2], "idle") == 0;
    size_t size = argc > 3 ? (size_t)atoi(argv[3]) : LEAST;
    if (strcmp(argv[1], "handler") == 0) {
        /* The kernel stores the state of the interrupted code on this stack, which is more if registers are larger. */
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
}
