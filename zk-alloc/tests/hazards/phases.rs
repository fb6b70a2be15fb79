//! Values that one phase makes and a later one uses: collections of the standard library, buffers of random phases on many threads, and values
//! left by panics and by short-lived threads.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;

use crate::support::{
    Numbers, THRESHOLDS, alone, assert_patterned, child, patterned, rss_bytes, scribble, small_nodes_too,
};
use zk_alloc::{PhaseGuard, phase, stats};

type Table = Arc<[u64; 800]>;

/// One collection of each kind. The contents follow from the seed and from the number of times it was grown.
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

    /// Grows every collection, so that each moves at some time.
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

/// `realloc` gets memory of the backing allocator, of a slab or of a page run, on any thread, and may move it to any of the
/// others. Growth by push goes through all of them.
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
            // From 100 words to some 3 MiB over the rounds, so that every border is crossed.
            let more = 100 << (round * 3 / 4).min(12);
            match (round + seed as usize) % 4 {
                0 => phase(|| push(vector, seed, more)),
                1 => push(vector, seed, more),
                2 => phase(|| thread::scope(|scope| scope.spawn(|| push(vector, seed, more)).join().unwrap())),
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

/// A seed, and the buffer whose contents follow from it.
type Buffer = (u64, Vec<u64>);

fn random_buffer(numbers: &mut Numbers) -> Buffer {
    let seed = numbers.below(1 << 30) as u64;
    let len = [5, 60, 700, 3_000, 9_000, 40_000, 150_000][numbers.below(7)];
    (seed, patterned(len - numbers.below(len / 4), seed))
}

/// Opens nested phases. In each it makes buffers, checks them, and sends half of them to another thread.
fn nest(depth: usize, numbers: &mut Numbers, give: &mpsc::Sender<Buffer>) {
    let mine: Vec<_> = (0..3).map(|_| random_buffer(numbers)).collect();
    if depth < 5 && numbers.below(4) > 0 {
        phase(|| nest(depth + 1, numbers, give));
    }
    mine.iter().for_each(|(seed, buffer)| assert_patterned(buffer, *seed));
    for buffer in mine {
        if numbers.below(2) == 0 {
            // If the receiver is gone, `send` fails and this thread frees the buffer.
            let _ = give.send(buffer);
        }
    }
}

/// Many threads change the number of open phases. It may differ between the moments when a buffer is made and when
/// it is checked. The thread that frees the buffer may have no phase open.
#[test]
fn buffers_of_nested_and_concurrent_phases_never_share_memory() {
    alone!(each THRESHOLDS);
    const THREADS: usize = 16;
    let before = stats();
    let (gives, takes): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel()).unzip();
    thread::scope(|scope| {
        for (id, take) in takes.into_iter().enumerate() {
            let give = gives[(id + 1) % THREADS].clone();
            scope.spawn(move || {
                let mut numbers = Numbers::new(id as u64);
                let mut kept: Vec<Buffer> = Vec::new();
                for _ in 0..60 {
                    match numbers.below(3) {
                        0 => nest(1, &mut numbers, &give),
                        1 => phase(|| nest(1, &mut numbers, &give)),
                        _ => {
                            let _guard = PhaseGuard::new();
                            nest(2, &mut numbers, &give);
                        }
                    }
                    kept.extend(take.try_iter());
                    kept.iter().for_each(|(seed, buffer)| assert_patterned(buffer, *seed));
                    while kept.len() > 8 {
                        kept.swap_remove(numbers.below(kept.len()));
                    }
                }
            });
        }
    });
    drop(gives);
    let after = stats();
    assert!(after.slab_allocations > before.slab_allocations && after.run_allocations > before.run_allocations);
    // Every phase has ended, so the arena serves no request.
    let (before, buffer) = (stats().arena_allocations, patterned(100_000, 1));
    assert_eq!(stats().arena_allocations, before);
    drop(buffer);
}

/// Unwinding runs the destructors of half-built frames, and ends the phases on its way.
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
        // The payload was made in the phase that the panic ended.
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

/// The process ends by `exit` while a phase is open and another thread runs. It must not hang, crash or warn.
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

/// Each of `threads` threads allocates a block and a page run, frees buffers of another thread, and leaves a buffer
/// behind.
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

/// A thread returns its cached memory when it exits. Otherwise the caches of 100,000 threads would add up.
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

static DESTROYED: AtomicUsize = AtomicUsize::new(0);

/// Frees arena memory when its thread exits, allocates more, and sends a buffer to a thread that lives on.
struct Farewell {
    seed: u64,
    buffers: Vec<Vec<u64>>,
    send: mpsc::Sender<(u64, Vec<u64>)>,
}

impl Drop for Farewell {
    fn drop(&mut self) {
        self.buffers.iter().for_each(|words| assert_patterned(words, self.seed));
        self.buffers.clear();
        for len in [4, 600, 5_000, 20_000] {
            let more = patterned(len, !self.seed);
            self.buffers.push(patterned(len, self.seed));
            assert_patterned(&more, !self.seed);
        }
        self.buffers.iter_mut().for_each(|words| words.shrink_to(3));
        self.buffers.iter().for_each(|words| assert_patterned(words, self.seed));
        self.send.send((self.seed, patterned(600, self.seed))).unwrap();
        DESTROYED.fetch_add(1, Ordering::Relaxed);
    }
}

thread_local! {
    // These destructors run in the reverse order of first use. The arena's own is that of a key
    // (pthread_key_create(3)). glibc runs it after them; the order differs between C libraries.
    static EARLY: RefCell<Option<Farewell>> = const { RefCell::new(None) };
    static LATE: RefCell<Option<Farewell>> = const { RefCell::new(None) };
}

/// The arena takes back the thread's cache in a destructor of its own. Other destructors may free and allocate before
/// or after that. They must neither crash nor touch memory of the next thread that gets the cache.
#[test]
fn destructors_of_thread_locals_free_and_allocate() {
    alone!(each THRESHOLDS);
    const THREADS: u64 = 2_000;
    let (send, receive) = mpsc::channel();
    let before = stats();
    phase(|| {
        for seed in 0..THREADS {
            let send = send.clone();
            let leave = move || {
                let farewell = |buffers| Farewell { seed, buffers, send: send.clone() };
                if seed.is_multiple_of(2) {
                    // Used first, so its destructor runs last.
                    LATE.set(Some(farewell(Vec::new())));
                }
                let buffers = || [4, 600, 5_000, 20_000].map(|len| patterned(len, seed)).into();
                // Used after the thread's first request to the arena.
                let early = farewell(buffers());
                EARLY.set(Some(early));
                LATE.with_borrow_mut(|slot| slot.iter_mut().for_each(|late| late.buffers = buffers()));
            };
            let thread = thread::spawn(leave);
            // Half of the threads exit at the same time as their successor.
            if seed.is_multiple_of(2) {
                thread.join().unwrap();
            }
        }
    });
    drop(send);
    let sent: Vec<_> = receive.into_iter().collect();
    sent.iter().for_each(|(seed, words)| assert_patterned(words, *seed));
    assert_eq!(sent.len() as u64, THREADS + THREADS / 2);
    assert_eq!(DESTROYED.load(Ordering::Relaxed), sent.len());
    drop(sent);
    let after = stats();
    let nodes = if small_nodes_too() { 4 } else { 2 };
    assert!(after.slab_allocations - before.slab_allocations >= nodes * THREADS, "{after}");
    assert!(after.run_allocations - before.run_allocations >= THREADS, "{after}");
    assert!(after.live_bytes <= before.live_bytes + (32 << 20), "from {before}\nto {after}");
}
