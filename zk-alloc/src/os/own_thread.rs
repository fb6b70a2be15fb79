//! A thread for the allocator: an ordinary thread of the C library with a name, a small stack, and all signals blocked.
//!
//! pthread_create(3) makes it, because the standard library would allocate for it, with the allocator that the thread serves. The C
//! library knows the thread, so that setuid(2) reaches it.
#![cfg_attr(unix, allow(unsafe_code, reason = "calls the C library's threads"))]
#![cfg_attr(not(target_os = "linux"), allow(unsafe_code, reason = "keeps the handle of a thread"))]

#[cfg(not(unix))]
pub(crate) use crate::os::own_thread::elsewhere::OwnThread;
#[cfg(unix)]
pub(crate) use crate::os::own_thread::unix::OwnThread;
#[cfg(not(target_os = "linux"))]
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
#[cfg(not(target_os = "linux"))]
use std::thread::{self, Thread};
use std::time::Duration;

/// The stack of a thread that only purges, in bytes.
pub(crate) const SMALL_STACK_BYTES: usize = 128 << 10;

#[cfg(unix)]
mod unix {
    use std::ffi::{CStr, c_void};
    use std::mem::MaybeUninit;
    use std::ptr::null_mut;

    use crate::os::{Errno, Signals};

    /// See the module's documentation. Dropping it leaves the thread running.
    pub(crate) struct OwnThread(libc::pthread_t);

    // SAFETY: the handle of a thread, which any thread may use.
    unsafe impl Send for OwnThread {}

    const NAME: &CStr = c"zk-alloc";

    impl OwnThread {
        /// Starts a thread that runs `run`, which must not panic, on a stack of this size, or of the C library's default.
        ///
        /// # Errors
        /// The system's, if it can't create a thread.
        pub(crate) fn start(run: fn(), stack_bytes: Option<usize>) -> Result<Self, Errno> {
            // A new thread inherits the mask of its creator.
            let before = Signals::block();
            let started = match create(stack_bytes, run) {
                // A program with much thread-local memory needs a larger stack: that memory lies at its end.
                Err(Errno(libc::EINVAL)) => create(None, run),
                other => other,
            };
            before.restore();
            started
        }

        /// Waits until the thread has ended.
        pub(crate) fn join(self) {
            // SAFETY: a thread of ours that nobody joined or detached before: `self` is its only handle.
            unsafe { libc::pthread_join(self.0, null_mut()) };
        }
    }

    fn create(stack_bytes: Option<usize>, run: fn()) -> Result<OwnThread, Errno> {
        let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
        let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
        // SAFETY: a place for the attributes.
        checked(unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) })?;
        let sized = stack_bytes.map_or(Ok(()), |bytes| {
            // SAFETY: initialised above.
            checked(unsafe { libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), bytes) })
        });
        let created = sized.and_then(|()| {
            let run = run as *mut c_void;
            // SAFETY: initialised attributes, a place for the handle, and the argument that `begin` expects.
            checked(unsafe { libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), begin, run) })
        });
        // SAFETY: initialised above, and not used any more.
        unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
        // SAFETY: `pthread_create` wrote it.
        created.map(|()| OwnThread(unsafe { thread.assume_init() }))
    }

    /// The first function of the thread.
    extern "C" fn begin(run: *mut c_void) -> *mut c_void {
        name_this_thread();
        // SAFETY: `create` passes a function of this type.
        let run = unsafe { std::mem::transmute::<*mut c_void, fn()>(run) };
        run();
        null_mut()
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn name_this_thread() {
        // SAFETY: a name that ends with a zero.
        unsafe { libc::prctl(libc::PR_SET_NAME, NAME.as_ptr()) };
    }

    #[cfg(target_vendor = "apple")]
    fn name_this_thread() {
        // SAFETY: a name that ends with a zero.
        unsafe { libc::pthread_setname_np(NAME.as_ptr()) };
    }

    #[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
    fn name_this_thread() {
        let _ = NAME;
    }

    /// The pthread functions return an error number.
    fn checked(result: libc::c_int) -> Result<(), Errno> {
        if result == 0 { Ok(()) } else { Err(Errno(result)) }
    }
}

#[cfg(not(unix))]
mod elsewhere {
    use std::thread::{Builder, JoinHandle};

    use crate::os::Errno;

    /// See the module's documentation; on this platform the thread comes from the standard library. Dropping it leaves the thread running.
    pub(crate) struct OwnThread(JoinHandle<()>);

    impl OwnThread {
        /// Starts a thread that runs `run`, which must not panic, on a stack of this size, or of the default.
        ///
        /// # Errors
        /// The system's, if it can't create a thread.
        pub(crate) fn start(run: fn(), stack_bytes: Option<usize>) -> Result<Self, Errno> {
            let builder = Builder::new().name("zk-alloc".into());
            let builder = stack_bytes.into_iter().fold(builder, Builder::stack_size);
            builder.spawn(run).map(Self).map_err(|error| Errno(error.raw_os_error().unwrap_or(0)))
        }

        /// Waits until the thread has ended.
        pub(crate) fn join(self) {
            let _ = self.0.join();
        }
    }
}

/// A place where one thread sleeps until another wakes it, or until a time has passed. A wake takes no lock and allocates nothing.
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
