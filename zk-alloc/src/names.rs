//! Earlier names of items, for programs that use them. Nothing in this crate does.

use crate::config::thread_capacity_bytes;
use crate::error::{MemoryRefused, ScratchExhausted};
use crate::pool;
use crate::scratch::Scratch;

/// [`Scratch`], by its name in the crate zk-nalloc. Today the arena is something else: the memory that
/// [`ZkAllocator`](struct@crate::ZkAllocator) serves from.
pub type Arena = Scratch;

/// [`MemoryRefused`].
#[deprecated = "renamed to `MemoryRefused`, which says what was refused"]
pub type Refused = MemoryRefused;

/// [`ScratchExhausted`].
#[deprecated = "renamed to `ScratchExhausted`, which says what is exhausted"]
pub type Exhausted = ScratchExhausted;

/// [`pool::register_worker`].
#[deprecated = "moved to `pool::register_worker`, which says what joins what"]
pub fn join() {
    pool::register_worker();
}

/// [`thread_capacity_bytes`], by its name in the crate zk-alloc 0.0.9, which gave each thread a slab of its own. Today a slab is
/// something else: memory that is cut into blocks.
#[must_use]
#[deprecated = "renamed to `thread_capacity_bytes`: a slab is something else today"]
pub fn slab_size() -> usize {
    thread_capacity_bytes()
}
