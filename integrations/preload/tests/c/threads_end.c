/* A program whose first thread ends before its last. The process ends with the last one, whatever threads the library
   has. */
#include "check.h"

#include <pthread.h>

static void *last(void *unused) {
    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; i < SIZE_COUNT; i++) free(hidden(malloc(SIZES[i])));
        usleep(1000);
    }
    dprintf(1, "ok\n");
    return unused;
}

int main(void) {
    for (size_t i = 0; i < SIZE_COUNT; i++) {
        void *at = malloc(SIZES[i]);
        memset(at, 1, SIZES[i]);
        free(hidden(at));
    }
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, last, NULL) == 0);
    pthread_detach(thread);
    pthread_exit(NULL);
}
