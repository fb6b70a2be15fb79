/* Has 50 MiB alive, after it had 150 more. Says so, and waits to be examined. */
#include "check.h"

#define MIB ((size_t)1 << 20)

int main(void) {
    void *kept = hidden(malloc(50 * MIB)), *gone = hidden(malloc(150 * MIB));
    CHECK(kept && gone);
    memset(kept, 1, 50 * MIB);
    memset(gone, 1, 150 * MIB);
    free(gone);
    puts("ok");
    fflush(stdout);
    char byte;
    CHECK(read(0, &byte, 1) == 0);
    CHECK(*(char *)kept == 1);
}
