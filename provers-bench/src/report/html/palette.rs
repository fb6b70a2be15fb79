//! One colour for each allocator, the same in every chart; its variants differ by the dashes of their lines.

use crate::results::record::Run;
use crate::results::view;
use std::collections::BTreeMap;

/// Names of arms begin with these; the classes' colours stand in `style.css`.
const FAMILIES: [(&str, &str); 6] = [
    ("zk-alloc", "c-ours"),
    ("glibc", "c-glibc"),
    ("jemalloc", "c-jemalloc"),
    ("mimalloc", "c-mimalloc"),
    ("snmalloc", "c-snmalloc"),
    ("bump-reset", "c-bump"),
];
/// Any other allocator.
const OTHER: &str = "c-other";
/// Kinds of dashes in `style.css`, a whole line among them.
const DASHES: usize = 4;

/// How an arm is drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// CSS classes.
    pub(super) class: String,
    /// Drawn over the others, and stronger.
    pub(super) ours: bool,
}

/// The looks of a run's arms, by label.
#[derive(Debug)]
pub(super) struct Palette(BTreeMap<String, Look>);

impl Palette {
    /// Gives each arm of `run` its look.
    pub(super) fn of(run: &Run) -> Self {
        let mut looks = BTreeMap::new();
        let mut members: BTreeMap<&str, usize> = BTreeMap::new();
        for arm in run.workloads.iter().flat_map(|workload| &workload.arms) {
            if looks.contains_key(&arm.label) {
                continue;
            }
            let family = FAMILIES.iter().find(|(prefix, _)| arm.arm.starts_with(prefix));
            let colour = family.map_or(OTHER, |(_, class)| class);
            let member = members.entry(colour).or_default();
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
