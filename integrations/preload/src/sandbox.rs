//! Notices that the program is about to enter a sandbox (seccomp). The arena then asks the host at once for everything
//! that it still needs to know. From then on it makes only the calls that glibc's own malloc makes, because any other
//! may kill the program.
//!
//! glibc has no function for it: programs call prctl(2) or, as libseccomp does, syscall(2). These functions take their
//! place, and look only at the first arguments.
#![allow(unsafe_code, reason = "replaces two functions of the C library")]

use std::arch::naked_asm;
use std::ffi::{c_int, c_long, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use arena::c_api;

use crate::glibc::behind;
use crate::start::{self, State};

/// The C library's own functions.
static NEXT_PRCTL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static NEXT_SYSCALL: AtomicPtr<c_void> = AtomicPtr::new(syscall_early as *mut c_void);

/// Looks up the C library's own functions.
pub(crate) fn look_up() {
    NEXT_PRCTL.store(behind(c"prctl"), Ordering::Relaxed);
    let syscall = behind(c"syscall");
    if !syscall.is_null() {
        NEXT_SYSCALL.store(syscall, Ordering::Relaxed);
    }
}

extern "C" fn enters() {
    if start::state() == State::InUse {
        c_api::enter_sandbox();
    }
}

/// prctl(2). The arguments arrive in registers. Those that the caller leaves out are passed on as they are.
///
/// # Safety
/// As prctl(2) requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn prctl(option: c_int, a: c_long, b: c_long, c: c_long, d: c_long) -> c_int {
    if option == libc::PR_SET_SECCOMP {
        enters();
    }
    let known = NEXT_PRCTL.load(Ordering::Relaxed);
    // Constructors of other libraries run before `look_up`.
    let next = if known.is_null() { behind(c"prctl") } else { known };
    if next.is_null() {
        return -1;
    }
    // SAFETY: a function of this name has this type; the caller upholds the rest.
    unsafe { transmute::<*mut c_void, unsafe extern "C" fn(c_int, ...) -> c_int>(next)(option, a, b, c, d) }
}

/// For constructors of other libraries, which run before [`look_up`].
unsafe extern "C" fn syscall_early(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let next = behind(c"syscall");
    if next.is_null() {
        return -1;
    }
    // SAFETY: a function of this name has this type; the caller upholds the rest.
    unsafe { transmute::<*mut c_void, unsafe extern "C" fn(c_long, ...) -> c_long>(next)(number, a, b, c, d, e, f) }
}

/// syscall(2). It jumps to the C library's: the call may be a `vfork`, whose child returns first, on the same stack.
///
/// # Safety
/// As syscall(2) requires.
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
        push rdi
        push rsi
        push rdx
        push rcx
        push r8
        push r9
        sub rsp, 8
        call {enters}
        add rsp, 8
        pop r9
        pop r8
        pop rcx
        pop rdx
        pop rsi
        pop rdi
        xor eax, eax
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
        stp x29, x30, [sp, #-80]!
        stp x0, x1, [sp, #16]
        stp x2, x3, [sp, #32]
        stp x4, x5, [sp, #48]
        str x6, [sp, #64]
        bl {enters}
        ldr x6, [sp, #64]
        ldp x4, x5, [sp, #48]
        ldp x2, x3, [sp, #32]
        ldp x0, x1, [sp, #16]
        ldp x29, x30, [sp], #80
        3:
        adrp x16, {next}
        ldr x16, [x16, :lo12:{next}]
        br x16",
        seccomp = const libc::SYS_seccomp,
        prctl = const libc::SYS_prctl,
        set_seccomp = const libc::PR_SET_SECCOMP,
        enters = sym enters,
        next = sym NEXT_SYSCALL,
    )
}
