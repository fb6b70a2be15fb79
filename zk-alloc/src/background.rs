//! The background thread. It purges free memory while the program is idle. It is opt-in, and a process has at most one.
//!
//! The allocator works without it. A forked child has none until it starts its own.
#![allow(unsafe_code, reason = "keeps the thread's handle in a cell")]

use std::cell::UnsafeCell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::arena;
#[cfg(feature = "c-api")]
use crate::config;
use crate::os::{self, Errno, OwnThread, Parking};

/// The lowest bits hold one of the states below. The bits above them hold the [generation](os::process_generation) of the process that
/// owns the thread.
static STATE: AtomicU64 = AtomicU64::new(NONE);
const NONE: u64 = 0;
const STARTING: u64 = 1;
const RUNNING: u64 = 2;
const STOPPING: u64 = 3;
const STATE_BITS: u32 = 2;

struct Handle(UnsafeCell<Option<OwnThread>>);

// SAFETY: only the thread that moved `STATE` to `STARTING` or `STOPPING` uses the handle, until it moves the state on.
unsafe impl Sync for Handle {}

static HANDLE: Handle = Handle(UnsafeCell::new(None));

/// Where the thread sleeps.
pub(crate) static PARKER: Parking = Parking::new();

/// Whether the setting was applied, or a call to start or stop the thread has overridden it: then [`start_if_set`] has nothing to do.
static IS_SETTLED: AtomicBool = AtomicBool::new(false);

/// The stack size of the thread, in bytes. The thread only purges, so it needs little.
const STACK_BYTES: usize = 128 << 10;

fn state_of(generation: u64, state: u64) -> u64 {
    generation << STATE_BITS | state
}

/// Returns whether this process has a background thread. If so, that thread runs the decay ticks.
pub(crate) fn is_running() -> bool {
    let state = STATE.load(Ordering::SeqCst);
    state != NONE && state & STOPPING != STOPPING && state >> STATE_BITS == os::process_generation()
}

/// Starts the background thread of this process, unless it already runs.
///
/// The thread purges memory that has been free for as long as [`Retain::For`](crate::Retain::For) or `ZK_ALLOC_RETAIN_FOR` sets, even while
/// the program requests no memory. It is an ordinary thread named `zk-alloc`, and blocks all signals. Without this call, and without the
/// setting, the allocator starts no such thread.
///
/// A forked child has no such thread, and may start its own.
///
/// # Errors
/// The system's error, if it can't create the thread. [`io::ErrorKind::WouldBlock`] while another thread is in [`stop_background_thread`].
///
/// ```
/// zk_alloc::start_background_thread()?;
/// // Free memory is purged once no phase was open for 30 seconds.
/// zk_alloc::set_retain(zk_alloc::Retain::For(std::time::Duration::from_secs(30)));
/// # zk_alloc::stop_background_thread();
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn start_background_thread() -> io::Result<()> {
    IS_SETTLED.store(true, Ordering::Relaxed);
    start().map_err(|error| match error {
        Some(Errno(code)) => io::Error::from_raw_os_error(code),
        None => io::Error::new(io::ErrorKind::WouldBlock, "another thread is stopping the background thread"),
    })
}

/// Stops the background thread, and waits until it has ended. Returns at once if this process has none, or if another thread is stopping
/// it. As after any join, the kernel may list the thread in `/proc/self/task` for a moment longer.
///
/// [`start_background_thread`] has an example.
pub fn stop_background_thread() {
    IS_SETTLED.store(true, Ordering::Relaxed);
    let own = os::process_generation();
    let (running, stopping) = (state_of(own, RUNNING), state_of(own, STOPPING));
    if STATE.compare_exchange(running, stopping, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return;
    }
    PARKER.wake();
    // SAFETY: this thread moved the state to `STOPPING`.
    if let Some(thread) = unsafe { (*HANDLE.0.get()).take() } {
        thread.join();
    }
    STATE.store(NONE, Ordering::Release);
}

/// Starts the thread if the program's settings or the environment ask for it, and only once. Must not be called in a signal handler.
#[inline]
pub(crate) fn start_if_set() {
    if !IS_SETTLED.load(Ordering::Relaxed) {
        start_if_set_now();
    }
}

#[cold]
fn start_if_set_now() {
    // The settings are not known before the arena opens.
    let Some(arena) = arena::get() else { return };
    if !IS_SETTLED.swap(true, Ordering::Relaxed) && arena.config().settings.background_thread.value {
        start_or_warn();
    }
}

/// Starts the background thread if `ZK_ALLOC_BACKGROUND` asks for it. If the system refuses the thread, prints one line on standard error.
/// Must not be called in a signal handler.
#[cfg(feature = "c-api")]
pub fn start_background_thread_if_set() {
    if config::SETTINGS.background_thread.environment_value() == Some(true) {
        start_or_warn();
    }
}

/// Starts the thread as [`start_background_thread`] does, for callers that can't return an error.
fn start_or_warn() {
    IS_SETTLED.store(true, Ordering::Relaxed);
    if let Err(Some(Errno(code))) = start() {
        os::warn(format_args!(
            "the system refused the background thread (errno {code}); free memory is purged only while the program allocates"
        ));
    }
}

/// Starts the thread. The error is `None` while another thread is stopping it.
fn start() -> Result<(), Option<Errno>> {
    let own = os::process_generation();
    let before = STATE.load(Ordering::Relaxed);
    // A state that a forked child inherited has another generation.
    if before >> STATE_BITS == own {
        return if before == state_of(own, STOPPING) { Err(None) } else { Ok(()) };
    }
    let starting = state_of(own, STARTING);
    // SeqCst: a thread that changes the policy either sees this state and wakes the background thread, or the background thread sees the
    // change.
    if STATE.compare_exchange(before, starting, Ordering::SeqCst, Ordering::Relaxed).is_err() {
        // Another thread is starting it now.
        return Ok(());
    }
    let started = OwnThread::start(run, Some(STACK_BYTES)).inspect_err(|_| STATE.store(NONE, Ordering::Release));
    let thread = started.map_err(Some)?;
    // SAFETY: this thread moved the state to `STARTING`.
    unsafe { *HANDLE.0.get() = Some(thread) };
    STATE.store(state_of(own, RUNNING), Ordering::Release);
    Ok(())
}

/// Runs on the background thread: purges until the thread is stopped.
fn run() {
    loop {
        let ticket = PARKER.ticket();
        if STATE.load(Ordering::Relaxed) & STOPPING == STOPPING {
            break;
        }
        let pause = arena::purge::tick_in_background();
        if pause != Some(Duration::ZERO) {
            PARKER.sleep(ticket, pause);
        }
    }
}
