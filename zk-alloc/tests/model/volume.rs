//! Volume tests: threads allocate, resize and free blocks at random, also blocks of other threads, inside and outside of nested phases, and
//! while they exit. All random numbers come from one seed. They are the same in every run, but the order in which the threads run is not.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::RefCell;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use zk_alloc::{
    PhaseGuard, Retain, release, reserve, set_retain, soften, start_background_thread, stop_background_thread,
};

use crate::heap::{Block, Heap, Lock};
use crate::support::Numbers;

/// The size of the test, and its seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Volume {
    pub(crate) seed: u64,
    /// Number of operations of all threads together.
    pub(crate) ops: u64,
    /// Number of operations after which a thread exits. It passes its live blocks to random threads, and a new thread replaces it.
    pub(crate) ops_per_life: u64,
    /// On average, one in this many operations is preceded by a call of [`settle`], which releases memory or changes the retention policy,
    /// for example.
    pub(crate) ops_per_settling: usize,
    /// A check that one thread runs from time to time while the others wait. It panics if it fails.
    pub(crate) at_rest: Option<fn()>,
}

const THREADS: usize = 4;

/// Number of operations of a thread between two runs of [`Volume::at_rest`].
const OPS_PER_CHECK: u64 = 1_000;

/// A thread allocates no new block while all threads together hold `MAX_LIVE_BYTES`, or while it holds `MAX_LIVE_BLOCKS` itself.
const MAX_LIVE_BYTES: usize = 1 << 30;
const MAX_LIVE_BLOCKS: usize = 256;

/// Returns a random number from 1 to `1 << max_log2`. Each range from a power of two to the next is equally likely.
fn log_uniform(rng: &mut Numbers, max_log2: u32) -> usize {
    let top = 1 << rng.below(max_log2 as usize + 1);
    top / 2 + rng.below(top - top / 2) + 1
}

fn random_size(rng: &mut Numbers) -> usize {
    let max_log2 = match rng.below(10_000) {
        0..10 => 27,
        10..100 => 24,
        100..3_000 => 20,
        _ => 16,
    };
    log_uniform(rng, max_log2)
}

fn random_layout(rng: &mut Numbers) -> Layout {
    let size = random_size(rng);
    let most_log2 = match rng.below(100) {
        0 => 23,
        1..16 => 13,
        _ => 7,
    };
    Layout::from_size_align(size, 1 << rng.below(most_log2)).expect("a small layout")
}

/// Blocks that other threads have passed to a thread, some of them when they exited.
type Mail = Lock<Vec<Block>>;

fn post(mail: &Mail, block: Block) {
    mail.with(|blocks| blocks.push(block));
}

/// Runs the threads. If a check fails, panics with a message that contains the seed.
pub(crate) fn run<A: GlobalAlloc + Sync + 'static>(heap: &'static Heap<A>, volume: Volume) {
    let mail: Vec<Mail> = (0..THREADS).map(|_| Mail::default()).collect();
    let meeting = &Barrier::new(THREADS);
    let lives = volume.ops.div_ceil(THREADS as u64 * volume.ops_per_life);
    let outcomes: Vec<_> = thread::scope(|scope| {
        let live_thread_after_thread = |index: usize| {
            (0..lives).try_for_each(|life| {
                let seed = volume.seed ^ (index as u64) << 48 ^ life << 16;
                let mail = &mail;
                thread::scope(|scope| scope.spawn(move || live(heap, seed, volume, index, mail, meeting)).join())
            })
        };
        let threads: Vec<_> = (0..THREADS).map(|index| scope.spawn(move || live_thread_after_thread(index))).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(Ok(())))), "{volume:?} failed, see above");
    mail.iter().flat_map(|mail| mail.with(std::mem::take)).for_each(|block| heap.free(block));
    assert_eq!(heap.live_bytes(), 0, "{volume:?}");
    println!("{volume:?}\n{}", zk_alloc::stats());
}

/// Work to do when a thread exits. Other thread-locals may already be destroyed by then.
#[derive(Default)]
struct AtExit(RefCell<Vec<Box<dyn FnOnce()>>>);

impl Drop for AtExit {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|work| work());
    }
}

thread_local! {
    static AT_EXIT: AtExit = AtExit::default();
}

/// The body of a thread: executes [`Volume::ops_per_life`] operations, then frees the thread's blocks at exit or passes them to other
/// threads.
fn live<A: GlobalAlloc + Sync + 'static>(
    heap: &'static Heap<A>,
    seed: u64,
    volume: Volume,
    index: usize,
    mail: &[Mail],
    meeting: &Barrier,
) {
    let rng = &mut Numbers::new(seed);
    if rng.below(2) == 0 {
        // Locals are destroyed in the reverse order of their first use. Half of the threads use this one first.
        AT_EXIT.with(|_| ());
    }
    let mut blocks = mail[index].with(std::mem::take);
    let mut phases = Vec::new();
    for op in 1..=volume.ops_per_life {
        if let Some(check) = volume.at_rest.filter(|_| op.is_multiple_of(OPS_PER_CHECK)) {
            // The other threads wait for the one that runs the check. If a thread panics, they wait until the test's process is killed.
            if meeting.wait().is_leader() {
                check();
            }
            meeting.wait();
        }
        if rng.below(volume.ops_per_settling) == 0 {
            settle(rng, volume.at_rest.is_none());
        }
        let crowded = blocks.len() >= MAX_LIVE_BLOCKS || heap.live_bytes() >= MAX_LIVE_BYTES;
        match rng.below(10_000) {
            0..4_000 if !crowded => {
                let layout = random_layout(rng);
                blocks.push(heap.alloc(layout, rng.below(4) == 0).expect("memory"));
            }
            0..8_000 if !blocks.is_empty() => heap.free(take(&mut blocks, rng)),
            8_000..9_200 if !blocks.is_empty() => {
                let block = take(&mut blocks, rng);
                // The new size is random, or between half and one and a half times the old size.
                let old = block.layout().size();
                let size = if rng.below(2) == 0 { random_size(rng) } else { old / 2 + rng.below(old) + 1 };
                blocks.push(heap.realloc(block, size.min(1 << 27)));
            }
            9_200..9_700 if !blocks.is_empty() => post(&mail[rng.below(mail.len())], take(&mut blocks, rng)),
            9_700..9_800 => blocks.extend(mail[index].with(std::mem::take)),
            // This is so rare that at times no phase is open.
            9_800..9_830 => phases.extend((0..=rng.below(5)).map(|_| PhaseGuard::new())),
            9_830..10_000 if !phases.is_empty() => drop(phases.swap_remove(rng.below(phases.len()))),
            _ => {}
        }
    }
    // Some blocks are freed while the thread exits; the others are passed on.
    for block in blocks {
        if rng.below(8) == 0 {
            let work = move || {
                let layout = Layout::from_size_align(block.layout().size(), 64).expect("a small layout");
                heap.free(block);
                let made = heap.alloc(layout, false).expect("memory");
                heap.free(heap.realloc(made, layout.size().div_ceil(2)));
            };
            AT_EXIT.with(|at_exit| at_exit.0.borrow_mut().push(Box::new(work)));
        } else {
            post(&mail[rng.below(mail.len())], block);
        }
    }
}

/// Releases or reserves memory, changes the retention policy, or starts or stops the background thread, as a program may do now and then.
/// `may_start_thread` must be `false` if there is a [`Volume::at_rest`], because a background thread would purge during the check.
fn settle(rng: &mut Numbers, may_start_thread: bool) {
    match rng.below(18) {
        0..4 => _ = release(),
        4..7 => _ = soften(),
        7..9 => _ = reserve(log_uniform(rng, 26)),
        9 => set_retain(Retain::Never),
        10 => set_retain(Retain::Bytes(log_uniform(rng, 30))),
        11 => set_retain(Retain::For(Duration::from_millis(1))),
        12..14 => set_retain(Retain::Always),
        // Ignores the result, because the call fails while another thread stops the background thread.
        14 if may_start_thread => _ = start_background_thread(),
        15 => stop_background_thread(),
        _ => {}
    }
}

fn take(blocks: &mut Vec<Block>, rng: &mut Numbers) -> Block {
    blocks.swap_remove(rng.below(blocks.len()))
}
