//! The picture of a summary: time against memory, for each workload and each allocator.

use super::row::Row;
use crate::report::html::palette::{self, Palette};
use crate::report::html::pareto::Pareto;
use maud::{Markup, PreEscaped, html};

/// Its path in the repository.
pub(super) const PICTURE: &str = "docs/results.svg";

/// Height of the legend, width of a name and height of a line.
const LEGEND: f64 = 56.0;
const NAME: f64 = 110.0;
const LINE: f64 = 18.0;

/// Readable on light and on dark pages.
const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#1f2328}.tick,.marker-name{fill:#57606a;font-size:11px}.dot-name{font-size:11px}\
                     .grid{stroke:#d0d7de;stroke-width:.7}.marker{stroke:#57606a;stroke-dasharray:4 3}\
                     circle{fill:var(--c);fill-opacity:.75}.d1 circle,.d2 circle,.d3 circle{fill-opacity:.15;stroke:var(--c);stroke-width:1.6}\
                     .ours circle{fill-opacity:1;stroke:#1f2328}\
                     @media(prefers-color-scheme:dark){text{fill:#e6edf3}.tick,.marker-name{fill:#9198a1}.grid{stroke:#30363d}\
                     .marker{stroke:#9198a1}.ours circle{stroke:#e6edf3}}";

/// The picture as SVG; empty if there is nothing to compare.
pub(super) fn picture(rows: &[Row<'_>]) -> String {
    let results: Vec<_> = rows.iter().map(|row| row.workload).collect();
    let workloads: Vec<_> = rows.iter().map(|row| (row.short_name().to_owned(), row.workload)).collect();
    let Some(pareto) = Pareto::of(&workloads, &Palette::of_all(&results)) else { return String::new() };
    let (width, height) = Pareto::size();
    let columns = (width / NAME).floor() as usize;
    let drawing = html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox={ "0 0 " (width) " " (height + LEGEND) } role="img"
            aria-label="Time of a warm proof against peak memory, by glibc's, of every prover under every allocator" {
            style { (PreEscaped(STYLE)) (PreEscaped(palette::css())) }
            (pareto.drawing())
            @for (index, (label, class)) in pareto.arms().enumerate() {
                (name(label, class, (44.0 + NAME * (index % columns) as f64, height + 14.0 + LINE * (index / columns) as f64)))
            }
        }
    };
    drawing.into_string() + "\n"
}

/// A name in the legend, with its dot.
fn name(label: &str, class: &str, (x, y): (f64, f64)) -> Markup {
    html! {
        g class=(class) { circle cx=(format!("{x:.1}")) cy=(format!("{:.1}", y - 4.0)) r="4" {} }
        text x=(format!("{:.1}", x + 9.0)) y=(format!("{y:.1}")) { (label) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{EVEN, workload};

    /// The README shows the picture without other text, so it must name every allocator that it draws.
    #[test]
    fn the_picture_names_the_workloads_and_the_allocators() {
        let result = workload(&[("glibc", &EVEN), ("mimalloc", &EVEN), ("zk-alloc", &EVEN)]);
        let [before, ours] = [0, 2].map(|arm: usize| result.arms[arm].summary.as_ref().unwrap());
        let rows = [(); 2].map(|()| Row { prover: None, workload: &result, before, ours, peer: None });
        let svg = picture(&rows);
        for part in ["poseidon2", ">mimalloc<", ">zk-alloc<", "glibc"] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        assert_eq!(svg.matches("<circle").count(), 4 + 2, "two dots a workload, and two names: {svg}");
    }
}
