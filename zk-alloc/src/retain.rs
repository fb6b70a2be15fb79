//! What stays resident when nothing runs.

use std::hint::black_box;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::thread;
use std::time::Duration;

use crate::arena::{self, GiveBack};
use crate::config::{self, Settings};
use crate::os::{self, Errno, Parking};
use crate::{helpers, open_phases};

/// What the arena keeps resident when the last open phase ends. Free memory only: what is in use is never touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retain {
    /// Everything: the next phase finds its pages, and RSS stays at its peak.
    Always,
    /// At most so many bytes, what is in use included. The default, with `ZK_ALLOC_RETAIN_BYTES`, or else half of the
    /// memory that the process may use (its control group's limit or the machine's memory).
    Bytes(usize),
    /// Everything, until no phase was open for so long; then nothing. A thread of the arena's waits for that, which
    /// [`set_retain`] starts. A child that is forked off has none, and keeps what it has until [`release`], unless it calls
    /// [`set_retain`] itself.
    ///
    /// Where an allocator takes part always ([`Mode::Resident`](crate::Mode::Resident)): what was alive at most in so long,
    /// whether phases are open or not. That is the default there, with `ZK_ALLOC_RETAIN_FOR` seconds, or else 8.
    For(Duration),
    /// Nothing: every phase pays for its pages again.
    Never,
}

/// Tags and values of `POLICY`, which is one word so that it changes at once: the tag in the two highest bits.
const VALUE_BITS: u32 = 62;
const DEFAULT: u64 = 0;
const BYTES: u64 = 1 << VALUE_BITS;
const FOR_NS: u64 = 2 << VALUE_BITS;
const TAG_MASK: u64 = 3 << VALUE_BITS;

static POLICY: AtomicU64 = AtomicU64::new(DEFAULT);

/// Chooses what stays resident from now on. It takes effect when the last open phase ends; with
/// [`ZkAllocator::resident`](crate::ZkAllocator::resident) at once, where [`Retain::For`] says how soon memory comes down by itself, and any
/// other policy that it does not.
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
        Retain::For(idle) => FOR_NS | u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX).min(!TAG_MASK),
        Retain::Never => bytes(0),
    };
    POLICY.store(policy, Ordering::SeqCst);
    if FOLLOWS.load(Ordering::SeqCst) {
        follow();
    } else if matches!(retain, Retain::For(_)) {
        spawn_waiter();
    }
    // It may be asleep over another policy.
    WAITER.wake();
}

/// Whether an allocator takes part always, so that no phase ends that could say when memory may go.
static FOLLOWS: AtomicBool = AtomicBool::new(false);

/// From now on memory comes down by itself, for an allocator that takes part always. Waits for nobody, and allocates nothing.
pub(crate) fn follow_live() {
    FOLLOWS.store(true, Ordering::SeqCst);
    follow();
}

/// What stays resident follows what was alive at most in the last seconds: those of [`Retain::For`], or those of the setting. Under
/// another policy, nothing goes by itself.
fn follow() {
    let Some(arena) = arena::get() else { return };
    let policy = POLICY.load(Ordering::SeqCst);
    let window_ns = match policy & TAG_MASK {
        DEFAULT => match arena.config().settings.retain_for.value {
            Duration::MAX => 0,
            time => u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1),
        },
        FOR_NS => (policy & !TAG_MASK).max(1),
        _ => 0,
    };
    if let Err(Errno(code)) = arena::follow(window_ns) {
        os::warn(format_args!(
            "the system has no memory to note what is retained (errno {code}); it stays until release()"
        ));
    }
}

/// While a phase is open, all that is freed in it stays.
pub(crate) fn first_phase_began() {
    // Pairs with the one below: either that thread sees the phase, or what it said comes before this.
    fence(Ordering::SeqCst);
    arena::set_kept(usize::MAX);
}

/// What is freed from now on, outside of phases, is subject to the policy too.
fn keep_between_phases(bytes: usize) {
    arena::set_kept(bytes);
    // Another thread may have begun a phase meanwhile, and said the opposite before.
    fence(Ordering::SeqCst);
    if open_phases::is_any() {
        first_phase_began();
    }
}

/// Carries the policy out. Waits for nobody, and allocates nothing.
pub(crate) fn last_phase_ended() {
    let Some(arena) = arena::get() else { return };
    arena.look_for_huge_pages();
    // The next phase may begin on other threads.
    arena.release_kept();
    let policy = POLICY.load(Ordering::Relaxed);
    let keep = match policy & TAG_MASK {
        BYTES => usize::try_from(policy & !TAG_MASK).unwrap_or(usize::MAX),
        FOR_NS if FOLLOWS.load(Ordering::Relaxed) => return,
        FOR_NS => return idle_from_now(),
        _ => arena.config().settings.retain_bytes.value,
    };
    if arena::resident_bytes() > keep {
        arena.trim(keep, GiveBack::Now);
    }
    keep_between_phases(keep);
}

/// When the last phase ended, by `os::monotonic_ns`; 0 as long as none did under [`Retain::For`].
static IDLE_SINCE: AtomicU64 = AtomicU64::new(0);
/// Where the thread sleeps that waits for idleness.
static WAITER: Parking = Parking::new();
/// Whether it has nothing to wait for, and sleeps until it is woken. While it sleeps for some time, it need not be: then it
/// looks again by itself.
static WAITER_HAS_NO_ALARM: AtomicBool = AtomicBool::new(false);

fn idle_from_now() {
    IDLE_SINCE.store(os::monotonic_ns().max(1), Ordering::SeqCst);
    // Either this sees that the waiter has no alarm, or the waiter, which looks once more after it said so, sees the store.
    if WAITER_HAS_NO_ALARM.swap(false, Ordering::SeqCst) {
        WAITER.wake();
    }
}

/// Starts the thread that waits for idleness, if this process has none. (A forked child has none of its parent's.)
fn spawn_waiter() {
    /// The process that has it, by its number; 0 where there is none.
    static WAITER_OF: AtomicU32 = AtomicU32::new(0);
    let own = process::id();
    if WAITER_OF.swap(own, Ordering::SeqCst) == own {
        return;
    }
    let builder = thread::Builder::new().name("zk-alloc-retain".into()).stack_size(helpers::STACK_BYTES);
    if let Err(error) = builder.spawn(wait_for_idleness) {
        WAITER_OF.store(0, Ordering::SeqCst);
        os::warn(format_args!(
            "cannot start a thread to release memory after idling ({error}); memory stays until release()"
        ));
    }
}

/// What the waiter has to do.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    Never,
    In(Duration),
    Now,
}

/// What is due under a policy, where the process is idle since `idle_since` and memory was last released for `released`.
fn due(policy: u64, idle_since: u64, released: u64, now: u64) -> Due {
    if policy & TAG_MASK != FOR_NS || idle_since == released {
        return Due::Never;
    }
    match idle_since.saturating_add(policy & !TAG_MASK).saturating_sub(now) {
        0 => Due::Now,
        wait => Due::In(Duration::from_nanos(wait)),
    }
}

fn wait_for_idleness() {
    let mut released = 0;
    loop {
        let ticket = WAITER.ticket();
        WAITER_HAS_NO_ALARM.store(true, Ordering::SeqCst);
        let (policy, idle_since) = (POLICY.load(Ordering::SeqCst), IDLE_SINCE.load(Ordering::SeqCst));
        let due = due(policy, idle_since, released, os::monotonic_ns());
        // Until a phase that is open now ends, nothing is due: its end wakes this thread.
        if due == Due::Never || open_phases::is_any() {
            WAITER.sleep(ticket, None);
            continue;
        }
        WAITER_HAS_NO_ALARM.store(false, Ordering::SeqCst);
        match due {
            Due::In(time) => WAITER.sleep(ticket, Some(time)),
            _ => {
                release();
                keep_between_phases(0);
                released = idle_since;
            }
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
/// Until then the next phase finds its pages, without a fault; RSS as the kernel counts it does not fall before. (But of a huge
/// page of which a part is in use, Linux from 6.12 on takes at once what holds nothing but zeroes. `stats()` counts as
/// resident what was softened, until it is given back or used again.)
///
/// ```
/// # #[global_allocator]
/// # static ALLOC: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;
/// zk_alloc::phase(|| drop(vec![1u8; 1 << 20]));
/// println!("the system may take {} bytes", zk_alloc::soften());
/// ```
pub fn soften() -> usize {
    arena::get().map_or(0, |arena| arena.trim(0, GiveBack::WhenShort))
}

/// Makes `bytes` of the arena resident ahead of the first phase, on several threads (`MADV_POPULATE_WRITE` where there is
/// one), and returns how many bytes are. For the one giant buffer of a prover, ask for its size: the memory is in the zone
/// of requests that large. 0 where there is no arena, or the system refused.
///
/// ```
/// # #[global_allocator]
/// # static ALLOC: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;
/// let resident_bytes = zk_alloc::reserve(32 << 20); // at start-up; the first phase then finds its pages
/// assert!(resident_bytes <= zk_alloc::stats().resident_bytes);
/// ```
pub fn reserve(bytes: usize) -> usize {
    if bytes == 0 {
        return 0;
    }
    // The program's settings come with the first request. This may be it; if no allocator of ours is asked, there are none.
    drop(black_box(Box::new(0u8)));
    config::introduce(&Settings::new());
    arena::open().map_or(0, |arena| {
        let threads = arena.config().threads;
        arena.populate(bytes, |memory| helpers::in_parallel(threads, &|part| memory.part(part, threads)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_due_once_for_each_time_of_idleness_also_for_less_than_a_millisecond() {
        let policy = FOR_NS | 500;
        assert_eq!(due(policy, 0, 0, 10_000), Due::Never, "no phase has ended");
        assert_eq!(due(policy, 1_000, 0, 1_200), Due::In(Duration::from_nanos(300)));
        assert_eq!(due(policy, 1_000, 0, 1_500), Due::Now);
        assert_eq!(due(policy, 1_000, 1_000, 9_000), Due::Never, "it was released");
        assert_eq!(due(policy, 8_900, 1_000, 9_000), Due::In(Duration::from_nanos(400)));
        assert_eq!(due(FOR_NS, 8_900, 1_000, 8_900), Due::Now);
        assert_eq!(due(BYTES, 8_900, 1_000, 9_000_000), Due::Never, "another policy");
        assert!(matches!(due(FOR_NS | !TAG_MASK, u64::MAX / 2, 0, 1), Due::In(_)));
    }
}
