/* A plugin with its own allocator is closed while a thread that used it lives; then the thread ends. */
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>

static pthread_barrier_t proved, closed;
static uint64_t (*prove)(uint64_t);

static void *thread(void *unused) {
    CHECK(prove(7) > 0);
    pthread_barrier_wait(&proved);
    pthread_barrier_wait(&closed);
    return unused;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    pthread_barrier_init(&proved, NULL, 2);
    pthread_barrier_init(&closed, NULL, 2);
    for (int round = 0; round < 3; round++) {
        void *plugin = dlopen(argv[1], RTLD_NOW);
        CHECK(plugin);
        prove = (uint64_t (*)(uint64_t))dlsym(plugin, "prove");
        CHECK(prove && prove(7) > 0);
        pthread_t id;
        CHECK(pthread_create(&id, NULL, thread, NULL) == 0);
        pthread_barrier_wait(&proved);
        CHECK(dlclose(plugin) == 0);
        pthread_barrier_wait(&closed);
        CHECK(pthread_join(id, NULL) == 0);
        for (size_t i = 0; i < SIZE_COUNT; i++) free(hidden(malloc(SIZES[i])));
    }
    puts("ok");
}
