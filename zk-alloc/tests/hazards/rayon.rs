//! Rayon holds memory across phases: blocks of its injector, buffers of its deques, whole pools.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;

use crate::support::{THRESHOLDS, alone, assert_patterned, is_patterned, patterned, scribble, small_nodes_too};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use zk_alloc::{begin_phase, end_phase, phase, stats};

const THREADS: usize = 4;

fn pool(threads: usize) -> ThreadPool {
    ThreadPoolBuilder::new().num_threads(threads).stack_size(32 << 20).build().unwrap()
}

/// A thread outside the pool passes its jobs through the injector, a list of blocks of 63 jobs. If a block is half used
/// when a phase ends, it is written and read in the next phase.
#[test]
fn each_job_from_outside_the_pool_runs_once_in_any_phase() {
    alone!(each THRESHOLDS);
    const PHASES: u64 = 20;
    const SPAWNS: u64 = 601;
    const JOINS: u64 = 101;
    let pool = pool(THREADS);
    let before = stats().slab_allocations;
    let (done, results) = mpsc::channel();
    let mut joined = 0u64;
    for round in 0..PHASES {
        // Many of a phase's jobs are still queued when it ends. They run after it, or in the next phase.
        phase(|| {
            for job in round * SPAWNS..(round + 1) * SPAWNS {
                let input = patterned(600, job);
                let done = done.clone();
                pool.spawn(move || {
                    let intact = is_patterned(&input, job);
                    done.send((job, intact, patterned(600, !job))).unwrap();
                });
            }
            for n in 0..JOINS {
                let (left, right) = pool.join(|| patterned(600, n), || patterned(600, n + 1)[599]);
                assert_patterned(&left, n);
                joined += u64::from(patterned(600, n + 1)[599] == right);
            }
        });
        scribble();
    }
    drop(done);
    let mut seen = vec![false; (PHASES * SPAWNS) as usize];
    for (job, intact, output) in results {
        assert!(intact, "job {job} found its input overwritten");
        assert_patterned(&output, !job);
        assert!(!std::mem::replace(&mut seen[job as usize], true), "job {job} ran twice");
    }
    assert!(seen.iter().all(|&ran| ran) && joined == PHASES * JOINS);
    let nodes = if small_nodes_too() { 2 * PHASES * SPAWNS } else { PHASES * SPAWNS };
    assert!(stats().slab_allocations - before >= nodes, "{}", stats());
}

/// The jobs that `join` has not run yet wait in a deque. Its buffer doubles as they become more: 64 KiB for 4,000 of
/// them. Each job waits until the bottom is reached, where the phase changes. So no thread finishes one earlier.
#[test]
fn a_deque_that_grew_in_one_phase_keeps_its_jobs_in_the_next() {
    const DEPTH: u64 = 4_000;

    struct Descent {
        at_bottom: AtomicBool,
        sum: AtomicU64,
    }

    fn descend(depth: u64, descent: &Descent) {
        if depth == 0 {
            end_phase();
            phase(scribble);
            begin_phase();
            return descent.at_bottom.store(true, Ordering::Release);
        }
        rayon::join(
            || descend(depth - 1, descent),
            || {
                while !descent.at_bottom.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                let work = patterned(if depth.is_multiple_of(16) { 600 } else { 4 }, depth);
                assert_patterned(&work, depth);
                descent.sum.fetch_add(depth, Ordering::Relaxed);
            },
        );
    }

    alone!(each THRESHOLDS);
    for threads in [1, THREADS] {
        let pool = pool(threads);
        for round in 0..4 {
            let descent = Descent { at_bottom: AtomicBool::new(false), sum: AtomicU64::new(0) };
            let before = stats().run_allocations;
            begin_phase();
            pool.install(|| descend(DEPTH, &descent));
            end_phase();
            assert_eq!(descent.sum.into_inner(), DEPTH * (DEPTH + 1) / 2);
            assert!(stats().run_allocations > before, "the deque's largest buffer is the arena's, round {round}");
        }
    }
}

/// As long as it lives, a pool holds queues, thread names, sleep states and handles from its construction.
#[test]
fn pools_built_in_one_phase_work_in_the_nine_after_it() {
    alone!(each THRESHOLDS);
    let before = stats().arena_allocations;
    let pools = phase(|| [64, 128].map(pool));
    if small_nodes_too() {
        assert!(stats().arena_allocations - before >= 192, "{}", stats());
    }
    for round in 0..9 {
        phase(|| {
            scribble();
            for pool in &pools {
                let wide = AtomicUsize::new(0);
                let made: Vec<_> = pool.install(|| {
                    rayon::broadcast(|_| wide.fetch_add(1, Ordering::Relaxed));
                    (0..2_000u64).into_par_iter().map(|seed| patterned(550, seed + round)).collect()
                });
                assert_eq!(wide.into_inner(), pool.current_num_threads());
                assert_eq!(made.len(), 2_000);
                pool.install(|| {
                    let numbered = made.par_iter().zip(0..2_000usize);
                    numbered.for_each(|(values, seed)| assert_patterned(values, seed as u64 + round));
                });
            }
        });
    }
    assert!(stats().slab_allocations >= 2 * 9 * 2_000, "{}", stats());
    // The pools end in another order than they were made, one of them outside of phases.
    let [small, large] = pools;
    drop(small);
    phase(|| drop(large));
}
