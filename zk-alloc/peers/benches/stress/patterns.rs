//! The patterns of the stress suite: functions that make the same kinds of requests as real programs. They allocate through a [`Heap`],
//! whichever allocator is under test.
//!
//! One run of a pattern takes 50 to 500 ms. Runs with the same seed make the same requests. The patterns also write to their memory: those
//! from mimalloc-bench write little, as the originals do, and most of the others write every byte.

use std::ops::RangeInclusive;
use std::sync::mpsc::sync_channel;
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope};
use std::{array, mem};

use fastrand::Rng;

use crate::arms::{Block, Heap, Touch};
use crate::support::blocks::{KIB, MIB};

/// The parameters of a run.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    /// The number of threads, for patterns that do not fix their own.
    pub(crate) threads: usize,
    pub(crate) seed: u64,
    /// Whether to do only a hundredth of the work, to check that the pattern runs.
    pub(crate) tiny: bool,
}

impl Plan {
    /// Returns `amount`, or for a tiny run a hundredth of it, at least 2.
    fn work(&self, amount: usize) -> usize {
        if self.tiny { (amount / 100).max(2) } else { amount }
    }
}

pub(crate) struct Pattern {
    pub(crate) name: &'static str,
    /// Whether the report lists this pattern among those with small blocks (16 bytes to 1 KiB).
    pub(crate) is_small: bool,
    /// Its description in the output of `--list`.
    pub(crate) what: &'static str,
    pub(crate) run: fn(Heap, &Plan),
}

const SMALL: RangeInclusive<usize> = 16..=1024;
/// A block size that is not a multiple of a cache line, so the end of one block and the beginning of the next may share a line.
const SHARED: usize = 1040;

const fn large(name: &'static str, run: fn(Heap, &Plan), what: &'static str) -> Pattern {
    Pattern { name, is_small: false, what, run }
}

const fn small(name: &'static str, run: fn(Heap, &Plan), what: &'static str) -> Pattern {
    Pattern { name, is_small: true, what, run }
}

pub(crate) static PATTERNS: &[Pattern] = &[
    large(
        "larson",
        |heap, plan| larson(heap, plan, &(KIB..=32 * KIB), 20_000, 500),
        "threads replace random blocks of 1 to 32 KiB and hand them to a successor",
    ),
    large(
        "xmalloc",
        |heap, plan| xmalloc(heap, plan, &(KIB..=32 * KIB), 400_000),
        "threads allocate 1 to 32 KiB, other threads free",
    ),
    large("mstress", mstress, "threads exchange blocks of 1 KiB to 1 MiB, and keep half of them for long"),
    large(
        "rptest",
        |heap, plan| rptest(heap, plan, &(KIB..=16 * KIB), 400),
        "random sizes of 1 to 16 KiB, half of them freed by another thread",
    ),
    large(
        "cache-scratch",
        |heap, plan| share_lines(heap, plan, SHARED, true),
        "threads start from 1,040 bytes that lay side by side, and write their own",
    ),
    large(
        "cache-thrash",
        |heap, plan| share_lines(heap, plan, SHARED, false),
        "threads write 1,040 bytes of their own",
    ),
    large("ago-1k", |heap, plan| ago(heap, plan, KIB), "1 KiB, freed four allocations later"),
    large("ago-4k", |heap, plan| ago(heap, plan, 4 * KIB), "4 KiB, freed four allocations later"),
    large("ago-16k", |heap, plan| ago(heap, plan, 16 * KIB), "16 KiB, freed four allocations later"),
    large("lifetimes", random_lifetimes, "1 to 32 KiB with random lifetimes, about 64 MiB alive"),
    large("survivors", survivors, "64 MiB of 1 to 4 KiB, a tenth of which stays, six times"),
    large(
        "burst-1k",
        |heap, plan| bursts(heap, plan, 400, KIB..=2 * KIB, 1500),
        "bursts of 400 blocks of 1 to 2 KiB, one of which stays",
    ),
    large(
        "burst-24k",
        |heap, plan| bursts(heap, plan, 16, 24 * KIB..=32 * KIB, 2500),
        "bursts of 16 blocks of 24 to 32 KiB, one of which stays",
    ),
    large("survivors-16k-4k", survivors_16k_4k, "16 KiB, an eighth of which stays, then 4 KiB on a new thread"),
    large("survivors-2k-3000", survivors_2k_3000, "2 KiB, a sixteenth of which stays, then 3,000 bytes"),
    large("phases-64", phases, "16 phases of 32 MiB of one size each, a 64th of which stays"),
    large("runs-random", runs_random, "12,000 runs of 33 to 200 KiB, a random one replaced each time"),
    large("thread-churn", thread_churn, "many short threads, half of whose blocks outlive them"),
    large("thread-idle", idle_threads, "1,000 threads that use 1 KiB once and wait"),
    large("grow-push", push, "a vector grown by pushing, to 256 MiB"),
    large("grow-exact", exact, "a vector grown by exact steps of 4 MiB, to 180 MiB"),
    large("aligned", aligned, "500 blocks of 2 KiB at multiples of 32 KiB"),
    large("free-runs", free_runs, "200 KiB above 20,000 free runs of 33 KiB"),
    large("fft-8m", |heap, plan| fft(heap, plan, 8 * MIB), "a buffer of 8 MiB filled again and again"),
    large("fft-32m", |heap, plan| fft(heap, plan, 32 * MIB), "a buffer of 32 MiB filled again and again"),
    large("fft-128m", |heap, plan| fft(heap, plan, 128 * MIB), "a buffer of 128 MiB filled again and again"),
    large("zeroed", zeroed, "bursts of 24 zeroed buffers of 256 KiB to 16 MiB, a word of each touched"),
    large("msm", msm, "16 bucket arrays of 6 MiB filled again and again"),
    large("threads-1", |heap, plan| fill_on_threads(heap, plan, 1), "64 MiB filled on one thread"),
    large("threads-4", |heap, plan| fill_on_threads(heap, plan, 4), "64 MiB filled on each of 4 threads"),
    large("threads-16", |heap, plan| fill_on_threads(heap, plan, 16), "64 MiB filled on each of 16 threads"),
    small("larson-small", |heap, plan| larson(heap, plan, &SMALL, 100_000, 5000), "larson with 16 to 1,024 bytes"),
    small("xmalloc-small", |heap, plan| xmalloc(heap, plan, &SMALL, 1_500_000), "xmalloc with 16 to 1,024 bytes"),
    small("rptest-small", |heap, plan| rptest(heap, plan, &SMALL, 2000), "rptest with 16 to 1,024 bytes"),
    small("cache-scratch-small", |heap, plan| share_lines(heap, plan, 16, true), "cache-scratch with 16 bytes"),
    small("cache-thrash-small", |heap, plan| share_lines(heap, plan, 16, false), "cache-thrash with 16 bytes"),
    small("ago-64", |heap, plan| ago(heap, plan, 64), "64 bytes, freed four allocations later"),
];

/// Frees the block in `place`, then allocates its replacement, so the two blocks are never alive at the same time.
fn replace(place: &mut Option<Block>, new: impl FnOnce() -> Block) {
    *place = None;
    *place = Some(new());
}

/// Returns the random number generator of one thread.
pub(crate) fn stream(seed: u64, thread: usize) -> Rng {
    Rng::with_seed(seed ^ (thread as u64 + 1).wrapping_mul(0xD6E8_FEB8_6659_FD93))
}

/// Runs `work` on `threads` threads at once, and passes each its index.
fn on_threads(threads: usize, work: impl Fn(usize) + Sync) {
    let work = &work;
    thread::scope(|scope| (0..threads).for_each(|thread| drop(scope.spawn(move || work(thread)))));
}

/// Allocates `blocks` blocks and frees them all, `times` times.
fn refill(times: usize, blocks: usize, mut block: impl FnMut() -> Block) {
    let mut alive = Vec::with_capacity(blocks);
    for _ in 0..times {
        alive.extend((0..blocks).map(|_| block()));
        alive.clear();
    }
}

/// Returns a vector of `places` empty places.
fn empty(places: usize) -> Vec<Option<Block>> {
    (0..places).map(|_| None).collect()
}

/// Returns a random number in the range. The intervals between successive powers of two are equally likely, because programs request small
/// sizes more often than large ones.
fn log_within(random: &mut Rng, range: &RangeInclusive<usize>) -> usize {
    let doublings = (range.end() / range.start()).ilog2() as usize;
    let low = range.start() << random.usize(..doublings.max(1));
    random.usize(low..=(2 * low).min(*range.end()))
}

// Servers and pools: many threads, and blocks that pass between them. These patterns are modelled on the programs of the same names in
// mimalloc-bench (<https://github.com/daanx/mimalloc-bench>).

/// Larson and Krishnan, "Memory Allocation for Long-Running Server Applications" (1998): each thread takes over the blocks of a thread that
/// has exited, and frees them.
fn larson(heap: Heap, plan: &Plan, sizes: &'static RangeInclusive<usize>, requests: usize, blocks: usize) {
    const GENERATIONS: usize = 12;
    let requests = plan.work(requests);
    thread::scope(|scope| {
        for thread in 0..plan.threads {
            let random = stream(plan.seed, thread);
            scope.spawn(move || serve(scope, heap, sizes, requests, empty(blocks), random, GENERATIONS));
        }
    });
}

fn serve<'scope>(
    scope: &'scope Scope<'scope, '_>,
    heap: Heap,
    sizes: &'static RangeInclusive<usize>,
    requests: usize,
    mut set: Vec<Option<Block>>,
    mut random: Rng,
    generations: usize,
) {
    for _ in 0..requests {
        let slot = random.usize(..set.len());
        replace(&mut set[slot], || heap.block(log_within(&mut random, sizes), Touch::Ends));
    }
    if generations > 1 {
        scope.spawn(move || serve(scope, heap, sizes, requests, set, random, generations - 1));
    }
}

/// The number of blocks in one message of the channel. With this many, the cost of the channel itself is negligible.
const BATCH: usize = 64;

/// Lever and Boreham, "malloc() Performance in a Multithreaded Linux Environment" (2000), as in mimalloc-bench: every
/// free happens on another thread.
fn xmalloc(heap: Heap, plan: &Plan, sizes: &'static RangeInclusive<usize>, blocks: usize) {
    let blocks = plan.work(blocks);
    let pairs = (plan.threads / 2).max(1);
    thread::scope(|scope| {
        for pair in 0..pairs {
            // The channel is bounded, like the queues of servers. Its slots are allocated once, here.
            let (sender, receiver) = sync_channel::<[Block; BATCH]>(8);
            let mut random = stream(plan.seed, pair);
            scope.spawn(move || {
                for _ in 0..(blocks / pairs).div_ceil(BATCH) {
                    let batch = array::from_fn(|_| heap.block(log_within(&mut random, sizes), Touch::Ends));
                    if sender.send(batch).is_err() {
                        // The consumer drops the receiver early only if it panics, and the scope reports that panic.
                        return;
                    }
                }
            });
            scope.spawn(move || receiver.into_iter().for_each(drop));
        }
    });
}

/// Locks a mutex. If an earlier holder panicked, the blocks that the mutex protects are still valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// mimalloc's test/test-stress.c: short-lived blocks, long-lived blocks, and blocks that threads swap through a shared table. The threads
/// exit after each round.
fn mstress(heap: Heap, plan: &Plan) {
    let table: Vec<Mutex<Option<Block>>> = (0..1000).map(|_| Mutex::new(None)).collect();
    for round in 0..5 {
        on_threads(plan.threads, |thread| {
            exchange(heap, &table, stream(plan.seed, round * plan.threads + thread), plan.work(8000));
        });
        // After each round, every second place of the table is emptied.
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
            drop(alive.swap_remove(random.usize(..alive.len())));
        }
        if random.usize(..100) < 25 && !alive.is_empty() {
            let mine = random.usize(..alive.len());
            mem::swap(&mut alive[mine], &mut *lock(&table[random.usize(..table.len())]));
        }
    }
}

/// The benchmark of rpmalloc (<https://github.com/mjansson/rpmalloc-benchmark>). Each thread replaces some of its blocks. In every second
/// loop, it passes half of them to its neighbour, which frees them.
fn rptest(heap: Heap, plan: &Plan, sizes: &'static RangeInclusive<usize>, loops: usize) {
    const BLOCKS: usize = 1000;
    let loops = plan.work(loops);
    let inboxes: Vec<_> = (0..plan.threads).map(|_| Mutex::new(Vec::with_capacity(BLOCKS))).collect();
    let handed = Barrier::new(plan.threads);
    on_threads(plan.threads, |thread| {
        let mut random = stream(plan.seed, thread);
        let (inbox, neighbour) = (&inboxes[thread], &inboxes[(thread + 1) % inboxes.len()]);
        let (mut alive, mut foreign) = (empty(BLOCKS), Vec::with_capacity(BLOCKS));
        for turn in 0..loops {
            for _ in 0..BLOCKS / 2 {
                let slot = random.usize(..BLOCKS);
                replace(&mut alive[slot], || heap.block(random.usize(sizes.clone()), Touch::Ends));
            }
            if turn % 2 == 1 {
                let half = alive.iter_mut().skip(random.usize(..2)).step_by(2).filter_map(Option::take);
                lock(neighbour).extend(half);
                // Without this barrier, the inbox of a thread that is not running would fill up, and the peak would depend on the
                // scheduler.
                handed.wait();
                mem::swap(&mut foreign, &mut *lock(inbox));
                foreign.clear();
            }
        }
    });
}

/// Each thread frees the block that it allocated four allocations earlier. This measures the fast path of frees that are not in last-in,
/// first-out order.
fn ago(heap: Heap, plan: &Plan, bytes: usize) {
    on_threads(plan.threads, |_| {
        let mut kept: [Option<Block>; 4] = [const { None }; 4];
        for operation in 0..plan.work(2_000_000) {
            replace(&mut kept[operation % 4], || heap.block(bytes, Touch::Ends));
        }
    });
}

/// False sharing, after Berger et al., "Hoard" (2000). If an allocator gives two threads parts of the same cache line, each write by one
/// makes the other wait. With `passive`, the main thread first allocates adjacent blocks, and each thread frees one of them. If the
/// allocator then hands the same block to the thread again, the threads continue to share lines. Without `passive`, the threads begin
/// without blocks.
fn share_lines(heap: Heap, plan: &Plan, bytes: usize, passive: bool) {
    /// The number of times that a thread writes to both ends of its block.
    const WRITES: usize = 200;
    let first: Vec<_> = (0..plan.threads).map(|_| passive.then(|| heap.block(bytes, Touch::Ends))).collect();
    thread::scope(|scope| {
        for given in first {
            scope.spawn(move || {
                drop(given);
                for _ in 0..plan.work(600_000) {
                    heap.block(bytes, Touch::Ends).rewrite(WRITES);
                }
            });
        }
    });
}

// Long-lived blocks among short-lived ones. These patterns show how much memory a few long-lived blocks keep from being reused.

/// Repeatedly replaces a random block. About 64 MiB are live at any time.
fn random_lifetimes(heap: Heap, plan: &Plan) {
    let sizes = KIB..=32 * KIB;
    let mut random = stream(plan.seed, 0);
    let blocks = plan.work(64 * MIB) / ((sizes.start() + sizes.end()) / 2);
    let mut alive = empty(blocks);
    for _ in 0..plan.work(100_000) {
        let slot = random.usize(..blocks);
        replace(&mut alive[slot], || heap.block(random.usize(sizes.clone()), Touch::Whole));
    }
}

/// Six times, fills 64 MiB with blocks and frees a random nine tenths of them, like a cache that keeps some of each day's entries.
fn survivors(heap: Heap, plan: &Plan) {
    let sizes = KIB..=4 * KIB;
    let mut random = stream(plan.seed, 0);
    // The vectors have room for all entries, so the bookkeeping does not grow during the run.
    let most = plan.work(64 * MIB) / sizes.start();
    let (mut young, mut old) = (Vec::with_capacity(most), Vec::with_capacity(most));
    for _ in 0..6 {
        let mut filled = 0;
        while filled < plan.work(64 * MIB) {
            let block = heap.block(random.usize(sizes.clone()), Touch::Whole);
            filled += block.bytes();
            young.push(block);
        }
        random.shuffle(&mut young);
        old.extend(young.drain(..young.len() / 10));
        young.clear();
    }
}

/// Repeatedly allocates `blocks` blocks and frees all but one, like a request whose response is cached.
fn bursts(heap: Heap, plan: &Plan, blocks: usize, sizes: RangeInclusive<usize>, count: usize) {
    let count = plan.work(count);
    let mut random = stream(plan.seed, 0);
    let mut kept = Vec::with_capacity(count);
    let mut burst = Vec::with_capacity(blocks);
    for _ in 0..count {
        burst.extend((0..blocks).map(|_| heap.block(random.usize(sizes.clone()), Touch::Whole)));
        kept.push(burst.swap_remove(random.usize(..blocks)));
        burst.clear();
    }
}

/// Allocates blocks of 16 KiB and frees seven in eight. Then another thread allocates as many bytes in blocks of 4 KiB.
fn survivors_16k_4k(heap: Heap, plan: &Plan) {
    let bytes = plan.work(128 * MIB);
    let old = survivors_of(heap, bytes, 16 * KIB, 8);
    let new = thread::spawn(move || fill(heap, bytes, 4 * KIB));
    drop((old, new.join()));
}

/// Like [`survivors_16k_4k`], but on one thread. Neither size is a whole number of pages.
fn survivors_2k_3000(heap: Heap, plan: &Plan) {
    let old = survivors_of(heap, plan.work(128 * MIB), 2 * KIB, 16);
    drop((old, fill(heap, plan.work(128 * MIB), 3_000)));
}

/// Allocates in 16 phases, each with blocks of one size, from 1 to 32 KiB. Each phase leaves one block in 64 alive.
fn phases(heap: Heap, plan: &Plan) {
    let sizes = (0..16).map(|phase| (1024.0 * 32f64.powf(f64::from(phase) / 15.0)) as usize);
    drop(sizes.map(|size| survivors_of(heap, plan.work(32 * MIB), size, 64)).collect::<Vec<_>>());
}

/// Repeatedly replaces a random one of 12,000 page runs. Their lengths are random, so a new run seldom fits exactly in the place of a freed
/// one.
fn runs_random(heap: Heap, plan: &Plan) {
    let mut random = stream(plan.seed, 0);
    let sizes = 33 * KIB..=200 * KIB;
    let run = |random: &mut Rng| heap.block(random.usize(sizes.clone()), Touch::Ends);
    let mut alive: Vec<_> = (0..plan.work(12_000)).map(|_| Some(run(&mut random))).collect();
    for _ in 0..plan.work(60_000) {
        let slot = random.usize(..alive.len());
        replace(&mut alive[slot], || run(&mut random));
    }
}

/// Allocates `bytes` in blocks of one size and writes every byte.
fn fill(heap: Heap, bytes: usize, size: usize) -> Vec<Block> {
    (0..bytes / size).map(|_| heap.block(size, Touch::Whole)).collect()
}

/// Allocates `bytes` in blocks of one size and frees all but every `nth` block.
fn survivors_of(heap: Heap, bytes: usize, size: usize, nth: usize) -> Vec<Block> {
    let blocks = fill(heap, bytes, size);
    let mut kept = Vec::with_capacity(blocks.len() / nth);
    kept.extend(blocks.into_iter().skip(nth - 1).step_by(nth));
    kept
}

// Short-lived threads, and idle threads.

/// The size of a thread's stack. It is small, so that the stacks add little to the peak.
const STACK_BYTES: usize = 64 * KIB;

/// Each thread allocates 16 blocks, frees half of them, and leaves the other half to the main thread. When a thread exits, an allocator
/// must release the memory that it cached for the thread, but not the live blocks.
fn thread_churn(heap: Heap, plan: &Plan) {
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
                        // The channel has room for all blocks. The main thread receives them after the wave of threads has exited.
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

/// Starts 1,000 threads that each allocate one block and then wait, like the thread pools of servers and runtimes.
fn idle_threads(heap: Heap, plan: &Plan) {
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

// Blocks that grow, and requests that are hard to place.

/// Grows a block to 256 MiB as `Vec::push` does: the capacity doubles each time, and each byte is written once.
fn push(heap: Heap, plan: &Plan) {
    let most = plan.work(256 * MIB);
    let mut vector = heap.block(64, Touch::Whole);
    while vector.bytes() < most {
        vector.grow((2 * vector.bytes()).min(most));
    }
}

/// Grows a block to 180 MiB in steps of 4 MiB, as repeated calls of `Vec::reserve_exact` do. An allocator that copies the contents at each
/// step copies 4 GiB in total.
fn exact(heap: Heap, plan: &Plan) {
    let step = plan.work(4 * MIB);
    let mut vector = heap.block(step, Touch::Whole);
    for steps in 2..=45 {
        vector.grow(steps * step);
    }
}

/// Allocates blocks whose alignment is sixteen times their size. An allocator that rounds sizes up to the alignment uses sixteen times the
/// memory.
fn aligned(heap: Heap, plan: &Plan) {
    refill(plan.work(200), 500, || heap.aligned(2 * KIB, 32 * KIB, Touch::Whole));
}

/// Requests 200 KiB while there are 20,000 free runs of 33 KiB at lower addresses, all of them too short. An allocator that searches all of
/// them for each request is slow here. Only the ends of the blocks are written, because whole blocks would take 1.3 GiB.
fn free_runs(heap: Heap, plan: &Plan) {
    let mut blocks: Vec<_> = (0..plan.work(40_000)).map(|_| Some(heap.block(33 * KIB, Touch::Ends))).collect();
    blocks.iter_mut().step_by(2).for_each(|block| *block = None);
    let mut kept: [Option<Block>; 4] = [const { None }; 4];
    for request in 0..plan.work(20_000) {
        replace(&mut kept[request % 4], || heap.block(200 * KIB, Touch::Ends));
    }
}

// The workloads for which zk-nalloc publishes results: buffers of provers, repeatedly filled and freed.

/// The number of bytes that most of these patterns fill in total.
const FILLED: usize = 1 << 30;

/// Repeatedly allocates, fills and frees one vector of field elements, as for a Fourier transform.
fn fft(heap: Heap, plan: &Plan, bytes: usize) {
    let bytes = plan.work(bytes);
    refill(plan.work(FILLED) / bytes, 1, || heap.block(bytes, Touch::Whole));
}

/// Requests zeroed columns, and uses only the first word of each. An allocator that clears whole columns does unnecessary work.
fn zeroed(heap: Heap, plan: &Plan) {
    let sizes = 256 * KIB..=16 * MIB;
    let mut random = stream(plan.seed, 0);
    refill(plan.work(20), 24, || heap.zeroed(log_within(&mut random, &sizes), Touch::First));
}

/// Repeatedly fills the buckets of a multi-scalar multiplication, one array for each window.
fn msm(heap: Heap, plan: &Plan) {
    let (bytes, windows) = (plan.work(6 * MIB), 16);
    refill(plan.work(FILLED) / (windows * bytes), windows, || heap.block(bytes, Touch::Whole));
}

/// Repeatedly fills one buffer per thread, on `threads` threads at once.
fn fill_on_threads(heap: Heap, plan: &Plan, threads: usize) {
    let bytes = plan.work(64 * MIB);
    let times = (plan.work(FILLED) / (threads * bytes)).max(2);
    on_threads(threads, |_| refill(times, 1, || heap.block(bytes, Touch::Whole)));
}
