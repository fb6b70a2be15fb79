//! Small models, run in every interleaving: the ownership of bits, the hints that lead a search to clear bits, and the mapping of a zone's
//! blocks.
#![allow(unsafe_code, reason = "models of memory")]

use std::ops::Range;

use loom::sync::Arc;
use loom::thread;

use super::models::{Uses, beside, beside_two, bounded, join, words};
use crate::arena::pages::bitmap::{self, Bitmap, HintSet};
use crate::arena::pages::memory::{Mapped, Obstacle};
use crate::arena::pages::runs::{Runs, Wanted};
use crate::os::{Errno, OCCUPIED};
use crate::sync::{AtomicU64, Ordering};

const BITS: usize = 128;

/// Checks that loom finds all four outcomes. Without `sync::watched`, it would skip some orders of the accesses.
#[test]
fn loom_tries_a_change_before_a_load_of_another_thread() {
    let seen = std::sync::Arc::new(std::sync::Mutex::new(std::collections::HashSet::new()));
    let seen_by_all = seen.clone();
    loom::model(move || {
        let words = words(2);
        let thread = thread::spawn(move || {
            words[0].load(Ordering::SeqCst);
            words[0].fetch_add(1, Ordering::SeqCst);
            words[1].store(1, Ordering::SeqCst);
        });
        let found = (words[0].load(Ordering::SeqCst), words[1].load(Ordering::SeqCst));
        seen_by_all.lock().expect("no panic").insert(found);
        join([thread]);
    });
    assert_eq!(seen.lock().expect("no panic").len(), 4);
}

/// Two words of bits, and the memory behind each bit.
struct Run {
    bits: Bitmap<'static>,
    memory: Uses,
}

/// Returns a model in which only the bits in `free` are clear, which keeps the model small. Checks that as many bits are set at the end as
/// at the start.
fn with_free(free: Range<usize>, model: impl Fn(&Arc<Run>) + Sync + Send + 'static) -> impl Fn() + Sync + Send {
    move || {
        let run = Arc::new(Run { bits: Bitmap::new(words(BITS / 64)), memory: Uses::default() });
        run.bits.set(0, free.start);
        run.bits.set(free.end, BITS - free.end);
        model(&run);
        assert_eq!(run.bits.count(0, BITS), BITS - free.len(), "a bit was lost, or is still owned");
    }
}

impl Run {
    fn claim_use_release(&self, n: usize, align: usize) -> bool {
        let mut from = 0;
        while let Some(start) = self.bits.find_clear_run(from, n, align, 0) {
            match self.bits.try_claim(start, n) {
                Ok(()) => {
                    self.memory.write(start..start + n);
                    self.bits.release(start, n);
                    return true;
                }
                Err(taken) => from = taken + 1,
            }
        }
        false
    }

    /// Claims exactly these bits, as growth in place and a trim do, and releases them.
    fn claim_exactly(&self, start: usize, n: usize) {
        if self.bits.try_claim(start, n).is_ok() {
            self.memory.write(start..start + n);
            self.bits.release(start, n);
        }
    }
}

#[test]
fn a_run_across_a_word_border_has_one_owner() {
    let model = |run: &Arc<Run>| beside(run, |other| _ = other.claim_use_release(2, 1), || run.claim_exactly(63, 2));
    bounded(4, with_free(63..65, model));
}

#[test]
fn three_threads_that_want_the_same_run_own_it_in_turn() {
    let model = |run: &Arc<Run>| {
        let claim_any = |other: &Run| _ = other.claim_use_release(2, 1);
        beside_two(run, claim_any, |other| other.claim_exactly(63, 2), || run.claim_use_release(1, 1));
    };
    bounded(2, with_free(63..65, model));
}

#[test]
fn a_claim_that_fails_releases_only_the_bits_that_it_set() {
    // The second thread's bit can make the claim of the first thread fail. The first thread must not release that bit, because the third
    // thread could then claim it.
    let model = |run: &Arc<Run>| {
        beside_two(run, |a| a.claim_exactly(62, 4), |b| b.claim_exactly(65, 1), || run.claim_exactly(65, 1));
    };
    bounded(4, with_free(62..66, model));
}

#[test]
fn two_claims_succeed_if_there_is_room_for_two() {
    let claim = |run: &Run| assert!(run.claim_use_release(2, 2));
    loom::model(with_free(60..64, move |run| beside(run, claim, || claim(run))));
}

#[test]
fn bits_that_two_threads_set_are_counted_once() {
    loom::model(|| {
        let bits = Bitmap::new(words(BITS / 64));
        let thread = thread::spawn(move || bits.set(63, 2));
        assert_eq!(bits.set(63, 2) + thread.join().expect("a thread of the model"), 2);
    });
}

/// Creates a zone of `len` words of pages, all of them used.
fn full_zone(len: usize) -> Arc<Runs> {
    let runs = Runs::new(Bitmap::new(words(len))).expect("memory");
    assert!(runs.try_claim(0, 64 * len));
    Arc::new(runs)
}

/// A run that is freed while another thread searches gets a hint, so that the next search finds it.
#[test]
fn a_run_that_is_freed_while_another_thread_passes_over_it_is_found_afterwards() {
    // Each case has the number of interruptions, the page at which the search begins (possibly within the run), and the parts of the run,
    // each of which its own thread frees.
    let cases: [(usize, usize, &'static [(usize, usize)]); 5] = [
        (4, 0, &[(0, 16)]),
        (4, 0, &[(64, 16)]),
        (4, 64, &[(64, 16)]),
        (4, 65, &[(64, 16)]),
        (2, 0, &[(64, 4), (68, 12)]),
    ];
    for (interruptions, from, parts) in cases {
        bounded(interruptions, move || {
            let runs = full_zone(BITS / 64);
            let freed = parts.iter().map(|&(start, n)| {
                let runs = runs.clone();
                thread::spawn(move || runs.release(start, n))
            });
            let freed: Vec<_> = freed.collect();
            runs.claim_noted(from, Wanted::anywhere(15)).inspect(|&start| runs.release(start, 15));
            join(freed);
            let first = parts.iter().map(|&(start, _)| start.max(from)).min();
            let found = runs.claim_noted(from, Wanted::anywhere(15));
            assert_eq!(found, first, "a free run was lost");
            found.inspect(|&start| runs.release(start, 15));
            let lowest = parts.iter().map(|&(start, _)| start).min();
            assert_eq!(runs.claim_noted(0, Wanted::anywhere(15)), lowest, "its hint was lost");
        });
    }
}

/// Each thread frees two words of the run.
#[test]
fn a_run_of_many_words_that_two_threads_freed_in_parts_is_found_afterwards() {
    bounded(3, || {
        let runs = full_zone(5);
        assert_eq!(runs.claim_noted(0, Wanted::anywhere(255)), None);
        beside_two(&runs, |one| one.release(64, 128), |other| other.release(192, 128), || ());
        assert_eq!(runs.claim_noted(0, Wanted::anywhere(255)), Some(64));
    });
}

#[test]
fn a_search_that_overtakes_another_does_not_hide_a_run_that_was_freed_in_between() {
    bounded(3, || {
        let runs = full_zone(BITS / 64);
        let search = |other: &Runs| _ = other.claim_noted(0, Wanted::anywhere(64));
        let had = beside_two(&runs, search, |other| other.release(0, 16), || runs.claim_noted(0, Wanted::anywhere(15)));
        assert_eq!(had.or_else(|| runs.claim_noted(0, Wanted::anywhere(15))), Some(0));
    });
}

/// A claim that fails sets bits for a short time, in the word of the used page or in the word before it. A search that runs meanwhile
/// treats these pages as used.
#[test]
fn a_claim_that_fails_hides_no_free_run() {
    for (free, claimed) in [(64..80, (64, 17)), (48..64, (48, 17))] {
        bounded(3, move || {
            let runs = full_zone(BITS / 64);
            runs.release(free.start, free.len());
            let gives_up = move |other: &Runs| assert!(!other.try_claim(claimed.0, claimed.1));
            // This claims the free run only if the other thread has set none of its bits at that moment.
            let had = beside(&runs, gives_up, || runs.claim_noted(0, Wanted::anywhere(free.len())));
            let had = had.or_else(|| runs.claim_noted(0, Wanted::anywhere(free.len())));
            assert_eq!(had, Some(free.start), "a free run was lost");
        });
    }
}

/// Places that are full or empty, and hints for the full ones.
struct Places {
    hints: HintSet,
    full: &'static [AtomicU64],
}

/// The indices of the places. Two are in one word of the lowest level. A third shares their word of the level above, and two more are in
/// another word of that level. None is in a first word, which a search reads regardless of the levels above.
const INDICES: [usize; 5] = [70, 71, 140, 64 * 64 + 70, 64 * 64 + 140];

impl Places {
    /// Creates empty places. The places in `hinted` have hints.
    fn new(hinted: &[usize]) -> Arc<Self> {
        let len = 64 * 64 + 192;
        let places = Self { hints: HintSet::new(words(bitmap::words_for(len)), len), full: words(INDICES.len()) };
        for place in places.full {
            // Loom orders values that are stored with SeqCst, but not the initial values.
            place.swap(0, Ordering::SeqCst);
        }
        hinted.iter().for_each(|&place| places.hints.set(INDICES[place]));
        Arc::new(places)
    }

    fn fill(&self, place: usize) {
        if self.full[place].swap(1, Ordering::SeqCst) == 0 {
            self.hints.set(INDICES[place]);
        }
    }

    /// Clears the hint of a place that was found empty, then checks the place again, and sets the hint again if the place is full.
    fn clear(&self, place: usize) {
        self.hints.clear(INDICES[place]);
        if self.full[place].load(Ordering::SeqCst) != 0 {
            self.hints.set(INDICES[place]);
        }
    }

    /// Returns the indices with hints, in the order in which a search finds them.
    fn search(&self) -> impl Iterator<Item = usize> {
        let mut from = 0;
        std::iter::from_fn(move || self.hints.first(from).inspect(|found| from = found + 1))
    }

    fn assert_found(&self, place: usize) {
        assert!(self.search().any(|found| found == INDICES[place]), "the hint to {} was lost", INDICES[place]);
    }
}

#[test]
fn a_hint_that_is_set_while_another_thread_clears_one_is_not_lost() {
    const N: usize = INDICES.len();
    for (filled, cleared) in (0..N * N).map(|pair| (pair / N, pair % N)) {
        bounded(4, move || {
            let places = Places::new(&[cleared]);
            beside(&places, move |other| other.fill(filled), || places.clear(cleared));
            places.assert_found(filled);
        });
    }
}

#[test]
fn a_hint_that_is_set_while_two_threads_clear_hints_is_not_lost() {
    for (filled, cleared, other) in
        [(0, 0, 0), (0, 1, 0), (1, 0, 2), (2, 0, 1), (2, 0, 2), (3, 0, 2), (4, 3, 3), (4, 0, 3)]
    {
        bounded(2, move || {
            let places = Places::new(&[cleared, other]);
            beside_two(&places, move |a| a.fill(filled), move |b| b.clear(other), || places.clear(cleared));
            places.assert_found(filled);
        });
    }
}

#[test]
fn a_search_finds_the_hints_that_stay_while_another_thread_clears_others() {
    bounded(3, || {
        let places = Places::new(&[0, 1, 2, 4]);
        let clear = |other: &Places| [0, 2].into_iter().for_each(|place| other.clear(place));
        let mut found: Vec<_> = beside(&places, clear, || places.search().collect());
        found.retain(|index| ![INDICES[0], INDICES[2]].contains(index));
        assert_eq!(found, [INDICES[1], INDICES[4]], "a hint that no thread cleared was not found");
    });
}

#[test]
fn a_thread_that_sets_a_hint_finds_it_while_another_thread_sets_it_too() {
    bounded(4, || {
        let places = Places::new(&[]);
        let own = || {
            places.hints.set(INDICES[3]);
            places.assert_found(3);
        };
        beside(&places, |other| other.hints.set(INDICES[3]), own);
    });
}

// Threads that map blocks of a zone: a block is mapped once, and a thread's mapping never counts as foreign.

const BLOCKS: usize = 6;

/// A zone's blocks, and the kernel's view of them: a bit for each mapped block.
struct Blocks {
    mapped: Mapped,
    kernel: AtomicU64,
    foreign: u64,
}

impl Blocks {
    fn new(foreign: u64) -> Arc<Self> {
        let mapped = Mapped::new(Bitmap::new(words(1)), words(BLOCKS));
        Arc::new(Self { mapped, kernel: AtomicU64::new(foreign), foreign })
    }

    fn map(&self, blocks: Range<usize>) -> Result<(), Errno> {
        assert!(!blocks.is_empty(), "the kernel refuses to map nothing");
        let bits = blocks.fold(0, |bits, block| bits | 1 << block);
        let mut found = self.kernel.load(Ordering::SeqCst);
        while found & bits == 0 {
            match self.kernel.compare_exchange(found, found | bits, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Ok(()),
                Err(now) => found = now,
            }
        }
        Err(OCCUPIED)
    }

    /// Makes `len` blocks in a row ready: the lowest at or above `from` without a foreign mapping.
    fn reach(&self, mut from: usize, len: usize) {
        while from + len <= BLOCKS {
            match self.mapped.reach(from..from + len, || 2, || 2, |blocks| self.map(blocks)) {
                Ok(()) => {
                    assert!((from..from + len).all(|block| self.mapped.is_ready(block)));
                    return;
                }
                Err(Obstacle::Taken { behind, .. }) => from = behind,
                Err(Obstacle::Refused) => unreachable!("the kernel refuses nothing"),
            }
        }
    }

    fn assert_whole(&self) {
        let mapped = self.kernel.load(Ordering::SeqCst) & !self.foreign;
        for block in 0..BLOCKS {
            assert_eq!(self.mapped.is_ready(block), mapped >> block & 1 == 1, "block {block}");
        }
    }
}

/// A child may inherit claims of threads that exist only in its parent.
#[test]
fn threads_that_grow_a_zone_at_once_map_each_block_once() {
    for claimed_by_parent in [0..0, 0..3] {
        bounded(3, move || {
            let model = Blocks::new(0);
            model.mapped.claim(claimed_by_parent.clone(), 1);
            beside(&model, |other| other.reach(0, 2), || model.reach(1, 2));
            model.assert_whole();
            assert!((0..BLOCKS).all(|block| !model.mapped.is_foreign(block)), "a thread's mapping counts as foreign");
        });
    }
}

#[test]
fn threads_pass_over_a_foreign_mapping_but_over_no_mapping_of_a_thread() {
    bounded(2, || {
        let model = Blocks::new(0b10);
        beside(&model, |other| other.reach(0, 1), || model.reach(0, 2));
        model.assert_whole();
        assert!(model.mapped.is_ready(0) || !model.mapped.is_foreign(0), "a thread's mapping counts as foreign");
    });
}
