/* A sandbox that a program enters by itself. Any call that glibc does not make itself kills the process. */
#pragma once
#include "check.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif

/* dprintf makes calls that the sandbox forbids. */
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

/* The calls of malloc, free and threads in glibc. */
static const int ALLOWED[] = {
    SYS_read, SYS_write, SYS_exit, SYS_exit_group, SYS_rt_sigreturn, SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_brk, SYS_futex,
    SYS_clock_gettime, SYS_clone, SYS_clone3, SYS_set_robust_list, SYS_rseq, SYS_rt_sigprocmask,
};
#define ALLOWED_COUNT (sizeof ALLOWED / sizeof *ALLOWED)

/* `advices` lists the allowed values for madvise. Enters by prctl(2), or as libseccomp does. */
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
