//! Functions of the C library that this library replaces to see their arguments. Each replacement then jumps to the C library's own
//! function, or calls it.
//!
//! `dlopen` drops `RTLD_DEEPBIND`. A library that is loaded with this flag looks for `malloc` and `free` in its own dependencies first, and
//! finds the C library's. It would pass this library's memory to the C library's `free`. The loader finds the caller's `RUNPATH` by the
//! return address of `dlopen`. So the replacement jumps to the loader's `dlopen` instead of calling it.
//!
//! `prctl` and `syscall` detect that the program is about to enter a sandbox (seccomp). The arena then immediately reads everything that it
//! still needs to know about the host. From then on it makes only the system calls that glibc's own malloc makes, because any other call
//! may kill the program. glibc has no function for seccomp(2): programs call prctl(2) or, as libseccomp does, syscall(2). The replacements
//! inspect only the first arguments.
#![allow(unsafe_code, reason = "replaces functions of the C library")]

use std::arch::naked_asm;
use std::ffi::{c_char, c_int, c_long, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use arena::c_api;

use crate::glibc::{look_up_behind, looked_up};
use crate::start;

looked_up! {
    { if !look_up_behind(&NEXT_DLOPEN, c"dlopen") { return null_mut(); } }
    /// The loader's own `dlopen`. If the library is not in use, or a constructor runs before ours, the first call looks up this function.
    /// For that call, the loader ignores the search folders of the calling library.
    NEXT_DLOPEN: fn next_dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
}

/// Whether `dlopen` has dropped the flag `RTLD_DEEPBIND`.
static WAS_LEFT_OUT: AtomicBool = AtomicBool::new(false);

/// Looks up the functions of the loader and of the C library that this file replaces. Returns `false` if there is no `dlopen`.
pub(crate) fn look_up() -> bool {
    look_up_behind(&NEXT_PRCTL, c"prctl");
    look_up_behind(&NEXT_SYSCALL, c"syscall");
    look_up_behind(&NEXT_DLOPEN, c"dlopen")
}

/// Returns whether a library was requested with `RTLD_DEEPBIND`.
pub(crate) fn left_deepbind_out() -> bool {
    WAS_LEFT_OUT.load(Ordering::Relaxed)
}

/// dlopen(3).
///
/// # Safety
/// The caller must meet the requirements of dlopen(3).
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
        is_in_use = sym start::IS_IN_USE,
        was_left_out = sym WAS_LEFT_OUT,
        next = sym NEXT_DLOPEN,
    )
}

looked_up! {
    { if !look_up_behind(&NEXT_PRCTL, c"prctl") { return -1; } }
    /// prctl(2) of the C library.
    NEXT_PRCTL: fn next_prctl(option: c_int, a: c_long, b: c_long, c: c_long, d: c_long) -> c_int;
}
looked_up! {
    { if !look_up_behind(&NEXT_SYSCALL, c"syscall") { return -1; } }
    /// syscall(2) of the C library.
    NEXT_SYSCALL: fn next_syscall(n: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long;
}

fn enters() {
    if start::is_in_use() {
        c_api::enter_sandbox();
    }
}

/// prctl(2). The arguments arrive in registers. Registers of arguments that the caller leaves out are passed on unchanged.
///
/// # Safety
/// The caller must meet the requirements of prctl(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn prctl(option: c_int, a: c_long, b: c_long, c: c_long, d: c_long) -> c_int {
    if option == libc::PR_SET_SECCOMP {
        enters();
    }
    // SAFETY: the caller upholds this function's contract.
    unsafe { next_prctl(option, a, b, c, d) }
}

/// Handles a call of [`syscall`] that enters a sandbox.
///
/// # Safety
/// The caller must meet the requirements of syscall(2).
unsafe extern "C" fn enter(n: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long {
    enters();
    // SAFETY: the caller upholds this function's contract.
    unsafe { next_syscall(n, a, b, c, d, e, f) }
}

/// syscall(2). It jumps to the C library's function instead of calling it: the call may be a `vfork`, whose child returns first, on the
/// same stack.
///
/// # Safety
/// The caller must meet the requirements of syscall(2).
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn syscall() {
    naked_asm!(
        #[cfg(target_arch = "x86_64")]
        "endbr64
        cmp edi, {seccomp}
        je 2f
        cmp edi, {prctl}
        jne 3f
        cmp esi, {set_seccomp}
        jne 3f
        2:
        jmp {enter}
        3:
        jmp qword ptr [rip + {next}]",
        #[cfg(target_arch = "aarch64")]
        "hint #34 // bti c
        cmp w0, #{seccomp}
        b.eq 2f
        cmp w0, #{prctl}
        b.ne 3f
        cmp w1, #{set_seccomp}
        b.ne 3f
        2:
        b {enter}
        3:
        adrp x16, {next}
        ldr x16, [x16, :lo12:{next}]
        br x16",
        seccomp = const libc::SYS_seccomp,
        prctl = const libc::SYS_prctl,
        set_seccomp = const libc::PR_SET_SECCOMP,
        enter = sym enter,
        next = sym NEXT_SYSCALL,
    )
}
