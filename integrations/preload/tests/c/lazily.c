/* Prints the process's address space. The arena maps its own at the first request for it, and not before. */
#include "check.h"

static long address_space_mib(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld", &pages) == 1);
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024) / 1024;
}

int main(void) {
    printf("%ld\n", address_space_mib());
    free(hidden(malloc(1 << 20)));
    printf("%ld\n", address_space_mib());
}
