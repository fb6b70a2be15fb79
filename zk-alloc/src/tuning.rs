//! The table of constants: each tunable number of the allocator, with its unit, its reason, and the experiment behind it. Numbers that
//! follow from a layout (widths of bit fields, lengths of arrays) are defined next to that layout.
//!
//! With the feature `tune`, `ZK_ALLOC_TUNE=name=value,name=value` sets constants for one process. `docs/experiments/ablation.md` shows the
//! effect of each on real provers.

#![cfg_attr(not(unix), allow(dead_code, reason = "other systems do not fork"))]

use std::sync::atomic::{AtomicUsize, Ordering};

/// A constant of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Constant {
    /// The name, as in `ZK_ALLOC_TUNE`.
    pub name: &'static str,
    /// The value, unless `ZK_ALLOC_TUNE` sets another.
    pub value: usize,
    /// The unit of the value.
    pub unit: &'static str,
    /// The effect, and the reason for the value.
    pub reason: &'static str,
    /// The value that switches off the constant's mechanism; `None` if there is no such value.
    pub off: Option<usize>,
}

macro_rules! constants {
    ($($(#[doc = $reason:literal])+ $name:ident = $value:expr, $unit:literal $(, off $off:expr)?;)+) => {
        $(
            $(#[doc = $reason])+
            #[inline(always)]
            #[must_use]
            pub fn $name() -> usize {
                if cfg!(feature = "tune") { VALUES[Index::$name as usize].load(Ordering::Relaxed) } else { $value }
            }
        )+

        /// All constants.
        pub const CONSTANTS: &[Constant] = &[$(
            Constant {
                name: stringify!($name),
                value: $value,
                unit: $unit,
                reason: concat!($($reason),+).trim_ascii(),
                off: constants!(@off $($off)?),
            },
        )+];

        #[allow(non_camel_case_types, reason = "the names of the functions")]
        enum Index {
            $($name,)+
        }

        /// The values in force with the feature `tune`, by [`Index`].
        static VALUES: [AtomicUsize; CONSTANTS.len()] = [$(AtomicUsize::new($value),)+];
    };
    (@off) => { None };
    (@off $off:expr) => { Some($off) };
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const NEVER: usize = usize::MAX;

constants! {
    // Placement of requests.
    /// A search for a run that is shorter than its alignment scans this many bitmap words. Then it tries all free runs that are long
    /// enough. The scan takes about 25 ns.
    aligned_scan_words = 64, "words";
    /// The smallest huge run. Huge runs have a zone of their own. Otherwise a smaller run could be placed in the gap of a freed huge run
    /// and stay alive, and the next huge run would not fit there (placement.md).
    huge_run_bytes = 64 * MIB, "bytes", off NEVER;
    /// The smallest run of the mid zone that may go to the huge zone, if only that zone has free resident memory for it.
    crosses_min_bytes = 4 * MIB, "bytes", off NEVER;
    /// The smallest long run. Shorter runs outlive their proof more often, and are placed with the slabs (placement.md).
    long_run_bytes = 256 * KIB, "bytes";
    /// The small-object region at the start of a zone, which only slabs and short runs use. Without it, blocks that outlive their proof
    /// would take the places of the next proof's long runs (placement.md).
    small_region_bytes = 3 * MIB, "bytes a thread", off 0;
    /// The maximum size of the small-object region, which machines with many threads reach. During the first proof of a small prover, its
    /// long runs can't use free memory in that region.
    max_small_region_bytes = 24 * MIB, "bytes";
    /// After the first phase, the small-object region is at most this part of the peak. Long runs can't use its free memory, which must not
    /// exceed the headroom (ablation.md).
    small_region_part = 8, "of the peak";
    /// The number of free runs that a search checks for resident memory before it takes fresh memory. The search takes a few microseconds,
    /// about as long as the page faults of the shortest run.
    max_resident_probes = 64, "free runs", off 0;
    /// A search goes on to the next bin after this many free runs of a bin were too short.
    max_probes_per_bin = 8, "free runs";
    /// The same for free runs of 1,024 pages and more, which share one bin. Checking this many takes about two microseconds.
    max_long_probes_per_bin = 64, "free runs";

    // Growth and reallocation.
    /// The largest backing allocation that growth moves into the arena. Above it, the `realloc` of most allocators moves pages without
    /// copying them, which is faster (threshold.md).
    migrate_max_bytes = 128 * KIB, "bytes", off 0;
    /// The smallest run whose pages the kernel moves when the run grows elsewhere. Below it, a copy costs less than the kernel's
    /// bookkeeping.
    move_min_bytes = 4 * MIB, "bytes", off NEVER;
    /// Once moves have split the arena so often that it has this part of the maximum number of mappings, runs are copied instead of moved.
    /// From half that part on, moved runs are purged when they are freed, so that the kernel can merge their mappings.
    moved_part = 4, "of vm.max_map_count", off NEVER;
    /// The most mappings of purged memory that one purge replaces with fresh mappings.
    renewed_at_once = 64, "mappings";
    /// A huge run that moves gets addresses for this many times its length, and grows in place from then on. If it moves again, it leaves
    /// behind at most an eighth of its last length (untouched.md).
    huge_run_growth_room = 8, "times its length", off 1;
    /// A huge run gets that growth room only if the process may map this many times the added bytes, because the rest of the program needs
    /// address space, too.
    address_headroom_factor = 4, "times the addresses";

    // Faulting in, zeroing and copying.
    /// After the small-object region, this much of the zone stays in small pages, so that small provers do not pay for whole huge pages.
    small_pages_bytes = 8 * MIB, "bytes", off 0;
    /// At most this many zeroed requests of similar length in a row are assumed to be densely used before the kernel is asked again.
    max_trust = 4095, "requests";
    /// Below this length, clearing costs less than asking the kernel for the resident pages (zeroing.md).
    sparse_min_bytes = 256 * KIB, "bytes", off NEVER;
    /// Memory that has to be zeroed again is purged instead of cleared if less than this part of it was touched.
    sparse_part = 4, "of the length";
    /// Below this length, a copy costs less than asking the kernel for the pages of the source that were never touched.
    sparse_copy_min_bytes = 32 * KIB, "bytes", off NEVER;
    /// A copy skips pages that were never touched if they make up at least this part of the source. To do so, it asks the kernel a second
    /// time, which takes a few microseconds.
    sparse_copy_part = 8, "of the length";
    /// At most this many copies of similar length in a row are assumed to be dense before the kernel is asked again. For 32 KiB, asking
    /// takes a tenth of the copy's time.
    max_copy_trust = 15, "copies";
    /// With more hardware threads than this, the kernel zeroes each page of a huge run on the thread that touches it. With fewer, one
    /// thread clears all pages.
    eager_zero_threads = 4, "threads";
    /// The smallest run that the kernel zeroes page by page, as threads touch it. Shorter runs are cleared at once, and are still in the
    /// processor's caches when the program writes them (zeroing.md).
    huge_run_zero_bytes = 128 * MIB, "bytes";
    /// A zone commits memory in steps of half its committed size, but at least this. Small steps leave more of an address-space limit to
    /// the program.
    min_commit_bytes = 2 * MIB, "bytes";
    /// The largest step in which a zone commits memory. Large steps save system calls.
    max_commit_bytes = 32 * MIB, "bytes";

    // Retaining and purging.
    /// The headroom above the peak live size is this part of the peak, or what the next two constants yield, if that is more (headroom.md).
    headroom_part = 8, "of the peak", off NEVER;
    /// The smallest headroom. In resident mode, also the free memory that stays resident even if the program has reused none. Purging so
    /// little gains nothing.
    min_headroom_bytes = 512 * KIB, "bytes", off 0;
    /// The headroom of a small program is half of its peak, up to this many bytes (headroom.md).
    max_headroom_bytes = 6 * MIB, "bytes", off 0;
    /// In resident mode: the smallest headroom above the peak of a busy process, but at most the peak itself.
    busy_headroom_bytes = 8 * MIB, "bytes", off 0;
    /// In resident mode: a process that allocates less than this in a window is idle. After a purge, it has to fault in no more than that.
    min_busy_bytes = MIB, "bytes";
    /// In resident mode: the process keeps as much memory as it used at its peak within this period. With a longer period, an idle process
    /// keeps memory longer. With a shorter one, a slow prover faults it in again (preload.md).
    retain_for_ms = 8000, "ms";
    /// The minimum time between two decay ticks.
    min_decay_tick_us = 1000, "µs";
    /// Free memory stays resident unless the last pauses between phases were longer than this: faulting it in again takes longer than a
    /// shorter pause.
    min_pause_ms = 1000, "ms";
    /// The time between two decay ticks of the background thread while there is nothing to purge.
    rest_ms = 1000, "ms";
    /// After a decay tick, the program's threads purge at most this much, or the part given by the next constant, if that is more. They
    /// spread it over their requests.
    tick_bytes = 64 * MIB, "bytes";
    /// After a decay tick, the program's threads purge this part of the surplus, if that is more than the constant above.
    tick_part = 4, "of the surplus";
    /// If a decay tick is late, the purge makes up for the missed ticks, up to this many.
    ticks_at_once = 4, "ticks";
    /// The most bytes that a request purges, unless the request is larger. The kernel takes a millisecond to purge 10 MiB of small pages.
    request_purge_bytes = 4 * MIB, "bytes";
    /// A request purges at most this many ranges, plus one for each `long_run_bytes` of its size. A range takes one to three system calls.
    request_purge_ranges = 64, "ranges";
    /// The most words of bitmaps that a request reads to find free memory to purge. They cover 8 GiB of small pages, and take about 50 µs
    /// to read.
    request_scan_words = 32 * KIB, "words";
    /// A program that repeatedly purges memory at its peak and needs it again gets more headroom, if these purges exceed this part.
    churn_part = 256, "of the bytes served";
    /// After a purge at the cap that freed nothing, the program must free at least this much before the next purge.
    retry_at_cap_bytes = 256 * KIB, "bytes";
    /// A request empties at most this many thread caches, plus one for each MiB of its size. Emptying a full one takes up to 0.3 ms.
    request_caches = 4, "caches";
    /// Memory that the kernel reported as untouched does not count against the cap for this long.
    untouched_ms = 100, "ms";
    /// A request at the cap asks the kernel which pages are untouched, and stops after finding this much memory that was touched. That
    /// takes a millisecond.
    ask_bytes = 1 << 30, "bytes", off 0;
    /// A request over a limit purges this much more than it needs, so that the next requests find room.
    purge_ahead_bytes = MIB, "bytes";
    /// The function passed to `on_memory_limit` is called again only after resident memory has fallen this far below the threshold. So it
    /// is not called constantly while the process is near the threshold.
    event_part = 8, "of the limit";
    /// A request at a limit empties thread caches if they hold at least this part of the memory in use.
    cached_part = 16, "of the used memory";

    /// While a control group has less than this part of its memory limit to spare, free memory is purged.
    spare_part = 8, "of the limit";
    /// All free memory is purged while threads of the control group wait for memory at least this much of the time.
    stall_percent = 10, "% of the time";
    /// The minimum time between two reads of the control group's files. A read takes about 50 µs.
    watch_ms = 100, "ms";

    // Forks.
    /// If there is less free memory than this, a fork does not withhold it from the child: copying its page tables takes only about ten
    /// microseconds.
    fork_min_bytes = MIB, "bytes", off NEVER;
    /// A free run shorter than this is not withheld. Withholding it takes the fork about ten microseconds, and copying its page tables
    /// takes less.
    fork_run_min_bytes = 256 * KIB, "bytes", off NEVER;

    // Huge pages.
    /// The most blocks of a zone for which the arena forbids huge pages because a part of the block was purged. Each adds up to two
    /// mappings, of which a process may have 65,530.
    max_forbidden = 4096, "blocks", off 0;

    // Thread caches.
    /// The number of short runs that a thread caches: those that it freed last (thread-caches.md).
    caches_runs = 4, "runs, at most 4", off 0;
    /// Whether the blocks that a thread fetches at once fill whole cache lines, so that no two threads share a line (stress.md).
    fetches_lines = 1, "0 or 1", off 0;
    /// The most blocks that a thread fetches at once.
    fetch_blocks = 32, "blocks, at most 32";
    /// The most bytes that a thread fetches at once.
    fetch_bytes = 16 * KIB, "bytes";
    /// One in this many requests of a thread takes the slow path, even if the thread's cache has a free block. Otherwise a thread that only
    /// uses its cache would run no decay tick. The slow path takes about 15 ns.
    tick_requests = 128, "requests";
    /// The same, while there is memory to purge: each request on the slow path purges a part of it.
    purge_requests = 4, "requests";
    /// A thread that found all caches taken asks for one again after this many requests.
    cache_retry_interval = 256, "requests";

    /// A request may check this many caches of other threads, plus this many for each page that it requests. A check takes a nanosecond or
    /// two.
    visits_a_page = 16, "caches";

    // The process around the arena.
    /// The length of a buffer that glibc allocates and frees before the arena serves its first request. Afterwards glibc keeps the top of
    /// its heap, instead of trimming it at every free.
    malloc_warmup_bytes = 4 * MIB, "bytes", off 0;
    /// The arena's region lies this far below the address where the kernel places mappings by itself. If the address space is too small,
    /// the distance is halved until the region fits. The program's mappings would have to fill the distance before they reach the region.
    region_distance_gib = 16 << 10, "GiB";
    /// The most foreign mappings that one request may run into before it is served elsewhere. Each costs about ten system calls. A long
    /// mapping counts several times, once for each part that the request runs into.
    max_foreign_probes = 16, "mappings";
    /// The smallest span of a zone.
    min_span_bytes = 64 * MIB, "bytes";
    /// The arena chooses a span only if the process may map this much more, for the arena's tables and for the rest of the process.
    address_part = 8, "of the span";
    /// The same for the limit on data (`RLIMIT_DATA`).
    data_part = 64, "of the span";
    /// Requests that may come from a signal handler leave the start-up work to a later request. After this many postponements, the next
    /// request does it.
    max_postponed = 100, "requests";
}

/// Sets constants from `name=value,...`. If parts name no constant, or have a value that `parse` rejects, returns the last of them as the
/// error; the other parts take effect. Allocates nothing, because the first request may come from a signal handler.
#[cfg(feature = "tune")]
pub(crate) fn set(text: &str, parse: impl Fn(&str) -> Option<usize>) -> Result<(), &str> {
    let mut result = Ok(());
    for part in text.split(',') {
        let set = part.split_once('=').and_then(|(name, value)| {
            let index = CONSTANTS.iter().position(|constant| constant.name == name.trim())?;
            VALUES[index].store(parse(value.trim())?, Ordering::Relaxed);
            Some(())
        });
        if set.is_none() {
            result = Err(part);
        }
    }
    result
}

/// Returns the value of a constant in this process.
#[cfg(feature = "tune")]
pub fn in_force(name: &str) -> Option<usize> {
    let index = CONSTANTS.iter().position(|constant| constant.name == name)?;
    Some(VALUES[index].load(Ordering::Relaxed))
}
