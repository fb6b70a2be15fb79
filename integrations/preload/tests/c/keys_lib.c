/* Takes the keys for which glibc needs no memory, before all other code. */
#include <pthread.h>
#include <stdlib.h>

pthread_key_t first_key = -1;

__attribute__((constructor)) static void take_keys(void) {
    if (getenv("NO_KEYS")) return;
    for (int i = 0; i < 40; i++) {
        pthread_key_t key;
        if (pthread_key_create(&key, NULL) != 0) abort();
        if (i == 0) first_key = key;
    }
}
