//! Bump slabs: each thread bumps through one slab. A slab is reused once all its blocks are free.

use super::super::ground::{Ground, Slab};
use super::way::{BlockAllocator, LINE_BYTES, Spot, rounded};
use std::collections::HashMap;

/// Bump slabs; see the module's documentation.
#[derive(Debug)]
pub(super) struct Bump {
    slab_bytes: u64,
    slabs: HashMap<u64, Bumped>,
    /// The slab that each thread allocates from.
    current: HashMap<u16, u64>,
}

/// A slab in use.
#[derive(Debug)]
struct Bumped {
    memory: Slab,
    /// Number of live blocks.
    live: usize,
    bump: u64,
    /// The thread that allocates from it.
    owner: Option<u16>,
}

impl Bump {
    pub(super) fn new(slab_bytes: u64) -> Self {
        Self { slab_bytes, slabs: HashMap::new(), current: HashMap::new() }
    }

    fn slab(&mut self, address: u64) -> &mut Bumped {
        self.slabs.get_mut(&address).expect("blocks and threads name slabs in use")
    }

    fn claim(&mut self, ground: &mut Ground, thread: u16) -> u64 {
        let (address, memory) = ground.claim_slab(self.slab_bytes);
        self.slabs.insert(address, Bumped { memory, live: 0, bump: 0, owner: Some(thread) });
        self.current.insert(thread, address);
        address
    }

    fn bump(&mut self, ground: &mut Ground, address: u64, size_bytes: u64, align_bytes: u64) -> Option<Spot> {
        let slab_bytes = self.slab_bytes;
        let slab = self.slab(address);
        let offset = slab.bump.next_multiple_of(align_bytes.max(LINE_BYTES));
        let end = offset + rounded(size_bytes);
        (end <= slab_bytes).then(|| {
            slab.bump = end;
            slab.live += 1;
            ground.touch(&mut slab.memory, offset, size_bytes);
            Spot { slab: address, offset }
        })
    }
}

impl BlockAllocator for Bump {
    fn alloc(&mut self, ground: &mut Ground, thread: u16, size_bytes: u64, align_bytes: u64) -> Spot {
        if let Some(&address) = self.current.get(&thread) {
            if let Some(spot) = self.bump(ground, address, size_bytes, align_bytes) {
                return spot;
            }
            let slab = self.slab(address);
            if slab.live == 0 {
                slab.bump = 0;
            } else {
                // The slab has no owner now. The free of its last block releases it.
                slab.owner = None;
                self.current.remove(&thread);
            }
        }
        let address = self.current.get(&thread).copied().unwrap_or_else(|| self.claim(ground, thread));
        self.bump(ground, address, size_bytes, align_bytes)
            .expect("an empty slab has room for all small and medium sizes")
    }

    fn free(&mut self, ground: &mut Ground, thread: u16, spot: Spot, size_bytes: u64) {
        let slab = self.slab(spot.slab);
        slab.live -= 1;
        let own = slab.owner == Some(thread);
        if own && spot.offset + rounded(size_bytes) == slab.bump {
            slab.bump = spot.offset;
        }
        match (slab.live, slab.owner) {
            (0, Some(_)) if own => slab.bump = 0,
            (0, None) => {
                let slab = self.slabs.remove(&spot.slab).expect("looked up above");
                ground.release_slab(&slab.memory);
            }
            _ => {}
        }
    }

    fn resize(&mut self, ground: &mut Ground, thread: u16, spot: Spot, old_bytes: u64, new_bytes: u64) -> bool {
        let slab_bytes = self.slab_bytes;
        let slab = self.slab(spot.slab);
        let (old, new) = (rounded(old_bytes), rounded(new_bytes));
        if slab.owner == Some(thread) && spot.offset + old == slab.bump && spot.offset + new <= slab_bytes {
            slab.bump = spot.offset + new;
            ground.touch(&mut slab.memory, spot.offset, new_bytes);
            return true;
        }
        new_bytes <= old_bytes && new >= old / 2
    }
}
