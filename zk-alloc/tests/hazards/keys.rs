//! Keys of the C library (pthread_key_create(3)) that other code took first. For the first 32 keys, glibc needs no
//! memory from `malloc`.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use crate::support::child;
use crate::support::process::variable;
use zk_alloc::PhaseGuard;

/// The variable that says when this process makes its keys: [`LATE`], as a program does, or [`EARLY`], before all other
/// code.
const KEYS: &str = "ZK_ALLOC_TEST_KEYS";
const LATE: &str = "late";
const EARLY: &str = "early";

fn make_keys() {
    for _ in 0..40 {
        let mut key = 0;
        // SAFETY: a place for the key, whose values need no destructor.
        assert_eq!(unsafe { libc::pthread_key_create(&raw mut key, None) }, 0);
    }
}

extern "C" fn make_early() {
    if variable(c"ZK_ALLOC_TEST_KEYS") == Some(EARLY) {
        make_keys();
    }
}

// Runs before the allocator makes its own key.
// SAFETY: the loader calls the functions that are listed here, and they have this type.
#[unsafe(link_section = ".init_array.00050")]
#[used]
static INIT: extern "C" fn() = make_early;

/// Whether this thread gets the block that it freed last, as from a cache. Slabs would return the lowest free block.
fn has_cache() -> bool {
    let [low, high] = {
        let mut blocks = [(); 2].map(|()| Box::new([1u8; 200]));
        blocks.sort_by_key(|block| block.as_ptr().addr());
        blocks.map(Box::into_raw)
    };
    // SAFETY: allocated above, and freed once.
    unsafe {
        drop(Box::from_raw(low));
        drop(Box::from_raw(high));
    }
    let next = black_box(Box::new([2u8; 200]));
    std::ptr::eq(&raw const *next, high)
}

/// The time in nanoseconds to allocate and free 64 bytes: the median of many rounds.
fn pair_ns() -> f64 {
    let mut rounds: Vec<_> = (0..201)
        .map(|_| {
            let began = Instant::now();
            (0..2_000).for_each(|_| drop(black_box(Box::new([0u8; 64]))));
            began.elapsed().as_nanos() as f64 / 2_000.0
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

/// Blocks one signal in this thread, as in a handler, or unblocks all.
fn block_a_signal(is_blocked: bool) {
    // SAFETY: all zeroes is a valid set, and only this thread's mask changes.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        if is_blocked {
            libc::sigaddset(&raw mut set, libc::SIGUSR1);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
}

/// Runs `body` in a process that makes its keys at this time, in a phase. Returns what the process printed.
#[track_caller]
fn with_keys(when: &str, body: impl FnOnce()) -> Option<f64> {
    let ended = child(&[(KEYS, when)], || {
        if when == LATE {
            make_keys();
        }
        let _guard = PhaseGuard::new();
        body();
    })?;
    ended.assert_passed();
    Some(ended.printed("measured ").parse().expect("a number"))
}

/// A thread without a cache gets each block from the slabs. Without one of the first 32 keys, the arena must call
/// `malloc` for another key. Otherwise it would not learn that the thread ends, and could not give it a cache.
#[test]
fn malloc_and_free_stay_fast_after_the_first_32_pthread_keys_are_used_up() {
    let measure = || {
        assert!(has_cache() && thread::spawn(has_cache).join().unwrap(), "a thread has no cache");
        println!("measured {}", pair_ns());
    };
    // The best of several runs, because the machine may be busy.
    let best = |when| (0..3).filter_map(|_| with_keys(when, measure)).fold(f64::INFINITY, f64::min);
    let [none, late, early] = ["", LATE, EARLY].map(best);
    assert!(late <= 2.0 * none && early <= 2.0 * none, "{none:.1} ns a pair, {late:.1}, {early:.1}");
}

/// A handler may have interrupted `malloc`. If the key needs `malloc`, the thread asks for it again later. A key that
/// was made before the program began needs nothing. There are 2,048 caches, so each must become free when its thread
/// ends.
#[test]
fn with_any_key_threads_get_a_cache_once_they_are_in_no_handler_and_hand_it_on() {
    for when in ["", LATE, EARLY] {
        with_keys(when, || {
            drop(black_box(Box::new([0u8; 1 << 20])));
            // A new thread inherits the blocked signals of its creator.
            block_a_signal(true);
            let thread = thread::spawn(move || {
                assert_eq!(has_cache(), when != EARLY);
                block_a_signal(false);
                // The thread asks again after some requests.
                (0..300).for_each(|_| drop(black_box(Box::new([0u8; 64]))));
                assert!(has_cache(), "the thread did not ask again once its signals were unblocked");
            });
            thread.join().unwrap();
            block_a_signal(false);
            for number in 0..2_500 {
                assert!(thread::spawn(has_cache).join().unwrap(), "thread {number} has no cache");
            }
            let slabs = zk_alloc::stats().slabs;
            assert!(slabs < 40, "{slabs} slabs are in use after the threads' ends");
            println!("measured {slabs}");
        });
    }
}
