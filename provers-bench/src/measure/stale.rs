//! Checks whether a binary is newer than its sources, by cargo's list of them.
//!
//! The hash in [`build_info`](crate::machine::build_info) covers the harness and the allocator, but not a user's own
//! prover. This check covers the prover too, so that driver and arms are not compared across two states of its sources.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Returns a source of `binary` that changed after the build. Returns `None` if no source changed, or if cargo's list
/// is not next to the binary. In the second case someone moved the binary on purpose.
pub(crate) fn newer_source(binary: &Path) -> Option<PathBuf> {
    let list = fs::read_to_string(binary.with_extension("d")).ok()?;
    let built = modified(binary)?;
    sources(&list).into_iter().find(|source| modified(source).is_some_and(|changed| changed > built))
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

/// The prerequisites in a makefile of one rule, `target: source source`. A backslash escapes a space in a path.
fn sources(list: &str) -> Vec<PathBuf> {
    let Some((_, sources)) = list.split_once(": ") else { return Vec::new() };
    let joined = sources.trim_end().replace("\\ ", "\0");
    joined.split_whitespace().map(|path| path.replace('\0', " ").into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// An arm from before a change of the prover must not be compared with an arm from after it.
    #[test]
    fn a_source_changed_after_the_build_is_found() {
        let folder = std::env::temp_dir().join(format!("prove-bench stale {}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let [binary, list, old, new] = ["with-x", "with-x.d", "old.rs", "new one.rs"].map(|name| folder.join(name));
        let escaped = |path: &Path| path.display().to_string().replace(' ', "\\ ");
        for path in [&binary, &old, &new] {
            fs::write(path, "").unwrap();
        }
        let built = SystemTime::now() + Duration::from_secs(60);
        fs::File::open(&binary).unwrap().set_modified(built).unwrap();
        assert_eq!(newer_source(&binary), None, "no list");
        fs::write(&list, format!("{}: {} {}\n", escaped(&binary), escaped(&old), escaped(&new))).unwrap();
        assert_eq!(newer_source(&binary), None, "all sources are older");
        fs::File::open(&new).unwrap().set_modified(built + Duration::from_secs(1)).unwrap();
        assert_eq!(newer_source(&binary).as_deref(), Some(new.as_path()));
        fs::remove_dir_all(&folder).unwrap();
    }
}
