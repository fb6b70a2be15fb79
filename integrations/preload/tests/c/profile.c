// Allocates in two functions: the memory of one is live until exit, that of the other only at the peak.
#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

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

int main(int argc, char **argv) {
    char *kept = hold_eight();
    if (argc == 2) {
        // Waits after each signal until the library has written the file.
        for (int number = 1; number <= 2; number++) {
            raise(SIGUSR2);
            char name[4096];
            snprintf(name, sizeof name, "%s/%d.%d.raw", argv[1], getpid(), number);
            for (int i = 0; access(name, R_OK) != 0; i++) {
                if (i == 2000) return 1;
                usleep(5000);
            }
        }
    }
    char *freed = hold_three();
    int is_there = kept[MIB] == 1 && freed[MIB] == 2;
    free(freed);
    puts(is_there ? "ok" : "lost");
    return 0;
}
