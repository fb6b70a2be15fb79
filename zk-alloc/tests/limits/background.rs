//! Retention and the background thread. According to the policy, the arena purges free memory at the end of a phase or after an idle time;
//! `release()` purges it at once.
//!
//! With a background thread, an idle process shrinks to its live size. A process has this thread only on request. Apart from handling no
//! signals, it behaves like any other thread of the program.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use crate::ALLOC;
use crate::support::blocks::{Allocator, Block, KIB, MIB, RESIDENT};
use crate::support::process::{are_ours, first_failure, give_up_root, in_a_fork, limited, ours, soon, tasks};
use crate::support::{address_space_bytes, alone, field, in_its_own_process};
use zk_alloc::{
    Participants, Phase, PhaseGuard, Retain, ZkAllocator, phase, release, reserve, set_retain, soften,
    start_background_thread, stats, stop_background_thread,
};

/// The peak live size of [`work`], in bytes.
const MAX_BYTES: usize = 200 * MIB;

/// Allocates and writes one huge block, some mid-sized blocks and many small ones, then frees them.
fn work(allocator: Allocator) {
    let of = |count: usize, bytes: usize| (0..count).map(|_| Block::written(allocator, bytes)).collect::<Vec<_>>();
    drop(black_box((of(1, MAX_BYTES / 2), of(64, MAX_BYTES / 4 / 64), of(4_000, MAX_BYTES / 4 / 4_000))));
}

/// Calls `each_time` repeatedly until at most `bytes` are resident. Returns whether that point was reached.
fn shrinks_to(bytes: usize, mut each_time: impl FnMut()) -> bool {
    soon(|| {
        each_time();
        // With more frequent requests, the process would count as busy.
        thread::sleep(Duration::from_millis(5));
        stats().resident_bytes <= bytes
    })
}

/// Returns the maximum resident size of an idle process: its live size, a twentieth of that, and 2 MiB for the test itself.
fn at_rest(live_bytes: usize) -> usize {
    live_bytes + live_bytes / 20 + 2 * MIB
}

/// Allocates more blocks than a thread cache holds.
fn a_little() {
    drop((0..200).map(|_| Block::written(&RESIDENT, 100)).collect::<Vec<_>>());
}

const SHORT: (&str, &str) = ("ZK_ALLOC_RETAIN_FOR", "0.4");

/// A thread that the program does not know about could keep privileges that the program drops. Calls that the kernel allows only to
/// single-threaded processes would fail.
#[test]
fn by_default_the_allocator_starts_no_thread() {
    alone!(&[SHORT]);
    let before = tasks().len();
    let assert_alone = |when: &str| assert_eq!(tasks().len(), before, "{when}: {:?}", ours());
    for retain in [Retain::Always, Retain::Never, Retain::Bytes(MIB), Retain::For(Duration::from_millis(10))] {
        set_retain(retain);
        for allocator in [&ALLOC as Allocator, &RESIDENT] {
            phase(|| work(allocator));
            work(allocator);
            assert_alone("after work");
            thread::sleep(Duration::from_millis(30));
        }
    }
    release();
    assert_alone("when asked to release");
}

/// Runs [`work`] in a process of its own, with or without phases. Fails unless the process shrinks afterwards while it calls `each_time`
/// repeatedly. The memory is purged by the background thread if there is one, otherwise by the requests of `each_time`.
#[track_caller]
fn assert_shrinks(is_in_phases: bool, has_thread: bool, each_time: fn()) {
    in_its_own_process(&[SHORT], || {
        let allocator: Allocator = if is_in_phases { &ALLOC } else { &RESIDENT };
        // Under `Retain::For`, all free memory is purged once that time has passed without a phase.
        let at_rest: fn(usize) -> usize = if is_in_phases { |live_bytes| live_bytes + MIB } else { at_rest };
        if is_in_phases {
            set_retain(Retain::For(Duration::from_millis(300)));
        }
        if has_thread {
            start_background_thread().expect("a thread");
        }
        let begin = || is_in_phases.then(PhaseGuard::new);
        let guard = begin();
        let survivor = Block::written(allocator, 20 * MIB);
        drop(guard);
        for round in 0..2 {
            let guard = begin();
            // Without phases, memory stays resident only if it is used a second time.
            (0..2).for_each(|_| work(allocator));
            if guard.is_some() && has_thread {
                // Longer than memory is retained outside of phases.
                thread::sleep(Duration::from_millis(700));
            }
            drop(guard);
            assert!(stats().resident_bytes >= MAX_BYTES, "round {round}: memory was purged too early: {}", stats());
            assert!(shrinks_to(at_rest(survivor.size()), each_time), "round {round}: {}", stats());
        }
        assert!(are_ours(usize::from(has_thread)), "{:?}", ours());
        if has_thread {
            // Memory that is freed between phases must be purged too.
            drop(survivor);
            assert!(shrinks_to(at_rest(0), || ()), "{}", stats());
        }
    });
}

#[test]
fn an_idle_process_with_a_background_thread_shrinks_to_its_live_size() {
    assert_shrinks(false, true, || ());
    assert_shrinks(true, true, || ());
}

/// Without a background thread, requests run the decay ticks. This must also work if the thread cache serves all requests, as in a service
/// that frees each block at once, and if the backing allocator serves them between phases.
#[test]
fn a_process_with_few_requests_shrinks_without_a_background_thread() {
    assert_shrinks(false, false, a_little);
    assert_shrinks(false, false, || (0..50).for_each(|_| drop(Block::untouched(&RESIDENT, 100, 8))));
    assert_shrinks(true, false, || drop(black_box(vec![1u8; 100])));
}

/// `stop_background_thread` must wake the thread, which may be sleeping without a timeout.
#[test]
fn the_background_thread_starts_and_stops_any_number_of_times() {
    in_its_own_process(&[("ZK_ALLOC_RETAIN_FOR", "ever")], || {
        work(&RESIDENT);
        start_background_thread().expect("a thread");
        thread::sleep(Duration::from_millis(50));
        let begun = Instant::now();
        stop_background_thread();
        assert!(begun.elapsed() < Duration::from_secs(20), "the thread was not woken to stop");
    });
    alone!(&[SHORT]);
    stop_background_thread();
    for round in 0..10 {
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
    assert!(shrinks_to(2 * MIB, || ()), "the thread that was started last does not purge: {}", stats());
}

/// The program's signal handlers must not run on the background thread. The C library applies setuid(2) to all threads that it started. A
/// thread started without the C library would keep the old user and its privileges.
#[test]
fn the_background_thread_handles_no_signals_and_drops_the_privileges_that_the_program_drops() {
    alone!(&[SHORT]);
    work(&RESIDENT);
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

    // SAFETY: geteuid(2) has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return println!("skipped: only root has privileges to drop");
    }
    let is_given_up = |task: &std::path::PathBuf| {
        let of_task = |name| field(task.join("status"), name);
        of_task("Uid") == "65534\t65534\t65534\t65534" && of_task("CapEff") == "0000000000000000"
    };
    assert!(give_up_root());
    assert!(tasks().len() >= 2 && tasks().iter().all(is_given_up), "a task keeps its privileges: {:?}", tasks());
}

/// The kernel lets only single-threaded processes join and create namespaces.
#[test]
fn a_process_without_a_background_thread_may_join_and_create_namespaces() {
    alone!(&[SHORT]);
    let error =
        |result: i32| if result == 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap_or(255) as u8 };
    // SAFETY: the call changes only the child's own namespace.
    let make = || error(unsafe { libc::unshare(libc::CLONE_NEWUSER) });
    let join = || {
        // SAFETY: the name is NUL-terminated, and the child owns the descriptor.
        error(unsafe {
            let own = libc::open(c"/proc/self/ns/mnt".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            libc::setns(own, libc::CLONE_NEWNS)
        })
    };
    for (what, call) in [("unshare(CLONE_NEWUSER)", &make as &dyn Fn() -> u8), ("setns(mnt)", &join)] {
        let without = in_a_fork(call);
        if without != 0 {
            println!("skipped: {what}: the kernel also refuses it in a child that allocates nothing (errno {without})");
            continue;
        }
        let with = in_a_fork(|| {
            (0..3).for_each(|_| work(&RESIDENT));
            call()
        });
        assert_eq!(with, 0, "{what} in a child that allocates");
    }
}

/// fork(2) copies only the calling thread, so a child that relied on its parent's background thread would never purge. If the fork happens
/// in the middle of a purge, the child loses the run that was being purged, which is at most half of the memory.
#[test]
fn a_forked_child_purges_without_a_background_thread_and_can_start_one() {
    alone!(&[("ZK_ALLOC_RETAIN_FOR", "0.008"), ("ZK_ALLOC_BACKGROUND", "1")]);
    for round in 0..4 {
        work(&RESIDENT);
        assert!(are_ours(1));
        // At the fork, the background thread is purging or is about to.
        thread::sleep(Duration::from_millis(2 * round));
        let code = in_a_fork(|| {
            let is_alone = ours().is_empty() && tasks().len() == 1;
            phase(|| work(&RESIDENT));
            let shrinks = shrinks_to(MAX_BYTES / 2 + 10 * MIB, a_little);
            let is_started = start_background_thread().is_ok() && are_ours(1);
            work(&RESIDENT);
            let is_purged = shrinks_to(MAX_BYTES / 2 + 10 * MIB, || ());
            stop_background_thread();
            first_failure(&[is_alone, shrinks, is_started, is_purged, are_ours(0)])
        });
        assert_eq!(code, 0, "round {round}: the number of the check that failed");
    }
    work(&RESIDENT);
    assert!(shrinks_to(2 * MIB, || ()), "the parent's thread does not purge any more: {}", stats());
}

/// The system may refuse to start a thread. The program must continue, and may try again.
#[test]
fn a_background_thread_that_the_system_refuses_is_an_error_and_can_be_started_later() {
    alone!(&[SHORT]);
    work(&RESIDENT);
    let refused = limited(libc::RLIMIT_AS, address_space_bytes() + 16 * KIB, start_background_thread);
    assert!(refused.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EAGAIN)), "{refused:?}");
    assert_eq!(ours().len(), 0);
    start_background_thread().expect("there is address space again");
    assert!(shrinks_to(2 * MIB, || ()), "{}", stats());
}

const BUFFER_BYTES: usize = 96 << 20;

fn use_a_buffer() {
    // Without `black_box`, the compiler would not write to a buffer that is freed immediately.
    phase(|| drop(black_box(vec![1u8; BUFFER_BYTES])));
}

/// Tests `Retain::Always` and `Retain::For`; memory/returns.rs tests the other policies.
#[test]
fn resident_memory_follows_the_retention_policy() {
    alone!();
    set_retain(Retain::Always);
    use_a_buffer();
    assert!(soften() >= BUFFER_BYTES, "the system may take free pages when it is short of memory");
    use_a_buffer();
    assert!(release() >= BUFFER_BYTES);

    // Times below a millisecond must work too, and the background thread must notice each new time.
    start_background_thread().expect("a thread");
    for idle in [Duration::from_micros(100), Duration::ZERO, Duration::from_millis(20)] {
        set_retain(Retain::For(idle));
        use_a_buffer();
        assert!(soon(|| stats().resident_bytes < BUFFER_BYTES), "Retain::For purges after idling for {idle:?}");
    }
    // With nothing to purge, the thread wakes only once a second, so a laptop's processor can sleep.
    thread::sleep(Duration::from_millis(200));
    let slept = sleeps_of_the_thread();
    thread::sleep(Duration::from_millis(2_200));
    let sleeps = sleeps_of_the_thread() - slept;
    assert!((1..=4).contains(&sleeps), "it woke {sleeps} times in 2.2 seconds");
    set_retain(Retain::For(Duration::MAX));
    use_a_buffer();
    thread::sleep(Duration::from_millis(50));
    assert!(stats().resident_bytes >= BUFFER_BYTES, "Retain::For purged before its time");
    stop_background_thread();
    set_retain(Retain::For(Duration::ZERO));
    use_a_buffer();
    assert!(stats().resident_bytes < BUFFER_BYTES / 4, "Retain::For(0) purges at once, without the thread");

    set_retain(Retain::Always);
    assert!(reserve(BUFFER_BYTES) >= BUFFER_BYTES);
    let fresh = stats().fresh_bytes;
    let phase = Phase::new();
    let escaped = vec![1u8; BUFFER_BYTES];
    let report = phase.report();
    drop(phase);
    assert_eq!(stats().fresh_bytes, fresh, "the next request reuses the reserved memory");
    assert!(report.run_bytes >= BUFFER_BYTES as u64 && report.reused_bytes >= BUFFER_BYTES as u64, "{report}");
    assert!(report.to_string().contains("outliving the phase: 96.0 MiB"), "{report}");
    assert!(release() < BUFFER_BYTES && escaped.iter().all(|&byte| byte == 1), "live memory stays");
}

/// Returns how many times the background thread has gone to sleep.
fn sleeps_of_the_thread() -> u64 {
    let [ours] = &ours()[..] else { panic!("{:?}", ours()) };
    field(ours.join("status"), "voluntary_ctxt_switches").parse().expect("a number")
}

static POOL: ZkAllocator = ZkAllocator.participants(Participants::Pool);

/// Under `Participants::Pool`, a thread outside the pool uses the arena only if it registers as a worker or opens a phase itself.
#[test]
fn a_thread_outside_the_pool_does_not_use_the_arena() {
    alone!();
    let use_memory = || drop(Block::written(&POOL, 1 << 20));
    let used = |f: &(dyn Fn() + Sync)| {
        let before = stats().run_allocations;
        std::thread::scope(|scope| scope.spawn(f).join()).unwrap();
        stats().run_allocations - before
    };
    let _phase = Phase::new();
    assert_eq!(used(&use_memory), 0);
    let work = || {
        zk_alloc::pool::register_worker();
        use_memory();
    };
    assert!(used(&work) > 0);
    assert!(used(&|| phase(use_memory)) > 0);
}
