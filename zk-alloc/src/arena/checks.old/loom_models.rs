//! Every interleaving of small models of the lock-free parts.
//!
//! A loom `UnsafeCell` stands for memory: loom fails a run in which two threads use it without an order between them, so
//! that a missing Acquire or Release shows.

#![allow(unsafe_code, reason = "cells stand for memory")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread::{self, JoinHandle};

use crate::arena::bitmap::Bitmap;
use crate::arena::count::SharedCount;
use crate::kept::{self, Place, Slot};
use crate::sync::{AtomicU64, Ordering};

/// A slab with two allocations, and who recycled it how often.
struct Slab {
    count: SharedCount,
    allocations: [UnsafeCell<u64>; 2],
    recycled: AtomicU64,
}

impl Slab {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            count: SharedCount::new(),
            allocations: [UnsafeCell::new(0), UnsafeCell::new(0)],
            recycled: AtomicU64::new(0),
        })
    }

    /// The last use of an allocation.
    fn write(&self, index: usize) {
        // SAFETY: loom checks that nobody else uses the cell.
        self.allocations[index].with_mut(|value| unsafe { *value += 1 });
    }

    /// What whoever recycles does: all of the memory is free for other uses.
    fn reuse(&self) {
        self.write(0);
        self.write(1);
    }

    fn recycle(&self) {
        self.reuse();
        self.recycled.fetch_add(1, Ordering::Relaxed);
    }

    /// Another thread uses an allocation, and frees it.
    fn free_elsewhere(slab: &Arc<Self>, index: usize) -> JoinHandle<()> {
        let slab = slab.clone();
        thread::spawn(move || {
            slab.write(index);
            if slab.count.free() {
                slab.recycle();
            }
        })
    }
}

pub(super) fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("a thread of the model"));
}

/// Every interleaving in which threads are interrupted at most so many times where they could go on: what has retries in
/// three threads is too much for all of them.
pub(super) fn bounded(interruptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(interruptions));
    builder.check(model);
}

#[test]
fn a_retired_slab_is_recycled_once_and_after_its_last_free() {
    loom::model(|| {
        let slab = Slab::new();
        let others = [Slab::free_elsewhere(&slab, 0), Slab::free_elsewhere(&slab, 1)];
        if slab.count.retire(2) {
            slab.recycle();
        }
        join(others);
        assert_eq!(slab.recycled.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn an_owner_that_frees_too_retires_what_others_still_hold() {
    loom::model(|| {
        let slab = Slab::new();
        let other = Slab::free_elsewhere(&slab, 0);
        // The owner made both, and frees the second itself.
        slab.write(1);
        if slab.count.retire(1) {
            slab.recycle();
        }
        join([other]);
        assert_eq!(slab.recycled.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_slab_starts_over_only_after_all_frees() {
    loom::model(|| {
        let slab = Slab::new();
        let others = [Slab::free_elsewhere(&slab, 0), Slab::free_elsewhere(&slab, 1)];
        let mut live = 2;
        if slab.count.is_empty(live) {
            slab.count.reset();
            slab.reuse();
            // One new allocation, which the owner leaves behind and a third thread frees.
            live = 1;
            let third = Slab::free_elsewhere(&slab, 0);
            if slab.count.retire(live) {
                slab.recycle();
            }
            join([third]);
        } else if slab.count.retire(live) {
            slab.recycle();
        }
        join(others);
        assert_eq!(slab.recycled.load(Ordering::Relaxed), 1);
    });
}

/// Two words of bits, and the memory behind each bit.
struct Run {
    words: [AtomicU64; 2],
    memory: Vec<UnsafeCell<u64>>,
}

impl Run {
    /// All bits are set but those from `free_from` to `free_to`, so that the models stay small.
    fn new(free_from: usize, free_to: usize) -> Arc<Self> {
        let run = Arc::new(Self {
            words: [AtomicU64::new(0), AtomicU64::new(0)],
            memory: (0..128).map(|_| UnsafeCell::new(0)).collect(),
        });
        run.bits().set(0, free_from);
        run.bits().set(free_to, 128 - free_to);
        run
    }

    fn bits(&self) -> Bitmap<'_> {
        Bitmap::new(&self.words)
    }

    /// Uses what the caller owns; loom fails if somebody else owns it too, or did and isn't known to be done.
    fn write(&self, start: usize, n: usize) {
        for cell in &self.memory[start..start + n] {
            // SAFETY: loom checks that nobody else uses the cell.
            cell.with_mut(|value| unsafe { *value += 1 });
        }
    }

    fn claim_use_release(&self, n: usize, align: usize) -> bool {
        let Some(start) = self.bits().claim_first_fit(0, n, align, 0) else { return false };
        self.write(start, n);
        self.bits().release(start, n);
        true
    }

    /// As an allocation that grows in place does, or a trim.
    fn claim_exactly(&self, start: usize, n: usize) -> bool {
        let claimed = self.bits().try_claim(start, n).is_ok();
        if claimed {
            self.write(start, n);
            self.bits().release(start, n);
        }
        claimed
    }
}

#[test]
fn a_run_across_a_word_border_has_one_owner() {
    loom::model(|| {
        let run = Run::new(63, 65);
        let other = run.clone();
        let thread = thread::spawn(move || {
            _ = other.claim_use_release(2, 1);
        });
        run.claim_exactly(63, 2);
        join([thread]);
        assert_eq!(run.bits().count(0, 128), 126, "a bit was lost, or is still owned");
    });
}

#[test]
fn three_threads_that_want_the_same_run_own_it_in_turn() {
    bounded(3, || {
        let run = Run::new(63, 65);
        let (a, b) = (run.clone(), run.clone());
        let threads = [
            thread::spawn(move || {
                _ = a.claim_use_release(2, 1);
            }),
            thread::spawn(move || {
                _ = b.claim_exactly(63, 2);
            }),
        ];
        run.claim_use_release(1, 1);
        join(threads);
        assert_eq!(run.bits().count(0, 128), 126, "a bit was lost, or is still owned");
    });
}

#[test]
fn rollback_gives_back_what_it_claimed_and_nothing_else() {
    loom::model(|| {
        let run = Run::new(62, 66);
        let (a, b) = (run.clone(), run.clone());
        let threads = [
            thread::spawn(move || {
                _ = a.claim_exactly(62, 4);
            }),
            // Its bit is in the way of the first thread, which must not give it to the third.
            thread::spawn(move || {
                _ = b.claim_exactly(65, 1);
            }),
        ];
        run.claim_exactly(65, 1);
        join(threads);
        assert_eq!(run.bits().count(0, 128), 124, "a bit was lost, or is still owned");
    });
}

#[test]
fn first_fit_serves_two_when_there_is_room_for_two() {
    loom::model(|| {
        let run = Run::new(60, 64);
        let other = run.clone();
        let thread = thread::spawn(move || assert!(other.claim_use_release(2, 2)));
        assert!(run.claim_use_release(2, 2));
        join([thread]);
        assert_eq!(run.bits().count(0, 128), 124);
    });
}

#[test]
fn turned_bits_are_counted_once() {
    loom::model(|| {
        let run = Run::new(63, 65);
        let other = run.clone();
        let thread = thread::spawn(move || other.bits().set(63, 2));
        let turned = run.bits().set(63, 2) + thread.join().expect("a thread of the model");
        assert_eq!(turned, 2);
    });
}

#[test]
fn what_is_handed_over_has_one_owner_who_sees_all_that_the_last_one_did() {
    loom::model(|| {
        let run = Run::new(0, 128);
        let hand_over = |run: &Run| {
            if let Some(index) = run.bits().take_lowest(0, 128) {
                run.write(index, 1);
                run.bits().offer(index);
            }
        };
        let (a, b) = (run.clone(), run.clone());
        let threads = [
            thread::spawn(move || {
                a.write(1, 1);
                a.bits().offer(1);
            }),
            thread::spawn(move || hand_over(&b)),
        ];
        hand_over(&run);
        join(threads);
        assert_eq!(run.bits().take_lowest(0, 128), Some(1));
        assert_eq!(run.bits().take_lowest(0, 128), None);
    });
}

/// A thread's slot, and the two runs that come and go in it.
struct Keeper {
    slot: Slot,
    memory: [UnsafeCell<u64>; 2],
}

impl Keeper {
    const UNIT_BYTES: usize = 16 << 10;

    fn new() -> Arc<Self> {
        Arc::new(Self { slot: Slot::new(), memory: [UnsafeCell::new(0), UnsafeCell::new(0)] })
    }

    /// The run at `memory[index]`.
    fn run(index: usize) -> kept::Run {
        kept::Run::new((index + 1) * Self::UNIT_BYTES, Self::UNIT_BYTES).expect("a whole unit")
    }

    /// What whoever owns a run does.
    fn write(&self, run: kept::Run) {
        let index = run.address() / Self::UNIT_BYTES - 1;
        // SAFETY: loom checks that nobody else uses the cell.
        self.memory[index].with_mut(|value| unsafe { *value += 1 });
    }

    /// Another thread takes what is kept, and has it from then on.
    fn taken_elsewhere(keeper: &Arc<Self>) -> JoinHandle<()> {
        let keeper = keeper.clone();
        thread::spawn(move || {
            if let Some(run) = keeper.slot.take(Place::Mid) {
                keeper.write(run);
            }
        })
    }
}

/// The owner frees a run and asks for it again, while others want what it keeps.
#[test]
fn a_kept_run_goes_to_one_thread() {
    loom::model(|| {
        let keeper = Keeper::new();
        let others = [Keeper::taken_elsewhere(&keeper), Keeper::taken_elsewhere(&keeper)];
        keeper.write(Keeper::run(0));
        assert_eq!(keeper.slot.put(Place::Mid, Keeper::run(0)), None);
        if let Some(run) = keeper.slot.take_if(Place::Mid, |_| true) {
            keeper.write(run);
        }
        join(others);
    });
}

/// The owner frees one run after the other: each is kept, put out, or taken by another thread, and never two of these.
#[test]
fn a_run_that_is_put_out_goes_to_one_thread() {
    loom::model(|| {
        let keeper = Keeper::new();
        let other = Keeper::taken_elsewhere(&keeper);
        for index in [0, 1] {
            keeper.write(Keeper::run(index));
            if let Some(out) = keeper.slot.put(Place::Mid, Keeper::run(index)) {
                keeper.write(out);
            }
        }
        if let Some(run) = keeper.slot.take_if(Place::Mid, |_| true) {
            keeper.write(run);
        }
        join([other]);
    });
}
