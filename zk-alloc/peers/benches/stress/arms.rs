//! Lists the allocators, and defines the blocks that the patterns allocate. A block is written when it is allocated and checked when it is
//! freed.
//!
//! Each block has a unique key, and its word `i` contains the key xor `i`. So a run fails if the allocator hands out memory twice or copies
//! it incorrectly. It also fails on memory that is not zeroed or not aligned as requested.
#![allow(unsafe_code, reason = "reads and writes blocks, and implements GlobalAlloc badly")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt;
use std::process;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::blocks::{Allocator, Block as Memory, RESIDENT};

/// An allocator under test, with its name in the report.
pub(crate) struct Arm {
    pub(crate) name: &'static str,
    pub(crate) allocator: Allocator,
}

/// The baseline: all times are shown relative to it. Every run includes it.
pub(crate) const BASELINE: &str = "glibc";

/// The arm that is compared with its peers.
pub(crate) const OURS: &str = "zk-alloc";

pub(crate) static ARMS: [Arm; 5] = [
    Arm { name: BASELINE, allocator: &System },
    Arm { name: "jemalloc", allocator: &tikv_jemallocator::Jemalloc },
    Arm { name: "mimalloc", allocator: &mimalloc::MiMalloc },
    Arm { name: "snmalloc", allocator: &snmalloc_rs::SnMalloc },
    Arm { name: OURS, allocator: &RESIDENT },
];

/// An arm that `--list` and the help text omit. Quick runs (`--test`) require it to fail, which shows that the checks detect corruption.
pub(crate) static BROKEN: Arm = Arm { name: "broken", allocator: &Broken };

/// An allocator that hands out the same memory for every block.
struct Broken;

/// The memory that [`Broken`] hands out. It is as long as the longest block of the pattern `lifetimes`.
static MEMORY: [AtomicU64; 4096] = [const { AtomicU64::new(0) }; 4096];

// SAFETY: this breaks the contract of `GlobalAlloc` on purpose: blocks overlap. Each block is still memory of the
// process, aligned and long enough. So the only effect is that one owner reads words that another wrote.
unsafe impl GlobalAlloc for Broken {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let fits = layout.size() <= size_of_val(&MEMORY) && layout.align() <= align_of::<AtomicU64>();
        if fits { MEMORY.as_ptr().cast_mut().cast() } else { null_mut() }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

const WORD_BYTES: usize = size_of::<u64>();
const PAGE_WORDS: usize = 4096 / WORD_BYTES;

/// Which words of a block are written and checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Touch {
    /// The first word.
    First,
    /// The first and the last word.
    Ends,
    /// One word of each page, and the last word.
    Pages,
    /// All words. Only one word of each page and the last word are checked.
    Whole,
}

/// The allocator under test.
#[derive(Clone, Copy)]
pub(crate) struct Heap(pub(crate) Allocator);

impl Heap {
    /// Allocates a block of `bytes`, rounded up to whole words. `bytes` must not be 0.
    pub(crate) fn block(self, bytes: usize, touch: Touch) -> Block {
        self.aligned(bytes, WORD_BYTES, touch)
    }

    /// Allocates a block at a multiple of `align`, which must be a power of two.
    pub(crate) fn aligned(self, bytes: usize, align: usize, touch: Touch) -> Block {
        let memory = Memory::untouched(self.0, bytes.next_multiple_of(WORD_BYTES), align);
        if !memory.address().is_multiple_of(align) {
            fail(&format_args!("{:#x} is not aligned to {align} bytes", memory.address()));
        }
        Block::new(memory, touch)
    }

    /// Allocates a zeroed block. Checks that each word is zero before writing it.
    pub(crate) fn zeroed(self, bytes: usize, touch: Touch) -> Block {
        let memory = Memory::zeroed(self.0, bytes.next_multiple_of(WORD_BYTES));
        visit(memory.size() / WORD_BYTES, touch, |index| {
            // SAFETY: `visit` passes indices of words within the block, which is initialised if the allocator works.
            let found = unsafe { memory.words().add(index).read() };
            if found != 0 {
                fail(&format_args!("word {index} of {} zeroed bytes holds {found:#x}", memory.size()));
            }
        });
        Block::new(memory, touch)
    }
}

/// Calls `each` with the index of each word to check in a block of `words` words. Unless `touch` is [`Touch::Whole`], these are also the
/// words to write.
fn visit(words: usize, touch: Touch, mut each: impl FnMut(usize)) {
    let step = match touch {
        Touch::First => return each(0),
        Touch::Ends => words,
        Touch::Pages | Touch::Whole => PAGE_WORDS,
    };
    (0..words).step_by(step).for_each(&mut each);
    each(words - 1);
}

/// A block of memory from the allocator under test. Dropping it checks its words and frees it.
pub(crate) struct Block {
    memory: Memory,
    key: u64,
    touch: Touch,
}

impl Block {
    fn new(memory: Memory, touch: Touch) -> Self {
        let block = Self { memory, key: fresh_key(), touch };
        block.write_from(0);
        block
    }

    pub(crate) fn bytes(&self) -> usize {
        self.memory.size()
    }

    fn words(&self) -> usize {
        self.bytes() / WORD_BYTES
    }

    /// Grows a block with `realloc`, as `Vec` does, and checks that its first and last word were preserved. The block must have been
    /// created with [`Touch::Whole`].
    pub(crate) fn grow(&mut self, bytes: usize) {
        assert!(self.touch == Touch::Whole, "only what is written whole has contents to keep");
        let old_words = self.words();
        if !self.memory.resize(bytes.next_multiple_of(WORD_BYTES)) {
            fail(&format_args!("no memory to grow {self} to {bytes} bytes"));
        }
        self.check(0);
        self.check(old_words - 1);
        self.write_from(old_words);
    }

    /// Writes the first and last word `times` times, to simulate a program that uses the block.
    pub(crate) fn rewrite(&self, times: usize) {
        for _ in 0..times {
            for index in [0, self.words() - 1] {
                // SAFETY: both are words of the block. The writes are volatile so that none is optimised away.
                unsafe { self.memory.words().add(index).write_volatile(self.key ^ index as u64) };
            }
        }
    }

    /// Writes the block, starting at word `first`.
    fn write_from(&self, first: usize) {
        let write = |index: usize| {
            // SAFETY: `visit` and the range below pass only indices of words of the block, which is owned here.
            unsafe { self.memory.words().add(index).write(self.key ^ index as u64) };
        };
        match self.touch {
            Touch::Whole => (first..self.words()).for_each(write),
            _ => visit(self.words(), self.touch, write),
        }
    }

    fn check(&self, index: usize) {
        // SAFETY: callers pass the index of a word that was written: from `visit`, or below the length before the block grew.
        let found = unsafe { self.memory.words().add(index).read() };
        let wanted = self.key ^ index as u64;
        if found != wanted {
            fail(&format_args!("word {index} of {self} holds {found:#x} where {wanted:#x} was written"));
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        visit(self.words(), self.touch, |index| self.check(index));
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the block of {} bytes at {:#x}", self.bytes(), self.memory.address())
    }
}

/// Returns a unique key for a block: the thread's number in the upper bits, the number of its earlier blocks in the lower bits, and both
/// multiplied by an odd constant. Without the multiplication, the keys of a thread's successive blocks would differ only in bits that a
/// word's index also changes.
fn fresh_key() -> u64 {
    static THREADS: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NEXT: Cell<u64> = Cell::new(THREADS.fetch_add(1, Ordering::Relaxed) << 40);
    }
    NEXT.with(|next| next.replace(next.get() + 1)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Prints what failed and exits the process. A panic would leave the other threads of the pattern waiting forever.
#[cold]
fn fail(what: &dyn fmt::Display) -> ! {
    eprintln!("{what}");
    process::exit(1)
}
