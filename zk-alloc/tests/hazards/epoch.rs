//! crossbeam-epoch frees late: any thread may free, in a later phase, what an earlier phase removed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{THRESHOLDS, alone, assert_patterned, patterned, scribble, small_nodes_too};
use crossbeam_skiplist::SkipMap;
use rayon::prelude::*;
use zk_alloc::{phase, stats};

const KEYS: u64 = 4_000;
const PHASES: u64 = 20;

/// Lowers the count of live values when the garbage collector drops it.
struct Value {
    seed: u64,
    words: Vec<u64>,
    alive: Arc<AtomicUsize>,
}

impl Value {
    fn new(seed: u64, alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Ordering::Relaxed);
        // Most are nodes of a few bytes, and some are large.
        let len = if (seed / PHASES).is_multiple_of(4) { 1_024 } else { 8 };
        Self { seed, words: patterned(len, seed), alive: alive.clone() }
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        assert_patterned(&self.words, self.seed);
        self.alive.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Removed nodes wait in bags on a list that all threads share, marked with their epoch. Bags, nodes and values of many
/// phases are alive at once, and are freed by threads that did not make them.
#[test]
fn a_map_updated_by_all_workers_across_phases_has_the_right_values() {
    alone!(each THRESHOLDS);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
    let alive = Arc::new(AtomicUsize::new(0));
    let map = SkipMap::new();
    let before = stats().slab_allocations;
    for round in 0..PHASES {
        let update = || {
            (0..KEYS).into_par_iter().for_each(|key| match (key + round) % 5 {
                0 | 1 => drop(map.insert(key, Value::new(key * PHASES + round, &alive))),
                2 => drop(map.remove(&key)),
                _ => {
                    if let Some(entry) = map.get(&key) {
                        assert_eq!(entry.value().seed / PHASES, key);
                        assert_patterned(&entry.value().words, entry.value().seed);
                    }
                }
            });
        };
        phase(|| pool.install(update));
        scribble();
    }
    for key in 0..KEYS {
        // The last round that touched the key decides its value.
        let last = (0..PHASES).rev().find(|round| (key + round) % 5 < 3).unwrap();
        let held = map.get(&key).map(|entry| entry.value().seed);
        assert_eq!(held, ((key + last) % 5 < 2).then_some(key * PHASES + last), "key {key}");
    }
    let puts = KEYS * PHASES * 2 / 5;
    let served = stats().slab_allocations - before;
    assert!(served >= if small_nodes_too() { 2 * puts } else { puts / 5 }, "{}", stats());
    // Collections that run in a phase and outside of one free all values in the end.
    assert!(map.iter().all(|entry| entry.remove()));
    for round in 0..1_000u32 {
        if alive.load(Ordering::Relaxed) == 0 {
            return;
        }
        let collect = || pool.broadcast(|_| crossbeam_epoch::pin().flush());
        drop(if round.is_multiple_of(2) { phase(collect) } else { collect() });
        crossbeam_epoch::pin().flush();
    }
    // Threads that are gone or asleep may hold one last bag each. All other values must have been freed.
    assert!(alive.load(Ordering::Relaxed) <= 6 * 64, "{} values were never freed", alive.load(Ordering::Relaxed));
}
