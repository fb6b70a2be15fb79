//! The result of a recording: for the program, for `memory.json`, as a tree for the terminal, and as a trace for a viewer.

use std::fmt;
use std::io::{self, BufWriter, Write};

use serde::Serialize;
use serde_json::{Value, json};

use crate::recording::{Entry, Level, NodeId, Recording, Sample, ThreadTotals, Totals, WHOLE, page_bytes};

/// The result of [`Recorder::report`](crate::Recorder::report). `Display` prints it as a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Which allocations are counted.
    pub coverage: Coverage,
    /// The size of a page in bytes. Fresh bytes cost one page fault per page, unless a fault maps several pages or a huge page.
    pub page_bytes: u64,
    /// The whole program, since the recording began.
    pub whole: SpanReport,
    /// The spans without a parent, in the order in which they were first created.
    pub spans: Vec<SpanReport>,
    /// The number of entries of spans that were not recorded, because there were more than 1,024 threads or 4,095 names.
    pub unrecorded_entries: u64,
    /// The number of span entries that are missing only from the trace, which keeps at most the 65,536 longest.
    pub entries_not_in_trace: u64,
}

/// Which allocations a report counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Coverage {
    /// Allocations that the arena served: those in phases, or all if the allocator is resident.
    Arena,
    /// None: no phase was open, or `ZkAllocator` is not the global allocator.
    NothingServed,
    /// None: phases were open, but `ZkAllocator` is not the global allocator.
    NotInstalled,
}

/// All spans of one name under one parent. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SpanReport {
    /// The name of the spans.
    pub name: String,
    /// The number of spans that were entered. A span that is entered repeatedly, as in `async` code, counts once.
    pub count: u64,
    /// The changes of the process's counters. They include the children's changes. If children overlap in time, the sum of their changes
    /// may be larger.
    #[serde(flatten)]
    pub totals: Totals,
    /// The arena's memory at the first entry.
    pub at_entry: Level,
    /// The arena's memory at the last exit. For [`Report::whole`], the arena's memory when the report was made.
    pub at_exit: Level,
    /// The share of each thread that entered these spans. The rest of `totals` is the work of other threads.
    pub threads: Vec<ThreadReport>,
    /// The child spans, in the order in which they were first created.
    pub children: Vec<SpanReport>,
}

/// The share of one thread in a [`SpanReport`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ThreadReport {
    /// The thread's name, or else its number among rayon's workers or among the threads of the recording.
    pub thread: String,
    /// The changes of the thread's counters while it was in these spans.
    #[serde(flatten)]
    pub totals: ThreadTotals,
}

impl Report {
    pub(crate) fn of(recording: &Recording) -> Self {
        let mut whole = SpanReport::of(recording, WHOLE);
        let last = &recording.last;
        whole.at_exit = last.level;
        let coverage = if whole.totals.is_served {
            Coverage::Arena
        } else if last.phases > recording.phases_before && !last.has_arena {
            Coverage::NotInstalled
        } else {
            Coverage::NothingServed
        };
        Self {
            coverage,
            page_bytes: page_bytes(),
            spans: std::mem::take(&mut whole.children),
            whole,
            unrecorded_entries: recording.unrecorded,
            entries_not_in_trace: recording.timeline.dropped,
        }
    }

    /// Returns the path to the innermost span in which live bytes peaked, as span names, outermost first. The path is empty if the peak was
    /// outside all spans.
    ///
    /// ```
    /// # let memory = zk_alloc_tracing::Recorder::new();
    /// assert!(memory.report().peak_path().is_empty());
    /// ```
    #[must_use]
    pub fn peak_path(&self) -> Vec<&str> {
        let peak = self.whole.totals.peak_live_bytes;
        let holds_peak = |span: &&SpanReport| peak > 0 && span.totals.peak_live_bytes == peak;
        let first = self.spans.iter().find(holds_peak);
        let path = std::iter::successors(first, |span| span.children.iter().find(holds_peak));
        path.map(|span| span.name.as_str()).collect()
    }

    fn notes(&self) -> Vec<String> {
        let whole = &self.whole.totals;
        let path = self.peak_path().join(" > ");
        let place = if path.is_empty() { "outside of all spans" } else { &path };
        let is_counted = self.coverage == Coverage::Arena;
        let mut notes = vec![match self.coverage {
            Coverage::Arena => format!("peak of live memory: {}, in {place}", size(whole.peak_live_bytes)),
            Coverage::NothingServed => {
                "memory is not counted: no phase of zk-alloc was open, or zk_alloc::ZkAllocator is not the global allocator".into()
            }
            Coverage::NotInstalled => "memory is not counted: zk_alloc::ZkAllocator is not the global allocator".into(),
        }];
        if is_counted && whole.overflow_bytes > 0 {
            let overflow = size(whole.overflow_bytes);
            notes.push(format!("not counted: {overflow} that the backing allocator served instead of the arena"));
        }
        if is_counted && self.spans.iter().any(has_unserved) {
            notes.push("-: no phase of zk-alloc was open".into());
        }
        if self.unrecorded_entries > 0 {
            notes.push(format!("not recorded: {} entries of spans", grouped(self.unrecorded_entries)));
        }
        if self.entries_not_in_trace > 0 {
            notes.push(format!("not in the trace: the {} shortest entries", grouped(self.entries_not_in_trace)));
        }
        notes
    }
}

impl SpanReport {
    fn of(recording: &Recording, id: NodeId) -> Self {
        let node = &recording.nodes[id];
        let children = recording.children(id).map(|child| Self::of(recording, child));
        let threads = recording.threads.iter().enumerate().filter_map(|(number, thread)| {
            node.threads.get(&number).map(|&totals| ThreadReport { thread: thread.name(number), totals })
        });
        Self {
            name: node.name.to_owned(),
            count: node.spans,
            totals: node.totals,
            at_entry: node.at_entry,
            at_exit: node.at_exit,
            threads: threads.collect(),
            // A span that was never entered has no measurements. It is kept only if it has children.
            children: children.filter(|child| child.count > 0 || !child.children.is_empty()).collect(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = Vec::new();
        self.spans.iter().for_each(|span| add(&mut rows, span, String::new(), String::new()));
        rows.push((self.whole.name.clone(), &self.whole));
        let width = rows.iter().map(|row| row.0.chars().count()).max().unwrap_or(0);
        let mut row = |name: &str, [count, time, peak, allocated, faults]: [String; 5]| {
            writeln!(f, "{name:width$} {count:>7} {time:>11} {peak:>11} {allocated:>11} {faults:>9}")
        };
        row("span", ["count", "time", "peak", "allocated", "faults"].map(str::to_owned))?;
        for (name, SpanReport { count, totals, .. }) in rows {
            let bytes = |bytes| if totals.is_served { size(bytes) } else { "-".to_owned() };
            let count = if *count > 0 { grouped(*count) } else { String::new() };
            let (peak, allocated) = (bytes(totals.peak_live_bytes), bytes(totals.allocated_bytes));
            row(&name, [count, time(totals.wall_ns), peak, allocated, grouped(totals.minor_faults)])?;
        }
        f.write_str(&self.notes().join("\n"))
    }
}

fn has_unserved(span: &SpanReport) -> bool {
    !span.totals.is_served || span.children.iter().any(has_unserved)
}

/// Adds the row of a span, which begins with `branch`, and the rows of its children, which begin with `stem`.
fn add<'a>(rows: &mut Vec<(String, &'a SpanReport)>, span: &'a SpanReport, branch: String, stem: String) {
    rows.push((branch + &span.name, span));
    let last = span.children.len().saturating_sub(1);
    for (index, child) in span.children.iter().enumerate() {
        let (branch, below) = if index == last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        add(rows, child, format!("{stem}{branch}"), format!("{stem}{below}"));
    }
}

fn time(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.3} s", ns as f64 / 1e9),
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..0x400 => format!("{bytes} B"),
        0x400..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

/// Formats a number with a comma before each group of three digits.
fn grouped(number: u64) -> String {
    if number < 1000 { number.to_string() } else { format!("{},{:03}", grouped(number / 1000), number % 1000) }
}

/// Writes a recording in Chrome's trace format, as JSON: <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>.
/// An event of type `X` is a slice, `C` a counter value, and `M` a name. Times are in microseconds.
pub(crate) fn write_trace(recording: &Recording, out: impl Write) -> io::Result<()> {
    let mut out = BufWriter::new(out);
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    let mut separator = "";
    let mut event = |event: Value| write!(out, "{}\n{event}", std::mem::replace(&mut separator, ","));
    let program = std::env::args().next().unwrap_or_default();
    let threads =
        recording.threads.iter().enumerate().map(|(number, thread)| ("thread_name", number + 1, thread.name(number)));
    for (what, tid, name) in [("process_name", 0, program)].into_iter().chain(threads) {
        event(json!({ "name": what, "ph": "M", "pid": 1, "tid": tid, "ts": 0.0, "args": { "name": name } }))?;
    }
    let microseconds = |ns: u64| ns as f64 / 1e3;
    let mut entries: Vec<_> = recording.timeline.entries.iter().chain(&recording.entered).collect();
    // A slice must come before the slices within it.
    entries.sort_by_key(|entry| (entry.begun_ns, std::cmp::Reverse(entry.totals.wall_ns)));
    for Entry { node, thread, begun_ns, totals, .. } in entries {
        let name = recording.nodes[*node].name;
        let (ts, dur) = (microseconds(*begun_ns), microseconds(totals.wall_ns));
        event(json!({ "name": name, "ph": "X", "pid": 1, "tid": thread + 1, "ts": ts, "dur": dur, "args": totals }))?;
    }
    // If the arena served nothing, its counters are left out of the trace.
    let is_served = recording.nodes[WHOLE].totals.is_served;
    let mut peak_from_ns = 0;
    for Sample { at_ns, level, peak_live_bytes } in recording.timeline.samples.iter().filter(|_| is_served) {
        for (name, at_ns, bytes) in [
            // A sample contains the peak since the previous sample, so the trace shows this peak from the previous sample's time on.
            ("peak of live", peak_from_ns, *peak_live_bytes),
            ("live", *at_ns, level.live_bytes),
            ("resident", *at_ns, level.resident_bytes),
            ("retained", *at_ns, level.retained_bytes),
        ] {
            let (ts, args) = (microseconds(at_ns), json!({ "bytes": bytes }));
            event(json!({ "name": name, "ph": "C", "pid": 1, "tid": 0, "ts": ts, "args": args }))?;
        }
        peak_from_ns = *at_ns;
    }
    let dropped = recording.timeline.dropped;
    write!(out, "],\"otherData\":{{\"shortest entries left out\":{dropped}}}}}")?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units_and_commas() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([7, 1536, 3 << 20, 5 << 30].map(size), ["7 B", "1.5 KiB", "3.0 MiB", "5.00 GiB"]);
        assert_eq!([900, 2_500_000, 1_234_000_000].map(time), ["0.9 µs", "2.5 ms", "1.234 s"]);
    }
}
