//! Random phases on many threads, with panics in the middle of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use crate::support::{Numbers, THRESHOLDS, alone, assert_patterned, child, patterned, scribble};
use zk_alloc::{PhaseGuard, phase, stats};

/// A seed, and the buffer whose contents follow from it.
type Buffer = (u64, Vec<u64>);

fn random_buffer(numbers: &mut Numbers) -> Buffer {
    let seed = numbers.below(1 << 30) as u64;
    let len = [5, 60, 700, 3_000, 9_000, 40_000, 150_000][numbers.below(7)];
    (seed, patterned(len - numbers.below(len / 4), seed))
}

/// Opens nested phases. In each it makes buffers, checks them, and sends half of them to another thread.
fn nest(depth: usize, numbers: &mut Numbers, give: &mpsc::Sender<Buffer>) {
    let mine: Vec<_> = (0..3).map(|_| random_buffer(numbers)).collect();
    if depth < 5 && numbers.below(4) > 0 {
        phase(|| nest(depth + 1, numbers, give));
    }
    mine.iter().for_each(|(seed, buffer)| assert_patterned(buffer, *seed));
    for buffer in mine {
        if numbers.below(2) == 0 {
            // If the receiver is gone, `send` fails and this thread frees the buffer.
            let _ = give.send(buffer);
        }
    }
}

/// Many threads change the number of open phases. A buffer is made under one number, checked under another, and freed
/// by a thread that may have no phase open.
#[test]
fn buffers_of_nested_and_concurrent_phases_never_share_memory() {
    alone!(each THRESHOLDS);
    const THREADS: usize = 16;
    let before = stats();
    let (gives, takes): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel()).unzip();
    thread::scope(|scope| {
        for (id, take) in takes.into_iter().enumerate() {
            let give = gives[(id + 1) % THREADS].clone();
            scope.spawn(move || {
                let mut numbers = Numbers::new(id as u64);
                let mut kept: Vec<Buffer> = Vec::new();
                for _ in 0..60 {
                    match numbers.below(3) {
                        0 => nest(1, &mut numbers, &give),
                        1 => phase(|| nest(1, &mut numbers, &give)),
                        _ => {
                            let _guard = PhaseGuard::new();
                            nest(2, &mut numbers, &give);
                        }
                    }
                    kept.extend(take.try_iter());
                    kept.iter().for_each(|(seed, buffer)| assert_patterned(buffer, *seed));
                    while kept.len() > 8 {
                        kept.swap_remove(numbers.below(kept.len()));
                    }
                }
            });
        }
    });
    drop(gives);
    let after = stats();
    assert!(after.slab_allocations > before.slab_allocations && after.run_allocations > before.run_allocations);
    // Every phase has ended, so the arena takes no part.
    let (before, buffer) = (stats().arena_allocations, patterned(100_000, 1));
    assert_eq!(stats().arena_allocations, before);
    drop(buffer);
}

/// Unwinding runs the destructors of half-built frames, and ends the phases on its way.
#[test]
fn a_panic_in_nested_phases_frees_its_frames_and_nothing_else() {
    alone!(each THRESHOLDS);
    std::panic::set_hook(Box::new(|_| ()));
    let saved = Mutex::new(Vec::new());
    let live_before = stats().live_bytes;
    for round in 0..40u64 {
        let fail_in = |depth: u64| {
            phase(|| {
                let _in_the_frame = [patterned(700, depth), patterned(70_000, depth), patterned(7, depth)];
                let kept = (depth, patterned(2_000, depth));
                saved.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
                phase(|| {
                    let deeper = patterned(1_000, depth);
                    let message: Buffer = (depth, patterned(5_000, depth));
                    assert_patterned(&deeper, depth);
                    std::panic::panic_any(message);
                })
            })
        };
        let payload = if round.is_multiple_of(2) {
            catch_unwind(AssertUnwindSafe(|| fail_in(round))).unwrap_err()
        } else {
            thread::scope(|scope| scope.spawn(|| fail_in(round)).join().unwrap_err())
        };
        phase(scribble);
        // The payload was made in the phase that the panic ended.
        let (seed, words) = *payload.downcast::<Buffer>().unwrap();
        assert_patterned(&words, seed);
        let saved = saved.lock().unwrap_or_else(PoisonError::into_inner);
        saved.iter().for_each(|(seed, kept)| assert_patterned(kept, *seed));
        assert_eq!(saved.len() as u64, round + 1);
    }
    drop(saved);
    let _ = std::panic::take_hook();
    assert!(stats().arena_allocations >= 40 * 4, "{}", stats());
    // After 40 rounds of frames, only slabs of threads are left.
    assert!(stats().live_bytes - live_before <= 4 << 20, "{}", stats());
    let before = stats().arena_allocations;
    drop(patterned(100_000, 1));
    assert_eq!(stats().arena_allocations, before, "a phase stayed open");
}

/// The process ends by `exit` while a phase is open and another thread runs. It must not hang, crash or warn.
#[test]
fn a_process_may_end_with_a_phase_open() {
    let ended = child(&[], || {
        let _kept: Vec<_> = phase(|| (0..4).map(|seed| patterned(60_000, seed)).collect());
        let _guard = PhaseGuard::new();
        thread::spawn(|| drop(patterned(1 << 20, 3)));
        std::process::exit(7);
    });
    let Some(ended) = ended else { return };
    assert_eq!(ended.status.code(), Some(7), "{ended:?}");
    assert!(ended.warnings().is_empty(), "{ended:?}");
}
