/* Prints the same under any allocator. `hello COUNT` makes small requests instead. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Allocates two blocks of 100 bytes `count` times, and frees one of them at once. Checks the contents of the other before freeing it. */
static int small_requests(long count) {
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

int main(int argc, char **argv) {
    if (argc > 1) return small_requests(atol(argv[1]));
    char *volatile at = calloc(1, 1 << 20);
    at[5] = 'k';
    printf("o%c\n", at[5]);
    free(at);
    return 0;
}
