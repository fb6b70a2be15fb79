/* A program that brings its own allocator. */
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

int main(void) {
    for (int i = 0; i < 100; i++) {
        void *volatile at = malloc(100000);
        if (!is_own(at)) return 1;
        free(at);
    }
    char *line = strdup("ok");
    if (!is_own(line)) return 2;
    puts(line);
    free(line);
    return 0;
}
