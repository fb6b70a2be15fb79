//! Without the arena, glibc's malloc would learn from large buffers how much memory to keep, and would put them into
//! the free chunks that set-up left. `warm_up_backing` makes up for both at the arena's first request.

use std::hint::black_box;

use crate::support::blocks::keep_every;
use crate::support::{alone, rss_bytes};
use zk_alloc::{Phase, phase};

/// Blocks below the arena's threshold, so that glibc serves them.
const SETTING: (&str, &str) = ("ZK_ALLOC_MIN_BYTES", "1024");
const SMALL_BYTES: usize = 1000;

fn small_ones(bytes: usize) -> Vec<Vec<u8>> {
    (0..bytes / SMALL_BYTES).map(|_| black_box(vec![1u8; SMALL_BYTES])).collect()
}

/// A circuit's builder leaves free chunks in glibc's heap. With the arena, no large buffer reuses them.
#[test]
fn the_first_large_request_purges_free_memory_of_the_system_allocator() {
    alone!(&[SETTING]);
    const BYTES: usize = 24 << 20;
    let mut kept = small_ones(BYTES);
    // One in a hundred stays, so that glibc by itself returns none of this memory.
    keep_every(100, &mut kept);
    let before = rss_bytes();
    phase(|| drop(black_box(vec![1u8; 1 << 20])));
    assert!(rss_bytes() + BYTES / 2 < before, "{before} bytes with the free chunks, {} without", rss_bytes());
    assert!(kept.iter().flatten().all(|&byte| byte == 1));
}

/// Until glibc sees a large buffer, it returns the top of its heap to the system at every free. The small allocations
/// of each proof would fault again.
#[test]
fn small_allocations_fault_no_pages_in_a_warm_phase() {
    alone!(&[SETTING]);
    let faults = || {
        let phase = Phase::new();
        drop(black_box(vec![1u8; 1 << 20]));
        drop(black_box(small_ones(4 << 20)));
        phase.report().minor_faults
    };
    let cold = faults();
    let warm = (0..5).map(|_| faults()).max().unwrap_or_default();
    assert!(cold > 500 && warm < 100, "1000 pages of small allocations: {cold} faults cold, {warm} warm");
}
