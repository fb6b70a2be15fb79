//! `ZkAllocator`: the `GlobalAlloc` in front of the arena and a backing allocator.
#![allow(unsafe_code, reason = "implements GlobalAlloc")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::ptr::{NonNull, copy_nonoverlapping, null_mut};

use crate::arena::{self, Contents, Unserved};
use crate::classes::Class;
use crate::config::{self, Settings};
use crate::phase::{self, Participants};
#[cfg(feature = "profile")]
use crate::profile;
use crate::{accounts, background, escape, gate, observe, os, pinned, retain, tuning};

/// An allocator for provers. While a [phase](crate::phase()) is open, the arena serves requests. A backing allocator serves requests
/// outside of phases, and those that the arena can't serve. The backing allocator is [`System`], unless the program sets another.
///
/// ```
/// use zk_alloc::ZkAllocator;
///
/// #[global_allocator]
/// static ALLOC: ZkAllocator = ZkAllocator;
///
/// let proof = zk_alloc::phase(|| vec![7u8; 1 << 20]);
/// assert_eq!(proof[1 << 19], 7); // outlives its phase: memory is reused only after it was freed
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ZkAllocator<A = System> {
    backing: A,
    mode: Mode,
    participants: Participants,
    settings: Settings,
}

/// [`struct@ZkAllocator`] over [`System`], so that `static ALLOC: ZkAllocator = ZkAllocator;` works as in zk-alloc 0.0.9.
#[allow(non_upper_case_globals, reason = "the name that users of zk-alloc 0.0.9 wrote")]
pub const ZkAllocator: ZkAllocator = ZkAllocator::with_backing(System);

/// When the arena serves requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// While a phase is open.
    #[default]
    Scoped,
    /// Always, without phases. Resident memory follows the peak live size of the last few seconds ([`Retain::For`], `ZK_ALLOC_RETAIN_FOR`).
    /// The program's threads purge free memory beyond that when they request memory. A fully idle process requests no memory, so its free
    /// memory is purged only if the [background thread](crate::start_background_thread) runs.
    ///
    /// [`Retain::For`]: crate::Retain::For
    Resident,
}

impl ZkAllocator<System> {
    /// Returns an allocator that needs no phases. The arena serves every request, and purges free memory over time ([`Mode::Resident`]).
    ///
    /// ```
    /// use zk_alloc::ZkAllocator;
    ///
    /// #[global_allocator]
    /// static ALLOC: ZkAllocator = ZkAllocator::resident();
    ///
    /// let buffer = vec![1u8; 1 << 20]; // no phase is open
    /// assert!(zk_alloc::stats().live_bytes >= buffer.len());
    /// ```
    #[must_use]
    pub const fn resident() -> Self {
        ZkAllocator.mode(Mode::Resident)
    }
}

impl<A> ZkAllocator<A> {
    /// Puts the arena in front of `backing`. The backing allocator serves all requests outside of phases, and those for which the arena has
    /// no memory.
    ///
    /// ```
    /// # use std::alloc::System as Jemalloc; // or use tikv_jemallocator::Jemalloc;
    /// use zk_alloc::ZkAllocator;
    ///
    /// #[global_allocator]
    /// static ALLOC: ZkAllocator<Jemalloc> = ZkAllocator::with_backing(Jemalloc);
    /// # zk_alloc::phase(|| drop(vec![1u8; 1 << 20]));
    /// ```
    #[must_use]
    pub const fn with_backing(backing: A) -> Self {
        Self { backing, mode: Mode::Scoped, participants: Participants::All, settings: Settings::new() }
    }

    /// Sets the mode.
    ///
    /// ```
    /// use zk_alloc::{Mode, ZkAllocator};
    ///
    /// #[global_allocator]
    /// static ALLOC: ZkAllocator = ZkAllocator.mode(Mode::Resident); // `ZkAllocator::resident()` is the same
    /// # drop(vec![1u8; 1 << 20]);
    /// ```
    #[must_use]
    pub const fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the threads that the arena serves.
    ///
    /// ```
    /// use zk_alloc::{Participants, ZkAllocator};
    ///
    /// #[global_allocator]
    /// static ALLOC: ZkAllocator = ZkAllocator.participants(Participants::Pool);
    /// # zk_alloc::phase(|| drop(vec![1u8; 1 << 20]));
    /// ```
    #[must_use]
    pub const fn participants(mut self, participants: Participants) -> Self {
        self.participants = participants;
        self
    }

    /// Sets the program's settings. The environment overrides them. See [`Settings`].
    ///
    /// ```
    /// use zk_alloc::{Settings, ZkAllocator};
    ///
    /// #[global_allocator]
    /// static ALLOC: ZkAllocator = ZkAllocator.settings(Settings::new().retain_bytes(1 << 30));
    /// # zk_alloc::phase(|| drop(vec![1u8; 1 << 20]));
    /// ```
    #[must_use]
    pub const fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Returns whether the arena serves this thread's requests now.
    #[inline]
    fn is_active(&self) -> bool {
        let is_participant = || self.participants == Participants::All || phase::is_in_pool();
        self.mode == Mode::Resident || (gate::is_any_phase_open() && is_participant())
    }
}

impl<A: GlobalAlloc> ZkAllocator<A> {
    /// Takes a block from this thread's cache, if the arena currently serves all threads. The caller must notify the observers.
    #[inline(always)]
    fn try_cached(&self, layout: Layout) -> Option<NonNull<u8>> {
        let is_active =
            self.mode == Mode::Resident || (self.participants == Participants::All && gate::is_any_phase_open());
        let is_plain = is_active && layout.size() >= gate::min_bytes();
        if is_plain { arena::alloc_cached(Class::of_usual(layout.size(), layout.align())?) } else { None }
    }

    /// Serves a request as [`GlobalAlloc::alloc`] or `alloc_zeroed` does. It is a separate function so that those two need not save
    /// registers on their fast path.
    ///
    /// # Safety
    /// As for [`GlobalAlloc::alloc`].
    #[inline(never)]
    unsafe fn alloc_any(&self, layout: Layout, contents: Contents) -> *mut u8 {
        let layout = not_empty(layout);
        match self.try_arena(layout, contents) {
            Ok(at) => return at.as_ptr(),
            Err(Unserved::Fails) => return null_mut(),
            Err(Unserved::BackingServes) => {}
        }
        let at = match contents {
            // SAFETY: upheld by the caller.
            Contents::Zeroed => unsafe { self.backing.alloc_zeroed(layout) },
            // SAFETY: upheld by the caller.
            Contents::Any => unsafe { self.backing.alloc(layout) },
        };
        observe::backing_allocated(at, layout.size());
        at
    }

    /// Frees memory as [`GlobalAlloc::dealloc`] does.
    ///
    /// # Safety
    /// As for [`GlobalAlloc::dealloc`].
    #[inline(never)]
    unsafe fn dealloc_any(&self, ptr: *mut u8, layout: Layout) {
        let layout = not_empty(layout);
        match arena::of(ptr) {
            // SAFETY: upheld by the caller: `ptr` came from this allocator with this layout, and is in the arena.
            Some((arena, at)) => unsafe { free(arena, at, layout.size()) },
            None => {
                observe::will_free(ptr);
                // SAFETY: upheld by the caller; memory outside of the arena came from `backing`.
                unsafe { self.backing.dealloc(ptr, layout) }
            }
        }
    }

    /// Does the start-up work, before the first request is served.
    #[cold]
    fn begin(&self, in_signal_handler: bool) {
        #[cfg(feature = "profile")]
        profile::start_if_set();
        if !in_signal_handler {
            self.warm_up_backing();
            retain::release_on_signal_if_set();
        }
        if self.mode == Mode::Resident {
            retain::follow_live();
            // In scoped mode, the first phase starts the background thread.
            if !in_signal_handler {
                background::start_if_set();
            }
        }
    }

    /// Prepares glibc's malloc once, before the arena serves its first request.
    ///
    /// First, this trims glibc's heap. Until now, large buffers reused the free chunks there. From now on the arena serves large buffers,
    /// so these chunks would stay resident but unused.
    ///
    /// Then it allocates and frees one large buffer. After freeing a mapped chunk, glibc keeps twice its size at the top of the heap
    /// (`M_MMAP_THRESHOLD` in mallopt(3)). Otherwise it would trim the heap at every free, and the small allocations of each proof would
    /// take new page faults. With other backing allocators, the buffer makes no difference.
    #[cold]
    fn warm_up_backing(&self) {
        os::trim_heap();
        if let Ok(layout) = Layout::from_size_align(tuning::malloc_warmup_bytes().max(1), 1) {
            // SAFETY: the size is not 0.
            let at = black_box(unsafe { self.backing.alloc(layout) });
            if !at.is_null() {
                // SAFETY: allocated one line above, with this layout.
                unsafe { self.backing.dealloc(at, layout) };
            }
        }
    }

    /// Allocates from the arena, if it serves this request and has memory.
    ///
    /// # Errors
    /// If the arena does not serve the request. The error shows whether the request fails or goes to the backing allocator.
    #[inline(always)]
    fn try_arena(&self, layout: Layout, contents: Contents) -> Result<NonNull<u8>, Unserved> {
        let min_bytes = gate::min_bytes();
        let is_below = layout.size() < min_bytes && (min_bytes != gate::UNKNOWN || self.is_below_when_first(layout));
        if is_below || !self.is_active() || (gate::is_observed() && escape::is_own_request()) {
            // Decay ticks normally run at the end of the arena's slow paths, which this request does not reach.
            gate::tick();
            return Err(Unserved::BackingServes);
        }
        if let Some(arena) = arena::open_to_serve(&self.settings, |in_signal_handler| self.begin(in_signal_handler)) {
            let (size, align) = (layout.size(), layout.align());
            let is_for_pinned = size >= gate::pinned_min_bytes();
            let pinned = if is_for_pinned { pinned::alloc(arena, size, align, contents) } else { None };
            let served = pinned.map_or_else(|| arena.alloc(size, align, contents), Ok);
            accounts::check_memory_limit();
            if served != Err(Unserved::BackingServes) {
                return served.inspect(|&at| _ = observe::allocated(at, size));
            }
        }
        // The arena has no memory for this request, or there is no arena.
        accounts::overflowed(layout.size());
        Err(Unserved::BackingServes)
    }

    /// Initialises the settings at the first request. Returns whether the request is below the threshold, or the threshold is not known
    /// yet. This is a separate function, without a call into the arena: if there were two such calls, the compiler would inline neither.
    #[cold]
    #[inline(never)]
    fn is_below_when_first(&self, layout: Layout) -> bool {
        !config::init_settings(&self.settings) || layout.size() < gate::min_bytes()
    }
}

/// Returns the layout with a size of at least one byte. `GlobalAlloc` forbids empty layouts, but other allocators tolerate them. An empty
/// run would share its address with the next run.
#[inline(always)]
fn not_empty(layout: Layout) -> Layout {
    // SAFETY: a size of one byte is valid with any alignment of a layout: rounded up to it, the size stays below `isize::MAX`.
    unsafe { Layout::from_size_align_unchecked(layout.size().max(1), layout.align()) }
}

/// Frees memory of the arena.
///
/// # Safety
/// As for [`arena::Arena::dealloc`].
#[inline(always)]
unsafe fn free(arena: &'static arena::Arena, at: NonNull<u8>, size: usize) {
    observe::will_free(at.as_ptr());
    // SAFETY: upheld by the caller.
    unsafe { arena.dealloc(at, size) };
}

/// Resizes an allocation of the arena, in place or by moving it, and returns its address. Returns `None`, and changes nothing, if the
/// caller has to allocate new memory and copy the contents.
///
/// # Safety
/// As for [`arena::Arena::resize`]. If this returns another address, the caller must not use the old one afterwards.
#[inline(always)]
pub(crate) unsafe fn resize(
    arena: &'static arena::Arena,
    at: NonNull<u8>,
    old_size: usize,
    new_size: usize,
    align: usize,
) -> Option<NonNull<u8>> {
    // SAFETY: upheld by the caller.
    if unsafe { arena.resize(at, old_size, new_size, align) } {
        accounts::check_memory_limit();
        observe::resized(at, new_size);
        return Some(at);
    }
    let freed = || observe::will_free(at.as_ptr());
    // SAFETY: upheld by the caller.
    let moved = unsafe { arena.grow_elsewhere(at, old_size, new_size, align, freed) }?;
    accounts::check_memory_limit();
    observe::allocated(moved, new_size);
    Some(moved)
}

// SAFETY: memory comes from the arena or from `backing`, and is freed by the one that it came from. The address tells the two apart,
// because the arena keeps its address range as long as the process lives. The arena never hands out memory that is in use (see
// `arena::pages::zone`). Every block has at least the layout's size and alignment. Nothing here unwinds.
unsafe impl<A: GlobalAlloc> GlobalAlloc for ZkAllocator<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.try_cached(layout) {
            Some(at) => observe::allocated(at, layout.size()),
            // SAFETY: upheld by the caller.
            None => unsafe { self.alloc_any(layout, Contents::Any) },
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match self.try_cached(layout) {
            Some(at) => {
                // SAFETY: this thread just took the block from its cache, and the block is at least as long as the layout.
                unsafe { at.write_bytes(0, layout.size()) };
                observe::allocated(at, layout.size())
            }
            // SAFETY: upheld by the caller.
            None => unsafe { self.alloc_any(layout, Contents::Zeroed) },
        }
    }

    #[inline]
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        if !gate::is_observed() || !observe::may_concern(ptr) {
            if let Some((arena, at)) = arena::near(ptr) {
                // SAFETY: upheld by the caller: `ptr` came from this allocator with this layout. A block in the region belongs to the
                // arena.
                if unsafe { arena.put_cached(at, layout.size(), layout.align()) } {
                    return;
                }
            }
        }
        // SAFETY: upheld by the caller.
        unsafe { self.dealloc_any(ptr, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let (layout, new_size) = (not_empty(layout), new_size.max(1));
        let Some((arena, at)) = arena::of(ptr) else {
            if new_size > layout.size() && layout.size() <= tuning::migrate_max_bytes() {
                // SAFETY: upheld by the caller: `new_size` rounded up to the alignment does not overflow.
                let grown = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
                let new = self.try_arena(grown, Contents::Any);
                if new == Err(Unserved::Fails) {
                    return null_mut();
                }
                if let Ok(new) = new {
                    // SAFETY: both allocations have at least the old length, and new memory overlaps no live memory.
                    unsafe { copy_nonoverlapping(ptr, new.as_ptr(), layout.size()) };
                    observe::will_free(ptr);
                    // SAFETY: `ptr` came from `backing` with this layout, and is not used any more.
                    unsafe { self.backing.dealloc(ptr, layout) };
                    return new.as_ptr();
                }
            }
            observe::will_free(ptr);
            // SAFETY: upheld by the caller; `ptr` came from `backing`.
            let moved = unsafe { self.backing.realloc(ptr, layout, new_size) };
            let (at, size) = if moved.is_null() { (ptr, layout.size()) } else { (moved, new_size) };
            observe::backing_allocated(at, size);
            return moved;
        };
        // SAFETY: upheld by the caller: `at` came from the arena with this layout. If the memory moves, its old address is not used
        // afterwards.
        if let Some(resized) = unsafe { resize(arena, at, layout.size(), new_size, layout.align()) } {
            return resized.as_ptr();
        }
        // SAFETY: upheld by the caller, as above.
        let moved = unsafe { self.alloc(Layout::from_size_align_unchecked(new_size, layout.align())) };
        if moved.is_null() {
            if new_size > layout.size() {
                return null_mut();
            }
            // Shrinking never fails: the memory stays where it is.
            // SAFETY: upheld by the caller, as above.
            unsafe { arena.shrink_in_place(at, layout.size(), new_size) };
            observe::resized(at, new_size);
            return ptr;
        }
        // SAFETY: both allocations have at least the smaller length, and new memory overlaps no live memory.
        unsafe { arena.copy(at, moved, layout.size().min(new_size)) };
        // SAFETY: upheld by the caller: the old memory is not used any more.
        unsafe { free(arena, at, layout.size()) };
        moved
    }
}
