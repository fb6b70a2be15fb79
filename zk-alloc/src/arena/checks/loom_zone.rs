//! Models of work on runs in a real zone on real memory, run in every interleaving with a bounded number of interruptions.
#![allow(unsafe_code, reason = "hands out memory of a zone")]

use std::ptr::NonNull;

use loom::sync::Arc;

use super::models::{Model, beside, beside_two, with_memory};
use crate::accounts::Limit;
use crate::arena::pages::layout::HugeAdvice;
use crate::arena::pages::memory::{Allowance, Purge};
use crate::arena::pages::zone::Contents;
use crate::os;

const PAGE_BYTES: usize = 4 << 10;

/// The number of pages per block (a range that one huge page can back) in the models of prefaulting.
const BLOCK: usize = 4;

impl Model {
    fn claim(&self, pages: usize, contents: Contents) -> Option<NonNull<u8>> {
        let bytes = pages * self.zone.page_bytes();
        let at = self.zone.claim(bytes, 1, contents, Limit::Cap, || None).ok()?;
        if contents == Contents::Zeroed {
            // SAFETY: claimed above, and initialised by the kernel if nothing else has written to it.
            let memory = unsafe { std::slice::from_raw_parts(at.as_ptr(), bytes) };
            assert!(memory.iter().all(|&byte| byte == 0), "zeroed memory holds something else");
        }
        // SAFETY: as above.
        unsafe { at.write_bytes(0xFF, bytes) };
        Some(at)
    }

    fn release(&self, at: NonNull<u8>, pages: usize) {
        let bytes = pages * self.zone.page_bytes();
        // SAFETY: the caller owns the pages, and frees them here.
        unsafe {
            let memory = std::slice::from_raw_parts(at.as_ptr(), bytes);
            assert!(memory.iter().all(|&byte| byte == 0xFF), "contents are gone");
            self.zone.release(at, bytes);
        }
    }

    fn pass(&self, pages: usize, contents: Contents) {
        if let Some(at) = self.claim(pages, contents) {
            self.release(at, pages);
        }
    }

    fn trim(&self, how: Purge) {
        self.zone.trim(&mut Allowance::unlimited(usize::MAX), how);
    }
}

/// Runs a model with a zone whose two pages are free and dirty. Checks that both pages are free again at the end.
fn with_dirty_zone(interruptions: usize, model: impl Fn(&Arc<Model>) + Sync + Send + 'static) {
    with_memory(PAGE_BYTES, interruptions, move |memory| {
        let zone = Arc::new(memory.zone(HugeAdvice::Leave, 2));
        zone.pass(2, Contents::Any);
        model(&zone);
        assert_whole(&zone);
    });
}

fn assert_whole(model: &Model) {
    model.pass(2, Contents::Zeroed);
    model.assert_all_purged();
}

#[test]
fn zeroed_memory_is_zero_while_another_thread_trims() {
    for how in [Purge::Now, Purge::Lazily] {
        with_dirty_zone(3, move |model| {
            beside(model, move |other| other.trim(how), || model.pass(1, Contents::Zeroed));
            // The kernel may take back lazily purged memory at any time.
            assert!(how == Purge::Lazily || model.accounted_bytes() == model.bytes_in_memory());
        });
    }
}

#[test]
fn zeroed_memory_is_zero_while_others_dirty_and_purge_pages() {
    with_dirty_zone(1, |model| {
        let dirty = |other: &Model| other.pass(1, Contents::Any);
        beside_two(model, |other| other.trim(Purge::Now), dirty, || model.pass(1, Contents::Zeroed));
        assert_eq!(model.accounted_bytes(), model.bytes_in_memory());
    });
}

/// Runs a model with a zone of this many blocks, without resident memory. The zone asks for huge pages, so a run is prefaulted with its
/// block. If the system has no huge pages left, a part of a block may be counted as resident although it is not in memory. Checks that all
/// blocks are free at the end.
fn with_blocks(blocks: usize, model: impl Fn(&Arc<Model>) + Sync + Send + 'static) {
    with_memory(os::HUGE_PAGE_BYTES / BLOCK, 2, move |memory| {
        let zone = Arc::new(memory.zone(HugeAdvice::Ask, blocks * BLOCK));
        model(&zone);
        zone.assert_all_purged();
    });
}

#[test]
fn a_block_that_two_threads_prefault_is_accounted_once() {
    with_blocks(1, |model| {
        // The other thread may have claimed the whole block.
        let at = beside(model, |other| other.pass(1, Contents::Any), || model.claim(1, Contents::Any));
        assert!(model.accounted_bytes() >= model.bytes_in_memory());
        at.into_iter().for_each(|at| model.release(at, 1));
    });
}

#[test]
fn a_block_that_is_prefaulted_during_a_purge_is_accounted_while_it_is_resident() {
    with_blocks(1, |model| {
        let at = beside(model, |other| other.trim(Purge::Now), || model.claim(1, Contents::Any));
        assert!(model.accounted_bytes() >= model.bytes_in_memory());
        model.release(at.expect("there is room"), 1);
    });
}

#[test]
fn memory_beside_a_prefaulted_run_is_zero_and_belongs_to_its_owner() {
    with_blocks(2, |model| {
        beside(model, |other| other.pass(3, Contents::Zeroed), || model.pass(3, Contents::Any));
        assert!(model.accounted_bytes() >= model.bytes_in_memory());
    });
}

/// A slab's pages are counted as resident once. A neighbouring run that prefaults the same block must not count the slab's pages again.
#[test]
fn a_slab_beside_a_prefaulted_run_is_accounted_once() {
    with_blocks(1, |model| {
        let take_slab = |other: &Model| {
            let bytes = 2 * other.zone.page_bytes();
            if let Ok(slab) = other.zone.claim_slab(bytes, Limit::Cap) {
                let accounted = other.zone.slab_pages(slab, bytes).count_ones() as usize * other.zone.page_bytes();
                assert!(other.accounted_bytes() >= accounted);
                // SAFETY: claimed above.
                unsafe { other.zone.release_slab(slab, bytes) };
            }
        };
        beside(model, take_slab, || model.pass(1, Contents::Any));
        // The model does not compare the counted memory with the memory that is resident here. They may differ: a failed claim of two pages
        // briefly owns the first page, and prefaulting does not count that page, although the huge-page fault brings it into memory. The
        // zone counts the page when it hands the page out.
    });
}

#[test]
fn growth_in_place_gets_all_pages_that_another_thread_wants_or_none() {
    with_dirty_zone(3, |model| {
        let grow = |at: NonNull<u8>| {
            // SAFETY: claimed below.
            let pages = if unsafe { model.zone.resize(at, PAGE_BYTES, 2 * PAGE_BYTES) } { 2 } else { 1 };
            // SAFETY: claimed below, or added by `resize`.
            unsafe { at.write_bytes(0xFF, pages * PAGE_BYTES) };
            // SAFETY: as above; the part that is cut off is not used afterwards.
            assert!(unsafe { model.zone.resize(at, pages * PAGE_BYTES, PAGE_BYTES) });
            model.release(at, 1);
        };
        let own = || model.claim(1, Contents::Any).into_iter().for_each(grow);
        beside(model, |other| other.pass(1, Contents::Zeroed), own);
        assert_eq!(model.accounted_bytes(), model.bytes_in_memory());
    });
}

/// A huge-page fault also brings the free memory around the touched page into memory. That memory is purged, unless it has been counted as
/// resident since.
#[test]
fn memory_that_is_accounted_meanwhile_is_not_purged_as_unaccounted() {
    with_memory(PAGE_BYTES, 3, move |memory| {
        let model = Arc::new(memory.zone(HugeAdvice::Leave, 2));
        let purge = |other: &Model| _ = other.zone.purge_unaccounted(other.zone.base(), 2 * PAGE_BYTES);
        beside(&model, purge, || model.pass(1, Contents::Any));
        assert_eq!(model.accounted_bytes(), model.bytes_in_memory());
        assert_whole(&model);
    });
}
