//! Samples a process's resident memory over time, from a thread of the driver that sleeps and reads one line.

use crate::machine::memory;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Sampling interval: about fifty samples in a proof of one second, at about 10 us each.
const EVERY: Duration = Duration::from_millis(20);

/// Watches a process until it is stopped.
pub(crate) struct RssWatch {
    stop: Sender<()>,
    watcher: JoinHandle<Vec<(u32, u64)>>,
}

impl RssWatch {
    /// Starts to watch the process `pid`.
    pub(crate) fn start(pid: u32) -> Self {
        let (stop, stopped) = mpsc::channel();
        let since = Instant::now();
        let watcher = thread::spawn(move || {
            let mut seen = Vec::new();
            // An exited process has no RSS to read.
            while let Some(bytes) = memory::rss_bytes_of(pid) {
                seen.push((since.elapsed().as_millis() as u32, bytes));
                if stopped.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            seen
        });
        Self { stop, watcher }
    }

    /// Stops and returns the samples: milliseconds since the start, and resident bytes at that time.
    pub(crate) fn stop(self) -> Vec<(u32, u64)> {
        drop(self.stop);
        self.watcher.join().unwrap_or_default()
    }
}

/// The area under the curve of resident memory up to `time`, in byte seconds; `None` without samples.
pub(crate) fn byte_seconds(seen: &[(u32, u64)], time: Duration) -> Option<u64> {
    let end = time.as_secs_f64();
    let (mut sum, mut at, mut bytes) = (0.0, 0.0, seen.first()?.1 as f64);
    for &(at_ms, next) in seen {
        let until = (f64::from(at_ms) / 1e3).min(end);
        sum += (until - at) * (bytes + next as f64) / 2.0;
        (at, bytes) = (until, next as f64);
    }
    Some((sum + (end - at) * bytes).round() as u64)
}

/// At most `most` of the samples: the highest of each group of neighbours, so that no peak is lost.
pub(crate) fn highest(seen: &[(u32, u64)], most: usize) -> impl Iterator<Item = (u32, u64)> {
    let group = seen.len().div_ceil(most).max(1);
    seen.chunks(group).filter_map(|group| group.iter().copied().max_by_key(|(_, bytes)| *bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process;

    /// A proof of two seconds holds 1 GB, then rises to 3 GB. Memory seen during its verification does not count.
    #[test]
    fn memory_is_summed_over_the_time_of_the_proof() {
        let seen = [(0, 1_000), (1_000, 1_000), (2_000, 3_000), (9_000, 9_000)];
        assert_eq!(byte_seconds(&seen[..2], Duration::from_secs(2)), Some(2_000));
        assert_eq!(byte_seconds(&seen[..3], Duration::from_secs(2)), Some(3_000));
        assert_eq!(byte_seconds(&seen, Duration::from_secs(2)), Some(3_000));
        assert_eq!(byte_seconds(&[], Duration::from_secs(2)), None);
    }

    /// The curve must show memory that is allocated and freed within a proof.
    #[test]
    fn memory_that_came_meanwhile_is_seen() {
        let _alone = memory::tests::alone();
        let watch = RssWatch::start(process::id());
        thread::sleep(3 * EVERY);
        let filled = std::hint::black_box(vec![1_u8; 64 << 20]);
        thread::sleep(3 * EVERY);
        drop(filled);
        let seen = watch.stop();
        assert!(seen.is_sorted_by_key(|(at_ms, _)| *at_ms), "{seen:?}");
        let bytes = || seen.iter().map(|(_, bytes)| *bytes);
        assert!(bytes().max().unwrap() >= bytes().next().unwrap() + (60 << 20), "{seen:?}");
    }

    #[test]
    fn a_shorter_curve_keeps_its_peaks() {
        let seen: Vec<_> = (0..1000).map(|at| (at, if at == 777 { 9 } else { 1 })).collect();
        let shorter: Vec<_> = highest(&seen, 100).collect();
        assert_eq!((shorter.len(), shorter.iter().map(|(_, bytes)| *bytes).max()), (100, Some(9)));
        assert!(shorter.is_sorted_by_key(|(at, _)| *at));
        assert_eq!(highest(&seen, 5000).count(), 1000);
    }
}
