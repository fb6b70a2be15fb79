//! Statistics: escaped allocations, peaks of stages, counts of threads, the parts of the resident memory, metrics and events.
//!
//! The statistics belong to the process, so each test runs in a process of its own.

mod support;

use std::hint::black_box;
use std::thread;

use support::alone;
use support::blocks::MIB;
use zk_alloc::{
    Escaped, Phase, ZkAllocator, escaped, phase, release, stats, take_peak_live_bytes, thread_stats, trace_escaped,
};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

#[inline(never)]
fn make_what_stays() -> Vec<u8> {
    black_box(vec![1u8; 3 * MIB])
}

#[inline(never)]
fn make_what_goes() {
    drop(black_box(vec![2u8; 5 * MIB]));
}

fn bytes(places: &[Escaped]) -> usize {
    places.iter().map(|place| place.bytes).sum()
}

#[test]
fn the_report_names_the_place_of_each_allocation_that_outlives_its_phase() {
    alone!();
    trace_escaped(true);
    let mut kept = phase(|| {
        make_what_goes();
        (make_what_stays(), make_what_stays())
    });
    let places = escaped();
    let own: Vec<_> = places.iter().filter(|place| place.backtrace.contains("make_what_stays")).cloned().collect();
    assert_eq!(own.iter().map(|place| place.allocations).sum::<usize>(), 2, "{places:?}");
    assert_eq!(bytes(&own), 6 * MIB);
    assert!(!places.iter().any(|place| place.backtrace.contains("make_what_goes")), "{places:?}");

    kept.0.truncate(MIB);
    kept.0.shrink_to_fit();
    assert_eq!(bytes(&escaped()), bytes(&places) - 2 * MIB, "shrunk in place, it counts what is left");

    drop(kept);
    assert_eq!(bytes(&escaped()), bytes(&places) - 6 * MIB, "freed after its phase, it is gone from the list");

    // Memory that the tracing itself uses does not count.
    let phase = Phase::new();
    let mut kept: Vec<Box<u64>> = Vec::with_capacity(50_000);
    kept.extend((0..50_000).map(|number| black_box(Box::new(number))));
    drop(kept);
    let report = phase.report();
    assert!(report.escaped_bytes < MIB && report.peak_live_bytes < 4 * MIB, "{report:?}");
    trace_escaped(false);
}

/// A forked child inherits a copy of the table of escapes. If another thread held its lock at the fork, the lock in the copy is never
/// released.
#[cfg(target_os = "linux")]
#[test]
fn a_forked_child_does_not_wait_for_the_lock_of_the_table() {
    alone!(&[("ZK_ALLOC_MIN_BYTES", "0")]);
    trace_escaped(true);
    let work = || phase(|| drop(black_box(vec![1u8; 3_000])));
    support::process::fork_beside_threads(0, work, || {
        phase(|| drop(black_box([vec![1u8; 3_000], vec![2u8; 300_000]])));
        0
    });
    trace_escaped(false);
}

/// The number of requests that [`work`] makes, and their total size in bytes.
const WORK: (u64, u64) = (30, 10 * (1024 + (100 << 10) + MIB as u64));

/// Allocates and frees blocks, runs that the thread caches, and runs that it does not cache. Returns the number of requests and bytes that
/// `thread_stats` counted.
fn work() -> (u64, u64) {
    let before = thread_stats();
    for bytes in [1 << 10, 100 << 10, MIB] {
        (0..10).for_each(|_| drop(black_box(vec![1u8; bytes])));
    }
    let after = thread_stats();
    (after.allocations - before.allocations, after.bytes - before.bytes)
}

#[test]
fn each_stage_has_its_own_peak_and_the_phase_keeps_its_own() {
    alone!();
    let phase = Phase::new();
    let before = stats().live_bytes;
    take_peak_live_bytes();
    let use_mib = |count: usize| drop(black_box(vec![1u8; count * MIB]));
    let peak = || take_peak_live_bytes() - before;
    use_mib(64);
    let first = peak();
    let kept = black_box(vec![1u8; 8 * MIB]);
    use_mib(16);
    let (second, third) = (peak(), peak());
    drop(kept);
    let fourth = peak();
    use_mib(1);
    let fifth = peak();
    // Leaves a margin, because threads of the test harness also allocate a little.
    let within = |bytes: usize, mib: usize| bytes.abs_diff(mib * MIB) < MIB / 2;
    assert!(within(first, 64) && within(second, 8 + 16), "{first}, {second}");
    assert!(within(third, 8), "what is live now counts, and nothing from before: {third}");
    assert!(within(fourth, 8) && within(fifth, 1), "{fourth}, {fifth}");
    assert!(within(phase.report().peak_live_bytes - before, 64), "{}", phase.report());
}

#[test]
fn a_thread_counts_only_its_own_requests() {
    alone!();
    phase(|| {
        let total = stats();
        assert_eq!(work(), WORK);
        let before = thread_stats();
        for _ in 0..3 {
            // The threads run one after another, and each gets the cache of the previous one.
            let (at_first, in_thread) = thread::spawn(move || (thread_stats(), work())).join().unwrap();
            assert!(at_first.bytes < MIB as u64, "a thread begins with another's count: {at_first:?}");
            assert_eq!(in_thread, WORK);
        }
        assert!(thread_stats().bytes - before.bytes < MIB as u64, "a thread's request counts for another");
        assert!(stats().arena_allocations - total.arena_allocations >= 4 * WORK.0, "{}", stats());
        assert!(stats().arena_bytes - total.arena_bytes >= 4 * WORK.1, "{}", stats());
        // `release()` claims the caches of other threads, so some of their requests bypass the caches. They must count too.
        thread::scope(|scope| {
            let counts = scope.spawn(|| [(); 100].map(|()| work()));
            while !counts.is_finished() {
                release();
            }
            assert_eq!(counts.join().unwrap(), [WORK; 100]);
        });
    });
}

/// No part of the resident memory may be missing or counted twice.
#[cfg(target_os = "linux")]
#[test]
fn resident_parts_add_up_to_what_the_kernel_counts() {
    use support::{blocks::keep_every, maps};
    use zk_alloc::resident_parts;

    alone!();
    let assert_near = |counted: usize, expected: usize, what: &str| {
        let (off, most) = (counted.abs_diff(expected), expected / 100);
        assert!(off <= most, "{what}: {counted} and {expected} bytes: {off} apart\n{}", resident_parts());
    };
    // Allocates and touches blocks and runs of many lengths, then frees every other one.
    let kept = phase(|| {
        let lengths = (0..1200).map(|n| [40, 300, 3_000, 20_000, 200_000, 3 << 20][n % 6] + n);
        let mut all: Vec<Vec<u8>> = lengths.map(|length| vec![1; length]).collect();
        keep_every(2, &mut all);
        all
    });
    let parts = resident_parts();
    assert_near(parts.resident_bytes(), stats().resident_bytes, "the parts and the statistics");
    let address = kept.iter().max_by_key(|buffer| buffer.len()).unwrap().as_ptr().addr();
    let in_smaps = maps::Region::around(address).resident_bytes();
    assert_near(parts.kernel_bytes.expect("Linux tells"), in_smaps, "mincore and smaps");
    let (sum, most) = (parts.resident_bytes(), maps::tolerance_bytes(in_smaps));
    assert!(sum.abs_diff(in_smaps) <= most, "the parts and smaps: {sum} and {in_smaps} bytes\n{parts}");

    let lengths: usize = kept.iter().map(Vec::len).sum();
    let live_bytes = parts.live_block_bytes + parts.live_run_bytes;
    assert!((lengths..lengths + lengths / 4).contains(&live_bytes), "{live_bytes} for {lengths}");
    assert!(parts.free_run_bytes > 3 << 20 && parts.free_slab_bytes > 0, "{parts:?}");
    release();
    let parts = resident_parts();
    assert!(parts.free_run_bytes < 1 << 20 && parts.cached_bytes == 0, "{parts:?}");
    drop(kept);
}

/// `record_metrics` must record the values of `stats()`. A leak must be distinguishable from retained memory.
#[cfg(feature = "metrics")]
#[test]
fn the_metrics_are_the_statistics_and_tell_a_leak_from_retention() {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    alone!();
    // Records all metrics and returns a function that looks up a value by name. Fails unless each metric has a description and a unit.
    let recorded = || {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        metrics::with_local_recorder(&recorder, zk_alloc::record_metrics);
        let found = snapshotter.snapshot().into_vec().into_iter().map(|(key, unit, meaning, value)| {
            let name = key.key().name().to_owned();
            assert!(unit.is_some() && meaning.is_some(), "{name} is not described");
            match value {
                DebugValue::Counter(value) => (name, value as usize),
                DebugValue::Gauge(value) => (name, value.into_inner() as usize),
                DebugValue::Histogram(_) => panic!("{name} is a histogram"),
            }
        });
        let values: std::collections::HashMap<_, _> = found.collect();
        move |name: &str| values[&format!("zk_alloc_{name}")]
    };
    let made = |mib: usize| phase(|| vec![1u8; mib * MIB]);

    drop(made(64));
    let idle = recorded();
    assert!(idle("retained_bytes") >= 64 * MIB, "the next proof's memory: {}", idle("retained_bytes"));
    assert!(idle("live_bytes") < 8 * MIB, "nothing is in use: {}", idle("live_bytes"));
    assert_eq!(idle("phases_total"), 1);

    // A leak must raise the live size, but not the retained size.
    let leaked = [made(16), made(16), made(16)];
    let leaking = recorded();
    assert!(leaking("live_bytes") >= idle("live_bytes") + 48 * MIB, "{}", stats());
    assert!(leaking("retained_bytes") <= 16 * MIB + 8 * MIB, "{}", stats());

    drop(leaked);
    release();
    let (after, now) = (recorded(), stats());
    assert!(after("purged_bytes_total") >= 60 * MIB && after("resident_bytes") <= 4 * MIB, "{now}");
    assert_eq!((after("fresh_bytes_total"), after("overflow_bytes_total")), (now.fresh_bytes as usize, 0));
    assert!(after("process_page_faults_total") > 0 || !cfg!(target_os = "linux"));
    assert_eq!(after("resident_bytes"), after("live_bytes") + after("retained_bytes"));
}

/// Each phase must emit a tracing event when it ends. The arena must not serve the subscriber's allocations, because the phase is over.
#[cfg(feature = "tracing")]
mod events {
    use super::*;
    use std::collections::HashMap;
    use std::fmt::Debug;
    use std::sync::Mutex;
    use tracing::field::{Field, Visit};
    use tracing::{Event, Level, Subscriber};
    use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

    /// The fields of all events so far, in order.
    static SEEN: Mutex<Vec<Fields>> = Mutex::new(Vec::new());

    #[derive(Debug)]
    struct Fields(HashMap<&'static str, u64>);

    impl Visit for Fields {
        fn record_u64(&mut self, field: &Field, value: u64) {
            self.0.insert(field.name(), value);
        }

        fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
    }

    struct Watch;

    impl<S: Subscriber> Layer<S> for Watch {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            assert_eq!((event.metadata().target(), *event.metadata().level()), ("zk_alloc", Level::INFO));
            let before = stats();
            let mut fields = Fields(HashMap::with_capacity(4096));
            event.record(&mut fields);
            assert_eq!(stats().arena_allocations, before.arena_allocations, "the phase is over: {}", stats());
            SEEN.lock().unwrap().push(fields);
        }
    }

    #[test]
    fn each_phase_that_ends_emits_an_event() {
        alone!();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(Watch), || {
            drop(phase(|| black_box(vec![1u8; 8 * MIB])));
            let guard = zk_alloc::PhaseGuard::new();
            drop(black_box(vec![1u8; 8 * MIB]));
            drop(guard);
            let phase = Phase::new();
            let escaped = black_box(vec![1u8; 4 * MIB]);
            drop(phase);
            drop(escaped);
        });
        let seen = SEEN.lock().unwrap();
        assert_eq!(seen.len(), 3, "{seen:?}");
        let bytes = |event: usize, field| seen[event].0[field] as usize;
        assert!(bytes(0, "fresh_bytes") >= 8 * MIB && bytes(0, "peak_live_bytes") >= 8 * MIB, "{seen:?}");
        assert!(bytes(1, "reused_bytes") + bytes(1, "fresh_bytes") >= 8 * MIB, "{seen:?}");
        assert!(bytes(2, "escaped_bytes") >= 4 * MIB, "{seen:?}");
        assert!(seen.iter().all(|event| event.0["overflow_bytes"] == 0), "{seen:?}");
    }
}
