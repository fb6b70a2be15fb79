//! C++'s `operator new` and `operator delete`. They are exported because another library of the process may export versions that use its
//! own `malloc`, as libjemalloc does, and memory from such a `new` must not reach our `free`.
//!
//! They work like those of libstdc++: each form calls the simpler one by name, and the simplest calls `malloc`, `aligned_alloc`
//! or `free` by name. So a program that defines one of these functions gets the same calls as without this library.
//!
//! Nothing here needs a C++ library until an allocation fails. Then the process's C++ library supplies the new-handler and throws. The
//! exception passes through functions of this file, so they are `C-unwind` and own nothing that needs a destructor.
#![allow(unsafe_code, reason = "functions for C++")]

use std::arch::{asm, naked_asm};
use std::ffi::{CStr, c_void};
use std::iter;
use std::mem::transmute;
use std::ptr::null_mut;

use arena::c_api;

use crate::glibc::Symbols;
use crate::names::{is_ours, jumps, named};
use crate::watched;

// The target finds its arguments in the same registers, and ignores any extra arguments.
jumps! {
    /// `new(size)`.
    new = "_Znwm" -> new_plain;
    /// `new(size, align)`.
    new_aligned = "_ZnwmSt11align_val_t" -> new_with_align;
    /// `new[](size)`.
    new_array = "_Znam" -> "_Znwm";
    /// `new[](size, align)`.
    new_array_aligned = "_ZnamSt11align_val_t" -> "_ZnwmSt11align_val_t";
    /// `delete(at)`.
    delete = "_ZdlPv" -> "free";
    /// `delete(at, size)`.
    delete_sized = "_ZdlPvm" -> "_ZdlPv";
    /// `delete(at, nothrow)`.
    delete_nothrow = "_ZdlPvRKSt9nothrow_t" -> "_ZdlPv";
    /// `delete(at, align)`.
    delete_aligned = "_ZdlPvSt11align_val_t" -> "free";
    /// `delete(at, align, nothrow)`.
    delete_aligned_nothrow = "_ZdlPvSt11align_val_tRKSt9nothrow_t" -> "_ZdlPvSt11align_val_t";
    /// `delete(at, size, align)`.
    delete_sized_aligned = "_ZdlPvmSt11align_val_t" -> ["_ZdlPvSt11align_val_t"];
    /// `delete[](at)`.
    delete_array = "_ZdaPv" -> "_ZdlPv";
    /// `delete[](at, size)`.
    delete_array_sized = "_ZdaPvm" -> "_ZdaPv";
    /// `delete[](at, nothrow)`.
    delete_array_nothrow = "_ZdaPvRKSt9nothrow_t" -> "_ZdaPv";
    /// `delete[](at, align)`.
    delete_array_aligned = "_ZdaPvSt11align_val_t" -> "_ZdlPvSt11align_val_t";
    /// `delete[](at, align, nothrow)`.
    delete_array_aligned_nothrow = "_ZdaPvSt11align_val_tRKSt9nothrow_t" -> "_ZdaPvSt11align_val_t";
    /// `delete[](at, size, align)`.
    delete_array_sized_aligned = "_ZdaPvmSt11align_val_t" -> ["_ZdaPvSt11align_val_t"];
}

/// Returns memory from the process's `malloc`, or null.
#[inline]
fn plain(size: usize) -> *mut c_void {
    let malloc = named!("malloc");
    // SAFETY: a function of this name has this type, and accepts any size.
    unsafe { transmute::<*mut c_void, extern "C" fn(usize) -> *mut c_void>(malloc)(size.max(1)) }
}

/// Returns memory from the process's `aligned_alloc`, or null. Also returns null if the alignment is not a power of two.
#[inline]
fn aligned(size: usize, align: usize) -> *mut c_void {
    if !align.is_power_of_two() {
        return null_mut();
    }
    let align = align.max(size_of::<usize>());
    // C11 requires the size to be a multiple of the alignment.
    let Some(size) = size.max(1).checked_next_multiple_of(align) else { return null_mut() };
    let aligned_alloc = named!("aligned_alloc");
    // SAFETY: a function of this name has this type, and accepts any size.
    unsafe { transmute::<*mut c_void, extern "C" fn(usize, usize) -> *mut c_void>(aligned_alloc)(align, size) }
}

extern "C-unwind" fn new_plain(size: usize) -> *mut c_void {
    let at = plain(size);
    if at.is_null() { new_at_last(size, 0) } else { at }
}

extern "C-unwind" fn new_with_align(size: usize, align: usize) -> *mut c_void {
    let at = aligned(size, align);
    if at.is_null() { new_at_last(size, align) } else { at }
}

/// Calls the program's new-handler until the allocation succeeds or no handler is installed, then throws `std::bad_alloc`. `align` is 0 if
/// the memory comes from [`plain`].
#[cold]
#[inline(never)]
fn new_at_last(size: usize, align: usize) -> *mut c_void {
    type Handler = unsafe extern "C-unwind" fn();
    // SAFETY: a function of this name has this type. A null pointer is `None`.
    let throw = unsafe { transmute::<*mut c_void, Option<extern "C-unwind" fn() -> !>>(thrower()) };
    let Some(throw) = throw else { no_library(size) };
    let get_handler = of_library(c"_ZSt15get_new_handlerv");
    // SAFETY: a function of this name has this type. A null pointer is `None`.
    let get_handler =
        unsafe { transmute::<*mut c_void, Option<extern "C-unwind" fn() -> Option<Handler>>>(get_handler) };
    let get_handler = get_handler.filter(|_| align == 0 || align.is_power_of_two());
    loop {
        let Some(handler) = get_handler.and_then(|get_handler| get_handler()) else { throw() };
        // SAFETY: the program installed this handler.
        unsafe { handler() };
        let at = if align == 0 { plain(size) } else { aligned(size, align) };
        if !at.is_null() {
            return at;
        }
    }
}

/// Defines the forms that do not throw. They allocate directly only if the throwing forms are this library's. Otherwise, or if there is no
/// memory, they call the C++ library's own function of the same name, which calls the throwing form and catches the exception; Rust code
/// cannot catch it. They return null if the process has no C++ library.
macro_rules! nothrow {
    ($($(#[$doc:meta])* $own:ident($($argument:ident: $kind:ty),*) = $export:literal, $name:literal:
        $find:ident if $($form:literal)&&+;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// The caller must meet the requirements of the C++ standard.
        #[unsafe(export_name = $export)]
        pub(crate) unsafe extern "C-unwind" fn $own($($argument: $kind,)* tag: *const c_void) -> *mut c_void {
            type New = unsafe extern "C-unwind" fn($($kind,)* *const c_void) -> *mut c_void;
            let at = if $(is_ours!($form))&&+ { $find($($argument),*) } else { null_mut() };
            if !at.is_null() {
                return at;
            }
            let its_own = of_library($name);
            if its_own.is_null() {
                return its_own;
            }
            // SAFETY: a function of this name has this type; the caller upholds its contract.
            unsafe { transmute::<*mut c_void, New>(its_own)($($argument,)* tag) }
        }
    )*};
}

nothrow! {
    /// `new(size, nothrow)`.
    new_nothrow(size: usize) = "_ZnwmRKSt9nothrow_t", c"_ZnwmRKSt9nothrow_t": plain if "_Znwm";
    /// `new[](size, nothrow)`.
    new_array_nothrow(size: usize) = "_ZnamRKSt9nothrow_t", c"_ZnamRKSt9nothrow_t": plain if "_Znam" && "_Znwm";
    /// `new(size, align, nothrow)`.
    new_aligned_nothrow(size: usize, align: usize) =
        "_ZnwmSt11align_val_tRKSt9nothrow_t", c"_ZnwmSt11align_val_tRKSt9nothrow_t":
        aligned if "_ZnwmSt11align_val_t";
    /// `new[](size, align, nothrow)`.
    new_array_aligned_nothrow(size: usize, align: usize) =
        "_ZnamSt11align_val_tRKSt9nothrow_t", c"_ZnamSt11align_val_tRKSt9nothrow_t":
        aligned if "_ZnamSt11align_val_t" && "_ZnwmSt11align_val_t";
}

/// Returns the function that throws `std::bad_alloc`; null if the process has no C++ library.
fn thrower() -> *mut c_void {
    // The C++ library may be visible only to the libraries that depend on it (`RTLD_LOCAL`).
    let files = [c"libstdc++.so.6", c"libc++.so.1"].into_iter();
    // SAFETY: the name is NUL-terminated. The call loads no library, and loaded libraries stay loaded.
    let loaded = files.map(|file| unsafe { watched::dlopen(file.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) });
    let libraries = iter::once(libc::RTLD_DEFAULT).chain(loaded.filter(|library| !library.is_null()));
    // SAFETY: the name is NUL-terminated.
    let mut functions = libraries.map(|library| unsafe { libc::dlsym(library, c"_ZSt17__throw_bad_allocv".as_ptr()) });
    functions.find(|function| !function.is_null()).unwrap_or(null_mut())
}

/// Returns a function from the C++ library's own symbol table, because dlsym(3) could find another library's function of the same name.
#[cold]
#[inline(never)]
fn of_library(name: &CStr) -> *mut c_void {
    // SAFETY: the library stays loaded, because the code that asks for memory uses it.
    unsafe { Symbols::around(thrower()) }.map_or(null_mut(), |library| library.function(name))
}

/// Ends the program, because the caller of `new` does not expect null.
#[cold]
fn no_library(size: usize) -> ! {
    c_api::print_line(format_args!(
        "operator new: no memory for {size} bytes, and no C++ library that throws bad_alloc"
    ));
    // SAFETY: abort(3) has no preconditions.
    unsafe { libc::abort() }
}
