//! The arena purges memory when asked: at the end of a phase, after an idle time, and on `release()`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::support::blocks::Block;
use crate::support::tasks::ours;
use crate::support::{alone, field, in_its_own_process, rss_bytes};
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

    set_retain(Retain::Never);
    use_a_buffer();
    assert!(rss_bytes() < before + BUFFER_BYTES / 4, "Never keeps nothing");

    set_retain(Retain::Bytes(8 << 20));
    use_a_buffer();
    assert!(stats().resident_bytes <= 8 << 20);

    // A time below a millisecond counts too, and the background thread learns of each new one.
    start_background_thread().expect("a thread");
    for idle in [Duration::from_millis(50), Duration::from_micros(100), Duration::ZERO, Duration::from_millis(20)] {
        set_retain(Retain::For(idle));
        use_a_buffer();
        let deadline = Instant::now() + Duration::from_secs(20);
        while stats().resident_bytes >= BUFFER_BYTES {
            assert!(Instant::now() < deadline, "Retain::For purges after idling for {idle:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    idleness_costs_next_to_nothing();
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

/// Two pauses that were longer than a second and than the phase after them say that the next pause is long, too.
#[test]
fn memory_goes_before_long_pauses_and_stays_over_short_ones() {
    let (short, long) = (Duration::ZERO, Duration::from_millis(1_100));
    let stays = |pauses: &[Duration]| -> Vec<bool> {
        let after = |&pause: &Duration| {
            std::thread::sleep(pause);
            use_a_buffer();
            stats().resident_bytes >= BUFFER_BYTES
        };
        pauses.iter().map(after).collect()
    };
    in_its_own_process(&[], || {
        assert_eq!(stays(&[short, short, long, short, long]), [true; 5]);
        assert_eq!(stays(&[long, short]), [false, true]);
    });
    in_its_own_process(&[("ZK_ALLOC_RETAIN_BYTES", "1G")], || assert_eq!(stays(&[short, long, long]), [true; 3]));
}

/// How often the background thread went to sleep.
fn sleeps_of_the_thread() -> u64 {
    let [ours] = &ours()[..] else { panic!("{:?}", ours()) };
    field(ours.join("status"), "voluntary_ctxt_switches").parse().expect("a number")
}

/// With nothing to purge, the thread wakes once a second, so that a laptop's processor can sleep.
fn idleness_costs_next_to_nothing() {
    std::thread::sleep(Duration::from_millis(200));
    let before = sleeps_of_the_thread();
    std::thread::sleep(Duration::from_millis(2_200));
    let sleeps = sleeps_of_the_thread() - before;
    assert!((1..=4).contains(&sleeps), "it woke {sleeps} times in 2.2 seconds");
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
