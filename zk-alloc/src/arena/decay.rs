//! Memory that comes down by itself: what stays resident follows the highest live total of the last seconds.
//!
//! A process that takes memory again and again, as a prover does, keeps what it needed at most in the time of the *window*, and
//! gets and gives back nothing. As soon as it needs less, or idles, what is beyond goes back. Nobody has to say when.
//!
//! That is the work of a *watcher*: a task beside the program's threads ([`os::start_task`]) that looks a few times in each window.
//! It is there only while there may be something to give back: it begins when more became resident, or less is alive, than when the
//! last one ended, and ends when nothing happens any more and all that is to go has gone. An idle process has none. A forked child
//! has none either, and gets its own by the same rule: what is known of the watcher lies on a page that a child finds empty.
#![allow(unsafe_code, reason = "lays the watcher's state over a page of its own")]

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::budget;
use crate::counters;
use crate::os::{self, Errno, Parking};

/// How often the watcher looks in the time of a window.
const LOOKS: usize = 8;
/// The watcher looks at most every so often, in nanoseconds.
const LEAST_LOOK_NS: u64 = 1_000_000;

/// Less than this is not worth a watcher, in bytes.
const WORTHWHILE_BYTES: usize = 8 << 20;
/// A run of so many bytes that a thread frees is not kept for it while there is no watcher, who would have to see it.
pub(super) const UNSEEN_BYTES: usize = 4 << 20;

/// The length of the window, in nanoseconds; 0 as long as nothing comes down by itself.
static WINDOW_NS: AtomicU64 = AtomicU64::new(0);
/// What a watcher does.
static WATCH: AtomicPtr<()> = AtomicPtr::new(null_mut());
/// The page with the state, once there is a window.
static STATE: AtomicPtr<State> = AtomicPtr::new(null_mut());
/// What was resident, and in use, when the last watcher ended.
static REST_RESIDENT: AtomicUsize = AtomicUsize::new(0);
static REST_USED: AtomicUsize = AtomicUsize::new(0);

/// What a forked child must not take for its own. All zeroes is a process that never had a watcher.
#[derive(Debug)]
#[repr(C)]
struct State {
    /// One of the constants below.
    watcher: AtomicU8,
    /// The process that it belongs to: the child of vfork(2) shares our memory, and must not start any.
    process: AtomicU32,
    /// Sleeps end when this changes.
    bell: Parking,
}

const NONE: u8 = 0;
const WATCHING: u8 = 1;
/// The system refused one.
const REFUSED: u8 = 2;

/// Has memory come down by itself from now on: what stays is what was alive at most in a time of `window_ns`. 0 ends that. `watch`
/// is what the watcher runs. Allocates nothing.
///
/// # Errors
/// The system's, where it has no memory.
pub(crate) fn follow(window_ns: u64, watch: fn()) -> Result<(), Errno> {
    if STATE.load(Ordering::Acquire).is_null() && window_ns > 0 {
        let page = os::map_zeroed(os::page_bytes())?;
        let state = page.start().cast::<State>();
        // Where the kernel can't, a child has no watcher, and keeps what it has.
        // SAFETY: the mapping made above, on which nobody writes before it is published.
        let _ = unsafe { os::wipe_on_fork(page.start().as_ptr(), page.len()) };
        WATCH.store(watch as *mut (), Ordering::Relaxed);
        if STATE.compare_exchange(null_mut(), state.as_ptr(), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            std::mem::forget(page);
        }
    }
    WINDOW_NS.store(window_ns, Ordering::Relaxed);
    if let Some(state) = state() {
        // It may be asleep over another window.
        state.bell.wake();
        look();
    }
    Ok(())
}

/// Whether memory comes down by itself.
pub(crate) fn follows() -> bool {
    WINDOW_NS.load(Ordering::Relaxed) > 0
}

fn state() -> Option<&'static State> {
    // SAFETY: null, or a page that is never unmapped, laid out for a state, of which all zeroes is one.
    NonNull::new(STATE.load(Ordering::Acquire)).map(|state| unsafe { state.as_ref() })
}

/// Whether there should be a watcher as soon as there is something to watch.
#[inline]
pub(super) fn is_unwatched() -> bool {
    state().is_some_and(|state| state.watcher.load(Ordering::Relaxed) == NONE)
}

/// Called whenever memory became resident, or was freed past the threads' caches.
#[inline]
pub(super) fn look() {
    if is_unwatched() {
        look_closer();
    }
}

#[cold]
fn look_closer() {
    let (resident, used) = (budget::resident_bytes(), counters::used_bytes());
    let grew = resident > REST_RESIDENT.load(Ordering::Relaxed).saturating_add(WORTHWHILE_BYTES);
    let fell = used.saturating_add(WORTHWHILE_BYTES) < REST_USED.load(Ordering::Relaxed);
    if (grew || fell) && follows() {
        if let Some(state) = state() {
            state.start();
        }
    }
}

impl State {
    fn start(&self) {
        let own = std::process::id();
        let owner = self.process.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed);
        if owner.is_err_and(|owner| owner != own)
            || self.watcher.compare_exchange(NONE, WATCHING, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            return;
        }
        let watch = WATCH.load(Ordering::Relaxed);
        // SAFETY: set before the state was published, from a function of this type.
        let watch = unsafe { std::mem::transmute::<*mut (), fn()>(watch) };
        if let Err(Errno(code)) = os::start_task(c"zk-alloc-retain", watch) {
            self.watcher.store(REFUSED, Ordering::Relaxed);
            os::warn(format_args!(
                "the system refused a task that gives memory back when it is idle (errno {code}); it stays until release()"
            ));
        }
    }
}

/// What the watcher sees at one look.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// The most bytes that were alive since the last look, as far as is known.
    pub(super) live_bytes: usize,
    /// Bytes that were handed out since.
    pub(super) served_bytes: u64,
}

/// What was seen in the time of a window, and the highest of the windows before.
#[derive(Debug)]
pub(super) struct Window {
    looks: [Seen; LOOKS],
    next: usize,
    /// What is alive at most in the course of a proof may be so for a moment only, and proofs may take longer than a window: while
    /// a process is busy, so many windows count.
    before: [usize; WINDOWS],
    next_before: usize,
}

const WINDOWS: usize = 8;

/// What may stay beyond what was alive, in bytes, while memory is taken and given: placement needs some room, and a small process
/// as much again as it has.
const SLACK_BYTES: usize = 8 << 20;

impl Window {
    /// A window in which so much was alive at each look, and much was handed out.
    pub(super) fn new(live_bytes: usize) -> Self {
        let look = Seen { live_bytes, served_bytes: u64::MAX / LOOKS as u64 };
        Self { looks: [look; LOOKS], next: 0, before: [0; WINDOWS], next_before: 0 }
    }

    /// Takes in what was seen.
    pub(super) fn push(&mut self, seen: Seen) {
        self.looks[self.next] = seen;
        self.next = (self.next + 1) % LOOKS;
        if self.next == 0 {
            self.before[self.next_before] = self.high();
            self.next_before = (self.next_before + 1) % WINDOWS;
        }
    }

    fn high(&self) -> usize {
        self.looks.iter().map(|look| look.live_bytes).max().unwrap_or(0)
    }

    fn last(&self) -> Seen {
        self.looks[(self.next + LOOKS - 1) % LOOKS]
    }

    /// The highest of all that counts while the process is busy.
    fn highest(&self) -> usize {
        self.before.iter().fold(self.high(), |high, &before| high.max(before))
    }

    /// Whether what is kept is needed: in the time of the window a part of it was handed out. The little that a service asks for
    /// while it waits is no reason to keep what its next proof needs.
    pub(super) fn is_busy(&self) -> bool {
        let served = self.looks.iter().fold(0_u64, |sum, look| sum.saturating_add(look.served_bytes));
        let live = self.last().live_bytes;
        let spare = self.highest().saturating_sub(live);
        served > 0 && served >= (spare.max(live) / 64) as u64
    }

    /// What may stay resident, in bytes.
    pub(super) fn keep_bytes(&self) -> usize {
        if self.is_busy() {
            let highest = self.highest();
            highest + (highest / 8).max(highest.min(SLACK_BYTES))
        } else {
            self.high() + self.high() / 32
        }
    }

    /// Whether there is nothing to wait for: the process is idle, and what may stay is no more than what is alive.
    pub(super) fn is_over(&self) -> bool {
        let live = self.last().live_bytes;
        !self.is_busy() && self.high() <= live + live / 64
    }
}

/// Sleeps until it is time to look; `false` where nothing comes down by itself any more.
pub(super) fn sleep() -> bool {
    let Some(state) = state() else { return false };
    let ticket = state.bell.ticket();
    let window_ns = WINDOW_NS.load(Ordering::Relaxed);
    if window_ns == 0 {
        return false;
    }
    let look_ns = (window_ns / LOOKS as u64).max(LEAST_LOOK_NS);
    state.bell.sleep(ticket, Some(std::time::Duration::from_nanos(look_ns)));
    true
}

/// The watcher ends. `true` where it must go on instead: something happened meanwhile, nobody else watches, and somebody should.
pub(super) fn rest() -> bool {
    let Some(state) = state() else { return false };
    let marks = || (budget::resident_bytes(), counters::used_bytes());
    let (resident, used) = marks();
    REST_RESIDENT.store(resident, Ordering::Relaxed);
    REST_USED.store(used, Ordering::Relaxed);
    state.watcher.store(NONE, Ordering::SeqCst);
    // Either who changes something sees now that there is no watcher, or this sees the change: the fence is all threads'.
    os::fence_other_threads();
    follows()
        && marks() != (resident, used)
        && state.watcher.compare_exchange(NONE, WATCHING, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn seen(live_mib: usize, served_kib: u64) -> Seen {
        Seen { live_bytes: live_mib * MIB, served_bytes: served_kib << 10 }
    }

    #[test]
    fn a_busy_process_keeps_the_highest_of_some_windows_and_then_comes_down() {
        let mut window = Window::new(0);
        window.push(seen(800, 800_000));
        for _ in 0..LOOKS * WINDOWS - 1 {
            window.push(seen(100, 50_000));
            assert!((800 * MIB..=900 * MIB).contains(&window.keep_bytes()));
        }
        for _ in 0..2 * LOOKS {
            window.push(seen(100, 50_000));
        }
        assert!((100 * MIB..=113 * MIB).contains(&window.keep_bytes()), "the highest is too long ago");
    }

    #[test]
    fn what_stays_of_an_idle_process_is_within_a_twentieth_of_what_is_alive() {
        // A service that waits asks for a little now and then.
        for trickle_kib in [0, 100] {
            let mut window = Window::new(700 * MIB);
            for _ in 0..LOOKS {
                assert!(!window.is_over());
                window.push(seen(200, trickle_kib));
            }
            window.push(seen(200, trickle_kib));
            assert!((200 * MIB..=210 * MIB).contains(&window.keep_bytes()), "{window:?}");
            assert!(window.is_over());
        }
        let mut window = Window::new(200 * MIB);
        for _ in 0..LOOKS {
            window.push(seen(0, 0));
            assert_eq!(
                window.is_over(),
                window.keep_bytes() == 0,
                "what was freed may go only when it is out of the window"
            );
        }
        assert_eq!(window.keep_bytes(), 0);
    }
}
