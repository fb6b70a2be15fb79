/* A program that uses zk_alloc.h. It also runs without the library; with it, it uses more than malloc. */
#include "check.h"
#include "../../include/zk_alloc.h"

#include <dirent.h>

static int tasks(void) {
    int count = -2;
    DIR *folder = opendir("/proc/self/task");
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

/* Returns whether there are `count` tasks, now or soon: the threads of `zk_reserve` may still be ending. */
static int are_tasks(int count) {
    for (int i = 0; i < 5000 && tasks() != count; i++) usleep(1000);
    return tasks() == count;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    int is_there = argv[1][0] == 'w';
    struct zk_alloc_stats stats;
    memset(&stats, 0x55, sizeof stats);
    CHECK((zk_stats(&stats, sizeof stats) != 0) == is_there);
    zk_phase_begin();
    zk_phase_begin();
    size_t reserved = zk_reserve(32 << 20);
    CHECK((reserved >= 32 << 20) == is_there);
    char *at = (char *)malloc(16 << 20);
    memset(at, 1, 16 << 20);
    if (is_there) {
        /* An older program, which knows fewer fields, passes a smaller size. */
        uint64_t first[2] = {0, 77};
        CHECK(zk_stats((struct zk_alloc_stats *)first, 8) == sizeof stats && first[0] >= 1 && first[1] == 77);
        zk_stats(&stats, sizeof stats);
        CHECK(stats.allocations >= 1 && stats.live_bytes >= 16 << 20 && stats.peak_live_bytes >= stats.live_bytes);
        CHECK(stats.resident_bytes >= reserved);
    }
    free(at);
    zk_phase_end();
    zk_phase_end();
    zk_phase_end();
    /* Both may be called repeatedly. */
    for (int i = 0; i < 4; i++) CHECK(zk_start_background_thread() == 0);
    CHECK(are_tasks(is_there ? 2 : 1));
    for (int i = 0; i < 2; i++) zk_stop_background_thread();
    CHECK(are_tasks(1));
    CHECK((zk_soften() > 0) == is_there);
    CHECK((zk_release() > 0) == is_there);
    if (is_there) {
        zk_stats(&stats, sizeof stats);
        CHECK(stats.resident_bytes < 1 << 20);
    }
    puts("ok");
}
