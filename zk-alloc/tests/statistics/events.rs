//! Each phase that ends is an event of tracing, and what the subscriber allocates is not the prover's.

use std::fmt;
use std::hint::black_box;
use std::sync::Mutex;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use crate::support::alone;
use zk_alloc::{Phase, PhaseGuard, phase, stats};

const MIB: u64 = 1 << 20;

/// The fields of the events so far.
static SEEN: Mutex<Vec<Fields>> = Mutex::new(Vec::new());

#[derive(Debug, Default)]
struct Fields(Vec<(&'static str, u64)>);

impl Fields {
    fn get(&self, name: &str) -> u64 {
        self.0.iter().find(|field| field.0 == name).expect("a field of the event").1
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.push((field.name(), value));
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

struct Watch;

impl<S: Subscriber> Layer<S> for Watch {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        assert_eq!((event.metadata().target(), *event.metadata().level()), ("zk_alloc", Level::INFO));
        let before = stats();
        let mut fields = Fields(Vec::with_capacity(4096));
        event.record(&mut fields);
        assert_eq!(stats().arena_allocations, before.arena_allocations, "the phase is over: {}", stats());
        SEEN.lock().unwrap().push(fields);
    }
}

#[test]
fn each_phase_that_ends_is_an_event() {
    alone!();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(Watch), || {
        drop(phase(|| black_box(vec![1u8; 8 << 20])));
        let guard = PhaseGuard::new();
        drop(black_box(vec![1u8; 8 << 20]));
        drop(guard);
        let phase = Phase::new();
        let escaped = black_box(vec![1u8; 4 << 20]);
        drop(phase);
        drop(escaped);
    });
    let seen = SEEN.lock().unwrap();
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert!(seen[0].get("fresh_bytes") >= 8 * MIB && seen[0].get("peak_live_bytes") >= 8 * MIB, "{seen:?}");
    assert!(seen[1].get("reused_bytes") + seen[1].get("fresh_bytes") >= 8 * MIB, "{seen:?}");
    assert!(seen[2].get("escaped_bytes") >= 4 * MIB, "{seen:?}");
    assert!(seen.iter().all(|event| event.get("overflow_bytes") == 0), "{seen:?}");
}
