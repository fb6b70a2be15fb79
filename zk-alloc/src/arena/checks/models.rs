//! Shared parts of the loom models.
//!
//! Loom runs a model in every interleaving with up to a given number of interruptions, and with every value that a load may see. A model
//! runs the real code on real memory: only its atomics are loom's (`sync`). A loom `UnsafeCell` stands for memory that owners access. If
//! two threads access the cell without an order between them, loom fails the run, which reveals a missing Acquire or Release.
#![allow(unsafe_code, reason = "cells stand for memory")]

use std::collections::HashMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use loom::cell::UnsafeCell;
use loom::sync::Arc as LoomArc;
use loom::thread::{self, JoinHandle};

use crate::accounts::{self, Limit};
use crate::arena::pages::bitmap::Bitmap;
use crate::arena::pages::layout::{HugeAdvice, ZoneSpec};
use crate::arena::pages::memory::{Allowance, Purge};
use crate::arena::pages::zone::{Contents, Zone};
use crate::os;
use crate::sync::AtomicU64;

/// Runs a model in every interleaving with at most `interruptions` switches away from a thread that could continue. The bound is needed
/// because models of three threads that retry have too many interleavings to run them all.
pub(super) fn bounded(interruptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(interruptions));
    builder.max_branches = builder.max_branches.max(10_000);
    let runs: &'static AtomicUsize = Box::leak(Box::default());
    builder.check(move || {
        runs.fetch_add(1, Ordering::Relaxed);
        model();
    });
    println!("{} interleavings", runs.load(Ordering::Relaxed));
}

pub(super) fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("a thread of the model"));
}

/// Runs `own` on this thread, and `other` on another one.
pub(super) fn beside<T: Send + Sync + 'static, R>(
    shared: &LoomArc<T>,
    other: impl FnOnce(&T) + Send + 'static,
    own: impl FnOnce() -> R,
) -> R {
    let its = shared.clone();
    let thread = thread::spawn(move || other(&its));
    let result = own();
    join([thread]);
    result
}

/// Like [`beside`], with two other threads.
pub(super) fn beside_two<T: Send + Sync + 'static, R>(
    shared: &LoomArc<T>,
    one: impl FnOnce(&T) + Send + 'static,
    other: impl FnOnce(&T) + Send + 'static,
    own: impl FnOnce() -> R,
) -> R {
    beside(shared, one, || beside(shared, other, own))
}

/// Returns `len` words of 64 bits, all of them zero.
pub(super) fn words(len: usize) -> &'static [AtomicU64] {
    Box::leak((0..len).map(|_| AtomicU64::new(0)).collect())
}

/// Stands for memory that threads own, in numbered parts. Each part has one owner at a time, and a cell that its owner accesses.
#[derive(Default)]
pub(super) struct Uses(Mutex<HashMap<usize, Arc<UnsafeCell<u64>>>>);

// SAFETY: loom detects two threads that use a cell without an order between them.
unsafe impl Send for Uses {}
// SAFETY: as above.
unsafe impl Sync for Uses {}

impl Uses {
    /// Writes to parts of memory that belong to the caller.
    pub(super) fn write(&self, pieces: Range<usize>) {
        for piece in pieces {
            let cell = self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(piece).or_default().clone();
            // SAFETY: loom checks that no other thread uses the cell.
            cell.with_mut(|value| unsafe { *value += 1 });
        }
    }
}

/// The number of pages of a model's zone. Each of its bitmaps is one word.
pub(super) const PAGES: usize = 64;

/// The memory of a zone, which all executions of a model use, one after the other.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    base: NonNull<u8>,
    page_bytes: usize,
}

// SAFETY: `base` is only an address. The models check who may use the memory behind it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// Like [`bounded`], with memory for zones. Runs one model at a time, because the count of resident memory is global.
pub(super) fn with_memory(page_bytes: usize, interruptions: usize, model: impl Fn(Memory) + Sync + Send + 'static) {
    static ALONE: Mutex<()> = Mutex::new(());
    // This function holds the lock, not the model, because a model that fails is never dropped.
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let reserved = os::reserve((PAGES * page_bytes).next_multiple_of(os::HUGE_PAGE_BYTES)).expect("address space");
    // SAFETY: reserved one line above.
    unsafe { os::commit(reserved.start().as_ptr(), reserved.len()) }.expect("memory");
    let memory = Memory { base: reserved.start(), page_bytes };
    bounded(interruptions, move || model(memory));
}

impl Memory {
    /// Creates a zone over the memory, which is not resident. Its first `free` pages are free, and the others are used.
    pub(super) fn zone(self, huge: HugeAdvice, free: usize) -> Model {
        let spec = ZoneSpec {
            page_bytes: self.page_bytes,
            huge,
            small_region_bytes: 0,
            small_pages_bytes: 0,
            lazy_zero_bytes: usize::MAX,
            growth_room: 1,
            is_cached: false,
        };
        // SAFETY: the reservation of this model, which no thread uses between two executions.
        unsafe { os::discard(self.base.as_ptr(), PAGES * self.page_bytes).expect("memory of this model") };
        accounts::set_max(usize::MAX);
        let resident_bytes = accounts::resident_bytes();
        let claims = words((PAGES * self.page_bytes).div_ceil(os::HUGE_PAGE_BYTES));
        let bits = [(); 5].map(|()| Bitmap::new(words(1)));
        bits[0].try_claim(free, PAGES - free).expect("an empty bitmap");
        let block_bits = [(); 2].map(|()| Bitmap::new(words(1)));
        // SAFETY: a reservation that outlives the model, used by one execution of it at a time, and fresh bitmaps.
        let zone = unsafe { Zone::new(self.base, spec, bits, block_bits, claims) }.expect("memory for tables");
        zone.assume_committed();
        Model { zone, free, resident_bytes }
    }
}

/// The zone of a model, with the number of its free pages and the count of resident bytes when it was created.
pub(super) struct Model {
    pub(super) zone: Zone,
    free: usize,
    resident_bytes: usize,
}

impl Model {
    /// Returns how many bytes were counted as resident since the zone was created.
    pub(super) fn accounted_bytes(&self) -> usize {
        accounts::resident_bytes() - self.resident_bytes
    }

    /// Returns how many bytes of the zone are in memory, according to the kernel.
    pub(super) fn bytes_in_memory(&self) -> usize {
        // SAFETY: only queries pages of the zone.
        unsafe { os::count_resident(self.zone.base().as_ptr(), self.zone.capacity_bytes()) }
            .expect("a system that tells")
    }

    /// Checks that all memory is free again and zeroed on request, and that after a trim no memory is counted as resident or in memory.
    pub(super) fn assert_all_purged(&self) {
        let all = self.free * self.zone.page_bytes();
        let at = self.zone.claim(all, 1, Contents::Zeroed, Limit::Cap, || None);
        let at = at.expect("a page was lost, or is still owned");
        assert_eq!(at, self.zone.base());
        // SAFETY: claimed above, and initialised by the kernel if nothing else has written to it.
        let memory = unsafe { std::slice::from_raw_parts(at.as_ptr(), all) };
        assert!(memory.iter().all(|&byte| byte == 0), "zeroed memory holds something else");
        // SAFETY: as above.
        unsafe { self.zone.release(at, all) };
        self.zone.trim(&mut Allowance::unlimited(usize::MAX), Purge::Now);
        assert_eq!(self.accounted_bytes(), 0, "the account is wrong");
        assert_eq!(self.bytes_in_memory(), 0, "something is in memory of which the zone knows nothing");
    }
}
