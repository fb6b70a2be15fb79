//! The call sites of the peak, as tables for the terminal.

use crate::protocol::profiles::{Profile, moves};
use crate::results::format;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};

/// The rows of a table.
const MOST: usize = 10;

/// The largest call sites.
pub(super) fn sites(profile: &Profile) -> String {
    let mut table = new(&["call site", "at the peak", "share", "stage", "lifetime"]);
    for site in profile.sites.iter().take(MOST) {
        let share = site.peak_bytes as f64 / profile.peak_bytes.max(1) as f64 * 100.0;
        let stage = site.stage.last().map_or("-", String::as_str);
        let bytes = format::bytes(site.peak_bytes);
        table.add_row([site.function(), &bytes, &format!("{share:.1}%"), stage, &site.lifetime.to_string()]);
    }
    format!("peak of the warm proof: {}, by call site\n{table}\n", format::bytes(profile.peak_bytes))
}

/// The call sites that hold more or less than in an earlier profile.
pub(super) fn moved(before: &Profile, after: &Profile) -> String {
    let mut table = new(&["call site", "before", "after", "change"]);
    for moved in moves(before, after).into_iter().take(MOST) {
        let [old, new] = [moved.before_bytes, moved.after_bytes].map(format::bytes);
        table.add_row([moved.site.function(), &old, &new, &format::change(moved.before_bytes, moved.after_bytes)]);
    }
    let [old, new] = [before.peak_bytes, after.peak_bytes].map(format::bytes);
    format!("\nagainst the earlier profile: the peak was {old}, and is {new}\n{table}\n")
}

fn new(headings: &[&str]) -> Table {
    let mut table = Table::new();
    table.set_content_arrangement(ContentArrangement::Dynamic).load_style(UTF8_FULL_CONDENSED).set_header(headings);
    for index in 1..3 {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
