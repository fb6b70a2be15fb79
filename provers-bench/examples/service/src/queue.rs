//! Decides which proof may start: first come, first served, as memory allows.
//!
//! - A proof of a known size starts if its peak, together with those of the running proofs, fits below the limit.
//! - A proof of an unknown size runs alone, and the queue learns its peak.
//! - A proof that would exceed the limit even if it ran alone is refused. The peak of an unknown size is estimated from that of a smaller
//!   size.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use crate::MIB;
use crate::http::Failure;

/// The process's memory limit, and the memory that it uses outside of proofs, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLimit {
    pub limit_bytes: usize,
    /// Resident memory outside of the arena: code, stacks, the backing allocator.
    pub outside_bytes: usize,
    /// Live memory of the arena that belongs to no proof, such as the prover's caches.
    pub base_bytes: usize,
}

impl MemoryLimit {
    /// Returns the number of bytes that the running proofs may reserve in total, with a margin for fragmentation. As docs/operating.md
    /// explains, the arena may exceed its live size by 1/8 of that size or by min(6 MiB, half of that size), whichever is larger.
    pub fn for_proofs_bytes(&self) -> usize {
        let arena = self.limit_bytes.saturating_sub(self.outside_bytes);
        let live = (arena / 9 * 8).min(arena.saturating_sub(6 * MIB).max(arena / 3 * 2));
        live.saturating_sub(self.base_bytes)
    }
}

pub fn mib(bytes: usize) -> String {
    format!("{:.1} MiB", bytes as f64 / MIB as f64)
}

/// A proof that is waiting or running.
pub struct Proof {
    pub id: u64,
    pub log_rows: u32,
    /// When it joined the queue; for a running proof, when it started.
    pub since: Instant,
    /// The number of bytes reserved for it; 0 while it waits.
    pub reserved_bytes: usize,
    /// Whether it has been the only running proof since it started.
    is_alone: bool,
}

/// The waiting proofs, the running proofs, and the peaks of earlier ones.
#[derive(Default)]
pub struct Queue {
    /// The number of proofs that may run at once.
    pub slots: usize,
    /// The number of proofs that may wait.
    pub places: usize,
    pub last_id: u64,
    /// `None` if workers have their own budgets, because proofs then do not wait for memory.
    pub memory: Option<MemoryLimit>,
    pub is_stopping: bool,
    pub waiting: VecDeque<Proof>,
    pub running: Vec<Proof>,
    /// The largest peak of each size so far.
    pub peaks: BTreeMap<u32, usize>,
}

impl Queue {
    /// Adds a proof to the queue and returns its ID.
    pub fn join(&mut self, log_rows: u32) -> Result<u64, Failure> {
        self.fit(log_rows)?;
        let waiting = self.waiting.len();
        if waiting + self.running.len() >= self.slots + self.places {
            return Err(Failure::unavailable(format!("the queue is full ({waiting} waiting); try again later")));
        }
        self.last_id += 1;
        let (id, since) = (self.last_id, Instant::now());
        self.waiting.push_back(Proof { id, log_rows, since, reserved_bytes: 0, is_alone: false });
        Ok(id)
    }

    /// Starts the waiting proof with this ID if it is first in the queue, a slot is free, and its memory fits. Returns whether it started.
    pub fn start(&mut self, id: u64, log_rows: u32) -> Result<bool, Failure> {
        self.fit(log_rows)?;
        let is_first = self.waiting.front().is_some_and(|first| first.id == id);
        let Some(reserved_bytes) = self.reservation(log_rows).ok().filter(|_| is_first) else { return Ok(false) };
        let is_alone = self.running.is_empty();
        self.running.iter_mut().for_each(|other| other.is_alone = false);
        self.waiting.pop_front();
        self.running.push(Proof { id, log_rows, since: Instant::now(), reserved_bytes, is_alone });
        Ok(true)
    }

    /// Removes a waiting or running proof. Returns whether it ran and no other proof overlapped it. The peak is recorded only in this case,
    /// because `PhaseReport::peak_live_bytes` counts the whole process.
    pub fn leave(&mut self, id: u64, peak_bytes: Option<usize>) -> bool {
        self.waiting.retain(|proof| proof.id != id);
        let Some(index) = self.running.iter().position(|proof| proof.id == id) else { return false };
        let Proof { log_rows, is_alone, .. } = self.running.remove(index);
        if let (Some(peak_bytes), true) = (peak_bytes, is_alone) {
            let largest = self.peaks.entry(log_rows).or_default();
            *largest = peak_bytes.max(*largest);
        }
        is_alone
    }

    /// Returns the number of bytes to reserve for a proof of this size if it may start now; otherwise, the reason why it waits. A proof of
    /// an unknown size reserves all memory, so it runs alone.
    fn reservation(&self, log_rows: u32) -> Result<usize, String> {
        if self.running.len() >= self.slots {
            return Err("as many proofs run as --proofs allows".into());
        }
        let Some(memory) = &self.memory else { return Ok(0) };
        let all_bytes = memory.for_proofs_bytes();
        let (need_bytes, needs) = match self.peaks.get(&log_rows) {
            Some(&peak_bytes) => (peak_bytes, "it needs"),
            None => (all_bytes, "its size is unknown, so it needs all"),
        };
        match all_bytes.saturating_sub(self.reserved_bytes()) {
            free_bytes if need_bytes <= free_bytes => Ok(need_bytes),
            free_bytes => Err(format!("{needs} {}, and {} are free", mib(need_bytes), mib(free_bytes))),
        }
    }

    /// Checks that the service is not stopping, and that the known or estimated peak of a proof of this size fits below the limit if the
    /// proof runs alone. A size without an estimate passes.
    fn fit(&self, log_rows: u32) -> Result<(), Failure> {
        if self.is_stopping {
            let text = "the service is shutting down and starts no more proofs; use another instance";
            return Err(Failure::unavailable(text));
        }
        let known = self.peaks.get(&log_rows).map(|&bytes| (bytes, "the peak of earlier proofs"));
        // Doubles the peak of the next smaller known size for each doubling of the rows. This also doubles the fixed part of the memory, so
        // the estimate is on the high side.
        let estimate = || {
            let (smaller, bytes) = self.peaks.range(..log_rows).next_back()?;
            Some((bytes.saturating_mul(1 << (log_rows - smaller)), "estimated from smaller proofs"))
        };
        let Some((memory, (need, basis))) = self.memory.zip(known.or_else(estimate)) else { return Ok(()) };
        let room = memory.for_proofs_bytes();
        if need <= room {
            return Ok(());
        }
        let why = format!("it needs {} ({basis}), and the limit leaves {}", mib(need), mib(room));
        Err(Failure::over_memory(log_rows, why))
    }

    /// Returns the number of bytes reserved for the running proofs.
    pub fn reserved_bytes(&self) -> usize {
        self.running.iter().map(|running| running.reserved_bytes).sum()
    }

    /// Returns the waiting proofs in order, each with the reason why it waits.
    pub fn waits(&self) -> impl Iterator<Item = (&Proof, String)> {
        let first = self.waiting.front().and_then(|waiting| self.reservation(waiting.log_rows).err());
        let reasons = first.into_iter().chain(std::iter::repeat("earlier proofs come first".into()));
        self.waiting.iter().zip(reasons)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: MemoryLimit = MemoryLimit { limit_bytes: 1000 * MIB, outside_bytes: 50 * MIB, base_bytes: 50 * MIB };

    /// Returns a queue in which 2^10 rows need 97.5 MiB and 2^13 rows need 780 MiB. Other sizes are unknown.
    fn queue(sizes: &[u32]) -> Queue {
        let mut queue = Queue { slots: 3, places: 10, memory: Some(MEMORY), ..Queue::default() };
        sizes.iter().for_each(|&log_rows| _ = queue.join(log_rows).unwrap());
        queue.peaks = (10..=13).map(|log_rows| (log_rows, (780 * MIB / 8) << (log_rows - 10))).collect();
        queue
    }

    /// Starts all proofs that may start and returns their IDs.
    fn started(queue: &mut Queue) -> Vec<u64> {
        let next = || {
            let Proof { id, log_rows, .. } = *queue.waiting.front()?;
            queue.start(id, log_rows).unwrap().then_some(id)
        };
        std::iter::from_fn(next).collect()
    }

    fn reasons(queue: &Queue) -> Vec<String> {
        queue.waits().map(|(_, reason)| reason).collect()
    }

    #[test]
    fn proofs_start_in_order_until_slots_or_memory_are_used_up() {
        // 8/9 of the arena's 950 MiB, minus the base: the margin is 1/8 of the live size.
        assert!(MEMORY.for_proofs_bytes().abs_diff(950 * MIB / 9 * 8 - 50 * MIB) < 10);
        let mut slots = queue(&[10, 10, 10, 10, 10]);
        assert_eq!(slots.start(2, 10), Ok(false), "it is not its turn");
        assert_eq!(started(&mut slots), [1, 2, 3]);
        assert_eq!(reasons(&slots), ["as many proofs run as --proofs allows", "earlier proofs come first"]);

        let mut memory = queue(&[12, 12, 12]);
        assert_eq!(started(&mut memory), [1, 2]);
        assert_eq!(reasons(&memory), ["it needs 390.0 MiB, and 14.4 MiB are free"]);
        memory.leave(1, None);
        assert_eq!(started(&mut memory), [3]);
    }

    #[test]
    fn a_proof_of_an_unknown_size_runs_alone_and_its_peak_is_learned() {
        let mut queue = queue(&[10, 10, 5, 10]);
        assert_eq!(started(&mut queue), [1, 2]);
        assert_eq!(reasons(&queue)[0], "its size is unknown, so it needs all 794.4 MiB, and 599.4 MiB are free");
        assert!(!queue.leave(1, Some(1)) && !queue.leave(2, Some(1)), "they overlapped");
        assert_eq!(started(&mut queue), [3]);
        assert_eq!(reasons(&queue), ["it needs 97.5 MiB, and 0.0 MiB are free"]);
        assert!(queue.leave(3, Some(7 * MIB)));
        assert_eq!(queue.peaks[&5], 7 * MIB);
        assert_eq!(started(&mut queue), [4]);
    }

    /// tests/service.rs covers full queues, cancelled proofs and shutdown.
    #[test]
    fn a_proof_that_never_fits_is_refused_and_the_next_one_starts() {
        let mut queue = queue(&[14, 10]);
        let why = "it needs 1560.0 MiB (estimated from smaller proofs), and the limit leaves 794.4 MiB";
        assert_eq!(queue.start(1, 14), Err(Failure::over_memory(14, why)));
        queue.leave(1, None);
        assert_eq!(started(&mut queue), [2]);
        assert!(queue.join(20).is_err() && queue.join(9).is_ok(), "an estimate from 2^13, and none from a larger size");
    }
}
