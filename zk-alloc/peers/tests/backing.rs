//! Another allocator behind the arena serves the requests that the arena does not, and gets back that memory and no
//! other. Growth may move memory from one to the other. With a wrong owner, jemalloc or mimalloc would abort or corrupt
//! its heap.
#![allow(unsafe_code, reason = "calls GlobalAlloc")]

use std::alloc::{GlobalAlloc, Layout};

use mimalloc::MiMalloc;
use tikv_jemallocator::Jemalloc;
use zk_alloc::{Mode, ZkAllocator, phase, stats};

fn grows_and_shrinks_across_the_border<A: GlobalAlloc>(allocator: &ZkAllocator<A>) {
    let sizes = [64usize, 3000, 5000, 40_000, 300_000, 2 << 20, 100_000, 4096, 100];
    let mut layout = Layout::from_size_align(sizes[0], 16).unwrap();
    // SAFETY: the layout is not empty.
    let mut at = unsafe { allocator.alloc_zeroed(layout) };
    assert!(!at.is_null());
    for (size, stamp) in sizes.into_iter().skip(1).zip(1u8..) {
        let kept = layout.size().min(size);
        // SAFETY: the block came from this allocator with this layout.
        at = unsafe { allocator.realloc(at, layout, size) };
        assert!(!at.is_null());
        layout = Layout::from_size_align(size, 16).unwrap();
        // SAFETY: the block is `size` bytes long, and its first `kept` bytes were written.
        unsafe {
            assert!(std::slice::from_raw_parts(at, kept).iter().all(|&byte| byte == stamp - 1));
            at.write_bytes(stamp, size);
        }
    }
    // SAFETY: the block came from this allocator with this layout.
    unsafe { allocator.dealloc(at, layout) };
}

fn check<A: GlobalAlloc + Sync>(scoped: &ZkAllocator<A>, resident: &ZkAllocator<A>) {
    grows_and_shrinks_across_the_border(scoped);
    let before = stats().arena_allocations;
    phase(|| grows_and_shrinks_across_the_border(scoped));
    grows_and_shrinks_across_the_border(resident);
    assert!(stats().arena_allocations > before + 4, "the arena took part");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| phase(|| (0..200).for_each(|_| grows_and_shrinks_across_the_border(scoped))));
        }
    });
}

/// The checks run one after the other: while one thread opens the arena, other threads are served without it.
#[test]
fn jemalloc_and_mimalloc_stand_behind_the_arena() {
    check(&ZkAllocator::with_backing(Jemalloc), &ZkAllocator::with_backing(Jemalloc).mode(Mode::Resident));
    check(&ZkAllocator::with_backing(MiMalloc), &ZkAllocator::with_backing(MiMalloc).mode(Mode::Resident));
}
