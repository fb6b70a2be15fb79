//! The resident memory of the service and its workers over time.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use proving_service::bytes::Shown;
use proving_service::memory::rss_of;

const INTERVAL: Duration = Duration::from_millis(200);
/// Columns of the curve.
const COLUMNS: usize = 72;

/// Samples in a thread of its own.
pub struct Sampler {
    is_done: Arc<AtomicBool>,
    thread: JoinHandle<Samples>,
}

#[derive(Debug, Default)]
pub struct Samples {
    bytes: Vec<usize>,
    time: Duration,
}

impl Sampler {
    pub fn start(pid: u32) -> Self {
        let is_done = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&is_done);
        let thread = thread::spawn(move || {
            let begun = Instant::now();
            let mut bytes = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                bytes.push(tree_bytes(pid));
                thread::sleep(INTERVAL);
            }
            Samples { bytes, time: begun.elapsed() }
        });
        Self { is_done, thread }
    }

    pub fn stop(self) -> Samples {
        self.is_done.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

/// The resident memory of a process and its children.
fn tree_bytes(pid: u32) -> usize {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let of_children: usize = children.flat_map(|text| text.split_whitespace().map(rss_of).collect::<Vec<_>>()).sum();
    rss_of(&pid.to_string()) + of_children
}

impl Samples {
    pub fn peak_bytes(&self) -> usize {
        self.bytes.iter().copied().max().unwrap_or(0)
    }

    /// The curve, as text: each column is the peak of its part of the time.
    pub fn curve(&self) -> String {
        let peak = self.peak_bytes().max(1);
        let columns = COLUMNS.min(self.bytes.len()).max(1);
        let bar = |column: usize| {
            let part = self.bytes.len() * column / columns..self.bytes.len() * (column + 1) / columns;
            let bytes = self.bytes.get(part).and_then(|part| part.iter().max()).copied().unwrap_or(0);
            ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'][(bytes * 8 / peak).min(7)]
        };
        let bars: String = (0..columns).map(bar).collect();
        let last = Shown(self.bytes.last().copied().unwrap_or(0));
        let (count, seconds) = (self.bytes.len(), self.time.as_secs());
        format!("RSS: at most {}, {last} in the end; {count} samples in {seconds} s\n{bars}", Shown(peak))
    }
}
