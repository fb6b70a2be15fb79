//! The account of each span. At each entry and exit of a span, the changes of the counters since the last one are added to all
//! spans that are entered at that time.

use std::thread::ThreadId;
use std::time::Instant;

use crate::own::{List, Map, list, map};
use crate::reading::{Reading, ThreadReading, Totals};
use crate::timeline::{Entry, Sample, Timeline};
use crate::tree::{NodeId, Tree, WHOLE};

/// The most threads that are told apart. Spans that others enter are not recorded.
const MOST_THREADS: usize = 1024;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Recording {
    began: Instant,
    pub(crate) last: Reading,
    /// Phases that had begun when the recording did.
    pub(crate) phases_before: u64,
    pub(crate) tree: Tree,
    pub(crate) timeline: Timeline,
    pub(crate) threads: List<Thread>,
    by_id: Map<ThreadId, usize>,
    /// The spans that exist.
    spans: Map<u64, Span>,
    /// The nodes of which spans are entered now.
    open_nodes: List<NodeId>,
    /// The spans that are entered now, in the order of their entries.
    entered: List<Entered>,
    /// Entries that were not recorded.
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
    /// In UTF-8.
    name: Option<List<u8>>,
    /// Its number in its pool, if it is a worker of rayon.
    worker: Option<usize>,
    last: ThreadReading,
}

impl Thread {
    /// Of the calling thread.
    fn current(current: &std::thread::Thread, at_ns: u64) -> Self {
        let name = current.name().map(|name| {
            let mut own = list();
            own.extend_from_slice(name.as_bytes());
            own
        });
        Self { name, worker: rayon::current_thread_index(), last: ThreadReading::at(at_ns) }
    }

    /// The name of the thread with this number.
    pub(crate) fn name(&self, number: usize) -> String {
        match (&self.name, self.worker) {
            (Some(name), _) => String::from_utf8_lossy(name).into_owned(),
            (None, Some(worker)) => format!("rayon {worker}"),
            (None, None) => format!("thread {number}"),
        }
    }
}

/// A span that is entered now.
#[derive(Debug)]
struct Entered {
    span: u64,
    entry: Entry,
}

impl Recording {
    pub(crate) fn new() -> Self {
        let began = Instant::now();
        zk_alloc::take_peak_live_bytes();
        let last = Reading::now(began);
        let mut tree = Tree::new();
        tree.node_mut(WHOLE).at_entry = last.level;
        let mut open_nodes = list();
        open_nodes.push(WHOLE);
        Self {
            began,
            last,
            phases_before: last.phases,
            tree,
            timeline: Timeline::new(),
            threads: list(),
            by_id: map(),
            spans: map(),
            open_nodes,
            entered: list(),
            unrecorded: 0,
        }
    }

    /// A span came to be, under another, or else under the span that a worker of rayon works for.
    pub(crate) fn span_made(&mut self, span: u64, name: &'static str, parent: Parent) {
        let under = match parent {
            Parent::Span(parent) => self.spans.get(&parent).map_or(Some(WHOLE), |parent| parent.node),
            Parent::None => Some(WHOLE),
            Parent::Unknown => Some(self.served_by_worker().unwrap_or(WHOLE)),
        };
        let node = under.and_then(|under| self.tree.find_or_add(under, name));
        self.spans.insert(span, Span { node, was_entered: false });
    }

    pub(crate) fn span_gone(&mut self, span: u64) {
        self.spans.remove(&span);
    }

    /// The calling thread entered a span.
    pub(crate) fn enter(&mut self, span: u64) {
        self.advance();
        let node = self.spans.get(&span).and_then(|span| span.node);
        let (Some(node), Some(thread)) = (node, self.thread()) else {
            self.unrecorded += 1;
            return;
        };
        self.advance_thread(thread);
        let is_first = self.spans.get_mut(&span).is_some_and(|span| !std::mem::replace(&mut span.was_entered, true));
        let entry = self.tree.node_mut(node);
        if entry.spans == 0 {
            entry.at_entry = self.last.level;
        }
        entry.spans += u64::from(is_first);
        entry.entered += 1;
        if entry.entered == 1 {
            self.open_nodes.push(node);
        }
        entry.on_thread(thread);
        let entry = Entry { node, thread, begun_ns: self.last.at_ns, totals: Totals::default() };
        self.entered.push(Entered { span, entry });
    }

    /// The calling thread left a span.
    pub(crate) fn exit(&mut self, span: u64) {
        let Some(&thread) = self.by_id.get(&std::thread::current().id()) else { return };
        let is_this = |entered: &Entered| entered.span == span && entered.entry.thread == thread;
        let Some(index) = self.entered.iter().rposition(is_this) else { return };
        self.advance();
        self.advance_thread(thread);
        // Spans that this thread entered later, and has not left: the trace shows them in two parts, because parts nest.
        for later in self.entered[index + 1..].iter_mut().filter(|later| later.entry.thread == thread).rev() {
            self.timeline.push_entry(later.entry);
            (later.entry.begun_ns, later.entry.totals) = (self.last.at_ns, Totals::default());
        }
        let Entered { entry, .. } = self.entered.remove(index);
        self.timeline.push_entry(entry);
        let node = self.tree.node_mut(entry.node);
        node.at_exit = self.last.level;
        node.entered -= 1;
        if node.entered == 0 {
            self.open_nodes.retain(|&open| open != entry.node);
        }
    }

    /// The entries that have not ended.
    pub(crate) fn entered(&self) -> impl Iterator<Item = &Entry> {
        self.entered.iter().map(|entered| &entered.entry)
    }

    /// Adds what the process did since the last entry or exit to the spans that are entered.
    pub(crate) fn advance(&mut self) {
        let peak_live_bytes = zk_alloc::take_peak_live_bytes() as u64;
        let now = Reading::now(self.began);
        let changes = now.since(&self.last, peak_live_bytes);
        self.open_nodes.iter().for_each(|&node| self.tree.node_mut(node).totals += &changes);
        self.entered.iter_mut().for_each(|entered| entered.entry.totals += &changes);
        self.timeline.push_sample(Sample {
            at_ns: now.at_ns,
            level: now.level,
            peak_live_bytes: changes.peak_live_bytes,
        });
        self.last = now;
    }

    /// Adds what the calling thread did since its last entry or exit to the spans that it is in.
    fn advance_thread(&mut self, thread: usize) {
        let now = ThreadReading::at(self.last.at_ns);
        let changes = now.since(&std::mem::replace(&mut self.threads[thread].last, now));
        let own = |entered: &&Entered| entered.entry.thread == thread;
        for (index, Entered { entry, .. }) in self.entered.iter().enumerate().filter(|(_, entered)| own(entered)) {
            // Of two spans that share a node, the first counts.
            if !self.entered[..index].iter().filter(own).any(|earlier| earlier.entry.node == entry.node) {
                *self.tree.node_mut(entry.node).on_thread(thread) += &changes;
            }
        }
    }

    /// The number of the calling thread; `None` if there are too many.
    fn thread(&mut self) -> Option<usize> {
        let current = std::thread::current();
        let next = self.threads.len();
        if let Some(&known) = self.by_id.get(&current.id()) {
            return Some(known);
        } else if next == MOST_THREADS {
            return None;
        }
        self.threads.push(Thread::current(&current, self.last.at_ns));
        self.by_id.insert(current.id(), next);
        Some(next)
    }

    /// For a span without a parent on a worker of rayon: the innermost span of the thread that the pool works for. It is known if
    /// just one thread outside of the pool is in a span.
    fn served_by_worker(&self) -> Option<NodeId> {
        rayon::current_thread_index()?;
        let mut outside = self.entered.iter().filter(|entered| self.threads[entered.entry.thread].worker.is_none());
        let innermost = outside.clone().next_back()?.entry;
        outside.all(|entered| entered.entry.thread == innermost.thread).then_some(innermost.node)
    }
}

/// A span's parent, as tracing tells it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Parent {
    Span(u64),
    /// The program says that it has none.
    None,
    /// Its thread was in no span.
    Unknown,
}
