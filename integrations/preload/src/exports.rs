//! The C names by which programs reach [`functions`](crate::functions): the usual ones, and glibc's second names.
//! Wrappers of `malloc` call these with memory that other code allocated.
//!
//! If the program defines a function of one of these names, everyone gets the program's. So nothing else in this
//! library calls these.
#![allow(unsafe_code, reason = "the C library's names")]

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};

use crate::functions;
use crate::names::jumps;

macro_rules! exports {
    ($($name:literal => $function:ident($($argument:ident: $kind:ty),*) $(-> $answer:ty)?;)*) => {$(
        const _: () = {
            #[unsafe(export_name = $name)]
            unsafe extern "C" fn export($($argument: $kind),*) $(-> $answer)? {
                #[allow(unused_unsafe, reason = "some have no requirements")]
                // SAFETY: upheld by the caller, as for the function.
                unsafe {
                    functions::$function($($argument),*)
                }
            }
        };
    )*};
}

exports! {
    "malloc" => malloc(size: usize) -> *mut c_void;
    "free" => free(at: *mut c_void);
    "calloc" => calloc(count: usize, size: usize) -> *mut c_void;
    "realloc" => realloc(at: *mut c_void, size: usize) -> *mut c_void;
    "reallocarray" => reallocarray(at: *mut c_void, count: usize, size: usize) -> *mut c_void;
    "memalign" => memalign(align: usize, size: usize) -> *mut c_void;
    "aligned_alloc" => aligned_alloc(align: usize, size: usize) -> *mut c_void;
    "posix_memalign" => posix_memalign(place: *mut *mut c_void, align: usize, size: usize) -> c_int;
    "valloc" => valloc(size: usize) -> *mut c_void;
    "pvalloc" => pvalloc(size: usize) -> *mut c_void;
    "malloc_usable_size" => malloc_usable_size(at: *mut c_void) -> usize;
    "malloc_trim" => malloc_trim(pad: usize) -> c_int;

    // For old programs.
    "cfree" => free(at: *mut c_void);

    "__libc_malloc" => malloc(size: usize) -> *mut c_void;
    "__libc_free" => free(at: *mut c_void);
    "__libc_calloc" => calloc(count: usize, size: usize) -> *mut c_void;
    "__libc_realloc" => realloc(at: *mut c_void, size: usize) -> *mut c_void;
    "__libc_memalign" => memalign(align: usize, size: usize) -> *mut c_void;
    "__libc_valloc" => valloc(size: usize) -> *mut c_void;
    "__libc_pvalloc" => pvalloc(size: usize) -> *mut c_void;
}

// C23: calls the process's `free`, which finds the sizes itself.
jumps! {
    /// `free_sized(at, size)`.
    free_sized = "free_sized" -> "free";
    /// `free_aligned_sized(at, align, size)`.
    free_aligned_sized = "free_aligned_sized" -> "free";
}
