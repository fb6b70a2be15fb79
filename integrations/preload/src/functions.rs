//! The functions that programs call, exported under the names at the end of this file. A request below the threshold costs one comparison
//! before it goes to glibc. Freed memory belongs to the arena if it is in the arena's address space, and to glibc otherwise.
//!
//! Nothing here unwinds: a panic in one of these functions ends the process. If a hard limit leaves the arena no memory for a request, the
//! request fails. If the arena has no memory for another reason, the request goes to glibc, which sets `errno` if it has none either.
#![allow(unsafe_code, reason = "the C library's functions")]

use std::arch::{asm, naked_asm};
use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr::{copy_nonoverlapping, null_mut};

use arena::c_api::{self, Cached, Freed, MIN_ALIGN, NotFreeable, Resized, Unserved};

use crate::names::{jumps, named};
use crate::{glibc, start};

/// Returns memory from the arena, or null with `errno` set if the request fails. Returns `None` if glibc must serve the request.
#[inline]
fn from_arena(size: usize, align: usize, zeroed: bool) -> Option<*mut c_void> {
    match c_api::alloc(size, align, zeroed, start::arena_opened) {
        Ok(at) => Some(at.as_ptr().cast()),
        Err(Unserved::BackingServes) => None,
        Err(Unserved::Fails) => Some(fails(libc::ENOMEM)),
    }
}

/// Sets `errno` to the reason, and returns null.
#[cold]
fn fails(reason: c_int) -> *mut c_void {
    // SAFETY: the pointer is to this thread's own `errno`.
    unsafe { *libc::__errno_location() = reason };
    null_mut()
}

/// The slow path of [`malloc`]. It is `extern "C"`, so that `malloc` can jump here and need not save registers on its fast path.
#[inline(never)]
extern "C" fn malloc_any(size: usize) -> *mut c_void {
    if let Some(at) = start::answer_to_probe(size) {
        return at;
    }
    // SAFETY: malloc(3) accepts any size.
    from_arena(size, MIN_ALIGN, false).unwrap_or_else(|| unsafe { glibc::malloc(size) })
}

/// malloc(3).
#[inline(always)]
pub(crate) extern "C" fn malloc(size: usize) -> *mut c_void {
    if !start::is_for_arena(size) {
        // SAFETY: malloc(3) accepts any size.
        return unsafe { glibc::malloc(size) };
    }
    match c_api::alloc_cached(size) {
        Some(at) => at.as_ptr().cast(),
        None => malloc_any(size),
    }
}

/// free(3).
///
/// # Safety
/// The caller must meet the C standard's requirements for this function.
#[inline(always)]
pub(crate) unsafe extern "C" fn free(at: *mut c_void) {
    // SAFETY: the caller upholds this function's contract.
    match unsafe { c_api::put_cached(at.cast()) } {
        Cached::Done => {}
        // SAFETY: the caller upholds this function's contract; memory outside the arena came from glibc.
        Cached::Elsewhere => unsafe { glibc::free(at) },
        // SAFETY: the caller upholds this function's contract; the memory is not freed yet.
        Cached::Unknown => unsafe { free_any(at) },
    }
}

/// The slow path of [`free`].
///
/// # Safety
/// Same as for [`free`].
#[inline(never)]
unsafe extern "C" fn free_any(at: *mut c_void) {
    // SAFETY: the caller upholds this function's contract.
    match unsafe { c_api::dealloc(at.cast()) } {
        Freed::Here => {}
        // SAFETY: the caller upholds this function's contract; memory outside the arena came from glibc.
        Freed::Elsewhere => unsafe { glibc::free(at) },
        Freed::Not(why) => invalid("free", at, why),
    }
}

/// Prints why the address can't be freed, and ends the process, as glibc does. The address was already freed, or never handed out.
#[cold]
fn invalid(function: &str, at: *mut c_void, why: NotFreeable) -> ! {
    c_api::print_line(format_args!("{function}({at:p}): {why}"));
    // SAFETY: abort(3) has no preconditions.
    unsafe { libc::abort() }
}

/// calloc(3).
pub(crate) extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    if let Some(bytes) = count.checked_mul(size)
        && start::is_for_arena(bytes)
        && let Some(at) = from_arena(bytes, MIN_ALIGN, true)
    {
        return at;
    }
    // SAFETY: calloc(3) accepts any sizes; glibc refuses a product that overflows.
    unsafe { glibc::calloc(count, size) }
}

/// realloc(3).
///
/// # Safety
/// The caller must meet the C standard's requirements for this function.
pub(crate) unsafe extern "C" fn realloc(at: *mut c_void, size: usize) -> *mut c_void {
    if at.is_null() {
        return malloc(size);
    }
    if !c_api::owns(at.cast()) {
        // SAFETY: the caller upholds this function's contract; memory outside the arena came from glibc.
        return unsafe { realloc_of_glibc(at, size) };
    }
    if size == 0 {
        // As in glibc, a size of 0 frees the memory. SAFETY: the caller upholds this function's contract.
        unsafe { free(at) };
        return null_mut();
    }
    // SAFETY: the caller upholds this function's contract.
    let old_size = match unsafe { c_api::resize(at.cast(), size) } {
        Ok(Resized::To(new)) => return new.as_ptr().cast(),
        Ok(Resized::Not(old_size)) => old_size,
        Err(why) => invalid("realloc", at, why),
    };
    let new = malloc(size);
    if new.is_null() {
        if size >= old_size {
            return null_mut();
        }
        // Shrinking never fails: the allocation stays in place. SAFETY: the caller upholds this function's contract;
        // the new size is smaller.
        unsafe { c_api::shrink_in_place(at.cast(), size) };
        return at;
    }
    // SAFETY: both allocations are at least this long, and the new one overlaps no live memory.
    unsafe { c_api::copy(at.cast(), new.cast(), old_size.min(size)) };
    // SAFETY: the caller passes a live allocation, and does not use the old memory afterwards.
    unsafe { free(at) };
    new
}

/// # Safety
/// Same as for [`realloc`], but `at` must come from glibc.
unsafe fn realloc_of_glibc(at: *mut c_void, size: usize) -> *mut c_void {
    if start::is_for_arena(size)
        // SAFETY: the caller upholds this function's contract.
        && let old_size = unsafe { glibc::usable_size(at) }
        && (1..size).contains(&old_size)
        // Longer allocations stay in glibc, because the kernel can move them without a copy.
        && old_size <= c_api::migrate_max_bytes()
        && let Some(new) = from_arena(size, MIN_ALIGN, false)
    {
        if new.is_null() {
            return new;
        }
        // SAFETY: both allocations have at least the old length, and the new one overlaps no live memory.
        unsafe { copy_nonoverlapping(at.cast::<u8>(), new.cast(), old_size) };
        // SAFETY: the caller passes a live allocation, and does not use the old memory afterwards.
        unsafe { glibc::free(at) };
        return new;
    }
    // SAFETY: the caller upholds this function's contract.
    unsafe { glibc::realloc(at, size) }
}

/// reallocarray(3). As in glibc, it calls the process's `realloc`, because a program may define that function and not
/// this one.
///
/// # Safety
/// Same as for [`realloc`].
pub(crate) unsafe extern "C" fn reallocarray(at: *mut c_void, count: usize, size: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else { return fails(libc::ENOMEM) };
    let realloc = named!("realloc");
    // SAFETY: a function of this name has this type; the caller upholds its contract.
    unsafe { transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void>(realloc)(at, bytes) }
}

/// memalign(3). glibc handles alignments that are not a power of two.
pub(crate) extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    if start::is_for_arena(size)
        && align.is_power_of_two()
        && let Some(at) = from_arena(size, align.max(MIN_ALIGN), false)
    {
        return at;
    }
    // SAFETY: memalign(3) accepts any size and any alignment.
    unsafe { glibc::memalign(align, size) }
}

/// aligned_alloc(3).
pub(crate) extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    // Rejects an alignment that is not a power of two, as glibc does from 2.38 on and as the C standard requires.
    if align.is_power_of_two() { memalign(align, size) } else { fails(libc::EINVAL) }
}

/// posix_memalign(3). Returns the error, and leaves `errno` unchanged.
///
/// # Safety
/// `place` must be valid for writes.
pub(crate) unsafe extern "C" fn posix_memalign(place: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    // SAFETY: the pointer is to this thread's own `errno`.
    let errno = unsafe { *libc::__errno_location() };
    let at = memalign(align, size);
    if at.is_null() {
        // SAFETY: the pointer is to this thread's own `errno`.
        unsafe { *libc::__errno_location() = errno };
        return libc::ENOMEM;
    }
    // SAFETY: the caller upholds this function's contract.
    unsafe { *place = at };
    0
}

/// valloc(3).
pub(crate) extern "C" fn valloc(size: usize) -> *mut c_void {
    memalign(glibc::page_bytes(), size)
}

/// pvalloc(3): rounds the size up to whole pages.
pub(crate) extern "C" fn pvalloc(size: usize) -> *mut c_void {
    let page = glibc::page_bytes();
    let whole = size.checked_next_multiple_of(page);
    whole.map_or_else(|| fails(libc::ENOMEM), |whole| memalign(page, whole.max(page)))
}

/// malloc_usable_size(3).
///
/// # Safety
/// The caller must meet the requirements of malloc_usable_size(3).
pub(crate) unsafe extern "C" fn malloc_usable_size(at: *mut c_void) -> usize {
    if c_api::owns(at.cast()) {
        c_api::usable_size(at.cast())
    } else {
        // SAFETY: the caller upholds this function's contract; memory outside the arena came from glibc.
        unsafe { glibc::usable_size(at) }
    }
}

/// malloc_trim(3): purges the free memory of the arena and of glibc.
pub(crate) extern "C" fn malloc_trim(pad: usize) -> c_int {
    let gone = c_api::trim() > 0;
    c_int::from(glibc::trim(pad) || gone)
}

/// Exports the functions above under the C names that programs call: the usual names, and glibc's second names such as `__libc_malloc`.
/// Wrappers of `malloc` call the second names, also with memory that other code allocated. If the program defines a function with one of
/// these names, all calls by that name reach the program's function, so the functions above call each other directly; only `reallocarray`
/// calls by name.
macro_rules! exports {
    (@one $name:tt $function:ident ($($argument:ident: $kind:ty),*) -> $answer:ty) => {
        const _: () = {
            #[unsafe(export_name = $name)]
            unsafe extern "C" fn export($($argument: $kind),*) -> $answer {
                #[allow(unused_unsafe, reason = "some have no requirements")]
                // SAFETY: the caller upholds the contract of the function.
                unsafe {
                    $function($($argument),*)
                }
            }
        };
    };
    ($($($name:tt)|+ => $function:ident $arguments:tt -> $answer:ty;)*) => {
        $($(exports!(@one $name $function $arguments -> $answer);)+)*
    };
}

exports! {
    "malloc" | "__libc_malloc" => malloc(size: usize) -> *mut c_void;
    // `cfree` is for old programs.
    "free" | "__libc_free" | "cfree" => free(at: *mut c_void) -> ();
    "calloc" | "__libc_calloc" => calloc(count: usize, size: usize) -> *mut c_void;
    "realloc" | "__libc_realloc" => realloc(at: *mut c_void, size: usize) -> *mut c_void;
    "reallocarray" => reallocarray(at: *mut c_void, count: usize, size: usize) -> *mut c_void;
    "memalign" | "__libc_memalign" => memalign(align: usize, size: usize) -> *mut c_void;
    "aligned_alloc" => aligned_alloc(align: usize, size: usize) -> *mut c_void;
    "posix_memalign" => posix_memalign(place: *mut *mut c_void, align: usize, size: usize) -> c_int;
    "valloc" | "__libc_valloc" => valloc(size: usize) -> *mut c_void;
    "pvalloc" | "__libc_pvalloc" => pvalloc(size: usize) -> *mut c_void;
    "malloc_usable_size" => malloc_usable_size(at: *mut c_void) -> usize;
    "malloc_trim" => malloc_trim(pad: usize) -> c_int;
}

// Functions of C23. They call the process's `free` and ignore the size, which `free` looks up itself.
jumps! {
    /// `free_sized(at, size)`.
    free_sized = "free_sized" -> "free";
    /// `free_aligned_sized(at, align, size)`.
    free_aligned_sized = "free_aligned_sized" -> "free";
}
