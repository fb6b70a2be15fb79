//! A fork copies the arena while other threads are changing it.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "forks")]

mod support;

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use support::{Numbers, assert_patterned, at_both_thresholds, is_patterned, patterned};
use zk_alloc::{PhaseGuard, ZkAllocator, phase, release, stats};

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
    at_both_thresholds("children_of_forks_in_the_midst_of_phases_allocate_and_free_what_they_inherited", || {
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
