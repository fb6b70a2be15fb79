//! Slabs and runs of nearly all lengths share a zone. Freed memory of one kind serves the others, and survivors are not
//! in the way.

use std::hint::black_box;
use std::thread;

use crate::support::alone;
use crate::support::blocks::MIB;
use zk_alloc::{phase, stats};

/// Served from a slab.
const BLOCK_BYTES: usize = 16 << 10;

/// Runs `body` in a phase, in a process of its own.
#[track_caller]
fn in_a_phase(body: impl FnOnce()) {
    alone!();
    phase(body);
}

/// Fails if `work` takes more than this number of bytes that were not resident.
#[track_caller]
fn assert_fresh<R>(most_bytes: usize, work: impl FnOnce() -> R) -> R {
    let before = stats().fresh_bytes;
    let result = work();
    let fresh_bytes = stats().fresh_bytes - before;
    assert!(fresh_bytes <= most_bytes as u64, "{fresh_bytes} bytes were fresh");
    result
}

fn run(bytes: usize) -> Vec<u8> {
    black_box(vec![1; bytes])
}

fn blocks(bytes: usize) -> Vec<Vec<u8>> {
    black_box((0..bytes / BLOCK_BYTES).map(|_| vec![1; BLOCK_BYTES]).collect())
}

/// If the slab of a live block took the lowest place, it would lie where the run was.
#[test]
fn a_slab_that_stays_does_not_take_the_place_of_a_run() {
    in_a_phase(|| {
        drop(run(16 * MIB));
        let pins = blocks(BLOCK_BYTES);
        assert_fresh(0, || run(16 * MIB));
        drop(pins);
    });
}

/// If a short run took the lowest place, survivors of a proof would lie where its longest run was.
#[test]
fn a_short_run_that_stays_does_not_take_the_place_of_a_long_one() {
    in_a_phase(|| {
        let shorts = || black_box((0..12).map(|_| run(192 << 10)).collect::<Vec<_>>());
        let long = run(16 * MIB);
        drop((shorts(), long));
        // The thread caches the last long run that it freed.
        drop(run(MIB));
        let pins = shorts();
        assert_fresh(0, || run(16 * MIB));
        drop(pins);
    });
}

/// The small-object region: 3 MiB for each of the machine's threads.
fn room_of_slabs_bytes() -> usize {
    let threads = thread::available_parallelism().map_or(8, usize::from);
    3 * threads * MIB
}

#[test]
fn slabs_reuse_the_memory_of_a_run() {
    in_a_phase(|| {
        drop(run(48 * MIB));
        assert_fresh(room_of_slabs_bytes(), || blocks(room_of_slabs_bytes() + 24 * MIB));
    });
}

#[test]
fn runs_reuse_the_memory_of_slabs() {
    in_a_phase(|| {
        // A thread that lives on would cache some blocks, and their slabs would stay.
        thread::spawn(|| drop(blocks(room_of_slabs_bytes() + 24 * MIB))).join().expect("it only allocates");
        assert_fresh(0, || run(16 * MIB));
    });
}

/// Short and long runs come and go at different times. Without sharing, each proof would pay for both.
#[test]
fn short_and_long_runs_reuse_each_others_memory() {
    in_a_phase(|| {
        const SHORT_BYTES: usize = 40 << 10;
        drop(run(16 * MIB));
        // The list of them is a block of a slab. It is written here, because its pages may be fresh.
        let mut many = vec![Vec::new(); 8 * MIB / SHORT_BYTES];
        assert_fresh(0, || many.iter_mut().for_each(|short| *short = run(SHORT_BYTES)));
        drop(many);
        assert_fresh(0, || run(12 * MIB));
    });
}
