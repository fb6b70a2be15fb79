//! A program enters a sandbox, in which unlisted system calls kill it. It survives with the arena, opened before or
//! after.
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#![allow(unsafe_code, reason = "installs a filter of system calls")]

mod support;

use std::ffi::{OsStr, c_int, c_long, c_void};
use std::hint::black_box;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::ptr::{null, null_mut};

use support::{Numbers, alone, is_alone};
use zk_alloc::{ZkAllocator, phase, release, stats};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

const MIB: usize = 1 << 20;

/// The calls of glibc's malloc and threads, and of a program that ends.
const CALLS: [c_long; 17] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigreturn,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_clock_gettime,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_rt_sigprocmask,
];

fn step(code: u32, k: u32, yes: u8, no: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: yes, jf: no, k }
}

/// Loads a part of `struct seccomp_data`.
fn load(at: u32) -> libc::sock_filter {
    step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at, 0, 0)
}

/// The offsets of the call's number and of its first argument in that struct. Further arguments follow in steps of 8.
const NUMBER: u32 = 0;
const FIRST: u32 = 16;

/// Skips the next step unless the loaded part has this value.
fn unless(value: u32) -> libc::sock_filter {
    step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, 0, 1)
}

fn end(value: u32) -> libc::sock_filter {
    step(libc::BPF_RET | libc::BPF_K, value, 0, 0)
}

/// Has the kernel filter each call of this thread, and of the threads that it starts. Allocates nothing.
fn judge_by(program: &mut [libc::sock_filter]) -> bool {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel checks the program and copies it.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter, 0, 0) == 0
    }
}

/// From now on, the kernel allows the calls in [`CALLS`] and `more`, and madvise with `advices`. Any other call kills
/// the process.
fn enter_sandbox(more: &[c_long], advices: &[c_int]) {
    let mut program = vec![load(NUMBER)];
    for &call in CALLS.iter().chain(more) {
        program.extend([unless(call as u32), end(libc::SECCOMP_RET_ALLOW)]);
    }
    program.extend([unless(libc::SYS_madvise as u32), step(libc::BPF_JMP | libc::BPF_JA, 1, 0, 0)]);
    program.extend([end(libc::SECCOMP_RET_KILL_PROCESS), load(FIRST + 16)]);
    for &advice in advices {
        program.extend([unless(advice as u32), end(libc::SECCOMP_RET_ALLOW)]);
    }
    program.push(end(libc::SECCOMP_RET_KILL_PROCESS));
    assert!(judge_by(&mut program));
}

/// Ends the process at once if a check fails, because a panic makes calls that the sandbox forbids.
fn check(holds: bool, code: c_int) {
    if !holds {
        // SAFETY: ends the process.
        unsafe { libc::_exit(code) };
    }
}

/// Allocates, frees, grows and shrinks hundreds of MiB in the arena.
fn work(seed: u64) {
    phase(|| work_in_phase(seed));
}

fn work_in_phase(seed: u64) {
    const SIZES: [usize; 10] = [16, 100, 1_000, 5_000, 32_768, 40_000, 100_000, 262_144, 1_000_000, 3_000_000];
    let mut numbers = Numbers::new(seed);
    let mut slots: Vec<Vec<u8>> = (0..300).map(|_| Vec::new()).collect();
    for step in 0..4_000 {
        let (slot, size) = (numbers.below(slots.len()), SIZES[numbers.below(SIZES.len())]);
        check(slots[slot].iter().step_by(4_000).all(|&byte| byte == slot as u8), 91);
        if step % 5 == 0 {
            slots[slot] = vec![0; size];
            check(slots[slot].iter().step_by(100).all(|&byte| byte == 0), 92);
            slots[slot].fill(slot as u8);
        } else {
            slots[slot].resize(size, slot as u8);
            slots[slot].shrink_to_fit();
        }
    }
    drop(slots);
    for _ in 0..3 {
        let mut large = vec![7_u8; 40 * MIB];
        large.reserve_exact(160 * MIB);
        large.resize(120 * MIB, 7);
        large.truncate(3 * MIB);
        large.shrink_to_fit();
        check(black_box(&large).iter().step_by(1_000).all(|&byte| byte == 7), 93);
        let mut sparse = vec![0_u8; 60 * MIB];
        sparse[30 * MIB] = 1;
        drop(black_box(sparse));
    }
}

extern "C" fn work_there(_: *mut c_void) -> *mut c_void {
    work(2);
    null_mut()
}

extern "C" fn nothing(none: *mut c_void) -> *mut c_void {
    none
}

/// A thread of the C library. Threads of the standard library make more calls.
fn thread(run: extern "C" fn(*mut c_void) -> *mut c_void) -> libc::pthread_t {
    let mut thread = 0;
    // SAFETY: a place for the thread's name.
    check(unsafe { libc::pthread_create(&raw mut thread, null(), run, null_mut()) } == 0, 94);
    thread
}

fn join(thread: libc::pthread_t) {
    // SAFETY: a thread of this process, joined once.
    check(unsafe { libc::pthread_join(thread, null_mut()) } == 0, 95);
}

/// Opens the arena if `is_open`, enters the sandbox, works there, and ends the process.
fn live_in_a_sandbox(is_open: bool, more: &[c_long], advices: &[c_int]) -> ! {
    if is_open {
        work(1);
    }
    check((stats().address_space_bytes > 0) == is_open, 96);
    // For the calls that glibc makes only once.
    join(thread(nothing));
    enter_sandbox(more, advices);
    work(1);
    let other = thread(work_there);
    work(3);
    release();
    join(other);
    release();
    work(4);
    // SAFETY: a buffer of that length; the other call ends the process.
    unsafe {
        libc::write(1, c"lived".as_ptr().cast(), 5);
        libc::_exit(0)
    }
}

#[track_caller]
fn lives(name: &str, settings: &[(&str, &str)]) {
    let settings: Vec<_> = settings.iter().map(|&(name, value)| (name, OsStr::new(value))).collect();
    let ended = alone(name, &settings);
    assert!(ended.status.success() && ended.stdout.ends_with("lived"), "{name}: {ended:?}");
}

const STRICT: &[(&str, &str)] = &[("ZK_ALLOC_SANDBOX", "1")];

/// Every call that the arena makes once before `main`, but madvise(2). The last one is for samples of call sites.
const MORE: [c_long; if cfg!(feature = "profile") { 3 } else { 2 }] = [
    libc::SYS_membarrier,
    libc::SYS_mincore,
    #[cfg(feature = "profile")]
    libc::SYS_sigaltstack,
];

/// Every advice of madvise(2) that the arena gives once before `main`.
const RECORDED: [c_int; 8] = [
    libc::MADV_DONTNEED,
    libc::MADV_FREE,
    libc::MADV_HUGEPAGE,
    libc::MADV_NOHUGEPAGE,
    libc::MADV_DONTDUMP,
    libc::MADV_WIPEONFORK,
    libc::MADV_KEEPONFORK,
    libc::MADV_POPULATE_WRITE,
];

#[test]
fn a_sandbox_with_the_calls_of_glibc_lets_an_open_arena_live_that_is_told() {
    if is_alone() {
        live_in_a_sandbox(true, &[], &[libc::MADV_DONTNEED]);
    }
    lives("a_sandbox_with_the_calls_of_glibc_lets_an_open_arena_live_that_is_told", STRICT);
}

#[test]
fn a_sandbox_with_the_calls_of_glibc_lets_an_arena_open_that_is_told() {
    if is_alone() {
        live_in_a_sandbox(false, &[], &[libc::MADV_DONTNEED]);
    }
    lives("a_sandbox_with_the_calls_of_glibc_lets_an_arena_open_that_is_told", STRICT);
}

/// Before `main`, the arena makes every call that it may need. An operator who records and allows those covers the
/// whole run.
#[test]
fn a_sandbox_with_what_was_called_at_the_start_lets_an_open_arena_live() {
    if is_alone() {
        live_in_a_sandbox(true, &MORE, &RECORDED);
    }
    lives("a_sandbox_with_what_was_called_at_the_start_lets_an_open_arena_live", &[]);
}

#[test]
fn a_sandbox_with_what_was_called_at_the_start_lets_the_arena_open() {
    if is_alone() {
        live_in_a_sandbox(false, &MORE, &RECORDED);
    }
    lives("a_sandbox_with_what_was_called_at_the_start_lets_the_arena_open", &[]);
}

/// Whether this program makes a call with this argument at its start. A filter kills it if it does.
fn calls_at_the_start(call: c_long, argument_at: u32, argument: u32) -> bool {
    let mut program = [
        load(NUMBER),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, 0, 3),
        load(argument_at),
        unless(argument),
        end(libc::SECCOMP_RET_KILL_PROCESS),
        end(libc::SECCOMP_RET_ALLOW),
    ];
    let forbid = move || if judge_by(&mut program) { Ok(()) } else { Err(std::io::Error::last_os_error()) };
    let mut command = Command::new(std::env::current_exe().expect("a test binary knows its path"));
    // SAFETY: two calls that neither allocate nor lock.
    unsafe { command.pre_exec(forbid) };
    let status = command.arg("--list").stdout(Stdio::null()).status().expect("a process");
    status.signal() == Some(libc::SIGSYS)
}

/// The lists above contain exactly the calls that the arena makes before `main`.
#[test]
fn what_the_arena_may_call_is_called_once_at_the_start() {
    for advice in RECORDED {
        // Only made if huge pages may be used.
        if advice != libc::MADV_HUGEPAGE {
            assert!(calls_at_the_start(libc::SYS_madvise, FIRST + 16, advice as u32), "advice {advice}");
        }
    }
    const PRIVATE_EXPEDITED: u32 = 1 << 3;
    assert!(calls_at_the_start(libc::SYS_membarrier, FIRST, PRIVATE_EXPEDITED));
    for call in &MORE[1..] {
        assert!(calls_at_the_start(*call, NUMBER, *call as u32), "call {call}");
    }
    assert!(!calls_at_the_start(libc::SYS_madvise, FIRST + 16, libc::MADV_COLLAPSE as u32), "the filter kills whoever");
}
