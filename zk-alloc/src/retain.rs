//! What stays resident when nothing runs.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::arena::{self, GiveBack};
use crate::os;

/// What the arena keeps resident when the last open phase ends. Free memory only: what is in use is never touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retain {
    /// Everything: the next phase finds its pages, and RSS stays at its peak.
    Always,
    /// At most so many bytes, what is in use included. The default, with `ZK_ALLOC_RETAIN_BYTES`, or else half of the
    /// memory that the process may use (its control group's limit or the machine's memory).
    Bytes(usize),
    /// Everything, until no phase was open for so long; then nothing. A thread of the arena's waits for that; a
    /// child that is forked off has none, and keeps what it has until [`release`].
    For(Duration),
    /// Nothing: every phase pays for its pages again.
    Never,
}

/// Tags and values of `POLICY`, which is one word so that it changes at once: the tag in the two highest bits.
const VALUE_BITS: u32 = 62;
const DEFAULT: u64 = 0;
const BYTES: u64 = 1 << VALUE_BITS;
const FOR_MILLIS: u64 = 2 << VALUE_BITS;
const TAG_MASK: u64 = 3 << VALUE_BITS;

static POLICY: AtomicU64 = AtomicU64::new(DEFAULT);

/// Chooses what stays resident from now on. It takes effect when the last open phase ends.
///
/// ```
/// use std::time::Duration;
/// zk_alloc::set_retain(zk_alloc::Retain::For(Duration::from_secs(30)));
/// ```
pub fn set_retain(retain: Retain) {
    let bytes = |bytes: u64| BYTES | bytes.min(!TAG_MASK);
    let policy = match retain {
        Retain::Always => bytes(u64::MAX),
        Retain::Bytes(limit) => bytes(limit as u64),
        Retain::For(idle) => FOR_MILLIS | u64::try_from(idle.as_millis()).unwrap_or(u64::MAX).min(!TAG_MASK),
        Retain::Never => bytes(0),
    };
    POLICY.store(policy, Ordering::Relaxed);
}

/// Carries the policy out.
///
/// `is_phase_open` is asked by the thread that waits for idleness.
pub(crate) fn last_phase_ended(is_phase_open: fn() -> bool) {
    let Some(arena) = arena::get() else { return };
    // The next phase may begin on other threads.
    arena.release_kept();
    let policy = POLICY.load(Ordering::Relaxed);
    let keep = match policy & TAG_MASK {
        BYTES => usize::try_from(policy & !TAG_MASK).unwrap_or(usize::MAX),
        FOR_MILLIS => return release_when_idle(is_phase_open),
        _ => arena.config().retain_bytes,
    };
    if arena::resident_bytes() > keep {
        arena.trim(keep, GiveBack::Now);
    }
}

/// Milliseconds since the first call.
fn now_millis() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// When the last phase ended, by [`now_millis`].
static IDLE_SINCE: AtomicU64 = AtomicU64::new(0);

/// Wakes the thread that waits for idleness, or starts it.
fn release_when_idle(is_phase_open: fn() -> bool) {
    static WAITER: OnceLock<Option<Thread>> = OnceLock::new();
    IDLE_SINCE.store(now_millis(), Ordering::Relaxed);
    let waiter = WAITER.get_or_init(|| {
        let builder = thread::Builder::new().name("zk-alloc-retain".into()).stack_size(64 << 10);
        match builder.spawn(move || wait_for_idleness(is_phase_open)) {
            Ok(handle) => Some(handle.thread().clone()),
            Err(error) => {
                os::warn(format_args!(
                    "cannot start a thread to release memory after idling ({error}); memory stays until release()"
                ));
                None
            }
        }
    });
    if let Some(thread) = waiter {
        thread.unpark();
    }
}

fn wait_for_idleness(is_phase_open: fn() -> bool) -> ! {
    let mut released_at = None;
    loop {
        let policy = POLICY.load(Ordering::Relaxed);
        let idle_since = IDLE_SINCE.load(Ordering::Relaxed);
        let due = idle_since.saturating_add(policy & !TAG_MASK);
        let now = now_millis();
        if policy & TAG_MASK != FOR_MILLIS || is_phase_open() || released_at == Some(idle_since) {
            thread::park();
        } else if now < due {
            thread::park_timeout(Duration::from_millis(due - now));
        } else {
            release();
            released_at = Some(idle_since);
        }
    }
}

/// Gives all free memory of the arena back to the system, and returns how many bytes went; so does glibc's heap with what
/// is free in it, uncounted. What is in use stays as it is. The next phase pays for its pages again; in between, the
/// process is as small as without the arena.
///
/// ```
/// zk_alloc::phase(|| drop(vec![1u8; 1 << 20]));
/// zk_alloc::release();
/// ```
pub fn release() -> usize {
    os::trim_heap();
    arena::get().map_or(0, |arena| arena.trim(0, GiveBack::Now))
}

/// Lets the system take the arena's free memory when it runs short (`MADV_FREE`), and returns how many bytes that may be.
/// Until then the next phase finds its pages, without a fault; RSS as the kernel counts it does not fall before.
pub fn soften() -> usize {
    arena::get().map_or(0, |arena| arena.trim(0, GiveBack::WhenShort))
}

/// Makes `bytes` of the arena resident ahead of the first phase, on several threads (`MADV_POPULATE_WRITE` where there is
/// one), and returns how many bytes are. For the one giant buffer of a prover, ask for its size: the memory is in the zone
/// of requests that large.
pub fn reserve(bytes: usize) -> usize {
    if bytes == 0 {
        return 0;
    }
    arena::open().map_or(0, |arena| {
        arena.populate(bytes, |memory| {
            let threads = arena.config().threads;
            std::thread::scope(|scope| {
                for part in 0..threads {
                    let memory = &memory;
                    let page_in = move || memory.part(part, threads);
                    // Without another thread, this one does it.
                    if std::thread::Builder::new().spawn_scoped(scope, page_in).is_err() {
                        memory.part(part, threads);
                    }
                }
            });
        })
    })
}
