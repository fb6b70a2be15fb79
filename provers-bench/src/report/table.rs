//! The table of one workload, with a row per arm.

use crate::results::columns::{self, Cell, Seen, Shown};
use crate::results::format;
use crate::results::record::{ArmResult, WorkloadResult};
use comfy_table::presets::{ASCII_MARKDOWN, UTF8_FULL_CONDENSED};
use comfy_table::{CellAlignment, ContentArrangement, Table};

/// The medium of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Terminal,
    Markdown,
}

/// Placeholder for a missing figure.
const NONE: &str = "-";
/// Longest outcome in a cell. The notes below the table state it in full.
const OUTCOME_CHARS: usize = 48;

/// The table of `workload`, without a final line break.
pub(crate) fn table(workload: &WorkloadResult, style: Style) -> String {
    match (style, Table::new().width()) {
        // A terminal that reports 0 columns does not know its width, such as a container's pseudo-terminal before its
        // first resize.
        (Style::Terminal, Some(width)) if width > 0 => table_fitting(workload, width),
        _ => drawn(&rows(workload), style).trim_fmt(),
    }
}

/// The table of `workload` as a terminal of `width` columns shows it.
pub(super) fn table_fitting(workload: &WorkloadResult, width: u16) -> String {
    fitted(rows(workload), width)
}

/// The header, and a row for each arm.
fn rows(workload: &WorkloadResult) -> Vec<Vec<String>> {
    let arms = workload.arms.iter().map(|arm| row(workload, arm));
    [header(workload)].into_iter().chain(arms).collect()
}

/// A table for a terminal of `width` columns. If it is too wide, it is transposed: each arm becomes a column. If that
/// is too wide as well, cells wrap.
fn fitted(rows: Vec<Vec<String>>, width: u16) -> String {
    let upright = drawn(&rows, Style::Terminal);
    let needed = upright.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    if needed <= usize::from(width) {
        return upright.trim_fmt();
    }
    let columns = rows.first().map_or(0, Vec::len);
    let turned: Vec<_> = (0..columns).map(|column| rows.iter().map(|row| row[column].clone()).collect()).collect();
    let mut turned = drawn(&turned, Style::Terminal);
    turned.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    turned.trim_fmt()
}

/// Draws `rows`; the first row is the header.
pub(super) fn drawn(rows: &[Vec<String>], style: Style) -> Table {
    let mut table = Table::new();
    table.set_content_arrangement(ContentArrangement::Disabled).load_style(match style {
        Style::Terminal => UTF8_FULL_CONDENSED,
        Style::Markdown => ASCII_MARKDOWN,
    });
    let mut lines = rows.iter().map(|row| row.iter().map(|cell| escaped(cell, style)).collect::<Vec<_>>());
    table.set_header(lines.next().unwrap_or_default()).add_rows(lines);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn header(workload: &WorkloadResult) -> Vec<String> {
    let headings = columns::filled(workload, place).map(|(_, (heading, _))| columns::heading(heading, workload));
    ["allocator".to_owned()].into_iter().chain(headings).collect()
}

fn row(workload: &WorkloadResult, arm: &ArmResult) -> Vec<String> {
    let seen = arm.summary.as_ref().map(|summary| Seen { workload, arm, summary });
    let cells = columns::filled(workload, place).map(|(column, (_, beside))| match (&seen, &column.cell) {
        (Some(seen), _) => with_ratio(column.text(seen), beside.and_then(|ratio| ratio(seen))),
        // The row of an arm without figures states why.
        (None, Cell::Verdict) => format::outcome(&arm.outcome).map_or_else(|| NONE.to_owned(), |text| shortened(&text)),
        (None, _) => NONE.to_owned(),
    });
    [arm.label.clone()].into_iter().chain(cells).collect()
}

/// A ratio in brackets after a figure.
type Beside = fn(&Seen<'_>) -> Option<f64>;

fn place(place: &'static Shown) -> Option<(&'static str, Option<Beside>)> {
    match place {
        Shown::Text(heading) => Some((heading, None)),
        Shown::TextWith(heading, ratio) => Some((heading, Some(*ratio))),
        _ => None,
    }
}

/// A figure, and its ratio to the baseline's.
fn with_ratio(figure: Option<String>, ratio: Option<f64>) -> String {
    let figure = figure.unwrap_or_else(|| NONE.into());
    ratio.map_or(figure.clone(), |ratio| format!("{figure} ({ratio:.2})"))
}

fn shortened(text: &str) -> String {
    if text.chars().count() <= OUTCOME_CHARS {
        return text.into();
    }
    text.chars().take(OUTCOME_CHARS).collect::<String>() + "…"
}

/// A reason may quote any text; the text must not end a cell or a row.
fn escaped(cell: &str, style: Style) -> String {
    let cell = cell.replace(['\n', '\r', '\t'], " ");
    if style == Style::Markdown { cell.replace('|', "\\|") } else { cell }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::record::{self, tests::arm};
    use crate::results::record::{Ended, Outcome};
    use crate::results::timed::Timed;

    fn result() -> WorkloadResult {
        let failed = Outcome::Failed { round: 3, reason: "died of SIGABRT: a|b\nc".into() };
        let left_out = Outcome::LeftOut { reason: "needs about 9.00 GB".into() };
        let mut arms = vec![
            arm("glibc", Outcome::Finished, &[200_000_000; 9]),
            arm("zk-alloc", Outcome::Finished, &[100_000_000; 9]),
            arm("jemalloc", failed, &[1; 3]),
            arm("mimalloc", left_out, &[]),
        ];
        record::summarise(&mut arms, 0, 1);
        let (workload, about, baseline) = ("w".into(), String::new(), "glibc".into());
        let (threads, live_peak_bytes, ended) = (2, None, Ended::AllRounds);
        WorkloadResult {
            workload,
            about,
            timed: Timed::Proofs,
            log_rows: 10,
            threads,
            live_peak_bytes,
            baseline,
            arms,
            ended,
        }
    }

    fn rendered(style: Style) -> String {
        table(&result(), style)
    }

    #[test]
    fn a_row_shows_the_figures_of_its_arm() {
        let text = rendered(Style::Markdown);
        let row = text.lines().find(|line| line.contains("zk-alloc")).unwrap();
        for cell in ["100 ms (0.50)", "0.500 [0.500, 0.500]", "faster", "10", "200 MB (1.00)", "100 MB"] {
            assert!(row.contains(cell), "{cell} in {row}");
        }
        assert!(text.contains("baseline"), "{text}");
    }

    /// A failed arm must have a row that names the failure. The row must not be missing, nor show figures.
    #[test]
    fn a_failed_arm_is_a_row_that_names_the_failure() {
        let text = rendered(Style::Markdown);
        let row = text.lines().find(|line| line.contains("jemalloc")).unwrap();
        assert!(row.contains("FAILED in round 3: died of SIGABRT: a\\|b c"), "{row}");
        assert!(!row.contains(" ms"), "{row}");
        assert!(text.lines().any(|line| line.contains("mimalloc") && line.contains("left out: needs about 9.00 GB")));
    }

    /// A README shows a table only if every line has the same number of cells.
    #[test]
    fn markdown_rows_have_equal_numbers_of_cells() {
        let text = rendered(Style::Markdown);
        assert_eq!(text.lines().count(), 6);
        for line in text.lines() {
            assert_eq!(line.replace("\\|", "").matches('|').count(), header(&result()).len() + 1, "{line}");
        }
    }

    /// A newcomer's terminal has 80 columns. The table must not split words or numbers there.
    #[test]
    fn three_arms_fit_80_columns_with_their_numbers_whole() {
        let result = result();
        let rows = [header(&result)].into_iter().chain(result.arms[..3].iter().map(|arm| row(&result, arm)));
        let text = fitted(rows.collect(), 80);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for whole in ["allocator", "jemalloc", "100 ms", "[0.500, 0.500]", "resting RSS", "SIGABRT"] {
            assert!(text.contains(whole), "{whole} in\n{text}");
        }
    }
}
