//! Searches of a whole zone that found nothing. They are not repeated before something is freed that may be long enough.
//!
//! A word has the generation of what is free, and the shortest length that was searched for in this generation. A search announces its
//! length there before it looks. A thread that frees a run as long begins the next generation, in which no failure of the last one counts.

use std::hash::{Hash, Hasher};

use super::free_run_index::Wanted;
use crate::sync::{AtomicU64, Ordering};

/// The lower bits of each word: a length in pages. Longer runs are not remembered.
const LENGTH_BITS: u32 = 28;
const LENGTH: u64 = (1 << LENGTH_BITS) - 1;
/// Kinds of searches that are remembered at once.
const KINDS: usize = 8;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Failures {
    /// The generation, and the shortest length; 0 if there was no search.
    watch: AtomicU64,
    /// For each kind of search, the generation and the kind in one hash, and the shortest length that failed.
    failed: [AtomicU64; KINDS],
}

/// A search under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    /// What to store if it fails, and where.
    failure: u64,
    place: usize,
}

impl Failures {
    pub(super) fn new() -> Self {
        Self { watch: AtomicU64::new(0), failed: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Announces a search; `None` if it would find nothing.
    pub(super) fn begin(&self, from: usize, wanted: Wanted) -> Option<Search> {
        let length = (wanted.n as u64).min(LENGTH);
        let mut watch = self.watch.load(Ordering::SeqCst);
        while watch & LENGTH == 0 || watch & LENGTH > length {
            // SeqCst: either the search sees what another thread frees, or that thread sees the announcement.
            match self.watch.compare_exchange(watch, watch & !LENGTH | length, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => watch = watch & !LENGTH | length,
                Err(other) => watch = other,
            }
        }
        let kind = kind(watch >> LENGTH_BITS, from, wanted);
        let (failure, place) = (kind & !LENGTH | length, kind as usize % KINDS);
        let failed = self.failed[place].load(Ordering::Relaxed);
        let is_known = (failed ^ failure) & !LENGTH == 0 && failed & LENGTH <= length;
        (!is_known || length == LENGTH).then_some(Search { failure, place })
    }

    /// A search found nothing.
    pub(super) fn remember(&self, search: Search) {
        self.failed[search.place].store(search.failure, Ordering::Relaxed);
    }

    /// A free run of so many pages came to be.
    pub(super) fn freed(&self, pages: usize) {
        let mut watch = self.watch.load(Ordering::SeqCst);
        while watch & LENGTH != 0 && pages as u64 >= watch & LENGTH {
            let next = (watch >> LENGTH_BITS).wrapping_add(1) << LENGTH_BITS;
            match self.watch.compare_exchange(watch, next, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return,
                Err(other) => watch = other,
            }
        }
    }
}

/// The generation and the kind of a search as a number. Two kinds with the same one, which is as good as impossible, would cost some requests a
/// place that is free.
fn kind(generation: u64, from: usize, wanted: Wanted) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    (generation, from, wanted.align, wanted.skew).hash(&mut hasher);
    hasher.finish()
}
