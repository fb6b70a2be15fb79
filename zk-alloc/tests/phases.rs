//! Phases: the arena serves requests while a phase is open and only then, and zeroed memory is zero even where earlier phases wrote.

mod support;

use std::hint::black_box;
use std::thread;

use support::{alone, patterned};
use zk_alloc::{ZkAllocator, is_serving, phase, release, stats};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

/// Returns the number of bytes that the arena served while `f` ran.
fn arena_bytes(f: impl FnOnce()) -> u64 {
    let before = stats().arena_bytes;
    f();
    stats().arena_bytes - before
}

#[test]
fn the_arena_serves_inside_phases_and_only_there() {
    // Runs in a process of its own, because another test's phase would make the arena serve this test's requests outside of its own phases.
    alone!();
    assert!(arena_bytes(|| phase(|| drop(patterned(1 << 20, 1)))) >= 8 << 20);
    assert!(arena_bytes(|| phase(|| drop(black_box(vec![1u8; 8192])))) >= 8192);
    assert!(arena_bytes(|| drop(patterned(1 << 20, 1))) == 0 && !is_serving());
    phase(|| {
        phase(|| phase(|| ()));
        assert!(is_serving() && thread::spawn(is_serving).join().unwrap());
        assert!(arena_bytes(|| drop(patterned(1 << 20, 1))) >= 8 << 20, "the outermost phase is open");
    });
}

#[test]
fn zeroed_memory_is_zero_after_other_use_and_after_a_release() {
    for len in [4096usize, 32 << 10, 100 << 10, 1 << 20, 8 << 20, 80 << 20] {
        phase(|| drop(black_box(vec![0xAAu8; len])));
        phase(|| {
            for _ in 0..2 {
                let mut zeroed = black_box(vec![0u8; len]);
                assert!(zeroed.iter().all(|&byte| byte == 0), "{len} bytes");
                zeroed.fill(0x55);
                drop(black_box(zeroed));
                release();
            }
        });
    }
}
