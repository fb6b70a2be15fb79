//! The metrics have the values of `stats()`, and tell a leak from retention.

use std::collections::HashMap;

use metrics_util::debugging::{DebugValue, DebuggingRecorder};

use crate::support::alone;
use zk_alloc::{phase, record_metrics, release, stats};

const MIB: usize = 1 << 20;

/// Each metric's value, from a recorder of its own. Each must be described, with a unit.
fn recorded() -> HashMap<String, f64> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    ::metrics::with_local_recorder(&recorder, record_metrics);
    let metrics = snapshotter.snapshot().into_vec().into_iter();
    metrics
        .map(|(key, unit, meaning, value)| {
            let name = key.key().name().to_owned();
            assert!(unit.is_some() && meaning.is_some(), "{name} is not described");
            let value = match value {
                DebugValue::Counter(value) => value as f64,
                DebugValue::Gauge(value) => value.into_inner(),
                DebugValue::Histogram(_) => panic!("{name} is a histogram"),
            };
            (name, value)
        })
        .collect()
}

#[test]
fn the_metrics_are_the_statistics_and_tell_a_leak_from_retention() {
    alone!();
    let bytes = |metrics: &HashMap<String, f64>, name: &str| metrics[&format!("zk_alloc_{name}")] as usize;
    let made = |mib: usize| phase(|| vec![1u8; mib * MIB]);

    drop(made(64));
    let idle = recorded();
    assert!(bytes(&idle, "retained_bytes") >= 64 * MIB, "the next proof's memory: {idle:?}");
    assert!(bytes(&idle, "live_bytes") < 8 * MIB, "nothing is in use: {idle:?}");
    assert_eq!(bytes(&idle, "phases_total"), 1);

    // Proofs leak, but not into what is retained.
    let leaked = [made(16), made(16), made(16)];
    let leaking = recorded();
    assert!(bytes(&leaking, "live_bytes") >= bytes(&idle, "live_bytes") + 48 * MIB, "{leaking:?}");
    assert!(bytes(&leaking, "retained_bytes") <= 16 * MIB + 8 * MIB, "{leaking:?}");

    drop(leaked);
    release();
    let (after, now) = (recorded(), stats());
    assert!(bytes(&after, "purged_bytes_total") >= 60 * MIB, "{after:?}");
    assert!(bytes(&after, "resident_bytes") <= 4 * MIB, "{after:?}");
    assert_eq!(bytes(&after, "fresh_bytes_total"), now.fresh_bytes as usize);
    assert_eq!(bytes(&after, "overflow_bytes_total"), 0);
    assert!(bytes(&after, "process_page_faults_total") > 0 || !cfg!(target_os = "linux"));
    assert_eq!(bytes(&after, "resident_bytes"), bytes(&after, "live_bytes") + bytes(&after, "retained_bytes"));
}
