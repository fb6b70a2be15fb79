//! The picture beside the summary: a bar for glibc's time and one for ours, workload by workload.

use super::row::Row;
use crate::results::format;
use crate::results::summary::Summary;
use maud::html;

/// Where it lies in the repository.
pub(super) const PICTURE: &str = "docs/results.svg";

const WIDTH: f64 = 720.0;
/// Where bars begin, and the length of glibc's.
const LEFT: f64 = 150.0;
const FULL: f64 = 300.0;
/// A workload's share of the height, and a bar's.
const ROW: f64 = 52.0;
const BAR: f64 = 17.0;
const HEAD: f64 = 30.0;

/// Readable on light and on dark pages, whichever shows it.
const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#57606a}.name{font-weight:600}.glibc{fill:#afb8c1}.ours{fill:#1f883d}\
                     @media(prefers-color-scheme:dark){text{fill:#9198a1}.glibc{fill:#57606a}.ours{fill:#3fb950}}";

/// The picture as SVG.
pub(super) fn picture(rows: &[Row<'_>]) -> String {
    let height = HEAD + ROW * rows.len() as f64;
    let drawing = html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox={ "0 0 " (WIDTH) " " (height) } role="img"
            aria-label="Time of a warm proof under zk-alloc, as a part of glibc's" {
            style { (maud::PreEscaped(STYLE)) }
            text x=(LEFT) y="18" { "time of a warm proof: glibc above, zk-alloc below" }
            @for (row, index) in rows.iter().zip(0_u32..) {
                @let top = HEAD + ROW * f64::from(index);
                @let ratio = row.ours.wall_ratio.as_ref().map_or(1.0, |ratio| ratio.median);
                text.name x="0" y=(top + BAR) { (row.name()) }
                (bar("glibc", top, FULL, &words(row.before, None)))
                (bar("ours", top + BAR + 2.0, FULL * ratio, &words(row.ours, Some(ratio))))
            }
        }
    };
    drawing.into_string() + "\n"
}

/// A bar, and what stands behind it.
fn bar(class: &str, top: f64, length: f64, words: &str) -> maud::Markup {
    html! {
        rect class=(class) x=(LEFT) y=(format!("{top:.1}")) width=(format!("{length:.1}")) height=(BAR) rx="2" {}
        text x=(format!("{:.1}", LEFT + length.max(FULL) + 8.0)) y=(format!("{:.1}", top + 13.0)) { (words) }
    }
}

fn words(summary: &Summary, ratio: Option<f64>) -> String {
    let time = summary.warm_wall_ns.map(format::time);
    let ratio = ratio.map(|ratio| format!("{ratio:.2}"));
    let faults = summary.warm_minflt.map(|faults| format!("{} faults", format::count(faults)));
    [time, ratio, faults].into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{EVEN, workload};

    /// A proof that takes longer must be drawn longer, and one of the same time as long as glibc's.
    #[test]
    fn the_bars_are_as_long_as_the_times() {
        let slower = EVEN.map(|ns| ns * 2);
        let result = workload(&[("glibc", &EVEN), ("zk-alloc", &slower)]);
        let [before, ours] = [&result.arms[0], &result.arms[1]].map(|arm| arm.summary.as_ref().unwrap());
        let svg = picture(&[Row { workload: &result, before, ours }]);
        let widths: Vec<_> = svg.split("width=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(widths, ["300.0", "600.0"], "{svg}");
        assert!(svg.contains("poseidon2 2^15") && svg.contains("2.00"), "{svg}");
    }
}
