//! The result of a recording, for the program and for `memory.json`.

use serde::Serialize;

use crate::reading::{Level, ThreadTotals, Totals};
use crate::recording::Recording;
use crate::tree::{NodeId, WHOLE};
use crate::usage;

/// The result of [`Recorder::report`](crate::Recorder::report). `Display` prints it as a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Which allocations are counted.
    pub coverage: Coverage,
    /// Bytes of a page: each page of the fresh bytes costs a page fault, unless it comes with others or in a huge page.
    pub page_bytes: u64,
    /// The whole program, since the recording began.
    pub whole: SpanReport,
    /// The spans without a parent, in the order in which they came.
    pub spans: Vec<SpanReport>,
    /// Entries of spans that are missing everywhere: on more than 1,024 threads, or under more than 4,095 names.
    pub unrecorded_entries: u64,
    /// Entries of spans that are missing in the trace, and only there: it keeps the longest, 65,536 at most.
    pub entries_not_in_trace: u64,
}

/// Which allocations a report counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Coverage {
    /// Those that the arena served: in phases, or all if the allocator is resident.
    Arena,
    /// None: no phase was open, or `ZkAllocator` is not the global allocator.
    NothingServed,
    /// None: phases were open, and `ZkAllocator` is not the global allocator.
    NotInstalled,
}

/// All spans of one name under one parent. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SpanReport {
    /// The spans' name.
    pub name: String,
    /// How many were entered. A span that is entered again, as in `async` code, counts once.
    pub count: u64,
    /// The changes of the process's counters. Children's totals are in it; those of children that overlap in time may add up to more.
    #[serde(flatten)]
    pub totals: Totals,
    /// The arena when the first was entered.
    pub at_entry: Level,
    /// The arena when the last was left; as it is now for [`Report::whole`].
    pub at_exit: Level,
    /// The part of each thread that entered them. The rest of `totals` is the work of other threads.
    pub threads: Vec<ThreadReport>,
    /// The spans under these, in the order in which they came.
    pub children: Vec<SpanReport>,
}

/// The part of one thread in a [`SpanReport`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ThreadReport {
    /// The thread's name, or else its number among rayon's workers or among the threads of the recording.
    pub thread: String,
    /// Its part.
    #[serde(flatten)]
    pub totals: ThreadTotals,
}

impl Report {
    pub(crate) fn of(recording: &Recording) -> Self {
        let mut whole = SpanReport::of(recording, WHOLE);
        whole.at_exit = recording.last.level;
        let coverage = if whole.totals.is_served {
            Coverage::Arena
        } else if recording.last.phases > recording.phases_before && !recording.last.has_arena {
            Coverage::NotInstalled
        } else {
            Coverage::NothingServed
        };
        Self {
            coverage,
            page_bytes: usage::page_bytes(),
            spans: std::mem::take(&mut whole.children),
            whole,
            unrecorded_entries: recording.unrecorded,
            entries_not_in_trace: recording.timeline.dropped,
        }
    }

    /// The names of the innermost spans that held the peak of live bytes, from the outermost on. It is empty if no span did.
    ///
    /// ```
    /// # let memory = zk_alloc_tracing::Recorder::new();
    /// assert!(memory.report().peak_path().is_empty());
    /// ```
    #[must_use]
    pub fn peak_path(&self) -> Vec<&str> {
        let peak = self.whole.totals.peak_live_bytes;
        let holds_peak = |span: &&SpanReport| peak > 0 && span.totals.peak_live_bytes == peak;
        let first = self.spans.iter().find(holds_peak);
        let path = std::iter::successors(first, |span| span.children.iter().find(holds_peak));
        path.map(|span| span.name.as_str()).collect()
    }
}

impl SpanReport {
    fn of(recording: &Recording, id: NodeId) -> Self {
        let node = recording.tree.node(id);
        let children = recording.tree.children(id).map(|child| Self::of(recording, child));
        let thread = |&(number, totals): &(usize, ThreadTotals)| ThreadReport {
            thread: recording.threads[number].name(number),
            totals,
        };
        Self {
            name: node.name.to_owned(),
            count: node.spans,
            totals: node.totals,
            at_entry: node.at_entry,
            at_exit: node.at_exit,
            threads: node.threads.iter().map(thread).collect(),
            // A span that nobody entered says nothing, unless others stand under it.
            children: children.filter(|child| child.count > 0 || !child.children.is_empty()).collect(),
        }
    }
}
