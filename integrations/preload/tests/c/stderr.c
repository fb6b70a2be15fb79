/* Has the library print a message after this program changed descriptor 2. The first argument says how, the second
 * names a file of the program. With a third argument, the program frees memory twice instead of reporting at its end. */
#include "check.h"

#include <fcntl.h>

static int opened(const char *path) { return open(path, O_CREAT | O_RDWR | O_APPEND, 0600); }

int main(int argc, char **argv) {
    CHECK(argc >= 3);
    const char *how = argv[1];
    if (!strcmp(how, "reused")) {
        CHECK(close(2) == 0);
        if (opened(argv[2]) != 2) _exit(97);
    } else if (!strcmp(how, "absent")) {
        /* The program was started without one. */
        if (opened(argv[2]) != 2) _exit(97);
    } else if (!strcmp(how, "closed")) {
        CHECK(close(2) == 0);
    } else if (!strcmp(how, "back")) {
        int kept = dup(2), other = opened(argv[2]);
        CHECK(kept > 2 && dup2(other, 2) == 2 && dup2(kept, 2) == 2);
    } else {
        CHECK(!strcmp(how, "kept"));
    }
    char *at = malloc(1 << 20);
    if (!at) _exit(96);
    free(hidden(at));
    puts("ok");
    fflush(stdout);
    if (argc > 3) free(hidden(at));
}
