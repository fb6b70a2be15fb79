//! The cost of one allocation. Each allocator is called as a `GlobalAlloc` value, and none is installed.
//!
//! - `pair`: allocate, touch the first byte, free, with one size repeatedly. This measures the fast path.
//! - `batch`: allocate 64 blocks, then free them in the same order, so that a free does not undo the last allocation.
#![allow(unsafe_code, reason = "calls GlobalAlloc")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const BATCH: usize = 64;

/// One allocator under its name in the report.
struct Arm {
    name: &'static str,
    allocator: &'static (dyn GlobalAlloc + Sync),
}

fn arms() -> [Arm; 4] {
    static ZK_ALLOC: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;
    static JEMALLOC: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;
    static MIMALLOC: mimalloc::MiMalloc = mimalloc::MiMalloc;
    [
        Arm { name: "zk-alloc", allocator: &ZK_ALLOC },
        Arm { name: "system", allocator: &System },
        Arm { name: "jemalloc", allocator: &JEMALLOC },
        Arm { name: "mimalloc", allocator: &MIMALLOC },
    ]
}

fn allocate(allocator: &dyn GlobalAlloc, layout: Layout) -> *mut u8 {
    // SAFETY: no layout here is empty.
    let at = unsafe { allocator.alloc(black_box(layout)) };
    assert!(!at.is_null());
    // SAFETY: memory that was just allocated, at least a byte long.
    unsafe { at.write(1) };
    at
}

fn free(allocator: &dyn GlobalAlloc, at: *mut u8, layout: Layout) {
    // SAFETY: `at` came from this allocator with this layout and is not used again.
    unsafe { allocator.dealloc(black_box(at), layout) };
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).expect("a size and alignment of ours")
}

fn pair(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pair");
    group.throughput(Throughput::Elements(1));
    let sizes = [4 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20, 64 << 20, 336 << 20, 1 << 30];
    for size in sizes {
        for arm in arms() {
            let layout = layout(size);
            group.bench_function(BenchmarkId::new(arm.name, size), |bencher| {
                bencher.iter(|| free(arm.allocator, allocate(arm.allocator, layout), layout));
            });
        }
    }
}

fn batch(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("batch");
    group.throughput(Throughput::Elements(BATCH as u64));
    for size in [4 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20] {
        for arm in arms() {
            let layout = layout(size);
            let mut live = [std::ptr::null_mut(); BATCH];
            group.bench_function(BenchmarkId::new(arm.name, size), |bencher| {
                bencher.iter(|| {
                    live.iter_mut().for_each(|at| *at = allocate(arm.allocator, layout));
                    live.iter().for_each(|&at| free(arm.allocator, at, layout));
                });
            });
        }
    }
}

/// Everything runs in a phase, which affects zk-alloc only.
fn in_phase(criterion: &mut Criterion) {
    zk_alloc::phase(|| {
        pair(criterion);
        batch(criterion);
    });
}

criterion_group!(benches, in_phase);
criterion_main!(benches);
