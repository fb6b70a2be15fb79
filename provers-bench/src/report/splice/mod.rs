//! Fills the documentation's tables from saved runs.
//!
//! A block between two markers in a Markdown file is generated from a run. The first marker is one of these:
//!
//! - `<!-- prove-bench: tables plonky3 -->`: all tables of the run docs/data/runs/plonky3.json
//! - `<!-- prove-bench: rows plonky3/poseidon2 jolt/dory -->`: a row for each workload
//! - `<!-- prove-bench: summary plonky3/poseidon2 jolt/dory -->`: the same, and the picture
//!   docs/results.svg
//! - `<!-- prove-bench: ablation a b -->`: what each mechanism or constant changes, over all workloads of these runs
//! - `<!-- prove-bench: constants -->`: the constants of the allocator
//!
//! `<!-- /prove-bench -->` ends each block.
//!
//! `report RUN --splice NAME` saves a run under `docs/data/runs` and refills the blocks. A test fails if a block
//! differs from its run.

mod ablation;
mod blocks;
mod kept;
mod picture;
mod row;

pub(super) use kept::keep;

use anyhow::{Context, bail};
use kept::Kept;
use picture::PICTURE;
use std::fs;
use std::path::{Path, PathBuf};

const BEGIN: &str = "<!-- prove-bench: ";
const END: &str = "<!-- /prove-bench -->";

/// A file of the documentation, with the text that its runs yield.
pub(super) struct Page {
    pub(super) path: PathBuf,
    pub(super) text: String,
    /// Whether the file on disk differs.
    pub(super) differs: bool,
}

/// Every page of the documentation in `repository` that has a block, filled from the saved runs.
pub(super) fn pages(repository: &Path) -> anyhow::Result<Vec<Page>> {
    let kept = Kept::read(repository)?;
    let mut files = vec![repository.join("README.md")];
    markdown_in(&repository.join("docs"), &mut files)?;
    let mut pages = Vec::new();
    for path in files {
        let old = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        if !old.contains(BEGIN) {
            continue;
        }
        let (text, picture) = filled(&old, &kept).with_context(|| path.display().to_string())?;
        pages.push(Page { differs: text != old, path, text });
        if let Some(text) = picture {
            let path = repository.join(PICTURE);
            let old = fs::read_to_string(&path).unwrap_or_default();
            pages.push(Page { differs: text != old, path, text });
        }
    }
    if pages.is_empty() {
        bail!(
            "no page in {} has a line that begins with {BEGIN:?}: start this in the repository's root",
            repository.display()
        );
    }
    Ok(pages)
}

fn markdown_in(folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>()?;
    paths.sort();
    for path in paths {
        if path.is_dir() {
            markdown_in(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            files.push(path);
        }
    }
    Ok(())
}

/// The text with its blocks filled, and the picture if a block has one.
fn filled(text: &str, kept: &Kept) -> anyhow::Result<(String, Option<String>)> {
    let (mut filled, mut picture) = (String::new(), None);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        filled += &format!("{line}\n");
        let Some(what) = line.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(" -->")) else { continue };
        if !lines.by_ref().any(|line| line == END) {
            bail!("{line:?} has no {END:?} after it");
        }
        let block = blocks::block(what, kept)?;
        filled += &format!("\n{}\n\n{END}\n", block.text.trim_end());
        picture = block.picture.or(picture);
    }
    Ok((filled, picture))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{EVEN, run, workload};
    use std::collections::BTreeMap;

    fn kept() -> Kept {
        Kept(BTreeMap::from([("plonky3".into(), run(vec![workload(&[("glibc", &EVEN), ("zk-alloc", &EVEN)])]))]))
    }

    /// The text around a block must stay, and a second fill must change nothing.
    #[test]
    fn only_what_stands_between_the_markers_changes() {
        let page = format!(
            "before\n{BEGIN}tables plonky3 -->\na typed figure\n{END}\nbetween\n{BEGIN}tables none-yet -->\n{END}\nafter\n"
        );
        let (once, _) = filled(&page, &kept()).unwrap();
        let (twice, _) = filled(&once, &kept()).unwrap();
        assert_eq!(once, twice);
        assert!(
            once.starts_with("before\n") && once.contains(&format!("{END}\nbetween\n")) && once.ends_with("\nafter\n"),
            "{once}"
        );
        assert!(
            !once.contains("a typed figure") && once.contains("| zk-alloc") && once.contains("`prove-bench plonky3`"),
            "{once}"
        );
        assert!(once.contains("--splice none-yet"), "a block without its run says what would fill it: {once}");
    }

    /// A page without its end marker would lose all text after the block.
    #[test]
    fn a_block_without_an_end_is_refused() {
        let error = filled(&format!("{BEGIN}tables plonky3 -->\nthe rest of the page\n"), &kept()).unwrap_err();
        assert!(error.to_string().contains("has no"), "{error}");
    }

    /// A page must not show typed figures, or figures of an older run, under the name of a run.
    #[test]
    fn the_documentation_says_what_its_runs_say() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let differing: Vec<_> =
            pages(repository).unwrap().into_iter().filter(|page| page.differs).map(|page| page.path).collect();
        assert!(differing.is_empty(), "`cargo prove-bench report --splice` fills {differing:?}");
    }
}
