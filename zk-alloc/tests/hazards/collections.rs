//! Collections of the standard library that were built in one phase are used, grown and dropped in later phases, and
//! between them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, mpsc};
use std::thread;

use crate::support::{THRESHOLDS, alone, assert_patterned, patterned, scribble, small_nodes_too};
use zk_alloc::{phase, stats};

trait Work: Send {
    fn check(&self);
}

/// Words, and the seed of their pattern.
struct Seeded<T>(T, u64);

type Table = Seeded<[u64; 800]>;

impl<T: AsRef<[u64]> + Send> Work for Seeded<T> {
    fn check(&self) {
        assert_patterned(self.0.as_ref(), self.1);
    }
}

/// One collection of each kind. The contents follow from the seed and from the number of times it was grown.
struct Retained {
    seed: u64,
    grown: u64,
    vec: Vec<u64>,
    shared: Arc<Table>,
    clones: Vec<Arc<Table>>,
    map: HashMap<u64, Vec<u64>>,
    tree: BTreeMap<String, u64>,
    boxed: Vec<Box<dyn Work>>,
    text: String,
    send: mpsc::Sender<[u64; 40]>,
    receive: mpsc::Receiver<[u64; 40]>,
}

impl Retained {
    fn new(seed: u64) -> Self {
        let (send, receive) = mpsc::channel();
        let shared = Arc::new(Seeded(patterned(800, seed).try_into().unwrap(), seed));
        let (map, tree) = Default::default();
        let mut new = Self {
            seed,
            grown: 0,
            vec: patterned(600, seed),
            shared,
            clones: Vec::new(),
            map,
            tree,
            boxed: Vec::new(),
            text: String::new(),
            send,
            receive,
        };
        new.grow();
        new
    }

    /// Every collection grows by half or more, so each moves at some time.
    fn grow(&mut self) {
        self.grown += 1;
        let longer = patterned(600 + 400 * self.grown as usize, self.seed);
        self.vec.extend_from_slice(&longer[self.vec.len()..]);
        self.clones.extend((0..600).map(|_| self.shared.clone()));
        for key in (self.grown - 1) * 300..self.grown * 300 {
            self.map.insert(key, patterned(1 + key as usize % 9, key));
            self.tree.insert(format!("key {:>10}", key ^ 0x2A), key);
            self.text.push_str(&format!("{key:>20}"));
            self.send.send([key; 40]).unwrap();
        }
        let table: Table = Seeded(patterned(800, self.grown).try_into().unwrap(), self.grown);
        self.boxed.push(Box::new(table));
        self.boxed.push(Box::new(Seeded(patterned(700, !self.grown), !self.grown)));
    }

    fn check(&self) {
        let entries = self.grown * 300;
        assert_eq!(self.vec.len(), 600 + 400 * self.grown as usize);
        assert_patterned(&self.vec, self.seed);
        assert_eq!(Arc::strong_count(&self.shared), 1 + 600 * self.grown as usize);
        self.clones.iter().step_by(97).for_each(|table| table.check());
        assert_eq!((self.map.len(), self.tree.len()), (entries as usize, entries as usize));
        for key in 0..entries {
            assert_patterned(&self.map[&key], key);
            assert_eq!(self.tree[&format!("key {:>10}", key ^ 0x2A)], key);
        }
        assert!(self.tree.keys().zip(self.tree.keys().skip(1)).all(|(low, high)| low < high));
        self.boxed.iter().for_each(|work| work.check());
        assert!(self.text.split_whitespace().map(|word| word.parse::<u64>().unwrap()).eq(0..entries));
    }

    /// Receives the channel's messages, which were sent in many phases.
    fn drain(self) {
        for key in 0..self.grown * 300 {
            assert_eq!(self.receive.recv().unwrap(), [key; 40]);
        }
    }
}

/// The reference counts, control bytes, tree nodes, vtable pointers and channel blocks of a value lie where the phase
/// that made it put them. They are read and written as long as the value lives.
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
                // Grown while no phase is open: memory of the arena moves out of it.
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

/// `realloc` gets memory of the backing allocator, of a slab or of a page run, on any thread, and may move it to any
/// other. Growth by push goes through all of them.
#[test]
fn a_vector_keeps_its_contents_across_phases_and_threads() {
    alone!(each THRESHOLDS);
    let before = stats();
    // Every other vector starts empty, while no phase is open.
    let start = |seed: u64| if seed.is_multiple_of(2) { Vec::new() } else { phase(|| patterned(600, seed)) };
    let mut vectors: Vec<Vec<u64>> = (0..6).map(start).collect();
    let push = |vector: &mut Vec<u64>, seed: u64, more: usize| {
        let whole = patterned(vector.len() + more, seed);
        whole[vector.len()..].iter().for_each(|&word| vector.push(word));
    };
    for round in 0..24usize {
        for (vector, seed) in vectors.iter_mut().zip(0u64..) {
            // From 100 words to 4 MiB over the rounds, so that every border is crossed.
            let more = 100 << (round * 3 / 4).min(12);
            match (round + seed as usize) % 4 {
                0 => phase(|| push(vector, seed, more)),
                1 => push(vector, seed, more),
                2 => phase(|| {
                    let moved = std::mem::take(vector);
                    *vector = thread::spawn(move || {
                        let mut moved = moved;
                        push(&mut moved, seed, more);
                        moved
                    })
                    .join()
                    .unwrap();
                }),
                _ => {
                    vector.truncate(vector.len() * 3 / 5);
                    if round.is_multiple_of(2) { phase(|| vector.shrink_to_fit()) } else { vector.shrink_to_fit() }
                }
            }
        }
        phase(scribble);
        vectors.iter().zip(0u64..).for_each(|(vector, seed)| assert_patterned(vector, seed));
    }
    assert!(vectors.iter().all(|vector| vector.len() > 100_000));
    let after = stats();
    assert!(after.slab_allocations > before.slab_allocations && after.run_allocations > before.run_allocations + 20);
    drop(vectors);
}
