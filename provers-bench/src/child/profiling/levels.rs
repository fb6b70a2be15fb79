//! The arena's memory over the time of a proof, read by a thread.

use crate::protocol::profiles::Level;
use anyhow::Context;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use zk_alloc::profile;

/// Readings beyond this number double the time between two.
const MOST: usize = 8192;

pub(super) struct Levels {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Level>>,
}

impl Levels {
    /// Begins to read, once in a millisecond. Call this outside of phases: the readings are then no memory of the arena.
    pub(super) fn begin(began: Instant) -> anyhow::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let (stop, levels) = (is_over.clone(), Vec::with_capacity(MOST));
        let read = move || profile::unsampled(|| read_until(&stop, began, levels));
        let thread = thread::Builder::new().name("levels".into()).spawn(read).context("cannot start a thread")?;
        Ok(Self { is_over, thread })
    }

    /// Ends it, and returns the readings.
    pub(super) fn end(self) -> Vec<Level> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

fn read_until(is_over: &AtomicBool, began: Instant, mut levels: Vec<Level>) -> Vec<Level> {
    let mut pause = Duration::from_millis(1);
    while !is_over.load(Ordering::Relaxed) {
        let stats = zk_alloc::stats();
        levels.push(Level {
            at_ns: began.elapsed().as_nanos() as u64,
            live_bytes: stats.live_bytes as u64,
            resident_bytes: stats.resident_bytes as u64,
        });
        if levels.len() == MOST {
            let mut index = 0;
            levels.retain(|_| {
                index += 1;
                index % 2 == 0
            });
            pause *= 2;
        }
        thread::sleep(pause);
    }
    levels
}
