//! A place where one thread sleeps until it is woken, or until its time is up. Waking takes no lock and allocates nothing.
#![cfg_attr(not(target_os = "linux"), allow(unsafe_code, reason = "keeps the handle of a thread"))]

#[cfg(not(target_os = "linux"))]
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
#[cfg(not(target_os = "linux"))]
use std::thread::{self, Thread};
use std::time::Duration;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Parking {
    /// How often anybody was woken.
    wakes: AtomicU32,
    /// Who sleeps here, as soon as it did so for the first time. Leaked: it may be woken at any time.
    #[cfg(not(target_os = "linux"))]
    sleeper: AtomicPtr<Thread>,
}

impl Parking {
    pub(crate) const fn new() -> Self {
        Self {
            wakes: AtomicU32::new(0),
            #[cfg(not(target_os = "linux"))]
            sleeper: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// To be taken before looking for work, and shown when going to sleep for want of it: who is woken in between does not
    /// sleep.
    pub(crate) fn ticket(&self) -> u32 {
        self.wakes.load(SeqCst)
    }

    /// Wakes who sleeps here.
    pub(crate) fn wake(&self) {
        self.wakes.fetch_add(1, SeqCst);
        self.wake_sleeper();
    }

    #[cfg(target_os = "linux")]
    fn wake_sleeper(&self) {
        let _ = rustix::thread::futex::wake(&self.wakes, rustix::thread::futex::Flags::PRIVATE, 1);
    }

    #[cfg(not(target_os = "linux"))]
    fn wake_sleeper(&self) {
        // SAFETY: null, or a handle that was leaked.
        if let Some(sleeper) = unsafe { self.sleeper.load(SeqCst).as_ref() } {
            sleeper.unpark();
        }
    }

    /// Sleeps until somebody is woken here after `ticket` was taken, or for so long. May return earlier, too.
    #[cfg(target_os = "linux")]
    pub(crate) fn sleep(&self, ticket: u32, at_most: Option<Duration>) {
        use rustix::thread::futex::{Flags, Timespec, wait};

        // Centuries are as good as for ever.
        let timeout = at_most.and_then(|time| Timespec::try_from(time).ok());
        let _ = wait(&self.wakes, Flags::PRIVATE, ticket, timeout.as_ref());
    }

    /// Sleeps until somebody is woken here after `ticket` was taken, or for so long. May return earlier, too.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn sleep(&self, ticket: u32, at_most: Option<Duration>) {
        let own = thread::current();
        // SAFETY: null, or a handle that was leaked.
        let known = unsafe { self.sleeper.load(SeqCst).as_ref() };
        if known.is_none_or(|known| known.id() != own.id()) {
            self.sleeper.store(Box::leak(Box::new(own)), SeqCst);
        }
        if self.ticket() == ticket {
            at_most.map_or_else(thread::park, thread::park_timeout);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn sleep_ends_when_woken_and_when_its_time_is_up_and_never_begins_with_an_old_ticket() {
        static PLACE: Parking = Parking::new();
        let old = PLACE.ticket();
        PLACE.wake();
        PLACE.sleep(old, None);
        let began = Instant::now();
        PLACE.sleep(PLACE.ticket(), Some(Duration::from_micros(300)));
        assert!(began.elapsed() >= Duration::from_micros(300));
        let ticket = PLACE.ticket();
        let sleeper = std::thread::spawn(move || {
            while PLACE.ticket() == ticket {
                PLACE.sleep(ticket, None);
            }
        });
        std::thread::sleep(Duration::from_millis(5));
        PLACE.wake();
        sleeper.join().unwrap();
    }
}
