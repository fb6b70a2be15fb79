//! The report names allocations that outlive their phase, with the place where each was made, and no others.

mod support;

use std::ffi::OsStr;
use std::hint::black_box;
use std::panic::catch_unwind;

use support::{alone, is_alone, patterned};
use zk_alloc::{Escaped, ZkAllocator, escaped, phase, trace_escaped};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

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
fn what_escapes_is_reported_with_its_place() {
    // In a process of its own, because the table of live allocations belongs to the process.
    let name = "what_escapes_is_reported_with_its_place";
    if !is_alone() {
        return alone(name, &[]).assert_passed(name);
    }
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

/// A panic prints its backtrace under a lock of the standard library, and allocates while it holds the lock. So the
/// tracing of allocations must capture backtraces without that lock.
#[test]
fn a_panic_that_prints_its_backtrace_in_a_phase_is_not_held_up() {
    let name = "a_panic_that_prints_its_backtrace_in_a_phase_is_not_held_up";
    if is_alone() {
        let threads: Vec<_> = (0..2).map(|_| std::thread::spawn(panic_in_phases)).collect();
        panic_in_phases();
        return threads.into_iter().for_each(|thread| thread.join().expect("its panics are caught"));
    }
    for (min_bytes, backtrace) in [("1024", "1"), ("0", "1"), ("0", "full")] {
        let settings = [
            ("ZK_ALLOC_TRACE_ESCAPED", OsStr::new("1")),
            ("ZK_ALLOC_MIN_BYTES", OsStr::new(min_bytes)),
            ("RUST_BACKTRACE", OsStr::new(backtrace)),
        ];
        let ended = alone(name, &settings);
        ended.assert_passed(&format!("ZK_ALLOC_MIN_BYTES={min_bytes} RUST_BACKTRACE={backtrace}"));
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
#[allow(unsafe_code, reason = "forks")]
fn a_forked_child_does_not_wait_for_a_table_that_nobody_gives_back() {
    let name = "a_forked_child_does_not_wait_for_a_table_that_nobody_gives_back";
    if !is_alone() {
        return alone(name, &[("ZK_ALLOC_MIN_BYTES", "0".as_ref())]).assert_passed(name);
    }
    trace_escaped(true);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    phase(|| drop(black_box(vec![1u8; 3_000])));
                }
            });
        }
        for _ in 0..50 {
            // SAFETY: the child allocates, which glibc and the arena support after a fork, and ends by `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends the child if it waits forever.
                unsafe { libc::alarm(20) };
                phase(|| drop(black_box([vec![1u8; 3_000], vec![2u8; 300_000]])));
                // SAFETY: ends the process, without destructors.
                unsafe { libc::_exit(0) };
            }
            let mut status = -1;
            // SAFETY: a child of this process, and a place for the answer. If the child hangs, the parent of this
            // process ends this process.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    trace_escaped(false);
}
