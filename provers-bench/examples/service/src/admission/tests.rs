use proptest::prelude::*;

use super::*;
use crate::request::Kind;

const MIB: usize = 1 << 20;
const ROOM: Room = Room { limit_bytes: 1000 * MIB, outside_bytes: 50 * MIB, base_bytes: 50 * MIB };

fn size(log_rows: u32) -> Size {
    Size { kind: Kind::Keccak, log_rows }
}

/// 2^10 rows need 97 MiB and 2^13 need 780; 2^14 and more do not fit below the limit. Sizes below are unknown.
fn peak(size: Size) -> Option<usize> {
    (size.log_rows >= 10).then(|| (780 * MIB / 8) << (size.log_rows - 10))
}

fn ledger(sizes: &[u32]) -> Ledger<()> {
    let mut ledger = Ledger::new(3, 100);
    for (id, &log_rows) in (1..).zip(sizes) {
        ledger.join(id, size(log_rows), ()).unwrap();
    }
    ledger
}

/// Starts all that may start; returns their numbers.
fn started(ledger: &mut Ledger<()>) -> Vec<u64> {
    std::iter::from_fn(|| ledger.next(&ROOM, peak))
        .map(|next| match next {
            Next::Start(id) => id,
            refused => panic!("{refused:?}"),
        })
        .collect()
}

fn reasons(ledger: &Ledger<()>) -> Vec<Wait> {
    ledger.waits(&ROOM, peak).into_iter().map(|(_, reason)| reason).collect()
}

#[test]
fn the_room_for_proofs_leaves_out_the_margin_of_the_arena() {
    // 8/9 of 950 MiB, less the base: 1/8 of the live size is margin.
    assert!(ROOM.for_proofs_bytes().abs_diff(950 * MIB / 9 * 8 - 50 * MIB) < 10);
    let small = |limit_bytes| Room { limit_bytes, outside_bytes: 0, base_bytes: 0 }.for_proofs_bytes();
    assert_eq!(small(30 * MIB), 24 * MIB);
    assert_eq!(small(9 * MIB), 6 * MIB);
    assert_eq!(small(0), 0);
    let full = Room { base_bytes: 2000 * MIB, ..ROOM };
    assert_eq!((full.for_proofs_bytes(), full.fits(1)), (0, false));
}

#[test]
fn proofs_start_in_their_order_until_the_slots_or_the_memory_are_used_up() {
    let mut slots = ledger(&[10, 10, 10, 10]);
    assert_eq!(started(&mut slots), [1, 2, 3]);
    assert_eq!(reasons(&slots), [Wait::Slot]);

    let mut memory = ledger(&[12, 12, 12]);
    assert_eq!(started(&mut memory), [1, 2]);
    let free_bytes = ROOM.for_proofs_bytes() - 780 * MIB;
    assert_eq!(reasons(&memory), [Wait::Memory { need_bytes: 390 * MIB, free_bytes }]);
    assert!(memory.finish(1).is_some());
    assert_eq!(started(&mut memory), [3]);
}

/// The peak of a proof shows only in a phase that no other phase overlaps.
#[test]
fn a_proof_of_an_unknown_size_runs_alone() {
    let mut ledger = ledger(&[10, 5, 10]);
    assert_eq!(started(&mut ledger), [1, 3]);
    assert_eq!(reasons(&ledger), [Wait::Alone]);
    ledger.finish(1);
    ledger.finish(3);
    assert_eq!(started(&mut ledger), [2]);
    ledger.join(4, size(10), ()).unwrap();
    assert!(started(&mut ledger).is_empty());
    assert_eq!(reasons(&ledger), [Wait::Trial]);
    assert!(ledger.running()[&2].is_alone);
}

/// A proof that overlapped another one at any moment must not teach, whichever of the two started or ended first.
#[test]
fn only_a_proof_that_no_other_overlapped_counts_as_alone() {
    let mut ledger = ledger(&[10]);
    started(&mut ledger);
    assert!(ledger.running()[&1].is_alone);
    ledger.join(2, size(10), ()).unwrap();
    started(&mut ledger);
    assert!(!ledger.running()[&1].is_alone && !ledger.running()[&2].is_alone);
    ledger.finish(1);
    assert!(!ledger.running()[&2].is_alone);
}

/// Small proofs that always fit would otherwise keep a large one waiting for ever.
#[test]
fn a_large_proof_is_overtaken_a_few_times_and_then_it_is_its_turn() {
    let mut ledger = ledger(&[10, 13]);
    assert_eq!(started(&mut ledger), [1]);
    let mut id = 2;
    let mut last = 1;
    for _ in 0..OVERTAKES {
        id += 1;
        ledger.join(id, size(10), ()).unwrap();
        assert_eq!(started(&mut ledger), [id]);
        ledger.finish(last);
        last = id;
    }
    ledger.join(99, size(10), ()).unwrap();
    assert!(started(&mut ledger).is_empty());
    assert_eq!(reasons(&ledger)[1], Wait::Turn);
    ledger.finish(last);
    assert_eq!(started(&mut ledger), [2]);
}

#[test]
fn a_proof_that_does_not_fit_even_alone_is_refused_and_the_next_one_starts() {
    let mut ledger = ledger(&[14, 10]);
    let refused = ledger.next(&ROOM, peak);
    assert_eq!(refused, Some(Next::Refuse { size: size(14), need_bytes: 1560 * MIB, job: () }));
    assert_eq!(started(&mut ledger), [2]);
}

#[test]
fn the_queue_is_bounded_and_a_waiting_proof_may_leave_it() {
    let mut ledger = Ledger::new(1, 2);
    assert_eq!([1, 2, 3, 4].map(|id| ledger.join(id, size(10), ()).is_ok()), [true, true, true, false]);
    assert_eq!(started(&mut ledger), [1]);
    assert!(ledger.join(5, size(10), ()).is_err(), "two wait, and the slot is taken");
    assert!(ledger.leave(2).is_some() && ledger.leave(2).is_none() && ledger.leave(1).is_none());
    assert!(ledger.join(6, size(10), ()).is_ok());
    ledger.finish(1);
    assert_eq!(started(&mut ledger), [3]);
    assert_eq!(ledger.drain().map(|waiting| waiting.id).collect::<Vec<_>>(), [6]);
}

#[test]
fn without_a_limit_only_the_slots_count() {
    let mut ledger = ledger(&[20, 20, 20, 20]);
    let count = std::iter::from_fn(|| ledger.next(&Room::UNBOUNDED, |_| Some(0))).count();
    assert_eq!(count, 3);
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Join(u32),
    /// The running proof of this place among the running ones ends.
    Finish(usize),
    /// The waiting proof of this place leaves.
    Leave(usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (8u32..=15).prop_map(Event::Join),
        3 => (0usize..8).prop_map(Event::Finish),
        1 => (0usize..8).prop_map(Event::Leave),
    ];
    proptest::collection::vec(event, 1..200)
}

/// The invariants.
fn check(ledger: &Ledger<()>) -> Result<(), TestCaseError> {
    let running = ledger.running();
    prop_assert!(running.len() <= 3);
    prop_assert!(ROOM.fits(ledger.reserved_bytes()), "{} bytes are reserved", ledger.reserved_bytes());
    let is_trial = running.values().any(|running| running.reserved_bytes.is_none());
    prop_assert!(!is_trial || running.len() == 1, "a trial runs next to another proof");
    let waits = ledger.waits(&ROOM, peak);
    prop_assert!(waits.iter().all(|(waiting, _)| waiting.overtaken <= OVERTAKES));
    prop_assert!(waits.is_empty() || !running.is_empty(), "a proof waits for nothing");
    Ok(())
}

proptest! {
    /// In any order of events, the limits hold, and in the end every proof was started, refused, or left.
    #[test]
    fn nothing_starves_and_no_limit_is_passed(events in events()) {
        let mut ledger = Ledger::new(3, 10);
        let (mut joined, mut settled) = (0, 0);
        let settle = |ledger: &mut Ledger<()>| std::iter::from_fn(|| ledger.next(&ROOM, peak)).count();
        for (id, event) in (1..).zip(events) {
            match event {
                Event::Join(log_rows) => joined += usize::from(ledger.join(id, size(log_rows), ()).is_ok()),
                Event::Finish(place) => {
                    if let Some(id) = ledger.running().keys().copied().nth(place) {
                        ledger.finish(id);
                    }
                }
                Event::Leave(place) => {
                    let id = ledger.waits(&ROOM, peak).get(place).map(|(waiting, _)| waiting.id);
                    settled += usize::from(id.is_some_and(|id| ledger.leave(id).is_some()));
                }
            }
            settled += settle(&mut ledger);
            check(&ledger)?;
        }
        while let Some(id) = ledger.running().keys().copied().next() {
            ledger.finish(id);
            settled += settle(&mut ledger);
            check(&ledger)?;
        }
        prop_assert_eq!((settled, ledger.waiting_count()), (joined, 0));
    }
}
