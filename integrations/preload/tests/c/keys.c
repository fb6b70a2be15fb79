/* A library takes all early thread keys. Every thread must still have a cache, which a later thread adopts. With LIBRARY defined, this file
   is the library. */
#ifdef LIBRARY
/* Takes the keys for which glibc needs no memory, before all other code. */
#include <pthread.h>
#include <stdlib.h>

pthread_key_t first_key = -1;

__attribute__((constructor)) static void take_keys(void) {
    for (int i = 0; i < 40; i++) {
        pthread_key_t key;
        if (pthread_key_create(&key, NULL) != 0) abort();
        if (i == 0) first_key = key;
    }
}
#else
#include "check.h"

#include <pthread.h>

extern pthread_key_t first_key;

/* Returns whether this thread gets the block that it freed last, as from a cache. Slabs would return the lowest free block. */
static int has_cache(void) {
    void *one = hidden(malloc(200)), *other = hidden(malloc(200));
    void *low = one < other ? one : other, *high = one < other ? other : one;
    free(low);
    free(high);
    void *next = hidden(malloc(200));
    int is_last = next == high;
    free(next);
    return is_last;
}

static void *thread(void *unused) {
    (void)unused;
    return has_cache() ? NULL : hidden(&first_key);
}

int main(void) {
    CHECK(first_key == 0);
    free(hidden(malloc(1000000)));
    CHECK(has_cache());
    for (int i = 0; i < 2500; i++) {
        pthread_t id;
        void *result;
        CHECK(pthread_create(&id, NULL, thread, NULL) == 0 && pthread_join(id, &result) == 0 && !result);
    }
    puts("ok");
}
#endif
