/* A program that counts its allocations. Its malloc and related functions call glibc's functions by their second
   names. */
#include "check.h"

void *__libc_malloc(size_t size);
void __libc_free(void *at);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *at, size_t size);

static int made, freed, depth;

static void enter(void) {
    if (__atomic_add_fetch(&depth, 1, __ATOMIC_RELAXED) > 100) {
        static const char said[] = "a function that the wrapper calls has called the wrapper\n";
        (void)!write(2, said, sizeof said - 1);
        _exit(98);
    }
}

static void *leave(void *at) {
    __atomic_sub_fetch(&depth, 1, __ATOMIC_RELAXED);
    return at;
}

void *malloc(size_t size) {
    enter();
    made++;
    return leave(__libc_malloc(size));
}

void free(void *at) {
    enter();
    freed += at != NULL;
    __libc_free(at);
    leave(NULL);
}

void *calloc(size_t count, size_t size) {
    enter();
    made++;
    return leave(__libc_calloc(count, size));
}

void *realloc(void *at, size_t size) {
    enter();
    return leave(__libc_realloc(at, size));
}

int main(void) {
    for (size_t i = 0; i < SIZE_COUNT; i++) {
        char *at = malloc(SIZES[i]);
        CHECK(at && malloc_usable_size(at) >= SIZES[i]);
        fill(at, SIZES[i], i);
        at = realloc(hidden(at), SIZES[i] + 5000);
        CHECK(at && is_filled(at, SIZES[i] < 64 ? SIZES[i] : 64, i));
        free(hidden(at));
        free(hidden(calloc(1, SIZES[i])));
        /* memalign is not wrapped. */
        free(hidden(memalign(64, SIZES[i])));
    }
    CHECK(made >= 2 * (int)SIZE_COUNT && freed >= 3 * (int)SIZE_COUNT && depth == 0);
    puts("ok");
}
