//! The measurements of each span. Whenever a span is entered or exited, the layer reads the counters. It adds the changes since the
//! previous reading to every span that some thread was in.
//!
//! Collections use the system allocator, because the program's allocator would count them as the prover's memory.

use std::cmp::Reverse;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::ops::AddAssign;
use std::thread::ThreadId;
use std::time::Instant;

use allocator_api2::SliceExt;
use allocator_api2::alloc::System;
use serde::Serialize;

/// A list that uses the system allocator.
pub(crate) type List<T> = allocator_api2::vec::Vec<T, System>;

/// A map that uses the system allocator. Its hasher has no random keys, because each thread would have to request them from the system.
pub(crate) type Map<K, V> = hashbrown::HashMap<K, V, BuildHasherDefault<DefaultHasher>, System>;

pub(crate) const fn list<T>() -> List<T> {
    List::new_in(System)
}

/// The maximum number of threads. Entries on further threads are not recorded.
const MAX_THREADS: usize = 1024;

/// The spans and measurements recorded so far.
#[derive(Debug)]
pub(crate) struct Recording {
    began: Instant,
    pub(crate) last: Reading,
    /// The number of phases that had begun when the recording began.
    pub(crate) phases_before: u64,
    /// The tree of spans, in which spans of one name under one parent share a node. The first node is [`WHOLE`].
    pub(crate) nodes: List<Node>,
    pub(crate) timeline: Timeline,
    pub(crate) threads: List<Thread>,
    by_id: Map<ThreadId, usize>,
    /// The spans that are not closed yet.
    spans: Map<u64, Span>,
    /// The nodes with a span that is currently entered.
    open_nodes: List<NodeId>,
    /// The currently entered spans, in order of entry.
    pub(crate) entered: List<Entry>,
    /// The number of entries that were not recorded.
    pub(crate) unrecorded: u64,
}

#[derive(Debug)]
struct Span {
    node: Option<NodeId>,
    was_entered: bool,
}

/// A thread that entered a span.
#[derive(Debug)]
pub(crate) struct Thread {
    /// The thread's name, in UTF-8.
    name: Option<List<u8>>,
    /// The thread's number in its pool, if it is a rayon worker.
    worker: Option<usize>,
    last: ThreadTotals,
}

impl Thread {
    /// Returns the name of the thread with this number.
    pub(crate) fn name(&self, number: usize) -> String {
        match (&self.name, self.worker) {
            (Some(name), _) => String::from_utf8_lossy(name).into_owned(),
            (None, Some(worker)) => format!("rayon {worker}"),
            (None, None) => format!("thread {number}"),
        }
    }
}

impl Recording {
    pub(crate) fn new() -> Self {
        let began = Instant::now();
        let last = Reading::now(began);
        let mut nodes = list();
        nodes.push(Node { name: "the whole program", at_entry: last.level, ..Node::default() });
        Self {
            began,
            last,
            phases_before: last.phases,
            nodes,
            timeline: Timeline::new(),
            threads: list(),
            by_id: Map::default(),
            spans: Map::default(),
            open_nodes: SliceExt::to_vec_in(&[WHOLE][..], System),
            entered: list(),
            unrecorded: 0,
        }
    }

    /// Records a new span. A span with a parent goes under that parent. A span that a rayon worker creates goes under the span that the
    /// worker works for, unless it is declared as a root. Any other span goes under the node of the whole program.
    pub(crate) fn span_made(&mut self, span: u64, name: &'static str, parent: Option<u64>, is_root: bool) {
        let under = match parent {
            Some(parent) => self.spans.get(&parent).map_or(Some(WHOLE), |parent| parent.node),
            None if is_root => Some(WHOLE),
            None => Some(self.served_by_worker().unwrap_or(WHOLE)),
        };
        let node = under.and_then(|under| self.find_or_add(under, name));
        self.spans.insert(span, Span { node, was_entered: false });
    }

    pub(crate) fn span_gone(&mut self, span: u64) {
        self.spans.remove(&span);
    }

    /// Records that the calling thread entered a span.
    pub(crate) fn enter(&mut self, span: u64) {
        self.advance();
        let node = self.spans.get(&span).and_then(|span| span.node);
        let (Some(node), Some(thread)) = (node, self.thread()) else {
            self.unrecorded += 1;
            return;
        };
        self.advance_thread(thread);
        let is_first = self.spans.get_mut(&span).is_some_and(|span| !std::mem::replace(&mut span.was_entered, true));
        let entry = &mut self.nodes[node];
        if entry.spans == 0 {
            entry.at_entry = self.last.level;
        }
        entry.spans += u64::from(is_first);
        entry.entered += 1;
        if entry.entered == 1 {
            self.open_nodes.push(node);
        }
        entry.threads.entry(thread).or_default();
        self.entered.push(Entry { span, node, thread, begun_ns: self.last.totals.wall_ns, totals: Totals::default() });
    }

    /// Records that the calling thread left a span.
    pub(crate) fn exit(&mut self, span: u64) {
        let Some(&thread) = self.by_id.get(&std::thread::current().id()) else { return };
        let is_this = |entered: &Entry| entered.span == span && entered.thread == thread;
        let Some(index) = self.entered.iter().rposition(is_this) else { return };
        self.advance();
        self.advance_thread(thread);
        // This thread entered these spans later, and has not left them. Slices of a trace must nest, so the trace shows each of these spans
        // in two parts.
        for later in self.entered[index + 1..].iter_mut().filter(|later| later.thread == thread).rev() {
            self.timeline.push_entry(*later);
            (later.begun_ns, later.totals) = (self.last.totals.wall_ns, Totals::default());
        }
        let entry = self.entered.remove(index);
        self.timeline.push_entry(entry);
        let node = &mut self.nodes[entry.node];
        node.at_exit = self.last.level;
        node.entered -= 1;
        if node.entered == 0 {
            self.open_nodes.retain(|&open| open != entry.node);
        }
    }

    /// Adds the changes of the process's counters since the last entry or exit to all spans that are currently entered.
    pub(crate) fn advance(&mut self) {
        let now = Reading::now(self.began);
        let changes = now.since(&self.last);
        self.open_nodes.iter().for_each(|&node| self.nodes[node].totals += &changes);
        self.entered.iter_mut().for_each(|entry| entry.totals += &changes);
        self.timeline.push_sample(Sample {
            at_ns: now.totals.wall_ns,
            level: now.level,
            peak_live_bytes: changes.peak_live_bytes,
        });
        self.last = now;
    }

    /// Adds the changes of the calling thread's counters since its last entry or exit to the spans that the thread is in.
    fn advance_thread(&mut self, thread: usize) {
        let now = ThreadTotals::now(self.last.totals.wall_ns);
        let changes = now.since(&std::mem::replace(&mut self.threads[thread].last, now));
        let own = |entry: &&Entry| entry.thread == thread;
        for (index, entry) in self.entered.iter().enumerate().filter(|(_, entry)| own(entry)) {
            // If several spans share a node, only the first one adds the changes to it.
            if !self.entered[..index].iter().filter(own).any(|earlier| earlier.node == entry.node) {
                *self.nodes[entry.node].threads.entry(thread).or_default() += &changes;
            }
        }
    }

    /// Returns the children of this node, in the order of their first spans.
    pub(crate) fn children(&self, id: NodeId) -> impl Iterator<Item = NodeId> {
        (1..self.nodes.len()).filter(move |&child| self.nodes[child].parent == id)
    }

    /// Returns the node for spans of this name under `parent`, and adds it if there is none. Returns `None` if the tree is full.
    fn find_or_add(&mut self, parent: NodeId, name: &'static str) -> Option<NodeId> {
        let known = self.children(parent).find(|&child| self.nodes[child].name == name);
        if known.is_some() || self.nodes.len() == MAX_NODES {
            return known;
        }
        self.nodes.push(Node { parent, name, ..Node::default() });
        Some(self.nodes.len() - 1)
    }

    /// Returns the number of the calling thread; `None` if there are too many threads.
    fn thread(&mut self) -> Option<usize> {
        let current = std::thread::current();
        let known = self.by_id.get(&current.id()).copied();
        let next = self.threads.len();
        if known.is_some() || next == MAX_THREADS {
            return known;
        }
        let name = current.name().map(|name| SliceExt::to_vec_in(name.as_bytes(), System));
        let last = ThreadTotals::now(self.last.totals.wall_ns);
        self.threads.push(Thread { name, worker: rayon::current_thread_index(), last });
        self.by_id.insert(current.id(), next);
        Some(next)
    }

    /// Returns the parent for a span that a rayon worker creates: the innermost span of the thread that the pool works for. That thread is
    /// known only if exactly one thread outside the pool is in a span.
    fn served_by_worker(&self) -> Option<NodeId> {
        rayon::current_thread_index()?;
        let mut outside = self.entered.iter().filter(|entry| self.threads[entry.thread].worker.is_none());
        let innermost = outside.clone().next_back()?;
        outside.all(|entry| entry.thread == innermost.thread).then_some(innermost.node)
    }
}

/// The maximum number of nodes: more than any prover needs. It bounds the layer's memory if a recursive function opens spans.
const MAX_NODES: usize = 4096;

/// The index of a node in the tree. The node of the whole program is [`WHOLE`].
pub(crate) type NodeId = usize;

pub(crate) const WHOLE: NodeId = 0;

/// All spans of one name under one parent node.
#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) name: &'static str,
    pub(crate) totals: Totals,
    /// The number of spans that were entered.
    pub(crate) spans: u64,
    /// The number of entries of these spans that have not ended.
    pub(crate) entered: usize,
    /// The arena's memory at the first entry, and at the last exit.
    pub(crate) at_entry: Level,
    pub(crate) at_exit: Level,
    /// The totals of each thread that entered a span of this node, by thread number.
    pub(crate) threads: Map<usize, ThreadTotals>,
    parent: NodeId,
}

/// The maximum number of entries in the trace (6.5 MiB). If there are more, the shorter half is dropped.
const MAX_ENTRIES: usize = 1 << 16;
/// The maximum number of samples of the memory. If there are more, neighbours are merged in pairs.
const MAX_SAMPLES: usize = 1 << 15;

/// One visit of a thread to a span, from entry to exit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    span: u64,
    pub(crate) node: NodeId,
    pub(crate) thread: usize,
    pub(crate) begun_ns: u64,
    pub(crate) totals: Totals,
}

/// The arena's memory at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) at_ns: u64,
    pub(crate) level: Level,
    /// The peak of live bytes since the previous sample.
    pub(crate) peak_live_bytes: u64,
}

/// The contents of the trace: when each span was entered, and the arena's memory over time. Both are bounded.
#[derive(Debug)]
pub(crate) struct Timeline {
    pub(crate) entries: List<Entry>,
    pub(crate) samples: List<Sample>,
    /// The number of entries that were dropped.
    pub(crate) dropped: u64,
    /// Entries that are shorter than this are dropped.
    shortest_ns: u64,
    /// The number of readings that each sample covers.
    stride: usize,
    /// The number of readings that the last sample covers so far.
    in_last: usize,
}

impl Timeline {
    pub(crate) fn new() -> Self {
        Self { entries: list(), samples: list(), dropped: 0, shortest_ns: 0, stride: 1, in_last: 1 }
    }

    pub(crate) fn push_entry(&mut self, entry: Entry) {
        if self.entries.len() == MAX_ENTRIES && entry.totals.wall_ns >= self.shortest_ns {
            let half = MAX_ENTRIES / 2;
            self.entries.select_nth_unstable_by_key(half, |entry| Reverse(entry.totals.wall_ns));
            self.shortest_ns = self.entries[half].totals.wall_ns;
            self.dropped += (MAX_ENTRIES - half) as u64;
            self.entries.truncate(half);
        }
        if entry.totals.wall_ns < self.shortest_ns {
            self.dropped += 1;
        } else {
            self.entries.push(entry);
        }
    }

    pub(crate) fn push_sample(&mut self, sample: Sample) {
        if self.in_last < self.stride {
            if let Some(last) = self.samples.last_mut() {
                *last = merged(*last, sample);
                self.in_last += 1;
                return;
            }
        }
        if self.samples.len() == MAX_SAMPLES {
            for pair in 0..MAX_SAMPLES / 2 {
                self.samples[pair] = merged(self.samples[2 * pair], self.samples[2 * pair + 1]);
            }
            self.samples.truncate(MAX_SAMPLES / 2);
            self.stride *= 2;
        }
        self.samples.push(sample);
        self.in_last = 1;
    }
}

fn merged(earlier: Sample, later: Sample) -> Sample {
    Sample { peak_live_bytes: earlier.peak_live_bytes.max(later.peak_live_bytes), ..later }
}

/// The changes of the process's counters while a span was entered on any thread. They include the work of
/// other threads, such as rayon's workers. Sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Totals {
    /// Wall-clock time, in nanoseconds. Time that several threads spend in the span at once counts once.
    pub wall_ns: u64,
    /// Processor time of all threads, in nanoseconds.
    pub cpu_ns: u64,
    /// The number of page faults of all threads that needed no disk access.
    pub minor_faults: u64,
    /// Whether the arena served requests at any time while the span was entered. If not, the fields below are 0 and have no meaning.
    pub is_served: bool,
    /// The number of requests that the arena served.
    pub requests: u64,
    /// Bytes of these requests ([`Stats::arena_bytes`](zk_alloc::Stats::arena_bytes)).
    pub allocated_bytes: u64,
    /// Bytes of these requests that were not resident ([`Stats::fresh_bytes`](zk_alloc::Stats::fresh_bytes)).
    pub fresh_bytes: u64,
    /// Bytes requested from the arena that the backing allocator served instead.
    pub overflow_bytes: u64,
    /// The peak of the live bytes of the process ([`Stats::peak_live_bytes`](zk_alloc::Stats::peak_live_bytes)).
    pub peak_live_bytes: u64,
}

/// The changes of one thread's counters while it was in a span. Sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ThreadTotals {
    /// Wall-clock time, in nanoseconds.
    pub wall_ns: u64,
    /// Processor time, in nanoseconds. 0 on systems other than Linux, which do not report it per thread.
    pub cpu_ns: u64,
    /// The number of page faults that needed no disk access. 0 on systems other than Linux.
    pub minor_faults: u64,
    /// The number of requests that the arena served.
    pub requests: u64,
    /// Bytes of these requests.
    pub allocated_bytes: u64,
}

/// The arena's memory at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Level {
    /// Bytes in live blocks and page runs.
    pub live_bytes: u64,
    /// Resident bytes of the arena.
    pub resident_bytes: u64,
    /// Resident bytes that are free: retained for the next proof, cached by threads, or lost to rounding.
    pub retained_bytes: u64,
}

/// Implements the sum of two sets of counters, and the changes between two readings. The fields after the semicolon are peaks or flags:
/// instead of a sum, they get the larger of the two values.
macro_rules! counters {
    ($totals:ident: $($field:ident)*; $($largest:ident)*) => {
        impl AddAssign<&Self> for $totals {
            fn add_assign(&mut self, more: &Self) {
                $(self.$field += more.$field;)*
                $(self.$largest = self.$largest.max(more.$largest);)*
            }
        }

        impl $totals {
            /// Returns the change of each counter, or 0 if it decreased. A sum over threads may decrease slightly, because it is not read
            /// at one instant, and the program may have reset its counters.
            fn since(mut self, before: &Self) -> Self {
                $(self.$field = self.$field.saturating_sub(before.$field);)*
                self
            }
        }
    };
}

counters!(Totals: wall_ns cpu_ns minor_faults requests allocated_bytes fresh_bytes overflow_bytes;
    is_served peak_live_bytes);
counters!(ThreadTotals: wall_ns cpu_ns minor_faults requests allocated_bytes;);

impl ThreadTotals {
    /// Returns the counters of the calling thread since it began, with `at_ns` as the time.
    fn now(at_ns: u64) -> Self {
        let (cpu_ns, minor_faults) = usage(true);
        let stats = zk_alloc::thread_stats();
        Self { wall_ns: at_ns, cpu_ns, minor_faults, requests: stats.allocations, allocated_bytes: stats.bytes }
    }
}

/// The process's memory and counters at one moment. `wall_ns` counts from the start of the recording, the other counters from the
/// start of the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// `peak_live_bytes` is the peak since the last reading, and `is_served` is whether the arena serves requests now.
    totals: Totals,
    pub(crate) level: Level,
    pub(crate) phases: u64,
    /// Whether the arena has been opened.
    pub(crate) has_arena: bool,
}

impl Reading {
    fn now(began: Instant) -> Self {
        let peak_live_bytes = zk_alloc::take_peak_live_bytes() as u64;
        let stats = zk_alloc::stats();
        let (cpu_ns, minor_faults) = usage(false);
        Self {
            level: Level {
                live_bytes: stats.live_bytes as u64,
                resident_bytes: stats.resident_bytes as u64,
                retained_bytes: stats.retained_bytes() as u64,
            },
            totals: Totals {
                wall_ns: began.elapsed().as_nanos() as u64,
                cpu_ns,
                minor_faults,
                is_served: zk_alloc::is_serving(),
                requests: stats.arena_allocations,
                allocated_bytes: stats.arena_bytes,
                fresh_bytes: stats.fresh_bytes,
                overflow_bytes: stats.overflow_bytes,
                peak_live_bytes,
            },
            phases: stats.phases,
            has_arena: stats.address_space_bytes > 0,
        }
    }

    /// Returns the changes since an earlier reading.
    fn since(&self, before: &Self) -> Totals {
        let mut changes = self.totals.since(&before.totals);
        changes.is_served |= before.totals.is_served || changes.requests > 0;
        if !changes.is_served {
            changes.peak_live_bytes = 0;
        }
        changes
    }
}

/// Returns the processor time in nanoseconds and the number of page faults that needed no disk access, as the kernel counts them, for the
/// process or for the calling thread alone. Returns 0 on systems that do not report them.
fn usage(_of_thread: bool) -> (u64, u64) {
    #[cfg(unix)]
    {
        use nix::sys::resource::{UsageWho, getrusage};
        use nix::sys::time::TimeValLike;
        #[cfg(target_os = "linux")]
        let who = if _of_thread { UsageWho::RUSAGE_THREAD } else { UsageWho::RUSAGE_SELF };
        #[cfg(not(target_os = "linux"))]
        let who = UsageWho::RUSAGE_SELF;
        if let (Ok(usage), true) = (getrusage(who), cfg!(target_os = "linux") || !_of_thread) {
            let cpu_ns = usage.user_time().num_nanoseconds() + usage.system_time().num_nanoseconds();
            return (cpu_ns as u64, usage.minor_page_faults() as u64);
        }
    }
    (0, 0)
}

/// Returns the size of a page of memory.
pub(crate) fn page_bytes() -> u64 {
    #[cfg(unix)]
    if let Ok(Some(bytes)) = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE) {
        return bytes as u64;
    }
    4096
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recursive_spans_stop_at_the_node_limit() {
        let mut recording = Recording::new();
        let nodes = std::iter::successors(Some(WHOLE), |&parent| recording.find_or_add(parent, "recurse"));
        assert_eq!(nodes.count(), MAX_NODES);
    }
}
