//! Whether a binary is as new as the sources that it was built from, by cargo's own list of them.
//!
//! The hash in [`build_info`](crate::machine::build_info) covers this library and what stands below it. A prover of the user's
//! own is above: its driver and arms must not be compared across two states of its sources either.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A source of `binary` that was changed after it was built. `None` if there is none, or if cargo's list does not lie
/// beside the binary: then it was moved, and whoever moved it knows what it is.
pub(crate) fn newer_source(binary: &Path) -> Option<PathBuf> {
    let list = fs::read_to_string(binary.with_extension("d")).ok()?;
    let built = modified(binary)?;
    sources(&list).into_iter().find(|source| modified(source).is_some_and(|changed| changed > built))
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

/// The prerequisites in a makefile of one rule, `target: source source`, in which a space of a path is `\ `.
fn sources(list: &str) -> Vec<PathBuf> {
    let Some((_, sources)) = list.split_once(": ") else { return Vec::new() };
    let joined = sources.trim_end().replace("\\ ", "\0");
    joined.split_whitespace().map(|path| path.replace('\0', " ").into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// An arm from before the last change of a prover would be compared with one from after it.
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
