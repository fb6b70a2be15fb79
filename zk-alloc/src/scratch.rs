//! `Scratch`: a bump allocator with a mapping of its own, whose memory is freed all at once.
#![allow(unsafe_code, reason = "makes values in a mapping")]

use std::alloc::Layout;
use std::cell::Cell;
use std::error::Error;
use std::mem::{MaybeUninit, needs_drop};
use std::ptr::NonNull;
use std::{fmt, slice};

#[cfg(feature = "allocator-api2")]
use allocator_api2::alloc::{AllocError, Allocator};

use crate::arena::HugeAdvice;
use crate::config;
use crate::os::{self, Errno, HUGE_PAGE_BYTES, Mapping};
use crate::secret::wipe;

/// The smallest alignment of arrays, in bytes: the size of a cache line and of an AVX-512 vector.
const LINE_BYTES: usize = 64;

/// Scratch memory of fixed capacity. Allocating moves a pointer, [`reset`](Self::reset) frees everything at once, and the pages stay
/// resident for the next round. Use it for buffers whose lifetime one function controls: the layers of an FFT, the rounds of a folding, the
/// columns of one trace after another.
///
/// ```
/// let mut scratch = zk_alloc::Scratch::with_capacity(1 << 20);
/// for proof in 0..3u64 {
///     let trace = scratch.alloc_array(1 << 10, |row| row as u64 + proof);
///     let squares = scratch.alloc_array(trace.len(), |row| trace[row] * trace[row]);
///     assert_eq!(squares[7], (7 + proof) * (7 + proof));
///     scratch.reset(); // the same memory, for the next proof
/// }
/// ```
///
/// It needs no [`ZkAllocator`](struct@crate::ZkAllocator) and no phase. Its memory is one mapping of its own, whichever global allocator is
/// installed (on non-Unix systems, a block of the system's allocator). A page takes memory when it is first touched, so a generous capacity
/// costs only address space (but under `vm.overcommit_memory=2`, all of it counts as committed memory). A scratch of 2 MiB or more asks for
/// huge pages, unless `ZK_ALLOC_THP` is `never`, or is `auto` and the allocator avoids huge pages on this host.
///
/// # Live values are never overwritten
///
/// Values in a scratch borrow it, and [`reset`](Self::reset), [`wipe`](Self::wipe) and [`release`](Self::release) borrow it exclusively. A
/// reset while a value is still in use does not compile:
///
/// ```compile_fail,E0502
/// let mut scratch = zk_alloc::Scratch::with_capacity(1 << 20);
/// let trace = scratch.alloc_array(8, |row| row);
/// scratch.reset();
/// assert_eq!(trace[7], 7); // borrowed past the reset
/// ```
///
/// A scratch drops no values, so code that puts a type with a destructor into it does not compile either:
///
/// ```compile_fail,E0080
/// let scratch = zk_alloc::Scratch::with_capacity(1 << 20);
/// scratch.alloc(String::from("would never be freed"));
/// ```
///
/// # Threads
///
/// A scratch may move to another thread, but two threads may not allocate from it at once (`Send`, not `Sync`): give each its
/// own. Threads may share memory that it handed out, for example in parallel iterators.
///
/// ```compile_fail,E0277
/// let scratch = zk_alloc::Scratch::with_capacity(1 << 20);
/// std::thread::scope(|scope| {
///     scope.spawn(|| scratch.alloc(1));
/// });
/// ```
///
/// # When it is full
///
/// The capacity is fixed. There is no second chunk, so all memory is contiguous, and no request silently goes elsewhere. A request that
/// does not fit panics, like a `Vec` whose capacity overflows. The message contains the bytes requested and the bytes left. Each method has
/// a `try_` twin that returns an error instead.
///
/// ```
/// let scratch = zk_alloc::Scratch::with_capacity(4096);
/// let error = scratch.try_alloc_array(1 << 20, |_| 0u64).unwrap_err();
/// assert_eq!((error.asked_bytes, error.left_bytes), (8 << 20, scratch.capacity_bytes()));
/// ```
///
/// # Collections
///
/// With the feature `allocator-api2`, `&Scratch` is an `allocator_api2::alloc::Allocator`: use it for that crate's `Vec::new_in(&scratch)`,
/// or for hashbrown's maps. The most recent block grows in place, and is freed when it is dropped. All other blocks are freed by the reset.
pub struct Scratch {
    // Bytes at `used` and beyond are free. Bytes at `written` and beyond are zero, unless they are handed out now.
    memory: Mapping,
    /// Bytes from the start that are handed out, including the gaps that alignment left.
    used: Cell<usize>,
    /// The highest value of `used` since the last wipe or release, as of the last resize or reset.
    written: Cell<usize>,
}

#[allow(clippy::mut_from_ref, reason = "each call hands out memory that nobody else has")]
impl Scratch {
    /// Creates a scratch with a capacity of at least `bytes`, in whole pages.
    ///
    /// # Panics
    /// If the system refuses memory. [`try_with_capacity`](Self::try_with_capacity) returns an error instead.
    #[must_use]
    #[track_caller]
    pub fn with_capacity(bytes: usize) -> Self {
        or_panic(Self::try_with_capacity(bytes))
    }

    /// Creates a scratch with a capacity of at least `bytes`, in whole pages.
    ///
    /// # Errors
    /// If the system refuses memory.
    pub fn try_with_capacity(bytes: usize) -> Result<Self, MemoryRefused> {
        let refused = |Errno(errno)| MemoryRefused { asked_bytes: bytes, errno };
        // Round to whole huge pages, because Linux from 6.7 on places such mappings on a huge-page boundary.
        let page = if bytes >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { os::page_bytes() };
        let memory = os::map_zeroed(os::round_up(bytes, page).map_err(refused)?).map_err(refused)?;
        let (at, len) = (memory.start().as_ptr(), memory.len());
        // If the kernel refuses, the scratch is only slower.
        let _ = match HugeAdvice::of(config::huge_pages()) {
            // SAFETY: the range is the mapping made above.
            HugeAdvice::Forbid => unsafe { os::forbid_huge(at, len) },
            // SAFETY: as above.
            HugeAdvice::Ask if len >= HUGE_PAGE_BYTES => unsafe { os::advise_huge(at, len) },
            HugeAdvice::Ask | HugeAdvice::Leave => Ok(()),
        };
        Ok(Self { memory, used: Cell::new(0), written: Cell::new(0) })
    }

    /// Moves a value into the scratch.
    ///
    /// # Panics
    /// If it does not fit.
    #[track_caller]
    pub fn alloc<T>(&self, value: T) -> &mut T {
        or_panic(self.try_alloc(value))
    }

    /// Moves a value into the scratch.
    ///
    /// # Errors
    /// If it does not fit. The value is lost in that case.
    pub fn try_alloc<T>(&self, value: T) -> Result<&mut T, ScratchExhausted> {
        let slots = self.slots(Layout::new::<T>(), 1, Self::claim)?;
        Ok(slots[0].write(value))
    }

    /// Allocates `len` values, each made from its index, aligned to 64 bytes or more.
    ///
    /// # Panics
    /// If they do not fit.
    #[track_caller]
    pub fn alloc_array<T>(&self, len: usize, init: impl FnMut(usize) -> T) -> &mut [T] {
        or_panic(self.try_alloc_array(len, init))
    }

    /// Allocates `len` values, each made from its index, aligned to 64 bytes or more.
    ///
    /// # Errors
    /// If they do not fit.
    pub fn try_alloc_array<T>(
        &self,
        len: usize,
        mut init: impl FnMut(usize) -> T,
    ) -> Result<&mut [T], ScratchExhausted> {
        let slots = self.try_alloc_array_uninit(len)?;
        // If `init` panics, only the memory is lost until the reset, because `T` needs no drop.
        for (index, slot) in slots.iter_mut().enumerate() {
            slot.write(init(index));
        }
        // SAFETY: each slot was written.
        Ok(unsafe { all_written(slots) })
    }

    /// Copies `source` into the scratch, aligned to 64 bytes or more.
    ///
    /// # Panics
    /// If it does not fit.
    #[track_caller]
    pub fn alloc_array_copy<T: Copy>(&self, source: &[T]) -> &mut [T] {
        or_panic(self.try_alloc_array_copy(source))
    }

    /// Copies `source` into the scratch, aligned to 64 bytes or more.
    ///
    /// # Errors
    /// If it does not fit.
    pub fn try_alloc_array_copy<T: Copy>(&self, source: &[T]) -> Result<&mut [T], ScratchExhausted> {
        let slots = self.try_alloc_array_uninit(source.len())?;
        for (slot, value) in slots.iter_mut().zip(source) {
            slot.write(*value);
        }
        // SAFETY: there are as many values as slots, so each slot was written.
        Ok(unsafe { all_written(slots) })
    }

    /// Allocates room for `len` values, aligned to 64 bytes or more. Write each value before you read it. For example, several threads can
    /// fill the array with the output of a transform.
    ///
    /// # Panics
    /// If they do not fit.
    #[track_caller]
    pub fn alloc_array_uninit<T>(&self, len: usize) -> &mut [MaybeUninit<T>] {
        or_panic(self.try_alloc_array_uninit(len))
    }

    /// Allocates room for `len` values, aligned to 64 bytes or more. Write each value before you read it.
    ///
    /// # Errors
    /// If they do not fit.
    pub fn try_alloc_array_uninit<T>(&self, len: usize) -> Result<&mut [MaybeUninit<T>], ScratchExhausted> {
        self.slots(self.array_layout::<T>(len)?, len, Self::claim)
    }

    /// Allocates room for `len` values, aligned to 64 bytes or more, with all bytes zero. Only bytes that were used since the scratch was
    /// made or last [wiped](Self::wipe) or [released](Self::release) have to be zeroed; all others are zero already.
    ///
    /// Zero bytes are not a valid value of every type. The caller asserts that they are, as for [`Box::new_zeroed_slice`]:
    ///
    /// ```
    /// let scratch = zk_alloc::Scratch::with_capacity(1 << 20);
    /// let room = scratch.alloc_array_zeroed::<u64>(1 << 10);
    /// // SAFETY: zero bytes are the number 0.
    /// let numbers = unsafe { room.assume_init_mut() };
    /// assert_eq!(numbers.iter().sum::<u64>(), 0);
    /// ```
    ///
    /// # Panics
    /// If they do not fit.
    #[track_caller]
    pub fn alloc_array_zeroed<T>(&self, len: usize) -> &mut [MaybeUninit<T>] {
        or_panic(self.try_alloc_array_zeroed(len))
    }

    /// Allocates room for `len` values, with all bytes zero: see [`alloc_array_zeroed`](Self::alloc_array_zeroed).
    ///
    /// # Errors
    /// If they do not fit.
    pub fn try_alloc_array_zeroed<T>(&self, len: usize) -> Result<&mut [MaybeUninit<T>], ScratchExhausted> {
        self.slots(self.array_layout::<T>(len)?, len, Self::claim_zeroed)
    }

    /// Frees everything. Pages stay resident and keep their contents for the next round.
    pub fn reset(&mut self) {
        // `&mut`: nothing borrows from this scratch any more, so its addresses may be handed out again.
        self.set_used(0);
    }

    /// Frees everything, and zeroes all memory that was handed out since the scratch was made or last wiped. The compiler does not remove
    /// these writes. Pages stay resident. Use it for secrets that must not outlive their round. Dropping a scratch does not zero its pages.
    /// For more protection, use a [`SecretBuf`](crate::SecretBuf).
    pub fn wipe(&mut self) {
        self.reset();
        let start = self.memory.start().cast::<MaybeUninit<u8>>().as_ptr();
        // SAFETY: `written` is within the mapping, and after a reset its bytes are ours alone.
        wipe(unsafe { slice::from_raw_parts_mut(start, self.written.get()) });
        self.written.set(0);
    }

    /// Frees everything, and purges the pages. If the system refuses (pages locked by `mlockall`, non-Unix platforms), they stay.
    pub fn release(&mut self) {
        self.reset();
        // SAFETY: the range is our mapping, whose contents are not needed after a reset.
        let purged = unsafe { os::discard(self.memory.start().as_ptr(), self.memory.len()) };
        // If the kernel refuses, the contents stay, and `claim_zeroed` zeroes them.
        if purged.is_ok() {
            self.written.set(0);
        }
    }

    /// Returns the bytes that are handed out, including the gaps that alignment left.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.used.get()
    }

    /// Returns the bytes that can be handed out between two resets: the requested capacity, in whole pages (whole huge pages from 2 MiB
    /// on).
    #[must_use]
    pub fn capacity_bytes(&self) -> usize {
        self.memory.len()
    }

    fn array_layout<T>(&self, len: usize) -> Result<Layout, ScratchExhausted> {
        let layout = Layout::array::<T>(len).and_then(|layout| layout.align_to(LINE_BYTES));
        layout.map_err(|_| self.exhausted(len.saturating_mul(size_of::<T>()), align_of::<T>().max(LINE_BYTES)))
    }

    /// Allocates room for `len` values in the bytes that `claim` finds for their `layout`.
    #[inline]
    fn slots<T>(
        &self,
        layout: Layout,
        len: usize,
        claim: fn(&Self, usize, usize) -> Result<NonNull<u8>, ScratchExhausted>,
    ) -> Result<&mut [MaybeUninit<T>], ScratchExhausted> {
        const { assert!(!needs_drop::<T>(), "a scratch drops nothing, so it can't hold types that need a drop") };
        let at = claim(self, layout.size(), layout.align())?;
        // SAFETY: the bytes have the size and alignment of `layout`, which has room for `len` values. They are not handed out again before
        // a reset, and by then this borrow must have ended.
        Ok(unsafe { slice::from_raw_parts_mut(at.cast().as_ptr(), len) })
    }

    // The bump pointer. The methods below only handle addresses; those above decide who owns the memory.

    /// Claims `size` free bytes, aligned to `align`, which is a power of two.
    #[inline]
    fn claim(&self, size: usize, align: usize) -> Result<NonNull<u8>, ScratchExhausted> {
        let base = self.memory.start();
        let offset = place(base.addr().get(), self.used.get(), self.capacity_bytes(), size, align);
        let offset = offset.ok_or_else(|| self.exhausted(size, align))?;
        self.used.set(offset + size);
        // SAFETY: `place` returns an offset within the capacity, which is the length of the mapping.
        Ok(unsafe { base.add(offset) })
    }

    /// Claims bytes as [`claim`](Self::claim) does, and zeroes them. Skips bytes that were not used since they were last zeroed.
    fn claim_zeroed(&self, size: usize, align: usize) -> Result<NonNull<u8>, ScratchExhausted> {
        let at = self.claim(size, align)?;
        let stale = self.written.get().saturating_sub(self.offset(at)).min(size);
        // SAFETY: `size` bytes were just claimed, and `stale` is at most that.
        unsafe { at.write_bytes(0, stale) };
        Ok(at)
    }

    /// Changes the length of a claim in place, and returns whether that was possible. The most recent claim can grow while there is room,
    /// and bytes that it gives up become free. Any other claim can only shrink, and bytes that it gives up stay unused until the reset. A
    /// length of 0 frees a claim.
    ///
    /// The caller must not use more than `new_size` bytes afterwards.
    #[cfg(feature = "allocator-api2")]
    fn resize(&self, at: NonNull<u8>, old_size: usize, new_size: usize) -> bool {
        let offset = self.offset(at);
        if offset + old_size != self.used.get() {
            return new_size <= old_size;
        }
        let fits = new_size <= self.capacity_bytes() - offset;
        if fits {
            self.set_used(offset + new_size);
        }
        fits
    }

    /// Returns the error for a request that does not fit.
    #[cold]
    fn exhausted(&self, asked_bytes: usize, align_bytes: usize) -> ScratchExhausted {
        let (used, capacity_bytes) = (self.used.get(), self.capacity_bytes());
        ScratchExhausted { asked_bytes, align_bytes, left_bytes: capacity_bytes - used, capacity_bytes }
    }

    fn offset(&self, at: NonNull<u8>) -> usize {
        at.addr().get() - self.memory.start().addr().get()
    }

    fn set_used(&self, used: usize) {
        self.written.set(self.written.get().max(self.used.get()));
        self.used.set(used);
    }
}

/// Collections in a scratch.
#[cfg(feature = "allocator-api2")]
impl Scratch {
    /// Claims a block for `layout`, aligned to at least a cache line, as arrays are.
    fn block(&self, layout: Layout, zeroed: bool) -> Result<NonNull<[u8]>, AllocError> {
        let (size, align) = (layout.size(), layout.align().max(LINE_BYTES));
        let at = if zeroed { self.claim_zeroed(size, align) } else { self.claim(size, align) };
        at.map(|at| NonNull::slice_from_raw_parts(at, size)).map_err(|_| AllocError)
    }

    /// Changes the layout of a block, in place or by copying its contents to a new block.
    ///
    /// # Safety
    /// `at` is a block with the layout `old`, and is not used afterwards if this succeeds.
    unsafe fn refit(&self, at: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if at.addr().get() % new.align() == 0 && self.resize(at, old.size(), new.size()) {
            return Ok(NonNull::slice_from_raw_parts(at, new.size()));
        }
        let moved = self.block(new, false)?;
        // SAFETY: both blocks are at least that long, and a new block overlaps no live memory.
        unsafe { at.copy_to_nonoverlapping(moved.cast(), old.size().min(new.size())) };
        Ok(moved)
    }
}

#[cfg(feature = "allocator-api2")]
// SAFETY: a block belongs to the caller until it is freed, or until a reset, which needs `&mut Scratch`: all copies of the reference are
// gone by then. All copies of a reference refer to the same scratch. Blocks don't move when the scratch does: they lie in its mapping.
unsafe impl Allocator for &Scratch {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        self.block(layout, false)
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        self.block(layout, true)
    }

    unsafe fn deallocate(&self, at: NonNull<u8>, layout: Layout) {
        self.resize(at, layout.size(), 0);
    }

    unsafe fn grow(&self, at: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: upheld by the caller.
        unsafe { self.refit(at, old, new) }
    }

    unsafe fn grow_zeroed(&self, at: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: upheld by the caller.
        let grown = unsafe { self.refit(at, old, new) }?;
        // SAFETY: the block is `new.size()` long, which is at least `old.size()` when growing.
        unsafe { grown.cast::<u8>().add(old.size()).write_bytes(0, new.size() - old.size()) };
        Ok(grown)
    }

    unsafe fn shrink(&self, at: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: upheld by the caller.
        unsafe { self.refit(at, old, new) }
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch")
            .field("used_bytes", &self.used_bytes())
            .field("capacity_bytes", &self.capacity_bytes())
            .finish()
    }
}

/// Finds the first `size` bytes aligned to `align` in `[base + used, base + capacity)`. Returns their offset from `base`.
fn place(base: usize, used: usize, capacity: usize, size: usize, align: usize) -> Option<usize> {
    let offset = (base + used).checked_next_multiple_of(align)? - base;
    (offset <= capacity && size <= capacity - offset).then_some(offset)
}

/// Returns the values in slots that were all written. (Slices have a method for this from Rust 1.93 on.)
///
/// # Safety
/// Each slot holds a value.
unsafe fn all_written<T>(slots: &mut [MaybeUninit<T>]) -> &mut [T] {
    // SAFETY: upheld by the caller; a `MaybeUninit` has the layout of its value.
    unsafe { slice::from_raw_parts_mut(slots.as_mut_ptr().cast(), slots.len()) }
}

/// Returns the value, or panics at the caller's line with the message of the error.
#[track_caller]
fn or_panic<T>(result: Result<T, impl fmt::Display>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// The name of [`Scratch`] in the crate zk-nalloc. In this crate, "arena" means something else: the memory that
/// [`ZkAllocator`](struct@crate::ZkAllocator) serves from.
pub type Arena = Scratch;

/// The error if the system refused memory for a [`Scratch`](crate::Scratch) or a [`SecretBuf`](crate::SecretBuf).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryRefused {
    /// The size of the request, in bytes.
    pub asked_bytes: usize,
    /// The system's error number. It is 0 if the system was not asked, because no address space can hold a request of this size.
    pub errno: i32,
}

impl fmt::Display for MemoryRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked_bytes, errno } = self;
        write!(f, "the system refused {asked_bytes} bytes of memory (errno {errno}); nothing was mapped")
    }
}

impl Error for MemoryRefused {}

/// The error if a [`Scratch`](crate::Scratch) has too little memory left for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScratchExhausted {
    /// The size of the request, in bytes; `usize::MAX` if it does not fit into a `usize`.
    pub asked_bytes: usize,
    /// The alignment of the request, in bytes. Padding for it takes some of the bytes that are left.
    pub align_bytes: usize,
    /// The number of bytes left in the scratch.
    pub left_bytes: usize,
    /// The capacity of the scratch, in bytes.
    pub capacity_bytes: usize,
}

impl fmt::Display for ScratchExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked_bytes, align_bytes, left_bytes, capacity_bytes } = self;
        write!(
            f,
            "a request for {asked_bytes} bytes (aligned to {align_bytes}) does not fit into a scratch with \
             {left_bytes} of {capacity_bytes} bytes left; nothing was allocated"
        )
    }
}

impl Error for ScratchExhausted {}
