//! Without the arena, glibc's malloc would learn from large buffers how much memory to keep, and would put them into
//! the holes that set-up left. The arena's first request makes up for both.
//!
//! Heap and page faults belong to the process, so each test runs in a process of its own.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::hint::black_box;

use crate::support::{alone, is_alone, rss_bytes, test_name};
use zk_alloc::{Phase, phase};

/// Blocks below the arena's threshold, so that glibc serves them.
const SETTING: (&str, &str) = ("ZK_ALLOC_MIN_BYTES", "1024");
const SMALL_BYTES: usize = 1000;

fn small_ones(bytes: usize) -> Vec<Vec<u8>> {
    (0..bytes / SMALL_BYTES).map(|_| black_box(vec![1u8; SMALL_BYTES])).collect()
}

/// A circuit's builder leaves holes. With the arena, no large buffer fills them any more.
#[test]
fn holes_that_set_up_left_go_back_with_the_first_large_request() {
    if !is_alone() {
        let setting = (SETTING.0, SETTING.1.as_ref());
        return alone(&test_name(), &[setting]).assert_passed("alone");
    }
    const BYTES: usize = 24 << 20;
    let mut count = 0;
    let mut kept = small_ones(BYTES);
    // One in a hundred stays, so that glibc by itself returns none of this memory.
    kept.retain(|_| {
        count += 1;
        count % 100 == 0
    });
    let before = rss_bytes();
    phase(|| drop(black_box(vec![1u8; 1 << 20])));
    assert!(rss_bytes() + BYTES / 2 < before, "{before} bytes with the holes, {} without", rss_bytes());
    assert!(kept.iter().flatten().all(|&byte| byte == 1));
}

/// Until glibc sees a large buffer, it returns the top of its heap to the system at every free. The small allocations
/// of each proof would fault again.
#[test]
fn small_allocations_find_their_pages_in_a_warm_phase() {
    if !is_alone() {
        let setting = (SETTING.0, SETTING.1.as_ref());
        return alone(&test_name(), &[setting]).assert_passed("alone");
    }
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
