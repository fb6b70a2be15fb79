//! The arena's memory over the time of a proof, read by a thread.

use crate::protocol::profiles::{Level, Parts};
use anyhow::Context;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use zk_alloc::profile;

/// Readings beyond this number double the time between two.
const MOST: usize = 8192;
/// The thread reads the parts of the memory in at most one part in this many of its time.
const SHARE_OF_TIME: u32 = 20;

pub(super) struct Levels {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Readings>,
}

#[derive(Default)]
pub(super) struct Readings {
    pub(super) levels: Vec<Level>,
    pub(super) parts: Vec<Parts>,
}

impl Levels {
    /// Begins to read, once in a millisecond. Call this outside of phases: the readings are then no memory of the arena.
    pub(super) fn begin(began: Instant) -> anyhow::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let readings = Readings { levels: Vec::with_capacity(MOST), parts: Vec::with_capacity(MOST) };
        let stop = is_over.clone();
        let read = move || profile::unsampled(|| read_until(&stop, began, readings));
        let thread = thread::Builder::new().name("levels".into()).spawn(read).context("cannot start a thread")?;
        Ok(Self { is_over, thread })
    }

    /// Ends it, and returns the readings.
    pub(super) fn end(self) -> Readings {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

fn read_until(is_over: &AtomicBool, began: Instant, mut readings: Readings) -> Readings {
    let mut pause = Duration::from_millis(1);
    let mut next_parts = Duration::ZERO;
    loop {
        // The last readings are of the end.
        let is_last = is_over.load(Ordering::Relaxed);
        let stats = zk_alloc::stats();
        let now = began.elapsed();
        readings.levels.push(Level {
            at_ns: now.as_nanos() as u64,
            live_bytes: stats.live_bytes as u64,
            resident_bytes: stats.resident_bytes as u64,
        });
        if now >= next_parts || is_last {
            readings.parts.push(parts_at(now));
            next_parts = began.elapsed() + (began.elapsed() - now) * SHARE_OF_TIME;
        }
        if readings.levels.len() == MOST {
            thin_out(&mut readings.levels);
            thin_out(&mut readings.parts);
            pause *= 2;
        }
        if is_last {
            return readings;
        }
        thread::sleep(pause);
    }
}

/// Keeps every other one.
fn thin_out<T>(readings: &mut Vec<T>) {
    let mut index = 0;
    readings.retain(|_| {
        index += 1;
        index % 2 == 0
    });
}

fn parts_at(at: Duration) -> Parts {
    let parts = zk_alloc::resident_parts();
    let bytes = [
        parts.live_block_bytes,
        parts.live_run_bytes,
        parts.cached_bytes,
        parts.free_slab_bytes,
        parts.free_run_bytes,
        parts.prefaulted_bytes,
    ];
    Parts {
        at_ns: at.as_nanos() as u64,
        bytes: bytes.map(|bytes| bytes as u64),
        kernel_bytes: parts.kernel_bytes.map(|bytes| bytes as u64),
    }
}
