//! Programs that were written against the public API of the crate zk-alloc 0.0.9 compile and work as before. So do
//! programs that use earlier names of this crate and of zk-nalloc.

mod support;

use std::hint::black_box;
use std::panic;

use support::{assert_patterned, patterned, without_warnings};
use zk_alloc::{PhaseGuard, ZkAllocator};

#[global_allocator]
static A: ZkAllocator = ZkAllocator;

/// Programs may call `begin_phase` and `end_phase` directly, end a phase twice, or end one that never began. They may also name the type
/// parameters of `phase`: first the closure's type, then the result's.
#[test]
fn phases_by_hand_may_be_ended_more_often_than_begun() {
    without_warnings(&[], || {
        let arena_bytes = || zk_alloc::stats().arena_bytes;
        let [begin, end]: [fn(); 2] = [zk_alloc::begin_phase, zk_alloc::end_phase];
        (0..2).for_each(|_| end());
        begin();
        let before = arena_bytes();
        let inside = patterned(1 << 15, 1);
        assert!(arena_bytes() - before >= 8 << 15, "an end without a begin must not outweigh the next begin");
        (0..2).for_each(|_| end());
        let before = arena_bytes();
        let outside = patterned(1 << 15, 2);
        assert_eq!(arena_bytes(), before);
        assert_patterned(&inside, 1);
        assert_patterned(&outside, 2);
        assert_eq!(zk_alloc::phase::<_, u64>(|| 42) + zk_alloc::phase::<fn() -> u64, u64>(|| 0), 42);
    });
}

/// Creates guards with `new`, with `default`, and as a field. A guard must also end its phase on a panic.
#[test]
fn guards_end_their_phase_on_return_and_on_panic() {
    without_warnings(&[], || {
        #[derive(Default)]
        struct Prover {
            _guard: PhaseGuard,
            rows: Vec<u64>,
        }
        let Prover { rows, .. } = Prover { _guard: zk_alloc::PhaseGuard::new(), rows: patterned(1 << 15, 3) };
        drop(Prover::default());
        let rest: [fn(); 2] = [
            || zk_alloc::phase(|| panic!("as planned")),
            || {
                let _guard = PhaseGuard::default();
                let _rows = patterned(1 << 15, 4);
                panic!("as planned");
            },
        ];
        assert!(rest.into_iter().all(|panics| panic::catch_unwind(panics).is_err()));
        let before = zk_alloc::stats().arena_bytes;
        let outside = patterned(1 << 15, 5);
        assert_eq!(zk_alloc::stats().arena_bytes, before, "a phase stayed open");
        assert_patterned(&rows, 3);
        assert_patterned(&outside, 5);
    });
}

/// `overflow_stats` returns the number and the total size of the requests that the arena could not serve. Programs print and reset them.
#[test]
fn overflow_is_a_pair_of_numbers_that_can_be_reset() {
    without_warnings(&[], || {
        let (count, bytes): (usize, usize) = zk_alloc::overflow_stats();
        assert_eq!((count, bytes), (0, 0));
        zk_alloc::phase(|| {
            assert!(black_box(Vec::<u8>::new()).try_reserve_exact(1 << 61).is_err());
            drop(patterned(1 << 15, 1));
        });
        // No allocator can serve a request of this size. It counts as overflow, but not as a refusal, and causes no warning.
        assert_eq!((zk_alloc::overflow_stats(), zk_alloc::stats().refusals), ((1, 1 << 61), 0));
        zk_alloc::reset_overflow_stats();
        assert_eq!(zk_alloc::overflow_stats(), (0, 0));
    });
}

/// The settings keep their names and meanings, and deprecated names still refer to the same items. `min_arena_bytes` returns the threshold
/// from the start; the other functions return their settings only from the first phase on.
#[test]
#[allow(deprecated, reason = "programs use these names")]
fn old_names_of_settings_and_items_still_work() {
    without_warnings(&[("ZK_ALLOC_SLAB_GB", "5"), ("ZK_ALLOC_MIN_BYTES", "10000")], || {
        assert_eq!((zk_alloc::slab_size(), zk_alloc::min_arena_bytes()), (0, 10_000));
        zk_alloc::phase(|| {
            let sizes: (usize, usize) = (zk_alloc::slab_size(), zk_alloc::thread_capacity_bytes());
            assert_eq!(sizes, (5 << 30, 5 << 30));
            let before = zk_alloc::stats().arena_allocations;
            drop(patterned(9_999 / 8, 1));
            assert_eq!(zk_alloc::stats().arena_allocations, before);
            drop(patterned(10_000 / 8, 1));
            assert_eq!(zk_alloc::stats().arena_allocations, before + 1);
        });
    });
    let mut arena: zk_alloc::Arena = zk_alloc::Scratch::with_capacity(4096);
    assert_eq!(arena.try_alloc_array(1 << 20, |_| 0u8).unwrap_err().asked_bytes, 1 << 20);
    arena.reset();
    assert_eq!(zk_alloc::Arena::try_with_capacity(usize::MAX).unwrap_err().asked_bytes, usize::MAX);
}
