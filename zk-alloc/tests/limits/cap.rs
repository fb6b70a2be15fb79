//! The cap (`ZK_ALLOC_MAX_BYTES`). At the cap, the arena first purges free memory. If this is not enough, the backing allocator serves the
//! request.

use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::ALLOC;
use crate::support::blocks::free_every;
use crate::support::process::lockable_bytes;
use crate::support::{alone, in_its_own_process};
use zk_alloc::{overflow_stats, phase, stats};

const CAP_BYTES: usize = 64 << 20;

/// Runs `body` in a phase, in a process of its own with this cap.
#[track_caller]
fn with_cap(body: impl FnOnce()) {
    in_its_own_process(&[("ZK_ALLOC_MAX_BYTES", "64M")], || phase(body));
}

/// Memory that was allocated but never touched is not resident, so it leaves room under the cap.
#[test]
fn untouched_memory_does_not_count_at_the_cap() {
    with_cap(|| {
        let mut untouched: Vec<u8> = black_box(Vec::with_capacity(60 << 20));
        let buffers: Vec<_> = (0..20).map(|_| black_box(vec![1u8; 1 << 20])).collect();
        assert_eq!(overflow_stats().0, 0, "{}", stats());
        // Once touched, the memory counts.
        untouched.resize(60 << 20, 1);
        std::thread::sleep(std::time::Duration::from_millis(150));
        let more: Vec<_> = (0..8).map(|_| black_box(vec![1u8; 1 << 20])).collect();
        assert!(overflow_stats().0 >= 7, "{}", stats());
        drop((buffers, more));
    });
}

/// At the cap, the arena purges the resident pages of free slabs. The kernel refuses to purge locked pages, so they keep their contents,
/// and the arena must clear them for zeroed requests.
#[test]
fn memory_that_the_kernel_refuses_to_purge_is_cleared() {
    if lockable_bytes() < 2 << 20 {
        return println!("skipped: RLIMIT_MEMLOCK allows less than 2 MiB");
    }
    with_cap(|| {
        // The first slabs are in the small-object region.
        let _first: Vec<_> = (0..1_800).map(|_| vec![1u8; 5_000]).collect();
        let mut blocks: Vec<_> = (0..200).map(|_| vec![1u8; 5_000]).collect();
        // The blocks of the next slabs. Frees some of them, so that `release()` purges pages at the ends of the slabs and between blocks.
        free_every(4, &mut blocks);
        zk_alloc::release();
        for block in &blocks {
            // SAFETY: the range is the vector's own memory, and the call does not change its contents.
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
        assert!(zeroed.iter().flatten().all(|&byte| byte == 0), "zeroed memory has the contents of freed blocks");
    });
}

/// With `ZK_ALLOC_MAX_HARD`, requests beyond the limit fail. An operator may prefer a failed proof to a process that exceeds the limit.
#[test]
fn requests_beyond_a_hard_limit_fail() {
    alone!(&[("ZK_ALLOC_MAX_BYTES", "64M"), ("ZK_ALLOC_MAX_HARD", "1")]);
    let get = |bytes: usize| {
        let mut got: Vec<u8> = Vec::new();
        got.try_reserve_exact(bytes).is_ok().then_some(black_box(got))
    };
    let outside = phase(|| {
        let mut first = black_box(vec![1u8; 40 << 20]);
        for bytes in [40 << 20, 70 << 20, 5 << 30] {
            let layout = Layout::from_size_align(bytes, 64).unwrap();
            // SAFETY: the layout is not empty. Nothing is freed, because the request is refused.
            let zeroed = unsafe { ALLOC.alloc_zeroed(layout) };
            assert!(get(bytes).is_none() && zeroed.is_null(), "{bytes}");
        }
        assert!(first.try_reserve_exact(40 << 20).is_err());
        assert!(first.iter().step_by(4096).all(|&byte| byte == 1));
        // At some point, small requests fail too.
        let mut small = Vec::with_capacity(4096);
        while let Some(got) = get(20_000) {
            assert!(small.len() < small.capacity(), "the limit refuses no small request");
            small.push(got);
        }
        first.truncate(1 << 20);
        first.shrink_to_fit();
        assert!(stats().resident_bytes <= CAP_BYTES && first.iter().all(|&byte| byte == 1), "{}", stats());
        drop((small, first));
        assert_eq!(overflow_stats(), (0, 0));
        get(40 << 20).expect("freed memory is used again")
    });
    // Outside of phases, the backing allocator serves requests, as always.
    drop(black_box(vec![1u8; 80 << 20]));
    drop(outside);
}

/// `on_memory_limit` calls a function of the program when memory nears the limit. A service can then refuse new proofs.
#[test]
fn the_program_is_called_once_each_time_memory_nears_the_limit() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    with_cap(|| {
        zk_alloc::on_memory_limit(50, |resident_bytes, max_bytes| {
            assert!(resident_bytes >= 32 << 20 && max_bytes == CAP_BYTES);
            // Requests made by the function itself do not call it again.
            drop(black_box(vec![1u8; 1 << 20]));
            CALLS.fetch_add(1, Ordering::Relaxed);
        });
        let calls = || CALLS.load(Ordering::Relaxed);
        let half = black_box(vec![1u8; 12 << 20]);
        assert_eq!(calls(), 0);
        for round in 1..=3 {
            let more: Vec<_> = (0..24).map(|_| black_box(vec![1u8; 1 << 20])).collect();
            assert_eq!(calls(), round);
            drop(more);
            zk_alloc::release();
            // The arena notices the release at the next request that takes the slow path.
            drop(black_box(vec![1u8; 100 << 10]));
        }
        zk_alloc::on_memory_limit(0, |_, _| ());
        let more = black_box(vec![1u8; 24 << 20]);
        assert_eq!(calls(), 3);
        drop((half, more));
    });
}
