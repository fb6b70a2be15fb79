//! One colour per allocator, the same in every chart. Variants of an allocator differ by the dashes of their lines.

use crate::arms::{self, ARMS, Arm, Colour};
use crate::results::record::{Run, WorkloadResult};
use crate::results::view;
use std::collections::{BTreeMap, BTreeSet};

/// CSS class of an unknown allocator.
const OTHER: &str = "c-other";

/// Number of dash patterns in `style.css`, including the solid line.
const DASHES: usize = 4;

/// The appearance of an arm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// CSS classes.
    pub(super) class: String,
    /// Whether the arm is drawn over the others, and stronger.
    pub(super) ours: bool,
}

/// The looks of a run's arms, by label.
#[derive(Debug)]
pub(crate) struct Palette(BTreeMap<String, Look>);

impl Palette {
    /// Gives each arm of `run` its look.
    pub(crate) fn of(run: &Run) -> Self {
        Self::of_all(&run.workloads.iter().collect::<Vec<_>>())
    }

    /// Gives each arm of `workloads` its look.
    pub(crate) fn of_all(workloads: &[&WorkloadResult]) -> Self {
        let mut looks = BTreeMap::new();
        let mut members: BTreeMap<String, usize> = BTreeMap::new();
        for arm in workloads.iter().flat_map(|workload| &workload.arms) {
            if looks.contains_key(&arm.label) {
                continue;
            }
            let colour = arms::named(&arm.arm).map_or_else(|| OTHER.into(), class);
            let member = members.entry(colour.clone()).or_default();
            let class = format!("{colour} d{}", *member % DASHES);
            *member += 1;
            looks.insert(arm.label.clone(), Look { class, ours: view::is_ours(arm) });
        }
        Self(looks)
    }

    /// The look of the arm called `label` in this run.
    pub(super) fn look(&self, label: &str) -> Look {
        self.0.get(label).cloned().unwrap_or_else(|| Look { class: OTHER.into(), ours: false })
    }
}

/// The class of an arm's colour, named after the first arm with that colour.
fn class(arm: &Arm) -> String {
    let first = ARMS.iter().find(|other| other.colour == arm.colour).unwrap_or(arm);
    format!("c-{}", first.name)
}

/// The colours of all classes, as CSS.
pub(crate) fn css() -> String {
    let known = ARMS.iter().map(|arm| (class(arm), arm.colour));
    let mut seen = BTreeSet::new();
    let colours: Vec<_> =
        known.chain([(OTHER.into(), Colour::OTHER)]).filter(|(class, _)| seen.insert(class.clone())).collect();
    let rules = |of: fn(&Colour) -> &'static str| {
        colours.iter().map(|(class, colour)| format!(".{class} {{ --c: {}; }}\n", of(colour))).collect::<String>()
    };
    let (light, dark) = (rules(|colour| colour.light), rules(|colour| colour.dark));
    format!("{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n")
}
