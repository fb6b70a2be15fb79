//! Libraries that keep memory across phases in their own data structures. Each test runs the real library and checks its results.
//!
//! - rayon keeps the blocks of its injector, the buffers of its deques, and whole pools.
//! - crossbeam-epoch frees late: any thread may free, in a later phase, nodes that an earlier phase removed.
//! - tracing-subscriber stores spans in pages. It allocates a page on first use, and never frees it.
//! - tokio allocates messages at any time, whether or not the prover in the same process has a phase open.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use crossbeam_skiplist::SkipMap;
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use tracing::{Id, Subscriber, info_span, span::Attributes};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};

use crate::support::{
    Numbers, THRESHOLDS, alone, assert_patterned, is_patterned, patterned, scribble, small_nodes_too,
};
use zk_alloc::{begin_phase, end_phase, phase, stats};

const THREADS: usize = 4;

fn pool_of(threads: usize) -> ThreadPool {
    ThreadPoolBuilder::new().num_threads(threads).stack_size(32 << 20).build().unwrap()
}

/// A thread outside of the pool submits its jobs through the injector, a linked list of blocks of 63 jobs each. If a block is half full
/// when a phase ends, the next phase writes to it and reads from it.
#[test]
fn each_job_from_outside_the_pool_runs_once_in_any_phase() {
    alone!(each THRESHOLDS);
    const PHASES: u64 = 20;
    const SPAWNS: u64 = 601;
    const JOINS: u64 = 101;
    let pool = pool_of(THREADS);
    let before = stats().slab_allocations;
    let (done, results) = mpsc::channel();
    let mut joined = 0u64;
    for round in 0..PHASES {
        // Many of a phase's jobs are still queued when the phase ends. They run after it, or in the next phase.
        phase(|| {
            for job in round * SPAWNS..(round + 1) * SPAWNS {
                let input = patterned(600, job);
                let done = done.clone();
                pool.spawn(move || {
                    let intact = is_patterned(&input, job);
                    done.send((job, intact, patterned(600, !job))).unwrap();
                });
            }
            for n in 0..JOINS {
                let (left, right) = pool.join(|| patterned(600, n), || patterned(600, n + 1)[599]);
                assert_patterned(&left, n);
                joined += u64::from(patterned(600, n + 1)[599] == right);
            }
        });
        scribble();
    }
    drop(done);
    let mut ran: Vec<u64> = Vec::new();
    for (job, intact, output) in results {
        assert!(intact, "job {job} found its input overwritten");
        assert_patterned(&output, !job);
        ran.push(job);
    }
    ran.sort_unstable();
    assert!(ran.into_iter().eq(0..PHASES * SPAWNS) && joined == PHASES * JOINS);
    let nodes = if small_nodes_too() { 2 * PHASES * SPAWNS } else { PHASES * SPAWNS };
    assert!(stats().slab_allocations - before >= nodes, "{}", stats());
}

/// Jobs that `join` has not run yet are in a deque, whose buffer doubles as it grows, up to 64 KiB for 4,000 jobs. The phase changes at the
/// bottom of the recursion. Each job waits for this, so all of them are still in the deque or running when the phase changes.
#[test]
fn a_deque_that_grew_in_one_phase_keeps_its_jobs_in_the_next() {
    const DEPTH: u64 = 4_000;

    fn descend(depth: u64, at_bottom: &AtomicBool, sum: &AtomicU64) {
        if depth == 0 {
            end_phase();
            phase(scribble);
            begin_phase();
            return at_bottom.store(true, Ordering::Release);
        }
        rayon::join(
            || descend(depth - 1, at_bottom, sum),
            || {
                while !at_bottom.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                let work = patterned(if depth.is_multiple_of(16) { 600 } else { 4 }, depth);
                assert_patterned(&work, depth);
                sum.fetch_add(depth, Ordering::Relaxed);
            },
        );
    }

    alone!(each THRESHOLDS);
    for threads in [1, THREADS] {
        let pool = pool_of(threads);
        for round in 0..4 {
            let (at_bottom, sum) = (AtomicBool::new(false), AtomicU64::new(0));
            let before = stats().run_allocations;
            begin_phase();
            pool.install(|| descend(DEPTH, &at_bottom, &sum));
            end_phase();
            assert_eq!(sum.into_inner(), DEPTH * (DEPTH + 1) / 2);
            assert!(stats().run_allocations > before, "the deque's largest buffer is the arena's, round {round}");
        }
    }
}

/// From its construction until it is dropped, a pool keeps its queues, thread names, sleep states and handles.
#[test]
fn pools_built_in_one_phase_work_in_the_nine_after_it() {
    alone!(each THRESHOLDS);
    let before = stats().arena_allocations;
    let pools = phase(|| [64, 128].map(pool_of));
    assert!(stats().arena_allocations - before >= if small_nodes_too() { 192 } else { 0 }, "{}", stats());
    for round in 0..9 {
        phase(|| {
            scribble();
            for pool in &pools {
                let wide = AtomicUsize::new(0);
                let made: Vec<_> = pool.install(|| {
                    rayon::broadcast(|_| wide.fetch_add(1, Ordering::Relaxed));
                    (0..2_000u64).into_par_iter().map(|seed| patterned(550, seed + round)).collect()
                });
                assert_eq!(wide.into_inner(), pool.current_num_threads());
                assert_eq!(made.len(), 2_000);
                pool.install(|| {
                    let numbered = made.par_iter().zip(0..2_000usize);
                    numbered.for_each(|(values, seed)| assert_patterned(values, seed as u64 + round));
                });
            }
        });
    }
    assert!(stats().slab_allocations >= 2 * 9 * 2_000, "{}", stats());
    // One pool is dropped outside of phases, and the other in a phase.
    let [small, large] = pools;
    drop(small);
    phase(|| drop(large));
}

const KEYS: u64 = 4_000;
/// The number of phases. Each of them updates the map.
const ROUNDS: u64 = 20;

/// A value of the map. The strong count of `_alive`, which all values share, shows how many values have not been dropped yet.
struct Value {
    seed: u64,
    words: Vec<u64>,
    _alive: Arc<()>,
}

impl Value {
    fn new(seed: u64, alive: &Arc<()>) -> Self {
        // Most values are small, and some are large.
        let len = if (seed / ROUNDS).is_multiple_of(4) { 1_024 } else { 8 };
        Self { seed, words: patterned(len, seed), _alive: alive.clone() }
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        assert_patterned(&self.words, self.seed);
    }
}

/// crossbeam-epoch puts removed nodes into bags, which wait with their epoch in a queue that all threads share. Bags, nodes and values from
/// many phases are alive at the same time, and threads that did not allocate them free them.
#[test]
fn a_map_updated_by_all_workers_across_phases_has_the_right_values() {
    alone!(each THRESHOLDS);
    let pool = pool_of(THREADS);
    let alive = Arc::new(());
    let count_alive = || Arc::strong_count(&alive) - 1;
    let map = SkipMap::new();
    let before = stats().slab_allocations;
    for round in 0..ROUNDS {
        let update = || {
            (0..KEYS).into_par_iter().for_each(|key| match (key + round) % 5 {
                0 | 1 => drop(map.insert(key, Value::new(key * ROUNDS + round, &alive))),
                2 => drop(map.remove(&key)),
                _ => {
                    if let Some(entry) = map.get(&key) {
                        assert_eq!(entry.value().seed / ROUNDS, key);
                        assert_patterned(&entry.value().words, entry.value().seed);
                    }
                }
            });
        };
        phase(|| pool.install(update));
        scribble();
    }
    for key in 0..KEYS {
        // The last round that touched the key determines its value.
        let last = (0..ROUNDS).rev().find(|round| (key + round) % 5 < 3).unwrap();
        let seed = map.get(&key).map(|entry| entry.value().seed);
        assert_eq!(seed, ((key + last) % 5 < 2).then_some(key * ROUNDS + last), "key {key}");
    }
    let puts = KEYS * ROUNDS * 2 / 5;
    let served = stats().slab_allocations - before;
    assert!(served >= if small_nodes_too() { 2 * puts } else { puts / 5 }, "{}", stats());
    // Garbage collections inside and outside of phases eventually free all values.
    assert!(map.iter().all(|entry| entry.remove()));
    for round in 0..1_000u32 {
        if count_alive() == 0 {
            return;
        }
        let collect = || pool.broadcast(|_| crossbeam_epoch::pin().flush());
        drop(if round.is_multiple_of(2) { phase(collect) } else { collect() });
        crossbeam_epoch::pin().flush();
    }
    // Threads that have exited or are asleep may each keep one last bag of values. All other values must have been freed.
    assert!(count_alive() <= 6 * 64, "{} values were never freed", count_alive());
}

const SPANS: usize = 600;

/// A layer that stores two vectors with each new span and checks them when the span closes.
struct NoteKeeper;

static CLOSED: AtomicUsize = AtomicUsize::new(0);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for NoteKeeper {
    fn on_new_span(&self, _: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let seed = id.into_u64();
        context.span(id).unwrap().extensions_mut().insert([patterned(20, seed), patterned(600, !seed)]);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        CLOSED.fetch_add(1, Ordering::Relaxed);
        let span = context.span(&id).unwrap();
        assert_eq!(span.name(), "work");
        assert!(span.parent().is_none_or(|parent| parent.name() == "work"));
        let [few, many] = span.extensions_mut().remove::<[Vec<u64>; 2]>().unwrap();
        assert_patterned(&few, id.into_u64());
        assert_patterned(&many, !id.into_u64());
    }
}

/// The registry stores a span in a slot of its thread's shard. A shard consists of pages of 32, 64, 128, ... slots. The first phase
/// allocates the pages for 600 live spans, and later phases reuse them.
#[test]
fn spans_opened_in_one_phase_close_in_another_with_their_data() {
    alone!(each THRESHOLDS);
    tracing::subscriber::set_global_default(Registry::default().with(NoteKeeper)).unwrap();
    let before = stats().slab_allocations;
    for _ in 0..3 {
        let first = phase(open);
        scribble();
        // While the first spans are open, one thread opens more spans in its own shard, and another closes the first ones.
        let second = phase(|| thread::spawn(open).join().unwrap());
        phase(scribble);
        phase(|| thread::spawn(move || close(first)).join().unwrap());
        phase(|| close(second));
    }
    assert_eq!(CLOSED.load(Ordering::Relaxed), 3 * 2 * SPANS);
    let each = if small_nodes_too() { 3 } else { 1 };
    assert!(stats().slab_allocations - before >= (3 * 2 * SPANS * each) as u64, "{}", stats());
}

/// Opens a chain of spans, each the parent of the next.
fn open() -> Vec<tracing::Span> {
    let mut spans: Vec<tracing::Span> = Vec::new();
    for number in 0..SPANS {
        let span = info_span!(parent: spans.last().and_then(tracing::Span::id), "work", number);
        span.in_scope(|| assert_eq!(tracing::Span::current().id(), span.id()));
        spans.push(span);
    }
    spans
}

/// Drops spans in random order. A span stays open until its children have closed.
fn close(mut spans: Vec<tracing::Span>) {
    let mut numbers = Numbers::new(spans.len() as u64);
    while !spans.is_empty() {
        spans.swap_remove(numbers.below(spans.len()));
    }
}

/// A message of 1 MiB, after the seed of its pattern.
type Message = (u64, Vec<u64>);
const MESSAGE_WORDS: usize = (1 << 20) / 8;

/// The runtime's threads allocate messages, tasks, wakers and channel blocks at times unrelated to the prover's phases. So an allocation
/// may be in the arena or not, may live through many phases, and may be freed by another thread.
#[test]
fn messages_arrive_intact_while_phases_open_and_close_around_them() {
    alone!(each THRESHOLDS);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(8).enable_time().build().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let before = stats();
    let senders = (0..4u64).map(|route| runtime.spawn(carry(route, stop.clone()))).collect::<Vec<_>>();
    let mut kept = Vec::new();
    for round in 0..1_000u64 {
        phase(|| {
            let buffer = patterned(32 << 10, round);
            // Gives the runtime time to run within the phase, not only between phases.
            thread::sleep(Duration::from_micros(200));
            assert_patterned(&buffer, round);
            if round.is_multiple_of(100) {
                kept.push((round, buffer));
            }
        });
    }
    stop.store(true, Ordering::Relaxed);
    let arrived: u64 = senders.into_iter().map(|route| runtime.block_on(route).unwrap()).sum();
    drop(runtime);
    kept.iter().for_each(|(round, buffer)| assert_patterned(buffer, *round));
    let after = stats();
    // The runs are the prover's own buffers and some of the messages.
    let runs = after.run_allocations - before.run_allocations;
    assert!(arrived >= 20, "{arrived} messages");
    assert!(runs >= 1_000 + 5, "{arrived} messages; {after}");
    assert!(after.slab_allocations > before.slab_allocations || !small_nodes_too(), "{after}");
}

/// Sends messages through two tasks until `stop` is set. Returns the number of messages that arrived.
async fn carry(route: u64, stop: Arc<AtomicBool>) -> u64 {
    let (send, mut relay) = tokio::sync::mpsc::channel::<Message>(2);
    let (forward, mut receive) = tokio::sync::mpsc::unbounded_channel::<Message>();
    let source = tokio::spawn(async move {
        let mut number = route << 32;
        while !stop.load(Ordering::Relaxed) {
            let whole = patterned(MESSAGE_WORDS, number);
            let mut body = whole[..MESSAGE_WORDS / 2].to_vec();
            // The message grows to its full length later, possibly in another phase.
            tokio::time::sleep(Duration::from_micros(300)).await;
            body.extend_from_slice(&whole[MESSAGE_WORDS / 2..]);
            send.send((number, body)).await.unwrap();
            number += 1;
        }
    });
    let relayed = tokio::spawn(async move {
        while let Some((number, body)) = relay.recv().await {
            forward.send((number, body.clone())).unwrap();
            assert_patterned(&body, number);
        }
    });
    let mut arrived = 0u64;
    while let Some((number, body)) = receive.recv().await {
        assert_eq!((number, body.len()), (route << 32 | arrived, MESSAGE_WORDS), "route {route}");
        assert_patterned(&body, number);
        arrived += 1;
    }
    source.await.unwrap();
    relayed.await.unwrap();
    arrived
}
