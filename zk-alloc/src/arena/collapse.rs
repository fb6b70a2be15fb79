//! Huge pages afterwards. Where the first touch of a huge page costs more than it saves, memory is paged in in small pages; of what
//! has stayed, the kernel makes huge ones (`MADV_COLLAPSE`), on the background thread. A process without that thread stays in small
//! pages.
//!
//! Whatever a huge page costs on the host, the thread takes no more than a small part of one processor's time: it rests after each in
//! proportion to what that took. A *pass* goes through the arena once. It begins when enough became resident since the last one, and
//! ends early where memory goes back meanwhile. Nothing changes that anybody could read, and only what is in memory with all its pages
//! is made huge: what is resident stays as it is. What its owner gives back while it is made huge, the kernel brings back, and the
//! thread gives it back again.
#![allow(unsafe_code, reason = "has memory copied that others use")]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::budget;
use super::zone::Zone;
use crate::os::{self, Errno, HUGE_PAGE_BYTES};

/// The thread rests so many times as long as a huge page took: it uses 2% of a processor.
const REST_PARTS: u32 = 50;
/// A pass begins when so many bytes became resident since the last...
const WORTHWHILE_BYTES: u64 = 16 << 20;
/// ... and this part of all that is.
const WORTHWHILE_PART: u64 = 2;
/// Blocks in a row that the kernel refuses before no more are tried: it knows no such call, or has no memory.
const MOST_REFUSED: usize = 8;
/// Blocks that are looked at before the thread sees to what else it has to do.
const BLOCKS_A_STEP: usize = 1024;

/// What takes less was huge before: nobody copies 2 MiB so fast.
const LEAST_TIME: Duration = Duration::from_micros(20);

/// Whether a pass is to begin.
static IS_WANTED: AtomicBool = AtomicBool::new(false);
/// Whether the kernel refused to make anything huge.
static IS_REFUSED: AtomicBool = AtomicBool::new(false);

/// Bytes that had become resident by being handed out when the last pass began, and that were resident.
static FRESH_BYTES: AtomicU64 = AtomicU64::new(0);
static RESIDENT_BYTES: AtomicUsize = AtomicUsize::new(0);
static COLLAPSED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Bytes that were made huge pages since the process started.
pub(crate) fn collapsed_bytes() -> usize {
    COLLAPSED_BYTES.load(Ordering::Relaxed)
}

/// Called when what was used may be used again: asks for a pass, if there may be something to do. Returns whether this call did.
pub(super) fn ask(fresh_bytes: impl FnOnce() -> u64) -> bool {
    let may_be = !IS_WANTED.load(Ordering::Relaxed) && !IS_REFUSED.load(Ordering::Relaxed);
    // SeqCst: a thread that begins says so, and looks here afterwards; who asks looks whether there is one afterwards.
    may_be && is_worthwhile(fresh_bytes()) && !IS_WANTED.swap(true, Ordering::SeqCst)
}

fn is_worthwhile(fresh: u64) -> bool {
    let resident = budget::resident_bytes();
    let handed_out = fresh.saturating_sub(FRESH_BYTES.load(Ordering::Relaxed));
    let more = handed_out.max(resident.saturating_sub(RESIDENT_BYTES.load(Ordering::Relaxed)) as u64);
    more >= WORTHWHILE_BYTES && more >= resident as u64 / WORTHWHILE_PART
}

/// Begins the pass through `zones` that somebody asked for.
pub(super) fn begin(fresh_bytes: impl FnOnce() -> u64, zones: [&'static Zone; 2]) -> Option<Pass<Blocks>> {
    if !IS_WANTED.swap(false, Ordering::SeqCst) {
        return None;
    }
    FRESH_BYTES.store(fresh_bytes(), Ordering::Relaxed);
    RESIDENT_BYTES.store(budget::resident_bytes(), Ordering::Relaxed);
    Some(Pass::new(Blocks { zones, zone: 0, block: 0 }))
}

/// Whether what was given back since the pass began is so much that the process idles.
pub(super) fn is_idle() -> bool {
    budget::resident_bytes() < RESIDENT_BYTES.load(Ordering::Relaxed) / 4 * 3
}

/// A place for a huge page, and its zone.
pub(super) type Block = (&'static Zone, NonNull<u8>);

/// The places for huge pages in what is committed of some zones.
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
                // SAFETY: within what is committed.
                return Some((zone, unsafe { base.add(offset) }));
            }
            (self.zone, self.block) = (self.zone + 1, 0);
        }
    }
}

// SAFETY: zones are shared by all threads.
unsafe impl Send for Blocks {}

/// Once through the arena, step by step.
#[derive(Debug)]
pub(crate) struct Pass<B: Iterator> {
    blocks: B,
    /// What the last step made huge.
    made: Option<B::Item>,
    refused: usize,
}

impl<B: Iterator<Item: Copy>> Pass<B> {
    fn new(blocks: B) -> Self {
        Self { blocks, made: None, refused: 0 }
    }

    /// Mends what the last step left, as [`step`](Self::step) says.
    pub(super) fn settle(&mut self, settle: impl Fn(B::Item)) {
        if let Some(block) = self.made.take() {
            settle(block);
        }
    }

    /// Has `make_huge` make the next block huge that it can, and returns how long to rest before the next step; `None` where the pass
    /// is over, which it also is as soon as `is_over`. `make_huge` returns how long it took; `None` where there was nothing to do.
    ///
    /// What was given back while a block became huge is in memory again; `settle` mends that: at once, and again after the rest,
    /// because what was just being given back still had an owner at first.
    pub(super) fn step(
        &mut self,
        is_over: impl Fn() -> bool,
        make_huge: impl Fn(B::Item) -> Result<Option<Duration>, Errno>,
        settle: impl Fn(B::Item),
    ) -> Option<Duration> {
        self.settle(&settle);
        for _ in 0..BLOCKS_A_STEP {
            let block = self.blocks.next().filter(|_| !is_over())?;
            match make_huge(block) {
                Ok(None) => self.refused = 0,
                Ok(Some(took)) => {
                    self.refused = 0;
                    settle(block);
                    self.made = Some(block);
                    return Some(took * REST_PARTS);
                }
                Err(_) if self.refused + 1 == MOST_REFUSED => {
                    IS_REFUSED.store(true, Ordering::Relaxed);
                    return None;
                }
                Err(_) => self.refused += 1,
            }
        }
        Some(Duration::ZERO)
    }
}

/// Makes a block a huge page, if all of it is in memory, and returns how long that took; `None` where there was nothing to do.
pub(super) fn make_huge((_, block): Block) -> Result<Option<Duration>, Errno> {
    let at = block.as_ptr();
    // SAFETY: committed memory of a zone, which stays mapped.
    if unsafe { os::count_resident(at, HUGE_PAGE_BYTES) } != Some(HUGE_PAGE_BYTES) {
        return Ok(None);
    }
    let begun = os::monotonic_ns();
    // SAFETY: as above; what it holds stays.
    unsafe { os::collapse(at, HUGE_PAGE_BYTES)? };
    let took = Duration::from_nanos(os::monotonic_ns().saturating_sub(begun));
    let is_new = took >= LEAST_TIME;
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

    /// Memory that is being given back while its block becomes huge has an owner then, who lets go of it a moment later: only a look
    /// after the rest finds it.
    #[test]
    fn each_block_is_settled_at_once_and_again_after_the_rest() {
        let done = RefCell::new(Vec::new());
        let make_huge = |block: u32| {
            done.borrow_mut().push(format!("make {block}"));
            Ok(if block == 1 { None } else { Some(TOOK) })
        };
        let mut pass = Pass::new(0..3);
        let mut step = || pass.step(|| false, make_huge, |block| done.borrow_mut().push(format!("settle {block}")));
        assert_eq!([step(), step(), step()], [Some(TOOK * REST_PARTS), Some(TOOK * REST_PARTS), None]);
        let all = ["make 0", "settle 0", "settle 0", "make 1", "make 2", "settle 2", "settle 2"];
        assert_eq!(done.into_inner(), all);
    }

    #[test]
    fn a_pass_ends_when_the_process_idles_and_gives_up_where_the_kernel_refuses() {
        let refuse = |_| Err(Errno(1));
        assert_eq!(Pass::new(0..3).step(|| true, |_| unreachable!("it idles"), drop), None);
        assert_eq!(Pass::new(0..MOST_REFUSED - 1).step(|| false, refuse, drop), None);
        assert!(!IS_REFUSED.load(Ordering::Relaxed), "so many may be short of memory");
        assert_eq!(Pass::new(0..).step(|| false, refuse, drop), None);
        assert!(IS_REFUSED.swap(false, Ordering::Relaxed));
    }
}
