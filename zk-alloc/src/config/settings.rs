//! `Settings`: the values that the program sets. The environment outweighs them.

use std::time::Duration;

use super::huge_pages::HugePages;

pub(super) const GIB: usize = 1 << 30;
/// The most address space for one thread: 64 TiB, half of what x86-64 gives a process.
const MOST_CAPACITY_GIB: usize = if usize::BITS < 64 { 1 } else { 64 << 10 };
/// Times of this many seconds (31 years) and more are for ever.
pub(super) const MAX_SECONDS: u64 = 1_000_000_000;

/// The nearest capacity that can be used: `bytes` rounded up to whole GiB, within the limits.
pub(super) const fn usable_capacity(bytes: usize) -> usize {
    match bytes.div_ceil(GIB) {
        0 => GIB,
        gib if gib < MOST_CAPACITY_GIB => gib * GIB,
        _ => MOST_CAPACITY_GIB * GIB,
    }
}

/// Values that the program sets, instead of the defaults. The environment outweighs them, because the operator knows the host.
///
/// ```
/// use zk_alloc::{HugePages, Settings, ZkAllocator};
///
/// #[global_allocator]
/// static ALLOC: ZkAllocator = ZkAllocator.settings(
///     Settings::new().max_bytes(8 << 30).retain_bytes(1 << 30).huge_pages(HugePages::Never),
/// );
///
/// zk_alloc::phase(|| drop(vec![1u8; 1 << 20]));
/// let settings = zk_alloc::stats().settings.unwrap();
/// assert_eq!(settings.max_bytes.value, 8 << 30);
/// println!("{settings}"); // with where each value came from
/// ```
///
/// Settings take effect when the arena opens, and hold for the whole process. The first
/// [`ZkAllocator`](struct@crate::ZkAllocator) that gets a request brings its settings; those of others are ignored. If the global
/// allocator is another, [`reserve`](crate::reserve) counts as the first request, and brings no settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "settings take effect in `ZkAllocator::settings`"]
pub struct Settings {
    pub(super) min_bytes: Option<usize>,
    pub(super) thread_capacity_bytes: Option<usize>,
    pub(super) retain_bytes: Option<usize>,
    pub(super) retain_for: Option<Duration>,
    pub(super) max_bytes: Option<usize>,
    pub(super) max_hard: Option<bool>,
    pub(super) huge_pages: Option<HugePages>,
    pub(super) lazy_zero_bytes: Option<usize>,
    pub(super) sandbox: Option<bool>,
    pub(super) background_thread: Option<bool>,
    pub(super) trace_escaped: Option<bool>,
}

impl Settings {
    /// The defaults.
    pub const fn new() -> Self {
        Self {
            min_bytes: None,
            thread_capacity_bytes: None,
            retain_bytes: None,
            retain_for: None,
            max_bytes: None,
            max_hard: None,
            huge_pages: None,
            lazy_zero_bytes: None,
            sandbox: None,
            background_thread: None,
            trace_escaped: None,
        }
    }

    /// The smallest request that the arena serves, in bytes: `ZK_ALLOC_MIN_BYTES`.
    pub const fn min_bytes(mut self, bytes: usize) -> Self {
        self.min_bytes = Some(bytes);
        self
    }

    /// Address space for each thread, in bytes: `ZK_ALLOC_SLAB_GB`. It is rounded up to whole GiB, at least 1 GiB and at most 64
    /// TiB.
    pub const fn thread_capacity_bytes(mut self, bytes: usize) -> Self {
        self.thread_capacity_bytes = Some(usable_capacity(bytes));
        self
    }

    /// The bytes that may stay resident when no phase is open: `ZK_ALLOC_RETAIN_BYTES`. [`set_retain`](crate::set_retain) changes
    /// this while the program runs.
    pub const fn retain_bytes(mut self, bytes: usize) -> Self {
        self.retain_bytes = Some(bytes);
        self
    }

    /// In [`Mode::Resident`](crate::Mode::Resident), the peak live size of this time stays resident: `ZK_ALLOC_RETAIN_FOR`.
    /// `Duration::MAX` is for ever, and so are 1,000,000,000 seconds and more. [`set_retain`](crate::set_retain) changes this
    /// while the program runs.
    pub const fn retain_for(mut self, time: Duration) -> Self {
        self.retain_for = Some(if time.as_secs() < MAX_SECONDS { time } else { Duration::MAX });
        self
    }

    /// The most bytes of the arena that may be resident at any time: `ZK_ALLOC_MAX_BYTES`. `usize::MAX` is no limit.
    pub const fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Whether a request that would exceed [`max_bytes`](Self::max_bytes) fails (`GlobalAlloc` returns null), instead of going to the
    /// backing allocator: `ZK_ALLOC_MAX_HARD`.
    pub const fn max_hard(mut self, on: bool) -> Self {
        self.max_hard = Some(on);
        self
    }

    /// Where to ask for huge pages: `ZK_ALLOC_THP`.
    pub const fn huge_pages(mut self, wish: HugePages) -> Self {
        self.huge_pages = Some(wish);
        self
    }

    /// From this many bytes on, the kernel zeroes dirty memory when a thread touches it: `ZK_ALLOC_LAZY_ZERO_BYTES`. `usize::MAX`
    /// is never.
    pub const fn lazy_zero_bytes(mut self, bytes: usize) -> Self {
        self.lazy_zero_bytes = Some(bytes);
        self
    }

    /// Whether the arena makes only the system calls of glibc's malloc: mmap, munmap, mremap, mprotect, futex, and madvise with
    /// `MADV_DONTNEED`. Set it if the program enters a sandbox that kills it for any other call: `ZK_ALLOC_SANDBOX`.
    pub const fn sandbox(mut self, on: bool) -> Self {
        self.sandbox = Some(on);
        self
    }

    /// Whether to start a background thread, as [`start_background_thread`](crate::start_background_thread) does:
    /// `ZK_ALLOC_BACKGROUND`. The first phase starts it, or the first request in
    /// [`Mode::Resident`](crate::Mode::Resident). A forked child does not start it again.
    pub const fn background_thread(mut self, on: bool) -> Self {
        self.background_thread = Some(on);
        self
    }

    /// Whether to trace and print the allocations that outlive their phase: `ZK_ALLOC_TRACE_ESCAPED`.
    pub const fn trace_escaped(mut self, on: bool) -> Self {
        self.trace_escaped = Some(on);
        self
    }
}
