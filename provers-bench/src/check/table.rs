//! The output of a check: a row for each figure, and the regressions.

use super::baseline::Entry;
use super::judge::{Row, Verdict};
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};

/// The result of one workload.
pub(super) struct Checked {
    pub(super) key: String,
    pub(super) found: Result<(Entry, Vec<Row>), String>,
}

impl Checked {
    pub(super) fn proved(&self) -> bool {
        self.found.is_ok()
    }

    pub(super) fn holds(&self) -> bool {
        self.found.as_ref().is_ok_and(|(_, rows)| rows.iter().all(Row::holds))
    }
}

/// A row for each figure. The first row of a workload names it.
pub(super) fn table(checked: &[Checked]) -> String {
    let mut table = Table::new();
    table.set_content_arrangement(ContentArrangement::Disabled).load_style(UTF8_FULL_CONDENSED);
    table.set_header(["workload", "figure of a warm proof", "baseline", "now", "allowed", "verdict"]);
    for Checked { key, found } in checked {
        match found {
            Ok((_, rows)) => {
                let names = std::iter::once(key.as_str()).chain(std::iter::repeat(""));
                table.add_rows(names.zip(rows).map(|(name, row)| cells(name, row)));
            }
            Err(_) => _ = table.add_row([key, "", "", "", "", "FAILED"]),
        }
    }
    for column in table.column_iter_mut().skip(2).take(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

fn cells(name: &str, row: &Row) -> [String; 6] {
    let verdict = match &row.verdict {
        Verdict::Holds => "holds".to_owned(),
        Verdict::Worse(by) => format!("WORSE by {by}"),
        Verdict::NotJudged(why) => (*why).to_owned(),
    };
    [name, row.figure, &row.baseline, &row.now, &row.allowed, &verdict].map(str::to_owned)
}

/// The regressions, by how much they exceed the limit, and how to accept them.
pub(super) fn conclusion(checked: &[Checked], passed: bool) -> String {
    if passed {
        return "All figures hold.\n".into();
    }
    let mut text = String::new();
    for Checked { key, found } in checked {
        match found {
            Err(reason) => text += &format!("{key}: {reason}\n"),
            Ok((_, rows)) => {
                for Row { figure, baseline, now, allowed, verdict } in rows {
                    if let Verdict::Worse(by) = verdict {
                        text +=
                            &format!("{key}: {figure}: {now}, baseline {baseline}, allowed {allowed}: {by} too much\n");
                    }
                }
            }
        }
    }
    text + "If that is meant, the same command with --bless --reason \"why\" makes these figures the baseline.\n"
}
