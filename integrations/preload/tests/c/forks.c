/* Children are forked while other threads allocate. They allocate, find their inherited memory unchanged, and end. */
#include "check.h"

#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/wait.h>

extern char **environ;
static atomic_int stop;

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

int main(int argc, char **argv) {
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
            char *arguments[] = {argv[0], (char *)"child", NULL};
            CHECK(posix_spawn(&child, argv[0], NULL, NULL, arguments, environ) == 0);
            CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
        }
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    puts("ok");
}
