//! The workloads for which zk-nalloc publishes figures: buffers of provers, repeatedly filled and freed.

use std::thread;

use super::{KIB, MIB, Plan};
use crate::heap::{Heap, Touch};
use crate::random::{log_within, stream};

/// The number of bytes that each of these fills in total.
const FILLED: usize = 1 << 30;

/// One vector of field elements for each transform.
pub(super) fn fft(heap: Heap, plan: &Plan, bytes: usize) {
    let bytes = plan.work(bytes);
    for _ in 0..plan.work(FILLED) / bytes {
        drop(heap.block(bytes, Touch::Whole));
    }
}

/// Columns that are requested as zeroes and hardly used. An allocator that clears all of them does too much.
pub(super) fn zeroed(heap: Heap, plan: &Plan) {
    let sizes = 256 * KIB..=16 * MIB;
    let mut random = stream(plan.seed, 0);
    let mut burst = Vec::with_capacity(24);
    for _ in 0..plan.work(20) {
        burst.extend((0..24).map(|_| heap.zeroed(log_within(&mut random, &sizes), Touch::First)));
        burst.clear();
    }
}

/// The buckets of a multi-scalar multiplication, one array for each window.
pub(super) fn msm(heap: Heap, plan: &Plan) {
    let (bytes, windows) = (plan.work(6 * MIB), 16);
    let mut buckets = Vec::with_capacity(windows);
    for _ in 0..plan.work(FILLED) / (windows * bytes) {
        buckets.extend((0..windows).map(|_| heap.block(bytes, Touch::Whole)));
        buckets.clear();
    }
}

/// A buffer for each thread, all at once.
pub(super) fn threads(heap: Heap, plan: &Plan, threads: usize) {
    let bytes = plan.work(64 * MIB);
    let times = (plan.work(FILLED) / (threads * bytes)).max(2);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(move || (0..times).for_each(|_| drop(heap.block(bytes, Touch::Whole))));
        }
    });
}
