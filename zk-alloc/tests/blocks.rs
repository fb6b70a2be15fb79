//! Without huge pages, the arena prefaults chunks of a sixteenth of the resident size, because the next phase's runs
//! may lie a little elsewhere. It prefaults no other memory that the program might not touch.
#![cfg(target_os = "linux")]

mod support;

use std::hint::black_box;

use support::{in_its_own_process, rss_bytes};
use zk_alloc::{Phase, ZkAllocator, phase, stats};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

const LARGE_BYTES: usize = 48 << 20;
/// Two of them share a chunk of 2 MiB, which is the chunk size from 32 MiB resident on.
const RUN_BYTES: usize = 768 << 10;
const SETTINGS: &[(&str, &str)] = &[("ZK_ALLOC_THP", "never")];

/// A run, the page faults while it was filled, and the system calls of the arena.
fn cost_of_a_run(bytes: usize) -> (Vec<u8>, u64, u64) {
    let phase = Phase::new();
    let before = stats().system_calls;
    let run = black_box(vec![1; bytes]);
    let report = phase.report();
    (run, report.minor_faults, stats().system_calls - before)
}

/// Page faults of the runs that came without a system call, because pages that a call prefaults count as faults too.
fn faults_without_calls(runs: &[(Vec<u8>, u64, u64)]) -> u64 {
    runs.iter().filter(|(_, _, calls)| *calls == 0).map(|(_, faults, _)| faults).sum()
}

#[test]
fn a_chunk_is_prefaulted_with_the_first_run_that_begins_in_it() {
    in_its_own_process("a_chunk_is_prefaulted_with_the_first_run_that_begins_in_it", SETTINGS, || {
        // This stays resident and in use: from here on chunks are 2 MiB, and lie behind it.
        let _large = phase(|| black_box(vec![1u8; LARGE_BYTES]));
        let runs: Vec<_> = (0..12).map(|_| cost_of_a_run(RUN_BYTES)).collect();
        let calls: u64 = runs.iter().map(|(_, _, calls)| calls).sum();
        let faults = faults_without_calls(&runs);
        // Nine MiB lie in five or six chunks, and are 2,304 pages.
        assert!((4..=7).contains(&calls), "{calls} calls for {} runs", runs.len());
        assert!(faults < 100, "{faults} faults in runs that lie in pieces which others began");
    });
}

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
fn what_fills_chunks_is_faulted_in_where_it_is_touched() {
    in_its_own_process("what_fills_chunks_is_faulted_in_where_it_is_touched", SETTINGS, || {
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
    assert!(grown < 2 * written + (16 << 20), "{grown} bytes for {written} in pages that were written");
    buffers
}

#[test]
fn buffers_of_64_kib_that_are_hardly_written_are_not_paged_in() {
    in_its_own_process("buffers_of_64_kib_that_are_hardly_written_are_not_paged_in", SETTINGS, || {
        drop(hardly_written_buffers(64 << 10, 4_000));
    });
}

#[test]
fn blocks_of_slabs_that_are_hardly_written_are_not_paged_in() {
    in_its_own_process("blocks_of_slabs_that_are_hardly_written_are_not_paged_in", SETTINGS, || {
        drop(hardly_written_buffers(24 << 10, 10_000));
    });
}

/// The buffers begin at huge pages, so no other buffer lies in the chunk in which one ends.
#[test]
fn buffers_of_more_than_a_huge_page_that_are_hardly_written_are_not_paged_in() {
    in_its_own_process("buffers_of_more_than_a_huge_page_that_are_hardly_written_are_not_paged_in", SETTINGS, || {
        drop(hardly_written_buffers(9 << 18, 500));
    });
}

#[test]
fn what_is_filled_after_buffers_that_were_not_is_paged_in_ahead_again() {
    in_its_own_process("what_is_filled_after_buffers_that_were_not_is_paged_in_ahead_again", SETTINGS, || {
        let buffers = hardly_written_buffers(RUN_BYTES, 500);
        // One run in 128 ends at the end of a chunk: most lie in a chunk and in the next.
        let bytes = 720 << 10;
        let runs: Vec<_> = (0..128).map(|_| cost_of_a_run(bytes)).collect();
        let (faults, pages) = (faults_without_calls(&runs), (runs.len() * bytes / (4 << 10)) as u64);
        assert!(faults < pages / 10, "{faults} faults for {pages} pages that were filled");
        drop(buffers);
    });
}
