/* A library loaded with RTLD_DEEPBIND would find the C library's malloc and free instead of the program's. */
#include "check.h"

#include <dlfcn.h>

int main(int argc, char **argv) {
    CHECK(argc == 2);
    void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    CHECK(plugin);
    void *(*make)(size_t) = (void *(*)(size_t))dlsym(plugin, "plugin_make");
    void (*take)(void *) = (void (*)(void *))dlsym(plugin, "plugin_free");
    void *(*grow)(void *, size_t) = (void *(*)(void *, size_t))dlsym(plugin, "plugin_grow");
    for (size_t i = 0; i < SIZE_COUNT; i++) {
        take(hidden(malloc(SIZES[i])));
        free(make(SIZES[i]));
        free(grow(hidden(malloc(SIZES[i])), 2 * SIZES[i]));
        take(hidden(realloc(make(SIZES[i]), SIZES[i] / 2 + 1)));
    }
    /* The loader searches the folders that the caller of dlopen names for its own dependencies and plugins. */
    CHECK(!dlopen("no_such_library.so", RTLD_NOW) && dlerror());
    puts("ok");
}
