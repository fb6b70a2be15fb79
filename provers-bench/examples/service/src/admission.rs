//! Which proof may start: first come, first served, as far as memory allows.
//!
//! - A proof of a known size starts if it fits below the limit next to the running ones.
//! - A proof of an unknown size is a *trial*: it runs alone, and its peak is learned.
//! - If a proof does not fit yet, later ones may overtake it, at most [`OVERTAKES`] times. Then the others wait until it
//!   has started.
//! - A proof that does not fit even alone is refused.

use std::collections::{BTreeMap, VecDeque};

use crate::request::Size;

/// A waiting proof may be overtaken this often. More would keep more processors busy, and let it wait longer.
pub const OVERTAKES: u32 = 4;

/// The memory of the process, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub limit_bytes: usize,
    /// Resident memory outside of the arena: code, stacks, the backing allocator.
    pub outside_bytes: usize,
    /// Live memory of the arena that belongs to no proof: caches of the prover.
    pub base_bytes: usize,
}

impl Room {
    /// Room for any proof: workers have budgets of their own.
    pub const UNBOUNDED: Self = Self { limit_bytes: usize::MAX, outside_bytes: 0, base_bytes: 0 };

    /// The bytes that all running proofs together may reserve. Fragmentation may push the arena above its live size, by 1/8
    /// of it or by min(6 MiB, half of it), as docs/operating.md says. So a part of the room is left out.
    pub fn for_proofs_bytes(&self) -> usize {
        let arena = self.limit_bytes.saturating_sub(self.outside_bytes);
        let live = (arena / 9 * 8).min(arena.saturating_sub(6 << 20).max(arena / 3 * 2));
        live.saturating_sub(self.base_bytes)
    }

    pub fn fits(&self, reserved_bytes: usize) -> bool {
        reserved_bytes <= self.for_proofs_bytes()
    }

    /// The bytes that a further proof may take.
    pub fn free_bytes(&self, reserved_bytes: usize) -> usize {
        self.for_proofs_bytes().saturating_sub(reserved_bytes)
    }
}

/// The reason why a proof waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// As many proofs run as may.
    Slot,
    /// An earlier proof was overtaken often enough.
    Turn,
    /// A proof of an unknown size runs, and must run alone.
    Trial,
    /// Its size is unknown, and another proof runs.
    Alone,
    /// It needs more than the running proofs leave.
    Memory { need_bytes: usize, free_bytes: usize },
    /// It needs more than the limit.
    TooLarge { need_bytes: usize },
}

#[derive(Debug)]
pub struct Waiting<J> {
    pub id: u64,
    pub size: Size,
    pub overtaken: u32,
    pub job: J,
}

#[derive(Debug)]
pub struct Running<J> {
    pub size: Size,
    /// The bytes that it may take; `None` for a trial.
    pub reserved_bytes: Option<usize>,
    /// Whether no other proof ran since it started.
    pub is_alone: bool,
    pub job: J,
}

/// The next step.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<J> {
    /// Start the proof of this number: it counts as running now.
    Start(u64),
    /// Refuse this job, which needs more than the limit.
    Refuse { size: Size, need_bytes: usize, job: J },
}

/// The queue, and the proofs that run. Each proof carries data of the caller (`J`).
#[derive(Debug)]
pub struct Ledger<J> {
    slots: usize,
    places: usize,
    waiting: VecDeque<Waiting<J>>,
    running: BTreeMap<u64, Running<J>>,
}

impl<J> Ledger<J> {
    /// For `slots` proofs at once, of which `places` more may wait.
    pub fn new(slots: usize, places: usize) -> Self {
        Self { slots, places, waiting: VecDeque::new(), running: BTreeMap::new() }
    }

    /// Joins the queue; returns the job if the queue is full. With a free slot, the queue has one place more: the proof
    /// may be about to start.
    pub fn join(&mut self, id: u64, size: Size, job: J) -> Result<(), J> {
        let free_slots = self.slots.saturating_sub(self.running.len());
        if self.waiting.len() >= self.places + free_slots {
            return Err(job);
        }
        self.waiting.push_back(Waiting { id, size, overtaken: 0, job });
        Ok(())
    }

    /// Takes a proof out of the queue; `None` if it does not wait.
    pub fn leave(&mut self, id: u64) -> Option<Waiting<J>> {
        let index = self.waiting.iter().position(|waiting| waiting.id == id)?;
        self.waiting.remove(index)
    }

    /// Ends a proof; `None` if it does not run.
    pub fn finish(&mut self, id: u64) -> Option<Running<J>> {
        self.running.remove(&id)
    }

    /// Empties the queue.
    pub fn drain(&mut self) -> impl Iterator<Item = Waiting<J>> {
        self.waiting.drain(..)
    }

    /// The next proof to start or refuse; `None` if all must wait. `peak` returns the peak of a size, if it is known.
    pub fn next(&mut self, room: &Room, peak: impl Fn(Size) -> Option<usize>) -> Option<Next<J>> {
        for index in 0..self.waiting.len() {
            let size = self.waiting[index].size;
            match self.verdict(size, room, &peak) {
                Ok(reserved_bytes) => return Some(self.start(index, reserved_bytes)),
                Err(Wait::TooLarge { need_bytes }) => {
                    let job = self.waiting.remove(index)?.job;
                    return Some(Next::Refuse { size, need_bytes, job });
                }
                Err(_) if self.waiting[index].overtaken >= OVERTAKES => return None,
                Err(_) => {}
            }
        }
        None
    }

    fn start(&mut self, index: usize, reserved_bytes: Option<usize>) -> Next<J> {
        self.waiting.iter_mut().take(index).for_each(|earlier| earlier.overtaken += 1);
        let Some(Waiting { id, size, job, .. }) = self.waiting.remove(index) else {
            unreachable!("the caller found it at {index}");
        };
        let is_alone = self.running.is_empty();
        self.running.values_mut().for_each(|other| other.is_alone = false);
        self.running.insert(id, Running { size, reserved_bytes, is_alone, job });
        Next::Start(id)
    }

    /// The bytes to reserve for a proof that may start now; `None` for a trial.
    fn verdict(&self, size: Size, room: &Room, peak: &impl Fn(Size) -> Option<usize>) -> Result<Option<usize>, Wait> {
        let need = peak(size);
        if let Some(need_bytes) = need.filter(|&bytes| !room.fits(bytes)) {
            return Err(Wait::TooLarge { need_bytes });
        }
        if self.running.len() >= self.slots {
            return Err(Wait::Slot);
        }
        if self.running.values().any(|running| running.reserved_bytes.is_none()) {
            return Err(Wait::Trial);
        }
        let Some(need_bytes) = need else {
            return if self.running.is_empty() { Ok(None) } else { Err(Wait::Alone) };
        };
        let reserved = self.reserved_bytes();
        if !room.fits(reserved.saturating_add(need_bytes)) {
            return Err(Wait::Memory { need_bytes, free_bytes: room.free_bytes(reserved) });
        }
        Ok(Some(need_bytes))
    }

    /// The waiting proofs in their order, each with the reason why it waits.
    pub fn waits(&self, room: &Room, peak: impl Fn(Size) -> Option<usize>) -> Vec<(&Waiting<J>, Wait)> {
        let mut is_blocked = false;
        let reason = |waiting: &Waiting<J>| {
            let own = self.verdict(waiting.size, room, &peak).err();
            let reason = if is_blocked { Wait::Turn } else { own.unwrap_or(Wait::Turn) };
            is_blocked |= waiting.overtaken >= OVERTAKES;
            reason
        };
        let reasons: Vec<Wait> = self.waiting.iter().map(reason).collect();
        self.waiting.iter().zip(reasons).collect()
    }

    pub fn running(&self) -> &BTreeMap<u64, Running<J>> {
        &self.running
    }

    pub fn running_mut(&mut self, id: u64) -> Option<&mut Running<J>> {
        self.running.get_mut(&id)
    }

    pub fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// The bytes that running proofs may take; a trial counts as 0.
    pub fn reserved_bytes(&self) -> usize {
        self.running.values().filter_map(|running| running.reserved_bytes).sum()
    }

    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }
}

#[cfg(test)]
mod tests;
