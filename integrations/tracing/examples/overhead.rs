//! Prints the nanoseconds that creating, entering, leaving and closing an empty span takes, with tracing-subscriber alone and with the
//! layer. Each time is the lowest of 20 batches.
//!
//! ```sh
//! cargo run --release -p zk-alloc-tracing --example overhead
//! ```

use std::time::Instant;

use tracing::{Dispatch, dispatcher, info_span};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry;

#[global_allocator]
static ALLOC: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator::resident();

fn ns_for_a_span() -> f64 {
    const SPANS: u32 = 20_000;
    let batch = || {
        let begun = Instant::now();
        (0..SPANS).for_each(|_| info_span!("span").in_scope(|| ()));
        begun.elapsed().as_nanos() as f64 / f64::from(SPANS)
    };
    (0..20).map(|_| batch()).fold(f64::INFINITY, f64::min)
}

fn main() {
    let memory = zk_alloc_tracing::Recorder::new();
    let subscribers: [(&str, Dispatch); 2] =
        [("registry alone", registry().into()), ("registry and layer", registry().with(memory.layer()).into())];
    for (name, dispatch) in subscribers {
        dispatcher::with_default(&dispatch, || {
            let outermost = ns_for_a_span();
            let _around: Vec<_> = (0..4).map(|_| info_span!("around").entered()).collect();
            let within = ns_for_a_span();
            println!("{name:18} {outermost:7.0} ns for an outermost span, {within:7.0} ns within four others");
        });
    }
}
