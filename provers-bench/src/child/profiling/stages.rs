//! Which spans allocate, and which call sites hold memory after each. At each entry and exit of a span, a snapshot of the
//! call sites is taken. The bytes that a site allocated since the last one count for the innermost span.
//!
//! Only the spans of one thread count: the first that enters one. That thread calls the prover. The work of rayon's
//! threads counts for the span that it is in.

use crate::protocol::profiles::Stage;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Instant;
use tracing::Subscriber;
use tracing::span::Id;
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;
use zk_alloc::profile::{self, Site, Source};

/// After this many snapshots, none is taken any more. A prover with so many spans would wait for them.
const MOST_SNAPSHOTS: usize = 4000;

/// A layer that records the stages of a proof. Clones share the record.
#[derive(Clone)]
pub(super) struct Stages(Arc<Mutex<Record>>);

struct Record {
    began: Instant,
    thread: Option<ThreadId>,
    /// The spans that are entered, each with its path and its place in `stages`.
    open: Vec<(Path, usize)>,
    stages: Vec<Stage>,
    /// All paths so far: the name of a span, under another.
    paths: Vec<(Option<Path>, &'static str)>,
    sites: HashMap<Key, Seen>,
    snapshots: usize,
}

/// An index into `paths`.
type Path = usize;

/// A call site.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Key(Vec<usize>, Source);

/// The account of a call site.
#[derive(Default)]
struct Seen {
    allocated_bytes: u64,
    live_bytes: u64,
    /// The bytes that it allocated within each path.
    allocated: HashMap<Path, u64>,
    /// Its live bytes when the path was last left.
    live_at_exit: HashMap<Path, u64>,
}

impl Key {
    pub(super) fn of(site: &Site) -> Self {
        Self(site.addresses.clone(), site.source)
    }
}

impl Stages {
    pub(super) fn new(began: Instant) -> Self {
        Self(Arc::new(Mutex::new(Record {
            began,
            thread: None,
            open: Vec::new(),
            stages: Vec::new(),
            paths: Vec::new(),
            sites: HashMap::new(),
            snapshots: 0,
        })))
    }

    /// All spans that were entered.
    pub(super) fn stages(&self) -> Vec<Stage> {
        self.lock().stages.clone()
    }

    /// The spans in which a site allocated most, and the bytes of it that were alive when the innermost one of them ended.
    pub(super) fn of(&self, site: &Key) -> (Vec<String>, Option<u64>) {
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
        // A panic in here leaves a record that lacks a part, and nothing worse.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    /// Whether the calling thread is the one whose spans count.
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
        self.began.elapsed().as_nanos() as u64
    }

    fn take_snapshot(&mut self) {
        if self.snapshots == MOST_SNAPSHOTS {
            return;
        }
        self.snapshots += 1;
        let within = self.open.last().map(|&(path, _)| path);
        for site in profile::snapshot().sites {
            let seen = self.sites.entry(Key::of(&site)).or_default();
            let grown = site.allocated.bytes.saturating_sub(seen.allocated_bytes);
            (seen.allocated_bytes, seen.live_bytes) = (site.allocated.bytes, site.live.bytes);
            if let Some(path) = within.filter(|_| grown > 0) {
                *seen.allocated.entry(path).or_default() += grown;
            }
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Stages {
    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        let name = context.span(id).map_or("?", |span| span.metadata().name());
        profile::unsampled(|| self.lock().enter(name));
    }

    fn on_exit(&self, _: &Id, _: Context<'_, S>) {
        profile::unsampled(|| self.lock().exit());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A span that is entered again in a loop is one stage of the sites, and several on the page.
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
