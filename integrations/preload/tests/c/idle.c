/* Works like a service that proves occasionally. For each stage, prints the page faults, resident MiB and tasks. Arguments: the MiB that
 * each round of work allocates and frees, the MiB that stay live, the seconds of rest, and the kind of rest: "idle", or "trickle", which
 * makes a few small requests. A forked child that idles starts its own background thread. */
#include "check.h"
#include "../../include/zk_alloc.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>

static long faults(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
}

static long resident_mib(void) {
    long size, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld %ld", &size, &resident) == 2);
    fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) / 1024) / 1024;
}

static int tasks_now(void) {
    int count = -2;
    DIR *folder = opendir("/proc/self/task");
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

/* The kernel lists a thread for a moment after it was joined, so this returns the lowest of a few counts. */
static int tasks(void) {
    int count = tasks_now();
    for (int i = 0; i < 20; i++) {
        usleep(5000);
        int now = tasks_now();
        if (now < count) count = now;
    }
    return count;
}

static void work(size_t mib) {
    /* One huge block, some mid-sized blocks, and many small ones. */
    void *huge = malloc((mib / 2) << 20), *middle[64], *small[4000];
    memset(huge, 1, (mib / 2) << 20);
    for (int i = 0; i < 64; i++) memset(middle[i] = malloc((mib << 20) / 4 / 64), 2, (mib << 20) / 4 / 64);
    for (int i = 0; i < 4000; i++) memset(small[i] = malloc((mib << 20) / 4 / 4000), 3, (mib << 20) / 4 / 4000);
    for (int i = 0; i < 4000; i++) free(small[i]);
    for (int i = 0; i < 64; i++) free(middle[i]);
    free(huge);
}

static int trickles;

static void rest(double seconds) {
    if (!trickles) {
        usleep((useconds_t)(seconds * 1e6));
        return;
    }
    for (int i = 0; i < seconds * 100; i++) {
        for (int j = 0; j < 10; j++) free(malloc(100));
        usleep(10000);
    }
}

static void *idle_thread(void *seconds) {
    /* Keeps its cached memory, and sleeps. */
    work(40);
    usleep((useconds_t)(*(double *)seconds * 1e6));
    return NULL;
}

static void stage(const char *name, long before) { printf("%s %ld %ld %d\n", name, faults() - before, resident_mib(), tasks()); }

int main(int argc, char **argv) {
    CHECK(argc == 5);
    trickles = strcmp(argv[4], "trickle") == 0;
    size_t most = atol(argv[1]), stays = atol(argv[2]);
    double seconds = atof(argv[3]);
    setvbuf(stdout, malloc(4096), _IOFBF, 4096);
    char *alive = malloc(stays << 20);
    memset(alive, 4, stays << 20);
    long before = faults();
    /* The library purges memory that is freed for the first time, and keeps it resident once the program reuses it. So these rounds fault
       in the freed memory a second time. */
    for (int i = 0; i < 3; i++) work(most);
    stage("cold", before);
    before = faults();
    for (int i = 0; i < 6; i++) {
        work(most);
        usleep(20000);
    }
    stage("warm", before);
    pthread_t thread;
    pthread_create(&thread, NULL, idle_thread, &seconds);
    before = faults();
    rest(seconds);
    pthread_join(thread, NULL);
    stage("idle", before);
    before = faults();
    for (int i = 0; i < 3; i++) work(most);
    stage("again", before);
    fflush(stdout);
    if (fork() == 0) {
        stage("forked", faults());
        before = faults();
        for (int i = 0; i < 2; i++) work(most);
        if (!trickles) CHECK(zk_start_background_thread() == 0);
        rest(seconds);
        stage("child", before);
        zk_stop_background_thread();
        stage("ended", before);
        fflush(stdout);
        _exit(0);
    }
    before = faults();
    rest(seconds);
    int status;
    wait(&status);
    CHECK(status == 0);
    stage("idle", before);
    free(alive);
}
