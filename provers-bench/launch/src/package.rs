//! The facts about a prover's package that are needed before it is built, from its `Cargo.toml`.

use std::fs;
use std::path::{Path, PathBuf};

use toml::de::DeTable;

/// A package with a driver, and with arms in `src/bin`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Package {
    /// The prover's word on the command line: the name of its folder. Empty for the bench itself.
    pub(crate) word: String,
    /// The name of the package and of its driver.
    pub(crate) name: String,
    pub(crate) about: String,
    /// Minutes for the first build of the prover on two cores, if the manifest states them.
    pub(crate) minutes: u32,
    pub(crate) folder: PathBuf,
    /// Whether it forwards the bench's features. If so, the command line decides which allocators are built.
    pub(crate) chooses_allocators: bool,
    /// Whether it has a baseline for the gate.
    pub(crate) has_baseline: bool,
}

impl Package {
    /// Reads the package in a folder. The error says why it is not valid.
    pub(crate) fn read(folder: &Path) -> Result<Self, String> {
        let path = folder.join("Cargo.toml");
        let manifest = fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let word = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let word = word.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let package =
            Self::of(&manifest, word, folder).ok_or_else(|| format!("{} names no package", path.display()))?;
        Ok(Self { has_baseline: folder.join("baseline.toml").is_file(), ..package })
    }

    fn of(manifest: &str, word: String, folder: &Path) -> Option<Self> {
        let manifest = DeTable::parse(manifest).ok()?.into_inner();
        let package = manifest.get("package")?.get_ref();
        let text = |key| package.get(key).and_then(|value| value.get_ref().as_str()).map(str::to_owned);
        let minutes = || {
            let own = package.get("metadata")?.get_ref().get("prove-bench")?;
            own.get_ref().get("minutes")?.get_ref().as_integer()?.as_str().parse().ok()
        };
        let has_feature = |name| manifest.get("features").is_some_and(|all| all.get_ref().get(name).is_some());
        Some(Self {
            name: text("name")?,
            about: text("description").unwrap_or_default(),
            minutes: minutes().unwrap_or(0),
            chooses_allocators: has_feature("jemalloc") && has_feature("peers"),
            word,
            ..Self::bench(folder)
        })
    }

    /// The bench itself: it has the tools and no prover.
    pub(crate) fn bench(folder: &Path) -> Self {
        Self {
            word: String::new(),
            name: "prove-bench".to_owned(),
            about: String::new(),
            minutes: 0,
            folder: folder.to_owned(),
            chooses_allocators: true,
            has_baseline: false,
        }
    }

    /// Whether it is the bench itself, a member of the workspace.
    pub(crate) fn is_bench(&self) -> bool {
        self.word.is_empty()
    }
}

/// The packages in a folder, by name.
pub(crate) fn all_in(folder: &Path) -> Vec<Package> {
    let folders = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut packages: Vec<_> = folders.filter_map(|folder| Package::read(&folder).ok()).collect();
    packages.sort_by(|one, other| one.word.cmp(&other.word));
    packages
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[package]\nname = \"bench-x\"\ndescription = \"X: a proof\"\n\n[package.metadata.prove-bench]\n\
                            minutes = 3\n\n[features]\njemalloc = [\"provers-bench/jemalloc\"]\npeers = []\n\n\
                            [dependencies]\nname = \"9\"\n";

    #[test]
    fn a_manifest_says_what_the_package_is() {
        let package = Package::of(MANIFEST, "x".into(), Path::new("/p/x")).unwrap();
        assert_eq!((&*package.name, &*package.about, package.minutes), ("bench-x", "X: a proof", 3));
        assert!(package.chooses_allocators);
        assert!(
            !Package::of(&MANIFEST.replace("peers", "pears"), "x".into(), Path::new("/p/x"))
                .unwrap()
                .chooses_allocators
        );
        assert_eq!(Package::of("[workspace]\nmembers = []\n", "x".into(), Path::new("/p/x")), None);
    }

    /// The command line must know every prover in the folder, or it could not be started.
    #[test]
    fn every_folder_of_a_prover_is_found() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../provers");
        let found = all_in(&folder);
        for package in &found {
            assert_eq!(package.name, format!("bench-{}", package.word));
            assert!(package.chooses_allocators && package.minutes > 0 && !package.about.is_empty(), "{package:?}");
        }
        assert_eq!(found.len(), fs::read_dir(&folder).unwrap().count());
        assert!(found.iter().any(|package| package.word == "plonky3" && package.has_baseline));
    }

    #[test]
    fn every_prover_has_its_job() {
        let found = all_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../provers"));
        let words: Vec<_> = found.iter().map(|package| package.word.as_str()).collect();
        let line = format!("prover: [{}]", words.join(", "));
        assert!(include_str!("../../../.github/workflows/ci.yml").contains(&line), "the workflow lacks {line}");
    }
}
