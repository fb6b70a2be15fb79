//! The figures that a layer of tracing reads at the borders of a prover's stages: the peak since the last border, and each thread's requests.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::support::alone;
use zk_alloc::{Phase, phase, release, stats, take_peak_live_bytes, thread_stats};

const MIB: usize = 1 << 20;

/// The requests of [`work`], and their bytes.
const WORK: (u64, u64) = (30, 10 * (1024 + (100 << 10) + MIB as u64));

/// Uses blocks, a run that the thread keeps, and runs that it does not. Returns what the thread counted.
fn work() -> (u64, u64) {
    let before = thread_stats();
    (0..10).for_each(|_| drop(black_box(vec![1u8; 1 << 10])));
    (0..10).for_each(|_| drop(black_box(vec![1u8; 100 << 10])));
    (0..10).for_each(|_| use_mib(1));
    let after = thread_stats();
    (after.allocations - before.allocations, after.bytes - before.bytes)
}

fn use_mib(count: usize) {
    drop(black_box(vec![1u8; count * MIB]));
}

#[test]
fn each_stage_has_its_own_peak_and_the_phase_keeps_its_own() {
    alone!();
    let phase = Phase::new();
    let before = stats().live_bytes;
    take_peak_live_bytes();
    use_mib(64);
    let first = take_peak_live_bytes() - before;
    let kept = black_box(vec![1u8; 8 * MIB]);
    use_mib(16);
    let second = take_peak_live_bytes() - before;
    let third = take_peak_live_bytes() - before;
    drop(kept);
    let fourth = take_peak_live_bytes() - before;
    use_mib(1);
    let fifth = take_peak_live_bytes() - before;
    // Threads of the test harness allocate a little.
    let within = |bytes: usize, mib: usize| bytes.abs_diff(mib * MIB) < MIB / 2;
    assert!(within(first, 64) && within(second, 8 + 16), "{first}, {second}");
    assert!(within(third, 8), "what is live now counts, and nothing from before: {third}");
    assert!(within(fourth, 8) && within(fifth, 1), "{fourth}, {fifth}");
    assert!(within(phase.report().peak_live_bytes - before, 64), "{}", phase.report());
}

#[test]
fn a_thread_counts_only_its_own_requests() {
    alone!();
    phase(|| {
        let total = stats();
        assert_eq!(work(), WORK);
        let before = thread_stats();
        for _ in 0..3 {
            // The threads follow each other, and the cache of one is the next one's.
            let (at_first, in_thread) = thread::spawn(move || (thread_stats(), work())).join().unwrap();
            assert!(at_first.bytes < MIB as u64, "a thread begins with another's count: {at_first:?}");
            assert_eq!(in_thread, WORK);
        }
        assert!(thread_stats().bytes - before.bytes < MIB as u64, "a thread's request counts for another");
        assert!(stats().arena_allocations - total.arena_allocations >= 4 * WORK.0, "{}", stats());
        assert!(stats().arena_bytes - total.arena_bytes >= 4 * WORK.1, "{}", stats());
    });
}

/// A purge claims the caches of other threads, so that their requests pass the caches by.
#[test]
fn a_thread_counts_its_requests_while_another_purges() {
    alone!();
    let is_done = AtomicBool::new(false);
    phase(|| {
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    release();
                }
            });
            let counted: Vec<_> = (0..200).map(|_| work()).collect();
            is_done.store(true, Ordering::Relaxed);
            assert_eq!(counted, [WORK; 200]);
        });
    });
}
