//! `ZK_ALLOC_MAX_BYTES`: at the cap, the arena purges free memory first; then requests go to the backing allocator.
#![allow(unsafe_code, reason = "locks memory")]

#[cfg(target_os = "linux")]
#[path = "support/limits.rs"]
mod limits;
mod support;

use std::hint::black_box;
use support::in_its_own_process;
use zk_alloc::{ZkAllocator, overflow_stats, phase, stats};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

const CAP_BYTES: usize = 64 << 20;

/// Runs `body`, which is the test `name`, in a phase of a process with this cap.
#[track_caller]
fn with_cap(name: &str, body: impl FnOnce()) {
    in_its_own_process(name, &[("ZK_ALLOC_MAX_BYTES", "64M")], || phase(body));
}

#[test]
fn resident_memory_stays_below_the_cap() {
    with_cap("resident_memory_stays_below_the_cap", || {
        let first = vec![1u8; 40 << 20];
        let second = vec![2u8; 40 << 20];
        assert_eq!(overflow_stats(), (1, 40 << 20), "the second buffer would exceed the cap");
        assert!(first.iter().all(|&byte| byte == 1) && second.iter().all(|&byte| byte == 2));
        drop((first, second));

        let small: Vec<_> = (0..20u8).map(|i| vec![i; 1 << 20]).collect();
        assert_eq!(overflow_stats().0, 1, "the first buffer's memory made room");
        assert!(small.iter().zip(0u8..).all(|(buffer, i)| buffer.iter().all(|&byte| byte == i)));
        assert!(stats().resident_bytes <= CAP_BYTES, "{}", stats());
    });
}

/// Memory that was handed out and never touched takes none, and leaves room for what does.
#[cfg(target_os = "linux")]
#[test]
fn untouched_memory_does_not_count_at_the_cap() {
    with_cap("untouched_memory_does_not_count_at_the_cap", || {
        let mut untouched: Vec<u8> = black_box(Vec::with_capacity(60 << 20));
        let buffers: Vec<_> = (0..20).map(|_| black_box(vec![1u8; 1 << 20])).collect();
        assert_eq!(overflow_stats().0, 0, "{}", stats());
        // Once it is touched, it counts.
        untouched.resize(60 << 20, 1);
        std::thread::sleep(std::time::Duration::from_millis(150));
        let more: Vec<_> = (0..8).map(|_| black_box(vec![1u8; 1 << 20])).collect();
        assert!(overflow_stats().0 >= 7, "{}", stats());
        drop((buffers, more));
    });
}

/// At the cap, a slab that becomes free purges the rest of its pages. The kernel refuses to purge locked pages, so they
/// keep their contents.
#[cfg(target_os = "linux")]
#[test]
fn what_the_kernel_does_not_take_back_is_cleared_all_the_same() {
    if limits::lockable_bytes() < 2 << 20 {
        return println!("skipped: RLIMIT_MEMLOCK allows less than 2 MiB");
    }
    with_cap("what_the_kernel_does_not_take_back_is_cleared_all_the_same", || {
        // The first slabs lie in room that is reserved for them.
        let _first: Vec<_> = (0..1_800).map(|_| vec![1u8; 5_000]).collect();
        let mut blocks: Vec<_> = (0..200).map(|_| vec![1u8; 5_000]).collect();
        // The following slabs lose some pages to a purge, at their ends and between blocks.
        let mut index = 0;
        blocks.retain(|_| {
            index += 1;
            index % 4 != 0
        });
        zk_alloc::release();
        for block in &blocks {
            // SAFETY: memory of a vector; the call does not change its contents.
            assert_eq!(unsafe { libc::mlock(block.as_ptr().cast(), block.len()) }, 0, "less than 2 MiB");
        }
        let mut fill = Vec::new();
        for bytes in [1 << 20, 36 << 10, 2_000] {
            let before = overflow_stats().0;
            while overflow_stats().0 == before {
                fill.push(vec![2u8; bytes]);
            }
        }
        drop(blocks);
        drop(fill);
        let zeroed: Vec<_> = (0..50).map(|_| black_box(vec![0u8; 768 << 10])).collect();
        assert!(zeroed.iter().flatten().all(|&byte| byte == 0), "memory that was to be zero held what was freed");
    });
}
