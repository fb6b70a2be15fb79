//! Freed memory must be purged on `release()`, under a cap, and by the retention policy, no matter which thread freed it and whether a
//! phase was open. The tests compare the kernel's counters with the size of the live memory.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::blocks::{Block, KIB, MIB, RESIDENT, assert_costs_at_most, cost, keep_every};
use crate::support::process::{soon, without_more_memory};
use crate::support::{Numbers, alone, assert_patterned, beside_idle_threads, in_its_own_process, patterned, rss_bytes};
use zk_alloc::{Phase, Retain, Stats, phase, release, set_retain, start_background_thread, stats};

/// The size of the kernel's pages. A live block of up to this size keeps one page resident.
const PAGE_BYTES: usize = 4 << 10;

/// Returns the maximum resident size when `alive` bytes are live and all other memory was purged.
fn at_rest(alive: usize) -> usize {
    alive + alive / 100 + 2 * MIB
}

/// Waits until RSS has grown by at most `bound` bytes, for a policy that does not act immediately.
#[track_caller]
fn assert_shrinks_to(bound: usize, before: usize, when: &str) {
    soon(|| cost(before) <= bound);
    assert_costs_at_most(bound, before, when);
}

fn buffers(count: usize, bytes: usize) -> Vec<Vec<u8>> {
    (0..count).map(|_| black_box(vec![1u8; bytes])).collect()
}

/// A run may end within a huge page. The memory after the run's end was faulted in with the page, and must be purged with it.
#[test]
fn runs_that_end_within_a_huge_page_are_purged_completely() {
    alone!();
    set_retain(Retain::Never);
    phase(|| drop(buffers(1, 2 * MIB)));
    let before = rss_bytes();
    phase(|| drop(buffers(500, 2 * MIB + MIB / 16)));
    release();
    assert_costs_at_most(2 * MIB, before, "after release()");
    assert!(stats().resident_bytes <= 2 * MIB, "{}", stats());
}

/// Blocks with a large alignment leave unused memory between them. If this memory is resident, the cap must count it.
#[test]
fn a_cap_holds_for_blocks_on_large_boundaries() {
    const CAP_BYTES: usize = 64 * MIB;
    alone!(&[("ZK_ALLOC_MAX_BYTES", "64M")]);
    let before = rss_bytes();
    let blocks: Vec<_> = (0..1_000).map(|_| Block::untouched(&RESIDENT, 4 * KIB, 2 * MIB)).collect();
    blocks.iter().for_each(|block| block.write(0, 4 * KIB));
    assert_costs_at_most(CAP_BYTES + 4 * MIB, before, "under a cap of 64 MiB");
    assert!(stats().resident_bytes <= CAP_BYTES, "{}", stats());
}

/// As in the README, a phase returns the values to keep, and frees all others. The values that survive must cost little, even if they are
/// spread over all pages.
#[test]
fn small_survivors_of_phases_cost_three_times_their_size_and_a_page_each_after_release() {
    alone!();
    let before = rss_bytes();
    let numbers = &mut Numbers::new(6);
    let (mut left, mut alive) = (Vec::with_capacity(2_000), 0);
    for _ in 0..100 {
        phase(|| {
            for _ in 0..20 {
                let row: Vec<_> = (0..24).map(|_| vec![1u8; KIB + numbers.below(31 * KIB)]).collect();
                let bytes = KIB + numbers.below(KIB);
                left.push(vec![2u8; bytes]);
                alive += bytes;
                drop(black_box(row));
            }
        });
    }
    assert_costs_at_most(3 * alive, before, "after 100 phases");
    release();
    assert_costs_at_most(at_rest(alive), before, "after release()");
    assert!(left.iter().flatten().all(|&byte| byte == 2));

    // Allocates all blocks before most of them are freed, so the survivors are spread over all pages. Each survivor may keep only one page
    // resident.
    let before = rss_bytes();
    let mut blocks = Vec::with_capacity(256 * KIB);
    phase(|| blocks.extend((0..256 * KIB).map(|_| Block::written(&crate::ALLOC, KIB))));
    keep_every(512, &mut blocks);
    blocks.shrink_to_fit();
    release();
    assert_costs_at_most(at_rest(blocks.len() * PAGE_BYTES), before, "after release()");
}

/// `release()` must also purge freed blocks in the caches of idle threads and of threads that have exited.
#[test]
fn release_purges_the_caches_of_a_thousand_threads() {
    const THREADS: usize = 1_000;
    alone!();
    drop(Block::written(&RESIDENT, KIB));
    release();
    let live_bytes = stats().live_bytes;
    let (all, before) = (Barrier::new(THREADS), AtomicUsize::new(0));
    let work = || {
        // Reads RSS now that the threads' stacks exist, because they do not come from the allocator.
        if all.wait().is_leader() {
            before.store(rss_bytes(), Ordering::Relaxed);
        }
        all.wait();
        let blocks = [KIB, 3 * KIB, 20 * KIB, 64 * KIB].map(|bytes| Block::written(&RESIDENT, bytes));
        // All threads free their blocks at once, so no thread takes over the cache of another.
        all.wait();
        drop(blocks);
    };
    let meanwhile = || {
        release();
        rss_bytes()
    };
    let after = beside_idle_threads(THREADS, work, meanwhile, || drop(Block::written(&RESIDENT, 3 * KIB)));
    let before = before.into_inner();
    assert!(after <= before + 20 * MIB, "RSS grew from {before} to {after} bytes");
    release();
    assert_costs_at_most(8 * MIB, before, "after the threads ended");
    let left = stats().live_bytes.abs_diff(live_bytes);
    assert!(left <= MIB, "{left} bytes count as live and belong to no block\n{}", stats());
}

/// The policy must limit the memory that stays resident outside of phases, no matter where a value was dropped.
#[test]
fn memory_dropped_after_its_phase_follows_the_retention_policy() {
    alone!();
    let sizes = [(4_096, 4 * KIB), (200, 100 * KIB), (64, MIB), (1, 100 * MIB)];
    set_retain(Retain::Never);
    phase(|| drop(sizes.map(|(_, bytes)| buffers(1, bytes))));
    let before = rss_bytes();
    let follow = |retain: Retain, most_bytes: usize| {
        set_retain(retain);
        for (count, bytes) in sizes {
            drop(phase(|| buffers(count, bytes)));
            assert_shrinks_to(most_bytes, before, &format!("{count} buffers of {bytes} bytes, {retain:?}"));
        }
    };
    follow(Retain::Never, 2 * MIB);
    follow(Retain::Bytes(16 * MIB), 18 * MIB);
    start_background_thread().expect("a thread");
    follow(Retain::For(Duration::from_millis(20)), 2 * MIB);
}

/// Returns a random size from 256 bytes to 4 MiB. Each range from a power of two to the next is equally likely.
fn mixed_bytes(numbers: &mut Numbers) -> usize {
    let least = 256 << numbers.below(14);
    least + numbers.below(least)
}

/// Runs `request`, which allocates `bytes`. Fails if it purges more memory or makes more system calls than a request of this size may.
#[track_caller]
fn as_one_request<R>(bytes: usize, request: impl FnOnce() -> R) -> R {
    let before = stats();
    let result = request();
    let after = stats();
    let (purged, calls) = (after.purged_bytes - before.purged_bytes, after.system_calls - before.system_calls);
    assert!(purged <= (5 * MIB).max(bytes + 2 * MIB) as u64, "a request for {bytes} bytes purged {purged}");
    assert!(calls <= 250 + bytes as u64 / (64 << 10), "a request for {bytes} bytes made {calls} system calls");
    result
}

/// After a pause, each request may purge only an amount in proportion to its own size, no matter how much memory is free. Later requests
/// continue the purge.
#[test]
fn a_request_purges_in_proportion_to_its_size() {
    alone!(&[("ZK_ALLOC_RETAIN_FOR", "0.05")]);
    let mut numbers = Numbers::new(1);
    let mut most_purged = 0;
    for round in 0..4 {
        let mut blocks = Vec::new();
        let mut bytes = 0;
        while bytes < 300 * MIB {
            let size = mixed_bytes(&mut numbers);
            blocks.push(as_one_request(size, || Block::written(&RESIDENT, size)));
            bytes += size;
        }
        // In every other round, survivors leave many short free ranges.
        keep_every(if round % 2 == 0 { 3 } else { 1_000 }, &mut blocks);
        thread::sleep(Duration::from_millis(200));
        let purged_before = stats().purged_bytes;
        let shrinks = soon(|| {
            small_request(&mut numbers);
            stats().retained_bytes() <= 50 * MIB
        });
        most_purged = most_purged.max(stats().purged_bytes - purged_before);
        assert!(shrinks, "round {round}: {}", stats());
    }
    assert!(most_purged > 150 * MIB as u64, "the requests purged only {most_purged} bytes");
}

/// Makes a small request. With larger requests, the program would count as busy and keep its memory.
fn small_request(numbers: &mut Numbers) {
    as_one_request(100, || drop(Block::written(&RESIDENT, 100 + numbers.below(2_000))));
}

/// Requests continue a purge that a decay tick began. They must stop when a phase opens, which may need the memory, or when the program
/// sets a policy that retains it.
#[test]
fn requests_stop_a_purge_when_a_phase_opens_or_the_policy_changes() {
    alone!();
    let mut numbers = Numbers::new(3);
    for (reason, opens_a_phase) in [("a phase opens", true), ("the policy changes", false)] {
        set_retain(Retain::For(Duration::from_millis(100)));
        for _ in 0..2 {
            let blocks: Vec<_> = (0..600).map(|_| Block::written(&RESIDENT, MIB)).collect();
            drop(blocks);
        }
        let before = stats().purged_bytes;
        let begins = soon(|| {
            small_request(&mut numbers);
            stats().purged_bytes > before
        });
        assert!(begins, "no purge began: {}", stats());
        assert!(stats().retained_bytes() > 300 * MIB, "{reason}: the purge is over already, {}", stats());
        let phase = opens_a_phase.then(Phase::new);
        if !opens_a_phase {
            set_retain(Retain::Always);
        }
        let before = stats().purged_bytes;
        for _ in 0..200 {
            small_request(&mut numbers);
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(stats().purged_bytes, before, "{reason}");
        drop(phase);
        release();
    }
}

/// Replaces allocations of mixed sizes, up to 60 MiB of which are alive. Returns the statistics.
fn replace_at_the_peak() -> Stats {
    let mut numbers = Numbers::new(7);
    let (mut pieces, mut bytes): (Vec<Block>, usize) = (Vec::new(), 0);
    for _ in 0..30_000 {
        let size = mixed_bytes(&mut numbers);
        while bytes + size > 60 * MIB {
            let index = numbers.below(pieces.len());
            bytes -= pieces.swap_remove(index).size();
        }
        pieces.push(Block::untouched(&RESIDENT, size, 8));
        bytes += size;
    }
    stats()
}

/// At a program's peak, the arena must purge and fault in only a bounded amount of memory, because the program soon needs the purged memory
/// again. With a setting that retains all memory, it must purge nothing.
#[test]
fn replacing_allocations_at_the_peak_purges_little_and_nothing_below_the_retained_size() {
    in_its_own_process(&[], || {
        let stats = replace_at_the_peak();
        let peak = stats.peak_live_bytes as u64;
        assert!(stats.purged_bytes <= 2 * peak + stats.arena_bytes / 64, "{stats}");
        assert!(stats.resident_bytes as u64 <= peak * 13 / 8 && stats.fresh_bytes <= 4 * peak, "{stats}");
    });
    for retain in [("ZK_ALLOC_RETAIN_BYTES", "1G"), ("ZK_ALLOC_RETAIN_FOR", "ever")] {
        in_its_own_process(&[retain], || assert_eq!(replace_at_the_peak().purged_bytes, 0, "{}", stats()));
    }
}

/// A program that is short of memory shrinks its buffers, so shrinking must not need more memory. In each case, copies of the buffers would
/// not fit in the free memory that the arena has committed.
#[test]
fn buffers_of_every_size_shrink_without_more_memory() {
    let shrink = |count, from, to| {
        let blocks: Vec<_> = (0..count).map(|_| Block::written(&RESIDENT, from)).collect();
        let mut shrunk = Vec::with_capacity(count);
        without_more_memory(|| shrunk.extend(blocks.into_iter().map_while(|block| block.resized(to))));
        assert_eq!(shrunk.len(), count, "refused to shrink one from {from} to {to} bytes");
    };
    in_its_own_process(&[], || {
        let mut words = phase(|| patterned(200 * MIB / 8, 1));
        shrink(1, 200 * MIB, 60 * MIB);
        phase(|| {
            words.truncate(60 * MIB / 8);
            without_more_memory(|| words.shrink_to_fit());
            assert_patterned(&words, 1);
        });
    });
    alone!();
    let cases = [(30, 8 * MIB, 100 * KIB), (300, MIB, 200 * KIB), (2_000, 200 * KIB, 40 * KIB)];
    let cases = cases.into_iter().chain([(4_000, 40 * KIB, 16 * KIB), (9_000, 30 * KIB, 5 * KIB)]);
    cases.for_each(|(count, from, to)| shrink(count, from, to));
}

/// Tests of `warm_up_backing`, which the arena calls at its first request. Without the arena, glibc's malloc would serve large buffers from
/// the chunks that the setup has freed, and would learn from their size how much free memory to keep. With the arena, it gets no large
/// buffers.
#[cfg(target_env = "gnu")]
mod of_the_backing_allocator {
    use super::*;

    /// With this threshold, glibc serves the small blocks of these tests.
    const SETTING: (&str, &str) = ("ZK_ALLOC_MIN_BYTES", "1024");
    const SMALL_BYTES: usize = 1000;

    fn small_ones(bytes: usize) -> Vec<Vec<u8>> {
        (0..bytes / SMALL_BYTES).map(|_| black_box(vec![1u8; SMALL_BYTES])).collect()
    }

    /// While a program sets up a circuit, it may leave free chunks in glibc's heap. The arena serves the large buffers, which would
    /// otherwise reuse them.
    #[test]
    fn the_first_large_request_purges_free_memory_of_the_system_allocator() {
        alone!(&[SETTING]);
        const BYTES: usize = 24 << 20;
        let mut kept = small_ones(BYTES);
        // One block in a hundred survives, so glibc by itself returns none of this memory.
        keep_every(100, &mut kept);
        let before = rss_bytes();
        phase(|| drop(black_box(vec![1u8; 1 << 20])));
        assert!(rss_bytes() + BYTES / 2 < before, "{before} bytes with the free chunks, {} without", rss_bytes());
        assert!(kept.iter().flatten().all(|&byte| byte == 1));
    }

    /// Until a program frees a large buffer, glibc returns the free top of its heap to the system, so the small allocations of each proof
    /// would fault their pages in again.
    #[test]
    fn small_allocations_fault_no_pages_in_a_warm_phase() {
        alone!(&[SETTING]);
        let faults = || {
            let phase = Phase::new();
            drop(black_box(vec![1u8; 1 << 20]));
            drop(black_box(small_ones(4 << 20)));
            phase.report().minor_faults
        };
        let cold = faults();
        let warm = (0..5).map(|_| faults()).max().unwrap_or_default();
        assert!(cold > 500 && warm < 100, "1000 pages of small allocations: {cold} faults cold, {warm} warm");
    }
}
