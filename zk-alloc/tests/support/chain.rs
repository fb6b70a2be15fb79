//! Blocks of one size that hold each other: what the test itself notes of them takes no memory.
#![allow(unsafe_code, reason = "calls GlobalAlloc, and keeps its links in the blocks")]

use std::alloc::Layout;
use std::ptr::{self, NonNull};

use crate::arms::Allocator;

/// The first word of each block: the block that came next.
type Link = *mut u8;

/// Blocks in the order in which they came. They are freed in that order when the chain is dropped.
pub(crate) struct Chain {
    allocator: Allocator,
    layout: Layout,
    first: Link,
    len: usize,
}

// SAFETY: a chain owns its blocks alone, and every `GlobalAlloc` takes memory back on any thread.
unsafe impl Send for Chain {}

impl Chain {
    /// As many blocks of `size` bytes as make `total` bytes, every byte written.
    pub(crate) fn written(allocator: Allocator, size: usize, total: usize) -> Self {
        assert!(size >= size_of::<Link>(), "a block holds a link");
        let layout = Layout::from_size_align(size, align_of::<Link>()).expect("a small layout");
        let mut chain = Self { allocator, layout, first: ptr::null_mut(), len: total / size };
        let mut last: *mut u8 = ptr::null_mut();
        for _ in 0..chain.len {
            // SAFETY: the layout is not empty, by the assertion above.
            let at = NonNull::new(unsafe { allocator.alloc(layout) }).expect("memory").as_ptr();
            // SAFETY: the block is ours alone, long and aligned enough for a link, by its layout.
            unsafe {
                at.write_bytes(0xA5, size);
                at.cast::<Link>().write(ptr::null_mut());
            }
            match last.is_null() {
                true => chain.first = at,
                // SAFETY: as above: `last` is a block of this chain.
                false => unsafe { last.cast::<Link>().write(at) },
            }
            last = at;
        }
        chain
    }

    /// Frees all of the blocks but every `nth`, the last of each `nth`.
    pub(crate) fn keep_every(&mut self, nth: usize) {
        let (mut kept, mut last_kept): (usize, *mut u8) = (0, ptr::null_mut());
        let mut next = std::mem::replace(&mut self.first, ptr::null_mut());
        for index in 1..=self.len {
            let at: *mut u8 = next;
            // SAFETY: `at` is a block of this chain, which holds a link since it was made, and was not freed yet.
            next = unsafe { at.cast::<Link>().read() };
            if index % nth == 0 {
                // SAFETY: as above; the chain ends here until the next one is kept.
                unsafe { at.cast::<Link>().write(ptr::null_mut()) };
                match last_kept.is_null() {
                    true => self.first = at,
                    // SAFETY: as above: the block that was kept last.
                    false => unsafe { last_kept.cast::<Link>().write(at) },
                }
                (last_kept, kept) = (at, kept + 1);
            } else {
                // SAFETY: the block came from this allocator with this layout, and the chain has let go of it.
                unsafe { self.allocator.dealloc(at, self.layout) };
            }
        }
        self.len = kept;
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        self.keep_every(usize::MAX);
    }
}
