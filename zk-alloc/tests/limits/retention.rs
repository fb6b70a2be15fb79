//! The arena purges memory when asked: at the end of a phase, after an idle time, and on `release()`.

use std::hint::black_box;
use std::time::Duration;

use crate::support::blocks::Block;
use crate::support::process::{ours, soon};
use crate::support::{alone, field, rss_bytes};
use zk_alloc::{
    Participants, Phase, Retain, ZkAllocator, phase, release, reserve, set_retain, soften, start_background_thread,
    stats, stop_background_thread,
};

const BUFFER_BYTES: usize = 96 << 20;
/// The part of it that must show in RSS: the kernel's figure lags by some pages per core.
const SHOWN_BYTES: usize = BUFFER_BYTES / 10 * 9;

fn use_a_buffer() {
    // `black_box`, or the compiler would not write to a buffer that is freed at once.
    phase(|| drop(black_box(vec![1u8; BUFFER_BYTES])));
}

#[test]
fn resident_memory_follows_the_policy() {
    alone!();
    // The tables of the arena are there from here on.
    phase(|| drop(black_box(vec![1u8; 1 << 20])));
    let before = rss_bytes();
    set_retain(Retain::Always);
    use_a_buffer();
    assert!(rss_bytes() >= before + SHOWN_BYTES, "Always keeps the buffer's pages");
    let fresh = stats().fresh_bytes;
    use_a_buffer();
    assert_eq!(stats().fresh_bytes, fresh, "the next phase finds them");

    assert!(soften() >= BUFFER_BYTES, "free pages may go when the system runs short");
    use_a_buffer();

    assert!(release() >= BUFFER_BYTES);
    assert!(rss_bytes() < before + BUFFER_BYTES / 4, "release() purges them");

    // memory/returns.rs has what other policies keep. A time below a millisecond counts too, and the background thread learns of each new one.
    start_background_thread().expect("a thread");
    for idle in [Duration::from_micros(100), Duration::ZERO, Duration::from_millis(20)] {
        set_retain(Retain::For(idle));
        use_a_buffer();
        assert!(soon(|| stats().resident_bytes < BUFFER_BYTES), "Retain::For purges after idling for {idle:?}");
    }
    // With nothing to purge, the thread wakes once a second, so that a laptop's processor can sleep.
    std::thread::sleep(Duration::from_millis(200));
    let slept = sleeps_of_the_thread();
    std::thread::sleep(Duration::from_millis(2_200));
    let sleeps = sleeps_of_the_thread() - slept;
    assert!((1..=4).contains(&sleeps), "it woke {sleeps} times in 2.2 seconds");
    set_retain(Retain::For(Duration::MAX));
    use_a_buffer();
    std::thread::sleep(Duration::from_millis(50));
    assert!(stats().resident_bytes >= BUFFER_BYTES, "a time that never comes");
    stop_background_thread();
    set_retain(Retain::For(Duration::ZERO));
    use_a_buffer();
    assert!(stats().resident_bytes < BUFFER_BYTES / 4, "no time at all is at once, and needs no thread");

    set_retain(Retain::Always);
    release();
    assert!(reserve(BUFFER_BYTES) >= BUFFER_BYTES);
    assert!(rss_bytes() >= before + SHOWN_BYTES, "reserved memory is resident before anybody asked for it");
    let fresh = stats().fresh_bytes;
    let phase = Phase::new();
    let escaped = vec![1u8; BUFFER_BYTES];
    let report = phase.report();
    drop(phase);
    assert_eq!(stats().fresh_bytes, fresh, "and is what the next request finds");
    assert!(report.run_bytes >= BUFFER_BYTES as u64 && report.reused_bytes >= BUFFER_BYTES as u64, "{report}");
    assert!(report.escaped_bytes >= BUFFER_BYTES && report.peak_live_bytes >= BUFFER_BYTES, "{report}");
    assert!(report.to_string().contains("outliving the phase: 96.0 MiB"), "{report}");
    assert!(release() < BUFFER_BYTES && escaped.iter().all(|&byte| byte == 1), "what is alive stays");
}

/// How often the background thread went to sleep.
fn sleeps_of_the_thread() -> u64 {
    let [ours] = &ours()[..] else { panic!("{:?}", ours()) };
    field(ours.join("status"), "voluntary_ctxt_switches").parse().expect("a number")
}

static POOL: ZkAllocator = ZkAllocator.participants(Participants::Pool);

/// Under `Participants::Pool`, a thread outside the pool never touches the arena, unless it is registered as a worker.
#[test]
fn a_thread_outside_the_pool_does_not_use_the_arena() {
    alone!();
    let use_memory = || drop(Block::written(&POOL, 1 << 20));
    let used = |f: &(dyn Fn() + Sync)| {
        let before = stats().run_allocations;
        std::thread::scope(|scope| scope.spawn(f).join()).unwrap();
        stats().run_allocations - before
    };
    let _phase = Phase::new();
    assert_eq!(used(&use_memory), 0);
    let work = || {
        zk_alloc::pool::register_worker();
        use_memory();
    };
    assert!(used(&work) > 0);
    assert!(used(&|| phase(use_memory)) > 0);
}
