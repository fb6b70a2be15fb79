/* A library with thread-local memory of its own, of which the test builds many. */
#include <stdlib.h>

static __thread char block[200];
static __thread void *kept;

void *touch(void) {
    block[7]++;
    if (!kept) kept = malloc(100000);
    return kept;
}
