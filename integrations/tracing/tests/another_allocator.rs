//! With another global allocator, time and page faults are known, and the report says why the rest is not.

use std::hint::black_box;

use tracing::info_span;
use zk_alloc_tracing::Coverage;

/// There is one test: phases belong to the process.
#[test]
fn with_another_allocator_spans_report_only_time_and_faults() {
    let memory = zk_alloc_tracing::init();
    info_span!("prove").in_scope(|| drop(black_box(vec![1u8; 64 << 20])));
    assert_eq!(memory.report().coverage, Coverage::NothingServed);
    zk_alloc::phase(|| info_span!("prove").in_scope(|| drop(black_box(vec![1u8; 64 << 20]))));
    let report = memory.report();
    assert_eq!(report.coverage, Coverage::NotInstalled);
    let prove = &report.spans[0];
    assert_eq!(prove.count, 2);
    assert!(prove.totals.wall_ns > 0 && !prove.totals.is_served, "{report:#?}");
    // At most one for each 2 MiB, should the kernel use huge pages.
    assert!(prove.totals.minor_faults >= 32 && prove.threads[0].totals.minor_faults >= 32, "{report:#?}");
    assert!(report.to_string().contains("is not the global allocator"), "{report}");

    let mut trace = Vec::new();
    memory.write_trace(&mut trace).unwrap();
    let trace: serde_json::Value = serde_json::from_slice(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert!(events.iter().any(|event| event["ph"] == "X") && events.iter().all(|event| event["ph"] != "C"), "{trace}");
}
