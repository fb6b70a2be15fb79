//! Values that one phase makes and a later one uses: collections of the standard library, and values left by panics and by short-lived
//! threads. The volume tests in tests/model also resize blocks across random phases on many threads, and call the allocator from
//! destructors of thread-locals.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;

use crate::support::{THRESHOLDS, alone, assert_patterned, child, patterned, rss_bytes, scribble, small_nodes_too};
use zk_alloc::{PhaseGuard, phase, stats};

type Table = Arc<[u64; 800]>;

/// One collection of each kind. `seed` and `grown`, the number of times that the collections have grown, determine the contents.
struct Retained {
    seed: u64,
    grown: u64,
    vec: Vec<u64>,
    shared: Table,
    clones: Vec<Table>,
    map: HashMap<u64, Vec<u64>>,
    tree: BTreeMap<String, u64>,
    /// Each closure checks the words that it owns.
    boxed: Vec<Box<dyn Fn() + Send>>,
    text: String,
    messages: (mpsc::Sender<[u64; 40]>, mpsc::Receiver<[u64; 40]>),
}

impl Retained {
    fn new(seed: u64) -> Self {
        let (vec, shared) = (patterned(600, seed), Arc::new(patterned(800, seed).try_into().unwrap()));
        let (clones, map, tree, boxed, text) = Default::default();
        let mut new = Self { seed, grown: 0, vec, shared, clones, map, tree, boxed, text, messages: mpsc::channel() };
        new.grow();
        new
    }

    /// Grows every collection, so each of them moves at some point.
    fn grow(&mut self) {
        self.grown += 1;
        let longer = patterned(600 + 400 * self.grown as usize, self.seed);
        self.vec.extend_from_slice(&longer[self.vec.len()..]);
        self.clones.extend((0..600).map(|_| self.shared.clone()));
        for key in (self.grown - 1) * 300..self.grown * 300 {
            self.map.insert(key, patterned(1 + key as usize % 9, key));
            self.tree.insert(format!("key {:>10}", key ^ 0x2A), key);
            self.text.push_str(&format!("{key:>20}"));
            self.messages.0.send([key; 40]).unwrap();
        }
        let table: [u64; 800] = patterned(800, self.grown).try_into().unwrap();
        let (words, seed) = (patterned(700, !self.grown), self.grown);
        self.boxed.push(Box::new(move || assert_patterned(&table, seed)));
        self.boxed.push(Box::new(move || assert_patterned(&words, !seed)));
    }

    fn check(&self) {
        let entries = self.grown * 300;
        assert_eq!(self.vec.len(), 600 + 400 * self.grown as usize);
        assert_patterned(&self.vec, self.seed);
        assert_eq!(Arc::strong_count(&self.shared), 1 + 600 * self.grown as usize);
        self.clones.iter().step_by(97).for_each(|table| assert_patterned(&table[..], self.seed));
        assert_eq!((self.map.len(), self.tree.len()), (entries as usize, entries as usize));
        for key in 0..entries {
            assert_patterned(&self.map[&key], key);
            assert_eq!(self.tree[&format!("key {:>10}", key ^ 0x2A)], key);
        }
        assert!(self.tree.keys().is_sorted_by(|low, high| low < high));
        self.boxed.iter().for_each(|check| check());
        assert!(self.text.split_whitespace().map(|word| word.parse::<u64>().unwrap()).eq(0..entries));
    }

    /// Receives the channel's messages, which were sent in many phases.
    fn drain(self) {
        for key in 0..self.grown * 300 {
            assert_eq!(self.messages.1.recv().unwrap(), [key; 40]);
        }
    }
}

/// Collections keep reference counts, control bytes, tree nodes, vtable pointers and channel blocks in the memory of the phase that made
/// them. Later phases read and write this memory.
#[test]
fn collections_made_in_one_phase_are_used_and_grown_in_the_next_five() {
    alone!(each THRESHOLDS);
    let before = stats().arena_allocations;
    let mut alive = VecDeque::new();
    for round in 0..20u64 {
        phase(|| {
            alive.push_back(Retained::new(round));
            scribble();
            alive.iter_mut().for_each(Retained::grow);
            alive.iter().for_each(Retained::check);
        });
        scribble();
        alive.iter().for_each(Retained::check);
        if alive.len() > 5 {
            let mut oldest = alive.pop_front().unwrap();
            match round % 3 {
                0 => phase(|| oldest.drain()),
                1 => phase(|| thread::spawn(move || oldest.drain()).join().unwrap()),
                // Collections that grow while no phase is open move out of the arena.
                _ => {
                    oldest.grow();
                    oldest.check();
                    oldest.drain();
                }
            }
        }
    }
    let served = stats().arena_allocations - before;
    assert!(served >= if small_nodes_too() { 100_000 } else { 1_000 }, "{}", stats());
}

/// A seed, and the buffer that [`patterned`] made from it.
type Buffer = (u64, Vec<u64>);

/// Unwinding must run the destructors of the frames, and end the phases that they opened.
#[test]
fn a_panic_in_nested_phases_frees_its_frames_and_nothing_else() {
    alone!(each THRESHOLDS);
    std::panic::set_hook(Box::new(|_| ()));
    let saved = Mutex::new(Vec::new());
    let live_before = stats().live_bytes;
    for round in 0..40u64 {
        let fail_in = |depth: u64| {
            phase(|| {
                let _in_the_frame = [patterned(700, depth), patterned(70_000, depth), patterned(7, depth)];
                let kept = (depth, patterned(2_000, depth));
                saved.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
                phase(|| {
                    let deeper = patterned(1_000, depth);
                    let message: Buffer = (depth, patterned(5_000, depth));
                    assert_patterned(&deeper, depth);
                    std::panic::panic_any(message);
                })
            })
        };
        let payload = if round.is_multiple_of(2) {
            catch_unwind(AssertUnwindSafe(|| fail_in(round))).unwrap_err()
        } else {
            thread::scope(|scope| scope.spawn(|| fail_in(round)).join().unwrap_err())
        };
        phase(scribble);
        // The payload was allocated in the phase that the panic ended.
        let (seed, words) = *payload.downcast::<Buffer>().unwrap();
        assert_patterned(&words, seed);
        let saved = saved.lock().unwrap_or_else(PoisonError::into_inner);
        saved.iter().for_each(|(seed, kept)| assert_patterned(kept, *seed));
        assert_eq!(saved.len() as u64, round + 1);
    }
    drop(saved);
    let _ = std::panic::take_hook();
    assert!(stats().arena_allocations >= 40 * 4, "{}", stats());
    // After 40 rounds, only memory that threads cache still counts as live.
    assert!(stats().live_bytes - live_before <= 4 << 20, "{}", stats());
    let before = stats().arena_allocations;
    drop(patterned(100_000, 1));
    assert_eq!(stats().arena_allocations, before, "a phase stayed open");
}

/// The process exits while a phase is open and another thread is running. It must not hang, crash or warn.
#[test]
fn a_process_may_end_with_a_phase_open() {
    let ended = child(&[], || {
        let _kept: Vec<_> = phase(|| (0..4).map(|seed| patterned(60_000, seed)).collect());
        let _guard = PhaseGuard::new();
        thread::spawn(|| drop(patterned(1 << 20, 3)));
        std::process::exit(7);
    });
    let Some(ended) = ended else { return };
    assert_eq!(ended.status.code(), Some(7), "{ended:?}");
    assert!(ended.warnings().is_empty(), "{ended:?}");
}

/// Runs `threads` threads, two at a time. Each allocates a block and a page run, and leaves the block in `inbox`. Every other one frees
/// buffers that earlier threads left.
fn churn(threads: u64, seed: u64, inbox: &mut Vec<(u64, Vec<u64>)>) {
    for n in 0..threads / 2 {
        let left_behind = std::mem::take(inbox);
        let [first, second] = [2 * n, 2 * n + 1].map(|n| {
            let from_before = if n.is_multiple_of(2) { left_behind.clone() } else { Vec::new() };
            let seed = seed + n;
            thread::Builder::new().stack_size(64 << 10).spawn(move || {
                from_before.iter().for_each(|(seed, words)| assert_patterned(words, *seed));
                let small = patterned(600 + seed as usize % 100, seed);
                let large = vec![seed as u8; 40 << 10];
                assert_patterned(&small, seed);
                assert!(large.iter().all(|&byte| byte == seed as u8));
                (seed, small)
            })
        });
        inbox.extend([first, second].map(|thread| thread.unwrap().join().unwrap()));
    }
}

/// A thread returns its cached memory when it exits. Otherwise, the caches of 100,000 threads would add up.
#[test]
fn a_hundred_thousand_threads_leave_no_memory_behind() {
    alone!();
    let mut inbox = Vec::new();
    let mut rounds = (0..100u64).map(|round| {
        phase(|| churn(1_000, round * 1_000, &mut inbox));
        (stats(), rss_bytes())
    });
    let (warm, warm_rss) = rounds.nth(2).unwrap();
    assert!(warm.slab_allocations >= 3_000 && warm.run_allocations >= 3_000, "{warm}");
    let (end, end_rss) = rounds.last().unwrap();
    assert!(end.slab_allocations >= 100_000 && end.run_allocations >= 100_000, "{end}");
    assert!(end.live_bytes <= warm.live_bytes + (2 << 20), "from {warm}\nto {end}");
    assert!(end.resident_bytes <= warm.resident_bytes + (2 << 20), "from {warm}\nto {end}");
    assert_eq!(end.address_space_bytes, warm.address_space_bytes);
    assert!(end_rss <= warm_rss + (8 << 20), "RSS from {warm_rss} to {end_rss}\nfrom {warm}\nto {end}");
}
