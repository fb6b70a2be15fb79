//! Phases are scopes, not lifetimes: they nest, overlap and survive panics, and values outlive the phase that made
//! them.

mod support;

use std::hint::black_box;
use std::thread;

use support::{alone, assert_patterned, patterned};
use zk_alloc::{ZkAllocator, phase, release, stats};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

/// Bytes that the arena served while `f` ran.
fn arena_bytes(f: impl FnOnce()) -> u64 {
    let before = stats().arena_bytes;
    f();
    stats().arena_bytes - before
}

#[test]
fn memory_of_one_phase_is_unchanged_after_ten_more() {
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
    alone!();
    assert!(arena_bytes(|| phase(|| drop(patterned(1 << 20, 1)))) >= 8 << 20);
    assert!(arena_bytes(|| phase(|| drop(black_box(vec![1u8; 8192])))) >= 8192);
    assert_eq!(arena_bytes(|| drop(patterned(1 << 20, 1))), 0);
    phase(|| {
        phase(|| phase(|| ()));
        assert!(arena_bytes(|| drop(patterned(1 << 20, 1))) >= 8 << 20, "the outermost phase is open");
    });
}

#[test]
fn zeroed_memory_is_zero_after_other_use() {
    for len in [4096usize, 32 << 10, 100 << 10, 1 << 20, 8 << 20, 80 << 20] {
        phase(|| {
            drop(black_box(vec![0xAAu8; len]));
            let zeroed = black_box(vec![0u8; len]);
            assert!(zeroed.iter().all(|&byte| byte == 0), "{len} bytes");
        });
    }
}

#[test]
fn vectors_keep_their_contents_when_they_grow_and_shrink() {
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
fn threads_free_memory_of_other_threads() {
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
fn released_memory_is_zero_when_it_is_allocated_again() {
    phase(|| drop(black_box(vec![0x55u8; 16 << 20])));
    release();
    phase(|| assert!(black_box(vec![0u8; 16 << 20]).iter().all(|&byte| byte == 0)));
}
