//! The pinned range: which allocations it serves, and what the kernel reports about it. Each test runs in a process of its own, because a
//! process has only one range at a time.

use std::convert::Infallible;
use std::thread;
use std::time::Duration;

use crate::heap::Heap;
use crate::pressure::child_in_a_group;
use crate::support::blocks::MIB;
use crate::support::maps::map_of;
use crate::support::process::{Work, beside, code_of, first_failure, give_up_root, in_a_fork, limited};
use crate::support::{
    Ended, Numbers, alone, assert_patterned, is_patterned, locked_bytes, patterned, rss_bytes, with_one_warning,
    without_warnings,
};
use crate::volume::{self, Volume};
use zk_alloc::{
    NotPinned, PhaseGuard, Pinned, Retain, ZkAllocator, phase, pinned, purge_lazily, release, set_retain, stats,
};

const WORDS: usize = MIB / 8;

/// Makes a range that is not registered with any driver, so the kernel would purge its pages if the arena asked it to.
fn try_unregistered(bytes: usize) -> Result<Pinned, NotPinned<Infallible>> {
    Pinned::new(bytes, |_, _| Ok(()), |_, _| Ok::<(), Infallible>(()))
}

fn unregistered(bytes: usize) -> Pinned {
    try_unregistered(bytes).expect("a range")
}

fn is_in(values: &[u64]) -> bool {
    pinned::contains(values.as_ptr())
}

/// Threads allocate more than the range can hold. If two of them got the same page, their blocks would overlap.
#[test]
fn volume_in_and_beside_the_range_agrees_with_the_model() {
    alone!();
    let _phase = PhaseGuard::new();
    let range = unregistered(24 * MIB).min_bytes(MIB / 4);
    let volume = Volume { seed: 9, ops: 600_000, ops_per_life: 5_000, ops_per_settling: 500, at_rest: None };
    volume::run(Box::leak(Box::new(Heap::new(ZkAllocator, true))), volume);
    assert!(stats().pinned_peak_bytes >= 12 * MIB && stats().pinned_in_use_bytes == 0, "{}", stats());
    // All pages are free again, as one run.
    assert!(is_in(&patterned(range.bytes() / 8, 1)));
}

#[test]
fn a_vector_grows_in_place_while_there_is_room_and_is_copied_out_when_there_is_none() {
    alone!();
    let range = unregistered(16 * MIB);
    let _phase = PhaseGuard::new();
    let mut values = patterned(WORDS, 7);
    let (start, whole) = (values.as_ptr(), patterned(20 * WORDS, 7));
    assert!(start.addr() == range.as_ptr().addr() && !is_in(&whole));
    values.extend_from_slice(&whole[WORDS..15 * WORDS]);
    values.shrink_to_fit();
    assert!(values.as_ptr() == start && values.capacity() < 16 * WORDS);
    values.extend_from_slice(&whole[15 * WORDS..]);
    assert!(values == whole && !is_in(&values), "there is no room for 20 MiB");
    assert_eq!(stats().pinned_in_use_bytes, 0);
    // If a vector outside of the range has to move to grow, it moves into the range.
    let full = patterned(16 * WORDS, 1);
    let (mut outside, behind, longer) = (patterned(6 * WORDS, 8), patterned(6 * WORDS, 9), patterned(10 * WORDS, 8));
    assert!(is_in(&full) && !is_in(&outside));
    drop(full);
    outside.extend_from_slice(&longer[6 * WORDS..]);
    assert!(is_in(&outside) && is_patterned(&outside, 8) && is_patterned(&behind, 9));
    drop(outside);
}

#[test]
fn requests_that_do_not_fit_or_belong_elsewhere_are_served_as_usual() {
    alone!();
    let range = unregistered(8 * MIB);
    assert!(!is_in(&patterned(WORDS, 1)), "no phase is open");
    let _phase = PhaseGuard::new();
    assert!(!is_in(&patterned(WORDS - 1, 1)), "shorter than 1 MiB");
    let mut kept: Vec<_> = (0..8).map(|id| patterned(WORDS, id)).collect();
    assert!(kept.iter().all(|values| is_in(values)) && !is_in(&patterned(WORDS, 9)));
    assert_eq!((stats().pinned_bytes, stats().pinned_in_use_bytes), (8 * MIB, 8 * MIB));
    assert!(stats().to_string().contains("pinned 8.0 MiB of them, 8.0 MiB in use, at most 8.0 MiB"), "{}", stats());
    kept.remove(3);
    assert!(!is_in(&patterned(2 * WORDS, 9)), "one MiB is free");
    assert!(is_in(&patterned(WORDS, 9)));
    let _range = range.min_bytes(MIB / 4);
    assert!(is_in(&patterned(WORDS / 4, 9)));
    kept.iter().zip([0, 1, 2, 4, 5, 6, 7]).for_each(|(values, id)| assert_patterned(values, id));
}

/// A purge would take away pages that a device reads. No driver has registered the range of this test, so the kernel would not refuse such
/// a purge.
#[test]
fn nothing_purges_the_range() {
    let body = || {
        let _range = unregistered(64 * MIB);
        let check = |when: &str| {
            assert!(rss_bytes() >= 64 * MIB && stats().resident_bytes >= 64 * MIB, "{when}: {}", stats());
        };
        for retain in [Retain::Never, Retain::For(Duration::from_millis(40)), Retain::Bytes(0)] {
            set_retain(retain);
            for _ in 0..2 {
                phase(|| drop((patterned(8 * WORDS, 1), patterned(150 * WORDS, 2))));
                check("after a phase");
                thread::sleep(Duration::from_millis(60));
                (0..500).for_each(|_| drop(phase(|| patterned(5_000, 3))));
                check("after a pause");
            }
        }
        assert!(purge_lazily() < 64 * MIB && release() < 64 * MIB);
        check("after release");
    };
    without_warnings(&[], body);
    // Runs the same test where the control group is short of memory after each phase.
    child_in_a_group(256 * MIB, &[], body).iter().for_each(Ended::assert_passed);
}

/// The range is not mapped in a forked child, so the arena must not use it there. The first child is made by a direct system call, for
/// which no pthread_atfork(3) handlers run.
#[test]
fn a_forked_child_has_no_range_and_leaves_the_parents_range_intact() {
    alone!();
    let range = unregistered(32 * MIB);
    let _phase = PhaseGuard::new();
    let values = patterned(4 * WORDS, 1);
    assert!(is_in(&values));
    let (at, before) = (range.as_ptr().addr(), stats());
    let (mut inherited, mut ranges) = (Some(vec![values.clone(), patterned(WORDS, 2)]), Some(range));
    let mut work = |is_told: bool| {
        first_failure(&[
            map_of(at).is_none() && !pinned::contains(at as *const u8) && stats().pinned_bytes == 0,
            !is_told || stats().resident_bytes + 31 * MIB <= before.resident_bytes,
            inherited.take().is_some() && ranges.take().is_some(),
            !is_in(&patterned(2 * WORDS, 3)) && is_patterned(&patterned(40 * WORDS, 4), 4),
            matches!(Pinned::new(MIB, pinned::lock, pinned::unlock), Err(NotPinned::Taken)),
            release() > 0 && map_of(at).is_none(),
        ])
    };
    // SAFETY: the child exits without running destructors. It needs no pthread_atfork(3) handlers, because only one thread of the test is
    // running.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as i32;
    if child == 0 {
        // SAFETY: `_exit` takes any code. It terminates the child.
        unsafe { libc::_exit(work(false).into()) };
    }
    assert_eq!(code_of(child), 0, "the number of the check that failed");
    assert_eq!(in_a_fork(|| work(true)), 0, "the number of the check that failed");
    assert_patterned(&values, 1);
    assert!(is_in(&patterned(WORDS, 5)) && stats().pinned_bytes == 32 * MIB);
}

#[test]
fn a_range_with_live_allocations_stays_registered_and_warns() {
    let body = || {
        let range = Pinned::new(8 * MIB, pinned::lock, pinned::unlock).expect("a range");
        let mut kept = phase(|| patterned(2 * WORDS, 1));
        drop(range);
        assert_eq!((locked_bytes(), stats().pinned_bytes, is_in(&kept)), (8 * MIB, 8 * MIB, true));
        phase(|| {
            assert!(!is_in(&patterned(WORDS, 2)), "it serves no more requests");
            kept.extend_from_slice(&patterned(3 * WORDS, 1)[2 * WORDS..]);
        });
        assert!(is_patterned(&kept, 1) && !is_in(&kept), "growth moves it out of the range");
        assert!(matches!(Pinned::new(MIB, pinned::lock, pinned::unlock), Err(NotPinned::Taken)));
    };
    let warning = "zk-alloc: 2097152 bytes of the pinned range of 8388608 are alive: it stays registered, and serves no more requests";
    with_one_warning(&[], &[warning], body);
}

/// When the range is dropped, its pages become ordinary memory of the arena: they are not locked, children inherit them, and they may be
/// purged.
#[test]
fn a_range_without_live_allocations_is_unregistered_and_becomes_free_memory_of_the_arena() {
    alone!();
    for round in 0..3 {
        let range = Pinned::new(8 * MIB - 5, pinned::lock, pinned::unlock).expect("a range");
        let at = range.as_ptr();
        assert_eq!((locked_bytes(), range.bytes()), (8 * MIB, 8 * MIB));
        phase(|| drop(patterned(7 * WORDS, round)));
        drop(range);
        assert_eq!((locked_bytes(), stats().pinned_bytes, pinned::contains(at)), (0, 0, false));
        assert!(!map_of(at.addr()).expect("mapped").has("dc"));
        let usual = phase(|| vec![0u64; 64 * WORDS]);
        assert!(usual.iter().all(|&word| word == 0));
        assert_eq!(in_a_fork(|| u8::from(usual.iter().any(|&word| word != 0))), 0, "children inherit it");
        drop(usual);
        release();
        assert!(stats().resident_bytes < 8 * MIB, "{}", stats());
    }
}

/// When the range is dropped, the arena takes over its pages. A thread that is just claiming pages of the range must not get pages that the
/// arena gives to another thread.
#[test]
fn threads_that_allocate_while_the_range_is_dropped_keep_their_contents() {
    alone!();
    let work = |seed: u64| -> Work {
        let mut numbers = Numbers::new(seed);
        Box::new(move || {
            let id = numbers.below(1 << 20) as u64;
            assert_patterned(&phase(|| patterned(WORDS + numbers.below(4 * WORDS), id)), id);
            // Pauses, so that at times no thread owns a page of the range.
            thread::sleep(Duration::from_micros(numbers.below(3000) as u64));
        })
    };
    beside((0..3).map(work), || {
        for made in 0..60 {
            let Ok(range) = try_unregistered(8 * MIB) else { break };
            thread::sleep(Duration::from_millis(1));
            drop(range);
            assert_patterned(&phase(|| patterned(70 * WORDS, made)), made);
        }
    });
}

#[test]
fn a_range_that_cannot_be_pinned_is_refused_with_the_reason() {
    alone!(&[("ZK_ALLOC_MAX_BYTES", "64M")]);
    let refusal =
        |mib: usize| Pinned::new(mib * MIB, pinned::lock, pinned::unlock).err().map(|error| error.to_string());
    let refused = |why: &str| Some(format!("{why}; nothing was pinned"));
    assert_eq!(refusal(80), refused("83886080 bytes to pin are more than the limit of 67108864 bytes"));
    let failed = Pinned::new(4 * MIB, |_, _| Err("no device"), pinned::unlock).expect_err("no device");
    assert_eq!(Some(failed.to_string()), refused("4194304 bytes could not be registered: no device"));
    assert_eq!(refusal(4), None, "the range is dropped at once, so the next one is allowed");
    let first = unregistered(4 * MIB);
    assert_eq!(refusal(4), refused("this process has or inherited a pinned range, and can have only one"));
    drop(first);
    // The limit does not apply to root, so the test gives up root.
    limited(libc::RLIMIT_MEMLOCK, MIB, || {
        assert!(give_up_root());
        let why =
            "can't lock or unlock 4194304 bytes: Cannot allocate memory (os error 12); RLIMIT_MEMLOCK is 1048576 bytes";
        assert_eq!(refusal(4), refused(&format!("4194304 bytes could not be registered: {why}")));
    });
    assert_eq!((locked_bytes(), stats().pinned_bytes, stats().live_bytes), (0, 0, 0), "{}", stats());
}
