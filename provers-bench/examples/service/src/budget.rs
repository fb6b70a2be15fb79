//! The budget of a worker: a limit of the kernel, and a report when an allocation fails because of it.
//!
//! The limit is `RLIMIT_DATA`, on all private writable memory of the process. If the kernel refuses memory to the arena, the
//! backing allocator gets the request, and is refused as well. Its null pointer comes here.
#![allow(unsafe_code, reason = "implements GlobalAlloc")]

use std::alloc::{GlobalAlloc, Layout};
use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

use crate::bytes::Shown;
use crate::memory::kib_field;
use crate::worker::{Figures, Said, Tell};

/// The budget of this process; 0 if it has none.
static BUDGET_BYTES: AtomicUsize = AtomicUsize::new(0);
static IS_REPORTING: AtomicBool = AtomicBool::new(false);

/// The memory of a worker when the system refused a request. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The limit on mapped memory.
    pub budget_bytes: usize,
    /// The request that was refused.
    pub refused_bytes: usize,
    /// The mapped memory that counts against the limit.
    pub mapped_bytes: usize,
    /// In use in the arena.
    pub live_bytes: usize,
    /// Free in the arena, and resident.
    pub retained_bytes: usize,
    /// Requests of the arena that the backing allocator served since the worker started.
    pub overflow_bytes: u64,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [budget, refused, mapped, live, retained] =
            [self.budget_bytes, self.refused_bytes, self.mapped_bytes, self.live_bytes, self.retained_bytes].map(Shown);
        write!(
            f,
            "the system refused {refused}, with {mapped} of {budget} mapped; {live} were in use in the arena, and \
             {retained} free there"
        )
    }
}

/// Sets the budget of this process. From now on, a refused request ends it with a report on standard output.
///
/// # Errors
/// The system's, if it refuses the limit.
pub fn set(bytes: usize) -> anyhow::Result<()> {
    let limit = |bytes: usize| Rlimit { current: Some(bytes as u64), maximum: getrlimit(Resource::Data).maximum };
    setrlimit(Resource::Data, limit(bytes))
        .with_context(|| format!("limiting the data of a worker to {bytes} bytes"))?;
    // A worker over its budget aborts, and a core file would have the whole budget in it.
    let no_core = Rlimit { current: Some(0), maximum: getrlimit(Resource::Core).maximum };
    setrlimit(Resource::Core, no_core).context("turning core files off")?;
    BUDGET_BYTES.store(bytes, Ordering::Relaxed);
    Ok(())
}

/// An allocator that reports a refused request, if this process has a budget.
#[derive(Debug)]
pub struct Budgeted<A>(pub A);

impl<A> Budgeted<A> {
    #[inline]
    fn checked(at: *mut u8, size: usize) -> *mut u8 {
        if at.is_null() {
            refused(size);
        }
        at
    }
}

// SAFETY: all memory is `A`'s. A request that `A` refuses is either passed on as refused, or ends the process.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Budgeted<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's.
        Self::checked(unsafe { self.0.alloc(layout) }, layout.size())
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's.
        Self::checked(unsafe { self.0.alloc_zeroed(layout) }, layout.size())
    }

    #[inline]
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { self.0.dealloc(ptr, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller's.
        Self::checked(unsafe { self.0.realloc(ptr, layout, new_size) }, new_size)
    }
}

/// Reports a refused request and aborts, if this process has a budget. Allocates nothing.
#[cold]
fn refused(bytes: usize) {
    let budget_bytes = BUDGET_BYTES.load(Ordering::Relaxed);
    if budget_bytes == 0 {
        return;
    }
    if IS_REPORTING.swap(true, Ordering::Relaxed) {
        // Another thread reports, and aborts soon.
        std::thread::sleep(Duration::from_secs(1));
        std::process::abort();
    }
    let stats = zk_alloc::stats();
    let refusal = Refusal {
        budget_bytes,
        refused_bytes: bytes,
        mapped_bytes: mapped_bytes().unwrap_or(0),
        live_bytes: stats.live_bytes,
        retained_bytes: stats.retained_bytes(),
        overflow_bytes: stats.overflow_bytes,
    };
    let said = Said { tell: Tell::OverBudget(refusal), figures: Figures::now() };
    let mut line = [0; 1024];
    let mut rest = &mut line[..];
    // Numbers are written in place: this allocates nothing.
    let is_whole = serde_json::to_writer(&mut rest, &said).is_ok() && rest.write_all(b"\n").is_ok();
    let unused = rest.len();
    if is_whole {
        let _ = rustix::io::write(rustix::stdio::stdout(), &line[..line.len() - unused]);
    }
    std::process::abort();
}

/// The memory of this process that counts as data. Allocates nothing.
fn mapped_bytes() -> Option<usize> {
    let mut text = [0; 4096];
    let read = File::open("/proc/self/status").ok()?.read(&mut text).ok()?;
    kib_field(std::str::from_utf8(&text[..read]).ok()?, "VmData:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_a_refusal_fits_its_line_and_reads_well() {
        let most = usize::MAX;
        let refusal = Refusal {
            budget_bytes: most,
            refused_bytes: most,
            mapped_bytes: most,
            live_bytes: most,
            retained_bytes: most,
            overflow_bytes: u64::MAX,
        };
        let figures = Figures { live_bytes: most, resident_bytes: most };
        let line = serde_json::to_string(&Said { tell: Tell::OverBudget(refusal), figures }).unwrap();
        assert!(line.len() < 1024, "{line}");
        let refusal = Refusal { budget_bytes: 1 << 30, refused_bytes: 3 << 27, mapped_bytes: 900 << 20, ..refusal };
        let text = Refusal { live_bytes: 800 << 20, retained_bytes: 1 << 20, ..refusal }.to_string();
        let expected = "the system refused 384.0 MiB, with 900.0 MiB of 1.00 GiB mapped; 800.0 MiB were in use in the \
                        arena, and 1.0 MiB free there";
        assert_eq!(text, expected);
    }

    #[test]
    fn mapped_memory_is_known() {
        assert!(mapped_bytes().is_some_and(|bytes| bytes > 0));
    }
}
