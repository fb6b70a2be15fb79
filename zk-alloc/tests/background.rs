//! The background thread. A process has it only on request, it behaves like any thread of the program, and with it an
//! idle process shrinks to its live size.
//!
//! A background thread belongs to its process, so each test runs in a process of its own.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "forks, and calls allocators by hand")]

mod support;

use std::alloc::GlobalAlloc;
use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use support::blocks::{Block, KIB, MIB, RESIDENT};
use support::forks::in_a_fork;
use support::limits::limited;
use support::tasks::{are_ours, ours, tasks};
use support::{address_space_bytes, alone, field, in_its_own_process};
use zk_alloc::{
    Origin, Retain, Settings, ZkAllocator, phase, release, reserve, set_retain, start_background_thread, stats,
    stop_background_thread,
};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

/// The peak live size of [`work`], in bytes.
const MAX_BYTES: usize = 200 * MIB;

/// Allocates and writes one huge block, some mid-sized blocks and many small ones.
fn work(allocator: &'static (dyn GlobalAlloc + Sync)) {
    let of = |count: usize, bytes: usize| (0..count).map(|_| Block::written(allocator, bytes)).collect::<Vec<_>>();
    drop(black_box((of(1, MAX_BYTES / 2), of(64, MAX_BYTES / 4 / 64), of(4_000, MAX_BYTES / 4 / 4_000))));
}

/// Calls `each_time` again and again until at most `bytes` are resident. Returns whether that happened.
fn shrinks_to(bytes: usize, mut each_time: impl FnMut()) -> bool {
    let begun = Instant::now();
    while stats().resident_bytes > bytes && begun.elapsed() < Duration::from_secs(15) {
        each_time();
        thread::sleep(Duration::from_millis(5));
    }
    stats().resident_bytes <= bytes
}

/// The most that an idle process may retain: a twentieth more than its live size, and 2 MiB for the test itself.
fn at_rest(live_bytes: usize) -> usize {
    live_bytes + live_bytes / 20 + 2 * MIB
}

/// Allocates more blocks than a thread cache holds.
fn a_little() {
    drop((0..200).map(|_| Block::written(&RESIDENT, 100)).collect::<Vec<_>>());
}

const SHORT: (&str, &str) = ("ZK_ALLOC_RETAIN_FOR", "0.4");

/// A hidden thread would keep privileges that the program drops, and would block calls that need a process with one
/// thread.
#[test]
fn by_default_the_allocator_starts_no_thread() {
    alone!(&[SHORT]);
    let before = tasks().len();
    let assert_alone = |when: &str| assert_eq!(tasks().len(), before, "{when}: {:?}", ours());
    for retain in [Retain::Always, Retain::Never, Retain::Bytes(MIB), Retain::For(Duration::from_millis(10))] {
        set_retain(retain);
        for _ in 0..5 {
            phase(|| work(&ALLOC));
            assert_alone("between phases");
        }
        thread::sleep(Duration::from_millis(30));
        assert_alone("after a pause");
    }
    for _ in 0..10 {
        work(&RESIDENT);
        assert_alone("without phases");
        thread::sleep(Duration::from_millis(20));
        assert_alone("in between");
    }
    release();
    assert_alone("when asked to release");
}

#[test]
fn with_the_thread_an_idle_process_shrinks_to_its_live_size() {
    alone!(&[SHORT]);
    start_background_thread().expect("a thread");
    let survivor = Block::written(&RESIDENT, 20 * MIB);
    // What is used a second time stays.
    work(&RESIDENT);
    for round in 0..3 {
        work(&RESIDENT);
        assert!(stats().resident_bytes >= MAX_BYTES, "round {round} is not over: {}", stats());
        assert!(shrinks_to(at_rest(survivor.size()), || ()), "round {round}: {}", stats());
    }
}

/// Under `Retain::For`, all free memory is purged once that time has passed without a phase.
#[test]
fn with_the_thread_all_free_memory_is_purged_after_the_retention_time() {
    alone!();
    set_retain(Retain::For(Duration::from_millis(300)));
    start_background_thread().expect("a thread");
    let survivor = phase(|| Block::written(&ALLOC, 20 * MIB));
    for round in 0..3 {
        phase(|| work(&ALLOC));
        assert!(stats().resident_bytes >= MAX_BYTES, "round {round} is not over: {}", stats());
        assert!(shrinks_to(survivor.size() + MIB, || ()), "round {round}: {}", stats());
    }
    // Memory that is freed between phases is purged, too.
    drop(survivor);
    assert!(shrinks_to(MIB, || ()), "{}", stats());
    // In a phase, nothing is purged.
    phase(|| {
        work(&ALLOC);
        thread::sleep(Duration::from_millis(1_500));
        assert!(stats().resident_bytes >= MAX_BYTES, "{}", stats());
    });
}

/// The program's own threads purge, on the slow paths of their requests. A service that frees what it allocates is served by its thread
/// cache, and never reaches the slabs.
#[test]
fn without_the_thread_a_process_that_requests_little_shrinks() {
    for requests in [a_little, || (0..50).for_each(|_| drop(Block::untouched(&RESIDENT, 100, 8)))] {
        in_its_own_process(&[SHORT], || {
            let survivor = Block::written(&RESIDENT, 20 * MIB);
            (0..2).for_each(|_| work(&RESIDENT));
            assert!(stats().resident_bytes >= MAX_BYTES, "{}", stats());
            assert!(shrinks_to(at_rest(survivor.size()), requests), "{}", stats());
            assert_eq!(ours().len(), 0);
        });
    }
}

/// Between phases the arena gets no requests. Requests to the backing allocator tick instead.
#[test]
fn without_the_thread_a_process_between_phases_shrinks() {
    alone!();
    set_retain(Retain::For(Duration::from_millis(300)));
    let survivor = phase(|| Block::written(&ALLOC, 20 * MIB));
    phase(|| work(&ALLOC));
    assert!(stats().resident_bytes >= MAX_BYTES, "{}", stats());
    assert!(shrinks_to(survivor.size() + MIB, || drop(black_box(vec![1u8; 100]))), "{}", stats());
}

/// The first request after a pause may belong to a proof. A purge at that moment would take the memory that the proof needs.
#[test]
fn a_proof_after_a_pause_finds_its_memory() {
    // Long decay ticks, so that a busy machine does not cause a pause by itself.
    let settings = [("ZK_ALLOC_RETAIN_FOR", "4")];
    alone!(&settings);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        work(&RESIDENT);
    }
    thread::sleep(Duration::from_millis(4_500));
    let before = stats();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        work(&RESIDENT);
    }
    let (fresh, gone) = (stats().fresh_bytes - before.fresh_bytes, stats().system_calls - before.system_calls);
    assert!(fresh < MAX_BYTES as u64 / 10, "{fresh} bytes were fresh, {gone} calls, after a pause: {}", stats());
}

#[test]
fn the_thread_starts_and_stops_any_number_of_times() {
    alone!(&[SHORT]);
    stop_background_thread();
    for round in 0..20 {
        thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(|| start_background_thread().expect("a thread"))));
        });
        assert!(are_ours(1), "round {round}: {:?}", ours());
        work(&RESIDENT);
        stop_background_thread();
        assert!(are_ours(0), "round {round}: {:?}", ours());
        stop_background_thread();
    }
    start_background_thread().expect("a thread");
    assert!(shrinks_to(2 * MIB, || ()), "the last of them works: {}", stats());
}

/// The thread may sleep without a time limit. Stopping it must wake it.
#[test]
fn a_thread_without_work_stops_at_once() {
    alone!(&[("ZK_ALLOC_RETAIN_FOR", "ever")]);
    work(&RESIDENT);
    start_background_thread().expect("a thread");
    thread::sleep(Duration::from_millis(50));
    let begun = Instant::now();
    stop_background_thread();
    assert!(begun.elapsed() < Duration::from_secs(20), "it slept for ever");
}

/// A signal handler of the program must not run on a thread that the program does not know about.
#[test]
fn the_thread_handles_no_signals() {
    alone!();
    let of_creator = || field("/proc/thread-self/status", "SigBlk");
    let before = of_creator();
    start_background_thread().expect("a thread");
    assert!(are_ours(1), "{:?}", tasks());
    assert_eq!(of_creator(), before, "the creator's own signals are as before");
    let blocked = u64::from_str_radix(&field(ours()[0].join("status"), "SigBlk"), 16).expect("a number");
    let is_blocked = |signal: &i32| blocked >> (signal - 1) & 1 == 1;
    let never = [libc::SIGKILL, libc::SIGSTOP];
    let free: Vec<_> = (1..=31).chain(libc::SIGRTMIN()..=libc::SIGRTMAX()).filter(|n| !is_blocked(n)).collect();
    assert_eq!(free, never, "signals that may be handled on it");
}

/// The C library applies setuid(2) to every thread that it knows. A thread unknown to it would keep the old user.
#[test]
fn the_thread_gives_up_the_privileges_that_the_program_gives_up() {
    alone!(&[SHORT]);
    // SAFETY: only returns a number.
    if unsafe { libc::geteuid() } != 0 {
        return println!("skipped: only root can give anything up");
    }
    let code = in_a_fork(|| {
        work(&RESIDENT);
        if start_background_thread().is_err() || !are_ours(1) {
            return 1;
        }
        // SAFETY: changes the user of this child.
        if unsafe { libc::setuid(65_534) } != 0 {
            return 2;
        }
        let is_given_up = |task: &std::path::PathBuf| {
            let of_task = |name| field(task.join("status"), name);
            of_task("Uid") == "65534\t65534\t65534\t65534" && of_task("CapEff") == "0000000000000000"
        };
        if tasks().len() == 2 && tasks().iter().all(is_given_up) { 0 } else { 3 }
    });
    assert_eq!(code, 0);
}

/// The kernel lets only processes with one thread join and make namespaces.
#[test]
fn a_process_without_the_thread_may_join_and_make_namespaces() {
    alone!(&[SHORT]);
    let make = || {
        // SAFETY: the child's own namespace.
        let made = unsafe { libc::unshare(libc::CLONE_NEWUSER) };
        if made == 0 { 0 } else { error_number() }
    };
    let join = || {
        // SAFETY: a NUL-terminated name; the child owns the descriptor.
        let joined = unsafe {
            let own = libc::open(c"/proc/self/ns/mnt".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            libc::setns(own, libc::CLONE_NEWNS)
        };
        if joined == 0 { 0 } else { error_number() }
    };
    for (what, call) in [("unshare(CLONE_NEWUSER)", &make as &dyn Fn() -> u8), ("setns(mnt)", &join)] {
        let without = in_a_fork(call);
        if without != 0 {
            println!("skipped: {what}: refused in a child that allocates nothing, too (errno {without})");
            continue;
        }
        let with = in_a_fork(|| {
            (0..3).for_each(|_| work(&RESIDENT));
            call()
        });
        assert_eq!(with, 0, "{what} in a child that allocates");
    }
}

fn error_number() -> u8 {
    std::io::Error::last_os_error().raw_os_error().and_then(|code| u8::try_from(code).ok()).unwrap_or(255)
}

/// fork(2) copies only the calling thread. A child that takes its parent's background thread for its own would never
/// purge.
#[test]
fn a_forked_child_has_no_thread_and_purges_until_it_starts_its_own() {
    alone!(&[SHORT, ("ZK_ALLOC_BACKGROUND", "1")]);
    work(&RESIDENT);
    assert!(are_ours(1));
    let code = in_a_fork(|| {
        phase(|| work(&RESIDENT));
        if !ours().is_empty() || tasks().len() != 1 {
            return 1;
        }
        if !shrinks_to(4 * MIB, a_little) {
            return 2;
        }
        if start_background_thread().is_err() || !are_ours(1) {
            return 3;
        }
        work(&RESIDENT);
        if !shrinks_to(4 * MIB, || ()) {
            return 4;
        }
        stop_background_thread();
        if are_ours(0) { 0 } else { 5 }
    });
    assert_eq!(code, 0);
    work(&RESIDENT);
    assert!(shrinks_to(2 * MIB, || ()), "the parent's goes on: {}", stats());
}

/// A fork can happen in the middle of a purge. The child loses the run that was being purged, which is half of the
/// memory at most.
#[test]
fn a_child_forked_during_a_purge_purges_itself() {
    alone!(&[("ZK_ALLOC_RETAIN_FOR", "0.008")]);
    start_background_thread().expect("a thread");
    for round in 0..8 {
        work(&RESIDENT);
        // The thread is purging just now, or is about to.
        thread::sleep(Duration::from_millis(round % 10));
        let code = in_a_fork(|| {
            work(&RESIDENT);
            u8::from(!shrinks_to(MAX_BYTES / 2 + 10 * MIB, a_little))
        });
        assert_eq!(code, 0, "round {round}");
    }
}

static WITH_THREAD: ZkAllocator = ZkAllocator::resident().settings(Settings::new().background_thread(true));

/// The setting starts the thread once: a stopped thread stays stopped.
#[test]
fn the_setting_starts_the_background_thread_at_the_first_phase_and_never_again() {
    alone!(&[("ZK_ALLOC_BACKGROUND", "1")]);
    phase(|| ());
    assert!(are_ours(1));
    let in_force = stats().settings.expect("there is an arena").background_thread;
    assert_eq!((in_force.value, in_force.origin), (true, Origin::Environment));
    stop_background_thread();
    phase(|| work(&WITH_THREAD));
    set_retain(Retain::For(Duration::from_millis(100)));
    reserve(MIB);
    assert!(are_ours(0));
}

/// The system may refuse a thread. The program runs on, and may ask again.
#[test]
fn a_refused_thread_is_only_an_error() {
    alone!(&[SHORT]);
    work(&RESIDENT);
    let refused = limited(libc::RLIMIT_AS, address_space_bytes() + 16 * KIB, start_background_thread);
    assert!(refused.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EAGAIN)), "{refused:?}");
    assert_eq!(ours().len(), 0);
    start_background_thread().expect("there is address space again");
    assert!(shrinks_to(2 * MIB, || ()), "{}", stats());
}
