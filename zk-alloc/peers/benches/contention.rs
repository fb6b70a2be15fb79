//! Many threads allocate, touch and free at once: two threads, and sixteen. The total throughput must not collapse with
//! more threads than cores, so no lock may be held by a thread that does not run.
#![allow(unsafe_code, reason = "calls GlobalAlloc")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// The blocks that each thread holds, so that a free does not simply undo the last allocation.
const KEPT: usize = 4;

fn work(allocator: &dyn GlobalAlloc, layout: Layout, operations: u64) {
    let mut kept = [std::ptr::null_mut::<u8>(); KEPT];
    for operation in 0..operations {
        let place = &mut kept[operation as usize % KEPT];
        if !place.is_null() {
            // SAFETY: the block came from this allocator with this layout and is not used again.
            unsafe { allocator.dealloc(*place, layout) };
        }
        // SAFETY: the layout is not empty.
        *place = unsafe { allocator.alloc(black_box(layout)) };
        assert!(!place.is_null());
        // SAFETY: memory that was just allocated, at least a byte long.
        unsafe { place.write(1) };
    }
    for at in kept.into_iter().filter(|at| !at.is_null()) {
        // SAFETY: as above.
        unsafe { allocator.dealloc(at, layout) };
    }
}

/// The time that `threads` threads take for `operations` in total.
fn timed(allocator: &(dyn GlobalAlloc + Sync), layout: Layout, threads: usize, operations: u64) -> Duration {
    let start = Barrier::new(threads + 1);
    let share = operations.div_ceil(threads as u64);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    work(allocator, layout, share);
                })
            })
            .collect();
        start.wait();
        let begun = Instant::now();
        workers.into_iter().for_each(|worker| worker.join().expect("a worker that ends"));
        begun.elapsed()
    })
}

fn contention(criterion: &mut Criterion) {
    static ZK_ALLOC: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;
    static JEMALLOC: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;
    static MIMALLOC: mimalloc::MiMalloc = mimalloc::MiMalloc;
    let arms: [(&str, &(dyn GlobalAlloc + Sync)); 4] =
        [("zk-alloc", &ZK_ALLOC), ("system", &System), ("jemalloc", &JEMALLOC), ("mimalloc", &MIMALLOC)];
    for (path, size) in [("slab", 16 << 10), ("page run", 256 << 10)] {
        let mut group = criterion.benchmark_group(format!("contention/{path}"));
        group.throughput(Throughput::Elements(1)).sample_size(20);
        let layout = Layout::from_size_align(size, 8).expect("a size and alignment of ours");
        for (name, allocator) in arms {
            for threads in [2, 16] {
                group.bench_function(BenchmarkId::new(name, threads), |bencher| {
                    bencher.iter_custom(|operations| {
                        // Enough operations to make the start of the threads negligible.
                        let floor = 200_000;
                        let done = operations.max(floor);
                        let time = timed(allocator, layout, threads, done);
                        time.mul_f64(operations as f64 / done as f64)
                    });
                });
            }
        }
    }
}

/// Everything runs in a phase, which affects zk-alloc only.
fn in_phase(criterion: &mut Criterion) {
    zk_alloc::phase(|| contention(criterion));
}

criterion_group!(benches, in_phase);
criterion_main!(benches);
