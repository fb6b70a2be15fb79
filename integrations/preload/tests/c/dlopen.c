/* Programs that load a library. The first argument selects the program, and another argument names the library. With LIBRARY defined, this
   file is such a library. */
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>

#ifdef LIBRARY
/* Frees memory of other code, and allocates memory that other code frees. */
void *plugin_make(size_t size) {
    void *at = malloc(size);
    memset(at, 5, size);
    return at;
}

void plugin_free(void *at) { free(at); }

void *plugin_grow(void *at, size_t size) { return realloc(at, size); }

/* The loader calls this while it holds its lock. */
static void *allocate(void *unused) {
    char *at = malloc(2 * MIB);
    memset(at, 1, 2 * MIB);
    free(at);
    return unused;
}

__attribute__((constructor)) static void wait_for_a_thread(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, allocate, NULL);
    pthread_join(thread, NULL);
}
#else
/* A library loaded with RTLD_DEEPBIND would find the C library's malloc and free instead of the program's. */
PROGRAM(deepbind) {
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
    return 0;
}

/* A program that loads the library itself, after it has made many allocations. */
PROGRAM(late) {
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
    return 0;
}

/* A plugin with its own allocator is closed while a thread that used it is still running. Then the thread ends. */
static pthread_barrier_t proved, closed;
static uint64_t (*prove)(uint64_t);

static void *thread(void *unused) {
    CHECK(prove(7) > 0);
    pthread_barrier_wait(&proved);
    pthread_barrier_wait(&closed);
    return unused;
}

PROGRAM(unload) {
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
    return 0;
}

/* A sample inside malloc must not need the loader's lock, and must not change what dlerror says. argv[1] is a library whose constructor
   waits for a thread that allocates. */
PROGRAM(sample) {
    if (argc < 2 || !dlopen(argv[1], RTLD_NOW)) {
        puts(dlerror());
        return 1;
    }
    dlopen("/there/is/no/such/library.so", RTLD_NOW);
    char *at = malloc(2 * MIB);
    memset(at, 1, 2 * MIB);
    const char *error = dlerror();
    puts(error && strstr(error, "no/such") ? "ok" : "the error is lost");
    free(at);
    return 0;
}

/* A program without a C++ library loads one that throws. */
PROGRAM(no_memory) {
    CHECK(argc == 2);
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    CHECK(library);
    void (*check)(void) = (void (*)(void))dlsym(library, "check_no_memory");
    CHECK(check);
    check();
    puts("ok");
    return 0;
}

int main(int argc, char **argv) {
    static const struct program programs[] = {
        {"deepbind", deepbind},
        {"late", late},
        {"unload", unload},
        {"sample", sample},
        {"no memory", no_memory},
        {NULL, NULL},
    };
    return run_program(programs, argc, argv);
}
#endif
