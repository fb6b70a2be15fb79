/* Allocates, frees, grows and shrinks hundreds of MiB on two threads in a sandbox that kills. The program enters the
   sandbox after many allocations ("late"), or before the first large request ("early"). madvise is allowed only with
   the values that glibc uses. */
#include "check.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif

/* dprintf makes system calls that the sandbox forbids. */
#undef CHECK
#define CHECK(what)                                                                                     \
    do {                                                                                                \
        if (!(what)) {                                                                                  \
            char text[300];                                                                             \
            int len = snprintf(text, sizeof text, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #what); \
            (void)!write(2, text, (size_t)len);                                                         \
            _exit(99);                                                                                  \
        }                                                                                               \
    } while (0)

/* The system calls that malloc, free and threads make in glibc. */
static const int ALLOWED[] = {
    SYS_read, SYS_write, SYS_exit, SYS_exit_group, SYS_rt_sigreturn, SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_brk, SYS_futex,
    SYS_clock_gettime, SYS_clone, SYS_clone3, SYS_set_robust_list, SYS_rseq, SYS_rt_sigprocmask,
};
#define ALLOWED_COUNT (sizeof ALLOWED / sizeof *ALLOWED)

/* `advices` lists the allowed values for madvise. Enters the sandbox by prctl(2), or as libseccomp does. */
static inline void enter_sandbox(const int *advices, size_t advice_count, int by_syscall) {
    struct sock_filter filter[8 + 2 * ALLOWED_COUNT + 2 * 16], *next = filter;
#define EMIT(...) *next++ = (struct sock_filter)__VA_ARGS__
    CHECK(advice_count <= 16);
    EMIT(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)));
    EMIT(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0));
    EMIT(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
    EMIT(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)));
    for (size_t i = 0; i < ALLOWED_COUNT; i++) {
        EMIT(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)ALLOWED[i], 0, 1));
        EMIT(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    }
    EMIT(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 1, 0));
    EMIT(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
    EMIT(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])));
    for (size_t i = 0; i < advice_count; i++) {
        EMIT(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)advices[i], 0, 1));
        EMIT(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    }
    EMIT(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
    struct sock_fprog program = {.len = (unsigned short)(next - filter), .filter = filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (by_syscall) {
        CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
    } else {
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0);
    }
}

static void *work(void *number) {
    uint64_t seed = (uint64_t)(uintptr_t)number;
    enum { SLOTS = 400 };
    static __thread void *slots[SLOTS];
    static __thread size_t sizes[SLOTS];
    for (size_t step = 0; step < 6000; step++) {
        uint64_t random = mix(seed * 1000003 + step);
        size_t slot = random % SLOTS, size = SIZES[random / 7 % (SIZE_COUNT - 1)];
        if (slots[slot]) CHECK(is_filled(slots[slot], sizes[slot] < 64 ? sizes[slot] : 64, slot));
        if (random % 5 == 0) {
            free(slots[slot]);
            CHECK((slots[slot] = hidden(calloc(1, size))) && is_filled(slots[slot], 0, 0) && is_zero(slots[slot], size < 4096 ? size : 4096));
        } else {
            CHECK((slots[slot] = hidden(realloc(slots[slot], size))));
        }
        sizes[slot] = size;
        fill(slots[slot], size, slot);
    }
    for (int i = 0; i < SLOTS; i++) {
        free(slots[i]);
        slots[i] = NULL;
    }
    /* Buffers that move to another zone and back, and buffers that are mostly untouched. */
    for (int round = 0; round < 4; round++) {
        char *large = hidden(malloc(40 * MIB));
        CHECK(large);
        fill(large, 40 * MIB, seed);
        CHECK((large = hidden(realloc(large, 200 * MIB))) && is_filled(large, 64, seed));
        memset(large + 100 * MIB, 1, 50 * MIB);
        CHECK((large = hidden(realloc(large, 3 * MIB))) && is_filled(large, 64, seed));
        free(large);
        char *sparse = hidden(calloc(60, MIB));
        CHECK(sparse && is_zero(sparse, MIB));
        sparse[30 * MIB] = 1;
        free(sparse);
    }
    return NULL;
}

static void *nothing(void *none) {
    return none;
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    if (strcmp(argv[1], "late") == 0) work((void *)3);
    /* Triggers the system calls that glibc makes only once. */
    free(hidden(malloc(100)));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0);
    int advices[] = {MADV_DONTNEED};
    enter_sandbox(advices, 1, strcmp(argv[2], "syscall") == 0);
    work((void *)1);
    CHECK(pthread_create(&thread, NULL, work, (void *)2) == 0);
    work((void *)3);
    malloc_trim(0);
    CHECK(pthread_join(thread, NULL) == 0);
    malloc_trim(0);
    work((void *)4);
    CHECK(write(1, "ok\n", 3) == 3);
}
