//! The C names by which programs reach [`functions`](crate::functions): the usual ones, and glibc's second names.
//! Wrappers of `malloc` call these with memory that other code allocated.
//!
//! If the program defines a function of one of these names, everyone gets the program's. So nothing else in this
//! library calls these.
#![allow(unsafe_code, reason = "the C library's names")]

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};

use crate::functions;
use crate::names::{jumps, label};

macro_rules! exports {
    ($($name:literal: fn $own:ident($($argument:ident: $kind:ty),*) $(-> $answer:ty)? = $function:ident($($passed:ident),*);)*) => {$(
        #[doc = concat!("[`", stringify!($function), "`](functions::", stringify!($function), ").")]
        ///
        /// # Safety
        /// As for the function that it calls.
        #[unsafe(export_name = $name)]
        pub(crate) unsafe extern "C" fn $own($($argument: $kind),*) $(-> $answer)? {
            #[allow(unused_unsafe, reason = "some have no requirements")]
            // SAFETY: upheld by the caller.
            unsafe {
                functions::$function($($passed),*)
            }
        }
    )*};
}

exports! {
    "malloc": fn malloc(size: usize) -> *mut c_void = malloc(size);
    "free": fn free(at: *mut c_void) = free(at);
    "calloc": fn calloc(count: usize, size: usize) -> *mut c_void = calloc(count, size);
    "realloc": fn realloc(at: *mut c_void, size: usize) -> *mut c_void = realloc(at, size);
    "reallocarray": fn reallocarray(at: *mut c_void, count: usize, size: usize) -> *mut c_void =
        reallocarray(at, count, size);
    "memalign": fn memalign(align: usize, size: usize) -> *mut c_void = memalign(align, size);
    "aligned_alloc": fn aligned_alloc(align: usize, size: usize) -> *mut c_void = aligned_alloc(align, size);
    "posix_memalign": fn posix_memalign(place: *mut *mut c_void, align: usize, size: usize) -> c_int =
        posix_memalign(place, align, size);
    "valloc": fn valloc(size: usize) -> *mut c_void = valloc(size);
    "pvalloc": fn pvalloc(size: usize) -> *mut c_void = pvalloc(size);
    "malloc_usable_size": fn malloc_usable_size(at: *mut c_void) -> usize = malloc_usable_size(at);
    "malloc_trim": fn malloc_trim(pad: usize) -> c_int = malloc_trim(pad);

    // For old programs.
    "cfree": fn cfree(at: *mut c_void) = free(at);

    "__libc_malloc": fn libc_malloc(size: usize) -> *mut c_void = malloc(size);
    "__libc_free": fn libc_free(at: *mut c_void) = free(at);
    "__libc_calloc": fn libc_calloc(count: usize, size: usize) -> *mut c_void = calloc(count, size);
    "__libc_realloc": fn libc_realloc(at: *mut c_void, size: usize) -> *mut c_void = realloc(at, size);
    "__libc_memalign": fn libc_memalign(align: usize, size: usize) -> *mut c_void = memalign(align, size);
    "__libc_valloc": fn libc_valloc(size: usize) -> *mut c_void = valloc(size);
    "__libc_pvalloc": fn libc_pvalloc(size: usize) -> *mut c_void = pvalloc(size);
}

// C23: calls the process's `free`, which finds the sizes itself.
jumps! {
    /// `free_sized(at, size)`.
    free_sized = "free_sized" -> "free";
    /// `free_aligned_sized(at, align, size)`.
    free_aligned_sized = "free_aligned_sized" -> "free";
}
