/* A program that brings its own allocator. */
#pragma GCC diagnostic ignored "-Wunused-result"
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static unsigned char memory[64 << 20];
static size_t used;

void *malloc(size_t size) {
    used = (used + 31) & ~(size_t)15;
    size_t start = used;
    if (size > sizeof memory - used) return NULL;
    used += size;
    memcpy(memory + start - 8, &(uint64_t){size}, 8);
    return memory + start;
}

static int is_own(void *at) { return (unsigned char *)at >= memory && (unsigned char *)at < memory + sizeof memory; }

void free(void *at) {
    if (at && !is_own(at)) __builtin_trap();
}

void *calloc(size_t count, size_t size) { return malloc(count * size); }

void *realloc(void *at, size_t size) {
    void *new = malloc(size);
    if (at && new) {
        uint64_t old;
        memcpy(&old, (unsigned char *)at - 8, 8);
        memcpy(new, at, old < size ? old : size);
    }
    return new;
}

/* Functions of glibc or C23, which call the program's own functions. */
void *reallocarray(void *at, size_t count, size_t size);
__attribute__((weak)) void free_sized(void *at, size_t size);
__attribute__((weak)) void free_aligned_sized(void *at, size_t align, size_t size);

int main(void) {
    for (int i = 0; i < 100; i++) {
        void *volatile at = malloc(100000);
        if (!is_own(at)) return 1;
        free(at);
    }
    void *volatile many = malloc(3000);
    many = reallocarray(many, 30, 1000);
    if (!is_own(many)) return 3;
    many = reallocarray(many, 3, 10);
    if (!is_own(many) || !is_own(reallocarray(NULL, 70, 10000))) return 4;
    if (free_sized) free_sized(many, 30);
    if (free_aligned_sized) free_aligned_sized(malloc(100), 16, 100);
    char *line = strdup("ok");
    if (!is_own(line)) return 2;
    puts(line);
    free(line);
    return 0;
}
