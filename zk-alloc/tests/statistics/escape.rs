//! The report names allocations that outlive their phase, with the place where each was made, and no others.

use std::hint::black_box;
use std::panic::catch_unwind;

#[cfg(target_os = "linux")]
use crate::support::forks::fork_beside_threads;
use crate::support::{alone, child, patterned};
use zk_alloc::{Escaped, Phase, escaped, phase, trace_escaped};

#[inline(never)]
fn make_what_stays() -> Vec<u8> {
    black_box(vec![1u8; 3 << 20])
}

#[inline(never)]
fn make_what_goes() {
    drop(black_box(vec![2u8; 5 << 20]));
}

fn bytes(places: &[Escaped]) -> usize {
    places.iter().map(|place| place.bytes).sum()
}

#[test]
fn the_report_names_the_place_of_each_allocation_that_outlives_its_phase() {
    alone!();
    trace_escaped(true);
    let mut kept = phase(|| {
        make_what_goes();
        (make_what_stays(), make_what_stays())
    });
    let places = escaped();
    let own: Vec<_> = places.iter().filter(|place| place.backtrace.contains("make_what_stays")).cloned().collect();
    assert_eq!(own.iter().map(|place| place.allocations).sum::<usize>(), 2, "{places:?}");
    assert_eq!(bytes(&own), 6 << 20);
    assert!(!places.iter().any(|place| place.backtrace.contains("make_what_goes")), "{places:?}");

    kept.0.truncate(1 << 20);
    kept.0.shrink_to_fit();
    assert_eq!(bytes(&escaped()), bytes(&places) - (2 << 20), "shrunk in place, it counts what is left");

    drop(kept);
    assert_eq!(bytes(&escaped()), bytes(&places) - (6 << 20), "freed after its phase, it is gone from the list");
    trace_escaped(false);
}

/// The table of live allocations takes some MiB here, and lives on when the phase ends.
#[test]
fn the_memory_of_the_tracing_itself_does_not_count_as_escaped() {
    alone!();
    trace_escaped(true);
    let phase = Phase::new();
    let mut kept: Vec<Box<u64>> = Vec::with_capacity(50_000);
    kept.extend((0..50_000).map(|number| black_box(Box::new(number))));
    drop(kept);
    let report = phase.report();
    assert!(report.escaped_bytes < 1 << 20 && report.peak_live_bytes < 4 << 20, "{report:?}");
    trace_escaped(false);
}

/// A panic prints its backtrace under a lock of the standard library, and allocates while it holds the lock. So the
/// tracing of allocations must capture backtraces without that lock.
#[test]
fn a_panic_that_prints_its_backtrace_in_a_phase_is_not_held_up() {
    let panics = || {
        let threads: Vec<_> = (0..2).map(|_| std::thread::spawn(panic_in_phases)).collect();
        panic_in_phases();
        threads.into_iter().for_each(|thread| thread.join().expect("its panics are caught"));
    };
    for (min_bytes, backtrace) in [("1024", "1"), ("0", "1"), ("0", "full")] {
        let settings =
            [("ZK_ALLOC_TRACE_ESCAPED", "1"), ("ZK_ALLOC_MIN_BYTES", min_bytes), ("RUST_BACKTRACE", backtrace)];
        let Some(ended) = child(&settings, panics) else { continue };
        ended.assert_passed();
        assert!(ended.stderr.contains("stack backtrace:") && ended.stderr.contains("panic_in_phases"), "{ended:?}");
    }
}

fn panic_in_phases() {
    for round in 0..3 {
        let panicked = catch_unwind(|| {
            phase(|| {
                let words = patterned(10_000, round);
                assert!(words.is_empty(), "round {round}");
            });
        });
        assert!(panicked.is_err());
    }
}

/// A forked child gets a copy of the table that another thread may have been changing. The lock of that copy is never
/// released.
#[cfg(target_os = "linux")]
#[test]
fn a_forked_child_does_not_wait_for_the_lock_of_the_table() {
    alone!(&[("ZK_ALLOC_MIN_BYTES", "0")]);
    trace_escaped(true);
    let work = || phase(|| drop(black_box(vec![1u8; 3_000])));
    fork_beside_threads(0, work, || {
        phase(|| drop(black_box([vec![1u8; 3_000], vec![2u8; 300_000]])));
        0
    });
    trace_escaped(false);
}
