//! The trace is what ui.perfetto.dev and chrome://tracing read, and `memory.json` what the README says.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::{fs, thread};

use serde_json::Value;
use tracing::{Dispatch, dispatcher, info_span};
use tracing_subscriber::layer::SubscriberExt;
use zk_alloc::ZkAllocator;
use zk_alloc_tracing::Recorder;

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator::resident();

/// Nested spans, spans that end in another order, and one that has not ended when this returns.
fn record(dispatch: &Dispatch) -> tracing::span::EnteredSpan {
    let work = |count: usize| drop(black_box(vec![1u8; count << 20]));
    dispatcher::with_default(dispatch, || {
        for round in 1..4 {
            let prove = info_span!("prove \"quoted\"").entered();
            info_span!("commit").in_scope(|| work(4 * round));
            let (first, second) = (info_span!("first").entered(), info_span!("second").entered());
            work(1);
            drop(first);
            work(2);
            drop((second, prove));
        }
        let kept = info_span!("open").entered();
        work(1);
        info_span!("within").in_scope(|| work(1));
        kept
    })
}

/// Slices of a thread nest: each ends before the one around it does.
fn assert_nested(slices: &[(f64, f64)]) {
    let mut around: Vec<u64> = Vec::new();
    // The sum of a begin and a length is off by less than a nanosecond.
    let ns = |microseconds: f64| (microseconds * 1e3).round() as u64;
    for (begin, end) in slices.iter().map(|&(begin, end)| (ns(begin), ns(end))) {
        around.retain(|&outer| outer > begin);
        assert!(
            around.last().is_none_or(|&outer| end <= outer),
            "{begin} to {end} crosses the end of another, {around:?}"
        );
        around.push(end);
    }
}

#[test]
fn slices_nest_and_counters_are_numbers_in_order() {
    let memory = Recorder::new();
    let dispatch: Dispatch = tracing_subscriber::registry().with(memory.layer()).into();
    let open = record(&dispatch);
    thread::scope(|scope| {
        let worker = thread::Builder::new().name("a worker".into());
        worker.spawn_scoped(scope, || drop(record(&dispatch))).unwrap();
    });
    let mut json = Vec::new();
    memory.write_trace(&mut json).unwrap();
    drop(open);

    let trace: Value = serde_json::from_slice(&json).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("the list of events");
    let number = |event: &Value, key: &str| event[key].as_f64().unwrap_or_else(|| panic!("no {key}: {event}"));
    let (mut slices, mut counters) = (BTreeMap::<u64, Vec<_>>::new(), BTreeMap::<String, Vec<_>>::new());
    let mut threads = BTreeMap::new();
    let mut names = Vec::new();
    for event in events {
        let name = event["name"].as_str().expect("a name").to_owned();
        let (ts, tid) = (number(event, "ts"), event["tid"].as_u64().expect("a thread"));
        assert!(ts >= 0.0 && event["pid"].is_u64(), "{event}");
        match event["ph"].as_str().expect("a kind") {
            "X" => {
                slices.entry(tid).or_default().push((ts, ts + number(event, "dur")));
                assert!(event["args"]["peak_live_bytes"].is_u64(), "{event}");
                names.push(name);
            }
            "C" => counters.entry(name).or_default().push((ts, number(&event["args"], "bytes"))),
            "M" => _ = threads.insert(tid, event["args"]["name"].as_str().expect("a name").to_owned()),
            other => panic!("an event of the kind {other:?}: {event}"),
        }
    }
    assert_eq!(slices.len(), 2, "{trace}");
    assert!(slices.keys().all(|tid| threads.contains_key(tid)) && threads.values().any(|name| name == "a worker"));
    for slices in slices.values() {
        assert!(slices.is_sorted_by(|one, next| one.0 <= next.0), "{slices:?}");
        assert_nested(slices);
    }
    let count = |name: &str| names.iter().filter(|known| *known == name).count();
    // "second" lasts longer than "first", in which it began: it is in two parts.
    assert_eq!([count("prove \"quoted\""), count("first"), count("second"), count("open")], [6, 6, 12, 2]);
    assert_eq!(counters.keys().collect::<Vec<_>>(), ["live", "peak of live", "resident", "retained"]);
    for (name, values) in &counters {
        assert!(values.is_sorted_by(|one, next| one.0 <= next.0), "{name}: {values:?}");
        assert!(values.iter().any(|value| value.1 > 0.0), "{name}: {values:?}");
    }
    let peak = counters["peak of live"].iter().map(|value| value.1).fold(0.0, f64::max);
    assert_eq!(peak as u64, memory.report().whole.totals.peak_live_bytes);
}

#[test]
fn both_files_are_written() {
    let folder = std::env::temp_dir().join(format!("zk-alloc-tracing-{}", std::process::id()));
    let memory = Recorder::new();
    drop(record(&tracing_subscriber::registry().with(memory.layer()).into()));
    let report = memory.write(&folder).unwrap();
    let json: Value = serde_json::from_slice(&fs::read(folder.join("memory.json")).unwrap()).unwrap();
    let trace: Value = serde_json::from_slice(&fs::read(folder.join("trace.json")).unwrap()).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let prove = &json["spans"][0];
    assert_eq!((prove["name"].as_str(), prove["count"].as_u64()), (Some("prove \"quoted\""), Some(3)));
    assert_eq!(prove["peak_live_bytes"].as_u64(), Some(report.spans[0].totals.peak_live_bytes));
    assert!(prove["at_exit"]["retained_bytes"].is_u64() && prove["threads"][0]["allocated_bytes"].is_u64(), "{json}");
    assert_eq!(prove["children"][0]["name"], "commit");
    assert!(trace["traceEvents"].as_array().is_some_and(|events| !events.is_empty()));
}
