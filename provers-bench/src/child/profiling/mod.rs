//! Profiles two proofs of an arm of zk-alloc: the first one, which takes the page faults, and the next one.
//!
//! - `stages`: which spans allocate, and what lives on after each
//! - `levels`: the arena's memory over time

mod levels;
mod stages;

use crate::protocol::profiles::{CallSite, FILE, FIRST, FOLDER, Lifetime, Profile, TREE, WARM};
use anyhow::Context;
use levels::{Levels, Readings};
use stages::{Key, Stages};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use zk_alloc::profile::{self, Site, Snapshot, Source};
use zk_alloc_profile::Value;
use zk_alloc_tracing::Recorder;

/// The call sites that `profile.json` names.
const MOST_SITES: usize = 100;

/// The folder of the profile of this process; `None` if the driver asks for none.
pub(super) struct Profiling(Option<PathBuf>);

impl Profiling {
    /// As the driver asks.
    pub(super) fn asked() -> Self {
        Self(env::var_os(FOLDER).map(PathBuf::from))
    }

    /// Makes a proof, and writes its profile. Proofs after the second have none.
    pub(super) fn prove<R>(&self, round: u32, prove: impl FnOnce() -> anyhow::Result<R>) -> anyhow::Result<R> {
        match (&self.0, round) {
            (Some(folder), 0) => {
                let proved = prove()?;
                profile::unsampled(|| named(&profile::snapshot()).write(&folder.join(FIRST)))?;
                Ok(proved)
            }
            (Some(folder), 1) => prove_warm(&folder.join(WARM), prove),
            _ => prove(),
        }
    }
}

fn prove_warm<R>(folder: &Path, prove: impl FnOnce() -> anyhow::Result<R>) -> anyhow::Result<R> {
    let began = Instant::now();
    let (memory, stages) = profile::unsampled(|| observed(began))?;
    let levels = profile::unsampled(|| Levels::begin(began))?;
    profile::mark();
    let proved = prove()?;
    let snapshot = profile::snapshot();
    profile::stop();
    let Readings { levels, parts } = levels.end();
    let profile = Profile { levels, parts, ..described(&snapshot, &stages) };
    write(folder, &snapshot, &memory, &profile).with_context(|| format!("cannot write {}", folder.display()))?;
    Ok(proved)
}

/// Installs a subscriber that records the spans at level `INFO`, or those that `RUST_LOG` names.
fn observed(began: Instant) -> anyhow::Result<(Recorder, Stages)> {
    let (memory, stages) = (Recorder::new(), Stages::new(began));
    let wanted = env::var("RUST_LOG").ok().and_then(|said| said.parse().ok());
    let wanted = wanted.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let subscriber = tracing_subscriber::registry().with(wanted).with(memory.layer()).with(stages.clone());
    subscriber.try_init().context("the prover has a subscriber of its own, so its spans can't be read")?;
    Ok((memory, stages))
}

fn named(snapshot: &Snapshot) -> zk_alloc_profile::Profile {
    zk_alloc_profile::Profile::new(snapshot)
}

fn write(folder: &Path, snapshot: &Snapshot, memory: &Recorder, profile: &Profile) -> anyhow::Result<()> {
    named(snapshot).write(folder)?;
    fs::write(folder.join(TREE), memory.write(folder)?.to_string())?;
    let text = serde_json::to_string(profile)?;
    fs::write(folder.join(FILE), text)?;
    Ok(())
}

/// The call sites of the peak, with their stages and lifetimes.
fn described(snapshot: &Snapshot, stages: &Stages) -> Profile {
    let mut sites: Vec<&Site> = snapshot.sites.iter().filter(|site| site.peak.bytes > 0).collect();
    let peak_bytes = sites.iter().map(|site| site.peak.bytes).sum();
    let of_backing = sites.iter().filter(|site| site.source == Source::Backing);
    let backing_bytes = of_backing.map(|site| site.peak.bytes).sum();
    sites.sort_by_key(|site| std::cmp::Reverse(site.peak.bytes));
    let mut one = snapshot.clone();
    let mut rows: Vec<CallSite> = Vec::new();
    for site in sites.into_iter().take(MOST_SITES) {
        one.sites = vec![site.clone()];
        let calls = calls(&named(&one).folded(Value::PeakSpace));
        // Call sites that differ only in the allocator's own functions are one.
        match rows.iter_mut().find(|row| row.calls == calls) {
            Some(row) => {
                row.peak_bytes += site.peak.bytes;
                row.allocations += site.peak.allocations;
            }
            None => rows.push(described_site(site, calls, stages)),
        }
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.peak_bytes));
    Profile {
        of: String::new(),
        peak_bytes,
        backing_bytes,
        mean_bytes: snapshot.mean_bytes as u64,
        missed: snapshot.missed,
        stages: stages.stages(),
        levels: Vec::new(),
        parts: Vec::new(),
        sites: rows,
    }
}

fn described_site(site: &Site, calls: Vec<String>, stages: &Stages) -> CallSite {
    let (stage, live_after_stage) = stages.of(&Key::of(site));
    let is_half = |bytes: u64| bytes * 2 >= site.peak.bytes;
    let lifetime = match live_after_stage {
        _ if is_half(site.live.bytes) => Lifetime::Survives,
        Some(bytes) if !is_half(bytes) => Lifetime::Stage,
        _ => Lifetime::Proof,
    };
    CallSite { calls, peak_bytes: site.peak.bytes, allocations: site.peak.allocations, stage, lifetime }
}

/// The functions in a line of folded stacks: `outermost;...;innermost FIGURE`.
fn calls(folded: &str) -> Vec<String> {
    let line = folded.lines().next().unwrap_or_default();
    let (functions, _) = line.rsplit_once(' ').unwrap_or((line, ""));
    functions.split(';').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_spaces_are_read_from_a_folded_line() {
        let line = "main;<prover::Lde as core::ops::Fn<(u32, u32)>>::call;alloc::vec::from_elem 4096\n";
        assert_eq!(calls(line), ["main", "<prover::Lde as core::ops::Fn<(u32, u32)>>::call", "alloc::vec::from_elem"]);
    }
}
