//! A task that runs beside the program's threads for a while. It is a thread for the kernel, and none for the C library.
//!
//! Memory has to be given back while the program is idle and calls nobody: somebody else has to do it. A thread of the C library's
//! can't be started in the midst of `free` (pthread_create(3) allocates, and takes locks that may be held at that moment); it would
//! make glibc's `malloc` and `stdio` lock where a program has one thread; and a process whose first thread ended by pthread_exit(3)
//! would never end. So the kernel is asked directly (clone(2)). The price: such a task must not call anything of the C library's
//! that needs a thread, and it keeps the user and group that the process had when it began: setuid(2) is applied to the C library's
//! threads.
//!
//! It has a stack and a place for thread-local memory of its own, which is zero: what the C library looks for there (`errno`,
//! the address of the place itself) is there. All signals are blocked.
#![allow(unsafe_code, reason = "starts a task of the kernel's")]

use std::arch::asm;
use std::ffi::{CStr, c_void};
use std::mem::{MaybeUninit, forget};
use std::ptr::NonNull;

use crate::os::{self, Errno};

/// Bytes of the stack.
const STACK_BYTES: usize = 128 << 10;
/// Bytes of thread-local memory, on both sides of the address that the processor keeps.
const LOCAL_BYTES: usize = 128 << 10;
/// Bytes of the C library's own at that address: `struct pthread` has some 2,300.
const CONTROL_BYTES: usize = 16 << 10;

/// What the task is started with; it lies at the lower end of its stack.
#[repr(C)]
struct Start {
    name: &'static CStr,
    run: fn(),
    mapping: NonNull<u8>,
    len: usize,
}

/// Starts `run` as a task, which ends with it. The kernel shows its name, of at most 15 bytes. Takes no lock, and allocates
/// nothing.
///
/// `run` must not panic, nor call what needs a thread of the C library's.
///
/// # Errors
/// The system's, where it grants no memory or no task.
pub(crate) fn start(name: &'static CStr, run: fn()) -> Result<(), Errno> {
    // A sanitizer's calls, which are in all code, need a thread of the C library's.
    if cfg!(sanitized) || !local_memory_suffices() {
        return Err(Errno(libc::ENOTSUP));
    }
    let len = STACK_BYTES + 2 * LOCAL_BYTES + CONTROL_BYTES;
    let (mapping, memory) = os::map_guarded(len)?;
    let memory = memory.cast::<u8>();
    // SAFETY: within the mapping. The places are multiples of 16, as the mapping is one of pages.
    let (stack_end, control) = unsafe {
        (memory.add(STACK_BYTES), memory.add(STACK_BYTES + LOCAL_BYTES + if CONTROL_FIRST { CONTROL_BYTES } else { 0 }))
    };
    let start = memory.cast::<Start>();
    // SAFETY: the mapping is ours, and long enough; the task finds its own address where x86-64's convention has it.
    unsafe {
        start.write(Start { name, run, mapping: mapping.start(), len: mapping.len() });
        #[cfg(target_arch = "x86_64")]
        {
            control.cast::<*mut u8>().write(control.as_ptr());
            control.cast::<*mut u8>().add(2).write(control.as_ptr());
            control.cast::<usize>().add(POINTER_GUARD).write(pointer_guard());
        }
    }
    let before = block_signals();
    // SAFETY: the stack and the place are the task's alone, and it unmaps them when it ends.
    let cloned = unsafe { clone(stack_end.as_ptr(), control.as_ptr(), task, start.as_ptr()) };
    restore_signals(&before);
    if cloned < 0 {
        return Err(Errno(-cloned as i32));
    }
    forget(mapping);
    Ok(())
}

/// On which side of the address the C library's own bytes lie: below on aarch64, above on x86-64.
const CONTROL_FIRST: bool = cfg!(target_arch = "aarch64");

/// Where glibc keeps what it hides the addresses of functions with, in words.
#[cfg(target_arch = "x86_64")]
const POINTER_GUARD: usize = 6;

/// That of this thread, which is the process's. Up to glibc 2.30, asking for the time goes through such an address.
#[cfg(target_arch = "x86_64")]
fn pointer_guard() -> usize {
    let guard: usize;
    // SAFETY: reads a word of the C library's own, which every thread has there.
    unsafe {
        asm!(
            "mov {}, qword ptr fs:[{}]",
            out(reg) guard,
            const POINTER_GUARD * size_of::<usize>(),
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    guard
}

/// Whether what the C library keeps in each thread lies where the task has memory.
fn local_memory_suffices() -> bool {
    let own: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads this thread's address, which lies at its offset 0.
    unsafe {
        asm!("mov {}, qword ptr fs:[0]", out(reg) own, options(pure, readonly, nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads a register.
    unsafe {
        asm!("mrs {}, tpidr_el0", out(reg) own, options(pure, nomem, nostack, preserves_flags));
    }
    // SAFETY: the address of this thread's own number.
    unsafe { libc::__errno_location() }.addr().abs_diff(own) < LOCAL_BYTES - 64
}

/// What begins in the task.
extern "C" fn task(start: *mut Start) -> ! {
    // SAFETY: written before the task began, and its own.
    let Start { name, run, mapping, len } = unsafe { start.read() };
    // SAFETY: a name that ends with a zero.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    run();
    // SAFETY: the task's own memory, which nobody knows of.
    unsafe { unmap_and_exit(mapping.as_ptr(), len) }
}

const FLAGS: libc::c_int = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS;

/// clone(2). Returns the task's number, or the negative number of an error.
///
/// # Safety
/// The stack, which ends at `stack_end`, and the place are the task's alone; `begin` does not return.
unsafe fn clone(
    stack_end: *mut u8,
    control: *mut u8,
    begin: extern "C" fn(*mut Start) -> !,
    start: *mut Start,
) -> isize {
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's. The task goes on behind the call with its own stack, and never leaves `begin`.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => result,
            in("rdi") FLAGS as usize,
            in("rsi") stack_end,
            in("rdx") 0,
            in("r10") 0,
            in("r8") control,
            in("r12") begin,
            in("r13") start,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x30, xzr",
            "mov x0, x21",
            "blr x20",
            "brk #1",
            "2:",
            inlateout("x0") FLAGS as isize => result,
            in("x1") stack_end,
            in("x2") 0,
            in("x3") control,
            in("x4") 0,
            in("x8") libc::SYS_clone,
            in("x20") begin,
            in("x21") start,
        );
    }
    result
}

/// Gives the task's memory back, and ends it. Nothing between the two touches the stack, which is gone.
///
/// # Safety
/// Only the task that the memory belongs to.
unsafe fn unmap_and_exit(at: *mut u8, len: usize) -> ! {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's; it goes on in registers alone, and does not come back.
    unsafe {
        asm!(
            "syscall",
            "xor edi, edi",
            "mov eax, {exit}",
            "syscall",
            "ud2",
            exit = const libc::SYS_exit,
            in("rax") libc::SYS_munmap,
            in("rdi") at,
            in("rsi") len,
            options(noreturn, nostack),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        asm!(
            "svc #0",
            "mov x0, xzr",
            "mov x8, #{exit}",
            "svc #0",
            "brk #1",
            exit = const libc::SYS_exit,
            in("x8") libc::SYS_munmap,
            in("x0") at,
            in("x1") len,
            options(noreturn, nostack),
        );
    }
}

/// The kernel's set of signals: those that the C library hides are in it, too.
type Signals = MaybeUninit<u64>;

fn block_signals() -> Signals {
    let (all, mut before) = (u64::MAX, Signals::uninit());
    // SAFETY: two sets of the kernel's length.
    unsafe { mask((&raw const all).cast(), before.as_mut_ptr().cast()) };
    before
}

fn restore_signals(before: &Signals) {
    // SAFETY: what the kernel wrote.
    unsafe { mask(before.as_ptr().cast(), std::ptr::null_mut()) };
}

/// # Safety
/// `new` is a set, `old` a place for one or null.
unsafe fn mask(new: *const c_void, old: *mut c_void) {
    // SAFETY: the caller's. The call does not fail, so that it sets no `errno`.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, new, old, size_of::<u64>()) };
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;

    static DONE: AtomicU32 = AtomicU32::new(0);

    fn count() {
        os::write_stderr(b"");
        DONE.fetch_add(1, Ordering::SeqCst);
    }

    #[test]
    fn a_task_runs_and_leaves_nothing_behind() {
        let tasks = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let mapped =
            || std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').next().unwrap().parse::<usize>();
        let before = mapped().unwrap();
        for n in 1..=100 {
            start(c"zk-alloc-test", count).unwrap();
            while DONE.load(Ordering::SeqCst) < n {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        std::thread::sleep(Duration::from_millis(20));
        let name =
            |task: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(task.unwrap().path().join("comm"));
        let ours = std::fs::read_dir("/proc/self/task").unwrap().filter_map(|task| name(task).ok());
        assert!(!ours.into_iter().any(|name| name.starts_with("zk-alloc-test")), "{} tasks", tasks());
        // A hundred of them would be 40 MiB.
        assert!(mapped().unwrap() < before + (20 << 20) / os::page_bytes(), "their memory stayed");
    }
}
