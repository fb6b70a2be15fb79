//! The replaying process: the script's threads, on real memory, under the installed allocator. Threads take turns, in
//! the order of the script. Each block is marked, so that a block that is handed out twice is found.
#![allow(unsafe_code, reason = "calls the measured allocator, and writes to its memory")]

use super::recorder::zeroed;
use crate::arms::Installed;
use crate::machine::process::{Account, Resident};
use crate::protocol::records::{self, Op, Record};
use crate::protocol::{Replayed, Shape};
use crate::sample::Meter;
use anyhow::{Context, ensure};
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, realloc};
use std::hint;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// The thread that opens phases and measures memory. The script's threads are numbered from 1.
const DIRECTOR: usize = 0;
/// The holder after the last turn.
const OVER: usize = usize::MAX;
/// Checks for the turn before a thread sleeps: some microseconds. The turns of a prover's threads are that short, and
/// waking a thread takes longer.
const SPINS: u32 = 200;

/// Replays the script at `path`.
pub(crate) fn replay(path: &Path, shape: Shape, installed: &Installed) -> anyhow::Result<Replayed> {
    let mut reader = records::open(path)?;
    let records = table(shape.records, || {
        let record = reader.record()?.context("the script is shorter than its driver says")?;
        let is_known = (1..=shape.threads).contains(&record.thread.into());
        ensure!(is_known, "thread {} of the script is none of its {}", record.thread, shape.threads);
        Ok(record)
    })?;
    drop(reader);
    let account = Account::open()?;
    let before = account.resident()?;
    let blocks = table(shape.blocks, || Ok(None))?;
    let (peak_at, at, section_end, failure, rss_at_live_peak_bytes) = (shape.peak_at, 0, 0, None, 0);
    let play = Play { records, blocks, peak_at, account, before, at, section_end, failure, rss_at_live_peak_bytes };
    let wake = (0..=shape.threads).map(|_| Condvar::new()).collect();
    let stage = &Stage { holder: AtomicUsize::new(DIRECTOR), wake, play: Mutex::new(play) };
    thread::scope(|scope| {
        let started = (1..=shape.threads).try_for_each(|me| {
            let thread = thread::Builder::new().spawn_scoped(scope, move || stage.act(me));
            thread.map(drop).with_context(|| format!("cannot start thread {me} of {}", shape.threads))
        });
        let replayed = started.and_then(|()| stage.direct(shape, installed));
        stage.pass(OVER, stage.play());
        replayed
    })
}

/// The alignment of every mapping.
const PAGE_BYTES: usize = 4096;

/// A table of `len` values that is never unmapped. Each value comes from `next`. The whole table is resident from now
/// on.
fn table<T>(len: usize, mut next: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<&'static mut [T]> {
    const { assert!(align_of::<T>() <= PAGE_BYTES && size_of::<T>() > 0) };
    let bytes = len.checked_mul(size_of::<T>()).with_context(|| format!("a table of {len} entries is too large"))?;
    let start = zeroed(bytes)?.cast::<T>();
    for index in 0..len {
        let value = next()?;
        // SAFETY: `index` is below `len`, so the slot is inside the mapping, which is aligned for `T` and used by
        // nothing else.
        unsafe { start.add(index).write(value) };
    }
    // SAFETY: all `len` values were just written. Nothing else refers to the mapping, which is never unmapped.
    Ok(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) })
}

/// The threads, and the state of the replay. The thread that holds the turn has the lock.
struct Stage {
    holder: AtomicUsize,
    /// Wakes each thread, by number.
    wake: Vec<Condvar>,
    play: Mutex<Play>,
}

impl Stage {
    /// Waits for the turn of thread `me`. Returns `None` after the last turn.
    fn wait(&self, me: usize) -> Option<MutexGuard<'_, Play>> {
        let is_waiting = || ![me, OVER].contains(&self.holder.load(Ordering::Acquire));
        (0..SPINS).take_while(|_| is_waiting()).for_each(|_| hint::spin_loop());
        let play = self.wake[me].wait_while(self.play(), |_| is_waiting()).unwrap_or_else(PoisonError::into_inner);
        (self.holder.load(Ordering::Acquire) == me).then_some(play)
    }

    /// Passes the turn on. The caller has the lock, so the next thread either sleeps already or sees its turn.
    fn pass(&self, next: usize, play: MutexGuard<'_, Play>) {
        self.holder.store(next, Ordering::Release);
        drop(play);
        match self.wake.get(next) {
            Some(wake) => wake.notify_one(),
            None => self.wake.iter().for_each(Condvar::notify_one),
        }
    }

    fn play(&self) -> MutexGuard<'_, Play> {
        self.play.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The main loop of the script's thread `me`.
    fn act(&self, me: usize) {
        while let Some(mut play) = self.wait(me) {
            self.pass(play.turn(me), play);
        }
    }

    /// Plays the script up to record `end`, starting on thread `first`.
    fn section(&self, first: usize, end: usize) {
        let mut play = self.play();
        play.section_end = end;
        self.pass(first, play);
        self.wait(DIRECTOR);
    }

    /// Plays the whole script.
    fn direct(&self, shape: Shape, installed: &Installed) -> anyhow::Result<Replayed> {
        // An empty section for each thread faults in its stack before the measurement starts.
        (1..=shape.threads).for_each(|thread| self.section(thread, 0));
        let records = self.play().records;
        let before = self.play().account.resident()?;
        self.play().before = before;
        let mut end = 0;
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
        }
        let mut sample = meter.stop(installed.gauges)?.at_rest(Ok(()))?.0;
        let play = self.play();
        let after = play.account.resident()?;
        sample.rss_bytes = play.grown_bytes()?;
        let rss_at_live_peak_bytes = play.rss_at_live_peak_bytes;
        // Code that was faulted in during the replay does not count as the allocator's memory.
        let peak = sample.peak_rss_bytes.saturating_sub(after.file_bytes + before.anonymous_bytes);
        sample.peak_rss_bytes = peak.max(rss_at_live_peak_bytes);
        let released = installed.release.map(|release| {
            release();
            play.grown_bytes()
        });
        Ok(Replayed { sample, rss_at_live_peak_bytes, rss_released_bytes: released.transpose()? })
    }
}

/// The state that the acting thread works on. The measured allocator serves none of this memory.
struct Play {
    records: &'static [Record],
    blocks: &'static mut [Option<Block>],
    peak_at: usize,
    account: Account,
    before: Resident,
    /// The next record, and the first record after this section.
    at: usize,
    section_end: usize,
    /// The error that ended the replay.
    failure: Option<anyhow::Error>,
    rss_at_live_peak_bytes: u64,
}

impl Play {
    /// Plays the next records of thread `me`, and returns the thread that has the next turn.
    fn turn(&mut self, me: usize) -> usize {
        self.steps(me).unwrap_or_else(|error| {
            self.failure = Some(error);
            DIRECTOR
        })
    }

    fn steps(&mut self, me: usize) -> anyhow::Result<usize> {
        while self.at < self.section_end {
            let at = self.at;
            let record = &self.records[at];
            if usize::from(record.thread) != me {
                return Ok(record.thread.into());
            }
            self.step(record).with_context(|| format!("step {} of {}, on thread {me}", at + 1, self.records.len()))?;
            if at == self.peak_at {
                self.rss_at_live_peak_bytes = self.grown_bytes()?;
            }
            self.at += 1;
        }
        Ok(DIRECTOR)
    }

    fn step(&mut self, record: &Record) -> anyhow::Result<()> {
        let (number, size_bytes) = (self.at as u64, record.size_bytes as usize);
        let place = self.blocks.get_mut(record.address as usize).context("the script names a block that it has not")?;
        let unknown = "the script uses a block that is not alive";
        *place = match record.op {
            Op::Alloc | Op::AllocZeroed => {
                ensure!(place.is_none(), "the script makes a block that is alive");
                let layout = Layout::from_size_align(size_bytes, record.align_bytes as usize)?;
                Some(Block::new(layout, record.op == Op::AllocZeroed, number)?)
            }
            Op::ReallocFrom | Op::ReallocTo => Some(place.take().context(unknown)?.resize(size_bytes, number)?),
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

/// A block of the installed allocator. It has marks at both ends and in every page, so that it is resident like a
/// program's block. Each block has other marks. Dropping it without [`Block::free`] leaks it.
struct Block {
    at: NonNull<u8>,
    layout: Layout,
    /// The mark bytes; none is 0.
    marks: [u8; 8],
}

// SAFETY: only the block refers to its memory, and an allocator can free on any thread.
unsafe impl Send for Block {}

impl Block {
    /// A block that is marked with `number`.
    fn new(layout: Layout, is_zeroed: bool, number: u64) -> anyhow::Result<Self> {
        ensure!(layout.size() > 0, "the script makes a block of no size");
        // SAFETY: the size is not 0.
        let at = unsafe { if is_zeroed { alloc_zeroed(layout) } else { alloc(layout) } };
        let block = Self::placed(at, layout, number)?;
        block.mark(is_zeroed)?;
        Ok(block)
    }

    /// The block after a `realloc` to `size_bytes`, with new marks. Fails if the retained bytes lost their old marks.
    fn resize(self, size_bytes: usize, number: u64) -> anyhow::Result<Self> {
        self.check(usize::MAX, self.layout.size())?;
        let layout = Layout::from_size_align(size_bytes, self.layout.align())?;
        ensure!(size_bytes > 0, "the script resizes a block to nothing");
        // SAFETY: the installed allocator returned the block with this layout, and nothing refers to the old block
        // afterwards. The new size is not 0, and fits the alignment.
        let at = unsafe { realloc(self.at.as_ptr(), self.layout, size_bytes) };
        let moved = Self { marks: self.marks, ..Self::placed(at, layout, number)? };
        moved.check(size_bytes, self.layout.size())?;
        let block = Self { marks: marks(number), ..moved };
        block.mark(false)?;
        Ok(block)
    }

    /// Frees the block. Fails if its marks changed.
    fn free(self) -> anyhow::Result<()> {
        self.check(usize::MAX, self.layout.size())?;
        // SAFETY: the installed allocator returned the block with this layout, and this call consumes it.
        unsafe { dealloc(self.at.as_ptr(), self.layout) };
        Ok(())
    }

    fn placed(at: *mut u8, layout: Layout, number: u64) -> anyhow::Result<Self> {
        let (size_bytes, align_bytes) = (layout.size(), layout.align());
        let at = NonNull::new(at);
        let at = at.with_context(|| format!("{size_bytes} bytes aligned to {align_bytes} were refused"))?;
        let address = at.addr().get();
        ensure!(
            address.is_multiple_of(align_bytes),
            "a block is at {address:#x}, which is not aligned to {align_bytes}"
        );
        Ok(Self { at, layout, marks: marks(number) })
    }

    /// Marks the block; with `is_zeroed`, it must be all zeros. The first access is a write, as in a real program: a
    /// read would cause another page fault.
    fn mark(&self, is_zeroed: bool) -> anyhow::Result<()> {
        let size_bytes = self.layout.size();
        for offset in places(size_bytes) {
            // SAFETY: `places` are inside the block.
            let at = unsafe { self.at.add(offset) };
            let found = if is_zeroed {
                // SAFETY: the byte is initialised, and only this block refers to it.
                unsafe { AtomicU8::from_ptr(at.as_ptr()) }.swap(self.marked(offset), Ordering::Relaxed)
            } else {
                // SAFETY: only this block refers to the byte. Volatile, because nothing may ever read it.
                unsafe { at.write_volatile(self.marked(offset)) };
                0
            };
            ensure!(found == 0, "zeroed memory is not zero: byte {offset} of {size_bytes} is {found:#04x}");
        }
        Ok(())
    }

    /// Checks the marks in the first `kept_bytes` of a block that had `size_bytes` when it was marked.
    fn check(&self, kept_bytes: usize, size_bytes: usize) -> anyhow::Result<()> {
        for offset in places(size_bytes).filter(|offset| *offset < kept_bytes) {
            // SAFETY: the offset is below the block's size, and `mark` wrote every place below it.
            let found = unsafe { self.at.add(offset).read_volatile() };
            let marked = self.marked(offset);
            ensure!(
                found == marked,
                "a block was overwritten while it was alive, or not copied when it moved: byte {offset} of \
                 {size_bytes} is {found:#04x}, and was marked {marked:#04x}"
            );
        }
        Ok(())
    }

    fn marked(&self, offset: usize) -> u8 {
        // Marks differ between steps and between pages, so a page that was copied to the wrong place is found.
        self.marks[(offset + offset / 256 + offset / 4096) % self.marks.len()]
    }
}

/// Consecutive numbers have marks that differ in nearly every byte.
fn marks(number: u64) -> [u8; 8] {
    (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes().map(|byte| byte | 1)
}

/// The marked bytes of a block, each once: eight at each end, and one in 256. A page has several, so that a block inside
/// another one probably hits one.
fn places(size_bytes: usize) -> impl Iterator<Item = usize> {
    let head = 0..8.min(size_bytes);
    let tail = size_bytes.saturating_sub(8).max(head.end)..size_bytes;
    let steps = (256..tail.start).step_by(256);
    head.chain(steps).chain(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_holds_what_it_was_given_and_an_error_ends_it() {
        let mut count = 0_u64;
        let mut next = || {
            count += 1;
            anyhow::Ok(count)
        };
        assert_eq!(table(3, &mut next).unwrap(), [1, 2, 3]);
        assert!(table(0, next).unwrap().is_empty());
        assert!(table::<u64>(3, || anyhow::bail!("no more")).is_err());
    }

    fn block(size_bytes: usize, is_zeroed: bool) -> Block {
        Block::new(Layout::from_size_align(size_bytes, 16).unwrap(), is_zeroed, 3).unwrap()
    }

    fn overwrite(block: &Block, offset: usize) {
        assert!(offset < block.layout.size());
        // SAFETY: inside the block.
        unsafe { *block.at.as_ptr().add(offset) ^= 2 };
    }

    /// Without this check, an allocator that hands out memory twice would pass the replay.
    #[test]
    fn an_overwritten_block_is_found_when_it_is_freed_or_resized() {
        for (size_bytes, offset) in [(1, 0), (9, 8), (100, 99), (100_000, 8192), (100_000, 99_993)] {
            for is_zeroed in [false, true] {
                let (freed, resized) = (block(size_bytes, is_zeroed), block(size_bytes, is_zeroed));
                overwrite(&freed, offset);
                overwrite(&resized, offset);
                for result in [freed.free(), resized.resize(1 << 20, 4).map(drop)] {
                    let text = result.unwrap_err().to_string();
                    assert!(text.contains(&format!("byte {offset} of {size_bytes} is")), "{text}");
                }
            }
        }
    }

    #[test]
    fn an_untouched_block_survives_growth_and_shrinking() {
        for sizes in [[1, 7, 8], [64, 100_000, 65], [4096, 4097, 8192], [5 << 20, 9 << 20, 1]] {
            let mut block = block(sizes[0], true);
            for size_bytes in sizes {
                block = block.resize(size_bytes, size_bytes as u64).unwrap();
            }
            block.free().unwrap();
        }
    }

    /// `realloc` must copy every page. A page that stays behind or lands elsewhere must be found.
    #[test]
    fn every_page_of_a_block_has_its_own_marks() {
        for size_bytes in [1, 4096, 8200, 12_289] {
            let offsets: Vec<_> = places(size_bytes).collect();
            assert!(offsets.is_sorted_by(|one, next| one < next), "each once: {offsets:?}");
            assert!(offsets.windows(2).all(|pair| pair[1] - pair[0] <= 256), "{offsets:?}");
        }
        let block = block(3 * 4096, true);
        assert_ne!(block.marked(4096), block.marked(2 * 4096));
        block.free().unwrap();
    }

    #[test]
    fn memory_that_is_not_zeroed_is_found() {
        let block = block(10_000, false);
        let text = block.mark(true).unwrap_err().to_string();
        assert!(text.contains("not zero: byte 0 of 10000"), "{text}");
        block.free().unwrap();
    }
}
