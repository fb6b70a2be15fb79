//! Prepares a trace for real memory before anything is allocated. Each step names its thread and block, so the replay
//! looks nothing up.
//!
//! A script is itself a trace, with these differences:
//!
//! - The `address` is the number of a block. A number is reused once its block is free.
//! - A `realloc` is the single record `ReallocTo`.
//! - Every block that is freed or resized was allocated before.
//! - Blocks that the trace leaves alive are freed at the end, each by its own thread.

use crate::protocol::Shape;
use crate::protocol::records::{Op, Record, Trace};
use anyhow::{Context, ensure};
use std::alloc::Layout;
use std::collections::HashMap;

/// A prepared trace; see the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Script {
    pub(crate) records: Vec<Record>,
    pub(crate) shape: Shape,
    pub(crate) live_peak_bytes: u64,
}

impl Script {
    /// The script for the blocks of `trace` with at least `min_bytes`.
    pub(crate) fn of(trace: &Trace, min_bytes: u64) -> anyhow::Result<Self> {
        let mut writer = Writer { min_bytes, ..Writer::default() };
        for (index, record) in trace.records.iter().enumerate() {
            writer.take(record).with_context(|| format!("record {index} of the trace can't be replayed"))?;
        }
        Ok(writer.finish())
    }
}

/// A live block at this point of the trace.
#[derive(Clone, Copy)]
struct Live {
    number: u64,
    size_bytes: u64,
    align_bytes: u64,
    /// The thread that allocated it, in the script's numbering.
    thread: u16,
}

#[derive(Default)]
struct Writer {
    script: Script,
    min_bytes: u64,
    /// Live blocks, by their address in the recording process.
    live: HashMap<u64, Live>,
    live_bytes: u64,
    /// Blocks whose `realloc` began, by thread: the old address, and the block if it is known.
    moving: HashMap<u16, (u64, Option<Live>)>,
    free_numbers: Vec<u64>,
    threads: HashMap<u16, u16>,
}

impl Writer {
    fn take(&mut self, record: &Record) -> anyhow::Result<()> {
        let thread = self.thread(record.thread)?;
        let step = Record { thread, ..*record };
        match record.op {
            Op::Alloc | Op::AllocZeroed => self.allocate(step)?,
            // Blocks older than the recorder, or below the replayed sizes, are unknown.
            Op::Free => {
                if let Some(block) = self.live.remove(&record.address) {
                    self.free(step, block);
                }
            }
            Op::ReallocFrom => {
                self.moving.insert(record.thread, (record.address, self.live.remove(&record.address)));
            }
            Op::ReallocTo => match (self.moving.remove(&record.thread), record.address) {
                (None, _) | (Some((_, None)), 0) => {}
                // The `realloc` failed in the recording, so the block stayed in place.
                (Some((before, Some(block))), 0) => _ = self.live.insert(before, block),
                (Some((_, None)), _) => self.allocate(Record { op: Op::Alloc, ..step })?,
                (Some((_, Some(block))), _) => self.resize(step, block)?,
            },
        }
        Ok(())
    }

    fn allocate(&mut self, step: Record) -> anyhow::Result<()> {
        let Record { size_bytes, align_bytes, thread, address, .. } = step;
        if size_bytes < self.min_bytes {
            return Ok(());
        }
        check(size_bytes, align_bytes)?;
        let number = self.free_numbers.pop().unwrap_or(self.script.shape.blocks as u64);
        self.script.shape.blocks = self.script.shape.blocks.max(number as usize + 1);
        self.write(Record { address: number, ..step }, self.live_bytes + size_bytes);
        if let Some(lost) = self.live.insert(address, Live { number, size_bytes, align_bytes, thread }) {
            // The address was handed out again, so the free of its earlier block was lost.
            self.free(step, lost);
        }
        Ok(())
    }

    fn resize(&mut self, step: Record, block: Live) -> anyhow::Result<()> {
        let Record { size_bytes, thread, address, .. } = step;
        if size_bytes < self.min_bytes {
            self.free(step, block);
            return Ok(());
        }
        check(size_bytes, block.align_bytes)?;
        let live_bytes = self.live_bytes - block.size_bytes + size_bytes;
        self.write(Record { address: block.number, align_bytes: block.align_bytes, ..step }, live_bytes);
        if let Some(lost) = self.live.insert(address, Live { size_bytes, thread, ..block }) {
            self.free(step, lost);
        }
        Ok(())
    }

    fn free(&mut self, step: Record, block: Live) {
        let Live { number, size_bytes, align_bytes, .. } = block;
        self.free_numbers.push(number);
        let live_bytes = self.live_bytes - size_bytes;
        self.write(Record { op: Op::Free, address: number, size_bytes, align_bytes, ..step }, live_bytes);
    }

    /// Adds a record, after which `live_bytes` are alive.
    fn write(&mut self, record: Record, live_bytes: u64) {
        self.live_bytes = live_bytes;
        if live_bytes > self.script.live_peak_bytes {
            self.script.live_peak_bytes = live_bytes;
            self.script.shape.peak_at = self.script.records.len();
        }
        self.script.records.push(record);
    }

    /// Frees all remaining live blocks after the last phase.
    fn finish(mut self) -> Script {
        let mut left: Vec<_> = self.live.drain().map(|(_, block)| block).collect();
        left.extend(self.moving.drain().filter_map(|(_, (_, block))| block));
        // Sorted so that each thread frees its blocks in one turn.
        left.sort_unstable_by_key(|block| (block.thread, block.number));
        if let Some(&last) = self.script.records.last() {
            for block in left {
                self.free(Record { thread: block.thread, in_phase: false, ..last }, block);
            }
        }
        let (records, threads) = (self.script.records.len(), self.threads.len());
        Script { shape: Shape { records, threads, ..self.script.shape }, ..self.script }
    }

    /// Numbers threads from 1 in the order of their first records, regardless of their numbers in the trace.
    fn thread(&mut self, recorded: u16) -> anyhow::Result<u16> {
        let next = u16::try_from(self.threads.len() + 1).context("more threads than a script can number")?;
        Ok(*self.threads.entry(recorded).or_insert(next))
    }
}

/// Fails for a request that no allocator may receive.
fn check(size_bytes: u64, align_bytes: u64) -> anyhow::Result<()> {
    let possible = size_bytes > 0 && Layout::from_size_align(size_bytes as usize, align_bytes as usize).is_ok();
    ensure!(possible, "{size_bytes} bytes aligned to {align_bytes} are no request that an allocator may get");
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::protocol::records::{self, Header};

    /// A record from `(operation, thread, address, size)` in the phase of a proof; phase 0 is outside any phase.
    fn record((op, thread, address, size_bytes): (Op, u16, u64, u64), phase: u32) -> Record {
        let in_phase = phase > 0;
        Record { op, thread, proof: phase, in_phase, size_bytes, align_bytes: 8, address, time_ns: 0 }
    }

    /// A trace of one phase.
    pub(crate) fn phase(operations: &[(Op, u16, u64, u64)]) -> Trace {
        trace(&operations.iter().map(|&operation| record(operation, 1)).collect::<Vec<_>>())
    }

    fn trace(records: &[Record]) -> Trace {
        Trace { header: Header::new("by hand".into(), 64, 0), records: records.to_vec() }
    }

    fn steps(trace: &Trace, min_bytes: u64) -> Vec<(Op, u16, u64, u64)> {
        let script = Script::of(trace, min_bytes).unwrap();
        script.records.iter().map(|step| (step.op, step.thread, step.address, step.size_bytes)).collect()
    }

    /// A block freed twice, or resized after its free, would be an error of the replay and not of the allocator.
    #[test]
    fn every_block_is_made_once_and_freed_once() {
        use Op::{Alloc, AllocZeroed, Free, ReallocFrom, ReallocTo};
        let recorded = phase(&[
            (Free, 7, 900, 100),
            (Alloc, 7, 800, 100),
            (ReallocFrom, 7, 800, 200),
            // Another thread gets the address before the first thread records the new place of its block.
            (AllocZeroed, 9, 800, 300),
            (ReallocTo, 7, 700, 200),
            (ReallocFrom, 9, 600, 400),
            (ReallocTo, 9, 600, 400),
            (Free, 9, 700, 200),
            // The free of the earlier block at this address was lost.
            (Alloc, 7, 600, 500),
            // This `realloc` failed.
            (ReallocFrom, 7, 600, 1 << 50),
            (ReallocTo, 7, 0, 1 << 50),
        ]);
        let expected = [
            (Alloc, 1, 0, 100),
            (AllocZeroed, 2, 1, 300),
            (ReallocTo, 1, 0, 200),
            (Alloc, 2, 2, 400),
            (Free, 2, 0, 200),
            (Alloc, 1, 0, 500),
            (Free, 1, 2, 400),
            (Free, 1, 0, 500),
            (Free, 2, 1, 300),
        ];
        assert_eq!(steps(&recorded, 64), expected);
        let script = Script::of(&recorded, 64).unwrap();
        assert_eq!(script.shape, Shape { records: 9, blocks: 3, threads: 2, peak_at: 5 });
        assert_eq!(script.live_peak_bytes, 1200);
    }

    #[test]
    fn blocks_below_the_threshold_are_not_replayed_while_they_are() {
        use Op::{Alloc, Free, ReallocFrom, ReallocTo};
        let recorded = phase(&[
            (Alloc, 1, 1, 100),
            (ReallocFrom, 1, 1, 3000),
            (ReallocTo, 1, 2, 3000),
            (ReallocFrom, 1, 2, 200),
            (ReallocTo, 1, 2, 200),
            (Free, 1, 2, 200),
        ]);
        assert_eq!(steps(&recorded, 1024), [(Alloc, 1, 0, 3000), (Free, 1, 0, 3000)]);
    }

    /// Each proof's phase must be opened and closed separately, even if nothing was recorded between two phases.
    #[test]
    fn sections_end_where_phases_do() {
        let alloc = |address, phase| record((Op::Alloc, 1, address, 100), phase);
        let recorded = trace(&[alloc(1, 0), alloc(2, 1), alloc(3, 1), alloc(4, 2), alloc(5, 0)]);
        let script = Script::of(&recorded, 64).unwrap();
        let lengths: Vec<_> = records::sections(&script.records).map(<[Record]>::len).collect();
        assert_eq!(lengths, [1, 2, 1, 6]);
    }

    #[test]
    fn a_request_that_no_allocator_may_get_is_refused_with_its_place() {
        let error = Script::of(&phase(&[(Op::Alloc, 1, 1, u64::MAX)]), 64).unwrap_err();
        assert!(format!("{error:#}").starts_with("record 0 of the trace can't be replayed: "), "{error:#}");
    }
}
