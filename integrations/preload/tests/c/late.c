/* A program that loads the library itself, when it has allocated for long. */
#include "check.h"

#include <dlfcn.h>

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
    puts("ok");
}
