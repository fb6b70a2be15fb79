// A sample within malloc must not need the loader's lock, and must not change what dlerror says. argv[1] is a library whose constructor
// waits for a thread that allocates.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

#ifdef LIBRARY
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
int main(int argc, char **argv) {
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
#endif
