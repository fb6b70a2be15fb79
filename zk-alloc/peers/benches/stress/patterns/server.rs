//! Servers and pools: many threads, and blocks that pass between them. After the programs of the same names in
//! mimalloc-bench (<https://github.com/daanx/mimalloc-bench>).

use std::array;
use std::mem;
use std::ops::RangeInclusive;
use std::sync::mpsc::sync_channel;
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope};

use fastrand::Rng;

use super::{KIB, MIB, Plan, replace};
use crate::heap::{Block, Heap, Touch};
use crate::random::{log_within, stream};

const SMALL: RangeInclusive<usize> = 16..=1024;

/// The work of a chain of larson's threads.
#[derive(Clone, Copy)]
struct Service {
    heap: Heap,
    sizes: &'static RangeInclusive<usize>,
    requests: usize,
}

/// Larson and Krishnan, "Memory Allocation for Long-Running Server Applications" (1998): a thread frees blocks of
/// threads that have ended.
pub(super) fn larson(heap: Heap, plan: &Plan) {
    let service = Service { heap, sizes: &(KIB..=32 * KIB), requests: plan.work(20_000) };
    serve_all(service, plan, 500, 12);
}

pub(super) fn larson_small(heap: Heap, plan: &Plan) {
    serve_all(Service { heap, sizes: &SMALL, requests: plan.work(100_000) }, plan, 5000, 12);
}

fn serve_all(service: Service, plan: &Plan, blocks: usize, generations: usize) {
    thread::scope(|scope| {
        for thread in 0..plan.threads {
            let set = (0..blocks).map(|_| None).collect();
            let random = stream(plan.seed, thread);
            scope.spawn(move || serve(scope, service, set, random, generations));
        }
    });
}

fn serve<'scope>(
    scope: &'scope Scope<'scope, '_>,
    service: Service,
    mut set: Vec<Option<Block>>,
    mut random: Rng,
    generations: usize,
) {
    for _ in 0..service.requests {
        let slot = random.usize(..set.len());
        let bytes = log_within(&mut random, service.sizes);
        replace(&mut set[slot], || service.heap.block(bytes, Touch::Ends));
    }
    if generations > 1 {
        scope.spawn(move || serve(scope, service, set, random, generations - 1));
    }
}

/// Lever and Boreham, "malloc() Performance in a Multithreaded Linux Environment" (2000), as in mimalloc-bench: every
/// free happens on another thread.
pub(super) fn xmalloc(heap: Heap, plan: &Plan) {
    pass_on(heap, plan, &(KIB..=32 * KIB), plan.work(400_000));
}

pub(super) fn xmalloc_small(heap: Heap, plan: &Plan) {
    pass_on(heap, plan, &SMALL, plan.work(1_500_000));
}

/// Blocks per message of the channel, so that the channel's own cost hardly counts.
const BATCH: usize = 64;

fn pass_on(heap: Heap, plan: &Plan, sizes: &'static RangeInclusive<usize>, blocks: usize) {
    let pairs = (plan.threads / 2).max(1);
    thread::scope(|scope| {
        for pair in 0..pairs {
            // Bounded, as the queues of servers are. Its slots are allocated once, here.
            let (sender, receiver) = sync_channel::<[Block; BATCH]>(8);
            let mut random = stream(plan.seed, pair);
            scope.spawn(move || {
                for _ in 0..(blocks / pairs).div_ceil(BATCH) {
                    let batch = array::from_fn(|_| heap.block(log_within(&mut random, sizes), Touch::Ends));
                    if sender.send(batch).is_err() {
                        // The consumer ends first only if it panics, which the scope reports.
                        return;
                    }
                }
            });
            scope.spawn(move || receiver.into_iter().for_each(drop));
        }
    });
}

/// If the holder of a lock panicked, the blocks behind the lock are still valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// mimalloc's test/test-stress.c: short lives, long lives, and blocks that threads swap through a common table, in
/// rounds at whose end the threads end.
pub(super) fn mstress(heap: Heap, plan: &Plan) {
    let table: Vec<Mutex<Option<Block>>> = (0..1000).map(|_| Mutex::new(None)).collect();
    for round in 0..5 {
        thread::scope(|scope| {
            for thread in 0..plan.threads {
                let random = stream(plan.seed, round * plan.threads + thread);
                let (table, allocations) = (&table, plan.work(8000));
                scope.spawn(move || exchange(heap, table, random, allocations));
            }
        });
        // Half of the blocks that the round left are freed at its end.
        table.iter().skip(round % 2).step_by(2).for_each(|place| drop(lock(place).take()));
    }
}

fn exchange(heap: Heap, table: &[Mutex<Option<Block>>], mut random: Rng, allocations: usize) {
    let (mut alive, mut retained) = (Vec::with_capacity(allocations), Vec::with_capacity(allocations));
    let (small, large) = (KIB..=32 * KIB, 32 * KIB..=MIB);
    for allocation in 0..allocations {
        let sizes = if random.usize(..100) < 1 { &large } else { &small };
        let bytes = log_within(&mut random, sizes);
        let block = heap.block(bytes, Touch::Pages);
        if allocation % 4 == 0 {
            retained.push(block)
        } else {
            alive.push(Some(block))
        }
        if random.usize(..100) < 66 && !alive.is_empty() {
            let last = alive.len() - 1;
            alive.swap(random.usize(..last + 1), last);
            alive.pop();
        }
        if random.usize(..100) < 25 && !alive.is_empty() {
            let mine = random.usize(..alive.len());
            mem::swap(&mut alive[mine], &mut *lock(&table[random.usize(..table.len())]));
        }
    }
}

/// The benchmark of rpmalloc (<https://github.com/mjansson/rpmalloc-benchmark>). Each thread replaces some of its
/// blocks. In every second loop it hands half of them to its neighbour, which frees them.
pub(super) fn rptest(heap: Heap, plan: &Plan) {
    hand_over(heap, plan, &(KIB..=16 * KIB), plan.work(400));
}

pub(super) fn rptest_small(heap: Heap, plan: &Plan) {
    hand_over(heap, plan, &SMALL, plan.work(2000));
}

const BLOCKS: usize = 1000;

fn hand_over(heap: Heap, plan: &Plan, sizes: &'static RangeInclusive<usize>, loops: usize) {
    let inboxes: Vec<_> = (0..plan.threads).map(|_| Mutex::new(Vec::with_capacity(BLOCKS))).collect();
    let handed = Barrier::new(plan.threads);
    thread::scope(|scope| {
        for thread in 0..plan.threads {
            let (mut random, handed) = (stream(plan.seed, thread), &handed);
            let (inbox, neighbour) = (&inboxes[thread], &inboxes[(thread + 1) % inboxes.len()]);
            scope.spawn(move || {
                let mut alive: Vec<Option<Block>> = (0..BLOCKS).map(|_| None).collect();
                let mut foreign = Vec::with_capacity(BLOCKS);
                for turn in 0..loops {
                    for _ in 0..BLOCKS / 2 {
                        let slot = random.usize(..BLOCKS);
                        let bytes = random.usize(sizes.clone());
                        replace(&mut alive[slot], || heap.block(bytes, Touch::Ends));
                    }
                    if turn % 2 == 1 {
                        let half = alive.iter_mut().skip(random.usize(..2)).step_by(2).filter_map(Option::take);
                        lock(neighbour).extend(half);
                        // Without it, the inbox of a thread that does not run would fill up, and the scheduler would
                        // determine the peak.
                        handed.wait();
                        mem::swap(&mut foreign, &mut *lock(inbox));
                        foreign.clear();
                    }
                }
            });
        }
    });
}

/// Each thread frees the block that it allocated four allocations ago. This measures the fast path, where a free does
/// not simply undo the last allocation.
pub(super) fn ago(heap: Heap, plan: &Plan, bytes: usize) {
    thread::scope(|scope| {
        for _ in 0..plan.threads {
            scope.spawn(move || {
                let mut kept: [Option<Block>; 4] = [const { None }; 4];
                for operation in 0..plan.work(2_000_000) {
                    replace(&mut kept[operation % 4], || heap.block(bytes, Touch::Ends));
                }
            });
        }
    });
}
