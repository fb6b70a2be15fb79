//! The health of a node: whether each part is busy, and the first thing that went wrong.

use anyhow::bail;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A part of a node that must stay busy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    /// A message was sent, and its answer is right.
    Messages,
    /// Records were written, and others read back and checked.
    Database,
    /// A short-lived thread ended, and its memory arrived.
    Jobs,
}

/// All parts, in the order of the variants.
const PARTS: [Part; 3] = [Part::Messages, Part::Database, Part::Jobs];

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Messages => "message was answered",
            Self::Database => "record was read back",
            Self::Jobs => "short-lived thread ended",
        })
    }
}

/// Progress of one part.
#[derive(Debug, Default)]
struct Pulse {
    beats: AtomicU64,
    /// Time of the last beat, in milliseconds since the node started.
    last_ms: AtomicU64,
}

/// The place to which all parts of a node report.
#[derive(Debug)]
pub(crate) struct Health {
    begun: Instant,
    pulses: [Pulse; PARTS.len()],
    trouble: Mutex<Option<String>>,
}

impl Health {
    pub(crate) fn new() -> Self {
        Self { begun: Instant::now(), pulses: Default::default(), trouble: Mutex::new(None) }
    }

    /// Notes that a part got something done.
    pub(crate) fn beat(&self, part: Part) {
        let pulse = &self.pulses[part as usize];
        pulse.last_ms.store(self.now_ms(), Relaxed);
        pulse.beats.fetch_add(1, Relaxed);
    }

    /// The number of things that a part got done.
    pub(crate) fn beats(&self, part: Part) -> u64 {
        self.pulses[part as usize].beats.load(Relaxed)
    }

    /// Whether each part got something done.
    pub(crate) fn is_everyone_up(&self) -> bool {
        PARTS.iter().all(|&part| self.beats(part) > 0)
    }

    /// Notes that something went wrong. The first report stays, because others may follow from it.
    pub(crate) fn report(&self, error: &anyhow::Error) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.get_or_insert_with(|| format!("{error:#}"));
    }

    /// Fails with the first report, or if a part has shown nothing for `quiet`.
    pub(crate) fn check(&self, quiet: Duration) -> anyhow::Result<()> {
        self.check_at(self.now_ms(), quiet)
    }

    fn check_at(&self, now_ms: u64, quiet: Duration) -> anyhow::Result<()> {
        if let Some(trouble) = &*self.trouble.lock().unwrap_or_else(PoisonError::into_inner) {
            bail!("{trouble}");
        }
        for part in PARTS {
            let last_ms = self.pulses[part as usize].last_ms.load(Relaxed);
            let silent = Duration::from_millis(now_ms.saturating_sub(last_ms));
            if silent > quiet {
                bail!("no {part} in the last {:.1} s", silent.as_secs_f64());
            }
        }
        Ok(())
    }

    fn now_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part whose thread is gone reports nothing. Its silence must be noticed while the others work on.
    #[test]
    fn a_silent_part_is_named() {
        let (health, quiet) = (Health::new(), Duration::from_secs(10));
        let beat_at = |part: Part, ms| health.pulses[part as usize].last_ms.store(ms, Relaxed);
        health.check_at(10_000, quiet).unwrap();
        beat_at(Part::Messages, 12_000);
        beat_at(Part::Database, 9_000);
        let error = health.check_at(12_000, quiet).unwrap_err().to_string();
        assert_eq!(error, "no short-lived thread ended in the last 12.0 s");
        beat_at(Part::Jobs, 12_000);
        health.check_at(12_000, quiet).unwrap();
    }

    #[test]
    fn everyone_is_up_once_each_part_did_something() {
        let health = Health::new();
        for part in PARTS {
            assert!(!health.is_everyone_up());
            health.beat(part);
        }
        assert!(health.is_everyone_up());
        assert_eq!(health.beats(Part::Messages), 1);
    }

    /// The first fault is the cause of those after it, and it does not heal.
    #[test]
    fn the_first_trouble_stays() {
        let health = Health::new();
        health.report(&anyhow::anyhow!("root").context("leaf"));
        health.report(&anyhow::anyhow!("another"));
        for _ in 0..2 {
            assert_eq!(health.check(Duration::MAX).unwrap_err().to_string(), "leaf: root");
        }
    }
}
