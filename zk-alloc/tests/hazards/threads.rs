//! Threads come and go. Each leaves its cached memory to others.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use crate::support::{THRESHOLDS, alone, assert_patterned, patterned, rss_bytes, small_nodes_too};
use zk_alloc::{phase, stats};

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
/// or after it. They must neither crash nor touch memory of the cache's next thread.
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
