//! Compares the bitmap, and the index of its clear runs, with a vector of booleans, operation by operation.
use proptest::prelude::*;

use crate::arena::pages::bitmap::{Bitmap, steps};
use crate::arena::pages::runs::{Runs, Wanted};
use crate::sync::AtomicU64;

/// Enough bits for searches across several words, and for a free run of a coarse class.
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
    let short = || prop_oneof![8 => 1..8usize, 2 => 1..70usize, 1 => 1..BITS + 2];
    let range = move || (0..BITS, short()).prop_map(|(start, n)| (start, n.min(BITS - start)));
    prop_oneof![
        8 => (0..BITS, short()).prop_map(|(start, n)| Op::TryClaim(start, n)),
        6 => (any::<usize>(), short()).prop_map(|(which, n)| Op::Release(which, n)),
        1 => range().prop_map(|(start, n)| Op::Set(start, n)),
        1 => range().prop_map(|(start, n)| Op::Clear(start, n)),
        3 => range().prop_map(|(start, n)| Op::Look(start, n)),
    ]
}

/// Returns the runs of `true` in `[start, start + n)`.
fn runs(bits: &[bool], start: usize, n: usize) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for at in (start..start + n).filter(|&at| bits[at]) {
        match runs.last_mut() {
            Some((first, len)) if *first + *len == at => *len += 1,
            _ => runs.push((at, 1)),
        }
    }
    runs
}

fn free_runs(bits: &[bool]) -> usize {
    let free: Vec<bool> = bits.iter().map(|&bit| !bit).collect();
    runs(&free, 0, free.len()).len()
}

/// Returns the places where a claim fits.
fn places(bits: &[bool], from: usize, Wanted { n, align, skew }: Wanted) -> impl Iterator<Item = usize> {
    let fits = move |&start: &usize| (start + skew) % align == 0 && !bits[start..start + n].contains(&true);
    (from..(BITS + 1).saturating_sub(n)).filter(fits)
}

/// Clears the bits that [`Op::Release`] releases, and returns their start and number.
fn released(bits: &mut [bool], which: usize, n: usize) -> Option<(usize, usize)> {
    let runs = runs(bits, 0, BITS);
    let &(start, len) = runs.get(which % runs.len().max(1))?;
    bits[start..start + n.min(len)].fill(false);
    Some((start, n.min(len)))
}

fn step(bitmap: Bitmap<'_>, bits: &mut [bool], op: Op) {
    match op {
        Op::ClaimFirstFit(..) => unreachable!("not an operation of a bitmap"),
        Op::TryClaim(start, n) => match bitmap.try_claim(start, n) {
            Ok(()) => {
                assert!(!bits[start..start + n].contains(&true));
                bits[start..start + n].fill(true);
            }
            Err(taken) => assert!(if start + n > BITS { taken == BITS } else { taken < start + n && bits[taken] }),
        },
        Op::Release(which, n) => released(bits, which, n).into_iter().for_each(|(start, n)| bitmap.release(start, n)),
        Op::Set(start, n) => {
            let clear = bits[start..start + n].iter().filter(|&&bit| !bit).count();
            assert_eq!(bitmap.set(start, n), clear);
            bits[start..start + n].fill(true);
        }
        Op::Clear(start, n) => {
            let set = bits[start..start + n].iter().filter(|&&bit| bit).count();
            assert_eq!(bitmap.clear(start, n), set);
            bits[start..start + n].fill(false);
        }
        Op::Look(start, n) => {
            assert_eq!(bitmap.set_runs(start, n).collect::<Vec<_>>(), runs(bits, start, n));
            assert_eq!(bitmap.count(start, n), bits[start..start + n].iter().filter(|&&bit| bit).count());
            let none: Vec<AtomicU64> = (0..Bitmap::words_for(BITS)).map(|_| AtomicU64::new(0)).collect();
            for max in [usize::MAX, n.div_ceil(2).max(1)] {
                let last = bitmap.last_run_without(Bitmap::new(&none), start, start + n, max);
                let top = |(start, len): (usize, usize)| (start + len - len.min(max), len.min(max));
                assert_eq!(last, runs(bits, start, n).last().copied().map(top));
            }
        }
    }
}

/// Generates the operations of a zone on its runs: claiming a run, or releasing a part of one.
fn zone_op() -> impl Strategy<Value = Op> {
    let length = || prop_oneof![2 => 1..70usize, 2 => 1..BITS + 2];
    prop_oneof![
        4 => (prop_oneof![Just(0), 0..BITS], length(), 0..3u32, 0..64usize).prop_map(|(from, n, log2, skew)| {
            let align = 1 << (3 * log2);
            Op::ClaimFirstFit(from, Wanted { n, align, skew: skew % align })
        }),
        1 => (0..BITS, length()).prop_map(|(start, n)| Op::TryClaim(start, n)),
        4 => (any::<usize>(), length()).prop_map(|(which, n)| Op::Release(which, n)),
    ]
}

/// Like [`step`], for a zone that searches its index of free runs.
fn zone_step(zone: &Runs, bits: &mut [bool], op: Op) {
    match op {
        Op::ClaimFirstFit(from, wanted) => {
            let n = wanted.n;
            let places: Vec<usize> = places(bits, from, wanted).collect();
            let lowest = places.first().copied();
            let found = zone.claim_first_fit(from, wanted);
            // If many free runs below are too short, the zone may take a higher place that is sure to fit.
            let misses = lowest.map_or(0, |lowest| free_runs(&bits[from..lowest]));
            if misses < 8 {
                assert_eq!(found, lowest);
            }
            assert!(found.is_none_or(|found| places.contains(&found)));
            found.inspect(|&start| bits[start..start + n].fill(true));
        }
        Op::TryClaim(start, n) => {
            let is_free = start + n <= BITS && !bits[start..start + n].contains(&true);
            assert_eq!(zone.try_claim(start, n), is_free);
            if is_free {
                bits[start..start + n].fill(true);
            }
        }
        Op::Release(which, n) => released(bits, which, n).into_iter().for_each(|(start, n)| zone.release(start, n)),
        Op::Set(..) | Op::Clear(..) | Op::Look(..) => unreachable!("not among a zone's operations"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_bitmap_does_what_a_vector_of_booleans_does(ops in prop::collection::vec(op(), 1..60)) {
        let words: Vec<AtomicU64> = (0..Bitmap::words_for(BITS)).map(|_| AtomicU64::new(0)).collect();
        let bitmap = Bitmap::new(&words);
        let mut bits = vec![false; bitmap.len()];
        for op in ops {
            step(bitmap, &mut bits, op);
            assert_eq!(bitmap.set_runs(0, BITS).collect::<Vec<_>>(), runs(&bits, 0, BITS));
        }
    }

    #[test]
    fn a_zone_finds_the_lowest_free_run_from_any_page_on(
        is_taken in any::<bool>(),
        ops in prop::collection::vec(zone_op(), 1..60),
    ) {
        let zone = Runs::new(bitmap(BITS, 0)).expect("memory");
        let mut bits = vec![is_taken; BITS];
        prop_assert!(!is_taken || zone.try_claim(0, BITS));
        for op in ops {
            zone_step(&zone, &mut bits, op);
        }
    }
}

/// Below the free run that fits, there are more short free runs than a search visits. So the search takes a free run of a longer class.
#[test]
fn after_many_free_runs_that_are_too_short_a_search_takes_one_of_a_longer_class() {
    const RUN_PAGES: usize = 14;
    let len = 64 * 400;
    let zone = full_zone(len);
    let free_runs = (0..len / 64 - 10).flat_map(|word| [64 * word, 64 * word + 32]);
    free_runs.for_each(|start| zone.release(start, RUN_PAGES));
    let fitting = len - 200;
    zone.release(fitting, RUN_PAGES + 1);
    assert_eq!(zone.claim_first_fit(0, Wanted::anywhere(RUN_PAGES + 2)), None);
    let sure = len - 64;
    zone.release(sure, 20);
    assert_eq!(zone.claim_first_fit(0, Wanted::anywhere(RUN_PAGES + 1)), Some(sure));
    assert_eq!(zone.claim_first_fit(0, Wanted::anywhere(RUN_PAGES)), Some(0));
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

/// Returns how many words `work` reads and writes, and its result.
fn steps_of<R>(work: impl FnOnce() -> R) -> (usize, R) {
    steps::take();
    let result = work();
    (steps::take(), result)
}

/// The maximum number of words that a search may read besides the words of the run itself.
const MAX_STEPS: usize = 4_000;
const PAGES: usize = 8 << 20;

#[test]
fn a_search_visits_a_bounded_number_of_free_runs_of_each_length() {
    for (run_pages, n, align) in
        [(1, 2, 1), (9, 10, 1), (67, 68, 1), (1024, 5120, 1), (1024, 1100, 1), (3000, 3001, 1), (1030, 1024, 512)]
    {
        let zone = Runs::new(bitmap(PAGES, 0)).expect("memory");
        assert!(zone.try_claim(0, PAGES - 4 * n - align));
        let count = (PAGES / 2 / (run_pages + 1)).min(40_000);
        for index in 0..count {
            // None of these runs is aligned.
            zone.release(index * (run_pages + 1) + 1, run_pages);
        }
        let (steps, found) = steps_of(|| zone.claim_first_fit(0, Wanted { n, align, skew: 0 }));
        assert!(found.is_some());
        assert!(steps <= MAX_STEPS + n / 16, "{steps} words, {n} pages at {align} above {count} runs of {run_pages}");
        let (steps, ()) = steps_of(|| zone.release(found.expect("asserted"), n));
        assert!(steps <= 200 + n / 16, "{steps} words to free {n} pages");
    }
}

#[test]
fn a_search_for_short_aligned_runs_reads_a_bounded_number_of_words() {
    let zone = full_zone(PAGES);
    zone.release(0, PAGES);
    for (n, align) in [(1, 8), (2, 8), (7, 16), (1, 512)] {
        let most = (0..10_000)
            .map(|_| steps_of(|| zone.claim_first_fit(0, Wanted { n, align, skew: 0 }).expect("room")).0)
            .max();
        assert!(most <= Some(MAX_STEPS), "{most:?} words for {n} pages at {align}");
    }
}

/// A request purges a few MiB of free memory, no matter how long a free run is.
#[test]
fn a_part_of_a_free_run_is_found_without_reading_the_rest_of_the_run() {
    let (resident, used) = (bitmap(PAGES, u64::MAX), bitmap(PAGES, 0));
    let (steps, found) = steps_of(|| resident.last_run_without(used, 0, PAGES, 1024));
    assert_eq!(found, Some((PAGES - 1024, 1024)));
    assert!(steps <= 1024 / 64 + 1, "{steps} words");
}

#[test]
fn no_request_reads_all_of_a_full_zone() {
    let zone = full_zone(PAGES);
    for (from, n, align) in [(0, 100, 1), (PAGES / 8, 64, 1), (0, 16, 16), (PAGES / 8, 70, 1)] {
        let (steps, found) = steps_of(|| zone.claim_first_fit(from, Wanted { n, align, skew: 0 }));
        assert_eq!(found, None);
        assert!(steps <= MAX_STEPS, "{steps} words for {n} pages in a full zone");
    }
    zone.release(PAGES - 128, 50);
    zone.release(PAGES - 128 + 50, 50);
    assert_eq!(zone.claim_first_fit(0, Wanted::anywhere(100)), Some(PAGES - 128));
}

/// The runs are claimed, but their hints remain.
#[test]
fn a_search_clears_a_bounded_number_of_superfluous_hints() {
    let zone = full_zone(PAGES);
    let starts = || (0..PAGES / 2).step_by(128);
    starts().for_each(|start| zone.release(start, 20));
    starts().for_each(|start| assert!(zone.try_claim(start, 20)));
    zone.release(PAGES - 1000, 1000);
    let (steps, found) = steps_of(|| zone.claim_first_fit(0, Wanted::anywhere(20)));
    assert_eq!(found, Some(PAGES - 1000));
    assert!(steps <= MAX_STEPS, "{steps} words");
}

#[test]
fn freeing_a_page_beside_a_long_free_run_reads_few_bitmap_words() {
    let zone = full_zone(PAGES);
    zone.release(0, PAGES);
    let middle = PAGES / 2;
    assert!(zone.try_claim(middle, 1));
    let (steps, ()) = steps_of(|| zone.release(middle, 1));
    assert!(steps <= 200, "{steps} words");
    assert_eq!(zone.claim_first_fit(0, Wanted::anywhere(PAGES)), Some(0));
}
