//! Blocks from the allocator under test, written when they are allocated and checked when they are freed.
//!
//! Word `i` of a block holds the block's key, which no other block has, xor `i`. So the run fails on memory that was
//! handed out twice, moved wrongly, not zeroed, or not aligned.
#![allow(unsafe_code, reason = "calls GlobalAlloc")]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::fmt;
use std::hint::black_box;
use std::process;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

const WORD_BYTES: usize = size_of::<u64>();
const PAGE_WORDS: usize = 4096 / WORD_BYTES;

/// The part of a block that its user writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Touch {
    /// The first word.
    First,
    /// The first and the last word.
    Ends,
    /// One word of each page, and the last word.
    Pages,
    /// All words. One word of each page, and the last word, are checked.
    Whole,
}

/// The allocator under test.
#[derive(Clone, Copy)]
pub(crate) struct Heap(&'static (dyn GlobalAlloc + Sync));

impl Heap {
    pub(crate) fn new(allocator: &'static (dyn GlobalAlloc + Sync)) -> Self {
        Self(allocator)
    }

    /// A block of `bytes`, which is not 0, rounded up to whole words.
    pub(crate) fn block(self, bytes: usize, touch: Touch) -> Block {
        self.aligned(bytes, WORD_BYTES, touch)
    }

    /// A block at a multiple of `align`, a power of two.
    pub(crate) fn aligned(self, bytes: usize, align: usize, touch: Touch) -> Block {
        let layout = layout(bytes, align);
        // SAFETY: `layout` ensures that the layout is not empty.
        let block = Block::new(self, unsafe { self.0.alloc(black_box(layout)) }, layout, touch);
        block.write_from(0);
        block
    }

    /// A block of zeroes, which are checked where the block is written.
    pub(crate) fn zeroed(self, bytes: usize, touch: Touch) -> Block {
        let layout = layout(bytes, WORD_BYTES);
        // SAFETY: as above.
        let block = Block::new(self, unsafe { self.0.alloc_zeroed(black_box(layout)) }, layout, touch);
        block.visit(|index| {
            // SAFETY: `visit` passes indices of words within the block, and `alloc_zeroed` initialised all of it.
            let found = unsafe { block.at.add(index).read() };
            if found != 0 {
                fail(&format_args!("word {index} of {block} was to be zero and holds {found:#x}"));
            }
        });
        block.write_from(0);
        block
    }
}

fn layout(bytes: usize, align: usize) -> Layout {
    assert!(bytes > 0, "a pattern asked for an empty block");
    Layout::from_size_align(bytes.next_multiple_of(WORD_BYTES), align.max(WORD_BYTES))
        .expect("patterns ask for sizes far below isize::MAX, at powers of two")
}

/// Memory with one owner. Dropping it checks the written words and frees it.
pub(crate) struct Block {
    at: NonNull<u64>,
    layout: Layout,
    key: u64,
    heap: Heap,
    touch: Touch,
}

// SAFETY: only the block owns its memory, and every `GlobalAlloc` frees memory on any thread.
unsafe impl Send for Block {}

impl Block {
    fn new(heap: Heap, at: *mut u8, layout: Layout, touch: Touch) -> Self {
        let Some(at) = NonNull::new(at) else {
            fail(&format_args!("no memory for {} bytes", layout.size()));
        };
        if !at.addr().get().is_multiple_of(layout.align()) {
            fail(&format_args!("{at:p} is not aligned to {} bytes", layout.align()));
        }
        Self { at: at.cast(), layout, key: fresh_key(), heap, touch }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.layout.size()
    }

    fn words(&self) -> usize {
        self.layout.size() / WORD_BYTES
    }

    /// Grows a block that is written whole by `realloc`, as `Vec` does. Its contents are checked before and after.
    pub(crate) fn grow(&mut self, bytes: usize) {
        assert!(self.touch == Touch::Whole, "only what is written whole has contents to keep");
        let old_words = self.words();
        let grown = layout(bytes, self.layout.align());
        // SAFETY: `at` came from this allocator with this layout. The new size is not 0, and forms a valid layout.
        let at = unsafe { self.heap.0.realloc(self.at.as_ptr().cast(), self.layout, black_box(grown.size())) };
        let Some(at) = NonNull::new(at) else {
            fail(&format_args!("no memory to grow {self} to {bytes} bytes"));
        };
        (self.at, self.layout) = (at.cast(), grown);
        self.check(0);
        self.check(old_words - 1);
        self.write_from(old_words);
    }

    /// Writes the first and the last word `times` times, as a working owner does.
    pub(crate) fn rewrite(&self, times: usize) {
        for _ in 0..times {
            for index in [0, self.words() - 1] {
                // SAFETY: both are words of the block, and volatile so that each write happens.
                unsafe { self.at.add(index).write_volatile(self.key ^ index as u64) };
            }
        }
    }

    /// Calls `each` with the indices of the written words, or of the checked words if all are written.
    fn visit(&self, mut each: impl FnMut(usize)) {
        let words = self.words();
        let step = match self.touch {
            Touch::First => return each(0),
            Touch::Ends => words,
            Touch::Pages | Touch::Whole => PAGE_WORDS,
        };
        (0..words).step_by(step).for_each(&mut each);
        each(words - 1);
    }

    /// Writes the block from word `first` on.
    fn write_from(&self, first: usize) {
        let write = |index: usize| {
            // SAFETY: a word of the block, which is owned here, by `visit` or by the range below.
            unsafe { self.at.add(index).write(self.key ^ index as u64) };
        };
        match self.touch {
            Touch::Whole => (first..self.words()).for_each(write),
            _ => self.visit(write),
        }
    }

    fn check(&self, index: usize) {
        // SAFETY: callers pass the index of a word that was written: from `visit`, or below the length before the block
        // grew.
        let found = unsafe { self.at.add(index).read() };
        let wanted = self.key ^ index as u64;
        if found != wanted {
            fail(&format_args!("word {index} of {self} holds {found:#x} where {wanted:#x} was written"));
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.visit(|index| self.check(index));
        // SAFETY: `at` came from this allocator with this layout, and a block is dropped once.
        unsafe { self.heap.0.dealloc(black_box(self.at.as_ptr().cast()), self.layout) };
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the block of {} bytes at {:p}", self.layout.size(), self.at)
    }
}

/// A key that no other block of the process has: the thread's number in the upper part, its count in the lower part. An
/// odd factor spreads it, so that neighbours' keys differ by more than word indices do.
fn fresh_key() -> u64 {
    static THREADS: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NEXT: Cell<u64> = const { Cell::new(0) };
    }
    NEXT.with(|next| {
        let key = match next.get() {
            0 => THREADS.fetch_add(1, Ordering::Relaxed) << 40,
            key => key,
        };
        next.set(key + 1);
        key.wrapping_mul(0x9E37_79B9_7F4A_7C15)
    })
}

/// Ends the process, because other threads of the pattern would wait forever for one that panicked.
#[cold]
fn fail(what: &dyn fmt::Display) -> ! {
    eprintln!("{what}");
    process::exit(1)
}
