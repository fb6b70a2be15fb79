//! Phases are scopes, not lifetimes: they nest, overlap and survive panics, and values outlive the phase that made
//! them.

mod support;

use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread;

use support::{assert_patterned, in_its_own_process, patterned};
use zk_alloc::{ZkAllocator, begin_phase, end_phase, phase, release, stats};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

/// Tests that read process-wide counters take turns.
static COUNTERS: Mutex<()> = Mutex::new(());

/// Bytes that the arena served while `f` ran.
fn arena_bytes(f: impl FnOnce()) -> u64 {
    let before = stats().arena_bytes;
    f();
    stats().arena_bytes - before
}

#[test]
fn memory_of_one_phase_is_intact_after_ten_more() {
    let kept: Vec<_> = [1usize << 10, 1 << 12, 1 << 16, 1 << 20].map(|len| phase(|| patterned(len, len as u64))).into();
    for seed in 0..10 {
        phase(|| {
            let sizes = [1usize << 10, 1 << 12, 1 << 16, 1 << 20];
            let others: Vec<_> = sizes.iter().map(|&len| patterned(len, seed)).collect();
            others.iter().for_each(|other| assert_patterned(other, seed));
        });
    }
    kept.iter().for_each(|values| assert_patterned(values, values.len() as u64));
}

#[test]
fn the_arena_serves_inside_phases_and_only_there() {
    // In a process of its own, because the arena also serves requests outside this test's phase while another test's
    // phase is open.
    in_its_own_process(&[], || {
        assert!(arena_bytes(|| phase(|| drop(patterned(1 << 20, 1)))) >= 8 << 20);
        assert!(arena_bytes(|| phase(|| drop(black_box(vec![1u8; 8192])))) >= 8192);
        assert_eq!(arena_bytes(|| drop(patterned(1 << 20, 1))), 0);
    });
}

#[test]
fn nested_phases_end_with_the_outermost() {
    let _turn = COUNTERS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    phase(|| {
        phase(|| phase(|| ()));
        assert!(arena_bytes(|| drop(patterned(1 << 20, 1))) >= 8 << 20);
    });
}

#[test]
fn a_panic_ends_the_phase_and_keeps_what_is_alive() {
    let mut saved = None;
    let result = catch_unwind(AssertUnwindSafe(|| {
        phase(|| {
            saved = Some(patterned(1 << 18, 7));
            let _unwound = patterned(1 << 18, 8);
            panic!("as planned");
        })
    }));
    assert!(result.is_err());
    phase(|| drop(patterned(1 << 18, 9)));
    assert_patterned(&saved.unwrap(), 7);
}

#[test]
fn ending_a_phase_that_nobody_began_does_nothing() {
    // In this process, the surplus call could end another test's phase.
    in_its_own_process(&[], || {
        end_phase();
        begin_phase();
        end_phase();
        end_phase();
        assert_eq!(arena_bytes(|| drop(patterned(1 << 18, 9))), 0, "no phase is open");
        begin_phase();
        assert!(arena_bytes(|| drop(patterned(1 << 18, 9))) >= 2 << 20, "one is");
        end_phase();
    });
}

#[test]
fn zeroed_memory_is_zero_however_dirty_it_was() {
    for len in [4096usize, 32 << 10, 100 << 10, 1 << 20, 8 << 20, 80 << 20] {
        phase(|| {
            drop(black_box(vec![0xAAu8; len]));
            let zeroed = black_box(vec![0u8; len]);
            assert!(zeroed.iter().all(|&byte| byte == 0), "{len} bytes");
        });
    }
}

#[test]
fn vectors_grow_and_shrink_through_every_path_with_their_contents() {
    phase(|| {
        let mut values: Vec<u64> = Vec::new();
        for i in 0..(10u64 << 20) {
            values.push(i);
        }
        assert!(values.iter().zip(0u64..).all(|(&value, i)| value == i));
        for len in [9usize << 20, 1 << 20, 40_000, 5_000, 600, 3] {
            values.truncate(len);
            values.shrink_to_fit();
            assert!(values.len() == len && values.iter().zip(0u64..).all(|(&value, i)| value == i));
        }
    });
}

#[test]
fn threads_free_what_others_made() {
    for round in 0..50 {
        phase(|| {
            let made: Vec<_> = (0..64).map(|i| patterned(512 + i * 64, round)).collect();
            thread::scope(|scope| {
                for part in made.chunks(16).map(<[_]>::to_vec) {
                    scope.spawn(move || part.iter().for_each(|values| assert_patterned(values, round)));
                }
                scope.spawn(move || drop(made));
            });
        });
    }
}

#[test]
fn released_memory_reads_as_zero_when_it_is_asked_for_again() {
    phase(|| drop(black_box(vec![0x55u8; 16 << 20])));
    release();
    phase(|| assert!(black_box(vec![0u8; 16 << 20]).iter().all(|&byte| byte == 0)));
}
