//! Collapse in the background. Where the first touch of a huge page costs more than it saves, the arena faults in small pages. The
//! background thread later has the kernel collapse them into huge ones (`MADV_COLLAPSE`). A process without that thread stays in small
//! pages.
//!
//! The thread uses 2% of one CPU, whatever a huge page costs on the host: it rests after each in proportion to its time. A *pass* goes
//! through the arena once. It begins when enough memory became resident since the last pass, and ends early if memory is purged.
//!
//! Contents never change, and the resident size does not grow: a block is collapsed only if all of its pages are in memory. If its owner
//! purges a part at the same time, the kernel may bring that part back. The thread then purges it again.
#![allow(unsafe_code, reason = "has memory copied that others use")]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::budget;
use super::zone::Zone;
use crate::os::{self, Errno, HUGE_PAGE_BYTES};
use crate::tuning;

/// Whether a thread asked for a pass.
static IS_WANTED: AtomicBool = AtomicBool::new(false);
/// Whether the kernel refused too often.
static IS_REFUSED: AtomicBool = AtomicBool::new(false);

/// Fresh bytes and resident bytes when the last pass began.
static FRESH_BYTES: AtomicU64 = AtomicU64::new(0);
static RESIDENT_BYTES: AtomicUsize = AtomicUsize::new(0);
static COLLAPSED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Bytes collapsed since the process started.
pub(crate) fn collapsed_bytes() -> usize {
    COLLAPSED_BYTES.load(Ordering::Relaxed)
}

/// Asks for a pass, if the arena grew enough. Returns whether this call asked. Called when used memory may be reused.
pub(super) fn ask(fresh_bytes: impl FnOnce() -> u64) -> bool {
    let may_be = !IS_WANTED.load(Ordering::Relaxed) && !IS_REFUSED.load(Ordering::Relaxed);
    // SeqCst: the background thread first says that it is there, and then reads this; the caller asks, and then looks whether it is there.
    may_be && is_worthwhile(fresh_bytes()) && !IS_WANTED.swap(true, Ordering::SeqCst)
}

fn is_worthwhile(fresh: u64) -> bool {
    let resident = budget::resident_bytes();
    let handed_out = fresh.saturating_sub(FRESH_BYTES.load(Ordering::Relaxed));
    let more = handed_out.max(resident.saturating_sub(RESIDENT_BYTES.load(Ordering::Relaxed)) as u64);
    more >= tuning::collapse_min_bytes() as u64 && more >= resident as u64 / tuning::collapse_min_part() as u64
}

/// Begins a pass through `zones`, if a thread asked for one.
pub(super) fn begin(fresh_bytes: impl FnOnce() -> u64, zones: [&'static Zone; 2]) -> Option<Pass<Blocks>> {
    if !IS_WANTED.swap(false, Ordering::SeqCst) {
        return None;
    }
    FRESH_BYTES.store(fresh_bytes(), Ordering::Relaxed);
    RESIDENT_BYTES.store(budget::resident_bytes(), Ordering::Relaxed);
    Some(Pass::new(Blocks { zones, zone: 0, block: 0 }))
}

/// Whether so much was purged since the pass began that the process is idle.
pub(super) fn is_idle() -> bool {
    budget::resident_bytes() < RESIDENT_BYTES.load(Ordering::Relaxed) / 4 * 3
}

/// A place for a huge page, and its zone.
pub(super) type Block = (&'static Zone, NonNull<u8>);

/// Each place for a huge page in the committed memory of some zones.
#[derive(Debug)]
pub(crate) struct Blocks {
    zones: [&'static Zone; 2],
    zone: usize,
    block: usize,
}

impl Iterator for Blocks {
    type Item = Block;

    fn next(&mut self) -> Option<Block> {
        loop {
            let zone = *self.zones.get(self.zone)?;
            let (base, len) = zone.committed_memory();
            let offset = base.align_offset(HUGE_PAGE_BYTES) + self.block * HUGE_PAGE_BYTES;
            if offset + HUGE_PAGE_BYTES <= len {
                self.block += 1;
                // SAFETY: within committed memory.
                return Some((zone, unsafe { base.add(offset) }));
            }
            (self.zone, self.block) = (self.zone + 1, 0);
        }
    }
}

// SAFETY: zones are shared by all threads.
unsafe impl Send for Blocks {}

/// One pass, step by step.
#[derive(Debug)]
pub(crate) struct Pass<B: Iterator> {
    blocks: B,
    /// The block that the last step collapsed.
    made: Option<B::Item>,
    refused: usize,
}

impl<B: Iterator<Item: Copy>> Pass<B> {
    fn new(blocks: B) -> Self {
        Self { blocks, made: None, refused: 0 }
    }

    /// Settles the block of the last step again; see [`step`](Self::step).
    pub(super) fn settle(&mut self, settle: impl Fn(B::Item)) {
        if let Some(block) = self.made.take() {
            settle(block);
        }
    }

    /// Collapses the next block that `make_huge` can, and returns the rest before the next step; `None` when the pass is over. The pass
    /// is over after the last block, and as soon as `is_over` says so. `make_huge` returns the time that it took; `None` if there was
    /// nothing to do.
    ///
    /// Memory that was purged during a collapse is in memory again, and `settle` purges it. It is called twice: at once, and after the
    /// rest. At first, a thread that was purging may still own the memory.
    pub(super) fn step(
        &mut self,
        is_over: impl Fn() -> bool,
        make_huge: impl Fn(B::Item) -> Result<Option<Duration>, Errno>,
        settle: impl Fn(B::Item),
    ) -> Option<Duration> {
        self.settle(&settle);
        for _ in 0..tuning::collapse_step_blocks() {
            let block = self.blocks.next().filter(|_| !is_over())?;
            match make_huge(block) {
                Ok(None) => self.refused = 0,
                Ok(Some(took)) => {
                    self.refused = 0;
                    settle(block);
                    self.made = Some(block);
                    return Some(took * tuning::collapse_rest_parts() as u32);
                }
                Err(_) if self.refused + 1 == tuning::collapse_most_refused() => {
                    IS_REFUSED.store(true, Ordering::Relaxed);
                    return None;
                }
                Err(_) => self.refused += 1,
            }
        }
        Some(Duration::ZERO)
    }
}

/// Collapses a block, if all of its pages are in memory. Returns the time that it took; `None` if there was nothing to do.
pub(super) fn make_huge((_, block): Block) -> Result<Option<Duration>, Errno> {
    let at = block.as_ptr();
    // SAFETY: committed memory of a zone, which stays mapped.
    if unsafe { os::count_resident(at, HUGE_PAGE_BYTES) } != Some(HUGE_PAGE_BYTES) {
        return Ok(None);
    }
    let begun = os::monotonic_ns();
    // SAFETY: as above; its contents stay.
    unsafe { os::collapse(at, HUGE_PAGE_BYTES)? };
    let took = Duration::from_nanos(os::monotonic_ns().saturating_sub(begun));
    let is_new = took >= Duration::from_micros(tuning::collapse_least_us() as u64);
    if is_new {
        COLLAPSED_BYTES.fetch_add(HUGE_PAGE_BYTES, Ordering::Relaxed);
    }
    Ok(is_new.then_some(took))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    const TOOK: Duration = Duration::from_micros(100);

    /// A thread that purges a part of the block owns that part during the collapse, and frees it later. Only a second call finds it free.
    #[test]
    fn each_block_is_settled_at_once_and_again_after_the_rest() {
        let done = RefCell::new(Vec::new());
        let make_huge = |block: u32| {
            done.borrow_mut().push(format!("make {block}"));
            Ok(if block == 1 { None } else { Some(TOOK) })
        };
        let mut pass = Pass::new(0..3);
        let mut step = || pass.step(|| false, make_huge, |block| done.borrow_mut().push(format!("settle {block}")));
        assert_eq!(
            [step(), step(), step()],
            [
                Some(TOOK * tuning::collapse_rest_parts() as u32),
                Some(TOOK * tuning::collapse_rest_parts() as u32),
                None
            ]
        );
        let all = ["make 0", "settle 0", "settle 0", "make 1", "make 2", "settle 2", "settle 2"];
        assert_eq!(done.into_inner(), all);
    }

    #[test]
    fn a_pass_ends_when_the_process_idles_and_gives_up_where_the_kernel_refuses() {
        let refuse = |_| Err(Errno(1));
        assert_eq!(Pass::new(0..3).step(|| true, |_| unreachable!("it idles"), drop), None);
        assert_eq!(Pass::new(0..tuning::collapse_most_refused() - 1).step(|| false, refuse, drop), None);
        assert!(!IS_REFUSED.load(Ordering::Relaxed), "so many may be short of memory");
        assert_eq!(Pass::new(0..).step(|| false, refuse, drop), None);
        assert!(IS_REFUSED.swap(false, Ordering::Relaxed));
    }
}
