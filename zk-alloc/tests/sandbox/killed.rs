//! A program enters a sandbox, in which unlisted system calls kill it. It survives with the arena, opened before or
//! after.

use std::ffi::{c_int, c_long, c_void};
use std::hint::black_box;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::ptr::null_mut;

use crate::support::raw::{join, start};
use crate::support::seccomp::{FIRST_AT, NUMBER_AT, end, install, load, skip_if, step};
use crate::support::{Numbers, Settings, child};
use zk_alloc::{phase, release, stats};

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

/// Skips the next step unless the loaded part has this value.
fn unless(value: u32) -> libc::sock_filter {
    skip_if(value, 0, 1)
}

/// From now on, the kernel allows the calls in [`CALLS`] and `more`, and madvise with `advices`. Any other call kills
/// the process.
fn enter_sandbox(more: &[c_long], advices: &[c_int]) {
    let mut program = vec![load(NUMBER_AT)];
    for &call in CALLS.iter().chain(more) {
        program.extend([unless(call as u32), end(libc::SECCOMP_RET_ALLOW)]);
    }
    program.extend([unless(libc::SYS_madvise as u32), step(libc::BPF_JMP | libc::BPF_JA, 1, 0, 0)]);
    program.extend([end(libc::SECCOMP_RET_KILL_PROCESS), load(FIRST_AT + 16)]);
    for &advice in advices {
        program.extend([unless(advice as u32), end(libc::SECCOMP_RET_ALLOW)]);
    }
    program.push(end(libc::SECCOMP_RET_KILL_PROCESS));
    assert!(install(&mut program, 0));
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

/// Opens the arena if `is_open`, enters the sandbox, works there, and ends the process.
fn live_in_a_sandbox(is_open: bool, more: &[c_long], advices: &[c_int]) -> ! {
    if is_open {
        work(1);
    }
    check((stats().address_space_bytes > 0) == is_open, 96);
    // Threads of the standard library make more calls. The first is for the calls that glibc makes only once.
    let thread = |run| start(run, null_mut()).expect("a thread");
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

/// The arena opens before the process enters the sandbox, or within it.
#[track_caller]
fn lives(settings: Settings, more: &[c_long], advices: &[c_int]) {
    for is_open in [true, false] {
        if let Some(ended) = child(settings, || live_in_a_sandbox(is_open, more, advices)) {
            assert!(ended.status.success() && ended.stdout.ends_with("lived"), "open: {is_open}, {ended:?}");
        }
    }
}

#[test]
fn with_its_setting_the_arena_survives_in_a_sandbox_with_the_calls_of_glibc() {
    lives(&[("ZK_ALLOC_SANDBOX", "1")], &[], &[libc::MADV_DONTNEED]);
}

/// Before `main`, the arena makes every call that it may need. An operator who records and allows those covers the
/// whole run.
#[test]
fn the_arena_survives_in_a_sandbox_with_the_calls_made_at_the_start() {
    lives(&[], &MORE, &RECORDED);
}

/// Whether this program makes a call with this argument at its start. A filter kills it if it does.
fn calls_at_the_start(call: c_long, argument_at: u32, argument: u32) -> bool {
    let mut program = [
        load(NUMBER_AT),
        skip_if(call as u32, 0, 3),
        load(argument_at),
        unless(argument),
        end(libc::SECCOMP_RET_KILL_PROCESS),
        end(libc::SECCOMP_RET_ALLOW),
    ];
    let forbid = move || if install(&mut program, 0) { Ok(()) } else { Err(std::io::Error::last_os_error()) };
    let mut command = Command::new(std::env::current_exe().expect("a test binary knows its path"));
    // SAFETY: two calls that neither allocate nor lock.
    unsafe { command.pre_exec(forbid) };
    let status = command.arg("--list").stdout(Stdio::null()).status().expect("a process");
    status.signal() == Some(libc::SIGSYS)
}

/// The lists above contain exactly the calls that the arena makes before `main`.
#[test]
fn every_call_that_the_arena_may_make_is_made_once_at_the_start() {
    for advice in RECORDED {
        // Only made if huge pages may be used.
        if advice != libc::MADV_HUGEPAGE {
            assert!(calls_at_the_start(libc::SYS_madvise, FIRST_AT + 16, advice as u32), "advice {advice}");
        }
    }
    const PRIVATE_EXPEDITED: u32 = 1 << 3;
    assert!(calls_at_the_start(libc::SYS_membarrier, FIRST_AT, PRIVATE_EXPEDITED));
    for call in &MORE[1..] {
        assert!(calls_at_the_start(*call, NUMBER_AT, *call as u32), "call {call}");
    }
    assert!(
        !calls_at_the_start(libc::SYS_madvise, FIRST_AT + 16, libc::MADV_COLLAPSE as u32),
        "the filter kills whoever"
    );
}
