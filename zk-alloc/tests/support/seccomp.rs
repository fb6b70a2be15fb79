//! Filters for system calls, as used by sandboxes (seccomp(2)).
#![allow(dead_code, reason = "each test uses its part")]
#![allow(unsafe_code, reason = "installs filters")]

use std::ffi::c_long;

use libc::sock_filter as Step;

/// What the kernel does with a refused call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// The call fails with this error number.
    Errno(i32),
    /// The thread gets a `SIGSYS`, whose handler may set the result of the call.
    Trap,
}

/// `AUDIT_ARCH_*` (linux/audit.h): the kernel's number for this architecture.
#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xC000_00B7;

/// The offsets of the call's number and of its first argument in `struct seccomp_data`. Further arguments follow in steps of 8 bytes.
pub(crate) const NUMBER_AT: u32 = 0;
const ARCH_AT: u32 = 4;
pub(crate) const FIRST_AT: u32 = 16;

const MAX_CALLS: usize = 8;

pub(crate) fn step(code: u32, k: u32, yes: usize, no: usize) -> Step {
    Step { code: code as u16, jt: yes as u8, jf: no as u8, k }
}

/// Loads a word of `struct seccomp_data`.
pub(crate) fn load(at: u32) -> Step {
    step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at, 0, 0)
}

/// Skips `yes` steps if the loaded word equals `value`, otherwise `no` steps.
pub(crate) fn skip_if(value: u32, yes: usize, no: usize) -> Step {
    step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, yes, no)
}

pub(crate) fn end(value: u32) -> Step {
    step(libc::BPF_RET | libc::BPF_K, value, 0, 0)
}

/// Installs this program as a filter for the system calls of this thread and the threads that it starts. With `SECCOMP_FILTER_FLAG_TSYNC`,
/// the filter applies to all threads. Returns `false` if the kernel rejects the filter. Allocates nothing.
pub(crate) fn install(program: &mut [Step], flags: libc::c_ulong) -> bool {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel checks the program and copies it.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const filter) == 0
    }
}

/// From now on, makes the kernel refuse these calls with `answer`, in all threads of this process and in its children. Returns `false` if
/// the kernel rejects the filter. Allocates nothing.
pub(crate) fn refuse(calls: &[c_long], answer: Answer) -> bool {
    let refusal = match answer {
        Answer::Errno(code) => libc::SECCOMP_RET_ERRNO | code as u32,
        Answer::Trap => libc::SECCOMP_RET_TRAP,
    };
    assert!(calls.len() <= MAX_CALLS, "more calls than the filter has room for");
    let mut program = [end(0); MAX_CALLS + 5];
    program[0] = load(ARCH_AT);
    // On another architecture, the calls have other numbers.
    program[1] = skip_if(ARCH, 0, calls.len() + 1);
    program[2] = load(NUMBER_AT);
    for (index, &call) in calls.iter().enumerate() {
        program[3 + index] = skip_if(call as u32, calls.len() - index, 0);
    }
    program[3 + calls.len()] = end(libc::SECCOMP_RET_ALLOW);
    program[4 + calls.len()] = end(refusal);
    install(&mut program[..5 + calls.len()], libc::SECCOMP_FILTER_FLAG_TSYNC)
}

/// Makes a call with only invalid arguments. Returns its error number, or 0 if it succeeds.
pub(crate) fn error_of(call: c_long) -> i32 {
    // SAFETY: the call has no effect, because all arguments are invalid.
    if unsafe { libc::syscall(call, -1, -1, -1, -1, -1, -1) } != -1 {
        return 0;
    }
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
