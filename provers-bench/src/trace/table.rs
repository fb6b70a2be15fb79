//! The table of one trace, with a row per policy.

use super::simulate::Figures;
use crate::protocol::records::Trace;
use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, ContentArrangement, Table};

/// The table as Markdown, without a final line break.
pub(crate) fn table(trace: &Trace, rows: &[(&str, Figures)]) -> String {
    let mut table = Table::new();
    table.set_content_arrangement(ContentArrangement::Disabled).load_style(ASCII_MARKDOWN);
    table.set_header([
        "policy",
        "resident / live peak",
        "resident MiB",
        "live peak MiB",
        "fresh MiB after proof 1",
        "slabs / blocks",
        "slabs MiB",
        "blocks MiB",
        "slabs between proofs MiB",
        "arena allocations a proof",
        "backing allocations a proof",
    ]);
    table.add_rows(rows.iter().map(|(name, figures)| row(name, figures)));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let lost = match trace.header.lost {
        0 => String::new(),
        lost => format!("\n{lost} records were lost: the figures are wrong."),
    };
    let title = format!(
        "{}; {} records, of {} bytes and more",
        trace.header.title,
        trace.records.len(),
        trace.header.min_bytes
    );
    format!("{title}{lost}\n\n{}", table.trim_fmt())
}

fn row(name: &str, figures: &Figures) -> [String; 11] {
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / (1 << 20) as f64);
    let ratio = |bytes: u64, of: u64| if of == 0 { "-".into() } else { format!("{:.3}", bytes as f64 / of as f64) };
    let a_proof = |count: u64| (count / u64::from(figures.proofs.max(1))).to_string();
    [
        name.into(),
        ratio(figures.resident_bytes, figures.live_peak_bytes),
        mib(figures.resident_bytes),
        mib(figures.live_peak_bytes),
        mib(figures.fresh_later_bytes),
        ratio(figures.slab_bytes, figures.slab_live_bytes),
        mib(figures.slab_bytes),
        mib(figures.slab_live_bytes),
        mib(figures.resting_slab_bytes),
        a_proof(figures.arena_allocations),
        a_proof(figures.backing_allocations),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::records::Header;

    /// A table from a trace with lost records must say so.
    #[test]
    fn a_table_warns_of_lost_records_and_divides_by_nothing() {
        let trace = Trace { header: Header::new("plonky3".into(), 1024, 7), records: Vec::new() };
        let none = Figures {
            resident_bytes: 0,
            live_peak_bytes: 0,
            fresh_later_bytes: 0,
            slab_live_bytes: 0,
            slab_bytes: 0,
            resting_slab_bytes: 0,
            proofs: 0,
            arena_allocations: 0,
            backing_allocations: 0,
        };
        let text = table(&trace, &[("zk-alloc", none)]);
        assert!(text.contains("7 records were lost") && text.contains("| zk-alloc"), "{text}");
        assert!(!text.contains("NaN"), "{text}");
    }
}
