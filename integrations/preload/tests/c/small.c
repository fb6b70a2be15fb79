// small COUNT: requests COUNT times 100 bytes, frees every second one, and checks what is in the others.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    long count = argc > 1 ? atol(argv[1]) : 0;
    unsigned char **kept = malloc(512 * sizeof *kept);
    for (long i = 0; i < count; i++) {
        unsigned char *at = malloc(100), *other = malloc(100);
        if (!at || !other) return 1;
        memset(at, (int)(i & 255), 100);
        free(other);
        if (i >= 512) {
            unsigned char *old = kept[i % 512];
            if (old[0] != ((i - 512) & 255) || old[99] != old[0]) return 2;
            free(old);
        }
        kept[i % 512] = at;
    }
    puts("ok");
    return 0;
}
