//! System calls that the kernel refuses, as in sandboxes (seccomp(2)).
#![allow(dead_code, reason = "each test uses its part")]
#![allow(unsafe_code, reason = "installs filters")]

use std::ffi::c_long;

/// How the kernel answers such a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// The call fails with this error.
    Errno(i32),
    /// The thread gets a `SIGSYS`, whose handler answers.
    Trap,
}

/// `AUDIT_ARCH_*` (linux/audit.h): the kernel's number for this processor.
#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xC000_00B7;

/// Offsets in `struct seccomp_data`.
const NUMBER_AT: u32 = 0;
const ARCH_AT: u32 = 4;

const MOST_CALLS: usize = 8;

/// Has the kernel answer some calls in this way from now on, in all threads of this process and in its children.
/// Returns `false` if it takes no filter. Allocates nothing.
pub(crate) fn refuse(calls: &[c_long], answer: Answer) -> bool {
    let step = |code: u32, k: u32, jt: usize, jf: usize| libc::sock_filter {
        code: code as u16,
        jt: jt as u8,
        jf: jf as u8,
        k,
    };
    let load = |at| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at, 0, 0);
    let is = |value, yes, no| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, yes, no);
    let end = |value| step(libc::BPF_RET | libc::BPF_K, value, 0, 0);
    let refusal = match answer {
        Answer::Errno(code) => libc::SECCOMP_RET_ERRNO | code as u32,
        Answer::Trap => libc::SECCOMP_RET_TRAP,
    };
    assert!(calls.len() <= MOST_CALLS, "more calls than the program has room for");
    let mut program = [end(0); MOST_CALLS + 5];
    program[0] = load(ARCH_AT);
    // Calls of another processor have other numbers.
    program[1] = is(ARCH, 0, calls.len() + 1);
    program[2] = load(NUMBER_AT);
    for (index, &call) in calls.iter().enumerate() {
        program[3 + index] = is(call as u32, calls.len() - index, 0);
    }
    program[3 + calls.len()] = end(libc::SECCOMP_RET_ALLOW);
    program[4 + calls.len()] = end(refusal);
    let filter = libc::sock_fprog { len: (5 + calls.len()) as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel checks the program and copies it.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_TSYNC,
                &raw const filter,
            ) == 0
    }
}

/// The error of a call whose arguments are all invalid; 0 if it succeeds.
pub(crate) fn error_of(call: c_long) -> i32 {
    // SAFETY: the call has no effect, because all arguments are invalid.
    if unsafe { libc::syscall(call, -1, -1, -1, -1, -1, -1) } != -1 {
        return 0;
    }
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
