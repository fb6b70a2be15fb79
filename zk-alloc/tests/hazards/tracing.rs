//! tracing-subscriber stores spans in pages. It allocates a page on first use, and never frees it.

use crate::support::{Numbers, THRESHOLDS, alone, assert_patterned, patterned, scribble, small_nodes_too};
use tracing::{Id, Subscriber, info_span, span::Attributes};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};
use zk_alloc::{phase, stats};

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

const SPANS: usize = 600;

/// The data that a layer stores with a span.
struct Notes {
    seed: u64,
    few: Vec<u64>,
    many: Vec<u64>,
}

/// Writes notes when a span opens, and checks them when it closes.
#[derive(Clone, Default)]
struct NoteKeeper {
    opened: Arc<AtomicUsize>,
    closed: Arc<AtomicUsize>,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for NoteKeeper {
    fn on_new_span(&self, _: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        self.opened.fetch_add(1, Ordering::Relaxed);
        let seed = id.into_u64();
        let notes = Notes { seed, few: patterned(20, seed), many: patterned(600, !seed) };
        context.span(id).unwrap().extensions_mut().insert(notes);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        self.closed.fetch_add(1, Ordering::Relaxed);
        let span = context.span(&id).unwrap();
        assert_eq!(span.name(), "work");
        assert!(span.parent().is_none_or(|parent| parent.name() == "work"));
        let notes = span.extensions_mut().remove::<Notes>().unwrap();
        assert_eq!(notes.seed, id.into_u64());
        assert_patterned(&notes.few, notes.seed);
        assert_patterned(&notes.many, !notes.seed);
    }
}

/// A span lives in a slot of a page (32 slots, then 64, 128, ...) of its thread's shard. The first phase makes the
/// pages for 600 live spans, and all other phases use them.
#[test]
fn spans_opened_in_one_phase_close_in_another_with_their_data() {
    alone!(each THRESHOLDS);
    let keeper = NoteKeeper::default();
    let subscriber = Registry::default().with(keeper.clone());
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let before = stats().slab_allocations;
    for _ in 0..3 {
        let first = phase(open);
        scribble();
        // Another thread opens more spans in its own shard while the first ones are alive, and closes the first
        // ones.
        let second = phase(|| thread::spawn(open).join().unwrap());
        phase(scribble);
        phase(|| thread::spawn(move || close(first)).join().unwrap());
        phase(|| close(second));
    }
    assert_eq!(keeper.opened.load(Ordering::Relaxed), 3 * 2 * SPANS);
    assert_eq!(keeper.closed.load(Ordering::Relaxed), 3 * 2 * SPANS);
    let each = if small_nodes_too() { 3 } else { 1 };
    assert!(stats().slab_allocations - before >= (3 * 2 * SPANS * each) as u64, "{}", stats());
}

/// A chain of spans, each the parent of the next.
fn open() -> Vec<tracing::Span> {
    let mut spans: Vec<tracing::Span> = Vec::new();
    for number in 0..SPANS {
        let span = info_span!(parent: spans.last().and_then(tracing::Span::id), "work", number);
        span.in_scope(|| assert_eq!(tracing::Span::current().id(), span.id()));
        spans.push(span);
    }
    spans
}

/// Closes spans in any order. Children keep their parent open.
fn close(mut spans: Vec<tracing::Span>) {
    let mut numbers = Numbers::new(spans.len() as u64);
    while !spans.is_empty() {
        spans.swap_remove(numbers.below(spans.len()));
    }
}
