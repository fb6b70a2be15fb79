//! Ctrl-C (and SIGTERM, SIGHUP): wakes the driver while it waits for a child, so that it can end the children and
//! write what was measured.

use anyhow::Context;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

type Wake = Box<dyn Fn() + Send>;

/// Whether the user asked to stop. Clones share the answer.
#[derive(Clone, Default)]
pub(crate) struct Interrupt {
    raised: Arc<AtomicBool>,
    wake: Arc<Mutex<Option<Wake>>>,
}

impl Interrupt {
    /// An interrupt that the process's signals raise. Once per process.
    pub(crate) fn on_signals() -> anyhow::Result<Self> {
        let interrupt = Self::default();
        let raised = interrupt.clone();
        ctrlc::set_handler(move || raised.raise()).context("cannot listen for Ctrl-C")?;
        Ok(interrupt)
    }

    /// The user asked to stop.
    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::SeqCst)
    }

    /// Calls `wake` when the interrupt is raised, in place of any earlier one; at once if it already was.
    pub(crate) fn wake_by(&self, wake: impl Fn() + Send + 'static) {
        let mut current = self.wake.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that an interrupt raised meanwhile is either seen here or calls the new function.
        if self.is_raised() {
            wake();
        }
        *current = Some(Box::new(wake));
    }

    /// Sleeps for `time`, or until the interrupt is raised.
    pub(crate) fn sleep(&self, time: Duration) {
        let (sender, woken) = mpsc::channel();
        // A send fails only when nobody sleeps any more.
        self.wake_by(move || _ = sender.send(()));
        // Both ends of the wait are ends of the sleep.
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
    use std::thread;
    use std::time::Instant;

    /// A wake-up lost between asking and waiting would leave the driver asleep until the child answers.
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

    /// Ctrl-C in the pause before a proof alone must not wait for its end.
    #[test]
    fn an_interrupt_ends_a_sleep() {
        let interrupt = Interrupt::default();
        let raised = interrupt.clone();
        let since = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| interrupt.sleep(Duration::from_secs(60)));
            raised.raise();
        });
        assert!(since.elapsed() < Duration::from_secs(30));
    }
}
