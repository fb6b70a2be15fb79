//! Slabs and runs of nearly all lengths share a zone. Freed memory of one kind serves the others, and survivors are not
//! in the way.

use std::hint::black_box;
use std::thread;

use crate::support::alone;
use crate::support::blocks::MIB;
use zk_alloc::{phase, stats};

/// Served from a slab.
const BLOCK_BYTES: usize = 16 << 10;

/// Memory that was not resident before `work`, in bytes.
fn fresh_bytes<R>(work: impl FnOnce() -> R) -> (u64, R) {
    let before = stats().fresh_bytes;
    let result = work();
    (stats().fresh_bytes - before, result)
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
    alone!();
    phase(|| {
        drop(run(16 * MIB));
        let pins = blocks(BLOCK_BYTES);
        let (fresh, _) = fresh_bytes(|| run(16 * MIB));
        assert_eq!(fresh, 0);
        drop(pins);
    })
}

/// If a short run took the lowest place, survivors of a proof would lie where its longest run was.
#[test]
fn a_short_run_that_stays_does_not_take_the_place_of_a_long_one() {
    alone!();
    phase(|| {
        let shorts = || black_box((0..12).map(|_| run(192 << 10)).collect::<Vec<_>>());
        let long = run(16 * MIB);
        drop((shorts(), long));
        // The thread caches the last long run that it freed.
        drop(run(MIB));
        let pins = shorts();
        let (fresh, _) = fresh_bytes(|| run(16 * MIB));
        assert_eq!(fresh, 0);
        drop(pins);
    })
}

/// The small-object region: 3 MiB for each of the machine's threads.
fn room_of_slabs_bytes() -> usize {
    let threads = thread::available_parallelism().map_or(8, usize::from);
    3 * threads * MIB
}

#[test]
fn slabs_reuse_the_memory_of_a_run() {
    alone!();
    phase(|| {
        drop(run(48 * MIB));
        let (fresh, many) = fresh_bytes(|| blocks(room_of_slabs_bytes() + 24 * MIB));
        assert!(fresh <= room_of_slabs_bytes() as u64, "{fresh} bytes were fresh");
        drop(many);
    })
}

#[test]
fn runs_reuse_the_memory_of_slabs() {
    alone!();
    phase(|| {
        // A thread that lives on would cache some blocks, and their slabs would stay.
        thread::spawn(|| drop(blocks(room_of_slabs_bytes() + 24 * MIB))).join().expect("it only allocates");
        let (fresh, _) = fresh_bytes(|| run(16 * MIB));
        assert_eq!(fresh, 0);
    })
}

/// Short and long runs come and go at different times. Without sharing, each proof would pay for both.
#[test]
fn short_and_long_runs_reuse_each_others_memory() {
    alone!();
    phase(|| {
        const SHORT_BYTES: usize = 40 << 10;
        const COUNT: usize = 8 * MIB / SHORT_BYTES;
        drop(run(16 * MIB));
        // The list of them is a block of a slab. It is written here, because its pages may be fresh.
        let mut many = vec![Vec::new(); COUNT];
        let (fresh, ()) = fresh_bytes(|| many.iter_mut().for_each(|short| *short = black_box(vec![1_u8; SHORT_BYTES])));
        assert_eq!(fresh, 0);
        drop(many);
        let (fresh, _) = fresh_bytes(|| run(12 * MIB));
        assert_eq!(fresh, 0);
    })
}
