/* Freeing memory twice, or memory that was never handed out, ends the program instead of corrupting another allocation. */
#include "check.h"

int main(int argc, char **argv) {
    CHECK(argc == 2);
    char *at = malloc(1 << 20), *other = malloc(1 << 20);
    CHECK(at && other);
    switch (argv[1][0]) {
    case 't':
        free(hidden(at));
        free(hidden(at));
        break;
    case 'i':
        free(hidden(at + 4096));
        break;
    case 'r':
        free(hidden(at));
        CHECK(hidden(realloc(hidden(at), 100)));
        break;
    }
    puts("went on");
}
