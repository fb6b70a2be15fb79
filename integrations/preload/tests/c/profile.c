// Holds memory from two functions, at exit and at the peak.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

__attribute__((noinline)) char *hold_eight(void) {
    char *at = malloc(8 * MIB);
    memset(at, 1, 8 * MIB);
    return at;
}

__attribute__((noinline)) char *hold_three(void) {
    char *at = realloc(malloc(1 * MIB), 3 * MIB);
    memset(at, 2, 3 * MIB);
    return at;
}

int main(void) {
    char *kept = hold_eight();
    char *freed = hold_three();
    int is_there = kept[MIB] == 1 && freed[MIB] == 2;
    free(freed);
    puts(is_there ? "ok" : "lost");
    return 0;
}
