//! Finds the arms' binaries next to the driver. `cargo run` builds only the binary that it runs, so a driver that was
//! started by cargo builds the arms first.

use super::process::{Failure, Interrupt};
use crate::machine::BuildInfo;
use crate::plan::Contestant;
use anyhow::{Context, bail};
use serde_json::Value;
use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the folder with the binaries of `contestants`. If cargo started this process, builds them first. Fails if a
/// binary is missing or older than its sources. The error is [`Failure::Interrupted`] if the user stopped the build.
pub(crate) fn folder(contestants: &[Contestant], interrupt: &Interrupt) -> anyhow::Result<PathBuf> {
    // Ctrl-C also ends cargo, whose failure must then not be reported as an error of the build.
    up_to_date(contestants).map_err(|error| if interrupt.is_raised() { Failure::Interrupted.into() } else { error })
}

fn up_to_date(contestants: &[Contestant]) -> anyhow::Result<PathBuf> {
    let (driver, folder) = here()?;
    let names: BTreeSet<_> = contestants.iter().map(|contestant| contestant.arm.binary).collect();
    if let Some(cargo) = Cargo::that_runs_us() {
        let metadata = cargo.metadata()?;
        let known = binaries_of(&metadata, &cargo.package);
        check_all(contestants, &format!("in the package {}", cargo.package), |name| known.contains(name))?;
        let features = features_of(&metadata, &cargo.package);
        cargo.build(&cargo.package, &cargo.arguments(&cargo.package, &names, &features, &folder))?;
    }
    check_all(contestants, &format!("beside this driver in {}", folder.display()), |name| folder.join(name).is_file())?;
    for binary in names.iter().map(|name| folder.join(name)).chain([driver]) {
        if let Some(source) = newer_source(&binary) {
            bail!(
                "{} is older than {}: `cargo build --release --bins` builds all again",
                binary.display(),
                source.display()
            );
        }
    }
    Ok(folder)
}

/// Returns the path of the shared library `file` of `package`, next to the driver. If cargo started this process and
/// the workspace contains the package, builds it first.
pub(crate) fn library(package: &str, file: &str) -> anyhow::Result<PathBuf> {
    let (_, folder) = here()?;
    if let Some(cargo) = Cargo::that_runs_us() {
        let metadata = cargo.metadata()?;
        if described(&metadata, package).next().is_some() {
            cargo.build(package, &cargo.arguments(package, &BTreeSet::new(), &BTreeSet::new(), &folder))?;
        }
    }
    let path = folder.join(file);
    if !path.is_file() {
        bail!("no {file} in {}: `cargo build --release --package {package}` makes it", folder.display());
    }
    Ok(path)
}

/// Returns the paths of this driver and of its folder.
fn here() -> anyhow::Result<(PathBuf, PathBuf)> {
    let driver = env::current_exe().context("cannot find the path of this driver")?;
    let folder = driver.parent().context("the path of this driver has no folder")?.to_owned();
    Ok((driver, folder))
}

/// Fails if the binary of a contestant is missing. The error states how to build it.
fn check_all(contestants: &[Contestant], place: &str, is_there: impl Fn(&str) -> bool) -> anyhow::Result<()> {
    let (present, missing): (Vec<_>, Vec<_>) = contestants.iter().partition(|item| is_there(item.arm.binary));
    let Some(first) = missing.first().map(|item| item.arm) else { return Ok(()) };
    let binaries: BTreeSet<_> = missing.iter().map(|item| item.arm.binary).collect();
    let names = |items: &[&Contestant]| items.iter().map(|item| item.arm.name).collect::<Vec<_>>().join(",");
    let adds = first.binary.strip_prefix("with-").map_or_else(String::new, |allocator| {
        let (binary, allocator) = (first.binary, allocator.replace('-', "_"));
        format!(", src/bin/{binary}.rs with `provers_bench::arm!({allocator}, PROVERS);` adds one")
    });
    let without = match &present[..] {
        [] => String::new(),
        present => format!(", or do without: --allocators {}", names(present)),
    };
    bail!(
        "no binary {} {place} for {}: `cargo build --release --bins` builds those that the package has{adds}{without}",
        binaries.into_iter().collect::<Vec<_>>().join(", "),
        names(&missing),
    )
}

/// Returns cargo's target directory if `folder`, the output folder of a profile, is in one.
fn target_folder(folder: &Path) -> Option<&Path> {
    // Cargo marks its target directory; a `--target` build is one level deeper.
    folder.ancestors().skip(1).take(2).find(|folder| is_target(folder))
}

/// Returns the folder `prove-bench` for all measurements, in cargo's target directory. A prover's package has its target directory inside
/// the workspace's. The outermost one is used, so the measurements of all provers are in one place.
pub(crate) fn measured_folder() -> anyhow::Result<PathBuf> {
    let (_, folder) = here()?;
    let outermost = folder.ancestors().skip(1).filter(|folder| is_target(folder)).last();
    Ok(outermost.unwrap_or(Path::new("target")).join("prove-bench"))
}

fn is_target(folder: &Path) -> bool {
    folder.join("CACHEDIR.TAG").is_file()
}

/// Features of this package, and whether this driver was built with them. The arms are built with the same features. A
/// prover's package forwards those that it declares.
const FEATURES: [(&str, bool); 2] = [("jemalloc", cfg!(feature = "jemalloc")), ("peers", cfg!(feature = "peers"))];
/// Features that a package may lack. If a driver was built with one, its package has it.
const OPTIONAL: [(&str, bool); 2] = [("tune", cfg!(feature = "tune")), ("profile", cfg!(feature = "profile"))];

/// The cargo that runs this process, and the package that it runs.
struct Cargo {
    program: OsString,
    manifest_folder: PathBuf,
    package: String,
}

impl Cargo {
    /// Finds the cargo that runs this process. `cargo run` sets all three environment variables; `cargo-make` and a shell do not.
    fn that_runs_us() -> Option<Self> {
        Some(Self {
            program: env::var_os("CARGO")?,
            manifest_folder: env::var_os("CARGO_MANIFEST_DIR")?.into(),
            package: env::var("CARGO_PKG_NAME").ok()?,
        })
    }

    /// Runs `cargo metadata` and returns its description of the workspace's packages.
    fn metadata(&self) -> anyhow::Result<Value> {
        let output = Command::new(&self.program)
            .args(["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path"])
            .arg(self.manifest_folder.join("Cargo.toml"))
            .output()
            .with_context(|| format!("cannot run {}", Path::new(&self.program).display()))?;
        if !output.status.success() {
            bail!("cargo metadata failed for {}: {}", self.package, String::from_utf8_lossy(&output.stderr).trim());
        }
        serde_json::from_slice(&output.stdout).context("cargo metadata did not print JSON")
    }

    /// Builds `package` with these [`arguments`](Self::arguments).
    fn build(&self, package: &str, arguments: &[OsString]) -> anyhow::Result<()> {
        let status = Command::new(&self.program).args(arguments).status();
        let status = status.with_context(|| format!("cannot run {}", Path::new(&self.program).display()))?;
        if !status.success() {
            bail!("{package} could not be built: cargo ended with {status}");
        }
        Ok(())
    }

    /// Returns the arguments that build `binaries` of `package` the way the driver in `folder` was built: with the same profile, target and
    /// output folder. If `binaries` is empty, they build the whole package. `features` lists the features that the package has.
    fn arguments(
        &self,
        package: &str,
        binaries: &BTreeSet<&str>,
        features: &BTreeSet<String>,
        folder: &Path,
    ) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["build".into(), "--package".into(), package.into()];
        arguments.extend(["--manifest-path".into(), self.manifest_folder.join("Cargo.toml").into()]);
        arguments.extend(binaries.iter().flat_map(|name| ["--bin".into(), name.into()]));
        // A package without these features chooses its allocators in its manifest.
        if FEATURES.iter().all(|(name, _)| features.contains(*name)) {
            let features: Vec<_> =
                FEATURES.iter().chain(&OPTIONAL).filter(|(_, on)| *on).map(|(name, _)| *name).collect();
            arguments.extend(["--no-default-features".into(), "--features".into(), features.join(",").into()]);
        }
        let profile = folder.file_name().unwrap_or_default();
        // The output folder of the profile `dev` is `debug`.
        let profile = if profile == "debug" { "dev".into() } else { profile.to_owned() };
        arguments.extend(["--profile".into(), profile]);
        if let Some(target) = target_folder(folder) {
            arguments.extend(["--target-dir".into(), target.into()]);
            if folder.parent() != Some(target) {
                arguments.extend(["--target".into(), BuildInfo::current().target.into()]);
            }
        }
        arguments
    }
}

/// Returns the binaries of `package` from the output of `cargo metadata`.
fn binaries_of(metadata: &Value, package: &str) -> BTreeSet<String> {
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let targets = described(metadata, package).flat_map(|package| list(package, "targets"));
    let binaries = targets.filter(|target| list(target, "kind").iter().any(|kind| kind == "bin"));
    binaries.filter_map(|target| Some(target["name"].as_str()?.to_owned())).collect()
}

/// Returns the features of `package` from the output of `cargo metadata`.
fn features_of(metadata: &Value, package: &str) -> BTreeSet<String> {
    let features = described(metadata, package).filter_map(|package| package["features"].as_object());
    features.flat_map(|features| features.keys().cloned()).collect()
}

fn described<'a>(metadata: &'a Value, package: &str) -> impl Iterator<Item = &'a Value> {
    metadata["packages"].as_array().into_iter().flatten().filter(move |found| found["name"] == package)
}

/// Returns a source of `binary` that changed after the build; `None` if no source changed, or if cargo's list of sources is not next to the
/// binary. A binary without this list was moved on purpose, and is not checked.
///
/// The hash in [`BuildInfo`] covers the harness and the allocator, but not a user's own prover. This check covers the
/// prover too, so arms built from different states of its sources are never compared.
fn newer_source(binary: &Path) -> Option<PathBuf> {
    let modified = |path: &Path| fs::metadata(path).ok()?.modified().ok();
    let list = fs::read_to_string(binary.with_extension("d")).ok()?;
    let built = modified(binary)?;
    sources(&list).into_iter().find(|source| modified(source).is_some_and(|changed| changed > built))
}

/// Returns the prerequisites in a makefile with one rule, `target: source source`. A backslash escapes a space in a path.
fn sources(list: &str) -> Vec<PathBuf> {
    let Some((_, sources)) = list.split_once(": ") else { return Vec::new() };
    let joined = sources.trim_end().replace("\\ ", "\0");
    joined.split_whitespace().map(|path| path.replace('\0', " ").into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan;
    use std::time::{Duration, SystemTime};

    fn arguments(folder: &str) -> String {
        let cargo = Cargo { program: "cargo".into(), manifest_folder: "/w/bench".into(), package: "bench".into() };
        let binaries = BTreeSet::from(["with-glibc", "with-zk-alloc"]);
        let arguments = cargo.arguments("bench", &binaries, &BTreeSet::new(), Path::new(folder));
        arguments.join(" ".as_ref()).into_string().unwrap()
    }

    /// Arms built with another profile would end up in another folder, or would be compared across profiles.
    #[test]
    fn arms_are_built_under_the_drivers_profile() {
        let common = "build --package bench --manifest-path /w/bench/Cargo.toml --bin with-glibc --bin with-zk-alloc";
        assert_eq!(arguments("/nowhere/release"), format!("{common} --profile release"));
        assert_eq!(arguments("/nowhere/debug"), format!("{common} --profile dev"));
    }

    /// A user's own bench may have only some of the arms. The message must explain how to add the arm, and how to run
    /// without it.
    #[test]
    fn a_missing_arm_is_named_with_how_to_add_it_or_run_without_it() {
        let given = ["glibc", "jemalloc", "zk-alloc"].map(str::to_owned);
        let contestants = plan::contestants(&given).unwrap();
        let message = |there: &[&str]| {
            let targets: Vec<_> = there.iter().map(|name| serde_json::json!({"kind": ["bin"], "name": name})).collect();
            let other = serde_json::json!({"name": "other", "targets": [{"kind": ["bin"], "name": "with-jemalloc"}]});
            let metadata = serde_json::json!({"packages": [{"name": "bench", "targets": targets}, other]});
            let known = binaries_of(&metadata, "bench");
            check_all(&contestants, "here", |name| known.contains(name))
        };
        assert!(message(&["with-glibc", "with-jemalloc", "with-zk-alloc"]).is_ok());
        let one = message(&["with-glibc", "with-zk-alloc"]).unwrap_err().to_string();
        for part in ["no binary with-jemalloc here", "arm!(jemalloc, PROVERS)", "--allocators glibc,zk-alloc"] {
            assert!(one.contains(part), "{one}");
        }
        let all = message(&[]).unwrap_err().to_string();
        assert!(all.contains("with-glibc, with-jemalloc, with-zk-alloc") && !all.contains("--allocators"), "{all}");
    }

    /// An arm built before a change of the prover must not be compared with an arm built after it.
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
