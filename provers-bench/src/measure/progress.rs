//! Progress output: a bar on a terminal, one line per round elsewhere. The driver draws nothing while a proof runs, so
//! as not to disturb it.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

/// Progress over a whole run, counted in proofs.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    /// Number of proofs, or of runs of a command, that are planned.
    proofs: u64,
    done: u64,
    since: Instant,
}

impl Progress {
    /// Expects `proofs` proofs, or other timed items that are called `noun`.
    pub(crate) fn new(proofs: u64, noun: &str) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(proofs), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template(&format!("{{bar:16}} {{pos}}/{{len}} {noun}s  {{wide_msg}}"));
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self { bar, proofs, done: 0, since: Instant::now() }
    }

    /// A proof begins.
    pub(crate) fn proving(&self, what: &str, arm: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{what}: {arm}{}", self.left()));
        }
    }

    /// A proof ended.
    pub(crate) fn proved(&mut self) {
        self.done += 1;
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// `proofs` proofs will not be made.
    pub(crate) fn expect_fewer(&mut self, proofs: u64) {
        self.proofs -= proofs.min(self.proofs - self.done);
        if let Some(bar) = &self.bar {
            bar.set_length(self.proofs);
        }
    }

    /// `proofs` more proofs will be made.
    pub(crate) fn expect_more(&mut self, proofs: u64) {
        self.proofs += proofs;
        if let Some(bar) = &self.bar {
            bar.set_length(self.proofs);
        }
    }

    /// A round ended; `times` lists its times.
    pub(crate) fn round_done(&self, what: &str, times: &str) {
        if self.bar.is_none() {
            eprintln!("{what}: {times}{}", self.left());
        }
    }

    /// Prints a message that the user must not miss.
    pub(crate) fn note(&self, text: &str) {
        self.aside(|| eprintln!("{text}"));
    }

    /// Hides the bar while `write` writes to the terminal.
    pub(crate) fn aside<R>(&self, write: impl FnOnce() -> R) -> R {
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// The run is over.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn left(&self) -> String {
        match time_left(self.since.elapsed(), self.done, self.proofs) {
            Some(left) => format!(", about {} left", in_words(left)),
            None => String::new(),
        }
    }
}

/// The time left at the average pace so far; `None` before the first proof and after the last.
fn time_left(elapsed: Duration, done: u64, proofs: u64) -> Option<Duration> {
    (done > 0 && done < proofs).then(|| elapsed.mul_f64((proofs - done) as f64 / done as f64))
}

fn in_words(time: Duration) -> String {
    let seconds = time.as_secs_f64().ceil() as u64;
    if seconds < 90 { format!("{seconds} s") } else { format!("{} min", seconds.div_ceil(60)) }
}
