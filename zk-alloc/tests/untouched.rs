//! In small pages, memory that the program does not touch stays out of memory.
#![cfg(target_os = "linux")]

mod support;

use std::hint::black_box;

use support::{in_its_own_process, rss_bytes};
use zk_alloc::{ZkAllocator, phase, stats};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

const LARGE_BYTES: usize = 48 << 20;
const RUN_BYTES: usize = 768 << 10;
const SETTINGS: &[(&str, &str)] = &[("ZK_ALLOC_THP", "never")];

#[test]
fn a_small_process_pays_for_little_more_than_it_uses() {
    in_its_own_process("a_small_process_pays_for_little_more_than_it_uses", SETTINGS, || {
        let before = rss_bytes();
        let _small = phase(|| black_box((0..4).map(|_| vec![1u8; RUN_BYTES]).collect::<Vec<_>>()));
        let grown = rss_bytes() - before;
        assert!(grown < 4 * RUN_BYTES + (1 << 20), "{grown} bytes");
    });
}

#[test]
fn a_long_buffer_is_faulted_in_where_it_is_touched() {
    in_its_own_process("a_long_buffer_is_faulted_in_where_it_is_touched", SETTINGS, || {
        phase(|| {
            let before = rss_bytes();
            let untouched = black_box(Vec::<u8>::with_capacity(LARGE_BYTES));
            assert!(stats().live_bytes >= LARGE_BYTES, "the arena serves it");
            assert!(rss_bytes() < before + LARGE_BYTES / 8, "{} bytes", rss_bytes() - before);
            drop(untouched);
        });
    });
}

/// A server's buffers, long enough for any message. Most messages are short, so only the written pages may take memory.
fn hardly_written_buffers(capacity: usize, count: usize) -> Vec<Vec<u8>> {
    let before = rss_bytes();
    let buffers = phase(|| {
        let buffer = || {
            let mut buffer = Vec::with_capacity(capacity);
            buffer.push(1);
            black_box(buffer)
        };
        (0..count).map(|_| buffer()).collect()
    });
    let (grown, written) = (rss_bytes() - before, count * (4 << 10));
    assert!(grown < written + written / 4 + (4 << 20), "{grown} bytes for {written} in pages that were written");
    buffers
}

#[test]
fn buffers_of_64_kib_that_are_hardly_written_are_not_prefaulted() {
    in_its_own_process("buffers_of_64_kib_that_are_hardly_written_are_not_prefaulted", SETTINGS, || {
        drop(hardly_written_buffers(64 << 10, 4_000));
    });
}

#[test]
fn blocks_of_slabs_that_are_hardly_written_are_not_prefaulted() {
    in_its_own_process("blocks_of_slabs_that_are_hardly_written_are_not_prefaulted", SETTINGS, || {
        drop(hardly_written_buffers(24 << 10, 10_000));
    });
}

#[test]
fn buffers_of_more_than_a_huge_page_that_are_hardly_written_are_not_prefaulted() {
    in_its_own_process("buffers_of_more_than_a_huge_page_that_are_hardly_written_are_not_prefaulted", SETTINGS, || {
        drop(hardly_written_buffers(9 << 18, 500));
    });
}
