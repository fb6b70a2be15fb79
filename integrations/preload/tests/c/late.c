/* A program that loads the library itself, after it has made many allocations. */
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>

int main(int argc, char **argv) {
    CHECK(argc == 2);
    void *before[SIZE_COUNT];
    for (size_t i = 0; i < SIZE_COUNT; i++) before[i] = malloc(SIZES[i]);
    for (int round = 0; round < 3; round++) {
        void *library = dlopen(argv[1], RTLD_NOW | (round % 2 ? RTLD_GLOBAL : RTLD_LOCAL));
        CHECK(library);
        void *(*its_malloc)(size_t) = (void *(*)(size_t))dlsym(library, "malloc");
        void (*its_free)(void *) = (void (*)(void *))dlsym(library, "free");
        CHECK(its_malloc && its_free);
        for (size_t i = 0; i < SIZE_COUNT; i++) {
            free(its_malloc(SIZES[i]));
            its_free(hidden(malloc(SIZES[i])));
        }
        CHECK(dlclose(library) == 0);
    }
    for (size_t i = 0; i < SIZE_COUNT; i++) free(before[i]);
    /* Each copy that is loaded and closed would leave a thread key behind, and a process has only 1,024 keys. */
    for (int round = 0; round < 1100; round++) {
        void *library = dlopen(argv[1], RTLD_NOW);
        CHECK(library && dlclose(library) == 0);
    }
    pthread_key_t key;
    CHECK(pthread_key_create(&key, NULL) == 0);
    puts("ok");
}
