//! One page-locked range, for provers that copy to a GPU: it holds large buffers of a proof in memory that is registered with the driver.
//!
//! A driver copies ordinary memory through a buffer of its own. The device reads memory directly if it was registered with the driver
//! (page-locked, "pinned"). Registering is slow, so it is done once, for a range that all proofs use. docs/gpu.md says when this pays off.
//!
//! ```
//! use zk_alloc::{Pinned, ZkAllocator, phase, pinned};
//!
//! #[global_allocator]
//! static ALLOC: ZkAllocator = ZkAllocator;
//!
//! // For a GPU, `zk-alloc-cuda` has the functions that register. These lock the range in memory, without a GPU.
//! let range = Pinned::new(4 << 20, pinned::lock, pinned::unlock)?;
//! let trace = phase(|| vec![1u64; 1 << 18]);
//! assert!(pinned::contains(trace.as_ptr()));
//! # drop(trace);
//! # drop(range);
//! # Ok::<(), zk_alloc::NotPinned<std::io::Error>>(())
//! ```
//!
//! # How it works
//!
//! The range is one run of the arena's huge zone. The zone counts the run as in use, so nothing purges it, moves it or hands it out. The
//! range has a bitmap of its own, in which threads claim and free pages without a lock, as in a zone. If a request does not fit, the arena
//! serves it as usual. The range is not mapped in a forked child (see [`Pinned`]).
#![allow(unsafe_code, reason = "hands out memory of the range, advises the kernel on it and locks it")]
#![allow(clippy::not_unsafe_ptr_arg_deref, reason = "the kernel refuses to lock an address that is not mapped")]

use std::error::Error;
use std::mem::forget;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::{fmt, io};

use crate::accounts::Limit;
use crate::arena::{self, Arena, Bitmap, Contents, Runs, Shortage, Table, Wanted};
use crate::os::{self, Errno, HUGE_PAGE_BYTES};
use crate::sync::AtomicU64;
use crate::{accounts, gate, retain};

/// The smallest request that the range serves, in bytes, unless the program sets another. It is four pages of the range, so rounding up to
/// whole pages wastes at most a fifth.
const MIN_BYTES: usize = 1 << 20;

/// The state of the range, which all threads share.
struct Range {
    start: NonNull<u8>,
    bytes: usize,
    page_bytes: usize,
    /// Which pages are in use.
    runs: Runs,
    _used: Table<AtomicU64>,
    /// The index of the first page that was never in use. It and all pages after it contain only zeroes.
    fresh_from: AtomicUsize,
    in_use_bytes: AtomicUsize,
    peak_bytes: AtomicUsize,
    /// The generation of the process that made the range.
    generation: u64,
    is_left_out_of_children: bool,
}

// SAFETY: `start` never changes, everything mutable is atomic, and only the owner of a page accesses its memory.
unsafe impl Sync for Range {}

/// The range; null while there is none. A `Range` that was published is never freed, because a thread may be about to claim pages in it.
static RANGE: AtomicPtr<Range> = AtomicPtr::new(null_mut());
/// Whether the process has a range, is making one, or inherited one.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Returns the range, if this process made it.
fn own() -> Option<&'static Range> {
    // SAFETY: the pointer is null, or a range that was leaked before it was stored with Release.
    let range = unsafe { RANGE.load(Ordering::Acquire).as_ref() };
    range.filter(|range| range.generation == os::process_generation())
}

/// Allocates from the range. Returns `None` if the request does not fit.
#[cold]
#[inline(never)]
pub(crate) fn alloc(arena: &Arena, size: usize, align: usize, contents: Contents) -> Option<NonNull<u8>> {
    let range = own().filter(|range| size <= range.bytes)?;
    let (pages, align) = (range.pages(size), range.pages(align));
    let skew = (range.start.addr().get() / range.page_bytes) & (align - 1);
    let start = range.runs.claim_first_fit(0, Wanted { n: pages, align, skew })?;
    // SAFETY: `start` is a page of the range, so the offset stays within the range.
    let at = unsafe { range.start.add(start * range.page_bytes) };
    let fresh_from = range.came_into_use(start, pages);
    if contents == Contents::Zeroed {
        let stale_bytes = (fresh_from.saturating_sub(start) * range.page_bytes).min(size);
        // SAFETY: `stale_bytes` is at most `size`, and this thread claimed the pages above.
        unsafe { at.write_bytes(0, stale_bytes) };
    }
    arena.huge_zone().count_request(size);
    Some(at)
}

/// Frees memory of the range. Does nothing in a forked child, which never uses the range.
///
/// # Safety
/// The memory at `at` came from [`alloc`], is `size` bytes long now, and is not used afterwards.
pub(crate) unsafe fn release(at: NonNull<u8>, size: usize) {
    if let Some(range) = own() {
        range.release(range.index(at), range.pages(size));
        gate::tick();
    }
}

/// Resizes memory of the range in place. Returns `false` if it can't grow there.
///
/// # Safety
/// As for [`release`], except that the first `new_size` bytes may still be used.
pub(crate) unsafe fn resize(at: NonNull<u8>, old_size: usize, new_size: usize) -> bool {
    let Some(range) = own() else { return false };
    let (start, old, new) = (range.index(at), range.pages(old_size), range.pages(new_size));
    if new > old {
        if !range.runs.try_claim(start + old, new - old) {
            return false;
        }
        range.came_into_use(start + old, new - old);
    } else {
        range.release(start + new, old - new);
    }
    true
}

/// Returns whether a growing run should be copied into the range: whether the range serves requests of `size` bytes and has that many free
/// bytes, contiguous or not.
pub(crate) fn has_room(size: usize) -> bool {
    let free_bytes = |range: &Range| range.bytes - range.in_use_bytes.load(Ordering::Relaxed);
    size >= gate::pinned_min_bytes() && own().is_some_and(|range| free_bytes(range) >= size)
}

/// Returns the bytes of the range, its bytes in use, and their peak.
pub(crate) fn sizes() -> [usize; 3] {
    own().map_or([0; 3], |range| {
        [range.bytes, range.in_use_bytes.load(Ordering::Relaxed), range.peak_bytes.load(Ordering::Relaxed)]
    })
}

/// Gives up the range in a forked child, which has no memory there. [`own`] also detects forks through the raw system call, after which
/// nothing calls this.
#[cfg(unix)]
pub(crate) fn after_fork_in_child(arena: &Arena) {
    // SAFETY: as in `own`.
    if let Some(range) = unsafe { RANGE.swap(null_mut(), Ordering::AcqRel).as_ref() } {
        gate::set_pinned_min_bytes(usize::MAX);
        arena.huge_zone().abandon(range.start, range.bytes);
    }
}

impl Range {
    /// Returns the whole range to its zone. Returns `false`, and leaves the range in use, if the kernel does not let children inherit it
    /// again. The caller owns all pages, and nothing uses them any more.
    fn return_to_zone(&self, arena: &Arena) -> bool {
        // SAFETY: the range is the run that was claimed for it, in one mapping of the arena.
        if self.is_left_out_of_children && unsafe { os::hand_to_children(self.start.as_ptr(), self.bytes) }.is_err() {
            return false;
        }
        // SAFETY: the range is the run that was claimed for it. The caller guarantees that nothing uses it any more.
        unsafe { arena.huge_zone().release(self.start, self.bytes) };
        true
    }

    fn pages(&self, bytes: usize) -> usize {
        bytes.div_ceil(self.page_bytes)
    }

    fn index(&self, at: NonNull<u8>) -> usize {
        (at.addr().get() - self.start.addr().get()) / self.page_bytes
    }

    /// Counts the caller's newly claimed pages as in use. Returns the index of the first page that had never been in use.
    fn came_into_use(&self, start: usize, pages: usize) -> usize {
        let more_bytes = pages * self.page_bytes;
        let in_use_bytes = self.in_use_bytes.fetch_add(more_bytes, Ordering::Relaxed) + more_bytes;
        self.peak_bytes.fetch_max(in_use_bytes, Ordering::Relaxed);
        // Relaxed: the next owner of these pages claims the bits that this owner's release clears, so it sees the new value.
        self.fresh_from.fetch_max(start + pages, Ordering::Relaxed)
    }

    fn release(&self, start: usize, pages: usize) {
        // Count before the pages are free. Otherwise another thread could claim and count them first, and the count would exceed the bytes
        // of the range.
        self.in_use_bytes.fetch_sub(pages * self.page_bytes, Ordering::Relaxed);
        self.runs.release(start, pages);
    }
}

type Unregister = dyn FnOnce(*mut u8, usize) -> bool + Send + Sync;

/// A page-locked range of the arena. While it lives, it serves requests of 1 MiB and more that would otherwise go to the arena, if they
/// fit. See the [module](self).
///
/// The process may have one at a time. Make it when the program starts, outside of phases, and keep it as long as there are proofs.
///
/// # Growth
///
/// A `Vec` that grows stays where it is if there is room after it, in the range or outside. If it has to move, it moves to the range if
/// there is room, and its contents are copied. `with_capacity` avoids the copies.
///
/// # Fork
///
/// A child of `fork` has no memory in the range (`MADV_DONTFORK`), so that the device never sees a copy. The child loses the contents: an
/// access kills it with SIGSEGV. It may drop values in the range if that touches no memory there, as for a `Vec` of numbers. The range
/// serves none of the child's requests, the child can't make another range, and dropping a `Pinned` there does nothing. `Command` and
/// posix_spawn(3) are not affected.
///
/// # Drop
///
/// If no allocation is left in the range, it is unregistered, and its memory becomes free memory of the arena. Otherwise it stays
/// registered for good and serves no more requests, and one line on standard error says so.
#[must_use = "the range serves until it is dropped"]
pub struct Pinned {
    range: &'static Range,
    unregister: Option<Box<Unregister>>,
}

impl Pinned {
    /// Prefaults a range of at least `bytes` (whole huge pages of 2 MiB), on all processors, and calls `register` to register it with a
    /// driver. `unregister` runs when the `Pinned` is dropped, if no allocation is left in the range. Both receive the address and the
    /// length. Neither is called while the allocator serves a request.
    ///
    /// # Errors
    /// See [`NotPinned`]. An error leaves the process unchanged.
    pub fn new<E, U: fmt::Display>(
        bytes: usize,
        register: impl FnOnce(*mut u8, usize) -> Result<(), E>,
        unregister: impl FnOnce(*mut u8, usize) -> Result<(), U> + Send + Sync + 'static,
    ) -> Result<Self, NotPinned<E>> {
        let arena = retain::open_arena().ok_or(NotPinned::NoArena)?;
        if IS_TAKEN.swap(true, Ordering::AcqRel) {
            return Err(NotPinned::Taken);
        }
        let range =
            Self::registered(arena, bytes, register).inspect_err(|_| IS_TAKEN.store(false, Ordering::Release))?;
        let range: &'static Range = Box::leak(Box::new(range));
        let unregister = Box::new(move |at, bytes| {
            let warn = |error| os::warn(format_args!("unregistering {bytes} pinned bytes failed: {error}; they stay"));
            unregister(at, bytes).map_err(warn).is_ok()
        });
        // Publish the location first, then the range with Release. So each thread that claims pages, or is passed memory in them by such a
        // thread, sees the location.
        gate::set_pinned(range.start.as_ptr(), range.bytes);
        RANGE.store(std::ptr::from_ref(range).cast_mut(), Ordering::Release);
        gate::set_pinned_min_bytes(MIN_BYTES);
        Ok(Self { range, unregister: Some(unregister) })
    }

    /// Creates a range that is resident, registered with the driver, and empty. In its zone, it is one run in use. Does not publish the
    /// range.
    fn registered<E>(
        arena: &Arena,
        asked_bytes: usize,
        register: impl FnOnce(*mut u8, usize) -> Result<(), E>,
    ) -> Result<Range, NotPinned<E>> {
        let over = |limit| NotPinned::Refused { asked_bytes, limit_bytes: Some(limit), errno: 0 };
        let refused = |Errno(errno)| NotPinned::Refused { asked_bytes, limit_bytes: None, errno };
        let memory_bytes = os::host().limits.memory_bytes;
        if memory_bytes != 0 && asked_bytes > memory_bytes {
            return Err(over(memory_bytes));
        }
        let bytes = os::round_up(asked_bytes, HUGE_PAGE_BYTES).map_err(refused)?;
        let zone = arena.huge_zone();
        let pages = bytes / zone.page_bytes();
        let table = Table::new(Bitmap::words_for(pages)).map_err(refused)?;
        let used = Bitmap::new(table.all());
        let runs = Runs::new(used).map_err(refused)?;
        runs.try_claim(pages, used.len() - pages);
        let claimed = zone.claim(bytes, HUGE_PAGE_BYTES, Contents::Zeroed, Limit::Cap, || None);
        let start = claimed.map_err(|shortage| match shortage {
            Shortage::OverBudget => over(accounts::max_bytes()),
            Shortage::Full | Shortage::Refused => refused(Errno(0)),
        })?;
        // Do this before the driver sees the range. Otherwise a fork could copy pages that the device reads.
        // SAFETY: the range was claimed above, and lies within one mapping of the arena.
        let is_left_out_of_children = unsafe { os::leave_out_of_children(start.as_ptr(), bytes) }.is_ok();
        let range = Range {
            start,
            bytes,
            page_bytes: zone.page_bytes(),
            runs,
            _used: table,
            fresh_from: AtomicUsize::new(0),
            in_use_bytes: AtomicUsize::new(0),
            peak_bytes: AtomicUsize::new(0),
            generation: os::process_generation(),
            is_left_out_of_children,
        };
        // SAFETY: the run was claimed above, and no other thread knows it.
        let resident = unsafe { zone.prefault_on_threads(start, bytes, arena.config().threads) };
        let registered = resident.map_err(refused).and_then(|()| {
            register(start.as_ptr(), bytes).map_err(|error| NotPinned::NotRegistered { asked_bytes, error })
        });
        registered.inspect_err(|_| _ = range.return_to_zone(arena)).map(|()| range)
    }

    /// Sets the smallest request that the range serves, in bytes. Each request takes whole pages of 256 KiB.
    pub fn min_bytes(self, bytes: usize) -> Self {
        gate::set_pinned_min_bytes(bytes.max(self.range.page_bytes));
        self
    }

    /// Returns the address of the range.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.range.start.as_ptr()
    }

    /// Returns the length of the range, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.range.bytes
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let (range, unregister) = (self.range, self.unregister.take());
        // In a child, and for a range that stays registered, `unregister` is not dropped: it may own the driver's context.
        let (Some(arena), Some(_)) = (arena::get(), own()) else { return forget(unregister) };
        // A thread that has read the old threshold may still claim pages. If this thread claims all of them, the other thread finds none.
        // If the other thread was faster, it owns a page, and the range stays.
        gate::set_pinned_min_bytes(usize::MAX);
        if !range.runs.try_claim(0, range.pages(range.bytes)) {
            let alive_bytes = range.in_use_bytes.load(Ordering::Relaxed);
            os::warn(format_args!(
                "{alive_bytes} bytes of the pinned range of {} are alive: it stays registered, and serves no more requests",
                range.bytes
            ));
            return forget(unregister);
        }
        if unregister.is_some_and(|unregister| unregister(self.as_ptr(), range.bytes)) {
            gate::set_pinned(range.start.as_ptr(), 0);
            RANGE.store(null_mut(), Ordering::Release);
            if range.return_to_zone(arena) {
                IS_TAKEN.store(false, Ordering::Release);
            }
        }
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned").field("at", &self.as_ptr()).field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

/// Returns whether an address is in the page-locked range of this process.
#[must_use]
pub fn contains<T: ?Sized>(at: *const T) -> bool {
    gate::is_pinned(at.cast()) && own().is_some()
}

/// Locks memory with mlock(2), so that it is never written to swap. Pass this to [`Pinned::new`] on hosts without a GPU.
///
/// # Errors
/// If the system refuses. The error contains the number of bytes, and the limit `RLIMIT_MEMLOCK`, which is the usual reason.
pub fn lock(at: *mut u8, bytes: usize) -> io::Result<()> {
    // SAFETY: the call changes no contents, wherever the address points.
    unsafe { os::lock(at, bytes) }.map_err(|errno| {
        // The kernel may have locked part of the range.
        // SAFETY: as above.
        let _ = unsafe { os::unlock(at, bytes) };
        not_locked(bytes, errno)
    })
}

/// Unlocks memory that [`lock`] locked.
///
/// # Errors
/// If the system refuses.
pub fn unlock(at: *mut u8, bytes: usize) -> io::Result<()> {
    // SAFETY: as in `lock`.
    unsafe { os::unlock(at, bytes) }.map_err(|errno| not_locked(bytes, errno))
}

fn not_locked(bytes: usize, Errno(errno): Errno) -> io::Error {
    let (error, limit) = (io::Error::from_raw_os_error(errno), os::lockable_bytes());
    io::Error::new(
        error.kind(),
        format!("can't lock or unlock {bytes} bytes: {error}; RLIMIT_MEMLOCK is {limit} bytes"),
    )
}

/// The reason why [`Pinned::new`] failed. The process is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotPinned<E> {
    /// The process already has a range, or was forked from a process that had one.
    Taken,
    /// There is no arena (`ZK_ALLOC=off`, or the system refused address space).
    NoArena,
    /// The range needs more memory than a limit allows, or than the system grants.
    Refused {
        /// The requested size of the range, in bytes.
        asked_bytes: usize,
        /// The limit that the range would exceed, in bytes: `ZK_ALLOC_MAX_BYTES`, or the memory of the machine or the control group; `None`
        /// if the system refused.
        limit_bytes: Option<usize>,
        /// The system's error number; 0 if it is not known, or if the system was not asked.
        errno: i32,
    },
    /// The driver did not register the range.
    NotRegistered {
        /// The requested size of the range, in bytes.
        asked_bytes: usize,
        /// The error that `register` returned.
        error: E,
    },
}

impl<E: fmt::Display> fmt::Display for NotPinned<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken => write!(f, "this process has or inherited a pinned range, and can have only one"),
            Self::NoArena => write!(f, "there is no arena to pin a range in"),
            Self::Refused { asked_bytes, limit_bytes: Some(limit), .. } => {
                write!(f, "{asked_bytes} bytes to pin are more than the limit of {limit} bytes")
            }
            Self::Refused { asked_bytes, errno, .. } => {
                write!(f, "the system refused {asked_bytes} bytes to pin (errno {errno})")
            }
            Self::NotRegistered { asked_bytes, error } => {
                write!(f, "{asked_bytes} bytes could not be registered: {error}")
            }
        }?;
        f.write_str("; nothing was pinned")
    }
}

impl<E: fmt::Debug + fmt::Display> Error for NotPinned<E> {}
