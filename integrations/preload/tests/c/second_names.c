/* glibc's second names of the functions, used with memory of the usual names, and the reverse. */
#include "check.h"

void *__libc_malloc(size_t size);
void __libc_free(void *at);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *at, size_t size);
void *__libc_memalign(size_t align, size_t size);
void *__libc_valloc(size_t size);
void *__libc_pvalloc(size_t size);

int main(void) {
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < SIZE_COUNT; i++) {
            size_t size = SIZES[i];
            __libc_free(hidden(malloc(size)));
            free(hidden(__libc_malloc(size)));
            char *at = malloc(size);
            fill(at, size, i);
            at = __libc_realloc(hidden(at), size * 2);
            CHECK(at && is_filled(at, size < 64 ? size : 64, i));
            at = realloc(hidden(at), size);
            __libc_free(at);
            at = __libc_calloc(size, 2);
            CHECK(at && is_zero(at, size * 2) && malloc_usable_size(at) >= size * 2);
            free(hidden(at));
            at = __libc_memalign(4096, size);
            CHECK(at && (uintptr_t)at % 4096 == 0);
            free(hidden(at));
            free(hidden(__libc_valloc(size)));
            __libc_free(hidden(__libc_pvalloc(size)));
            __libc_free(hidden(strdup("text")));
        }
    }
    __libc_free(NULL);
    puts("ok");
}
