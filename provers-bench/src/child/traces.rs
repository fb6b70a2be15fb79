//! Traces of allocations, in the child: the recorder, and the replay of a script on real memory.
//!
//! The recorder wraps the system allocator, and records every large request in a buffer that it maps itself. Recording
//! neither allocates nor blocks: a record is one atomic addition and three stores.
//!
//! The replay runs the script's threads on real memory, with the installed allocator. The threads take turns, in the
//! order of the script. Each block is marked, so the replay detects memory that is handed out twice.
#![allow(
    unsafe_code,
    reason = "implements GlobalAlloc, shares a buffer that it cannot allocate, and writes to the measured memory"
)]

use crate::arms::{Counters, Installed};
use crate::machine::process::{Account, Resident};
use crate::protocol::{self, Header, Op, RECORD_WORDS, RSS_AT_LIVE_PEAK, RSS_RELEASED, Record, Shape};
use crate::sample::{Meter, Sample};
use crate::workloads::{Prover, Subject};
use anyhow::{Context, bail, ensure};
use memmap2::MmapOptions;
use std::alloc::{GlobalAlloc, Layout, System, alloc, alloc_zeroed, dealloc, realloc};
use std::cell::Cell;
use std::env;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

/// Environment variables that the driver sets for the recorder's binary: the path and the header of the trace.
pub(crate) const PATH: &str = "PROVE_BENCH_TRACE_PATH";
pub(crate) const HEADER: &str = "PROVE_BENCH_TRACE_HEADER";

/// Size of the trace buffer: address space for 44 million records. Only pages that are written take memory.
const BUFFER_BYTES: usize = 1 << 30;

static SESSION: OnceLock<Session> = OnceLock::new();
/// Number of records begun, including those that are lost because the buffer is full.
static BEGUN: AtomicUsize = AtomicUsize::new(0);
static THREADS: AtomicU16 = AtomicU16::new(0);
/// Twice the number of the current proof, plus one while the proof is running.
static PHASE: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// This thread's number; 0 before its first record.
    static THREAD: Cell<u16> = const { Cell::new(0) };
}

struct Session {
    words: &'static [AtomicU64],
    min_bytes: usize,
}

/// The allocator of the recording binary, which wraps `System` and records large requests.
#[derive(Clone, Copy, Debug)]
pub struct Recorder;

/// Defines the whole binary that records for `prove-bench record`: its allocator wraps `System` and records every large
/// request.
///
/// The driver starts the binary `record`, so its source is `src/bin/record.rs`:
///
/// ```
/// # mod my_prover { pub static PROVERS: &[provers_bench::Prover] = &[]; }
/// provers_bench::recorder!(my_prover::PROVERS);
/// ```
#[macro_export]
macro_rules! recorder {
    ($provers:expr) => {
        #[global_allocator]
        static ALLOCATOR: $crate::child::traces::Recorder = $crate::child::traces::Recorder;

        fn main() -> ::std::process::ExitCode {
            $crate::child::traces::recorder_main($provers)
        }
    };
}

/// The `main` of the recorder's binary, whose global allocator is [`Recorder`].
pub fn recorder_main(provers: &[Prover]) -> ExitCode {
    super::code_of(recorded(provers))
}

fn recorded(provers: &[Prover]) -> anyhow::Result<ExitCode> {
    let variable = |name| env::var(name).with_context(|| format!("{name} is not set: prove-bench record sets it"));
    let (path, header) = (variable(PATH)?, variable(HEADER)?);
    let header: Header = serde_json::from_str(&header).with_context(|| format!("{HEADER} is no header: {header}"))?;
    let min_bytes = header.min_bytes as usize;
    let at = zeroed(BUFFER_BYTES).context("no buffer for the trace")?;
    // SAFETY: the mapping is page aligned, zeroed, `BUFFER_BYTES` long, never unmapped and used by nothing else. Zero
    // is a valid `AtomicU64`.
    let words = unsafe { std::slice::from_raw_parts(at.cast::<AtomicU64>().as_ptr(), BUFFER_BYTES / size_of::<u64>()) };
    SESSION.get_or_init(|| Session { words, min_bytes });
    let code = super::main(provers, installed());

    // Records that begin after this load are not part of the trace.
    let begun = BEGUN.load(Ordering::Acquire);
    let slots = words.chunks_exact(RECORD_WORDS).take(begun);
    let read = |slot: &[AtomicU64]| Record::from_words(std::array::from_fn(|word| slot[word].load(Ordering::Acquire)));
    let whole = slots.clone().filter(|slot| slot[0].load(Ordering::Acquire) != 0).count();
    let header = Header { lost: (begun - whole) as u64, ..header };
    protocol::write(Path::new(&path), &header, slots.filter_map(read))?;
    Ok(code)
}

/// Maps zeroed memory for the harness itself, so that neither the recorded nor the measured allocator serves it. The memory is never
/// unmapped. Only pages that are written take memory.
fn zeroed(bytes: usize) -> anyhow::Result<NonNull<u8>> {
    let map = MmapOptions::new().len(bytes.max(1)).no_reserve_swap().map_anon();
    let mut map = ManuallyDrop::new(map.with_context(|| format!("cannot map {bytes} bytes for the harness"))?);
    NonNull::new(map.as_mut_ptr()).context("the kernel mapped address 0")
}

/// Describes the recorder to the driver. The harness reads the counters just before and just after a proof. The
/// adapters' phase is open between the two reads, so each read marks the beginning or the end of a phase in the trace.
fn installed() -> Installed {
    let counters = || {
        let phase = PHASE.load(Ordering::Relaxed);
        // Odd: a proof has just ended. Even: the next one begins.
        PHASE.store(if phase % 2 == 1 { phase - 1 } else { phase + 3 }, Ordering::Relaxed);
        Counters::new()
    };
    Installed { counters, ..Installed::named("recorder", env!("CARGO_PKG_VERSION"), &["GLIBC_TUNABLES", "MALLOC_"]) }
}

fn record(session: &Session, op: Op, address: *mut u8, size: usize, align: usize) {
    // `AcqRel`, together with the allocator's own locks, ensures that a free gets a lower index than the next allocation at its address.
    // See `Record`.
    let index = BEGUN.fetch_add(1, Ordering::AcqRel);
    let Some(slot) = session.words.get(index * RECORD_WORDS..(index + 1) * RECORD_WORDS) else { return };
    let phase = PHASE.load(Ordering::Relaxed);
    let words = Record {
        op,
        thread: thread_number(),
        proof: phase / 2,
        in_phase: phase % 2 == 1,
        size_bytes: size as u64,
        align_bytes: align as u64,
        address: address.addr() as u64,
    }
    .to_words();
    // The first word is written last: it marks the record as complete.
    for (at, word) in slot.iter().zip(words).rev() {
        at.store(word, Ordering::Release);
    }
}

fn thread_number() -> u16 {
    // A thread-local cell without a destructor is always accessible, so nothing here panics.
    if THREAD.get() == 0 {
        THREAD.set(THREADS.fetch_add(1, Ordering::Relaxed) + 1);
    }
    THREAD.get()
}

fn record_new(op: Op, address: *mut u8, layout: Layout) {
    if let Some(session) = SESSION.get()
        && layout.size() >= session.min_bytes
        && !address.is_null()
    {
        record(session, op, address, layout.size(), layout.align());
    }
}

// SAFETY: every method forwards to `System`. Recording does not touch the memory or change the layout, and never unwinds.
unsafe impl GlobalAlloc for Recorder {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, and `System` has the same contract.
        let at = unsafe { System.alloc(layout) };
        record_new(Op::Alloc, at, layout);
        at
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, and `System` has the same contract.
        let at = unsafe { System.alloc_zeroed(layout) };
        record_new(Op::AllocZeroed, at, layout);
        at
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // Record before the free, because afterwards another thread may get the address and record it first.
        record_new(Op::Free, ptr, layout);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, and `System` has the same contract.
        unsafe { System.dealloc(ptr, layout) };
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let session = SESSION.get().filter(|session| layout.size().max(new_size) >= session.min_bytes);
        if let Some(session) = session {
            record(session, Op::ReallocFrom, ptr, new_size, layout.align());
        }
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, and `System` has the same contract.
        let at = unsafe { System.realloc(ptr, layout, new_size) };
        if let Some(session) = session {
            record(session, Op::ReallocTo, at, new_size, layout.align());
        }
        at
    }
}

/// Opens the script at `path` as a workload whose proof is a replay.
pub(super) fn subject(path: &Path) -> anyhow::Result<Subject> {
    let (header, mut script) = protocol::open(path)?;
    let shape = header.shape.context("this trace was not prepared for a replay")?;
    let records = &*table(shape.records, || {
        let record = script.next().context("the script is shorter than its header says")??;
        let is_known = (1..=shape.threads).contains(&record.thread.into());
        ensure!(is_known, "the script names thread {}, but has {} threads", record.thread, shape.threads);
        Ok(record)
    })?;
    Ok(Box::new(move |_, _, installed, _| Ok((replay(records, shape, installed)?, None))))
}

/// Page size in bytes, the alignment of every mapping.
pub(super) const PAGE_BYTES: usize = 4096;

/// Returns a table of `len` values from `next`. The whole table is resident, and is never unmapped.
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

/// Replays the script: its threads take turns in the script's order. Measures the whole script as one sample.
fn replay(records: &'static [Record], shape: Shape, installed: &Installed) -> anyhow::Result<Sample> {
    let account = Account::open()?;
    let before = account.resident()?;
    let (blocks, peak_at) = (table(shape.blocks, || Ok(None))?, shape.peak_at);
    let play = Mutex::new(Play { records, blocks, peak_at, account, before, rss_at_live_peak_bytes: 0 });
    let play = || play.lock().unwrap_or_else(PoisonError::into_inner);
    thread::scope(|scope| {
        // Starts the script's threads, and creates a function for each that has the thread play the given steps and waits for the result. A
        // thread has two channels: for the steps of its next turn, and for their result. Both have room for one message, so sending
        // allocates nothing.
        let players = (1..=shape.threads).map(|number| {
            let ((turns, next), (end, ended)) = (sync_channel::<Range<usize>>(1), sync_channel(1));
            // The send fails only if the receiver is gone.
            let act = move || next.into_iter().try_for_each(|steps| end.send(play().steps(steps)).ok());
            let thread = thread::Builder::new().spawn_scoped(scope, act);
            thread.with_context(|| format!("cannot start thread {number} of {}", shape.threads))?;
            Ok(move |steps| {
                turns.send(steps).context("a thread of the replay has ended")?;
                ended.recv().context("a thread of the replay has ended")?
            })
        });
        let players = players.collect::<anyhow::Result<Vec<_>>>()?;

        // Give each thread an empty turn, which faults in its stack before the measurement starts.
        players.iter().try_for_each(|player| player(0..0))?;
        let before = play().account.resident()?;
        play().before = before;
        let mut at = 0;
        let meter = Meter::start(installed.counters)?;
        // Two neighbouring records are in the same section if both are in the same phase, or both outside phases.
        let is_one =
            |one: &Record, next: &Record| one.in_phase == next.in_phase && (!one.in_phase || one.proof == next.proof);
        for section in records.chunk_by(is_one) {
            let mut played = Ok(());
            let mut turns = || {
                let mut turns = section.chunk_by(|one, next| one.thread == next.thread);
                played = turns.try_for_each(|turn| {
                    let steps = at..at + turn.len();
                    at = steps.end;
                    players[usize::from(turn[0].thread) - 1](steps)
                });
            };
            if section[0].in_phase {
                (installed.phase)(&mut turns);
            } else {
                turns();
            }
            played?;
        }
        let (mut sample, _) = meter.stop(installed.gauges)?.at_rest(Ok(()))?;
        let play = play();
        let after = play.account.resident()?;
        sample.rss_bytes = play.grown_bytes()?;
        // Excludes the pages of files: code that was faulted in during the replay is not the allocator's memory.
        let peak = sample.peak_rss_bytes.saturating_sub(after.file_bytes + before.anonymous_bytes);
        sample.peak_rss_bytes = peak.max(play.rss_at_live_peak_bytes);
        sample.gauges.insert(RSS_AT_LIVE_PEAK.into(), play.rss_at_live_peak_bytes);
        if let Some(release) = installed.release {
            release();
            sample.gauges.insert(RSS_RELEASED.into(), play.grown_bytes()?);
        }
        Ok(sample)
    })
}

/// The state of the replay, used only by the thread whose turn it is. The measured allocator serves none of the replay's own memory, except
/// the channels' lists of waiting threads.
struct Play {
    records: &'static [Record],
    blocks: &'static mut [Option<Block>],
    peak_at: usize,
    account: Account,
    before: Resident,
    rss_at_live_peak_bytes: u64,
}

impl Play {
    /// Plays these steps, which belong to one thread.
    fn steps(&mut self, steps: Range<usize>) -> anyhow::Result<()> {
        for at in steps {
            let record = &self.records[at];
            let step = self.step(at as u64, record);
            step.with_context(|| format!("step {} of {}, on thread {}", at + 1, self.records.len(), record.thread))?;
            if at == self.peak_at {
                self.rss_at_live_peak_bytes = self.grown_bytes()?;
            }
        }
        Ok(())
    }

    fn step(&mut self, number: u64, record: &Record) -> anyhow::Result<()> {
        let size_bytes = record.size_bytes as usize;
        let place = self.blocks.get_mut(record.address as usize).context("the script names an unknown block")?;
        match (record.op, place.take()) {
            (Op::Alloc | Op::AllocZeroed, None) => {
                let layout = Layout::from_size_align(size_bytes, record.align_bytes as usize)?;
                *place = Some(Block::new(layout, record.op == Op::AllocZeroed, number)?);
            }
            (Op::ReallocTo, Some(block)) => *place = Some(block.resize(size_bytes, number)?),
            (Op::Free, Some(block)) => block.free()?,
            _ => bail!("the script uses a block that is not alive, or allocates one that is"),
        }
        Ok(())
    }

    /// Returns the number of bytes by which anonymous memory has grown since the replay began.
    fn grown_bytes(&self) -> anyhow::Result<u64> {
        Ok(self.account.resident()?.anonymous_bytes.saturating_sub(self.before.anonymous_bytes))
    }
}

/// A block of the installed allocator. Marks at both ends and in every page make it resident, like a block that a
/// program uses. The marks differ between blocks. Dropping a block without [`Block::free`] leaks it.
struct Block {
    at: NonNull<u8>,
    layout: Layout,
    /// The mark bytes; none is 0.
    marks: [u8; 8],
}

// SAFETY: the block has sole ownership of its memory, and `GlobalAlloc` allows any thread to free it.
unsafe impl Send for Block {}

impl Block {
    /// Allocates a block and marks it with `number`.
    fn new(layout: Layout, is_zeroed: bool, number: u64) -> anyhow::Result<Self> {
        ensure!(layout.size() > 0, "the script allocates a block of size 0");
        // SAFETY: the size is not 0.
        let at = unsafe { if is_zeroed { alloc_zeroed(layout) } else { alloc(layout) } };
        let block = Self::placed(at, layout, number)?;
        block.mark(is_zeroed)?;
        Ok(block)
    }

    /// Reallocates the block to `size_bytes` and replaces its marks. Fails if the retained bytes lost their old marks.
    fn resize(self, size_bytes: usize, number: u64) -> anyhow::Result<Self> {
        self.check(usize::MAX, self.layout.size())?;
        let layout = Layout::from_size_align(size_bytes, self.layout.align())?;
        ensure!(size_bytes > 0, "the script resizes a block to size 0");
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

    /// Marks the block; with `is_zeroed`, fails unless the marked bytes were zero. The first access is a write, as in a
    /// real program: a read would cause another page fault.
    fn mark(&self, is_zeroed: bool) -> anyhow::Result<()> {
        let size_bytes = self.layout.size();
        for offset in places(size_bytes) {
            // SAFETY: `places` yields only offsets inside the block.
            let at = unsafe { self.at.add(offset) };
            let found = if is_zeroed {
                // SAFETY: the byte is initialised, and only this block refers to it.
                unsafe { AtomicU8::from_ptr(at.as_ptr()) }.swap(self.marked(offset), Ordering::Relaxed)
            } else {
                // SAFETY: only this block refers to the byte. The write is volatile, so the compiler keeps it even if nothing reads it.
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
            // SAFETY: the offset is inside the block, and `mark` wrote the byte at every such offset.
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
        // Marks differ between neighbouring 256-byte steps and between neighbouring pages, so a page that was copied to the wrong place is
        // detected.
        self.marks[(offset + offset / 256 + offset / 4096) % self.marks.len()]
    }
}

/// Returns the marks of block `number`. The marks of consecutive numbers differ in nearly every byte.
fn marks(number: u64) -> [u8; 8] {
    (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes().map(|byte| byte | 1)
}

/// Yields the offset of each marked byte of a block once: eight bytes at each end, and one in every 256 bytes. Each page has several marks,
/// so an overlapping block probably overwrites one.
fn places(size_bytes: usize) -> impl Iterator<Item = usize> {
    let head = 0..8.min(size_bytes);
    let tail = size_bytes.saturating_sub(8).max(head.end)..size_bytes;
    let steps = (256..tail.start).step_by(256);
    head.chain(steps).chain(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(size_bytes: usize) -> Block {
        Block::new(Layout::from_size_align(size_bytes, 16).unwrap(), false, 3).unwrap()
    }

    /// Without these checks, an allocator that hands out memory twice, or copies a page to a wrong place, would pass the replay.
    #[test]
    fn an_overwritten_block_is_found_when_it_is_freed_or_resized() {
        for (size_bytes, offset) in [(1, 0), (9, 8), (100, 99), (100_000, 8192), (100_000, 99_993)] {
            for end in [Block::free, |block: Block| block.resize(1 << 20, 4).map(drop)] {
                let block = block(size_bytes);
                // SAFETY: the offset is inside the block.
                unsafe { *block.at.as_ptr().add(offset) ^= 2 };
                let text = end(block).unwrap_err().to_string();
                assert!(text.contains(&format!("byte {offset} of {size_bytes} is")), "{text}");
            }
        }
        let block = block(3 * 4096);
        assert_ne!(block.marked(4096), block.marked(2 * 4096), "each page has its own marks");
        let text = block.mark(true).unwrap_err().to_string();
        assert!(text.contains("zeroed memory is not zero: byte 0 of 12288"), "{text}");
        block.free().unwrap();
    }
}
