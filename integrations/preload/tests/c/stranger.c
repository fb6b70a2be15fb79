/* The library maps memory as it needs it, at addresses that it plans ahead. This program maps some of them. The library
   must leave them alone, and must know that glibc's memory there is not its own. */
#include "check.h"

#include <sys/mman.h>

#define MIB ((size_t)1 << 20)

int main(void) {
    /* The lowest and the highest address that the library will use next are near its first block and its first large
       block. */
    char *block = hidden(malloc(100)), *large = hidden(malloc(3 * MIB)), *giant = hidden(malloc(70 * MIB));
    CHECK(block && large && giant);
    char *wanted[] = {large + 40 * MIB, giant + 200 * MIB};
    for (int i = 0; i < 2; i++) {
        char *at = (char *)((uintptr_t)wanted[i] / MIB * MIB);
        CHECK(mmap(at, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == at);
        fill(at, MIB, 7);
        wanted[i] = at;
    }
    void *kept[60];
    for (int i = 0; i < 60; i++) {
        size_t size = i % 3 ? 2 * MIB : 80 * MIB;
        CHECK((kept[i] = hidden(malloc(size))));
        fill(kept[i], size, i);
    }
    for (int i = 0; i < 2; i++) {
        CHECK(is_filled(wanted[i], MIB, 7));
        /* A chunk as glibc's malloc makes it by mmap: its length comes first, with a flag for mmap. */
        size_t *chunk = (size_t *)wanted[i];
        chunk[0] = 0;
        chunk[1] = MIB | 2;
        CHECK(malloc_usable_size(chunk + 2) == MIB - 16);
        fill(chunk + 2, 1000, 9);
        char *grown = hidden(realloc(chunk + 2, 3 * MIB));
        CHECK(grown && is_filled(grown, 64, 9));
        free(grown);
    }
    for (int i = 0; i < 60; i++) {
        CHECK(is_filled(kept[i], i % 3 ? 2 * MIB : 80 * MIB, i));
        free(kept[i]);
    }
    puts("ok");
}
