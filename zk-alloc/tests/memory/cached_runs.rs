//! A thread caches the short run that it freed last for its next request. reuse.rs has what other threads get of it.

use std::hint::black_box;

use crate::support::alone;
use crate::support::blocks::KIB;
use zk_alloc::{phase, release, stats};

/// A short run: threads cache none of 256 KiB or more.
const BYTES: usize = 128 * KIB;

/// Runs `body` in a phase, in a process of its own. Then nothing stays alive.
#[track_caller]
fn in_a_phase(body: impl FnOnce()) {
    alone!();
    phase(body);
    leaves_nothing_alive(|| _ = release());
}

/// Writes to a buffer and frees it. Returns its address.
fn use_a_buffer(bytes: usize) -> usize {
    let buffer = black_box(vec![1u8; bytes]);
    buffer.as_ptr().addr()
}

/// Fails unless `work` leaves the live size unchanged. The test harness allocates on another thread now and then, so
/// this tries several times.
fn leaves_nothing_alive(work: impl Fn()) {
    let changes = |_| {
        let before = stats().live_bytes;
        work();
        stats().live_bytes.wrapping_sub(before) as isize
    };
    let changes = (0..10).map(changes).take_while(|&bytes| bytes != 0).collect::<Vec<_>>();
    assert!(changes.len() < 10, "each time so many bytes stayed alive, or went: {changes:?}");
}

#[test]
fn a_cached_run_serves_the_next_request() {
    in_a_phase(|| {
        let before = stats();
        let first = use_a_buffer(BYTES);
        assert_eq!(use_a_buffer(BYTES), first);
        let after = stats();
        assert_eq!(after.run_allocations - before.run_allocations, 2, "both count");
        assert_eq!(after.run_bytes - before.run_bytes, 2 * BYTES as u64);
        leaves_nothing_alive(|| _ = use_a_buffer(BYTES));
    });
}

#[test]
fn release_purges_a_cached_run() {
    in_a_phase(|| {
        use_a_buffer(BYTES);
        assert!(release() >= BYTES);
    });
}

/// A buffer grows into the cached run behind it. The test harness's slab may lie between them, so this tries several times.
#[test]
fn a_buffer_grows_into_the_cached_run_behind_it() {
    in_a_phase(|| {
        // They stay alive, so that each try has another place.
        let mut grown = Vec::new();
        let mut is_behind = |_| {
            let mut grows: Vec<u8> = vec![3; BYTES];
            let (at, behind) = (grows.as_ptr().addr(), use_a_buffer(BYTES));
            let is_behind = behind == at + BYTES;
            grows.reserve_exact(BYTES - 32 * KIB);
            assert!(!is_behind || grows.as_ptr().addr() == at, "it moved");
            assert!(grows.iter().all(|&byte| byte == 3));
            grown.push(grows);
            is_behind
        };
        assert!((0..50).any(&mut is_behind), "first fit in what was purged");
    });
}
