//! Processor time and page faults, as the kernel counts them for the process and for each thread.
#![cfg_attr(unix, allow(unsafe_code, reason = "asks the kernel"))]

/// The kernel's counters so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) cpu_ns: u64,
    pub(crate) minor_faults: u64,
}

impl Usage {
    /// Of all threads of the process.
    #[cfg(unix)]
    pub(crate) fn of_process() -> Self {
        Self::of(libc::RUSAGE_SELF)
    }

    /// Of the calling thread.
    #[cfg(target_os = "linux")]
    pub(crate) fn of_thread() -> Self {
        Self::of(libc::RUSAGE_THREAD)
    }

    /// Unknown here.
    #[cfg(not(unix))]
    pub(crate) fn of_process() -> Self {
        Self::default()
    }

    /// Unknown here.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn of_thread() -> Self {
        Self::default()
    }

    #[cfg(unix)]
    fn of(who: libc::c_int) -> Self {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the place is as long as the kernel writes.
        unsafe { libc::getrusage(who, usage.as_mut_ptr()) };
        // SAFETY: all zeroes is a valid value too, should the call fail.
        let usage = unsafe { usage.assume_init() };
        let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000;
        Self { cpu_ns: ns(usage.ru_utime) + ns(usage.ru_stime), minor_faults: usage.ru_minflt as u64 }
    }
}

/// Bytes of a page of memory.
pub(crate) fn page_bytes() -> u64 {
    #[cfg(unix)]
    // SAFETY: reads a constant of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    #[cfg(not(unix))]
    let bytes = 0;
    u64::try_from(bytes).ok().filter(|&bytes| bytes > 0).unwrap_or(4096)
}
