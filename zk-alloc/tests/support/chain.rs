//! A linked list of blocks of one size. The links lie in the blocks, so that the test itself needs no memory for them.
#![allow(unsafe_code, reason = "calls GlobalAlloc, and keeps its links in the blocks")]

use std::alloc::Layout;
use std::ptr::{self, NonNull};

use crate::blocks::Allocator;

/// The first word of each block, which links to the next block.
type Link = *mut u8;

/// Blocks in the order of their allocation. Dropping the chain frees them in that order.
pub(crate) struct Chain {
    allocator: Allocator,
    layout: Layout,
    first: Link,
    len: usize,
}

// SAFETY: only the chain owns its blocks, and every `GlobalAlloc` frees memory on any thread.
unsafe impl Send for Chain {}

impl Chain {
    /// Enough blocks of `size` bytes to make `total` bytes, every byte written.
    pub(crate) fn written(allocator: Allocator, size: usize, total: usize) -> Self {
        assert!(size >= size_of::<Link>(), "a block holds a link");
        let layout = Layout::from_size_align(size, align_of::<Link>()).expect("a small layout");
        let mut chain = Self { allocator, layout, first: ptr::null_mut(), len: total / size };
        let mut last: *mut u8 = ptr::null_mut();
        for _ in 0..chain.len {
            // SAFETY: the layout is not empty, by the assertion above.
            let at = NonNull::new(unsafe { allocator.alloc(layout) }).expect("memory").as_ptr();
            // SAFETY: this function owns the block, which is long and aligned enough for a link, by its layout.
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

    /// Frees all blocks except the last of each `nth`.
    pub(crate) fn keep_every(&mut self, nth: usize) {
        let (mut kept, mut last_kept): (usize, *mut u8) = (0, ptr::null_mut());
        let mut next = std::mem::replace(&mut self.first, ptr::null_mut());
        for index in 1..=self.len {
            let at: *mut u8 = next;
            // SAFETY: `at` is a block of this chain. It holds a link from the start, and was not freed yet.
            next = unsafe { at.cast::<Link>().read() };
            if index % nth == 0 {
                // SAFETY: as above; the chain ends here until the next one is kept.
                unsafe { at.cast::<Link>().write(ptr::null_mut()) };
                match last_kept.is_null() {
                    true => self.first = at,
                    // SAFETY: as above, for the last block that was kept.
                    false => unsafe { last_kept.cast::<Link>().write(at) },
                }
                (last_kept, kept) = (at, kept + 1);
            } else {
                // SAFETY: the block came from this allocator with this layout, and the chain no longer holds it.
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
