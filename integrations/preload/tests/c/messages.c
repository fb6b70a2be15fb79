/* Programs about which the library or valgrind prints a message. The first argument selects the program. */
#include "check.h"

/* The misuse is intended. The first line is for compilers that do not know the others. */
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wuse-after-free"
#pragma GCC diagnostic ignored "-Wfree-nonheap-object"

#include <fcntl.h>

/* Freeing memory twice, or freeing memory that was never handed out, ends the program instead of corrupting another allocation. */
PROGRAM(invalid) {
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
    /* Bad frees of a block: at a misaligned or an aligned address within it, and again at once, after others, or by realloc. */
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
    /* The cache returns the second copy to the slab, where the block is already free. */
    case 's': {
        enum { MANY = 1000 };
        static char *all[MANY];
        for (int i = 0; i < MANY; i++) CHECK((all[i] = malloc(100)));
        for (int i = 0; i < MANY; i++) free(hidden(all[i]));
        for (int i = 0; i < MANY; i++) free(hidden(all[i]));
        break;
    }
    /* This is no error: the usable size of an address at which no allocation begins is 0. */
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
    return 0;
}

/* Reads memory that it freed, for tools that find such reads. */
PROGRAM(reads_freed) {
    /* Opens the arena. */
    free(malloc(1 << 20));
    char *volatile at = malloc(100);
    at[8] = 1;
    free(at);
    if (at[8] == 77) puts("impossible");
    puts("ok");
    return 0;
}

/* Makes the library print a message after this program changed descriptor 2. The first argument says how, and the second names a file of
   the program. With a third argument, the program frees memory twice instead of reporting at its end. */
static int opened(const char *path) { return open(path, O_CREAT | O_RDWR | O_APPEND, 0600); }

PROGRAM(standard_error) {
    CHECK(argc >= 3);
    const char *how = argv[1];
    if (!strcmp(how, "reused")) {
        CHECK(close(2) == 0);
        if (opened(argv[2]) != 2) _exit(97);
    } else if (!strcmp(how, "absent")) {
        /* The program was started without descriptor 2. */
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
    return 0;
}

/* A program without a C++ library that still calls C++'s operators, which the preloaded library defines. */
__attribute__((weak)) void *_Znwm(size_t size);
__attribute__((weak)) void *_ZnwmRKSt9nothrow_t(size_t size, const void *tag);
__attribute__((weak)) void _ZdlPv(void *at);

PROGRAM(no_cpp) {
    CHECK(_Znwm && _ZdlPv && _ZnwmRKSt9nothrow_t);
    size_t huge = hidden_size((size_t)PTRDIFF_MAX - 4096);
    for (size_t i = 0; i < SIZE_COUNT; i++) {
        _ZdlPv(hidden(_Znwm(SIZES[i])));
        free(hidden(_ZnwmRKSt9nothrow_t(SIZES[i], "")));
    }
    CHECK(_ZnwmRKSt9nothrow_t(huge, "") == NULL);
    puts("ok");
    fflush(stdout);
    CHECK(_Znwm(huge));
    return 0;
}

int main(int argc, char **argv) {
    static const struct program programs[] = {
        {"invalid", invalid},
        {"reads freed", reads_freed},
        {"standard error", standard_error},
        {"no C++", no_cpp},
        {NULL, NULL},
    };
    return run_program(programs, argc, argv);
}
