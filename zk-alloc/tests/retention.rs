//! The arena purges memory when asked: at the end of a phase, after an idle time, and on `release()`.
//!
//! There is one test, because resident memory belongs to the process.

mod support;

use std::fs;
use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use support::rss_bytes;
use zk_alloc::{
    Participants, Phase, Retain, ZkAllocator, phase, release, reserve, set_retain, soften, start_background_thread,
    stats, stop_background_thread,
};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator.participants(Participants::Pool);

const BUFFER_BYTES: usize = 96 << 20;
/// The part of it that must show in RSS: the kernel's figure lags by some pages per core.
const SHOWN_BYTES: usize = BUFFER_BYTES / 10 * 9;

fn use_a_buffer() {
    // `black_box`, or the compiler would not write to a buffer that is freed at once.
    phase(|| drop(black_box(vec![1u8; BUFFER_BYTES])));
}

#[test]
fn resident_memory_follows_the_policy() {
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
    assert!(rss_bytes() < before + BUFFER_BYTES / 4, "release gives them back");

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
            assert!(Instant::now() < deadline, "For gives memory back after idling for {idle:?}");
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
    assert!(report.to_string().contains("escaped 96.0 MiB"), "{report}");
    assert!(release() < BUFFER_BYTES && escaped.iter().all(|&byte| byte == 1), "what is alive stays");

    a_thread_outside_the_pool_stays_outside();
}

/// How often the background thread went to sleep, if there is exactly one.
fn sleeps_of_the_thread() -> Option<u64> {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux has it").map(|task| task.unwrap().path());
    let is_ours = |task: &PathBuf| fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "zk-alloc\n");
    let [ours] = &tasks.filter(is_ours).collect::<Vec<_>>()[..] else { return None };
    let status = fs::read_to_string(ours.join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|number| number.trim().parse().ok())
}

/// With nothing to purge, the thread wakes once a second, so that a laptop's processor can sleep.
fn idleness_costs_next_to_nothing() {
    std::thread::sleep(Duration::from_millis(200));
    let before = sleeps_of_the_thread().expect("one thread");
    std::thread::sleep(Duration::from_millis(2_200));
    let sleeps = sleeps_of_the_thread().expect("as before") - before;
    assert!((1..=4).contains(&sleeps), "it woke {sleeps} times in 2.2 seconds");
}

/// Under `Participants::Pool`, a thread outside the pool never touches the arena, unless it is registered as a worker.
fn a_thread_outside_the_pool_stays_outside() {
    let used = |f: &(dyn Fn() + Sync)| {
        // Counts runs only: the thread that starts the other one is in a phase, and makes small allocations for that.
        let before = stats().run_allocations;
        std::thread::scope(|scope| scope.spawn(f).join()).unwrap();
        stats().run_allocations - before
    };
    let _phase = Phase::new();
    assert_eq!(used(&|| drop(black_box(vec![1u8; 1 << 20]))), 0);
    assert!(
        used(&|| {
            zk_alloc::pool::register_worker();
            drop(black_box(vec![1u8; 1 << 20]));
        }) > 0
    );
    assert!(used(&|| phase(|| drop(black_box(vec![1u8; 1 << 20])))) > 0);
}
