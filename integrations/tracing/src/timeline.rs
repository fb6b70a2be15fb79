//! The contents of the trace: when each span was entered, and the arena's memory over time. Both are bounded.

use std::cmp::Reverse;

use crate::own::{List, list};
use crate::reading::{Level, Totals};
use crate::tree::NodeId;

/// The most entries of spans that are kept: 8 MiB of them. Beyond, the shortest go.
const MOST_ENTRIES: usize = 1 << 16;
/// The most samples of the memory that are kept. Beyond, two become one.
const MOST_SAMPLES: usize = 1 << 15;

/// A span was entered, and left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) node: NodeId,
    pub(crate) thread: usize,
    pub(crate) begun_ns: u64,
    pub(crate) totals: Totals,
}

/// The memory at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) at_ns: u64,
    pub(crate) level: Level,
    /// The peak of live bytes since the sample before.
    pub(crate) peak_live_bytes: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Timeline {
    pub(crate) entries: List<Entry>,
    pub(crate) samples: List<Sample>,
    /// Entries that are not kept.
    pub(crate) dropped: u64,
    /// No entry is kept that is shorter.
    shortest_ns: u64,
    /// The number of samples that become one, and of those in the last one.
    stride: usize,
    in_last: usize,
}

impl Timeline {
    pub(crate) fn new() -> Self {
        Self { entries: list(), samples: list(), dropped: 0, shortest_ns: 0, stride: 1, in_last: 1 }
    }

    pub(crate) fn push_entry(&mut self, entry: Entry) {
        if self.entries.len() == MOST_ENTRIES && entry.totals.wall_ns >= self.shortest_ns {
            self.drop_shorter_half();
        }
        if entry.totals.wall_ns < self.shortest_ns {
            self.dropped += 1;
        } else {
            self.entries.push(entry);
        }
    }

    fn drop_shorter_half(&mut self) {
        let half = self.entries.len() / 2;
        self.entries.select_nth_unstable_by_key(half, |entry| Reverse(entry.totals.wall_ns));
        self.shortest_ns = self.entries[half].totals.wall_ns;
        self.dropped += (self.entries.len() - half) as u64;
        self.entries.truncate(half);
    }

    pub(crate) fn push_sample(&mut self, sample: Sample) {
        if self.in_last < self.stride {
            if let Some(last) = self.samples.last_mut() {
                *last = merged(*last, sample);
                self.in_last += 1;
                return;
            }
        }
        if self.samples.len() == MOST_SAMPLES {
            for pair in 0..MOST_SAMPLES / 2 {
                self.samples[pair] = merged(self.samples[2 * pair], self.samples[2 * pair + 1]);
            }
            self.samples.truncate(MOST_SAMPLES / 2);
            self.stride *= 2;
        }
        self.samples.push(sample);
        self.in_last = 1;
    }
}

fn merged(earlier: Sample, later: Sample) -> Sample {
    Sample { peak_live_bytes: earlier.peak_live_bytes.max(later.peak_live_bytes), ..later }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_entries_are_kept_and_the_others_are_counted() {
        let mut timeline = Timeline::new();
        let pushed = 3 * MOST_ENTRIES as u64 + 7;
        for n in 0..pushed {
            // An outer span ends after those within it, so the last one is the longest.
            let wall_ns = if n == pushed - 1 { u64::MAX } else { n % 1000 };
            let totals = Totals { wall_ns, ..Totals::default() };
            timeline.push_entry(Entry { node: 1, thread: 0, begun_ns: n, totals });
        }
        assert!(timeline.entries.len() <= MOST_ENTRIES);
        assert_eq!(timeline.entries.len() as u64 + timeline.dropped, pushed);
        assert_eq!(timeline.entries.last().unwrap().totals.wall_ns, u64::MAX);
        assert!(timeline.entries.iter().all(|entry| entry.totals.wall_ns >= timeline.shortest_ns));
    }

    #[test]
    fn samples_keep_their_peak_and_their_order_when_they_are_merged() {
        let mut timeline = Timeline::new();
        for n in 0..5 * MOST_SAMPLES as u64 {
            let peak_live_bytes = if n == 12_345 { u64::MAX } else { n };
            timeline.push_sample(Sample { at_ns: n, level: Level::default(), peak_live_bytes });
        }
        assert!(timeline.samples.len() <= MOST_SAMPLES);
        assert!(timeline.samples.iter().any(|sample| sample.peak_live_bytes == u64::MAX));
        assert!(timeline.samples.windows(2).all(|pair| pair[0].at_ns < pair[1].at_ns));
        assert_eq!(timeline.samples.last().unwrap().at_ns, 5 * MOST_SAMPLES as u64 - 1);
    }
}
