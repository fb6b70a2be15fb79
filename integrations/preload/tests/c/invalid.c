/* Freeing memory twice, or memory that was never handed out, ends the program instead of corrupting another allocation. */
#include "check.h"

int main(int argc, char **argv) {
    CHECK(argc == 2);
    char *at = malloc(1 << 20), *other = malloc(1 << 20);
    CHECK(at && other);
    char *block = malloc(100), *second = malloc(100), *third = malloc(100);
    CHECK(block && second && third);
    switch (argv[1][0]) {
    case 't':
        free(hidden(at));
        free(hidden(at));
        break;
    case 'i':
        free(hidden(at + 4096));
        break;
    /* Of a block: misaligned, aligned, and freed again at once, after others, or by another request. */
    case 'm':
        free(hidden(block + 8));
        break;
    case 'w':
        free(hidden(block + 32));
        break;
    case 'g':
        CHECK(hidden(realloc(hidden(block + 16), 300)));
        break;
    case 'a':
        free(hidden(block));
        free(hidden(block));
        break;
    case 'o':
        free(hidden(block));
        free(hidden(second));
        free(hidden(third));
        free(hidden(block));
        break;
    case 'f':
        free(hidden(block));
        CHECK(hidden(realloc(hidden(block), 300)));
        break;
    /* The second copy comes back to the slab, where the block is free already. */
    case 's': {
        enum { MANY = 1000 };
        static char *all[MANY];
        for (int i = 0; i < MANY; i++) CHECK((all[i] = malloc(100)));
        for (int i = 0; i < MANY; i++) free(hidden(all[i]));
        for (int i = 0; i < MANY; i++) free(hidden(all[i]));
        break;
    }
    /* No bad call: the length of what is no allocation. */
    case 'u':
        CHECK(malloc_usable_size(hidden(block + 16)) == 0 && malloc_usable_size(hidden(at + 4096)) == 0);
        CHECK(malloc_usable_size(hidden(block)) >= 100);
        break;
    case 'r':
        free(hidden(at));
        CHECK(hidden(realloc(hidden(at), 100)));
        break;
    }
    puts("went on");
}
