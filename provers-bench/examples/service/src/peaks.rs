//! The peaks of earlier proofs, by size.
//!
//! `PhaseReport::peak_live_bytes` counts the whole process since the first of the open phases began. So it is the peak of
//! one proof only if no other proof ran at any moment of it. Only such proofs teach.

use std::collections::{BTreeMap, VecDeque};

use crate::request::Size;

/// The proofs of each size that count.
const RECENT: usize = 8;
/// A size is estimated from a smaller one with at most this many doublings between them. The fixed memory of a proof is
/// doubled as well, so further estimates would be far too high.
const DOUBLINGS: u32 = 3;

/// The peaks of recent proofs that ran alone, in live bytes of the arena.
#[derive(Debug, Default)]
pub struct Peaks {
    by_size: BTreeMap<Size, VecDeque<usize>>,
}

impl Peaks {
    pub fn learn(&mut self, size: Size, peak_bytes: usize) {
        let recent = self.by_size.entry(size).or_default();
        recent.push_back(peak_bytes);
        if recent.len() > RECENT {
            recent.pop_front();
        }
    }

    /// The largest recent peak of this size.
    pub fn known(&self, size: Size) -> Option<usize> {
        self.by_size.get(&size)?.iter().copied().max()
    }

    /// The peak of the next smaller known size, doubled for each doubling of the rows.
    pub fn estimate(&self, size: Size) -> Option<usize> {
        (1..=DOUBLINGS).find_map(|doublings| {
            let smaller = Size { log_rows: size.log_rows.checked_sub(doublings)?, ..size };
            self.known(smaller)?.checked_shl(doublings)
        })
    }

    /// All known sizes, with their peaks and the number of proofs that count.
    pub fn iter(&self) -> impl Iterator<Item = (Size, usize, usize)> {
        let largest = |recent: &VecDeque<usize>| recent.iter().copied().max().unwrap_or(0);
        self.by_size.iter().map(move |(&size, recent)| (size, largest(recent), recent.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Kind;

    fn size(log_rows: u32) -> Size {
        Size { kind: Kind::Keccak, log_rows }
    }

    #[test]
    fn the_largest_of_the_recent_proofs_counts_and_old_ones_are_forgotten() {
        let mut peaks = Peaks::default();
        assert_eq!(peaks.known(size(10)), None);
        peaks.learn(size(10), 900);
        peaks.learn(size(10), 100);
        assert_eq!(peaks.known(size(10)), Some(900));
        (0..RECENT - 1).for_each(|_| peaks.learn(size(10), 200));
        assert_eq!(peaks.known(size(10)), Some(200));
        assert_eq!(peaks.iter().collect::<Vec<_>>(), [(size(10), 200, RECENT)]);
    }

    #[test]
    fn a_size_is_estimated_from_the_next_smaller_one_of_its_kind() {
        let mut peaks = Peaks::default();
        peaks.learn(size(8), 10);
        peaks.learn(size(10), 100);
        assert_eq!(peaks.estimate(size(11)), Some(200));
        assert_eq!(peaks.estimate(size(13)), Some(800));
        assert_eq!(peaks.estimate(size(14)), None, "too far away");
        assert_eq!(peaks.estimate(size(8)), None, "larger sizes tell nothing");
        assert_eq!(peaks.estimate(Size { kind: Kind::Poseidon2, log_rows: 11 }), None);
        assert_eq!(peaks.estimate(size(0)), None);
    }
}
