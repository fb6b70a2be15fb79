/* ZK_ALLOC_MAX_BYTES=64M and ZK_ALLOC_MAX_HARD=1: requests beyond the limit fail, with their reason in errno. The program is told before. */
#include "check.h"
#include "../../include/zk_alloc.h"

#define MIB ((size_t)1 << 20)

/* The compiler takes malloc for a function that calls nothing of this file. */
static volatile int calls;

static void near_limit(size_t resident_bytes, size_t max_bytes) {
    CHECK(max_bytes == 64 * MIB && resident_bytes >= 32 * MIB);
    free(hidden(malloc(MIB)));
    calls++;
}

static int fails(void *at) {
    int is_refused = at == NULL && errno == ENOMEM;
    errno = 0;
    return is_refused;
}

int main(void) {
    zk_on_memory_limit(50, near_limit);
    char *first = hidden(malloc(16 * MIB));
    CHECK(first && calls == 0);
    first = hidden(realloc(first, 40 * MIB));
    CHECK(first && calls == 1);
    fill(first, 40 * MIB, 1);
    void *at;
    errno = 0;
    CHECK(fails(hidden(malloc(40 * MIB))));
    CHECK(fails(hidden(malloc(hidden_size((size_t)4 << 30)))));
    CHECK(fails(hidden(calloc(40, MIB))));
    CHECK(fails(hidden(realloc(first, 80 * MIB))));
    CHECK(fails(hidden(memalign(8192, 40 * MIB))));
    CHECK(posix_memalign(&at, 64, 40 * MIB) == ENOMEM && errno == 0);
    CHECK(is_filled(first, 40 * MIB, 1));
    int served = 0;
    while (served < 10000 && (at = hidden(malloc(20000)))) served++;
    CHECK(served < 10000 && errno == ENOMEM);
    first = hidden(realloc(first, 8 * MIB));
    CHECK(first && is_filled(first, 64, 1));
    CHECK(hidden(malloc(16 * MIB)));
    CHECK(calls >= 1);
    puts("ok");
}
