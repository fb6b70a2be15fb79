//! A plugin with zk-alloc as its global allocator. tests/hazards_unload.rs loads and closes it.

use std::hint::black_box;
use std::thread;

use zk_alloc::{ZkAllocator, phase, stats};

#[global_allocator]
static ALLOC: ZkAllocator = if cfg!(feature = "resident") { ZkAllocator::resident() } else { ZkAllocator };

/// Lengths of buffers in words: blocks, page runs and a huge run.
const LENGTHS: [usize; 5] = [6, 90, 4_000, 60_000, 5 << 20];

fn work(seed: u64) -> u64 {
    let buffers: Vec<Vec<u64>> = LENGTHS.iter().map(|&len| (0..len as u64).map(|i| i ^ seed).collect()).collect();
    black_box(&buffers).iter().flatten().fold(0, |sum, &word| sum.wrapping_add(word))
}

/// Allocates buffers on the calling thread. Returns the number of requests that the arena has served so far. Registers no destructor of a
/// Rust thread-local, because such a destructor would keep the shared object mapped until the thread exits.
#[unsafe(no_mangle)]
pub extern "C" fn prove(seed: u64) -> u64 {
    black_box(phase(|| work(seed)));
    stats().arena_allocations
}

/// Like [`prove`], but on threads that the plugin starts.
#[unsafe(no_mangle)]
pub extern "C" fn prove_on_own_threads(seed: u64) -> u64 {
    phase(|| {
        let threads: Vec<_> = (0..3).map(|id| thread::spawn(move || work(seed + id))).collect();
        threads.into_iter().for_each(|thread| drop(black_box(thread.join())));
    });
    stats().arena_allocations
}
