//! The model: all live blocks, their addresses and their contents. Every call of the allocator goes through this module.
#![allow(unsafe_code, reason = "calls GlobalAlloc and looks at the memory that it returns")]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

/// Blocks of up to this size are written and checked whole. In longer blocks, only both ends and the starts of some pages are.
const FULL_BYTES: usize = 1 << 10;
/// Zeroed blocks of up to this size are checked whole, and so are one in 16 of those up to 4 MiB. In other zeroed blocks, only the words
/// that blocks write to are checked.
const FULL_ZEROES_BYTES: usize = 32 << 10;

/// A live block, which must be returned to its [`Heap`].
pub(crate) struct Block {
    at: NonNull<u8>,
    layout: Layout,
    id: u64,
}

// SAFETY: only the block owns its memory.
unsafe impl Send for Block {}

impl Block {
    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    fn size(&self) -> usize {
        self.layout.size()
    }
}

/// An allocator under test, and the model of its live blocks.
pub(crate) struct Heap<A> {
    alloc: A,
    /// The start and end addresses of every live block. It is `None` if only contents are checked, because the lock would synchronise the
    /// threads.
    intervals: Option<Lock<BTreeMap<usize, usize>>>,
    /// Whether every byte of a block is written, so the whole block is resident, and compared when the block is resized.
    written_whole: bool,
    live_bytes: AtomicUsize,
    next_id: AtomicU64,
}

impl<A: GlobalAlloc> Heap<A> {
    pub(crate) fn new(alloc: A, track_intervals: bool) -> Self {
        Self {
            alloc,
            intervals: track_intervals.then(Lock::default),
            written_whole: false,
            live_bytes: AtomicUsize::new(0),
            next_id: AtomicU64::new(1),
        }
    }

    /// Makes the heap write and compare every byte of a block, so the whole block is resident.
    #[allow(dead_code, reason = "each test binary uses its part")]
    pub(crate) fn written_whole(self) -> Self {
        Self { written_whole: true, ..self }
    }

    pub(crate) fn live_bytes(&self) -> usize {
        self.live_bytes.load(Ordering::Relaxed)
    }

    /// Allocates a block. Returns `None` if the allocator has no memory.
    pub(crate) fn alloc(&self, layout: Layout, zeroed: bool) -> Option<Block> {
        assert!(layout.size() > 0);
        // SAFETY: the layout is not empty.
        let at = unsafe { if zeroed { self.alloc.alloc_zeroed(layout) } else { self.alloc.alloc(layout) } };
        let block = Block { at: NonNull::new(at)?, layout, id: self.next_id.fetch_add(1, Ordering::Relaxed) };
        self.insert(&block);
        if zeroed {
            check_zeroes(&block);
        }
        self.stamp(&block);
        Some(block)
    }

    /// Resizes a block. Returns the unchanged block if the allocator has no memory.
    pub(crate) fn realloc(&self, mut block: Block, new_size: usize) -> Block {
        assert!(new_size > 0);
        let (old_at, old_size) = (block.at.addr().get(), block.size());
        check(&block, old_at, old_size, old_size);
        let kept = old_size.min(new_size);
        let before = self.written_whole.then(|| digest(&block, kept));
        self.remove(&block);
        // SAFETY: the block came from this allocator with this layout. The callers in `program` and `volume` pass a new size that is not 0
        // and is valid for a layout.
        let at = unsafe { self.alloc.realloc(block.at.as_ptr(), block.layout, new_size) };
        if let Some(at) = NonNull::new(at) {
            let layout = Layout::from_size_align(new_size, block.layout.align());
            (block.at, block.layout) = (at, layout.expect("a size that fits its alignment"));
        }
        self.insert(&block);
        check(&block, old_at, old_size, old_size.min(block.size()));
        let after = self.written_whole.then(|| digest(&block, kept));
        assert_eq!(before, after, "the contents of {:?} changed when it was resized", block.layout);
        self.stamp(&block);
        block
    }

    /// Checks the block's contents and frees it.
    pub(crate) fn free(&self, block: Block) {
        check(&block, block.at.addr().get(), block.size(), block.size());
        self.remove(&block);
        // SAFETY: the block came from this allocator with this layout, and is not used afterwards.
        unsafe { self.alloc.dealloc(block.at.as_ptr(), block.layout) };
    }

    fn stamp(&self, block: &Block) {
        if self.written_whole {
            // SAFETY: the block is alive, and this function owns it.
            unsafe { block.at.as_ptr().write_bytes(0xA5, block.size()) };
        }
        let at = block.at.as_ptr().cast::<u64>();
        for index in words(block.at.addr().get(), block.size()) {
            // SAFETY: `index` is that of a whole word within the block, which is alive and owned here.
            unsafe { at.add(index).write_unaligned(word(block.id, index)) };
        }
        let (rest, last) = (block.size() / 8, block.size() % 8);
        // SAFETY: these are the bytes after the last whole word of the block.
        unsafe { at.add(rest).cast::<u8>().copy_from(word(block.id, rest).to_le_bytes().as_ptr(), last) };
    }

    fn insert(&self, block: &Block) {
        let start = block.at.addr().get();
        assert!(start.is_multiple_of(block.layout.align()), "{start:#x} is not aligned for {:?}", block.layout);
        self.live_bytes.fetch_add(block.size(), Ordering::Relaxed);
        let Some(intervals) = &self.intervals else { return };
        let end = start + block.size();
        let overlapped = intervals.with(|live| {
            let below = live.range(..end).next_back().map(|(&other, &other_end)| (other, other_end));
            live.insert(start, end);
            below.filter(|&(_, other_end)| other_end > start)
        });
        if let Some((other, other_end)) = overlapped {
            panic!("{start:#x}..{end:#x} overlaps {other:#x}..{other_end:#x}, which is alive");
        }
    }

    fn remove(&self, block: &Block) {
        self.live_bytes.fetch_sub(block.size(), Ordering::Relaxed);
        let Some(intervals) = &self.intervals else { return };
        let removed = intervals.with(|live| live.remove(&block.at.addr().get()));
        assert_eq!(removed, Some(block.at.addr().get() + block.size()), "the model lost an interval");
    }
}

/// Returns the indices of the words that are written and checked in a block at `base`. Words in the middle are at multiples of a large
/// power of two, so a zeroed block is checked where earlier blocks at the same place were written.
fn words(base: usize, size: usize) -> impl Iterator<Item = usize> {
    let count = size / 8;
    let stride: usize = match size >> 18 {
        0 => 4 << 10,
        1..32 => 64 << 10,
        _ => 1 << 20,
    };
    let (head, tail, from) = if size <= FULL_BYTES { (count, count, size) } else { (8, count - 8, 0) };
    let pages = (base + from).next_multiple_of(stride);
    let pages = (pages..base + size).step_by(stride).map(move |at| (at - base) / 8).filter(move |&word| word < count);
    (0..head).chain(pages).chain(tail..count)
}

/// Returns the value that is written to word `index` of the block `id`.
fn word(id: u64, index: usize) -> u64 {
    ((id << 32) ^ index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1
}

/// Checks the words that were written when the block was at `base` and `size` bytes long, as far as they are within its first `len` bytes.
fn check(block: &Block, base: usize, size: usize, len: usize) {
    let at = block.at.as_ptr().cast::<u64>();
    for index in words(base, size).filter(|&index| (index + 1) * 8 <= len) {
        // SAFETY: `index` is that of a whole word within the block, which is alive and owned here.
        let found = unsafe { at.add(index).read_unaligned() };
        assert_eq!(found, word(block.id, index), "word {index} of {:?} at {at:?} changed", block.layout);
    }
    let (rest, last) = (size / 8, size % 8);
    if len == size {
        // SAFETY: these are the bytes after the last whole word of the block.
        let found = unsafe { std::slice::from_raw_parts(at.add(rest).cast::<u8>(), last) };
        let stamped = word(block.id, rest).to_le_bytes();
        assert_eq!(found, &stamped[..last], "the end of {:?} at {at:?} changed", block.layout);
    }
}

/// Returns a hash of the first `len` bytes of a block that was written whole.
fn digest(block: &Block, len: usize) -> u64 {
    // SAFETY: the block is alive, owned here, and at least `len` bytes long.
    let bytes = unsafe { std::slice::from_raw_parts(block.at.as_ptr(), len) };
    BuildHasherDefault::<DefaultHasher>::default().hash_one(bytes)
}

fn check_zeroes(block: &Block) {
    let at = block.at.as_ptr();
    if block.size() <= FULL_ZEROES_BYTES || (block.id.is_multiple_of(16) && block.size() <= 4 << 20) {
        // SAFETY: the block is alive, owned here, and initialised if the allocator works.
        let bytes = unsafe { std::slice::from_raw_parts(at, block.size()) };
        // SAFETY: any bytes form valid words.
        let (head, words, tail) = unsafe { bytes.align_to::<u64>() };
        let clear = words.iter().fold(0, |all, word| all | word) == 0 && head.iter().chain(tail).all(|&byte| byte == 0);
        assert!(clear, "{:?} at {at:?} is not zero", block.layout);
    } else {
        for index in words(at.addr(), block.size()) {
            // SAFETY: `index` is that of a whole word within the block.
            let found = unsafe { at.cast::<u64>().add(index).read_unaligned() };
            assert_eq!(found, 0, "word {index} of {:?} at {at:?} is not zero", block.layout);
        }
    }
}

/// A spin lock. ThreadSanitizer sees its atomics, because they are compiled with this crate. It sees the atomics of the standard library's
/// mutex only if the standard library is also compiled with ThreadSanitizer (docs/verification.md).
#[derive(Default)]
pub(crate) struct Lock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock lets only one thread at a time reach the value.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// Takes the lock and runs `f` with the value. `f` must not panic, because the lock would then stay taken.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        while self.taken.swap(true, Ordering::Acquire) {
            thread::yield_now();
        }
        // SAFETY: `taken` was false, and stays true until the store below, so no other thread uses the value.
        let result = f(unsafe { &mut *self.value.get() });
        self.taken.store(false, Ordering::Release);
        result
    }
}
