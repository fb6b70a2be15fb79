//! Tests that zk-alloc counts nothing without phases, and that the report says so.

use std::hint::black_box;

use tracing::info_span;
use zk_alloc::{ZkAllocator, phase};
use zk_alloc_tracing::Coverage;

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

fn stage(span: tracing::Span) {
    span.in_scope(|| drop(black_box(vec![1u8; 8 << 20])));
}

/// This file has a single test, because phases are process-wide.
#[test]
fn report_marks_spans_without_an_open_phase() {
    let memory = zk_alloc_tracing::init();
    stage(info_span!("outside"));
    let report = memory.report();
    assert_eq!(report.coverage, Coverage::NothingServed);
    assert!(report.to_string().contains("no phase of zk-alloc was open"), "{report}");

    // A phase may begin and end within a span, as with the adapters.
    info_span!("prove").in_scope(|| phase(|| stage(info_span!("inside"))));
    let report = memory.report();
    assert_eq!(report.coverage, Coverage::Arena);
    let [outside, prove] = report.spans.as_slice() else { panic!("two spans: {report}") };
    let inside = &prove.children[0];
    assert!(!outside.totals.is_served && outside.totals.minor_faults >= 2 && outside.totals.wall_ns > 0, "{report:#?}");
    assert_eq!((outside.totals.allocated_bytes, outside.totals.peak_live_bytes), (0, 0));
    for span in [prove, inside] {
        assert!(span.totals.is_served && span.totals.peak_live_bytes >= 8 << 20, "{report:#?}");
    }
    let text = report.to_string();
    assert!(text.lines().any(|line| line.starts_with("outside") && line.contains(" - ")), "{text}");
    assert!(text.ends_with("-: no phase of zk-alloc was open"), "{text}");
}
