//! Compares the bitmap, and the index of its clear runs, with a vector of booleans, operation by operation.
use std::fmt::Debug;

use proptest::prelude::*;

use crate::arena::pages::bitmap::{Bitmap, steps};
use crate::arena::pages::runs::{Runs, Wanted};
use crate::sync::AtomicU64;

/// Enough bits for searches across several words, and for a free run in a coarse length class.
const BITS: usize = 20 * 64;

#[derive(Clone, Copy, Debug)]
enum Op {
    ClaimFirstFit(usize, Wanted),
    TryClaim(usize, usize),
    /// Releases the first `n` bits of a run of set bits, or the whole run if it is shorter.
    Release(usize, usize),
    Set(usize, usize),
    Clear(usize, usize),
    Look(usize, usize),
}

fn op() -> impl Strategy<Value = Op> {
    let length = || prop_oneof![4 => 1..8usize, 2 => 1..70usize, 1 => 1..BITS + 2];
    let range = move || (0..BITS, length()).prop_map(|(start, n)| (start, n.min(BITS - start)));
    prop_oneof![
        8 => (prop_oneof![Just(0), 0..BITS], length(), 0..3u32, 0..64usize).prop_map(|(from, n, log2, skew)| {
            let align = 1 << (3 * log2);
            Op::ClaimFirstFit(from, Wanted { n, align, skew: skew % align })
        }),
        5 => (0..BITS, length()).prop_map(|(start, n)| Op::TryClaim(start, n)),
        8 => (any::<usize>(), length()).prop_map(|(which, n)| Op::Release(which, n)),
        1 => range().prop_map(|(start, n)| Op::Set(start, n)),
        1 => range().prop_map(|(start, n)| Op::Clear(start, n)),
        3 => range().prop_map(|(start, n)| Op::Look(start, n)),
    ]
}

/// Returns the runs of `true` in `[start, start + n)`.
fn runs(bits: &[bool], start: usize, n: usize) -> Vec<(usize, usize)> {
    let mut end = start;
    let runs = bits[start..start + n].chunk_by(|a, b| a == b).map(|run| {
        end += run.len();
        (run[0], (end - run.len(), run.len()))
    });
    runs.filter_map(|(is_set, run)| is_set.then_some(run)).collect()
}

/// Returns the places where a claim fits.
fn places(bits: &[bool], from: usize, Wanted { n, align, skew }: Wanted) -> impl Iterator<Item = usize> {
    let fits = move |&start: &usize| (start + skew) % align == 0 && !bits[start..start + n].contains(&true);
    (from..(BITS + 1).saturating_sub(n)).filter(fits)
}

/// Applies an operation to a bitmap and to the vector. With `zone`, the bitmap is that of the zone's used pages, and the zone claims and
/// releases these pages.
fn step(bitmap: Bitmap<'_>, zone: Option<&Runs>, bits: &mut [bool], op: Op) {
    match (op, zone) {
        (Op::ClaimFirstFit(from, wanted), Some(zone)) => {
            let places: Vec<usize> = places(bits, from, wanted).collect();
            let lowest = places.first().copied();
            let found = zone.claim_first_fit(from, wanted);
            // If many lower free runs are too short, the zone may take a higher place that is sure to fit.
            let free_runs = |bits: &[bool]| bits.chunk_by(|a, b| a == b).filter(|run| !run[0]).count();
            let misses = lowest.map_or(0, |lowest| free_runs(&bits[from..lowest]));
            if misses < 8 {
                assert_eq!(found, lowest);
            }
            assert!(found.is_none_or(|found| places.contains(&found)));
            found.inspect(|&start| bits[start..start + wanted.n].fill(true));
        }
        (Op::TryClaim(start, n), _) => {
            let is_free = start + n <= BITS && !bits[start..start + n].contains(&true);
            let by_zone = zone.map(|zone| zone.try_claim(start, n));
            assert!(by_zone.is_none_or(|is_claimed| is_claimed == is_free));
            match bitmap.try_claim(start, n) {
                Ok(()) => assert!(is_free && zone.is_none()),
                Err(BITS) => assert!(start + n > BITS),
                Err(taken) => assert!((start..start + n).contains(&taken) && (bits[taken] || by_zone == Some(true))),
            }
            if is_free {
                bits[start..start + n].fill(true);
            }
        }
        (Op::Release(which, n), _) => {
            let runs = runs(bits, 0, BITS);
            if let Some(&(start, len)) = runs.get(which % runs.len().max(1)) {
                let n = n.min(len);
                zone.map_or_else(|| bitmap.release(start, n), |zone| zone.release(start, n));
                bits[start..start + n].fill(false);
            }
        }
        (Op::Set(start, n), None) => {
            let clear = bits[start..start + n].iter().filter(|&&bit| !bit).count();
            assert_eq!(bitmap.set(start, n), clear);
            bits[start..start + n].fill(true);
        }
        (Op::Clear(start, n), None) => {
            let set = bits[start..start + n].iter().filter(|&&bit| bit).count();
            assert_eq!(bitmap.clear(start, n), set);
            bits[start..start + n].fill(false);
        }
        (Op::Look(start, n), _) => {
            assert_eq!(bitmap.set_runs(start, n).collect::<Vec<_>>(), runs(bits, start, n));
            assert_eq!(bitmap.count(start, n), bits[start..start + n].iter().filter(|&&bit| bit).count());
            let none: Vec<AtomicU64> = (0..Bitmap::words_for(BITS)).map(|_| AtomicU64::new(0)).collect();
            for max in [usize::MAX, n.div_ceil(2).max(1)] {
                let last = bitmap.last_run_without(Bitmap::new(&none), start, start + n, max);
                let top = |(start, len): (usize, usize)| (start + len - len.min(max), len.min(max));
                assert_eq!(last, runs(bits, start, n).last().copied().map(top));
            }
        }
        // Not applicable: a bitmap alone has no index of free runs, and a zone sets and clears no bits that it does not own.
        (Op::ClaimFirstFit(..), None) | (Op::Set(..) | Op::Clear(..), Some(_)) => {}
    }
    assert_eq!(bitmap.set_runs(0, BITS).collect::<Vec<_>>(), runs(bits, 0, BITS));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_bitmap_does_what_a_vector_of_booleans_does(ops in prop::collection::vec(op(), 1..80)) {
        let words: Vec<AtomicU64> = (0..Bitmap::words_for(BITS)).map(|_| AtomicU64::new(0)).collect();
        let mut bits = vec![false; BITS];
        ops.into_iter().for_each(|op| step(Bitmap::new(&words), None, &mut bits, op));
    }

    #[test]
    fn a_zone_finds_the_lowest_free_run_from_any_page_on(
        is_taken in any::<bool>(),
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let zone = Runs::new(bitmap(BITS, 0)).expect("memory");
        let mut bits = vec![is_taken; BITS];
        prop_assert!(!is_taken || zone.try_claim(0, BITS));
        ops.into_iter().for_each(|op| step(zone.used, Some(&zone), &mut bits, op));
    }
}

/// Creates a bitmap of `bits` bits, in words that all have the value `word`.
fn bitmap(bits: usize, word: u64) -> Bitmap<'static> {
    Bitmap::new(Box::leak((0..Bitmap::words_for(bits)).map(|_| AtomicU64::new(word)).collect()))
}

/// Creates a zone of `pages` pages, all of them used.
fn full_zone(pages: usize) -> Runs {
    let zone = Runs::new(bitmap(pages, 0)).expect("memory");
    assert!(zone.try_claim(0, pages));
    zone
}

/// The maximum number of words that a search may read in addition to those of the run itself.
const MAX_STEPS: usize = 4_000;
const PAGES: usize = 8 << 20;

/// Runs `work` and returns its result. Checks that it reads or writes at most `max` words of bitmaps and hint sets.
fn in_steps<R>(max: usize, what: impl Debug, work: impl FnOnce() -> R) -> R {
    steps::take();
    let result = work();
    let steps = steps::take();
    assert!(steps <= max, "{steps} words for {what:?}");
    result
}

fn claim(zone: &Runs, from: usize, wanted: Wanted) -> Option<usize> {
    in_steps(MAX_STEPS + wanted.n / 16, wanted, || zone.claim_first_fit(from, wanted))
}

#[test]
fn a_search_visits_a_bounded_number_of_free_runs_of_each_length() {
    for (run_pages, n, align) in
        [(1, 2, 1), (9, 10, 1), (67, 68, 1), (1024, 5120, 1), (1024, 1100, 1), (3000, 3001, 1), (1030, 1024, 512)]
    {
        let zone = Runs::new(bitmap(PAGES, 0)).expect("memory");
        assert!(zone.try_claim(0, PAGES - 4 * n - align));
        let count = (PAGES / 2 / (run_pages + 1)).min(40_000);
        // None of these runs is aligned.
        (0..count).for_each(|index| zone.release(index * (run_pages + 1) + 1, run_pages));
        let found = claim(&zone, 0, Wanted { n, align, skew: 0 }).expect("room behind the runs");
        in_steps(200 + n / 16, n, || zone.release(found, n));
    }
}

#[test]
fn a_search_for_short_aligned_runs_reads_a_bounded_number_of_words() {
    let zone = full_zone(PAGES);
    zone.release(0, PAGES);
    for (n, align) in [(1, 8), (2, 8), (7, 16), (1, 512)] {
        (0..10_000).for_each(|_| assert!(claim(&zone, 0, Wanted { n, align, skew: 0 }).is_some()));
    }
}

/// A request purges only a few MiB at a time, so it must not read all of a long free run to find them.
#[test]
fn a_part_of_a_free_run_is_found_without_reading_the_rest_of_the_run() {
    let (resident, used) = (bitmap(PAGES, u64::MAX), bitmap(PAGES, 0));
    let found = in_steps(1024 / 64 + 1, 1024, || resident.last_run_without(used, 0, PAGES, 1024));
    assert_eq!(found, Some((PAGES - 1024, 1024)));
}

#[test]
fn no_request_reads_all_of_a_full_zone() {
    let zone = full_zone(PAGES);
    for (from, n, align) in [(0, 100, 1), (PAGES / 8, 64, 1), (0, 16, 16), (PAGES / 8, 70, 1)] {
        assert_eq!(claim(&zone, from, Wanted { n, align, skew: 0 }), None);
    }
    zone.release(PAGES - 128, 50);
    zone.release(PAGES - 128 + 50, 50);
    assert_eq!(claim(&zone, 0, Wanted::anywhere(100)), Some(PAGES - 128));
}

/// The runs are claimed, but their hints remain.
#[test]
fn a_search_clears_a_bounded_number_of_superfluous_hints() {
    let zone = full_zone(PAGES);
    let starts = || (0..PAGES / 2).step_by(128);
    starts().for_each(|start| zone.release(start, 20));
    starts().for_each(|start| assert!(zone.try_claim(start, 20)));
    zone.release(PAGES - 1000, 1000);
    assert_eq!(claim(&zone, 0, Wanted::anywhere(20)), Some(PAGES - 1000));
}

#[test]
fn freeing_a_page_beside_a_long_free_run_reads_few_bitmap_words() {
    let zone = full_zone(PAGES);
    zone.release(0, PAGES);
    assert!(zone.try_claim(PAGES / 2, 1));
    in_steps(200, 1, || zone.release(PAGES / 2, 1));
    assert_eq!(zone.claim_first_fit(0, Wanted::anywhere(PAGES)), Some(0));
}
