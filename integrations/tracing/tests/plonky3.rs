//! Tests that Plonky3's own example, with three added lines, reports its stages and their peaks.

#[allow(dead_code, reason = "the example has a `main`")]
#[path = "../examples/plonky3.rs"]
mod plonky3;

use zk_alloc_tracing::{Coverage, SpanReport};

fn find<'a>(spans: &'a [SpanReport], name: &str) -> &'a SpanReport {
    spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no span {name:?} in {spans:#?}"))
}

#[test]
fn plonky3_stages_have_peaks() {
    const LOG_ROWS: u32 = 9;
    let memory = zk_alloc_tracing::init();
    plonky3::prove_and_verify(LOG_ROWS).expect("a valid proof");
    let report = memory.report();
    assert_eq!(report.coverage, Coverage::Arena);

    let trace = find(&report.spans, "generate vectorized Poseidon2 trace");
    let prove = find(&report.spans, "prove");
    let stages = ["commit to trace data", "commit to quotient poly chunks", "open"];
    let stages = stages.map(|name| find(&prove.children[0].children, name));
    assert!(find(&report.spans, "verify").totals.peak_live_bytes < prove.totals.peak_live_bytes);

    // The trace has capacity for its extension, which doubles the rows. A row has eight permutations, each of more than 100 columns of 4
    // bytes.
    let trace_bytes = (2 << LOG_ROWS) * 8 * 100 * 4;
    assert!(trace.totals.allocated_bytes >= trace_bytes, "{report}");
    for stage in stages {
        assert!(stage.totals.peak_live_bytes >= trace_bytes, "{}: {report}", stage.name);
        assert!(stage.totals.peak_live_bytes <= prove.totals.peak_live_bytes, "{}: {report}", stage.name);
        assert!(stage.totals.requests > 0, "{}: {report}", stage.name);
    }
    assert_eq!(report.whole.totals.peak_live_bytes, prove.totals.peak_live_bytes, "{report}");
    assert_eq!(report.peak_path()[0], "prove", "{report}");

    let text = report.to_string();
    assert!(text.lines().any(|line| line.contains("├─ commit to trace data") && line.contains("MiB")), "{text}");
}
