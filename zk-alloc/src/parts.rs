//! The parts of the arena's resident memory.

use std::fmt;

use crate::stats::Mib;
use crate::{arena, stats};

/// The resident memory of the arena by what holds it. Sizes are in bytes. [`resident_bytes`](Self::resident_bytes) is the sum of all
/// parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ResidentParts {
    /// Live blocks of slabs, rounded up to their size classes.
    pub live_block_bytes: usize,
    /// Live page runs, rounded up to whole pages.
    pub live_run_bytes: usize,
    /// Free blocks and page runs in thread caches.
    pub cached_bytes: usize,
    /// The rest of the slabs' pages: free blocks, and the space between blocks.
    pub free_slab_bytes: usize,
    /// Free page runs, retained for the next requests.
    pub free_run_bytes: usize,
    /// Memory that was prefaulted, and not handed out since.
    pub prefaulted_bytes: usize,
    /// The memory among all this that the kernel has pages for, by its own account; `None` if it does not tell. It is less where
    /// memory was handed out and not touched, and more where a huge page reaches beyond.
    pub kernel_bytes: Option<usize>,
}

impl ResidentParts {
    /// The sum, as in [`Stats::resident_bytes`](crate::Stats::resident_bytes).
    #[must_use]
    pub fn resident_bytes(&self) -> usize {
        self.parts().iter().map(|(_, bytes)| bytes).sum()
    }

    /// Each part with its name, in the order of the fields.
    fn parts(&self) -> [(&'static str, usize); 6] {
        [
            ("live blocks", self.live_block_bytes),
            ("live page runs", self.live_run_bytes),
            ("thread caches", self.cached_bytes),
            ("free in slabs", self.free_slab_bytes),
            ("free page runs", self.free_run_bytes),
            ("prefaulted", self.prefaulted_bytes),
        ]
    }
}

/// The parts of the arena's resident memory now; all 0 while there is no arena. It looks at all slabs and asks the kernel about each
/// page (mincore(2)), which takes milliseconds for gigabytes. So call it to explain memory, and [`stats`](crate::stats()) to watch it.
/// While other threads allocate, the parts are not of one instant.
///
/// ```
/// # #[global_allocator]
/// # static ALLOC: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator::resident();
/// let trace = vec![1u8; 4 << 20];
/// println!("{}", zk_alloc::resident_parts());
/// assert!(zk_alloc::resident_parts().live_run_bytes >= trace.len());
/// ```
#[must_use]
pub fn resident_parts() -> ResidentParts {
    let Some(arena) = arena::get() else { return ResidentParts::default() };
    let live_block_bytes = arena.live_block_bytes();
    let cached_run_bytes = arena.cached_run_bytes();
    let cached_block_bytes = arena::cached_bytes().saturating_sub(cached_run_bytes);
    let live_run_bytes = stats::live_bytes().saturating_sub(live_block_bytes);
    let slab_bytes = arena.resident_slab_bytes();
    let prefaulted_bytes = arena.prefaulted_bytes();
    let elsewhere = slab_bytes + live_run_bytes + cached_run_bytes + prefaulted_bytes;
    ResidentParts {
        live_block_bytes,
        live_run_bytes,
        cached_bytes: cached_block_bytes + cached_run_bytes,
        free_slab_bytes: slab_bytes.saturating_sub(live_block_bytes + cached_block_bytes),
        free_run_bytes: arena::resident_bytes().saturating_sub(elsewhere),
        prefaulted_bytes,
        kernel_bytes: arena.kernel_bytes(),
    }
}

impl fmt::Display for ResidentParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, bytes) in self.parts() {
            writeln!(f, "{name:<16} {}", Mib(bytes as u64))?;
        }
        write!(f, "{:<16} {}", "resident", Mib(self.resident_bytes() as u64))?;
        self.kernel_bytes.map_or(Ok(()), |bytes| write!(f, "; {} by the kernel's account", Mib(bytes as u64)))
    }
}
