/* zk_alloc.h: functions with which a program controls and queries libzk_alloc.so.
 *
 * A program does not need them: with LD_PRELOAD=/path/to/libzk_alloc.so, its malloc is zk-alloc's. All functions are declared weak, so a
 * program that includes this file links and runs without the library. The inline functions below check whether the library is
 * loaded. If it is not, they do nothing and return 0.
 *
 * Sizes are in bytes. Any thread may call any function. See docs/preload.md of zk-alloc for details.
 */
#ifndef ZK_ALLOC_H
#define ZK_ALLOC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct zk_alloc_stats {
    uint64_t allocations;          /* requests that the arena served */
    uint64_t allocated_bytes;      /* bytes requested in them */
    uint64_t overflow_allocations; /* requests that glibc served because the arena had no memory */
    uint64_t live_bytes;           /* bytes that are alive now */
    uint64_t peak_live_bytes;      /* the maximum of live_bytes so far */
    uint64_t resident_bytes;       /* bytes handed out or retained: resident, or resident as soon as they are touched */
    uint64_t fresh_bytes;          /* bytes that were not resident when they were handed out: each of their pages costs a page fault */
    uint64_t system_calls;         /* system calls that the arena made */
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

/* Begins a phase, which pauses the time-based purging of free memory. Phases may nest, and may overlap on any threads. */
static inline void zk_phase_begin(void) {
    if (zk_alloc_phase_begin) zk_alloc_phase_begin();
}

/* Ends a phase. */
static inline void zk_phase_end(void) {
    if (zk_alloc_phase_end) zk_alloc_phase_end();
}

/* Makes `bytes` bytes of memory resident ahead of time, on several threads. Returns how many bytes are resident. */
static inline size_t zk_reserve(size_t bytes) {
    return zk_alloc_reserve ? zk_alloc_reserve(bytes) : 0;
}

/* Returns all free memory to the system, and returns the number of arena bytes that were purged. */
static inline size_t zk_release(void) {
    return zk_alloc_release ? zk_alloc_release() : 0;
}

/* Lets the kernel reclaim free memory when it runs short. Returns how many bytes it may reclaim. */
static inline size_t zk_soften(void) {
    return zk_alloc_soften ? zk_alloc_soften() : 0;
}

/* Starts the background thread, which purges free memory even while the program makes no requests. Does nothing if this process already has
 * that thread; a forked child does not inherit it. Returns 0, or an error number. ZK_ALLOC_BACKGROUND=1 starts the thread when the program
 * starts. */
static inline int zk_start_background_thread(void) {
    return zk_alloc_start_background_thread ? zk_alloc_start_background_thread() : 0;
}

/* Stops the background thread, and waits until it has ended. */
static inline void zk_stop_background_thread(void) {
    if (zk_alloc_stop_background_thread) zk_alloc_stop_background_thread();
}

/* Registers `event`, which is called when the resident bytes reach `percent` % of ZK_ALLOC_MAX_BYTES: once for each crossing, on the
 * thread whose request crosses it, during that request. `event` may allocate, and call zk_release(). A null pointer unregisters the
 * function. Variables that `event` sets should be atomic or volatile, because compilers assume that malloc calls no function of the
 * program. */
static inline void zk_on_memory_limit(unsigned percent, void (*event)(size_t resident_bytes, size_t max_bytes)) {
    if (zk_alloc_on_memory_limit) zk_alloc_on_memory_limit(percent, event);
}

/* Fills in `stats`. Returns 0 if the library is not in use. Pass sizeof(struct zk_alloc_stats) as `size`: later versions append fields. */
static inline size_t zk_stats(struct zk_alloc_stats *stats, size_t size) {
    return zk_alloc_stats ? zk_alloc_stats(stats, size) : 0;
}

#ifdef __cplusplus
}
#endif

#endif
