//! A fork copies the arena while other threads are changing it.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "forks")]

mod support;

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use support::{Numbers, assert_patterned, at_both_thresholds, in_its_own_process, is_patterned, patterned, pss_bytes};
use zk_alloc::{Phase, PhaseGuard, ZkAllocator, phase, release, stats};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

const FORKS: u64 = 50;
const PATIENCE: Duration = Duration::from_secs(20);

/// Lengths in words for all paths: the backing allocator, slabs, and page runs of every zone but the huge one.
const LENGTHS: [usize; 6] = [6, 90, 700, 4_000, 9_000, 60_000];

fn buffers(seed: u64) -> Vec<Vec<u64>> {
    LENGTHS.iter().map(|&len| patterned(len, seed)).collect()
}

fn intact(buffers: &[Vec<u64>], seed: u64) -> bool {
    buffers.iter().all(|words| is_patterned(words, seed))
}

/// The child checks and uses its inherited memory. `Err` names the step that failed. It must not panic, because a panic
/// takes locks that another thread may have held.
fn child(seed: u64, inherited: Vec<Vec<u64>>, guard: PhaseGuard) -> Result<(), i32> {
    let check = |ok: bool, step: i32| if ok { Ok(()) } else { Err(step) };
    check(intact(&inherited, seed), 10)?;
    // In the phase that was open at the fork.
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
    // Outside of the child's own phases, and in further ones. Phases that other threads had open at the fork stay open
    // here.
    check(intact(&buffers(seed), seed) && intact(&own, !seed), 13)?;
    for round in 0..5 {
        let kept = phase(|| phase(|| buffers(round)));
        let zeroed = phase(|| LENGTHS.map(|len| black_box(vec![0u64; len])));
        check(zeroed.iter().flatten().all(|&word| word == 0), 14)?;
        release();
        check(intact(&kept, round) && intact(&own, !seed), 15)?;
    }
    // On a thread that the child starts.
    let made = phase(|| thread::spawn(move || buffers(seed)).join());
    check(made.is_ok_and(|made| intact(&made, seed)), 16)?;
    check(intact(&own, !seed), 17)
}

/// Waits for a child and returns how it ended. Kills it if it hangs.
fn wait_for(pid: libc::pid_t) -> String {
    let started = Instant::now();
    let mut status = 0;
    loop {
        // SAFETY: `status` is a valid place for the answer.
        match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } {
            0 if started.elapsed() > PATIENCE => {
                // SAFETY: a child of this process that nothing has waited for yet.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                // SAFETY: as above.
                unsafe { libc::waitpid(pid, &raw mut status, 0) };
                return "hung".into();
            }
            0 => thread::sleep(Duration::from_micros(500)),
            ended if ended != pid => return "lost".into(),
            _ if libc::WIFEXITED(status) => return format!("exit {}", libc::WEXITSTATUS(status)),
            _ => return format!("signal {}", libc::WTERMSIG(status)),
        }
    }
}

/// Tells the other threads to stop, even if a child failed.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The fork copies other threads in the middle of an allocation, and they never continue in the child. Memory that they
/// had claimed stays claimed, and nothing may wait for them. Parent and child each have their own copy of all live
/// memory.
#[test]
fn children_of_forks_in_the_midst_of_phases_allocate_and_free_what_they_inherited() {
    at_both_thresholds(|| {
        let (stop, cycles) = (AtomicBool::new(false), AtomicU64::new(0));
        let busy = |id: u64| {
            let mut numbers = Numbers::new(id);
            let mut kept = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let seed = numbers.below(1 << 20) as u64;
                let len = LENGTHS[numbers.below(LENGTHS.len())];
                let words = if seed.is_multiple_of(4) { patterned(len, seed) } else { phase(|| patterned(len, seed)) };
                kept.push((seed, words));
                if kept.len() > 8 {
                    let (seed, words) = kept.swap_remove(numbers.below(8));
                    assert_patterned(&words, seed);
                }
                cycles.fetch_add(1, Ordering::Relaxed);
            }
        };
        // This thread is nearly always claiming or freeing a page run or a slab.
        let hammer = || {
            while !stop.load(Ordering::Relaxed) {
                phase(|| {
                    for words in [5_000, 2_000, 40_000].repeat(100) {
                        drop(black_box(Vec::<u64>::with_capacity(words)));
                    }
                });
            }
        };
        let before = stats();
        let (busy, hammer) = (&busy, &hammer);
        thread::scope(|scope| {
            let _at_end = StopAtEnd(&stop);
            scope.spawn(hammer);
            (0..2).for_each(|id| drop(scope.spawn(move || busy(id))));
            for seed in 0..FORKS {
                // Each fork hits the other threads at another moment of their work.
                let until = cycles.load(Ordering::Relaxed) + 20;
                while cycles.load(Ordering::Relaxed) < until {
                    thread::yield_now();
                }
                let guard = PhaseGuard::new();
                let made = buffers(seed);
                // SAFETY: the child allocates, which glibc and the arena support after a fork, starts a thread, and
                // ends by `_exit`. It takes no lock of the standard library that another thread may hold.
                let pid = unsafe { libc::fork() };
                if pid == 0 {
                    let code = child(seed, made, guard).err().unwrap_or(0);
                    // SAFETY: ends the process, without destructors.
                    unsafe { libc::_exit(code) };
                }
                assert!(pid > 0, "no process: {}", std::io::Error::last_os_error());
                assert_eq!(wait_for(pid), "exit 0", "child {seed} of {FORKS}");
                made.iter().for_each(|words| assert_patterned(words, seed));
                drop(guard);
            }
        });
        let after = stats();
        assert!(after.slab_allocations >= before.slab_allocations + 2 * FORKS, "{after}");
        assert!(after.run_allocations >= before.run_allocations + 2 * FORKS, "{after}");
    });
}

const MIB: usize = 1 << 20;
const RETAINED_MIB: usize = 256;
/// Each fork finds the pages that it would copy in small pages.
const SMALL_PAGES: &[(&str, &str)] = &[("ZK_ALLOC_THP", "never"), ("ZK_ALLOC_RETAIN_BYTES", "8G")];

/// The buffers of a proof: of every zone, and short ones between long ones.
fn proof() -> Vec<Vec<u64>> {
    let long = [96 * MIB, 40 * MIB, 40 * MIB, 40 * MIB];
    let short = [300 << 10, 20 << 10, 90 << 10].repeat(100);
    long.into_iter().chain(short).zip(1..).map(|(bytes, seed)| black_box(vec![seed; bytes / 8])).collect()
}

/// Forks. The child ends with the code of the step of `check` that failed, or 0, and lives until the returned value is dropped.
fn fork_and(check: impl FnOnce() -> Result<(), i32>) -> Child {
    let mut pipe = [0; 2];
    let mut done = [0; 2];
    // SAFETY: two places for descriptors each.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) | libc::pipe(done.as_mut_ptr()) }, 0);
    // SAFETY: as in the test above.
    let pid = unsafe { libc::fork() };
    let mut byte = 0u8;
    if pid == 0 {
        let code = check().err().unwrap_or(0);
        // SAFETY: descriptors of this process, and a byte. The child ends without destructors.
        unsafe {
            libc::close(pipe[1]);
            libc::write(done[1], (&raw const byte).cast(), 1);
            libc::read(pipe[0], (&raw mut byte).cast(), 1);
            libc::_exit(code);
        }
    }
    assert!(pid > 0, "no process: {}", std::io::Error::last_os_error());
    // SAFETY: as above.
    unsafe {
        libc::close(pipe[0]);
        libc::close(done[1]);
        libc::read(done[0], (&raw mut byte).cast(), 1);
        libc::close(done[0]);
    }
    Child { pid, lives: pipe[1] }
}

struct Child {
    pid: libc::pid_t,
    lives: libc::c_int,
}

impl Child {
    #[track_caller]
    fn assert_ends_well(self) {
        // SAFETY: a descriptor of this process. The child reads the end of the file.
        unsafe { libc::close(self.lives) };
        assert_eq!(wait_for(self.pid), "exit 0");
    }
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").expect("Linux has it").lines().count()
}

/// A child of `depth` checks its account and its memory, and forks another.
fn account_of_child(depth: u32, live: &[Vec<u64>], parent_bytes: usize) -> Result<(), i32> {
    let check = |ok: bool, step: i32| if ok { Ok(()) } else { Err(step) };
    let is_live_intact = || live.iter().zip(1..).all(|(words, seed)| words.iter().all(|&word| word == seed));
    let resident = stats().resident_bytes;
    check(resident + RETAINED_MIB * MIB / 2 < parent_bytes, 20)?;
    check(is_live_intact(), 21)?;
    let zeroed = phase(|| black_box(vec![0u64; 8 * MIB]));
    check(zeroed.iter().all(|&word| word == 0), 22)?;
    drop(zeroed);
    let own = phase(proof);
    check(own.iter().zip(1..).all(|(words, seed)| words.iter().all(|&word| word == seed)), 23)?;
    drop(own);
    let warm = stats().resident_bytes;
    check(warm >= parent_bytes / 2 && is_live_intact(), 24)?;
    if depth > 0 {
        let child = fork_and(|| account_of_child(depth - 1, live, warm));
        // SAFETY: a descriptor of this process.
        unsafe { libc::close(child.lives) };
        check(wait_for(child.pid) == "exit 0", 25)?;
        check(stats().resident_bytes >= warm, 26)?;
    }
    release();
    check(stats().resident_bytes < parent_bytes / 4 && is_live_intact(), 27)
}

/// A fork would copy the page tables of the memory that the parent retains, and the parent's next proof would copy its pages.
#[test]
fn a_child_inherits_no_free_memory_and_its_parent_stays_warm() {
    in_its_own_process(SMALL_PAGES, || {
        let live = phase(|| (1..20).map(|seed| vec![seed; 10_000]).collect::<Vec<Vec<u64>>>());
        drop(phase(proof));
        drop(phase(proof));
        let (alone, resident, mapped) = (pss_bytes(None), stats().resident_bytes, mappings());
        assert!(resident > 216 * MIB, "{resident} bytes retained");
        for _ in 0..3 {
            let resident = stats().resident_bytes;
            let child = fork_and(|| {
                let own = stats().resident_bytes;
                if own + 200 * MIB < resident { Ok(()) } else { Err(20) }
            });
            assert_eq!(stats().resident_bytes, resident, "the parent's account stands");
            let both = pss_bytes(None) + pss_bytes(Some(child.pid));
            assert!(both < alone + alone / 10, "{both} bytes in parent and child, {alone} in the parent alone");
            let phase = Phase::new();
            drop(proof());
            let report = phase.report();
            assert!(report.minor_faults < 2_000, "{report:?}");
            child.assert_ends_well();
            assert!(mappings() < mapped + 10, "{} mappings, {mapped} before", mappings());
        }
        fork_and(|| account_of_child(2, &live, resident)).assert_ends_well();
        assert!(live.iter().zip(1..).all(|(words, seed)| words.iter().all(|&word| word == seed)));
    });
}

/// Buffers that threads wrote, and that nobody frees during a fork.
struct Published {
    at: AtomicPtr<u64>,
    words: AtomicUsize,
}

const PUBLISHED: usize = 400;
static PUBLISHED_BY_THREADS: [[Published; PUBLISHED]; 3] = [const {
    [const { Published { at: AtomicPtr::new(std::ptr::null_mut()), words: AtomicUsize::new(0) } }; PUBLISHED]
}; 3];

/// Memory that the arena withholds from a child must not be handed out during the fork: the child would find zeroes where another
/// thread had written.
#[test]
fn a_child_finds_what_other_threads_wrote_during_the_fork() {
    in_its_own_process(SMALL_PAGES, || {
        let (stop, is_forking) = (AtomicBool::new(false), AtomicBool::new(false));
        let rounds = [const { AtomicUsize::new(0) }; 3];
        let _guard = PhaseGuard::new();
        let write = |id: usize| {
            let mut numbers = Numbers::new(id as u64);
            let mut kept = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                rounds[id].fetch_add(1, Ordering::SeqCst);
                if !is_forking.load(Ordering::SeqCst) {
                    for slot in &PUBLISHED_BY_THREADS[id] {
                        slot.at.store(std::ptr::null_mut(), Ordering::Release);
                    }
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
            }
        };
        let check = || {
            for (slot, value) in PUBLISHED_BY_THREADS.iter().flat_map(|slots| slots.iter().zip(1u64..)) {
                let (at, words) = (slot.at.load(Ordering::Acquire), slot.words.load(Ordering::Relaxed));
                // SAFETY: a buffer that its thread keeps.
                let written = if at.is_null() { &[][..] } else { unsafe { std::slice::from_raw_parts(at, words) } };
                if written.iter().any(|&word| word != value) {
                    return Err(30);
                }
            }
            let own = black_box(vec![7u64; 3 * MIB]);
            if own.iter().all(|&word| word == 7) { Ok(()) } else { Err(31) }
        };
        drop(proof());
        thread::scope(|scope| {
            let _at_end = StopAtEnd(&stop);
            let write = &write;
            (0..3).for_each(|id| drop(scope.spawn(move || write(id))));
            for _ in 0..FORKS / 4 {
                is_forking.store(true, Ordering::SeqCst);
                let until: Vec<_> = rounds.iter().map(|round| round.load(Ordering::SeqCst) + 2).collect();
                while rounds.iter().zip(&until).any(|(round, &until)| round.load(Ordering::SeqCst) < until) {
                    thread::yield_now();
                }
                fork_and(check).assert_ends_well();
                is_forking.store(false, Ordering::SeqCst);
                thread::yield_now();
            }
        });
    });
}
