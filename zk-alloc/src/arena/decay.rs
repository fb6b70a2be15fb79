//! Memory that comes down by itself: what stays resident follows the highest live total of the last seconds.
//!
//! A process that takes memory again and again, as a prover does, keeps what it needed at most in the time of the *window*, and gets
//! and gives back nothing. As soon as it needs less, or idles, what is beyond goes back. Nobody has to say when.
//!
//! That is the work of a *watcher*: a task beside the program's threads ([`os::start_task`]) that looks a few times in each window. It
//! is there only while there may be something to give back: it begins when more became resident, or less is alive, than when the
//! last one ended, and ends when nothing happens any more and all that is to go has gone. An idle process has none. A forked child has
//! none either, and gets its own by the same rule: what is known of the watcher lies on a page that a child finds empty.
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

/// Has memory come down by itself from now on: what stays is what was alive at most in a time of `window_ns`. 0 ends that. `watch` is
/// what the watcher runs. Allocates nothing.
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
    if (grew || fell)
        && follows()
        && let Some(state) = state()
    {
        state.start();
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
        if let Err(Errno(code)) = os::start_task(watch) {
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
    /// Whether any memory was handed out since.
    pub(super) is_active: bool,
}

/// What was seen in the time of a window.
#[derive(Debug)]
pub(super) struct Window {
    looks: [Seen; LOOKS],
    next: usize,
}

/// What may stay beyond what was alive, in bytes, while memory is taken and given: placement needs some room, and a small process as
/// much again as it has.
const SLACK_BYTES: usize = 8 << 20;

impl Window {
    /// A window in which so much was alive at each look.
    pub(super) fn new(live_bytes: usize) -> Self {
        Self { looks: [Seen { live_bytes, is_active: true }; LOOKS], next: 0 }
    }

    /// Takes in what was seen.
    pub(super) fn push(&mut self, seen: Seen) {
        self.looks[self.next] = seen;
        self.next = (self.next + 1) % LOOKS;
    }

    fn is_active(&self) -> bool {
        self.looks.iter().any(|look| look.is_active)
    }

    fn high(&self) -> usize {
        self.looks.iter().map(|look| look.live_bytes).max().unwrap_or(0)
    }

    /// What may stay resident, in bytes.
    pub(super) fn keep_bytes(&self) -> usize {
        let high = self.high();
        let slack = if self.is_active() { (high / 8).max(high.min(SLACK_BYTES)) } else { high / 32 };
        high + slack
    }

    /// Whether there is nothing to wait for: in all of the window nothing was handed out, and nothing freed that is still counted in
    /// what may stay.
    pub(super) fn is_over(&self) -> bool {
        let last = self.looks[(self.next + LOOKS - 1) % LOOKS];
        !self.is_active() && self.high() <= last.live_bytes
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

/// The watcher ends. `true` where it must go on instead: something happened meanwhile, and nobody else watches.
pub(super) fn rest() -> bool {
    let Some(state) = state() else { return false };
    let marks = || (budget::resident_bytes(), counters::used_bytes());
    let (resident, used) = marks();
    REST_RESIDENT.store(resident, Ordering::Relaxed);
    REST_USED.store(used, Ordering::Relaxed);
    state.watcher.store(NONE, Ordering::SeqCst);
    // Either who changes something sees now that there is no watcher, or this sees the change: the fence is all threads'.
    os::fence_other_threads();
    marks() != (resident, used)
        && state.watcher.compare_exchange(NONE, WATCHING, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn seen(live_mib: usize, is_active: bool) -> Seen {
        Seen { live_bytes: live_mib * MIB, is_active }
    }

    #[test]
    fn what_may_stay_is_the_highest_of_the_window_and_some_room_while_memory_is_taken() {
        let mut window = Window::new(0);
        window.push(seen(800, true));
        for _ in 0..LOOKS - 1 {
            window.push(seen(100, true));
            assert!((800 * MIB..=900 * MIB).contains(&window.keep_bytes()));
        }
        window.push(seen(100, true));
        assert!((100 * MIB..=113 * MIB).contains(&window.keep_bytes()), "the highest is out of the window");
    }

    #[test]
    fn what_stays_of_an_idle_process_is_within_a_twentieth_of_what_is_alive() {
        let mut window = Window::new(700 * MIB);
        for _ in 0..LOOKS {
            assert!(!window.is_over());
            window.push(seen(200, false));
        }
        assert!(window.is_over());
        assert!((200 * MIB..=210 * MIB).contains(&window.keep_bytes()));
        for _ in 0..LOOKS {
            window.push(seen(0, false));
            assert_eq!(
                window.is_over(),
                window.keep_bytes() == 0,
                "what was freed may go only when it is out of the window"
            );
        }
        assert_eq!(window.keep_bytes(), 0);
        assert!(window.is_over());
    }
}
