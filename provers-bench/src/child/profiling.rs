//! Profiles two proofs of a zk-alloc arm. The profile of the first shows where its page faults occur. The profile of the second shows its
//! stages, its call sites, and the arena's memory over time.

use crate::machine::process::Sampler;
use crate::protocol::profiles::{
    CallSite, FILE, FIRST, Level, Lifetime, Parts, Profile, Stage, TREE, WARM, folded_line,
};
use anyhow::Context;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};
use std::{env, fs};
use tracing::Subscriber;
use tracing::span::Id;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{self, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use zk_alloc::profile::{self, Site, Snapshot, Source};
use zk_alloc_profile::{Profile as NamedProfile, Value};
use zk_alloc_tracing::Recorder;

/// Maximum number of call sites in `profile.json`.
const MAX_SITES: usize = 100;

/// Makes a proof. If a folder is given and the proof is one of the first two, writes the proof's profile to the folder.
pub(super) fn prove<R>(
    folder: Option<&Path>,
    round: u32,
    prove: impl FnOnce() -> anyhow::Result<R>,
) -> anyhow::Result<R> {
    match (folder, round) {
        (Some(folder), 0) => {
            let proved = prove()?;
            profile::unsampled(|| NamedProfile::new(&profile::snapshot()).write(&folder.join(FIRST)))?;
            Ok(proved)
        }
        (Some(folder), 1) => prove_warm(&folder.join(WARM), prove),
        _ => prove(),
    }
}

fn prove_warm<R>(folder: &Path, prove: impl FnOnce() -> anyhow::Result<R>) -> anyhow::Result<R> {
    let began = Instant::now();
    let (memory, stages) = profile::unsampled(|| observed(began))?;
    let levels = profile::unsampled(|| begin_levels(began));
    profile::mark();
    let proved = prove()?;
    let snapshot = profile::snapshot();
    profile::stop();
    let Profile { levels, parts, .. } = levels.end()?;
    let profile = Profile { levels, parts, ..described(&snapshot, &stages) };
    write(folder, &snapshot, &memory, &profile).with_context(|| format!("cannot write {}", folder.display()))?;
    Ok(proved)
}

/// Installs a subscriber that records the spans at level `INFO`, or those that `RUST_LOG` selects.
fn observed(began: Instant) -> anyhow::Result<(Recorder, Stages)> {
    let (memory, stages) = (Recorder::new(), Stages::new(began));
    let wanted = env::var("RUST_LOG").ok().and_then(|value| value.parse().ok());
    let wanted = wanted.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let subscriber = tracing_subscriber::registry().with(wanted).with(memory.layer()).with(stages.clone());
    subscriber.try_init().context("the prover has a subscriber of its own, so its spans can't be read")?;
    Ok((memory, stages))
}

fn write(folder: &Path, snapshot: &Snapshot, memory: &Recorder, profile: &Profile) -> anyhow::Result<()> {
    NamedProfile::new(snapshot).write(folder)?;
    fs::write(folder.join(TREE), memory.write(folder)?.to_string())?;
    Ok(fs::write(folder.join(FILE), serde_json::to_string(profile)?)?)
}

/// Describes the call sites of the memory peak, with their stages and lifetimes.
fn described(snapshot: &Snapshot, stages: &Stages) -> Profile {
    let mut sites: Vec<&Site> = snapshot.sites.iter().filter(|site| site.peak.bytes > 0).collect();
    let peak_bytes = sites.iter().map(|site| site.peak.bytes).sum();
    let of_backing = sites.iter().filter(|site| site.source == Source::Backing);
    let backing_bytes = of_backing.map(|site| site.peak.bytes).sum();
    sites.sort_by_key(|site| std::cmp::Reverse(site.peak.bytes));
    let mut one = snapshot.clone();
    let mut rows: Vec<CallSite> = Vec::new();
    for site in sites.into_iter().take(MAX_SITES) {
        one.sites = vec![site.clone()];
        let (calls, _) = folded_line(NamedProfile::new(&one).folded(Value::PeakSpace).trim_end());
        // Merges call sites that differ only in the allocator's own functions.
        match rows.iter_mut().find(|row| row.calls == calls) {
            Some(row) => {
                row.peak_bytes += site.peak.bytes;
                row.allocations += site.peak.allocations;
            }
            None => rows.push(described_site(site, calls, stages)),
        }
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.peak_bytes));
    let (mean_bytes, missed, stages) = (snapshot.mean_bytes as u64, snapshot.missed, stages.lock().stages.clone());
    Profile { peak_bytes, backing_bytes, mean_bytes, missed, stages, sites: rows, ..Profile::default() }
}

fn described_site(site: &Site, calls: Vec<String>, stages: &Stages) -> CallSite {
    let (stage, live_after_stage) = stages.of(&key(site));
    let is_half = |bytes: u64| bytes * 2 >= site.peak.bytes;
    let lifetime = match live_after_stage {
        _ if is_half(site.live.bytes) => Lifetime::Survives,
        Some(bytes) if !is_half(bytes) => Lifetime::Stage,
        _ => Lifetime::Proof,
    };
    CallSite { calls, peak_bytes: site.peak.bytes, allocations: site.peak.allocations, stage, lifetime }
}

/// Number of readings at which the sampler drops every other reading and doubles its interval.
const MAX_READINGS: usize = 8192;
/// The sampler spends at most `1 / SHARE_OF_TIME` of its time reading how much memory each part of the arena takes.
const SHARE_OF_TIME: u32 = 20;

/// Starts sampling the arena's memory, at first once a millisecond. Call this outside phases, so the readings are not allocated in the
/// arena.
fn begin_levels(began: Instant) -> Sampler<Profile> {
    let readings = Profile {
        levels: Vec::with_capacity(MAX_READINGS),
        parts: Vec::with_capacity(MAX_READINGS),
        ..Profile::default()
    };
    let mut pause = Duration::from_millis(1);
    let mut next_parts = Duration::ZERO;
    let mut read = move |readings: &mut Profile, is_last| {
        let stats = zk_alloc::stats();
        let now = began.elapsed();
        readings.levels.push(Level {
            at_ns: now.as_nanos() as u64,
            live_bytes: stats.live_bytes as u64,
            resident_bytes: stats.resident_bytes as u64,
        });
        if now >= next_parts || is_last {
            readings.parts.push(parts_at(now));
            next_parts = began.elapsed() + (began.elapsed() - now) * SHARE_OF_TIME;
        }
        if readings.levels.len() == MAX_READINGS {
            thin_out(&mut readings.levels);
            thin_out(&mut readings.parts);
            pause *= 2;
        }
        Some(pause)
    };
    Sampler::begin(readings, move |readings, is_last| profile::unsampled(|| read(readings, is_last)))
}

/// Keeps every other reading.
fn thin_out<T>(readings: &mut Vec<T>) {
    let mut is_odd = false;
    readings.retain(|_| {
        is_odd = !is_odd;
        !is_odd
    });
}

fn parts_at(at: Duration) -> Parts {
    let parts = zk_alloc::resident_parts();
    let bytes = [
        parts.live_block_bytes,
        parts.live_run_bytes,
        parts.cached_bytes,
        parts.free_slab_bytes,
        parts.free_run_bytes,
        parts.prefaulted_bytes,
    ];
    Parts {
        at_ns: at.as_nanos() as u64,
        bytes: bytes.map(|bytes| bytes as u64),
        kernel_bytes: parts.kernel_bytes.map(|bytes| bytes as u64),
    }
}

/// Maximum number of snapshots of the call sites. Each start and each end of a span takes one, so without a maximum, a prover with many
/// spans would become slow.
const MAX_SNAPSHOTS: usize = 4000;

/// A `tracing` layer that records the stages of a proof. Clones share the record.
#[derive(Clone)]
struct Stages(Arc<Mutex<Record>>);

#[derive(Default)]
struct Record {
    began: Option<Instant>,
    thread: Option<ThreadId>,
    /// The spans that are open now, each with its path and its index in `stages`.
    open: Vec<(SpanPath, usize)>,
    stages: Vec<Stage>,
    /// All span paths so far, each as the path of the parent span and the name of the span.
    paths: Vec<(Option<SpanPath>, &'static str)>,
    sites: HashMap<Key, Seen>,
    snapshots: usize,
}

/// An index into `paths`.
type SpanPath = usize;

/// A call site: its addresses, and the allocator that serves it.
type Key = (Vec<usize>, Source);

fn key(site: &Site) -> Key {
    (site.addresses.clone(), site.source)
}

/// The allocations of a call site so far.
#[derive(Default)]
struct Seen {
    allocated_bytes: u64,
    live_bytes: u64,
    /// The bytes that it allocated within each path.
    allocated: HashMap<SpanPath, u64>,
    /// Its live bytes when the innermost span of each path last ended.
    live_at_exit: HashMap<SpanPath, u64>,
}

impl Stages {
    fn new(began: Instant) -> Self {
        Self(Arc::new(Mutex::new(Record { began: Some(began), ..Record::default() })))
    }

    /// Returns the nested spans in which a site allocated the most, and the site's live bytes when the innermost of them last ended.
    fn of(&self, site: &Key) -> (Vec<String>, Option<u64>) {
        let record = self.lock();
        let Some(seen) = record.sites.get(site) else { return (Vec::new(), None) };
        let Some((&path, _)) = seen.allocated.iter().max_by_key(|&(&path, &bytes)| (bytes, path)) else {
            return (Vec::new(), None);
        };
        let outwards = std::iter::successors(Some(path), |&path| record.paths[path].0);
        let mut names: Vec<_> = outwards.map(|path| record.paths[path].1.to_owned()).collect();
        names.reverse();
        (names, seen.live_at_exit.get(&path).copied())
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        // If another thread panicked, the record may be incomplete, but it is still usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    /// Returns whether the calling thread's spans are recorded. Only the first thread that enters a span is recorded.
    fn is_main(&mut self) -> bool {
        let this = thread::current().id();
        *self.thread.get_or_insert(this) == this
    }

    fn enter(&mut self, name: &'static str) {
        if !self.is_main() {
            return;
        }
        self.take_snapshot();
        let parent = self.open.last().map(|&(path, _)| path);
        let path = self.paths.iter().position(|known| *known == (parent, name)).unwrap_or_else(|| {
            self.paths.push((parent, name));
            self.paths.len() - 1
        });
        self.open.push((path, self.stages.len()));
        let begin_ns = self.now_ns();
        let depth = self.open.len() as u32 - 1;
        self.stages.push(Stage { name: name.to_owned(), depth, begin_ns, end_ns: begin_ns });
    }

    fn exit(&mut self) {
        if !self.is_main() {
            return;
        }
        self.take_snapshot();
        let Some((path, stage)) = self.open.pop() else { return };
        self.stages[stage].end_ns = self.now_ns();
        for seen in self.sites.values_mut().filter(|seen| seen.allocated.contains_key(&path)) {
            seen.live_at_exit.insert(path, seen.live_bytes);
        }
    }

    fn now_ns(&self) -> u64 {
        self.began.map_or(0, |began| began.elapsed().as_nanos() as u64)
    }

    fn take_snapshot(&mut self) {
        if self.snapshots == MAX_SNAPSHOTS {
            return;
        }
        self.snapshots += 1;
        let within = self.open.last().map(|&(path, _)| path);
        for site in profile::snapshot().sites {
            let seen = self.sites.entry(key(&site)).or_default();
            let grown = site.allocated.bytes.saturating_sub(seen.allocated_bytes);
            (seen.allocated_bytes, seen.live_bytes) = (site.allocated.bytes, site.live.bytes);
            if let Some(path) = within.filter(|_| grown > 0) {
                *seen.allocated.entry(path).or_default() += grown;
            }
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Stages {
    fn on_enter(&self, id: &Id, context: layer::Context<'_, S>) {
        let name = context.span(id).map_or("?", |span| span.metadata().name());
        profile::unsampled(|| self.lock().enter(name));
    }

    fn on_exit(&self, _: &Id, _: layer::Context<'_, S>) {
        profile::unsampled(|| self.lock().exit());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A span that a loop enters repeatedly is one path for the call sites, but several stages on the page.
    #[test]
    fn spans_nest_and_repeat() {
        let stages = Stages::new(Instant::now());
        for _ in 0..2 {
            stages.lock().enter("prove");
            stages.lock().enter("commit");
            thread::scope(|scope| scope.spawn(|| stages.lock().enter("on another thread")).join().unwrap());
            stages.lock().exit();
            stages.lock().exit();
        }
        let record = stages.lock();
        assert_eq!(record.paths, [(None, "prove"), (Some(0), "commit")]);
        let seen: Vec<_> = record.stages.iter().map(|stage| (&*stage.name, stage.depth)).collect();
        assert_eq!(seen, [("prove", 0), ("commit", 1), ("prove", 0), ("commit", 1)]);
        assert!(record.stages.iter().all(|stage| stage.end_ns >= stage.begin_ns) && record.open.is_empty());
    }
}
