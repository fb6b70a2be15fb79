//! Threads that come and go, and threads that come and wait.

use std::sync::Barrier;
use std::sync::mpsc::sync_channel;
use std::thread;

use super::{KIB, Plan};
use crate::heap::{Heap, Touch};
use crate::random::{log_within, stream};

/// Small, so that the stacks hardly count.
const STACK_BYTES: usize = 64 * KIB;

/// Threads allocate 16 blocks, free half of them, and leave the other half to the main thread. Memory that an allocator
/// caches for a thread must return when the thread ends, and not before its blocks are free.
pub(super) fn churn(heap: Heap, plan: &Plan) {
    let sizes = KIB..=32 * KIB;
    let waves = plan.work(4000) / plan.threads;
    for wave in 0..waves.max(1) {
        let (sender, receiver) = sync_channel(8 * plan.threads);
        thread::scope(|scope| {
            for thread in 0..plan.threads {
                let mut random = stream(plan.seed, wave * plan.threads + thread);
                let (sizes, sender) = (&sizes, sender.clone());
                let short = move || {
                    for _ in 0..8 {
                        let own = heap.block(log_within(&mut random, sizes), Touch::Whole);
                        // There is room for all of them; the main thread reads when the wave has ended.
                        let _ = sender.send(heap.block(log_within(&mut random, sizes), Touch::Whole));
                        drop(own);
                    }
                };
                thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, short).expect("a thread more");
            }
        });
        drop(sender);
        receiver.into_iter().for_each(drop);
    }
}

/// The cost of a thread that allocated once. Pools of servers and runtimes have hundreds of them.
pub(super) fn idle(heap: Heap, plan: &Plan) {
    let threads = plan.work(1000);
    let all_have = Barrier::new(threads);
    thread::scope(|scope| {
        for _ in 0..threads {
            let once = || {
                let block = heap.block(KIB, Touch::Whole);
                all_have.wait();
                drop(block);
            };
            thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, once).expect("1,000 threads");
        }
    });
}
