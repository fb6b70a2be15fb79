//! Tells the observers about allocations and frees: the tracing of allocations that outlive their phase, and the profile.

use std::ptr::NonNull;

use crate::gate::{self, Observer, is_told};
use crate::profile::{self, Source};
use crate::{arena, escape};

/// Tells the observers that the arena serves a request for `size` bytes at `at`. Returns the address, so that this call can be the last step
/// of the request.
#[inline(always)]
pub(crate) fn allocated(at: NonNull<u8>, size: usize) -> *mut u8 {
    if gate::is_observed() { tell_allocated(at, size) } else { at.as_ptr() }
}

#[cold]
#[inline(never)]
fn tell_allocated(at: NonNull<u8>, size: usize) -> *mut u8 {
    if is_told(Observer::Escapes) {
        escape::allocated(at.addr().get(), size);
    }
    profile_allocated(at, size);
    at.as_ptr()
}

/// Tells the observers that the arena's memory at `at` is about to be free. Once it is, another thread may get it.
#[inline(always)]
pub(crate) fn will_free(at: NonNull<u8>) {
    if gate::is_observed() {
        tell_freed(at);
    }
}

#[cold]
#[inline(never)]
fn tell_freed(at: NonNull<u8>) {
    if is_told(Observer::Escapes) {
        escape::freed(at.addr().get());
    }
    profile_freed(at.as_ptr());
}

/// Tells the observers that the arena's memory at `at` has a new length.
#[inline(always)]
pub(crate) fn resized(at: NonNull<u8>, size: usize) {
    will_free(at);
    allocated(at, size);
}

/// As [`allocated`], for the profile alone.
#[inline(always)]
pub(crate) fn profile_allocated(at: NonNull<u8>, size: usize) {
    if is_profiled() {
        let served_bytes = || arena::get().map_or(size, |arena| arena.length(at, size));
        profile::allocated(at.addr().get(), size, Source::Arena, served_bytes);
    }
}

/// Tells the profile alone that memory at `at`, of the arena or of the backing allocator, is about to be freed.
#[inline(always)]
pub(crate) fn profile_freed(at: *mut u8) {
    if is_profiled() {
        profile::freed(at.addr());
    }
}

/// As [`resized`], for the profile alone.
#[cfg(feature = "c-api")]
#[inline(always)]
pub(crate) fn profile_resized(at: NonNull<u8>, size: usize) {
    profile_freed(at.as_ptr());
    profile_allocated(at, size);
}

/// Whether an observer may need to know that the memory at `at` is freed. Called only if an observer is on.
#[inline(always)]
pub(crate) fn may_concern(at: *mut u8) -> bool {
    is_told(Observer::Escapes) || profile::may_hold(at.addr())
}

/// Tells the profile that the backing allocator served a request for `size` bytes at `at`. Does nothing if `at` is null.
#[inline(always)]
pub(crate) fn backing_allocated(at: *mut u8, size: usize) {
    if is_profiled() && !at.is_null() {
        profile::allocated(at.addr(), size, Source::Backing, || size);
    }
}

/// Whether the profile is on.
#[inline(always)]
pub(crate) fn is_profiled() -> bool {
    cfg!(feature = "profile") && is_told(Observer::Profile)
}

#[cfg(not(feature = "profile"))]
pub(crate) mod no_profile {
    //! Replaces the module `profile` without its feature: nothing is sampled.

    pub(crate) enum Source {
        Arena,
        Backing,
    }

    pub(crate) fn start_if_set() {}

    pub(crate) fn allocated(_at: usize, _size: usize, _source: Source, _served_bytes: impl FnOnce() -> usize) {}

    pub(crate) fn fresh(_bytes: usize) {}

    pub(crate) fn freed(_at: usize) {}

    pub(crate) fn may_hold(_at: usize) -> bool {
        false
    }
}
