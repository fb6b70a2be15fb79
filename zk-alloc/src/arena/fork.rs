//! Keeps free memory from forked children. A child inherits the memory in use, but not the free memory that its parent retains.
//!
//! A fork copies the page tables of all resident memory, and each page is then copied when one of the two processes writes to it. For free
//! memory, this work is wasted. So before a fork, the forking thread claims the longest free runs and has the kernel withhold them from the
//! child (`MADV_WIPEONFORK`). It must own these runs: if another thread got one during the fork, the run would read as zeroes in the child.
//! After the fork, both processes free the runs. In the child, the runs have no memory, so it stops counting them as resident.
//!
//! The kernel splits a mapping around each withheld run, so the number of runs is bounded. After the fork, the kernel merges the parts in
//! the parent.
//!
//! The forking thread neither waits nor allocates. If a second thread forks at the same time, it withholds nothing, and its child frees the
//! runs that the first thread had claimed. Other threads continue with the remaining free memory, or with fresh memory.
#![allow(unsafe_code, reason = "a cell that one thread at a time accesses, and memory that the thread claimed")]

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::accounts;
use crate::arena::{self, Arena, front};
use crate::os::{self, Errno, Signals};
use crate::{pinned, tuning};

/// The maximum number of runs withheld at once. Each run adds up to two mappings during the fork.
const RUNS: usize = 256;

/// A withheld run.
struct Withheld {
    at: AtomicUsize,
    bytes: AtomicUsize,
}

/// The claimed runs, of which the first [`COUNT`] are valid. A child may inherit the runs of a thread that exists only in its parent.
static WITHHELD: [Withheld; RUNS] = [const { Withheld { at: AtomicUsize::new(0), bytes: AtomicUsize::new(0) } }; RUNS];
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The generation of the process in which a thread is forking; 0 if none is. That thread owns the statics above.
static FORKING: AtomicU64 = AtomicU64::new(0);
/// The id of the forking thread; 0 if there is none.
static THREAD: AtomicUsize = AtomicUsize::new(0);

/// Whether the system is unable to withhold memory (before Linux 4.14, and in some sandboxes).
static IS_REFUSED: AtomicBool = AtomicBool::new(false);

/// The signals that the forking thread had blocked before the fork.
struct SignalsBefore(UnsafeCell<MaybeUninit<Signals>>);

// SAFETY: only the thread that owns `FORKING` writes to the cell, and only the thread whose id is in `THREAD` (in the child, its copy)
// reads it.
unsafe impl Sync for SignalsBefore {}

static SIGNALS: SignalsBefore = SignalsBefore(UnsafeCell::new(MaybeUninit::uninit()));

/// Creates the thread-exit key, and registers the functions below with fork(3). Runs before `main`, so before the program creates its own
/// keys: the C library has few keys that need no allocation.
pub(crate) fn register() {
    front::exit_key();
    os::at_fork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/// Runs before a fork, on the thread that forks.
extern "C" fn before_fork() {
    let Some(arena) = arena::get() else { return };
    if accounts::free_bytes() < tuning::fork_min_bytes() || os::is_in_sandbox() || IS_REFUSED.load(Ordering::Relaxed) {
        return;
    }
    // A signal handler must not fork while this function runs.
    let signals = Signals::block();
    let own = os::process_generation();
    let before = FORKING.load(Ordering::Relaxed);
    if before == own || FORKING.compare_exchange(before, own, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return signals.restore();
    }
    // `before` is the parent's generation: one of its threads created this process by the raw system call while another was forking.
    if before != 0 {
        give_all_back(arena, true);
    }
    // SAFETY: only this thread moved `FORKING` to this generation.
    unsafe { (*SIGNALS.0.get()).write(signals) };
    THREAD.store(os::thread_id(), Ordering::Relaxed);
    withhold_free_runs(arena);
}

/// Runs in the parent after a fork, even a failed one, on the thread that forked.
extern "C" fn after_fork_in_parent() {
    let Some(arena) = arena::get() else { return };
    // The generation is compared, too: in a child created by the raw system call, a new thread may have the id of a thread of the parent.
    let is_own = THREAD.load(Ordering::Relaxed) == os::thread_id();
    if is_own && FORKING.load(Ordering::Relaxed) == os::process_generation() {
        end_fork(arena, false);
    }
}

/// Runs in the child after a fork.
extern "C" fn after_fork_in_child() {
    let Some(arena) = arena::get() else { return };
    pinned::after_fork_in_child(arena);
    // The child has one thread. The runs may have been withheld by a thread that exists only in the parent.
    if FORKING.load(Ordering::Relaxed) != 0 {
        end_fork(arena, true);
    }
}

/// Releases all withheld runs, and lets other threads withhold runs again.
fn end_fork(arena: &Arena, is_in_child: bool) {
    give_all_back(arena, is_in_child);
    let is_own = THREAD.swap(0, Ordering::Relaxed) == os::thread_id();
    // SAFETY: written by this thread, or by the thread of the parent that this one is a copy of.
    let signals = is_own.then(|| unsafe { (*SIGNALS.0.get()).assume_init() });
    FORKING.store(0, Ordering::Release);
    if let Some(signals) = signals {
        signals.restore();
    }
}

/// Withholds the longest free runs from the child.
fn withhold_free_runs(arena: &Arena) {
    arena.release_cached();
    let min_bytes = min_withheld_bytes(arena);
    for zone in arena.region.zones() {
        let mut withhold = |at: NonNull<u8>, bytes: usize| {
            // SAFETY: this thread has claimed the run, which was free, so its contents are not needed.
            unsafe {
                if IS_REFUSED.load(Ordering::Relaxed) || !note(at, bytes) {
                    zone.release_claimed(at, bytes);
                } else if let Err(refused) = zone.withhold(at, bytes) {
                    if refused == Errno(libc::ENOMEM) {
                        accounts::refused(refused, "withhold free memory from a child", bytes);
                    } else {
                        IS_REFUSED.store(true, Ordering::Relaxed);
                        COUNT.fetch_sub(1, Ordering::Release);
                        zone.release_claimed(at, bytes);
                    }
                }
            }
        };
        zone.free_runs(min_bytes, |run| {
            if COUNT.load(Ordering::Relaxed) < RUNS && !IS_REFUSED.load(Ordering::Relaxed) {
                zone.claim_to_withhold(run, min_bytes, &mut withhold);
            }
        });
    }
}

/// Returns the minimum length in bytes of the free runs to withhold. At most [`RUNS`] free runs are that long.
fn min_withheld_bytes(arena: &Arena) -> usize {
    let mut runs_by_length = [0usize; usize::BITS as usize];
    for zone in arena.region.zones() {
        zone.free_runs(tuning::fork_run_min_bytes(), |run| {
            runs_by_length[(run.len() * zone.page_bytes()).ilog2() as usize] += 1;
        });
    }
    let mut count = 0;
    let is_too_many = |&log2: &usize| {
        count += runs_by_length[log2];
        count > RUNS
    };
    let too_short = (0..runs_by_length.len()).rev().find(is_too_many);
    too_short.map_or(tuning::fork_run_min_bytes(), |log2| 2 << log2)
}

/// Releases all withheld runs.
fn give_all_back(arena: &Arena, is_in_child: bool) {
    for index in (0..COUNT.load(Ordering::Acquire).min(RUNS)).rev() {
        let Withheld { at, bytes } = &WITHHELD[index];
        let (at, bytes) = (at.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed));
        // Removed from the list first: a child that another thread forks now must not release the run a second time.
        COUNT.store(index, Ordering::Release);
        if let Some(at) = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(at)) {
            let zone = arena.zone_at(at);
            // SAFETY: claimed by this thread, or by a thread that exists only in the parent. The arena exposed the addresses of its region.
            unsafe { zone.stop_withholding(at, bytes, is_in_child) };
        }
    }
}

/// Adds a run that this thread has claimed to the list. Returns `false` if the list is full.
fn note(at: NonNull<u8>, bytes: usize) -> bool {
    let count = COUNT.load(Ordering::Relaxed);
    let Some(withheld) = WITHHELD.get(count) else { return false };
    withheld.at.store(at.addr().get(), Ordering::Relaxed);
    withheld.bytes.store(bytes, Ordering::Relaxed);
    COUNT.store(count + 1, Ordering::Release);
    true
}
