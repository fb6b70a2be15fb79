//! Finds and reads a recorded run.

use crate::results::record::{Run, SCHEMA};
use anyhow::{Context, bail};
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};

/// Name for the run that started last.
const LATEST: &str = "latest";
const RESULT: &str = "result.json";

/// The folder of the run `name`. `name` may be a folder with a run, its `result.json`, the name of a folder in
/// `runs_folder`, or `latest` for the newest run there.
pub(super) fn find(name: &str, runs_folder: &Path) -> anyhow::Result<PathBuf> {
    let given = Path::new(name);
    if given.ends_with(RESULT) && given.is_file() {
        return Ok(given.parent().unwrap_or(Path::new("")).to_owned());
    }
    let holds_a_run = |folder: &PathBuf| folder.join(RESULT).is_file();
    if let Some(folder) = [given.to_owned(), runs_folder.join(given)].into_iter().find(holds_a_run) {
        return Ok(folder);
    }
    if name == LATEST {
        return newest(runs_folder).with_context(|| format!("no run in {} yet", runs_folder.display()));
    }
    bail!("no run {name:?}: neither a folder with a {RESULT}, nor the name of one in {}", runs_folder.display())
}

/// The newest run. Names of runs start with the time of the run, so the newest name sorts last.
fn newest(runs_folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(runs_folder).ok()?.filter_map(Result::ok);
    entries.map(|entry| entry.path()).filter(|folder| folder.join(RESULT).is_file()).max()
}

/// The part that all schemas share.
#[derive(Deserialize)]
struct Header {
    schema: u32,
}

/// Reads the run in `folder`.
pub(super) fn read(folder: &Path) -> anyhow::Result<Run> {
    read_file(&folder.join(RESULT))
}

/// Reads a run's `result.json`.
pub(super) fn read_file(path: &Path) -> anyhow::Result<Run> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let not_a_run = || format!("{} is not a run's result", path.display());
    let Header { schema } = serde_json::from_str(&text).with_context(not_a_run)?;
    if schema != SCHEMA {
        bail!(
            "{} has schema {schema}, this prove-bench reads schema {SCHEMA}: use the prove-bench that made it, or run it again",
            path.display()
        );
    }
    serde_json::from_str(&text).with_context(not_a_run)
}
