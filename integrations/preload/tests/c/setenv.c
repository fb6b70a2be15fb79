/* Other threads change the environment while the library needs its settings. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>

static atomic_int stop;

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

int main(void) {
    pthread_t threads[3];
    for (uintptr_t i = 0; i < 3; i++) pthread_create(&threads[i], NULL, change, (void *)(i * 1000));
    usleep(2000);
    for (int round = 0; round < 2000; round++) {
        for (size_t i = 0; i < SIZE_COUNT - 1; i++) free(hidden(malloc(SIZES[i])));
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    puts("ok");
}
