//! The parts of the resident memory add up to the kernel's count.

use crate::support::blocks::keep_every;
use crate::support::{alone, maps};
use zk_alloc::{phase, release, resident_parts, stats};

/// Blocks and runs of many lengths, all touched. Every other one is freed.
fn half_freed() -> Vec<Vec<u8>> {
    let lengths = (0..4000).map(|n| [40, 300, 3_000, 20_000, 200_000, 3 << 20][n % 6] + n);
    let mut all: Vec<Vec<u8>> = lengths.take(1200).map(|length| vec![1; length]).collect();
    keep_every(2, &mut all);
    all
}

fn assert_within_a_percent(counted: usize, expected: usize, what: &str) {
    let (off, most) = (counted.abs_diff(expected), expected / 100);
    assert!(off <= most, "{what}: {counted} and {expected} bytes: {off} apart\n{}", resident_parts());
}

/// A part that is missing or counted twice would send its reader to the wrong place.
#[test]
fn the_parts_add_up_to_what_the_kernel_counts() {
    alone!();
    let kept = phase(half_freed);
    let parts = resident_parts();
    assert_within_a_percent(parts.resident_bytes(), stats().resident_bytes, "the parts and the statistics");
    let address = kept.iter().max_by_key(|buffer| buffer.len()).unwrap().as_ptr().addr();
    let in_smaps = maps::Region::around(address).resident_bytes();
    let kernel_bytes = parts.kernel_bytes.expect("Linux tells");
    assert_within_a_percent(kernel_bytes, in_smaps, "mincore and smaps");
    let (sum, most) = (parts.resident_bytes(), maps::tolerance_bytes(in_smaps));
    assert!(sum.abs_diff(in_smaps) <= most, "the parts and smaps: {sum} and {in_smaps} bytes\n{parts}");

    let lengths: usize = kept.iter().map(Vec::len).sum();
    let live_bytes = parts.live_block_bytes + parts.live_run_bytes;
    assert!((lengths..lengths + lengths / 4).contains(&live_bytes), "{live_bytes} for {lengths}");
    assert!(parts.free_run_bytes > 3 << 20 && parts.free_slab_bytes > 0, "{parts:?}");
    release();
    let parts = resident_parts();
    assert!(parts.free_run_bytes < 1 << 20 && parts.cached_bytes == 0, "{parts:?}");
    drop(kept);
}
