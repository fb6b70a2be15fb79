//! In small pages, memory that the program does not touch stays out of memory.

use std::hint::black_box;

use crate::support::{alone, in_its_own_process, rss_bytes};
use zk_alloc::{phase, stats};

const RUN_BYTES: usize = 768 << 10;
const SETTINGS: &[(&str, &str)] = &[("ZK_ALLOC_THP", "never")];

#[test]
fn a_small_process_pays_for_little_more_than_it_uses() {
    alone!(SETTINGS);
    let before = rss_bytes();
    let _small = phase(|| black_box((0..4).map(|_| vec![1u8; RUN_BYTES]).collect::<Vec<_>>()));
    let grown = rss_bytes() - before;
    assert!(grown < 4 * RUN_BYTES + (1 << 20), "{grown} bytes");
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
    assert!(stats().live_bytes >= count * capacity, "the arena serves them");
    buffers
}

#[test]
fn buffers_that_are_hardly_written_are_not_prefaulted() {
    for (capacity, count) in [(24 << 10, 10_000), (64 << 10, 4_000), (9 << 18, 500), (48 << 20, 20)] {
        in_its_own_process(SETTINGS, || drop(hardly_written_buffers(capacity, count)));
    }
}

/// Bytes of a vector that `grown` leaves untouched, all but the first and the last.
fn resized(kept: usize, from: usize, to: usize, count: usize) {
    let before = rss_bytes();
    let mut buffers: Vec<Vec<u8>> = phase(|| {
        let buffer = |index: usize| {
            // All of the length belongs to the program, so that all of it has to be there afterwards.
            let mut buffer = black_box(vec![0u8; from]);
            buffer[0] = index as u8;
            buffer[kept - 1] = !index as u8;
            buffer
        };
        (0..count).map(buffer).collect()
    });
    phase(|| {
        for buffer in &mut buffers {
            buffer.truncate(kept);
            if to > from {
                buffer.reserve_exact(to - kept);
            } else {
                buffer.shrink_to(to);
            }
        }
        black_box(&mut buffers);
    });
    let grown = rss_bytes() - before;
    // Two pages each, at both places: freed ones stay.
    let written = count * 4 * (4 << 10);
    assert!(grown < written + written / 4 + (4 << 20), "{grown} bytes for {written} in pages that were written");
    for (buffer, index) in buffers.iter().zip(0usize..) {
        assert_eq!((buffer[0], buffer[kept - 1]), (index as u8, !index as u8));
        assert!(index % 50 > 0 || buffer[1..kept - 1].iter().all(|&byte| byte == 0));
    }
    assert!(stats().live_bytes >= count * to, "the arena serves them");
}

/// The first grow by a copy, the second within small sizes, and the last shrink.
#[test]
fn sparse_vectors_that_grow_or_shrink_stay_sparse() {
    let cases = [(700 << 10, 700 << 10, 3 << 20, 400), (100 << 10, 100 << 10, 200 << 10, 2_000)];
    for (kept, from, to, count) in cases.into_iter().chain([(30 << 20, 100 << 20, 30 << 20, 20)]) {
        in_its_own_process(SETTINGS, || resized(kept, from, to, count));
    }
}
