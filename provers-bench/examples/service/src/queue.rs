//! Which proof may start: first come, first served, as far as memory allows.
//!
//! - A proof of a known size starts if its peak fits below the limit next to the running ones.
//! - A proof of an unknown size runs alone, and its peak is learned.
//! - If a proof does not fit yet, later ones may overtake it, at most [`OVERTAKES`] times.
//! - A proof that does not fit even alone is refused.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Instant;

use crate::MIB;

/// A waiting proof may be overtaken this often. More would keep more processors busy, and let it wait longer.
const OVERTAKES: u32 = 4;
/// The recent proofs of each size whose largest peak counts.
const RECENT: usize = 8;
/// A size is estimated from a smaller one with at most this many doublings between them. The fixed memory of a proof is
/// doubled as well, so further estimates would be far too high.
const DOUBLINGS: u32 = 3;

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

/// The reason why a proof waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    Slot,
    Turn,
    Alone,
    Memory {
        need_bytes: usize,
        free_bytes: usize,
    },
    /// It can never start.
    TooLarge(TooLarge),
}

/// A proof that does not fit below the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge {
    pub need_bytes: usize,
    pub room_bytes: usize,
    pub is_estimate: bool,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slot => f.write_str("as many proofs run as may"),
            Self::Turn => f.write_str("an earlier proof was overtaken often enough"),
            Self::Alone => f.write_str("a proof of an unknown size runs alone"),
            Self::Memory { need_bytes, free_bytes } => {
                write!(f, "it needs {}, and {} are free", mib(*need_bytes), mib(*free_bytes))
            }
            Self::TooLarge(TooLarge { need_bytes, room_bytes, is_estimate }) => {
                let basis = if *is_estimate { "estimated from smaller proofs" } else { "the peak of earlier proofs" };
                write!(f, "it needs {} ({basis}), and the limit leaves {}", mib(*need_bytes), mib(*room_bytes))
            }
        }
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
    overtaken: u32,
    job: J,
}

#[derive(Debug)]
pub struct Running {
    pub log_rows: u32,
    pub since: Instant,
    /// The bytes that it may take; `None` if its size is unknown.
    pub reserved_bytes: Option<usize>,
    /// Whether no other proof ran since it started.
    pub is_alone: bool,
}

/// The next step: start the job of this number, which counts as running now; or refuse it.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<J> {
    Start(u64, J),
    Refuse(TooLarge, J),
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
        self.waiting.push_back(Waiting { id: self.last_id, log_rows, since: Instant::now(), overtaken: 0, job });
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

    /// Ends a proof, and learns its peak. `PhaseReport::peak_live_bytes` counts the whole process, so only a proof that
    /// no other overlapped teaches. Returns whether it did.
    pub fn finish(&mut self, id: u64, peak_bytes: Option<usize>) -> bool {
        let Some(Running { log_rows, is_alone, .. }) = self.running.remove(&id) else { return false };
        if let (Some(peak_bytes), true) = (peak_bytes, is_alone) {
            let recent = self.peaks.entry(log_rows).or_default();
            recent.push_front(peak_bytes);
            recent.truncate(RECENT);
        }
        is_alone
    }

    /// The next proof to start or refuse; `None` if all must wait.
    pub fn next(&mut self) -> Option<Next<J>> {
        for index in 0..self.waiting.len() {
            let verdict = self.verdict(self.waiting[index].log_rows);
            match verdict {
                Ok(reserved_bytes) => {
                    self.waiting.iter_mut().take(index).for_each(|earlier| earlier.overtaken += 1);
                    let Waiting { id, log_rows, job, .. } = self.waiting.remove(index)?;
                    let is_alone = self.running.is_empty();
                    self.running.values_mut().for_each(|other| other.is_alone = false);
                    let since = Instant::now();
                    self.running.insert(id, Running { log_rows, since, reserved_bytes, is_alone });
                    return Some(Next::Start(id, job));
                }
                Err(Wait::TooLarge(why)) => return Some(Next::Refuse(why, self.waiting.remove(index)?.job)),
                Err(_) if self.waiting[index].overtaken >= OVERTAKES => return None,
                Err(_) => {}
            }
        }
        None
    }

    /// The bytes to reserve for a proof that may start now; `None` for a size that is unknown.
    fn verdict(&self, log_rows: u32) -> Result<Option<usize>, Wait> {
        self.fit(log_rows).map_err(Wait::TooLarge)?;
        if self.running.len() >= self.slots {
            return Err(Wait::Slot);
        }
        let Some(room) = &self.room else { return Ok(Some(0)) };
        let is_unknown_running = self.running.values().any(|running| running.reserved_bytes.is_none());
        match self.peak(log_rows) {
            _ if is_unknown_running => Err(Wait::Alone),
            None if !self.running.is_empty() => Err(Wait::Alone),
            None => Ok(None),
            Some(need_bytes) => {
                let free_bytes = room.for_proofs_bytes().saturating_sub(self.reserved_bytes());
                if need_bytes > free_bytes {
                    Err(Wait::Memory { need_bytes, free_bytes })
                } else {
                    Ok(Some(need_bytes))
                }
            }
        }
    }

    /// Whether a proof of this size can ever start, as far as is known.
    pub fn fit(&self, log_rows: u32) -> Result<(), TooLarge> {
        let known = self.peak(log_rows).map(|bytes| (bytes, false));
        // The next smaller known size, doubled for each doubling of the rows.
        let estimate = || {
            let doubled = |doublings| self.peak(log_rows.checked_sub(doublings)?)?.checked_shl(doublings);
            (1..=DOUBLINGS).find_map(doubled).map(|bytes| (bytes, true))
        };
        match (&self.room, known.or_else(estimate)) {
            (Some(room), Some((need_bytes, is_estimate))) if need_bytes > room.for_proofs_bytes() => {
                Err(TooLarge { need_bytes, room_bytes: room.for_proofs_bytes(), is_estimate })
            }
            _ => Ok(()),
        }
    }

    /// The largest recent peak of a size.
    fn peak(&self, log_rows: u32) -> Option<usize> {
        self.peaks.get(&log_rows)?.iter().copied().max()
    }

    /// All known sizes with their peaks.
    pub fn peaks(&self) -> impl Iterator<Item = (u32, usize)> {
        self.peaks.iter().filter_map(|(&log_rows, recent)| Some((log_rows, recent.iter().copied().max()?)))
    }

    /// The bytes that running proofs may take; a proof of an unknown size counts as 0.
    pub fn reserved_bytes(&self) -> usize {
        self.running.values().filter_map(|running| running.reserved_bytes).sum()
    }

    /// The waiting proofs in their order, each with the reason why it waits.
    pub fn waits(&self) -> Vec<(&Waiting<J>, Wait)> {
        let mut is_blocked = false;
        let reason = |waiting: &Waiting<J>| {
            let own = self.verdict(waiting.log_rows).err().unwrap_or(Wait::Turn);
            let reason = if is_blocked { Wait::Turn } else { own };
            is_blocked |= waiting.overtaken >= OVERTAKES;
            reason
        };
        let reasons: Vec<Wait> = self.waiting.iter().map(reason).collect();
        self.waiting.iter().zip(reasons).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ROOM: Room = Room { limit_bytes: 1000 * MIB, outside_bytes: 50 * MIB, base_bytes: 50 * MIB };

    /// 2^10 rows need 97 MiB and 2^13 need 780. Other sizes are unknown.
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

    fn reasons(queue: &Queue<()>) -> Vec<Wait> {
        queue.waits().into_iter().map(|(_, reason)| reason).collect()
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
        let mut slots = queue(&[10, 10, 10, 10]);
        assert_eq!(started(&mut slots), [1, 2, 3]);
        assert_eq!(reasons(&slots), [Wait::Slot]);

        let mut memory = queue(&[12, 12, 12]);
        assert_eq!(started(&mut memory), [1, 2]);
        let free_bytes = ROOM.for_proofs_bytes() - 780 * MIB;
        assert_eq!(reasons(&memory), [Wait::Memory { need_bytes: 390 * MIB, free_bytes }]);
        memory.finish(1, None);
        assert_eq!(started(&mut memory), [3]);
    }

    #[test]
    fn a_proof_of_an_unknown_size_runs_alone_and_teaches() {
        let mut queue = queue(&[10, 5, 10]);
        assert_eq!(started(&mut queue), [1, 3]);
        assert_eq!(reasons(&queue), [Wait::Alone]);
        assert!(!queue.finish(1, Some(1)) && !queue.finish(3, Some(1)), "they overlapped");
        assert_eq!(started(&mut queue), [2]);
        queue.join(10, ()).unwrap();
        assert!(started(&mut queue).is_empty());
        assert!(queue.finish(2, Some(7 * MIB)));
        assert_eq!(queue.peaks().next(), Some((5, 7 * MIB)));
        assert_eq!(started(&mut queue), [4]);
    }

    /// Small proofs that always fit would otherwise keep a large one waiting for ever.
    #[test]
    fn a_large_proof_is_overtaken_a_few_times_and_then_it_is_its_turn() {
        let mut queue = queue(&[10, 13]);
        assert_eq!(started(&mut queue), [1]);
        let mut last = 1;
        for _ in 0..OVERTAKES {
            let id = queue.join(10, ()).unwrap();
            assert_eq!(started(&mut queue), [id]);
            queue.finish(last, None);
            last = id;
        }
        queue.join(10, ()).unwrap();
        assert!(started(&mut queue).is_empty());
        assert_eq!(reasons(&queue)[1], Wait::Turn);
        queue.finish(last, None);
        assert_eq!(started(&mut queue), [2]);
    }

    #[test]
    fn a_proof_that_never_fits_is_refused_and_the_next_one_starts() {
        let mut queue = queue(&[14, 10]);
        let why = TooLarge { need_bytes: 1560 * MIB, room_bytes: ROOM.for_proofs_bytes(), is_estimate: true };
        assert_eq!(queue.next(), Some(Next::Refuse(why, ())));
        assert_eq!(started(&mut queue), [2]);
        assert_eq!(queue.fit(17), Ok(()), "too far away for an estimate");
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

    proptest! {
        /// In any order of events, the limits hold, and in the end every proof was started, refused, or left.
        #[test]
        fn nothing_starves_and_no_limit_is_passed(events in prop::collection::vec((0..8u8, 0..8usize), 1..200)) {
            let mut queue = queue(&[]);
            let (mut joined, mut settled) = (0, 0);
            let rest = (0..100).map(|_| (4, 0));
            for (kind, place) in events.into_iter().chain(rest) {
                match kind {
                    0..4 => joined += usize::from(queue.join(8 + place as u32, ()).is_some()),
                    4..7 => _ = queue.running.keys().copied().nth(place).map(|id| queue.finish(id, None)),
                    _ => {
                        let id = queue.waiting.get(place).map(|waiting| waiting.id);
                        settled += usize::from(id.is_some_and(|id| queue.leave(id).is_some()));
                    }
                }
                settled += std::iter::from_fn(|| queue.next()).count();
                let running = &queue.running;
                prop_assert!(running.len() <= 3 && queue.reserved_bytes() <= ROOM.for_proofs_bytes());
                let is_unknown = running.values().any(|running| running.reserved_bytes.is_none());
                prop_assert!(!is_unknown || running.len() == 1, "a proof of an unknown size runs next to another");
                prop_assert!(queue.waiting.iter().all(|waiting| waiting.overtaken <= OVERTAKES));
                prop_assert!(queue.waiting.is_empty() || !running.is_empty(), "a proof waits for nothing");
            }
            prop_assert_eq!((settled, queue.waiting.len()), (joined, 0));
        }
    }
}
