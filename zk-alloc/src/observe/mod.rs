//! Records allocations and frees: samples for the profile, and every request of the arena while escapes are traced.
//!
//! Recording allocates nothing and takes no lock, so it is safe in signal handlers and after a fork.

pub(crate) mod live;
pub(crate) mod sampler;
pub(crate) mod sites;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::frames::Frames;
use crate::gate::{self, Observer};
use crate::{arena, escape, os};
use sampler::Noted;
use sites::Source;

/// The number of calls to [`begin`]. A sample that a thread started before the latest call is dropped.
static EPOCH: AtomicU32 = AtomicU32::new(0);

/// Discards earlier samples, and maps the tables. If the system refuses memory for them, prints a warning and returns `false`.
pub(crate) fn begin() -> bool {
    if let Err(refused) = sites::TABLE.map().and_then(|()| live::TABLE.map()) {
        os::warn(format_args!(
            "the system refused memory for samples of call sites (errno {}); nothing is sampled",
            refused.0
        ));
        return false;
    }
    EPOCH.fetch_add(1, Ordering::AcqRel);
    sites::clear();
    live::clear();
    sampler::MISSED.store(0, Ordering::Relaxed);
    // The first stack walk initialises the unwinder. Do one now, because the first sample may be taken in a signal handler, which must not
    // initialise the unwinder.
    std::hint::black_box(Frames::capture());
    true
}

/// Returns whether the profile is on.
#[inline(always)]
pub(crate) fn is_profiled() -> bool {
    cfg!(feature = "profile") && gate::is_told(Observer::Profile)
}

/// Notifies the observers that the arena served a request for `size` bytes at `at`. Returns the address, so that the caller can make this a
/// tail call.
#[inline(always)]
pub(crate) fn allocated(at: NonNull<u8>, size: usize) -> *mut u8 {
    if gate::is_observed() { tell_allocated(at, size) } else { at.as_ptr() }
}

#[cold]
#[inline(never)]
fn tell_allocated(at: NonNull<u8>, size: usize) -> *mut u8 {
    record(at.addr().get(), size, Source::Arena, || arena::get().map_or(size, |arena| arena.length(at, size)));
    at.as_ptr()
}

/// Notifies the profile that the backing allocator served a request for `size` bytes at `at`. Does nothing if `at` is null.
#[inline(always)]
pub(crate) fn backing_allocated(at: *mut u8, size: usize) {
    if is_profiled() && !at.is_null() {
        record(at.addr(), size, Source::Backing, || size);
    }
}

/// Notifies the observers that memory at `at`, of the arena or of the backing allocator, is about to be freed. Call it before the free:
/// after it, another thread may get the memory.
#[inline(always)]
pub(crate) fn will_free(at: *mut u8) {
    if gate::is_observed() && may_concern(at) {
        forget(at.addr());
    }
}

/// Notifies the observers that the arena's memory at `at` has a new length.
#[inline(always)]
pub(crate) fn resized(at: NonNull<u8>, size: usize) {
    will_free(at.as_ptr());
    allocated(at, size);
}

/// Returns whether an observer may need to know that the memory at `at` is freed. Called only if an observer is on.
#[inline(always)]
pub(crate) fn may_concern(at: *mut u8) -> bool {
    live::may_hold(at.addr())
}

/// Records a request for `size` bytes, which was served at `at`, if it is sampled.
fn record(at: usize, size: usize, source: Source, served_bytes: impl FnOnce() -> usize) {
    let epoch = EPOCH.load(Ordering::Acquire);
    let Some(weight) = sampler::sample(size) else { return };
    let Some(site) = sampler::exclusively(|| here(source)) else { return };
    let noted = Noted::of(weight, served_bytes());
    if live::insert(at, site, noted, escape::window()) {
        // The tables were cleared in between.
        if EPOCH.load(Ordering::Acquire) != epoch {
            live::remove(at);
            return;
        }
        sites::born(site, noted);
    } else {
        sampler::miss();
    }
}

/// Records `bytes` of a request that become resident, if they are sampled.
#[cold]
pub(crate) fn fresh(bytes: usize) {
    let Some(weight) = sampler::sample(bytes) else { return };
    if let Some(site) = sampler::exclusively(|| here(Source::Arena)) {
        sites::fresh(site, Noted::of(weight, bytes).bytes);
    }
}

/// Returns the site of this thread's current call chain. The stack of a signal handler may be too short for a stack walk, so the site has
/// no addresses there.
fn here(source: Source) -> sites::Index {
    if os::may_be_on_signal_stack() {
        return sites::find(&[], source);
    }
    sites::find(Frames::capture().addresses(), source)
}

#[cold]
fn forget(at: usize) {
    if let Some((site, noted)) = live::remove(at) {
        sites::died(site, noted);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// Returns a guard that only one test at a time can hold. Tests that use the tables hold it.
    pub(super) fn turn() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
