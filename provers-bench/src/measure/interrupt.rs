//! Ctrl-C, SIGTERM and SIGHUP wake the driver while it waits for a child. The driver then ends the children and writes
//! the samples measured so far.

use anyhow::Context;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

type Wake = Box<dyn Fn() + Send>;

/// Whether the user asked to stop. Clones share one flag.
#[derive(Clone, Default)]
pub(crate) struct Interrupt {
    raised: Arc<AtomicBool>,
    wake: Arc<Mutex<Option<Wake>>>,
}

impl Interrupt {
    /// Returns an interrupt that the process's signals raise. Call it once per process.
    pub(crate) fn on_signals() -> anyhow::Result<Self> {
        let interrupt = Self::default();
        let raised = interrupt.clone();
        ctrlc::set_handler(move || raised.raise()).context("cannot listen for Ctrl-C")?;
        Ok(interrupt)
    }

    /// Whether the user asked to stop.
    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::SeqCst)
    }

    /// Calls `wake` when the interrupt is raised, or at once if it already was. Replaces any earlier function.
    pub(crate) fn wake_by(&self, wake: impl Fn() + Send + 'static) {
        let mut current = self.wake.lock().unwrap_or_else(PoisonError::into_inner);
        // `raise` takes the same lock: this check sees an interrupt raised at the same time, or that interrupt calls
        // the new function.
        if self.is_raised() {
            wake();
        }
        *current = Some(Box::new(wake));
    }

    /// Sleeps for `time`, or until the interrupt is raised.
    pub(crate) fn sleep(&self, time: Duration) {
        let (sender, woken) = mpsc::channel();
        // The send fails only if the sleep has already ended.
        self.wake_by(move || _ = sender.send(()));
        // A wake-up and a timeout both end the sleep.
        let _ = woken.recv_timeout(time);
    }

    fn raise(&self) {
        let wake = self.wake.lock().unwrap_or_else(PoisonError::into_inner);
        self.raised.store(true, Ordering::SeqCst);
        if let Some(wake) = wake.as_ref() {
            wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If a wake-up between the request and the wait were lost, the driver would sleep until the child answers.
    #[test]
    fn an_interrupt_wakes_whoever_waits_whenever_it_comes() {
        let interrupt = Interrupt::default();
        let (sender, woken) = mpsc::channel();
        let also = sender.clone();
        interrupt.wake_by(move || sender.send("before").unwrap());
        interrupt.raise();
        assert_eq!(woken.recv(), Ok("before"));
        interrupt.wake_by(move || also.send("after").unwrap());
        assert_eq!(woken.recv(), Ok("after"));
    }
}
