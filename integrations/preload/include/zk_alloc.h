/* zk_alloc.h: what a program may tell libzk_alloc.so, and ask it.
 *
 * None of it is needed: with LD_PRELOAD=/path/to/libzk_alloc.so the program's malloc is zk-alloc's. All of it is declared weak, so that
 * a program which includes this file is linked without the library, and runs without it. The inline functions below ask
 * whether it is there; where it is not, they do nothing, and return 0.
 *
 * Sizes are in bytes. Every function may be called by any thread. docs/preload.md of zk-alloc says more.
 */
#ifndef ZK_ALLOC_H
#define ZK_ALLOC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct zk_alloc_stats {
    uint64_t allocations;          /* requests that the arena served, */
    uint64_t allocated_bytes;      /* and the bytes that were asked for in them */
    uint64_t overflow_allocations; /* requests that glibc served because the arena had no memory */
    uint64_t live_bytes;           /* alive now, */
    uint64_t peak_live_bytes;      /* and the most that were */
    uint64_t resident_bytes;       /* handed out or retained: resident, or as soon as it is touched */
    uint64_t fresh_bytes;          /* handed out without being resident: each page of it costs a page fault */
    uint64_t system_calls;         /* calls of the arena into the kernel */
};

__attribute__((weak)) void zk_alloc_phase_begin(void);
__attribute__((weak)) void zk_alloc_phase_end(void);
__attribute__((weak)) size_t zk_alloc_reserve(size_t bytes);
__attribute__((weak)) size_t zk_alloc_release(void);
__attribute__((weak)) size_t zk_alloc_soften(void);
__attribute__((weak)) int zk_alloc_start_background_thread(void);
__attribute__((weak)) void zk_alloc_stop_background_thread(void);
__attribute__((weak)) void zk_alloc_on_memory_limit(unsigned percent, void (*event)(size_t resident_bytes, size_t max_bytes));
__attribute__((weak)) size_t zk_alloc_stats(struct zk_alloc_stats *stats, size_t size);

/* Begins a phase: until it ends, nothing that is free is purged with time. Phases nest, and overlap on any threads. */
static inline void zk_phase_begin(void) {
    if (zk_alloc_phase_begin) zk_alloc_phase_begin();
}

/* Ends a phase. */
static inline void zk_phase_end(void) {
    if (zk_alloc_phase_end) zk_alloc_phase_end();
}

/* Makes `bytes` resident ahead of time, on several threads; returns how many are. */
static inline size_t zk_reserve(size_t bytes) {
    return zk_alloc_reserve ? zk_alloc_reserve(bytes) : 0;
}

/* Gives all free memory back to the system; returns how many bytes of the arena's went. */
static inline size_t zk_release(void) {
    return zk_alloc_release ? zk_alloc_release() : 0;
}

/* Lets the system take free memory when it runs short; returns how many bytes that may be. */
static inline size_t zk_soften(void) {
    return zk_alloc_soften ? zk_alloc_soften() : 0;
}

/* Starts a thread that purges free memory also while the program calls nobody, if this process has none (a forked child has none);
 * returns 0, or the number of the error. ZK_ALLOC_BACKGROUND=1 has it start with the program. */
static inline int zk_start_background_thread(void) {
    return zk_alloc_start_background_thread ? zk_alloc_start_background_thread() : 0;
}

/* Ends that thread, and returns when it has ended. */
static inline void zk_stop_background_thread(void) {
    if (zk_alloc_stop_background_thread) zk_alloc_stop_background_thread();
}

/* Has `event` called when the resident bytes reach `percent` of ZK_ALLOC_MAX_BYTES: once for each crossing, by the thread whose request
 * crosses it, within that request. It may allocate, and call zk_release(). A null pointer ends this. Variables that `event` sets should be
 * atomic or volatile: compilers take malloc for a function that calls nothing of the program's. */
static inline void zk_on_memory_limit(unsigned percent, void (*event)(size_t resident_bytes, size_t max_bytes)) {
    if (zk_alloc_on_memory_limit) zk_alloc_on_memory_limit(percent, event);
}

/* Fills `stats`; returns 0 where the library is not in use. Pass sizeof(struct zk_alloc_stats): later versions append. */
static inline size_t zk_stats(struct zk_alloc_stats *stats, size_t size) {
    return zk_alloc_stats ? zk_alloc_stats(stats, size) : 0;
}

#ifdef __cplusplus
}
#endif

#endif
