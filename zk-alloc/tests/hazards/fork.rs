//! Forked and vforked children. fork(2) copies the arena while other threads are changing it. A vforked child shares its parent's memory:
//! the calling thread is suspended, and the parent's other threads continue to run.

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::blocks::MIB;
use crate::support::process::{Work, beside, code_of, fork, in_a_fork};
use crate::support::{Kept, Numbers, THRESHOLDS, alone, assert_patterned, kernel_bytes, maps, patterned};
use crate::{LENGTHS, buffers, intact};
use zk_alloc::{Phase, PhaseGuard, phase, release, stats};

const FORKS: u64 = 28;

/// Returns `Err(step)` if `ok` is false.
fn check(ok: bool, step: u8) -> Result<(), u8> {
    if ok { Ok(()) } else { Err(step) }
}

/// Checks and uses the inherited memory in a child. On failure, returns the number of the step that failed. The child must not panic,
/// because a panic takes locks that another thread may have held.
fn child(seed: u64, inherited: Vec<Vec<u64>>, guard: PhaseGuard) -> Result<(), u8> {
    check(intact(&inherited, seed), 10)?;
    // Allocates in the phase that was open at the fork.
    let own = buffers(!seed);
    check(intact(&own, !seed) && intact(&inherited, seed), 11)?;
    let mut grown = inherited;
    for words in &mut grown {
        let longer = patterned(words.len() * 2, seed);
        words.extend_from_slice(&longer[words.len()..]);
    }
    check(intact(&grown, seed) && intact(&own, !seed), 12)?;
    drop(grown);
    drop(guard);
    // Allocates outside of the child's own phases and in new ones. Phases that other threads had open at the fork stay open in the child.
    check(intact(&buffers(seed), seed) && intact(&own, !seed), 13)?;
    for round in 0..5 {
        let kept = phase(|| phase(|| buffers(round)));
        let zeroed = phase(|| LENGTHS.map(|len| black_box(vec![0u64; len])));
        check(zeroed.iter().flatten().all(|&word| word == 0), 14)?;
        release();
        check(intact(&kept, round) && intact(&own, !seed), 15)?;
    }
    // Allocates on a thread that the child starts.
    let made = phase(|| thread::spawn(move || buffers(seed)).join());
    check(made.is_ok_and(|made| intact(&made, seed)), 16)?;
    check(intact(&own, !seed), 17)
}

/// At the fork, other threads are in the middle of an allocation. In the child, these threads do not exist: memory that they had claimed
/// stays claimed, and the child must not wait for them. Parent and child each have their own copy of all live memory.
#[test]
fn a_child_forked_in_a_phase_allocates_and_frees_inherited_memory() {
    alone!(each THRESHOLDS);
    let cycles = &AtomicU64::new(0);
    let busy = |id: u64| -> Work {
        let (mut numbers, mut kept) = (Numbers::new(id), Kept::new());
        Box::new(move || {
            let is_in_phase = numbers.below(4) > 0;
            let mut replace = || kept.replace(&mut numbers, 8, &LENGTHS[..LENGTHS.len() - 1]);
            assert!(if is_in_phase { phase(replace) } else { replace() });
            cycles.fetch_add(1, Ordering::Relaxed);
        })
    };
    // The thread that runs `hammer` spends nearly all of its time claiming and freeing page runs and slabs.
    let claim = |words| drop(black_box(Vec::<u64>::with_capacity(words)));
    let hammer: Work = Box::new(|| phase(|| [5_000, 2_000, 40_000].repeat(100).into_iter().for_each(claim)));
    let before = stats();
    beside([hammer, busy(0), busy(1)], || {
        for seed in 0..FORKS {
            // Each fork catches the other threads at a different point of their work.
            let until = cycles.load(Ordering::Relaxed) + 20;
            while cycles.load(Ordering::Relaxed) < until {
                thread::yield_now();
            }
            let guard = PhaseGuard::new();
            let made = buffers(seed);
            let mut inherited = Some((made.clone(), guard));
            // The child allocates, which glibc and the arena support after a fork, and starts a thread.
            let mut take = || inherited.take().map_or(Err(1), |(made, guard)| child(seed, made, guard));
            assert_eq!(in_a_fork(|| take().err().unwrap_or(0)), 0, "child {seed} of {FORKS}");
            made.iter().for_each(|words| assert_patterned(words, seed));
            drop(inherited);
        }
    });
    let after = stats();
    assert!(after.slab_allocations >= before.slab_allocations + 2 * FORKS, "{after}");
    assert!(after.run_allocations >= before.run_allocations + 2 * FORKS, "{after}");
}

const RETAINED_MIB: usize = 256;
/// With these settings, all memory is in small pages and free memory stays resident, so a fork that copied free memory would copy many page
/// table entries.
const SMALL_PAGES: &[(&str, &str)] = &[("ZK_ALLOC_THP", "never"), ("ZK_ALLOC_RETAIN_BYTES", "8G")];

/// Returns the buffers of a proof: four long ones, then many short ones, so every zone serves some.
fn proof() -> Vec<Vec<u64>> {
    let long = [96 * MIB, 40 * MIB, 40 * MIB, 40 * MIB];
    let short = [300 << 10, 20 << 10, 90 << 10].repeat(100);
    long.into_iter().chain(short).zip(1..).map(|(bytes, seed)| black_box(vec![seed; bytes / 8])).collect()
}

/// Returns whether all words of the first buffer are 1, all words of the second are 2, and so on, as [`proof`] wrote them.
fn are_filled(buffers: &[Vec<u64>]) -> bool {
    buffers.iter().zip(1..).all(|(words, seed)| words.iter().all(|&word| word == seed))
}

/// Returns the proportional set size of a process, which counts a page that n processes share as 1/n of a page.
fn pss_bytes(process: &str) -> usize {
    kernel_bytes(&format!("{process}/smaps_rollup"), "Pss")
}

/// Forks a child that runs `check` and then stops itself. Once [`code_of_stopped`] lets it continue, the child exits with the number of the
/// step that failed, or with 0.
fn fork_and(check: impl FnOnce() -> Result<(), u8>) -> i32 {
    let child = fork(|| {
        let code = check().err().unwrap_or(0);
        // SAFETY: the call stops this child, and changes no memory.
        unsafe { libc::raise(libc::SIGSTOP) };
        code
    });
    // SAFETY: `child` is a child of this process. The null pointer means that no status is written.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::WUNTRACED) };
    child
}

/// Continues a child from [`fork_and`] and returns its exit code.
fn code_of_stopped(child: i32) -> i32 {
    // SAFETY: `child` is a child of this process that has not been reaped yet.
    unsafe { libc::kill(child, libc::SIGCONT) };
    code_of(child)
}

/// Runs in a child and checks its resident size and memory. Unless `depth` is 0, also forks a grandchild that runs the same checks.
fn account_of_child(depth: u32, live: &[Vec<u64>], parent_bytes: usize) -> Result<(), u8> {
    let resident = stats().resident_bytes;
    check(resident + RETAINED_MIB * MIB / 2 < parent_bytes, 20)?;
    check(are_filled(live), 21)?;
    let zeroed = phase(|| black_box(vec![0u64; 8 * MIB]));
    check(zeroed.iter().all(|&word| word == 0), 22)?;
    drop(zeroed);
    let own = phase(proof);
    check(are_filled(&own), 23)?;
    drop(own);
    let warm = stats().resident_bytes;
    check(warm >= parent_bytes / 2 && are_filled(live), 24)?;
    if depth > 0 {
        check(code_of_stopped(fork_and(|| account_of_child(depth - 1, live, warm))) == 0, 25)?;
        check(stats().resident_bytes >= warm, 26)?;
    }
    release();
    check(stats().resident_bytes < parent_bytes / 4 && are_filled(live), 27)
}

/// If the child inherited free memory, the fork would copy that memory's page tables, and the parent's next proof would have to copy its
/// pages (copy-on-write).
#[test]
fn a_child_inherits_no_free_memory_and_its_parent_stays_warm() {
    alone!(SMALL_PAGES);
    let live = phase(|| (1..20).map(|seed| vec![seed; 10_000]).collect::<Vec<Vec<u64>>>());
    drop(phase(proof));
    drop(phase(proof));
    let (alone, resident, mapped) = (pss_bytes("self"), stats().resident_bytes, maps::count());
    assert!(resident > 216 * MIB, "{resident} bytes retained");
    for _ in 0..3 {
        let resident = stats().resident_bytes;
        let child = fork_and(|| check(stats().resident_bytes + 200 * MIB < resident, 20));
        assert_eq!(stats().resident_bytes, resident, "the fork changed the parent's resident size");
        let both = pss_bytes("self") + pss_bytes(&child.to_string());
        assert!(both < alone + alone / 10, "{both} bytes in parent and child, {alone} in the parent alone");
        let phase = Phase::new();
        drop(proof());
        let report = phase.report();
        assert!(report.minor_faults < 2_000, "{report:?}");
        assert_eq!(code_of_stopped(child), 0);
        assert!(maps::count() < mapped + 10, "{} mappings, {mapped} before", maps::count());
    }
    assert_eq!(code_of_stopped(fork_and(|| account_of_child(2, &live, resident))), 0);
    assert!(are_filled(&live));
}

/// The address and length of a buffer that a thread has written. No thread frees the buffer during a fork.
struct Published {
    at: AtomicPtr<u64>,
    words: AtomicUsize,
}

const PUBLISHED: usize = 400;
static PUBLISHED_BY_THREADS: [[Published; PUBLISHED]; 3] = [const {
    [const { Published { at: AtomicPtr::new(std::ptr::null_mut()), words: AtomicUsize::new(0) } }; PUBLISHED]
}; 3];

/// The arena wipes free memory in the child, so it must not hand out this memory while the fork is in progress. Otherwise, the child would
/// find zeroes where another thread had written.
#[test]
fn a_child_finds_what_other_threads_wrote_during_the_fork() {
    alone!(SMALL_PAGES);
    let (is_forking, rounds) = (&AtomicBool::new(false), &[const { AtomicUsize::new(0) }; 3]);
    let _guard = PhaseGuard::new();
    let write = |id: usize| -> Work {
        let (mut numbers, mut kept) = (Numbers::new(id as u64), Vec::new());
        Box::new(move || {
            rounds[id].fetch_add(1, Ordering::SeqCst);
            if !is_forking.load(Ordering::SeqCst) {
                let slots = &PUBLISHED_BY_THREADS[id];
                slots.iter().for_each(|slot| slot.at.store(std::ptr::null_mut(), Ordering::Release));
                kept.clear();
            }
            let words = 1_000 + numbers.below(if kept.len() % 16 == 0 { 400_000 } else { 20_000 });
            let index = kept.len();
            let buffer = black_box(vec![index as u64 + 1; words]);
            if index < PUBLISHED {
                let slot = &PUBLISHED_BY_THREADS[id][index];
                slot.words.store(words, Ordering::Relaxed);
                slot.at.store(buffer.as_ptr().cast_mut(), Ordering::Release);
                kept.push(buffer);
            }
        })
    };
    let find = || {
        for (slot, value) in PUBLISHED_BY_THREADS.iter().flat_map(|slots| slots.iter().zip(1u64..)) {
            let (at, words) = (slot.at.load(Ordering::Acquire), slot.words.load(Ordering::Relaxed));
            // SAFETY: `at` points to a buffer of `words` words, which its thread keeps during the fork.
            let written = if at.is_null() { &[][..] } else { unsafe { std::slice::from_raw_parts(at, words) } };
            check(written.iter().all(|&word| word == value), 30)?;
        }
        let own = black_box(vec![7u64; 3 * MIB]);
        check(own.iter().all(|&word| word == 7), 31)
    };
    drop(proof());
    beside((0..3).map(write), || {
        for _ in 0..FORKS / 4 {
            is_forking.store(true, Ordering::SeqCst);
            let until: Vec<_> = rounds.iter().map(|round| round.load(Ordering::SeqCst) + 2).collect();
            while rounds.iter().zip(&until).any(|(round, &until)| round.load(Ordering::SeqCst) < until) {
                thread::yield_now();
            }
            assert_eq!(code_of_stopped(fork_and(find)), 0);
            is_forking.store(false, Ordering::SeqCst);
            thread::yield_now();
        }
    });
}

/// Lengths of buffers in words. They belong to few size classes, so a thread's cache is often empty or full. The thread then checks whether
/// another thread has claimed its cache.
const FEW_CLASSES: [usize; 6] = [6, 20, 20, 120, 700, 9_000];

fn churn(kept: &mut Kept, numbers: &mut Numbers) -> bool {
    (0..400).all(|_| kept.replace(numbers, 160, &FEW_CLASSES))
}

/// Runs `child` as vfork(2) would, but on a stack of its own, so its frames do not overwrite the caller's. Returns its wait status.
fn vforked(stack: &mut [u8], child: &mut dyn FnMut() -> c_int) -> c_int {
    extern "C" fn begin(child: *mut c_void) -> c_int {
        // SAFETY: `child` points to a closure of the caller, which is suspended until this child exits.
        unsafe { (*child.cast::<&mut dyn FnMut() -> c_int>())() }
    }
    let mut child = child;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the result is within the child's own stack or at its end.
    let stack_end = unsafe { stack.as_mut_ptr().add(stack.len() & !15) };
    let stack_end = stack_end.wrapping_sub(stack_end.addr() % 16);
    // SAFETY: this thread is suspended until the child exits. Like a vforked child, the child uses the thread-local memory of its parent.
    let pid = unsafe { libc::clone(begin, stack_end.cast(), flags, (&raw mut child).cast()) };
    assert!(pid > 0, "no process: {}", std::io::Error::last_os_error());
    let mut status = -1;
    // SAFETY: `pid` is a child of this process, and `status` is valid for writes.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}

/// A vforked child has another process ID than the threads whose claims it sees in the shared memory. If the allocator mistook the child
/// for a forked one, it would cancel claims of live threads, and two threads would empty the same cache.
#[test]
fn vforked_children_allocate_while_another_thread_empties_thread_caches() {
    alone!(each THRESHOLDS);
    let (children, releases) = (&AtomicU64::new(0), &AtomicU64::new(0));
    let vforks = |id: u64| -> Work {
        let mut stack = vec![0; 256 << 10];
        let (mut numbers, mut kept) = (Numbers::new(id), Kept::new());
        Box::new(move || {
            let drains = numbers.below(2) == 0;
            let mut child = || c_int::from(!(churn(&mut kept, &mut numbers) && (!drains || kept.drain())));
            assert_eq!(vforked(&mut stack, &mut child), 0, "the child's memory was overwritten, or it died");
            children.fetch_add(1, Ordering::Relaxed);
            assert!(churn(&mut kept, &mut numbers), "the parent's memory was overwritten");
        })
    };
    let takes: Work = Box::new(|| {
        release();
        releases.fetch_add(1, Ordering::Relaxed);
    });
    let _guard = PhaseGuard::new();
    beside([vforks(1), vforks(2), takes], || thread::sleep(Duration::from_millis(1_500)));
    let (children, releases) = (children.load(Ordering::Relaxed), releases.load(Ordering::Relaxed));
    assert!(children > 20 && releases > 20, "{children} children, {releases} releases");
}
