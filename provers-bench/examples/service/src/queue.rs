//! Which proof may start: first come, first served, as far as memory allows.
//!
//! - A proof of a known size starts if its peak fits below the limit next to the running ones.
//! - A proof of an unknown size runs alone, and its peak is learned. Its need is estimated from a smaller one first.
//! - A proof that does not fit even alone is refused.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use crate::MIB;

/// The recent proofs of each size whose largest peak counts.
const RECENT: usize = 8;
/// The memory of the process, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    pub limit_bytes: usize,
    /// Resident memory outside of the arena: code, stacks, the backing allocator.
    pub outside_bytes: usize,
    /// Live memory of the arena that belongs to no proof: caches of the prover.
    pub base_bytes: usize,
}

impl Room {
    /// The bytes that all running proofs together may reserve. Fragmentation may push the arena above its live size, by
    /// 1/8 of it or by min(6 MiB, half of it), as docs/operating.md says. So a part of the room is left out.
    pub fn for_proofs_bytes(&self) -> usize {
        let arena = self.limit_bytes.saturating_sub(self.outside_bytes);
        let live = (arena / 9 * 8).min(arena.saturating_sub(6 * MIB).max(arena / 3 * 2));
        live.saturating_sub(self.base_bytes)
    }
}

pub fn mib(bytes: usize) -> String {
    format!("{:.1} MiB", bytes as f64 / MIB as f64)
}

#[derive(Debug)]
pub struct Waiting<J> {
    pub id: u64,
    pub log_rows: u32,
    pub since: Instant,
    job: J,
}

#[derive(Debug)]
pub struct Running {
    pub log_rows: u32,
    pub since: Instant,
    /// The bytes that it may take; `None` if its size is unknown.
    pub reserved_bytes: Option<usize>,
    /// Whether no other proof ran since it started.
    is_alone: bool,
}

/// The next step: start the job of this number, which counts as running now; or refuse it, and say why.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<J> {
    Start(u64, J),
    Refuse(String, J),
}

/// The proofs that wait, each with data of the caller (`J`), the proofs that run, and the peaks of earlier ones.
#[derive(Debug)]
pub struct Queue<J> {
    slots: usize,
    places: usize,
    last_id: u64,
    /// `None` if memory does not count: workers have budgets.
    pub room: Option<Room>,
    pub waiting: VecDeque<Waiting<J>>,
    pub running: BTreeMap<u64, Running>,
    peaks: BTreeMap<u32, VecDeque<usize>>,
}

impl<J> Queue<J> {
    /// For `slots` proofs at once, of which `places` more may wait.
    pub fn new(slots: usize, places: usize, room: Option<Room>) -> Self {
        let (waiting, running, peaks) = (VecDeque::new(), BTreeMap::new(), BTreeMap::new());
        Self { slots, places, last_id: 0, room, waiting, running, peaks }
    }

    /// Joins the queue; returns `None` if it is full. With a free slot, the queue has one place more: the proof may be
    /// about to start.
    pub fn join(&mut self, log_rows: u32, job: J) -> Option<u64> {
        if self.waiting.len() >= self.places + self.slots.saturating_sub(self.running.len()) {
            return None;
        }
        self.last_id += 1;
        self.waiting.push_back(Waiting { id: self.last_id, log_rows, since: Instant::now(), job });
        Some(self.last_id)
    }

    /// Takes a proof out of the queue; `None` if it does not wait.
    pub fn leave(&mut self, id: u64) -> Option<J> {
        let index = self.waiting.iter().position(|waiting| waiting.id == id)?;
        self.waiting.remove(index).map(|waiting| waiting.job)
    }

    /// Empties the queue.
    pub fn drain(&mut self) -> Vec<J> {
        self.waiting.drain(..).map(|waiting| waiting.job).collect()
    }

    /// Learns the peak of a size.
    pub fn learn(&mut self, log_rows: u32, peak_bytes: usize) {
        let recent = self.peaks.entry(log_rows).or_default();
        recent.push_front(peak_bytes);
        recent.truncate(RECENT);
    }

    /// Ends a proof, and learns its peak. `PhaseReport::peak_live_bytes` counts the whole process, so only a proof that
    /// no other overlapped teaches. Returns whether it did.
    pub fn finish(&mut self, id: u64, peak_bytes: Option<usize>) -> bool {
        let Some(Running { log_rows, is_alone, .. }) = self.running.remove(&id) else { return false };
        if let (Some(peak_bytes), true) = (peak_bytes, is_alone) {
            self.learn(log_rows, peak_bytes);
        }
        is_alone
    }

    /// The next proof to start or refuse; `None` if all must wait.
    pub fn next(&mut self) -> Option<Next<J>> {
        let log_rows = self.waiting.front()?.log_rows;
        if let Err(why) = self.fit(log_rows) {
            return Some(Next::Refuse(why, self.waiting.pop_front()?.job));
        }
        let reserved_bytes = self.reservation(log_rows).ok()?;
        let Waiting { id, job, .. } = self.waiting.pop_front()?;
        let is_alone = self.running.is_empty();
        self.running.values_mut().for_each(|other| other.is_alone = false);
        self.running.insert(id, Running { log_rows, since: Instant::now(), reserved_bytes, is_alone });
        Some(Next::Start(id, job))
    }

    /// The bytes to reserve for a proof that may start now, `None` for a size that is unknown; or why it waits.
    fn reservation(&self, log_rows: u32) -> Result<Option<usize>, String> {
        if self.running.len() >= self.slots {
            return Err("as many proofs run as may".into());
        }
        let Some(room) = &self.room else { return Ok(Some(0)) };
        let Some(need_bytes) = self.peak(log_rows) else {
            return if self.running.is_empty() {
                Ok(None)
            } else {
                Err("its size is unknown, so it runs alone".into())
            };
        };
        if self.running.values().any(|running| running.reserved_bytes.is_none()) {
            return Err("a proof of an unknown size runs alone".into());
        }
        let free_bytes = room.for_proofs_bytes().saturating_sub(self.reserved_bytes());
        if need_bytes > free_bytes {
            return Err(format!("it needs {}, and {} are free", mib(need_bytes), mib(free_bytes)));
        }
        Ok(Some(need_bytes))
    }

    /// Checks that a proof of this size fits below the limit when it runs alone, by its known or estimated peak. A size without an
    /// estimate passes. The error is the reason.
    pub fn fit(&self, log_rows: u32) -> Result<(), String> {
        let known = self.peak(log_rows).map(|bytes| (bytes, "the peak of earlier proofs"));
        // The next smaller known size, doubled for each doubling of the rows. Its fixed memory is doubled as well, so this is too high
        // rather than too low.
        let estimate = || {
            let (&smaller, _) = self.peaks.range(..log_rows).next_back()?;
            let bytes = self.peak(smaller)?.saturating_mul(1 << (log_rows - smaller));
            Some((bytes, "estimated from smaller proofs"))
        };
        let Some((room, (need, basis))) = self.room.as_ref().zip(known.or_else(estimate)) else { return Ok(()) };
        match room.for_proofs_bytes() {
            room if need > room => Err(format!("it needs {} ({basis}), and the limit leaves {}", mib(need), mib(room))),
            _ => Ok(()),
        }
    }

    /// The largest recent peak of a size.
    fn peak(&self, log_rows: u32) -> Option<usize> {
        self.peaks.get(&log_rows)?.iter().copied().max()
    }

    /// All known sizes with their peaks.
    pub fn peaks(&self) -> impl Iterator<Item = (u32, usize)> {
        self.peaks.keys().filter_map(|&log_rows| Some((log_rows, self.peak(log_rows)?)))
    }

    /// The bytes that running proofs may take; a proof of an unknown size counts as 0.
    pub fn reserved_bytes(&self) -> usize {
        self.running.values().filter_map(|running| running.reserved_bytes).sum()
    }

    /// The waiting proofs in their order, each with the reason why it waits.
    pub fn waits(&self) -> impl Iterator<Item = (&Waiting<J>, String)> {
        let first = self.waiting.front().and_then(|waiting| self.reservation(waiting.log_rows).err());
        let reasons = first.into_iter().chain(std::iter::repeat("earlier proofs come first".into()));
        self.waiting.iter().zip(reasons)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room { limit_bytes: 1000 * MIB, outside_bytes: 50 * MIB, base_bytes: 50 * MIB };

    /// 2^10 rows need 97.5 MiB and 2^13 need 780. Other sizes are unknown.
    fn queue(sizes: &[u32]) -> Queue<()> {
        let mut queue = Queue::new(3, 10, Some(ROOM));
        queue.peaks = (10..=13).map(|log_rows| (log_rows, [(780 * MIB / 8) << (log_rows - 10)].into())).collect();
        sizes.iter().for_each(|&log_rows| _ = queue.join(log_rows, ()).unwrap());
        queue
    }

    /// Starts all that may start; returns their numbers.
    fn started(queue: &mut Queue<()>) -> Vec<u64> {
        let number = |next| if let Next::Start(id, ()) = next { id } else { panic!("{next:?}") };
        std::iter::from_fn(|| queue.next()).map(number).collect()
    }

    fn reasons(queue: &Queue<()>) -> Vec<String> {
        queue.waits().map(|(_, reason)| reason).collect()
    }

    #[test]
    fn the_room_for_proofs_leaves_out_the_margin_of_the_arena() {
        // 8/9 of 950 MiB, less the base: 1/8 of the live size is margin.
        assert!(ROOM.for_proofs_bytes().abs_diff(950 * MIB / 9 * 8 - 50 * MIB) < 10);
        let small = |limit_bytes| Room { limit_bytes, outside_bytes: 0, base_bytes: 0 }.for_proofs_bytes();
        assert_eq!([30 * MIB, 9 * MIB, 0].map(small), [24 * MIB, 6 * MIB, 0]);
    }

    #[test]
    fn proofs_start_in_order_until_slots_or_memory_are_used_up() {
        let mut slots = queue(&[10, 10, 10, 10, 10]);
        assert_eq!(started(&mut slots), [1, 2, 3]);
        assert_eq!(reasons(&slots), ["as many proofs run as may", "earlier proofs come first"]);

        let mut memory = queue(&[12, 12, 12]);
        assert_eq!(started(&mut memory), [1, 2]);
        assert_eq!(reasons(&memory), ["it needs 390.0 MiB, and 14.4 MiB are free"]);
        memory.finish(1, None);
        assert_eq!(started(&mut memory), [3]);
    }

    #[test]
    fn a_proof_of_an_unknown_size_runs_alone_and_teaches() {
        let mut queue = queue(&[10, 10, 5, 10]);
        assert_eq!(started(&mut queue), [1, 2]);
        assert_eq!(reasons(&queue)[0], "its size is unknown, so it runs alone");
        assert!(!queue.finish(1, Some(1)) && !queue.finish(2, Some(1)), "they overlapped");
        assert_eq!(started(&mut queue), [3]);
        assert_eq!(reasons(&queue), ["a proof of an unknown size runs alone"]);
        assert!(queue.finish(3, Some(7 * MIB)));
        assert_eq!(queue.peaks().next(), Some((5, 7 * MIB)));
        assert_eq!(started(&mut queue), [4]);
    }

    #[test]
    fn a_proof_that_never_fits_is_refused_and_the_next_one_starts() {
        let mut queue = queue(&[14, 10]);
        let why = "it needs 1560.0 MiB (estimated from smaller proofs), and the limit leaves 794.4 MiB".to_owned();
        assert_eq!(queue.next(), Some(Next::Refuse(why, ())));
        assert_eq!(started(&mut queue), [2]);
        assert!(queue.fit(20).is_err() && queue.fit(9).is_ok(), "an estimate from 2^13, and none from a larger size");
    }

    #[test]
    fn the_queue_is_bounded_and_a_waiting_proof_may_leave_it() {
        let mut queue = Queue::new(1, 2, None);
        assert_eq!([1, 2, 3, 4].map(|_| queue.join(10, ()).is_some()), [true, true, true, false]);
        assert_eq!(started(&mut queue), [1]);
        assert!(queue.join(10, ()).is_none(), "two wait, and the slot is taken");
        assert!(queue.leave(2).is_some() && queue.leave(2).is_none() && queue.leave(1).is_none());
        assert!(queue.join(10, ()).is_some());
        queue.finish(1, None);
        assert_eq!(started(&mut queue), [3]);
        assert_eq!(queue.drain().len(), 1);
    }
}
