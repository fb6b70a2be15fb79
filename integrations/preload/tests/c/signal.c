/* ZK_ALLOC_RELEASE_SIGNAL: the signal returns free memory; a handler of the program counts instead. */
#include "check.h"
#include "../../include/zk_alloc.h"

#include <signal.h>

static volatile sig_atomic_t own;

static void handle(int number) {
    (void)number;
    own++;
}

static size_t resident(void) {
    struct zk_alloc_stats stats;
    CHECK(zk_stats(&stats, sizeof stats));
    return stats.resident_bytes;
}

int main(void) {
    void *at = hidden(malloc(64 << 20));
    CHECK(at);
    memset(at, 1, 64 << 20);
    free(at);
    CHECK(resident() > 32 << 20);
    errno = EDOM;
    CHECK(raise(SIGUSR1) == 0);
    CHECK(errno == EDOM);
    CHECK(resident() < 4 << 20);
    CHECK(signal(SIGUSR1, handle) != SIG_DFL);
    CHECK(raise(SIGUSR1) == 0 && own == 1);
    puts("ok");
}
