// Overrides the README's own definition of this link: if a link is defined twice, rustdoc uses the first definition.
#![doc = "[zk-alloc]: zk_alloc\n"]
#![doc = include_str!("../README.md")]

mod recording;
mod report;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::Subscriber;
use tracing::span::{Attributes, Id};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use recording::Recording;
pub use recording::{Level, ThreadTotals, Totals};
pub use report::{Coverage, Report, SpanReport, ThreadReport};

// Does not compile against the crate `zk-alloc` on crates.io, which belongs to another project. That crate's arena
// overwrites live memory.
const _: () = zk_alloc::REUSES_ONLY_WHAT_WAS_FREED;

/// Begins a recording, and installs a global subscriber that contains only the recording's layer. A program with its own subscriber adds
/// [`Recorder::layer`] to that subscriber instead.
///
/// Records the spans that `RUST_LOG` selects, such as `info,p3_dft=debug`. Without that variable, records spans of level `INFO` and above.
/// (The variable is ignored if it has directives for fields, which only `EnvFilter` supports.)
///
/// # Panics
/// If the program already has a global subscriber.
///
/// ```
/// let memory = zk_alloc_tracing::init();
/// tracing::info_span!("prove").in_scope(|| drop(vec![1u8; 1 << 20]));
/// println!("{}", memory.report());
/// ```
pub fn init() -> Recorder {
    let memory = Recorder::new();
    let wanted = std::env::var("RUST_LOG").ok().and_then(|text| text.parse().ok());
    let wanted = wanted.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    tracing_subscriber::registry().with(wanted).with(memory.layer()).init();
    memory
}

/// A recording, from which the program takes its reports. Clones share the recording. It never ends: a report covers
/// the time since [`new`](Self::new).
///
/// ```
/// use tracing_subscriber::layer::SubscriberExt;
///
/// let memory = zk_alloc_tracing::Recorder::new();
/// let subscriber = tracing_subscriber::registry().with(memory.layer());
/// tracing::subscriber::with_default(subscriber, || {
///     tracing::info_span!("prove").in_scope(|| drop(vec![1u8; 1 << 20]));
/// });
/// assert_eq!(memory.report().spans[0].name, "prove");
/// ```
#[derive(Clone, Debug)]
pub struct Recorder(Arc<Mutex<Recording>>);

impl Recorder {
    /// Begins a recording.
    #[expect(clippy::new_without_default, reason = "a default value would begin a recording")]
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Recording::new())))
    }

    /// Returns a layer that records the spans of its subscriber. If the subscriber has filters, the layer records only the spans that pass
    /// them.
    #[must_use]
    pub fn layer(&self) -> MemoryLayer {
        MemoryLayer(self.clone())
    }

    /// Returns a report of the spans so far, including those that are still open. Call it outside of phases: in a phase, the arena would
    /// serve the report's own memory.
    #[must_use]
    pub fn report(&self) -> Report {
        let mut recording = self.lock();
        recording.advance();
        Report::of(&recording)
    }

    /// Writes the spans so far in Chrome's trace format, which <https://ui.perfetto.dev> and `chrome://tracing` open: each entry of a span,
    /// on its thread, and the arena's live, resident and retained memory over time.
    ///
    /// ```
    /// # let memory = zk_alloc_tracing::Recorder::new();
    /// let mut json = Vec::new();
    /// memory.write_trace(&mut json)?;
    /// assert!(json.starts_with(b"{"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// If writing to `out` fails.
    pub fn write_trace(&self, out: impl Write) -> io::Result<()> {
        let mut recording = self.lock();
        recording.advance();
        report::write_trace(&recording, out)
    }

    /// Writes `memory.json`, which is the [`report`](Self::report), and `trace.json` ([`write_trace`](Self::write_trace)) into
    /// `folder`, which it creates if needed. Returns the report, for the terminal.
    ///
    /// ```
    /// # let memory = zk_alloc_tracing::Recorder::new();
    /// let folder = std::env::temp_dir().join(format!("memory-{}", std::process::id()));
    /// println!("{}", memory.write(&folder)?);
    /// assert!(folder.join("memory.json").exists() && folder.join("trace.json").exists());
    /// # std::fs::remove_dir_all(folder)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the folder or a file can't be written.
    pub fn write(&self, folder: impl AsRef<Path>) -> io::Result<Report> {
        let (folder, report) = (folder.as_ref(), self.report());
        fs::create_dir_all(folder)?;
        fs::write(folder.join("memory.json"), serde_json::to_string_pretty(&report)? + "\n")?;
        self.write_trace(File::create(folder.join("trace.json"))?)?;
        Ok(report)
    }

    fn lock(&self) -> MutexGuard<'_, Recording> {
        // Ignores poisoning: after a panic under the lock, the recording lacks some counts but stays usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The layer of a [`Recorder`].
#[derive(Clone, Debug)]
pub struct MemoryLayer(Recorder);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for MemoryLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let parent = context.span(id).and_then(|span| span.parent()).map(|parent| parent.id().into_u64());
        self.0.lock().span_made(id.into_u64(), attributes.metadata().name(), parent, attributes.is_root());
    }

    fn on_enter(&self, id: &Id, _: Context<'_, S>) {
        self.0.lock().enter(id.into_u64());
    }

    fn on_exit(&self, id: &Id, _: Context<'_, S>) {
        self.0.lock().exit(id.into_u64());
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        self.0.lock().span_gone(id.into_u64());
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use tracing::info_span;

    use super::Coverage;

    /// The unit tests do not install zk-alloc. No other unit test may open a phase, because phases are process-wide.
    #[test]
    fn with_another_allocator_spans_report_only_time_and_faults() {
        let memory = super::init();
        info_span!("prove").in_scope(|| drop(black_box(vec![1u8; 64 << 20])));
        assert_eq!(memory.report().coverage, Coverage::NothingServed);
        zk_alloc::phase(|| info_span!("prove").in_scope(|| drop(black_box(vec![1u8; 64 << 20]))));
        let report = memory.report();
        assert_eq!(report.coverage, Coverage::NotInstalled);
        let prove = &report.spans[0];
        assert_eq!(prove.count, 2);
        assert!(prove.totals.wall_ns > 0 && !prove.totals.is_served, "{report:#?}");
        // Even if the kernel uses huge pages, each 2 MiB costs a fault.
        assert!(prove.totals.minor_faults >= 32 && prove.threads[0].totals.minor_faults >= 32, "{report:#?}");
        assert!(report.to_string().contains("is not the global allocator"), "{report}");

        let mut trace = Vec::new();
        memory.write_trace(&mut trace).unwrap();
        let trace: serde_json::Value = serde_json::from_slice(&trace).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let has = |kind: &str| events.iter().any(|event| event["ph"] == kind);
        assert!(has("X") && !has("C"), "{trace}");
    }
}
