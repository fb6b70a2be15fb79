//! glibc's own allocation functions, by the names that it exports for libraries such as this one. To look them up by `dlsym` would
//! call `malloc` before there is one.
#![allow(unsafe_code, reason = "calls the C library")]

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

unsafe extern "C" {
    pub(crate) fn __libc_malloc(size: usize) -> *mut c_void;
    pub(crate) fn __libc_free(at: *mut c_void);
    pub(crate) fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    pub(crate) fn __libc_realloc(at: *mut c_void, size: usize) -> *mut c_void;
    pub(crate) fn __libc_memalign(align: usize, size: usize) -> *mut c_void;
    pub(crate) fn __libc_valloc(size: usize) -> *mut c_void;
    pub(crate) fn __libc_pvalloc(size: usize) -> *mut c_void;
}

/// A function of glibc's that has no second name. Ours comes first in the order of the loader, so that it has to be looked up
/// behind ours, once, before the library is in use.
pub(crate) struct Next(AtomicPtr<c_void>);

pub(crate) static NEXT_USABLE_SIZE: Next = Next(AtomicPtr::new(null_mut()));
pub(crate) static NEXT_TRIM: Next = Next(AtomicPtr::new(null_mut()));

/// Looks up what has no second name. `false` where something is missing.
pub(crate) fn look_up() -> bool {
    [(&NEXT_USABLE_SIZE, c"malloc_usable_size"), (&NEXT_TRIM, c"malloc_trim")].into_iter().all(|(next, name)| {
        // SAFETY: a name that ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        next.0.store(found, Ordering::Relaxed);
        !found.is_null()
    })
}

/// The length of glibc's memory, in bytes; 0 before [`look_up`], and for null.
///
/// # Safety
/// `at` is null, or memory of glibc's that was not freed.
pub(crate) unsafe fn usable_size(at: *mut c_void) -> usize {
    let next = NEXT_USABLE_SIZE.0.load(Ordering::Relaxed);
    if next.is_null() {
        return 0;
    }
    // SAFETY: `malloc_usable_size` of glibc's, which has this type.
    let next = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> usize>(next) };
    // SAFETY: the caller's.
    unsafe { next(at) }
}

/// Gives what is free in glibc's heap back, all but `pad` bytes at its end; whether anything was.
pub(crate) fn trim(pad: usize) -> bool {
    let next = NEXT_TRIM.0.load(Ordering::Relaxed);
    if next.is_null() {
        return false;
    }
    // SAFETY: `malloc_trim` of glibc's, which has this type, and no demands.
    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(usize) -> c_int>(next)(pad) != 0 }
}

/// What glibc sees come and go once, in bytes: from then on it keeps twice as much at the end of its heap, instead of giving it
/// back at every free. What would have taught it that comes to the arena now.
const TEACHING_BYTES: usize = 4 << 20;

/// Readies glibc's heap for a life without large buffers: gives back the holes that they leave, and sees one of them.
#[cold]
pub(crate) fn take_over() {
    trim(0);
    // SAFETY: freed one line below.
    let at = std::hint::black_box(unsafe { __libc_malloc(TEACHING_BYTES) });
    // SAFETY: allocated one line above, or null.
    unsafe { __libc_free(at) };
}

/// See the module's documentation.
pub(crate) struct Glibc;

// SAFETY: glibc's functions, whose memory lies on multiples of 16.
unsafe impl GlobalAlloc for Glibc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: glibc's functions take any length and any power of two.
        unsafe { __libc_memalign(layout.align().max(arena::c_api::MIN_ALIGN), layout.size()) }.cast()
    }

    unsafe fn dealloc(&self, ptr: *mut u8, _layout: Layout) {
        // SAFETY: the caller's: it came from `alloc`.
        unsafe { __libc_free(ptr.cast()) };
    }
}
