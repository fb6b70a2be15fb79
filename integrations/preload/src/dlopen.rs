//! `dlopen` without `RTLD_DEEPBIND`. A library that is loaded with this flag looks for `malloc` and `free` in its own
//! dependencies first, and finds the C library's. It would free memory there that other code allocated here.
//!
//! The loader chooses its search folders by the return address of `dlopen`. So this function jumps to the loader's, and
//! does not call it.
#![allow(unsafe_code, reason = "replaces a function of the loader")]

use std::arch::naked_asm;
use std::ffi::{c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::glibc::{look_up_behind, looked_up};

looked_up! {
    { if !look_up_behind(&NEXT_DLOPEN, c"dlopen") { return null_mut(); } }
    /// The loader's own. If the library is not in use, or a constructor comes before ours, the first call looks it up, and
    /// the loader then ignores the folders of the library that called.
    NEXT_DLOPEN: fn next_dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
}

/// Whether to drop the flag.
static IS_IN_USE: AtomicBool = AtomicBool::new(false);
/// Whether the flag was dropped.
static WAS_LEFT_OUT: AtomicBool = AtomicBool::new(false);

/// Looks up the loader's own `dlopen`. Returns `false` if there is none.
pub(crate) fn look_up() -> bool {
    let is_there = look_up_behind(&NEXT_DLOPEN, c"dlopen");
    IS_IN_USE.store(is_there, Ordering::Relaxed);
    is_there
}

/// Whether a library was requested with `RTLD_DEEPBIND`.
pub(crate) fn left_deepbind_out() -> bool {
    WAS_LEFT_OUT.load(Ordering::Relaxed)
}

/// dlopen(3).
///
/// # Safety
/// As dlopen(3) requires.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void {
    naked_asm!(
        #[cfg(target_arch = "x86_64")]
        "endbr64
        test esi, {deepbind}
        jz 2f
        cmp byte ptr [rip + {is_in_use}], 0
        je 2f
        and esi, {others}
        mov byte ptr [rip + {was_left_out}], 1
        2:
        jmp qword ptr [rip + {next}]",
        #[cfg(target_arch = "aarch64")]
        "hint #34 // bti c
        tst w1, #{deepbind}
        b.eq 2f
        adrp x9, {is_in_use}
        ldrb w9, [x9, :lo12:{is_in_use}]
        cbz w9, 2f
        and w1, w1, #{others}
        adrp x9, {was_left_out}
        mov w10, #1
        strb w10, [x9, :lo12:{was_left_out}]
        2:
        adrp x16, {next}
        ldr x16, [x16, :lo12:{next}]
        br x16",
        deepbind = const libc::RTLD_DEEPBIND,
        others = const !libc::RTLD_DEEPBIND,
        is_in_use = sym IS_IN_USE,
        was_left_out = sym WAS_LEFT_OUT,
        next = sym NEXT_DLOPEN,
    )
}
