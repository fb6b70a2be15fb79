//! Chrome's trace format, as JSON: <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>.

use std::io::{self, BufWriter, Write};

use serde::Serialize;

use crate::reading::Totals;
use crate::recording::Recording;
use crate::timeline::Sample;

/// The trace is of one process.
const PROCESS: u32 = 1;

#[derive(Serialize)]
struct Event<'a, A> {
    name: &'a str,
    /// `X` is a slice, `C` a value of a counter, `M` a name.
    ph: char,
    pid: u32,
    tid: usize,
    /// In microseconds.
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    args: A,
}

#[derive(Serialize)]
struct Name<'a> {
    name: &'a str,
}

#[derive(Serialize)]
struct Bytes {
    bytes: u64,
}

/// Writes a recording.
pub(crate) fn write(recording: &Recording, out: impl Write) -> io::Result<()> {
    let mut events = Events { out: BufWriter::new(out), is_first: true };
    events.out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    let program = std::env::args().next().unwrap_or_default();
    events.name("process_name", 0, &program)?;
    for (number, thread) in recording.threads.iter().enumerate() {
        events.name("thread_name", number + 1, &thread.name(number))?;
    }
    let mut entries: Vec<_> = recording.timeline.entries.iter().chain(recording.entered()).collect();
    // A slice comes before those within it.
    entries.sort_by_key(|entry| (entry.begun_ns, std::cmp::Reverse(entry.totals.wall_ns)));
    for entry in entries {
        let node = recording.tree.node(entry.node);
        events.slice(node.name, entry.thread + 1, entry.begun_ns, &entry.totals)?;
    }
    // Where nothing was served there is nothing to show.
    if recording.tree.node(crate::tree::WHOLE).totals.is_served {
        let mut peak_from_ns = 0;
        for sample in &recording.timeline.samples {
            events.sample(sample, peak_from_ns)?;
            peak_from_ns = sample.at_ns;
        }
    }
    let dropped = recording.timeline.dropped;
    write!(events.out, "],\"otherData\":{{\"shortest entries left out\":{dropped}}}}}")?;
    events.out.flush()
}

struct Events<W: Write> {
    out: BufWriter<W>,
    is_first: bool,
}

impl<W: Write> Events<W> {
    fn write(&mut self, event: &impl Serialize) -> io::Result<()> {
        self.out.write_all(if std::mem::take(&mut self.is_first) { b"\n" } else { b",\n" })?;
        Ok(serde_json::to_writer(&mut self.out, event)?)
    }

    fn name(&mut self, what: &str, tid: usize, name: &str) -> io::Result<()> {
        self.write(&Event { name: what, ph: 'M', pid: PROCESS, tid, ts: 0.0, dur: None, args: Name { name } })
    }

    fn slice(&mut self, name: &str, tid: usize, begun_ns: u64, totals: &Totals) -> io::Result<()> {
        let dur = Some(microseconds(totals.wall_ns));
        self.write(&Event { name, ph: 'X', pid: PROCESS, tid, ts: microseconds(begun_ns), dur, args: totals })
    }

    /// The peak is that of the time before the sample, so it is drawn from `peak_from_ns` on.
    fn sample(&mut self, sample: &Sample, peak_from_ns: u64) -> io::Result<()> {
        let level = &sample.level;
        self.counter("peak of live", peak_from_ns, sample.peak_live_bytes)?;
        self.counter("live", sample.at_ns, level.live_bytes)?;
        self.counter("resident", sample.at_ns, level.resident_bytes)?;
        self.counter("retained", sample.at_ns, level.retained_bytes)
    }

    fn counter(&mut self, name: &str, at_ns: u64, bytes: u64) -> io::Result<()> {
        let (ts, args) = (microseconds(at_ns), Bytes { bytes });
        self.write(&Event { name, ph: 'C', pid: PROCESS, tid: 0, ts, dur: None, args })
    }
}

fn microseconds(ns: u64) -> f64 {
    ns as f64 / 1e3
}
