//! The call sites of the peak, as tables for the terminal.

use crate::protocol::profiles::{Profile, moves};
use crate::results::format;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};

/// The rows of a table.
const MOST: usize = 10;

/// The functions that hold most of the peak.
pub(super) fn sites(profile: &Profile) -> String {
    let mut table = new(&["call site", "at the peak", "share", "stage", "lifetime"]);
    for group in profile.groups().into_iter().take(MOST) {
        let share = group.peak_bytes as f64 / profile.peak_bytes.max(1) as f64 * 100.0;
        let stage = group.site.stage.last().map_or("-", String::as_str);
        let bytes = format::mebibytes(group.peak_bytes);
        table.add_row([
            &group.site.function(),
            &bytes,
            &format!("{share:.1}%"),
            stage,
            &group.site.lifetime.to_string(),
        ]);
    }
    format!("{}\n{table}\n", peak(profile))
}

/// The peak, in a sentence.
pub(super) fn peak(profile: &Profile) -> String {
    let backing = match profile.backing_bytes {
        0 => String::new(),
        bytes => format!(", {} of it from the backing allocator", format::mebibytes(bytes)),
    };
    format!("Live bytes at the peak of the warm proof: {}{backing}", format::mebibytes(profile.peak_bytes))
}

/// The call sites that hold more or less than in an earlier profile.
pub(super) fn moved(before: &Profile, after: &Profile) -> String {
    let mut table = new(&["call site", "before", "after", "change"]);
    for moved in moves(before, after).into_iter().take(MOST) {
        let [old, new] = [moved.before_bytes, moved.after_bytes].map(format::mebibytes);
        let change = format::change(moved.before_bytes, moved.after_bytes);
        table.add_row([&moved.site.function(), &old, &new, &change]);
    }
    let [old, new] = [before.peak_bytes, after.peak_bytes].map(format::mebibytes);
    let other = after.other_than(before).map_or_else(String::new, |other| format!("{other}\n"));
    format!("\nagainst the earlier profile: the peak was {old}, and is {new}\n{other}{table}\n")
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
