//! Progress output: a bar on a terminal, one line per round elsewhere. The driver draws nothing while a proof runs, so
//! as not to disturb it.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, stderr};

/// Progress over a whole run, counted in proofs or in runs of a command. The bar is hidden without a terminal.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Expects `proofs` proofs, or other timed items that are called `noun`.
    pub(crate) fn new(proofs: u64, noun: &str) -> Self {
        let is_shown = stderr().is_terminal();
        let target = if is_shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let style = ProgressStyle::with_template(&format!("{{bar:16}} {{pos}}/{{len}} {noun}s  {{wide_msg}}"));
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        Self(ProgressBar::with_draw_target(Some(proofs), target).with_style(style))
    }

    /// A proof begins.
    pub(crate) fn proving(&self, what: &str, arm: &str) {
        self.0.set_message(format!("{what}: {arm}{}", self.left()));
    }

    /// A proof ended.
    pub(crate) fn proved(&mut self) {
        self.0.inc(1);
    }

    /// `proofs` proofs will not be made.
    pub(crate) fn expect_fewer(&mut self, proofs: u64) {
        self.0.dec_length(proofs.min(self.open()));
    }

    /// `proofs` more proofs will be made.
    pub(crate) fn expect_more(&mut self, proofs: u64) {
        self.0.inc_length(proofs);
    }

    /// A round ended; `times` lists its times.
    pub(crate) fn round_done(&self, what: &str, times: &str) {
        if self.0.is_hidden() {
            eprintln!("{what}: {times}{}", self.left());
        }
    }

    /// Prints a message that the user must not miss.
    pub(crate) fn note(&self, text: &str) {
        self.aside(|| eprintln!("{text}"));
    }

    /// Hides the bar while `write` writes to the terminal.
    pub(crate) fn aside<R>(&self, write: impl FnOnce() -> R) -> R {
        self.0.suspend(write)
    }

    /// The run is over.
    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }

    /// Proofs that are still to be made.
    fn open(&self) -> u64 {
        self.0.length().unwrap_or(0).saturating_sub(self.0.position())
    }

    /// The time left at the average pace so far; empty before the first proof and after the last.
    fn left(&self) -> String {
        let (done, open) = (self.0.position(), self.open());
        if done == 0 || open == 0 {
            return String::new();
        }
        let seconds = (self.0.elapsed().as_secs_f64() * open as f64 / done as f64).ceil() as u64;
        if seconds < 90 {
            format!(", about {seconds} s left")
        } else {
            format!(", about {} min left", seconds.div_ceil(60))
        }
    }
}
