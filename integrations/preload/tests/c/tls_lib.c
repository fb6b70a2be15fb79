/* A library with its own thread-local memory. The test builds many copies. */
#include <stdlib.h>

static __thread char block[200];
static __thread void *kept;

void *touch(void) {
    block[7]++;
    if (!kept) kept = malloc(100000);
    return kept;
}
