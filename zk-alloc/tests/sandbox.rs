//! Sandboxes (seccomp(2)). Some sandboxes make individual system calls fail with `EPERM` or `ENOSYS`, either from the start of the process
//! or from a later moment on. The allocator must then work without these calls if it can. Other sandboxes kill a process that makes a call
//! that is not on their list. A program with the arena must survive there, whether the arena opens before or after the process enters the
//! sandbox.
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#![allow(unsafe_code, reason = "forks, and installs filters of system calls")]

#[path = "model/heap.rs"]
mod heap;
mod support;
#[path = "model/volume.rs"]
mod volume;

use std::ffi::{c_int, c_long, c_void};
use std::hint::black_box;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::ptr::null_mut;
use std::thread;

use heap::Heap;
use support::blocks::MIB;
use support::process::{in_a_fork, join_thread, limited, start_thread};
use support::seccomp::{Answer, FIRST_AT, NUMBER_AT, end, error_of, install, load, refuse, skip_if, step};
use support::{Ended, Kept, Numbers, Settings, alone, assert_patterned, child, child_as, is_patterned, patterned};
use volume::Volume;
use zk_alloc::{PhaseGuard, Retain, ZkAllocator, phase, release, set_retain, soften, stats};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

/// Runs threads that fill their caches and call `release()`, which empties the caches of all threads. While they run, calls `begin`; from
/// then on, the kernel must refuse `calls` with `error`. Then grows and zeroes memory, and forks.
fn work_without(calls: &[c_long], error: c_int, begin: impl FnOnce() -> bool) {
    set_retain(Retain::Bytes(0));
    // One life of 30,000 operations per thread, because no new thread can start while clone is refused.
    let heap = Box::leak(Box::new(Heap::new(ZkAllocator, true)));
    let volume = Volume { seed: 1, ops: 120_000, ops_per_life: 30_000, ops_per_settling: 200, at_rest: None };
    thread::scope(|scope| {
        let volume = scope.spawn(|| volume::run(heap, volume));
        while stats().slab_allocations < 1_000 {
            thread::yield_now();
        }
        assert!(begin(), "the kernel takes no filter");
        calls.iter().for_each(|&call| assert_eq!(error_of(call), error, "call {call} is not refused"));
        volume.join().expect("the model agrees");
    });
    for round in 0..2 {
        phase(|| grow(round));
        phase(grow_sparse);
        phase(zeroed);
        soften();
    }
    forked(calls.contains(&libc::SYS_clone), error);
}

/// Lengths in words: blocks of some size classes, and page runs.
const LENGTHS: [usize; 6] = [6, 20, 120, 700, 5_000, 60_000];

fn blocks(seed: u64) -> Vec<Vec<u64>> {
    (0..120).map(|number| patterned(LENGTHS[number % LENGTHS.len()], seed)).collect()
}

/// Grows vectors, each of which moves because another buffer follows it, then shrinks them.
fn grow(seed: u64) {
    let mut grown: Vec<_> = (0..2).map(|id| patterned(6 * MIB / 8, seed + id)).collect();
    let mut barriers = Vec::new();
    for _ in 0..3 {
        for words in &mut grown {
            barriers.push(black_box(vec![1u8; MIB]));
            words.reserve_exact(words.capacity());
            words.resize(words.capacity(), 7);
        }
    }
    for (words, id) in grown.iter_mut().zip(0..) {
        assert!(words[6 * MIB / 8..].iter().all(|&word| word == 7));
        words.truncate(6 * MIB / 8);
        words.shrink_to_fit();
        assert_patterned(words, seed + id);
    }
}

/// Grows sparsely touched vectors that must be copied.
fn grow_sparse() {
    drop(black_box(vec![0xA5u8; 16 * MIB]));
    // Purges free memory first. Otherwise, the arena might clear it by writing for the vectors, which would make it resident.
    release();
    let mut grown: Vec<_> = (0..8u8).map(|_| vec![0u8; 700 << 10]).collect();
    for words in &mut grown {
        words[9_000] = 7;
        words.reserve_exact(MIB);
    }
    for words in &grown {
        assert!(words.iter().zip(0..).all(|(&byte, at)| byte == if at == 9_000 { 7 } else { 0 }));
    }
}

/// Checks that zeroed requests return zeroes, even in memory that was written before, wholly or partly.
fn zeroed() {
    for bytes in [3_000, 40 << 10, 300 << 10, 2 * MIB, 70 * MIB] {
        // With steps of 1 MiB, the buffer is written sparsely. At the next request of this length, the arena checks how much of it is
        // resident.
        for step in [1, MIB, 1] {
            let mut buffer = black_box(vec![0u8; bytes]);
            assert!(buffer.iter().all(|&byte| byte == 0), "{bytes} bytes are not all zero");
            buffer.iter_mut().step_by(step).for_each(|byte| *byte = 0xA5);
            drop(black_box(buffer));
        }
    }
}

/// Checks that a child finds its inherited memory unchanged and can allocate. If the call that starts processes is refused, checks that
/// nothing changes.
fn forked(is_refused: bool, error: c_int) {
    let inherited = phase(|| blocks(77));
    // Retains memory, so there is free memory at the fork.
    set_retain(Retain::Bytes(256 * MIB));
    phase(|| drop(black_box((0..8).map(|_| vec![1u8; 8 * MIB]).collect::<Vec<_>>())));
    let retained = stats().resident_bytes;
    if is_refused {
        // SAFETY: the kernel refuses the call, so no child is created.
        let pid = unsafe { libc::fork() };
        assert_eq!((pid, std::io::Error::last_os_error().raw_os_error()), (-1, Some(error)));
    } else {
        let code = in_a_fork(|| {
            let is_whole = |blocks: &[Vec<u64>]| blocks.iter().all(|words| is_patterned(words, 77));
            let own = phase(|| blocks(77));
            release();
            u8::from(!(is_whole(&inherited) && is_whole(&own) && is_whole(&phase(|| blocks(77)))))
        });
        assert_eq!(code, 0, "the contents of the child's memory are wrong");
    }
    inherited.iter().for_each(|words| assert_patterned(words, 77));
    phase(|| drop(black_box((0..8).map(|_| vec![1u8; 8 * MIB]).collect::<Vec<_>>())));
    assert!(stats().resident_bytes < retained + MIB, "free memory was lost at the fork: {}", stats());
}

/// Groups of calls that are refused together. Each has a name, the calls, and whether a process needs them to start. The comments say what
/// the arena can't do without them.
const REFUSED: [(&str, &[c_long], bool); 6] = [
    // No thread can find out whether another is using its cache, so no thread may empty another's cache.
    ("membarrier", &[libc::SYS_membarrier], false),
    // Memory keeps its contents after a purge, and is not wiped in a forked child.
    ("madvise", &[libc::SYS_madvise], false),
    // Without this call, growth has to copy.
    ("mremap", &[libc::SYS_mremap], false),
    // The arena can't find out whether clearing memory or purging it is cheaper.
    ("mincore", &[libc::SYS_mincore], false),
    // The arena can't distinguish a page that was written to swap from one that was never touched. The loader needs this call to start the
    // process.
    ("pread64", &[libc::SYS_pread64], true),
    // No allocation needs another thread or process. The test itself starts its threads before these calls are refused.
    ("clone", &[libc::SYS_clone, libc::SYS_clone3], true),
];

/// Runs [`work_without`] in two processes for each entry of [`REFUSED`]. In the first, the calls are refused before the process starts,
/// unless it needs them to start. In the second, they are refused in the middle of the work. The arena treats all errors alike, so each
/// process tries only one error.
#[test]
fn memory_keeps_its_contents_when_calls_are_refused() {
    for (name, calls, is_needed) in REFUSED {
        for (error, at_start) in [(libc::EPERM, !is_needed), (libc::ENOSYS, false)] {
            let prepare = |command: &mut Command| {
                let before_exec = move || {
                    let is_refused = !at_start || refuse(calls, Answer::Errno(error));
                    if is_refused { Ok(()) } else { Err(std::io::Error::last_os_error()) }
                };
                // SAFETY: the closure allocates nothing, and only makes system calls.
                unsafe { command.pre_exec(before_exec) };
            };
            let begin = || at_start || refuse(calls, Answer::Errno(error));
            // The variable `REFUSED` only appears in the message of a failure.
            let ended = child_as(&[("REFUSED", name)], prepare, || work_without(calls, error, begin));
            ended.iter().for_each(Ended::assert_passed);
        }
    }
}

/// Under a limit that is set after the arena has opened, mremap(2) may fail after it has already unmapped the target. The arena must not
/// serve requests from the resulting hole, because it can't be mapped again.
#[test]
fn the_hole_of_a_refused_move_is_not_handed_out() {
    alone!();
    let _guard = PhaseGuard::new();
    // Maps and purges memory for the requests under the limit, where nothing more can be mapped.
    drop(black_box(vec![1u8; 63 * MIB]));
    drop(black_box((0..12).map(|_| vec![1u8; 16 * MIB]).collect::<Vec<_>>()));
    zk_alloc::release();
    let mut words = patterned(8 * MIB / 8, 5);
    let barrier = black_box(vec![1u8; 2 * MIB]);
    let refusals = stats().refusals;
    let others: Vec<_> = limited(libc::RLIMIT_AS, 1, || {
        words.reserve_exact(words.len());
        // The requests fill all free memory, so one of them would get the hole.
        (0..8u8).map(|number| vec![number + 1; 16 * MIB]).collect()
    });
    assert_patterned(&words, 5);
    assert!(others.iter().zip(1..).all(|(bytes, number)| bytes.iter().all(|&byte| byte == number)));
    // Linux before 5.7 moves nothing.
    assert!(stats().refusals > refusals, "nothing was refused: {}", stats());
    drop(barrier);
}

/// The calls of glibc's malloc and threads, and those with which a program exits.
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

/// Returns a step that skips the next one unless the loaded word has this value.
fn unless(value: u32) -> libc::sock_filter {
    skip_if(value, 0, 1)
}

/// Installs a filter that allows only the calls in [`CALLS`] and `more`, and madvise(2) with `advices`. Any other call kills the process.
fn enter_sandbox(more: &[c_long], advices: &[c_int]) {
    let allow = |value: u32| [unless(value), end(libc::SECCOMP_RET_ALLOW)];
    let mut program = vec![load(NUMBER_AT)];
    program.extend(CALLS.iter().chain(more).flat_map(|&call| allow(call as u32)));
    program.extend([unless(libc::SYS_madvise as u32), step(libc::BPF_JMP | libc::BPF_JA, 1, 0, 0)]);
    program.extend([end(libc::SECCOMP_RET_KILL_PROCESS), load(FIRST_AT + 16)]);
    program.extend(advices.iter().flat_map(|&advice| allow(advice as u32)));
    program.push(end(libc::SECCOMP_RET_KILL_PROCESS));
    assert!(install(&mut program, 0));
}

/// Allocates, frees, grows and shrinks hundreds of MiB in the arena. If a check fails in a sandbox, the calls that a panic makes also kill
/// the process.
fn work(seed: u64) {
    let _guard = PhaseGuard::new();
    let (mut numbers, mut kept) = (Numbers::new(seed), Kept::new());
    assert!((0..2_000).all(|_| kept.replace(&mut numbers, 120, &LENGTHS)) && kept.drain(), "a buffer has changed");
    grow(seed);
    grow_sparse();
    zeroed();
}

extern "C" fn work_there(_: *mut c_void) -> *mut c_void {
    work(2);
    null_mut()
}

extern "C" fn nothing(none: *mut c_void) -> *mut c_void {
    none
}

/// Enters the sandbox, runs [`work`] on two threads there, and exits the process. If `is_open`, the arena opens before this, otherwise in
/// the sandbox.
fn live_in_a_sandbox(is_open: bool, more: &[c_long], advices: &[c_int]) -> ! {
    if is_open {
        work(1);
    }
    assert_eq!(stats().address_space_bytes > 0, is_open);
    // Uses C library threads, because the standard library's would make more calls. When the first thread starts, glibc makes some calls
    // that it makes only once.
    let thread = |run| start_thread(run, null_mut()).expect("a thread");
    join_thread(thread(nothing));
    enter_sandbox(more, advices);
    work(1);
    let other = thread(work_there);
    work(3);
    release();
    join_thread(other);
    release();
    work(4);
    // SAFETY: the buffer has that length, and `_exit` takes any code.
    unsafe {
        libc::write(1, c"lived".as_ptr().cast(), 5);
        libc::_exit(0)
    }
}

/// The calls that the arena makes once before `main`, except madvise(2). The last one is for sampling call sites.
const MORE: [c_long; if cfg!(feature = "profile") { 6 } else { 5 }] = [
    libc::SYS_membarrier,
    libc::SYS_mincore,
    // `/proc/self/pagemap`, for vectors that grow and are mostly untouched.
    libc::SYS_openat,
    libc::SYS_pread64,
    libc::SYS_close,
    #[cfg(feature = "profile")]
    libc::SYS_sigaltstack,
];

/// The advice values of madvise(2) that the arena uses once before `main`.
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

/// Checks that a process survives in this sandbox, whether the arena opens before the process enters the sandbox or after.
#[track_caller]
fn lives(settings: Settings, more: &[c_long], advices: &[c_int]) {
    for is_open in [true, false] {
        if let Some(ended) = child(settings, || live_in_a_sandbox(is_open, more, advices)) {
            assert!(ended.status.success() && ended.stdout.ends_with("lived"), "open: {is_open}, {ended:?}");
        }
    }
}

/// With the sandbox setting, the arena needs only glibc's calls. Without it, the arena makes every call that it may need once before
/// `main`, so a sandbox that allows the calls recorded at the start works for the whole run.
#[test]
fn the_arena_survives_in_sandboxes_that_allow_the_calls_of_glibc_or_those_made_at_the_start() {
    lives(&[("ZK_ALLOC_SANDBOX", "1")], &[], &[libc::MADV_DONTNEED]);
    lives(&[], &MORE, &RECORDED);
}

/// Starts this program under a filter that kills it if it makes `call` with this argument. Returns whether the filter killed it.
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
    // SAFETY: the closure makes two calls that neither allocate nor lock.
    unsafe { command.pre_exec(forbid) };
    let status = command.arg("--list").stdout(Stdio::null()).status().expect("a process");
    status.signal() == Some(libc::SIGSYS)
}

/// The arena must make every call in the lists above before `main`.
#[test]
fn every_call_that_the_arena_may_make_is_made_once_at_the_start() {
    // The arena uses `MADV_HUGEPAGE` only if huge pages may be used.
    for advice in RECORDED.into_iter().filter(|&advice| advice != libc::MADV_HUGEPAGE) {
        assert!(calls_at_the_start(libc::SYS_madvise, FIRST_AT + 16, advice as u32), "advice {advice}");
    }
    const PRIVATE_EXPEDITED: u32 = 1 << 3;
    assert!(calls_at_the_start(libc::SYS_membarrier, FIRST_AT, PRIVATE_EXPEDITED));
    MORE[1..].iter().for_each(|&call| assert!(calls_at_the_start(call, NUMBER_AT, call as u32), "call {call}"));
    let is_killed = calls_at_the_start(libc::SYS_madvise, FIRST_AT + 16, libc::MADV_COLLAPSE as u32);
    assert!(!is_killed, "the filter kills a program that does not make the call");
}
