//! Saved runs: copies in the repository from which the documentation is made.

use crate::report::runs;
use crate::results::record::Run;
use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Their folder in the repository.
const RUNS: &str = "docs/data/runs";

/// Saves `run` in `repository` as the source `name` of the documentation.
pub(crate) fn keep(repository: &Path, name: &str, mut run: Run) -> anyhow::Result<()> {
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
        bail!("{name:?} is no name for a run: letters, digits and dashes");
    }
    // No table uses these fields.
    for arm in run.workloads.iter_mut().flat_map(|workload| &mut workload.arms) {
        arm.rss_over_time.clear();
        arm.stderr.clear();
    }
    let folder = repository.join(RUNS);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = folder.join(format!("{name}.json"));
    fs::write(&path, serde_json::to_string(&run)? + "\n").with_context(|| format!("cannot write {}", path.display()))
}

/// The saved runs, by name.
pub(super) struct Kept(pub(super) BTreeMap<String, Run>);

impl Kept {
    pub(super) fn read(repository: &Path) -> anyhow::Result<Self> {
        let folder = repository.join(RUNS);
        let mut kept = BTreeMap::new();
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.with_context(|| format!("cannot read {}", folder.display()))?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                kept.insert(name, runs::read_file(&path)?);
            }
        }
        Ok(Self(kept))
    }

    pub(super) fn run(&self, name: &str) -> Option<&Run> {
        self.0.get(name)
    }
}
