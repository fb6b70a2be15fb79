//! The replaying process: the script's threads, on real memory, under the installed allocator.
//!
//! - `mod`: threads, phases, memory
//! - `turns`: which thread may act
//! - `block`: memory that detects overwrites

mod block;
mod turns;

use super::mapping;
use crate::arms::Installed;
use crate::machine::memory::{Account, Resident};
use crate::protocol::records::{self, Op, Record};
use crate::protocol::{Replayed, Shape};
use crate::sample::Meter;
use anyhow::{Context, ensure};
use block::Block;
use std::alloc::Layout;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use turns::Turns;

/// The thread that opens phases and measures memory. The script's threads are numbered from 1.
const DIRECTOR: usize = 0;

/// Replays the script at `path`.
pub(crate) fn replay(path: &Path, shape: Shape, installed: &Installed) -> anyhow::Result<Replayed> {
    let mut reader = records::open(path)?;
    let records = mapping::table(shape.records, || {
        let record = reader.record()?.context("the script is shorter than its driver says")?;
        let is_known = (1..=shape.threads).contains(&record.thread.into());
        ensure!(is_known, "thread {} of the script is none of its {}", record.thread, shape.threads);
        Ok(record)
    })?;
    let account = Account::open()?;
    let before = account.resident()?;
    let stage = Stage {
        turns: Turns::default(),
        play: Mutex::new(Play {
            records,
            blocks: mapping::table(shape.blocks, || Ok(None))?,
            at: 0,
            section_end: 0,
            peak_at: shape.peak_at,
            failure: None,
            operations: Duration::ZERO,
            account,
            before,
            rss_at_live_peak_bytes: 0,
        }),
    };
    drop(reader);
    let stage = &stage;
    thread::scope(|scope| {
        let spawn = |me| {
            let thread = thread::Builder::new().spawn_scoped(scope, move || stage.act(me));
            let thread = thread.with_context(|| format!("cannot start thread {me} of {}", shape.threads))?;
            anyhow::Ok(thread.thread().clone())
        };
        let workers: anyhow::Result<Vec<_>> = (1..=shape.threads).map(spawn).collect();
        let replayed = workers.and_then(|workers| {
            stage.turns.between([thread::current()].into_iter().chain(workers).collect());
            stage.direct(shape, installed)
        });
        stage.turns.end();
        replayed
    })
}

/// The threads, and the state of the replay.
struct Stage {
    turns: Turns,
    play: Mutex<Play>,
}

impl Stage {
    /// The main loop of the script's thread `me`.
    fn act(&self, me: usize) {
        while self.turns.wait(me) {
            let next = self.play().turn(me);
            self.turns.pass(next);
        }
    }

    /// Plays the whole script.
    fn direct(&self, shape: Shape, installed: &Installed) -> anyhow::Result<Replayed> {
        // An empty section for each thread faults in its stack before the measurement starts.
        (1..=shape.threads).for_each(|thread| self.section(thread, 0));
        let records = self.play().records;
        let before = self.play().account.resident()?;
        self.play().before = before;
        let (mut rss_at_phase_ends_bytes, mut reports, mut end) = (Vec::new(), Vec::new(), 0);
        let meter = Meter::start(installed.counters)?;
        for section in records::sections(records) {
            end += section.len();
            let first = &section[0];
            let mut play = || self.section(first.thread.into(), end);
            if first.in_phase {
                (installed.phase)(&mut play);
            } else {
                play();
            }
            self.play().failure.take().map_or(Ok(()), Err)?;
            if first.in_phase {
                rss_at_phase_ends_bytes.push(self.play().grown_bytes()?);
                let report = (installed.report)();
                reports.extend(report.map(|report| format!("after the phase of proof {}:\n{report}", first.proof)));
            }
        }
        let mut sample = meter.stop(installed.gauges)?.at_rest(Ok(()))?.sample;
        let play = self.play();
        let after = play.account.resident()?;
        sample.rss_bytes = play.grown_bytes()?;
        // Code that was faulted in during the replay does not count as the allocator's memory.
        let peak = sample.peak_rss_bytes.saturating_sub(after.file_bytes + before.anonymous_bytes);
        let seen = rss_at_phase_ends_bytes.iter().copied().chain([play.rss_at_live_peak_bytes]);
        sample.peak_rss_bytes = seen.fold(peak, u64::max);
        let release = |release: fn()| {
            release();
            play.grown_bytes()
        };
        let rss_released_bytes = installed.release.map(release).transpose()?;
        reports.extend((installed.report)().map(|report| format!("after all was freed and given back:\n{report}")));
        Ok(Replayed {
            sample,
            operations_ns: play.operations.as_nanos() as u64,
            rss_at_live_peak_bytes: play.rss_at_live_peak_bytes,
            rss_at_phase_ends_bytes,
            rss_released_bytes,
            reports,
        })
    }

    /// Plays the script up to record `end`, starting on thread `first`.
    fn section(&self, first: usize, end: usize) {
        self.play().section_end = end;
        self.turns.pass(first);
        self.turns.wait(DIRECTOR);
    }

    fn play(&self) -> MutexGuard<'_, Play> {
        self.play.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state that the acting thread works on. The measured allocator serves none of this memory.
struct Play {
    records: &'static [Record],
    blocks: &'static mut [Option<Block>],
    /// The next record, and the first record after this section.
    at: usize,
    section_end: usize,
    peak_at: usize,
    /// The error that ended the replay.
    failure: Option<anyhow::Error>,
    operations: Duration,
    account: Account,
    before: Resident,
    rss_at_live_peak_bytes: u64,
}

impl Play {
    /// Plays the next records of thread `me`, and returns the thread that has the next turn.
    fn turn(&mut self, me: usize) -> usize {
        let begun = Instant::now();
        let played = self.steps(me);
        self.operations += begun.elapsed();
        played.unwrap_or_else(|error| {
            self.failure = Some(error);
            DIRECTOR
        })
    }

    fn steps(&mut self, me: usize) -> anyhow::Result<usize> {
        while self.at < self.section_end {
            let record = &self.records[self.at];
            if usize::from(record.thread) != me {
                return Ok(record.thread.into());
            }
            self.step(record)
                .with_context(|| format!("step {} of {}, on thread {me}", self.at + 1, self.records.len()))?;
            if self.at == self.peak_at {
                self.rss_at_live_peak_bytes = self.grown_bytes()?;
            }
            self.at += 1;
        }
        Ok(DIRECTOR)
    }

    fn step(&mut self, record: &Record) -> anyhow::Result<()> {
        let number = self.at as u64;
        let size_bytes = record.size_bytes as usize;
        let place = self.blocks.get_mut(record.address as usize).context("the script names a block that it has not")?;
        let unknown = "the script uses a block that is not alive";
        *place = match record.op {
            Op::Alloc | Op::AllocZeroed => {
                ensure!(place.is_none() && size_bytes > 0, "the script makes a block that is alive, or of no size");
                let layout = Layout::from_size_align(size_bytes, record.align_bytes as usize)?;
                Some(Block::new(layout, record.op == Op::AllocZeroed, number)?)
            }
            Op::ReallocFrom | Op::ReallocTo => {
                ensure!(size_bytes > 0, "the script resizes a block to nothing");
                Some(place.take().context(unknown)?.resize(size_bytes, number)?)
            }
            Op::Free => {
                place.take().context(unknown)?.free()?;
                None
            }
        };
        Ok(())
    }

    /// Growth of anonymous memory since before the first operation.
    fn grown_bytes(&self) -> anyhow::Result<u64> {
        Ok(self.account.resident()?.anonymous_bytes.saturating_sub(self.before.anonymous_bytes))
    }
}
