//! A place where one thread sleeps until another wakes it, or until a time has passed. A wake takes no lock and allocates nothing.
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
    /// The number of wakes so far.
    wakes: AtomicU32,
    /// The thread that sleeps here; null until its first sleep. The handle is leaked, because a wake may use it at any time.
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

    /// A ticket for [`sleep`](Self::sleep). Take it before you look for work: if a wake comes in between, the sleep ends at once.
    pub(crate) fn ticket(&self) -> u32 {
        self.wakes.load(SeqCst)
    }

    /// Wakes the thread that sleeps here.
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

    /// Sleeps until the first wake after `ticket` was taken, or until `at_most` has passed. May return earlier.
    #[cfg(target_os = "linux")]
    pub(crate) fn sleep(&self, ticket: u32, at_most: Option<Duration>) {
        use rustix::thread::futex::{Flags, Timespec, wait};

        // A time that the kernel's type cannot hold is centuries: as good as no limit.
        let timeout = at_most.and_then(|time| Timespec::try_from(time).ok());
        let _ = wait(&self.wakes, Flags::PRIVATE, ticket, timeout.as_ref());
    }

    /// Sleeps until the first wake after `ticket` was taken, or until `at_most` has passed. May return earlier.
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
