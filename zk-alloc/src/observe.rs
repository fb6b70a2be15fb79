//! Tells the observers of allocations and frees.

use std::ptr::NonNull;

use crate::escape;
use crate::gate::{Observer, is_told};
use crate::profile::{self, Source};

/// The arena served a request for `size` bytes at `at`, with `served_bytes` of its memory.
#[cold]
#[inline(never)]
pub(crate) fn allocated(at: NonNull<u8>, size: usize, served_bytes: impl FnOnce() -> usize) {
    tell(at, size, served_bytes);
}

#[inline(always)]
fn tell(at: NonNull<u8>, size: usize, served_bytes: impl FnOnce() -> usize) {
    if is_told(Observer::Escapes) {
        escape::allocated(at.addr().get(), size);
    }
    if is_profiled() {
        profile::allocated(at.addr().get(), size, Source::Arena, served_bytes);
    }
}

/// As [`allocated`], of a block from the thread's cache. Returns its address, so that this call can be the request's last step.
#[cold]
#[inline(never)]
pub(crate) fn cached(at: NonNull<u8>, size: usize, served_bytes: impl FnOnce() -> usize) -> *mut u8 {
    tell(at, size, served_bytes);
    at.as_ptr()
}

/// The allocation at `at` is about to be freed, or has a new length.
#[cold]
#[inline(never)]
pub(crate) fn freed(at: NonNull<u8>) {
    if is_told(Observer::Escapes) {
        escape::freed(at.addr().get());
    }
    if is_profiled() {
        profile::freed(at.addr().get());
    }
}

/// Whether an observer may want to be told that the memory at `at` is freed. Called if there is one.
#[inline(always)]
pub(crate) fn may_concern(at: *mut u8) -> bool {
    is_told(Observer::Escapes) || profile::may_hold(at.addr())
}

/// The backing allocator served a request for `size` bytes at `at`, or refused it and returned null.
#[inline(always)]
pub(crate) fn backing_allocated(at: *mut u8, size: usize) {
    if is_profiled() && !at.is_null() {
        profile::allocated(at.addr(), size, Source::Backing, || size);
    }
}

/// The memory of the backing allocator at `at` is about to be freed.
#[inline(always)]
pub(crate) fn backing_freed(at: *mut u8) {
    if is_profiled() {
        profile::freed(at.addr());
    }
}

/// Whether the profile is on.
#[inline(always)]
pub(crate) fn is_profiled() -> bool {
    cfg!(feature = "profile") && is_told(Observer::Profile)
}
