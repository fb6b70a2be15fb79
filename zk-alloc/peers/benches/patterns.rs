//! Measures the cost of one allocation: repeatedly allocates a block of one size, touches its first byte, and frees it. The allocators are
//! called directly through `GlobalAlloc`; none of them is the global allocator.
#![allow(unsafe_code, reason = "calls GlobalAlloc")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

fn pair(criterion: &mut Criterion) {
    static ZK_ALLOC: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;
    let arms: [(&str, &dyn GlobalAlloc); 4] = [
        ("zk-alloc", &ZK_ALLOC),
        ("system", &System),
        ("jemalloc", &tikv_jemallocator::Jemalloc),
        ("mimalloc", &mimalloc::MiMalloc),
    ];
    let mut group = criterion.benchmark_group("pair");
    group.throughput(Throughput::Elements(1));
    let sizes = [4 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20, 64 << 20, 336 << 20, 1 << 30];
    for size in sizes {
        let layout = Layout::from_size_align(size, 8).expect("a size and alignment of ours");
        for (name, allocator) in arms {
            group.bench_function(BenchmarkId::new(name, size), |bencher| {
                bencher.iter(|| {
                    // SAFETY: the layout is not empty.
                    let at = unsafe { allocator.alloc(black_box(layout)) };
                    assert!(!at.is_null());
                    // SAFETY: the memory came from this allocator with this layout, is at least one byte long, and is not used afterwards.
                    unsafe {
                        at.write(1);
                        allocator.dealloc(black_box(at), layout);
                    }
                });
            });
        }
    }
}

/// Runs the benchmark in a phase, which affects only zk-alloc.
fn in_phase(criterion: &mut Criterion) {
    zk_alloc::phase(|| pair(criterion));
}

criterion_group!(benches, in_phase);
criterion_main!(benches);
