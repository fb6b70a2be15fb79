//! A subscriber for programs that have none.

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::layer::Recorder;

/// Begins a recording, and installs a subscriber for the program that does nothing else. A program that has a subscriber adds
/// [`Recorder::layer`] to it instead.
///
/// It records the spans that `RUST_LOG` names, such as `info,p3_dft=debug`, and without it those of level `INFO` and above.
/// (Directives of fields, which only `EnvFilter` knows, make it ignore the variable.)
///
/// # Panics
/// If the program has a global subscriber.
///
/// ```
/// let memory = zk_alloc_tracing::init();
/// tracing::info_span!("prove").in_scope(|| drop(vec![1u8; 1 << 20]));
/// println!("{}", memory.report());
/// ```
pub fn init() -> Recorder {
    let memory = Recorder::new();
    let wanted = std::env::var("RUST_LOG").ok().and_then(|said| said.parse().ok());
    let wanted = wanted.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    tracing_subscriber::registry().with(wanted).with(memory.layer()).init();
    memory
}
