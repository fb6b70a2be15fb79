//! The recorder: the system allocator, which also records every large request, in a buffer that the recorder maps
//! itself.
//!
//! Nothing here allocates or blocks: a record is one atomic addition and four stores.
#![allow(unsafe_code, reason = "implements GlobalAlloc, and shares the buffer that it cannot allocate")]

use crate::arms::{Counters, Installed};
use crate::protocol::records::{self, Header, Op, RECORD_WORDS, Record};
use crate::workloads::Prover;
use anyhow::{Context, ensure};
use memmap2::MmapOptions;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::env;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::process::ExitCode;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// Variables that the driver sets for the recorder's binary: the path of its trace, the title, and the smallest request
/// to record.
pub(crate) const PATH: &str = "PROVE_BENCH_TRACE_PATH";
pub(crate) const TITLE: &str = "PROVE_BENCH_TRACE_TITLE";
pub(crate) const MIN_BYTES: &str = "PROVE_BENCH_TRACE_MIN_BYTES";

/// Address space for 33 million records. Only written pages take memory.
const BUFFER_BYTES: usize = 1 << 30;

static SESSION: OnceLock<Session> = OnceLock::new();
static RECORDING: AtomicBool = AtomicBool::new(false);
/// Records begun. Records beyond the buffer's end are lost, but still counted.
static BEGUN: AtomicUsize = AtomicUsize::new(0);
static THREADS: AtomicU16 = AtomicU16::new(0);
/// Twice the number of the proof, plus one while it is being made.
static PHASE: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// This thread's number; 0 before its first record.
    static THREAD: Cell<u16> = const { Cell::new(0) };
}

struct Session {
    words: &'static [AtomicU64],
    min_bytes: usize,
    start: Instant,
}

/// The allocator of the recording binary: `System`, which also records large requests.
#[derive(Clone, Copy, Debug)]
pub struct Recorder;

/// The whole of the binary that records for `prove-bench record`: the system allocator, which also records every large
/// request.
///
/// The driver starts the binary `record`, which is `src/bin/record.rs`:
///
/// ```
/// # mod my_prover { pub static PROVERS: &[provers_bench::Prover] = &[]; }
/// provers_bench::recorder!(my_prover::PROVERS);
/// ```
#[macro_export]
macro_rules! recorder {
    ($provers:expr) => {
        #[global_allocator]
        static ALLOCATOR: $crate::child::recorder::Recorder = $crate::child::recorder::Recorder;

        fn main() -> ::std::process::ExitCode {
            $crate::child::recorder::main($provers)
        }
    };
}

/// The `main` of the recorder's binary, whose global allocator is [`Recorder`].
pub fn main(provers: &[Prover]) -> ExitCode {
    recorded(provers).unwrap_or_else(|error| {
        eprintln!("{error:#}");
        ExitCode::FAILURE
    })
}

fn recorded(provers: &[Prover]) -> anyhow::Result<ExitCode> {
    let variable = |name| env::var(name).with_context(|| format!("{name} is not set: prove-bench record sets it"));
    let (path, title, min_bytes) = (variable(PATH)?, variable(TITLE)?, variable(MIN_BYTES)?);
    let min_bytes = min_bytes.parse().with_context(|| format!("{MIN_BYTES} is no number: {min_bytes}"))?;
    let at = zeroed(BUFFER_BYTES).context("no buffer for the trace")?;
    // SAFETY: the mapping is page aligned, zeroed, `BUFFER_BYTES` long, never unmapped and used by nothing else. Zero
    // is a valid `AtomicU64`.
    let words = unsafe { std::slice::from_raw_parts(at.cast::<AtomicU64>().as_ptr(), BUFFER_BYTES / size_of::<u64>()) };
    let is_first = SESSION.set(Session { words, min_bytes, start: Instant::now() }).is_ok();
    ensure!(is_first, "the recorder was started twice");
    RECORDING.store(true, Ordering::Release);
    let code = super::main(provers, installed());
    RECORDING.store(false, Ordering::Release);

    let begun = BEGUN.load(Ordering::Acquire);
    let slots = words.chunks_exact(RECORD_WORDS).take(begun);
    let read = |slot: &[AtomicU64]| Record::from_words(std::array::from_fn(|word| slot[word].load(Ordering::Acquire)));
    let whole = slots.clone().filter(|slot| slot[0].load(Ordering::Acquire) != 0).count();
    let header = Header::new(title, min_bytes as u64, (begun - whole) as u64);
    records::write(Path::new(&path), &header, slots.filter_map(read))?;
    Ok(code)
}

/// Zeroed memory that the harness maps for itself, because the recorded or measured allocator must not serve it. It is
/// never unmapped. Only written pages take memory.
pub(super) fn zeroed(bytes: usize) -> anyhow::Result<NonNull<u8>> {
    let map = MmapOptions::new().len(bytes.max(1)).no_reserve_swap().map_anon();
    let mut map = ManuallyDrop::new(map.with_context(|| format!("cannot map {bytes} bytes for the harness"))?);
    NonNull::new(map.as_mut_ptr()).context("the kernel mapped address 0")
}

/// The description that the recorder's binary sends to the driver. The harness reads counters right before a proof and
/// right after it. The adapters' phase is open between these reads, so each read tells the trace that the phase begins
/// or ends.
fn installed() -> Installed {
    let counters = || {
        let phase = PHASE.load(Ordering::Relaxed);
        // Odd: a proof has just ended. Even: the next one begins.
        PHASE.store(if phase % 2 == 1 { phase - 1 } else { phase + 3 }, Ordering::Relaxed);
        Counters::new()
    };
    Installed { counters, ..Installed::named("recorder", env!("CARGO_PKG_VERSION"), &["GLIBC_TUNABLES", "MALLOC_"]) }
}

#[inline]
fn session() -> Option<&'static Session> {
    if RECORDING.load(Ordering::Acquire) { SESSION.get() } else { None }
}

fn record(session: &Session, op: Op, address: *mut u8, size: usize, align: usize) {
    // Ordered against the allocator's own locks: see `Record`.
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
        time_ns: session.start.elapsed().as_nanos() as u64,
    }
    .to_words();
    // The first word is written last: it marks the record as complete.
    for (at, word) in slot.iter().zip(words).rev() {
        at.store(word, Ordering::Release);
    }
}

fn thread_number() -> u16 {
    let number = |thread: &Cell<u16>| {
        if thread.get() == 0 {
            thread.set(THREADS.fetch_add(1, Ordering::Relaxed) + 1);
        }
        thread.get()
    };
    // A cell without a destructor is always accessible.
    THREAD.try_with(number).unwrap_or(0)
}

fn record_new(op: Op, address: *mut u8, layout: Layout) {
    if let Some(session) = session()
        && layout.size() >= session.min_bytes
        && !address.is_null()
    {
        record(session, op, address, layout.size(), layout.align());
    }
}

// SAFETY: `System` does all the work. Recording touches neither the memory nor the layout, and never unwinds.
unsafe impl GlobalAlloc for Recorder {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's obligations are the same.
        let at = unsafe { System.alloc(layout) };
        record_new(Op::Alloc, at, layout);
        at
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's obligations are the same.
        let at = unsafe { System.alloc_zeroed(layout) };
        record_new(Op::AllocZeroed, at, layout);
        at
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // Recorded before the free: afterwards another thread may get the address and record it first.
        record_new(Op::Free, ptr, layout);
        // SAFETY: the caller's obligations are the same.
        unsafe { System.dealloc(ptr, layout) };
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let session = session().filter(|session| layout.size().max(new_size) >= session.min_bytes);
        if let Some(session) = session {
            record(session, Op::ReallocFrom, ptr, new_size, layout.align());
        }
        // SAFETY: the caller's obligations are the same.
        let at = unsafe { System.realloc(ptr, layout, new_size) };
        if let Some(session) = session {
            record(session, Op::ReallocTo, at, new_size, layout.align());
        }
        at
    }
}
