//! Tests the measurements of spans that nest, overlap and run on several threads: peak, allocated and live bytes. Also tests the files that
//! contain them.

#[path = "../../test_support.rs"]
mod support;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::{Barrier, MutexGuard};
use std::{fs, thread};

use rayon::prelude::*;
use serde_json::Value;
use tracing::{Dispatch, dispatcher, info_span};
use tracing_subscriber::layer::SubscriberExt;
use zk_alloc::ZkAllocator;
use zk_alloc_tracing::{Recorder, Report, SpanReport};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator::resident();

const MIB: u64 = 1 << 20;

fn mib(count: u64) -> Vec<u8> {
    black_box(vec![1; (count * MIB) as usize])
}

/// Waits for this test's turn, and begins a recording. Also returns the subscriber that it records.
fn recorder() -> (MutexGuard<'static, ()>, Recorder, Dispatch) {
    let (turn, memory) = (support::alone(), Recorder::new());
    let dispatch = tracing_subscriber::registry().with(memory.layer()).into();
    (turn, memory, dispatch)
}

/// Returns the span at this path.
#[track_caller]
fn at<'a>(report: &'a Report, path: &[&str]) -> &'a SpanReport {
    let (mut spans, mut found) = (&report.spans, None);
    for name in path {
        let span = spans.iter().find(|span| span.name == *name).unwrap_or_else(|| panic!("no {path:?} in {report:#?}"));
        (spans, found) = (&span.children, Some(span));
    }
    found.expect("a path has a name")
}

/// Asserts that `bytes` is within 1 MiB of `expected` MiB, because threads of the test harness allocate a little.
#[track_caller]
fn assert_mib(bytes: u64, expected: u64) {
    assert!(bytes.abs_diff(expected * MIB) < MIB, "{bytes} bytes are not {expected} MiB");
}

#[test]
fn each_span_has_the_peak_within_it_and_its_parent_has_the_highest() {
    let (_turn, memory, dispatch) = recorder();
    zk_alloc::release();
    let before = zk_alloc::stats().live_bytes as u64;
    dispatcher::with_default(&dispatch, || {
        let _prove = info_span!("prove").entered();
        let kept = info_span!("trace").in_scope(|| mib(16));
        info_span!("commit").in_scope(|| drop(mib(64)));
        info_span!("open").in_scope(|| drop(mib(32)));
        info_span!("commit").in_scope(|| ());
        drop(kept);
        info_span!("end").in_scope(|| ());
        info_span!(parent: None, "end").in_scope(|| ());
    });
    let report = memory.report();
    let peak = |path: &[&str]| at(&report, path).totals.peak_live_bytes.saturating_sub(before);
    assert_mib(peak(&["prove", "trace"]), 16);
    assert_mib(peak(&["prove", "commit"]), 16 + 64);
    assert_mib(peak(&["prove", "open"]), 16 + 32);
    assert_mib(peak(&["prove", "end"]), 0);
    assert_mib(peak(&["prove"]), 16 + 64);
    assert_eq!(report.peak_path(), ["prove", "commit"]);

    let prove = at(&report, &["prove"]);
    assert_mib(prove.totals.allocated_bytes, 16 + 64 + 32);
    assert_mib(prove.threads[0].totals.allocated_bytes, 16 + 64 + 32);
    assert_mib(prove.at_exit.live_bytes.saturating_sub(prove.at_entry.live_bytes), 0);
    assert!(prove.at_exit.retained_bytes > prove.at_entry.retained_bytes, "{report:#?}");
    assert!(prove.totals.fresh_bytes >= 80 * MIB, "{report:#?}");
    let trace = at(&report, &["prove", "trace"]);
    assert_mib(trace.at_exit.live_bytes - trace.at_entry.live_bytes, 16);
    // The children are in the order in which they first ran.
    let order: Vec<_> = prove.children.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(order, ["trace", "commit", "open", "end"]);
    // Spans of one name are folded only under the same parent.
    let count = |path: &[&str]| at(&report, path).count;
    assert_eq!((count(&["prove", "commit"]), count(&["prove", "end"]), count(&["end"])), (2, 1, 1));
}

#[test]
fn spans_of_one_name_are_folded_and_the_threads_told_apart() {
    let (_turn, memory, dispatch) = recorder();
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        for count in [2, 3] {
            let (dispatch, barrier) = (&dispatch, &barrier);
            let work = move || {
                dispatcher::with_default(dispatch, || {
                    let _hash = info_span!("hash").entered();
                    barrier.wait();
                    drop(mib(count));
                    thread::sleep(std::time::Duration::from_millis(20));
                    barrier.wait();
                });
            };
            thread::Builder::new().name(format!("worker {count}")).spawn_scoped(scope, work).unwrap();
        }
    });
    let report = memory.report();
    let hash = at(&report, &["hash"]);
    assert_eq!((report.spans.len(), hash.count), (1, 2));
    // Both threads were in the span at the same time, so the process's time and memory count only once.
    assert!(hash.totals.wall_ns >= 20_000_000, "{hash:#?}");
    let thread_ns: u64 = hash.threads.iter().map(|thread| thread.totals.wall_ns).sum();
    assert!(thread_ns > hash.totals.wall_ns, "{hash:#?}");
    assert_mib(hash.totals.allocated_bytes, 5);
    for count in [2, 3] {
        let name = format!("worker {count}");
        let thread = hash.threads.iter().find(|thread| thread.thread == name).expect("both threads");
        assert_mib(thread.totals.allocated_bytes, count);
    }
}

#[test]
fn a_span_that_moves_between_threads_counts_once_and_only_while_it_is_entered() {
    let (_turn, memory, dispatch) = recorder();
    let span = dispatcher::with_default(&dispatch, || info_span!("future"));
    for count in [4, 8] {
        thread::scope(|scope| {
            scope.spawn(|| span.in_scope(|| drop(mib(count))));
        });
        drop(mib(32));
    }
    let report = memory.report();
    let future = at(&report, &["future"]);
    assert_eq!((future.count, future.threads.len()), (1, 2));
    assert_mib(future.totals.allocated_bytes, 4 + 8);
}

/// If the layer's memory counted, the prover's measurements would grow with its number of spans. The trace keeps the longest entries, and
/// the report counts the dropped ones.
#[test]
fn layers_own_memory_is_bounded_and_not_counted_as_the_provers() {
    const ROUNDS: u64 = 100_000;
    let (_turn, memory, dispatch) = recorder();
    let enter_many =
        |count| (0..count).for_each(|_| info_span!("outer").in_scope(|| info_span!("inner").in_scope(|| ())));
    dispatcher::with_default(&dispatch, || {
        let _longest = info_span!("longest").entered();
        // tracing-subscriber keeps its spans in pages, which it allocates once.
        enter_many(1);
        let before = zk_alloc::thread_stats();
        enter_many(ROUNDS);
        assert_eq!(zk_alloc::thread_stats(), before);
        drop(mib(4));
        enter_many(1);
    });
    let (report, trace) = written(&memory);
    assert_eq!(at(&report, &["longest", "outer", "inner"]).count, ROUNDS + 2);
    let slices = assert_drawn(&report, &trace);
    assert!((1 << 15..=1 << 16).contains(&slices.len()) && slices.contains(&"longest".to_owned()), "{}", slices.len());
    assert_eq!(slices.len() as u64 + report.entries_not_in_trace, 2 * (ROUNDS + 2) + 1);
    assert_eq!(report.unrecorded_entries, 0);
}

/// In tracing, a span that a rayon worker creates has no parent. Workers see only the global subscriber.
#[test]
fn spans_of_rayon_workers_go_under_the_span_that_they_work_for() {
    const PARTS: u64 = 64;
    let _turn = support::alone();
    let memory = zk_alloc_tracing::init();
    info_span!("prove").in_scope(|| {
        info_span!("commit").in_scope(|| {
            let hash = |_| info_span!("hash").in_scope(|| drop(mib(1)));
            (0..PARTS).into_par_iter().for_each(hash);
        });
        // The workers open no spans here. Their work counts towards the span that waits for the pool.
        info_span!("open").in_scope(|| {
            (0..PARTS).into_par_iter().for_each(|_| drop(mib(1)));
        });
        rayon::join(|| info_span!(parent: None, "root").in_scope(|| ()), || ());
    });
    let report = memory.report();
    assert_eq!(report.spans.iter().map(|span| span.name.as_str()).collect::<Vec<_>>(), ["prove", "root"]);
    let prove = &report.spans[0];
    let [commit, open] = prove.children.as_slice() else { panic!("two stages: {report}") };
    let [hash] = commit.children.as_slice() else { panic!("one kind of work: {report}") };
    assert_eq!((hash.name.as_str(), hash.count), ("hash", PARTS));
    for span in [commit, hash, open] {
        assert!(span.totals.allocated_bytes >= PARTS << 20, "{}: {report}", span.name);
    }
    assert!(hash.threads.iter().all(|thread| thread.thread.starts_with("rayon ")), "{report:#?}");
    let by_threads: u64 = hash.threads.iter().map(|thread| thread.totals.allocated_bytes).sum();
    assert!(by_threads >= PARTS << 20, "{report:#?}");
    // The main thread only waited.
    assert!(open.threads[0].totals.allocated_bytes < 1 << 20, "{report:#?}");
}

/// Writes the recording's files. Returns the report, and `trace.json`, which has the format that ui.perfetto.dev and chrome://tracing read.
fn written(memory: &Recorder) -> (Report, Value) {
    let folder = std::env::temp_dir().join(format!("zk-alloc-tracing-{}", std::process::id()));
    let report = memory.write(&folder).unwrap();
    let [json, trace] = ["memory.json", "trace.json"].map(|file| fs::read(folder.join(file)).unwrap());
    fs::remove_dir_all(&folder).unwrap();
    let [json, trace]: [Value; 2] = [json, trace].map(|file| serde_json::from_slice(&file).expect("JSON"));
    // The fields that the README names.
    let first = &json["spans"][0];
    assert_eq!(first["name"], report.spans[0].name);
    assert_eq!(first["peak_live_bytes"].as_u64(), Some(report.spans[0].totals.peak_live_bytes));
    assert!(first["at_exit"]["retained_bytes"].is_u64() && first["threads"][0]["allocated_bytes"].is_u64(), "{json}");
    (report, trace)
}

/// Asserts that the slices of each thread nest, and that the counters are in order of time and reach the report's peak. Returns the names
/// of the slices.
fn assert_drawn(report: &Report, trace: &Value) -> Vec<String> {
    let number = |event: &Value, key: &str| event[key].as_f64().unwrap_or_else(|| panic!("no {key}: {event}"));
    // The rounding error of a start plus a duration is less than a nanosecond.
    let ns = |microseconds: f64| (microseconds * 1e3).round() as u64;
    let (mut around, mut counters) = (BTreeMap::<u64, Vec<u64>>::new(), BTreeMap::<&str, Vec<_>>::new());
    let (mut threads, mut names) = (Vec::new(), Vec::new());
    for event in trace["traceEvents"].as_array().expect("the list of events") {
        let name = event["name"].as_str().expect("a name");
        let (ts, tid) = (number(event, "ts"), event["tid"].as_u64().expect("a thread"));
        assert!(ts >= 0.0 && event["pid"].is_u64(), "{event}");
        match event["ph"].as_str().expect("a kind") {
            "X" => {
                let (begin, end, around) = (ns(ts), ns(ts + number(event, "dur")), around.entry(tid).or_default());
                around.retain(|&outer| outer > begin);
                let is_within = around.last().is_none_or(|&outer| end <= outer);
                assert!(is_within, "{event} crosses the end of another, {around:?}");
                around.push(end);
                assert!(event["args"]["peak_live_bytes"].is_u64(), "{event}");
                names.push(name.to_owned());
            }
            "C" => counters.entry(name).or_default().push((ts, number(&event["args"], "bytes"))),
            "M" => threads.push(tid),
            other => panic!("an event of the kind {other:?}: {event}"),
        }
    }
    assert!(around.keys().all(|tid| threads.contains(tid)), "{threads:?}");
    assert_eq!(counters.keys().collect::<Vec<_>>(), [&"live", &"peak of live", &"resident", &"retained"]);
    for (name, values) in &counters {
        assert!(values.is_sorted_by(|one, next| one.0 <= next.0), "{name}: {values:?}");
        assert!(values.iter().any(|value| value.1 > 0.0), "{name}: {values:?}");
    }
    let peak = counters["peak of live"].iter().map(|value| value.1).fold(0.0, f64::max);
    assert_eq!(peak as u64, report.whole.totals.peak_live_bytes);
    names
}

/// Two threads each have spans that do not end in reverse order of entry, and a span that is still open when the report is made.
#[test]
fn spans_that_end_in_another_order_keep_their_own_time_and_nested_slices() {
    let (_turn, memory, dispatch) = recorder();
    let record = || {
        dispatcher::with_default(&dispatch, || {
            let (first, second) = (info_span!("first \"quoted\""), info_span!(parent: None, "second"));
            let first = first.entered();
            drop(mib(2));
            let second = second.entered();
            drop(mib(4));
            drop(first);
            drop(mib(8));
            drop(second);
            drop(mib(16));
            info_span!("open").entered()
        })
    };
    let open = record();
    thread::scope(|scope| {
        thread::Builder::new().name("a worker".into()).spawn_scoped(scope, || drop(record())).unwrap();
    });
    let (report, trace) = written(&memory);
    drop(open);
    assert_mib(at(&report, &["first \"quoted\""]).totals.allocated_bytes, 2 * (2 + 4));
    assert_mib(at(&report, &["second"]).totals.allocated_bytes, 2 * (4 + 8));
    assert_mib(report.whole.totals.allocated_bytes, 2 * (2 + 4 + 8 + 16));
    let names = assert_drawn(&report, &trace);
    let count = |name: &str| names.iter().filter(|known| *known == name).count();
    // The second span began within the first and ended after it, so it is in two parts.
    assert_eq!(["first \"quoted\"", "second", "open"].map(count), [2, 4, 2]);
    assert!(trace.to_string().contains("a worker"), "{trace}");
}
