//! A report as a tree, for the terminal.

use std::fmt;

use crate::report::{Coverage, Report, SpanReport};

/// A row of the table, its name indented.
struct Row<'a>(String, &'a SpanReport);

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = Vec::new();
        self.spans.iter().for_each(|span| add(&mut rows, span, String::new(), String::new()));
        rows.push(Row(self.whole.name.clone(), &self.whole));
        let width = rows.iter().map(|row| row.0.chars().count()).max().unwrap_or(0);
        writeln!(
            f,
            "{:width$} {:>7} {:>11} {:>11} {:>11} {:>9}",
            "span", "count", "time", "peak", "allocated", "faults"
        )?;
        for Row(name, span) in rows {
            let totals = &span.totals;
            let bytes = |bytes| if totals.is_served { size(bytes) } else { "-".to_owned() };
            writeln!(
                f,
                "{name:width$} {:>7} {:>11} {:>11} {:>11} {:>9}",
                if span.count > 0 { grouped(span.count) } else { String::new() },
                time(totals.wall_ns),
                bytes(totals.peak_live_bytes),
                bytes(totals.allocated_bytes),
                grouped(totals.minor_faults),
            )?;
        }
        self.write_notes(f)
    }
}

impl Report {
    fn write_notes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = &self.whole.totals;
        match self.coverage {
            Coverage::Arena => {
                let (peak, path) = (size(whole.peak_live_bytes), self.peak_path());
                let place = if path.is_empty() { "outside of all spans".to_owned() } else { path.join(" > ") };
                write!(f, "peak of live memory: {peak}, in {place}")?;
                if whole.overflow_bytes > 0 {
                    let overflow = size(whole.overflow_bytes);
                    write!(f, "\nnot counted: {overflow} that the backing allocator served instead of the arena")?;
                }
            }
            Coverage::NothingServed => write!(
                f,
                "memory is not counted: no phase of zk-alloc was open, or zk_alloc::ZkAllocator is not the global allocator"
            )?,
            Coverage::NotInstalled => {
                write!(f, "memory is not counted: zk_alloc::ZkAllocator is not the global allocator")?;
            }
        }
        if self.coverage == Coverage::Arena && self.spans.iter().any(has_unserved) {
            write!(f, "\n-: no phase of zk-alloc was open")?;
        }
        if self.unrecorded_entries > 0 {
            write!(f, "\nnot recorded: {} entries of spans", grouped(self.unrecorded_entries))?;
        }
        if self.entries_not_in_trace > 0 {
            write!(f, "\nnot in the trace: the {} shortest entries", grouped(self.entries_not_in_trace))?;
        }
        Ok(())
    }
}

fn has_unserved(span: &SpanReport) -> bool {
    !span.totals.is_served || span.children.iter().any(has_unserved)
}

/// Adds a span, whose row begins with `branch`, and those under it, whose rows begin with `stem`.
fn add<'a>(rows: &mut Vec<Row<'a>>, span: &'a SpanReport, branch: String, stem: String) {
    rows.push(Row(branch + &span.name, span));
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

/// With a comma before each three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
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
