//! Line slabs: each thread bumps through the free lines of a slab. A line is reused when no block touches it, as in
//! Immix (Blackburn and McKinley, "Immix: a mark-region garbage collector", PLDI 2008), but with counts instead of
//! marks.

use super::super::ground::{Ground, Slab};
use super::way::{BlockAllocator, LINE_BYTES, Spot, rounded};
use std::collections::{BTreeSet, HashMap};

/// Number of open slabs that are searched before a new slab is taken.
const LOOKS: usize = 8;

/// Line slabs; see the module's documentation.
#[derive(Debug)]
pub(super) struct Lines {
    slab_bytes: u64,
    line_bytes: u64,
    free_percent: u64,
    slabs: HashMap<u64, Lined>,
    /// Slabs without an allocating thread and with enough free lines.
    open: BTreeSet<u64>,
    /// The free lines that each thread bumps through.
    current: HashMap<u16, Span>,
}

/// A slab in use.
#[derive(Debug)]
struct Lined {
    memory: Slab,
    /// Number of blocks that touch each line.
    counts: Vec<u16>,
    free_lines: u64,
    /// Whether a thread allocates from it.
    held: bool,
}

/// Bytes `from..until` of a slab.
#[derive(Clone, Copy, Debug)]
struct Span {
    slab: u64,
    from: u64,
    until: u64,
}

impl Lines {
    pub(super) fn new(slab_bytes: u64, line_bytes: u64, free_percent: u64) -> Self {
        let (slabs, open, current) = (HashMap::new(), BTreeSet::new(), HashMap::new());
        Self { slab_bytes, line_bytes, free_percent, slabs, open, current }
    }

    fn slab(&mut self, address: u64) -> &mut Lined {
        self.slabs.get_mut(&address).expect("blocks and threads name slabs in use")
    }

    /// The first free lines of a slab, from byte `from` on, with room for `bytes`.
    fn span(&self, address: u64, from: u64, bytes: u64) -> Option<Span> {
        let counts = &self.slabs[&address].counts;
        let mut line = from.div_ceil(self.line_bytes) as usize;
        while line < counts.len() {
            let free = counts[line..].iter().take_while(|count| **count == 0).count();
            if free as u64 * self.line_bytes >= bytes {
                let from = line as u64 * self.line_bytes;
                return Some(Span { slab: address, from, until: from + free as u64 * self.line_bytes });
            }
            line += free + counts[line + free..].iter().take_while(|count| **count > 0).count();
        }
        None
    }

    /// The next free lines for a thread that has no room for `bytes`.
    fn next_span(&mut self, ground: &mut Ground, thread: u16, bytes: u64) -> Span {
        if let Some(Span { slab, until, .. }) = self.current.remove(&thread) {
            if let Some(span) = self.span(slab, until, bytes) {
                return span;
            }
            self.slab(slab).held = false;
            self.settle(ground, slab);
        }
        let found = self.open.iter().take(LOOKS).find_map(|&slab| self.span(slab, 0, bytes));
        let span = found.unwrap_or_else(|| {
            let (slab, memory) = ground.claim_slab(self.slab_bytes);
            let lines = self.slab_bytes / self.line_bytes;
            let counts = vec![0; lines as usize];
            self.slabs.insert(slab, Lined { memory, counts, free_lines: lines, held: false });
            Span { slab, from: 0, until: self.slab_bytes }
        });
        self.open.remove(&span.slab);
        self.slab(span.slab).held = true;
        span
    }

    /// Settles a slab without an allocating thread. An empty slab is released; a slab with enough free lines is open;
    /// others are not.
    fn settle(&mut self, ground: &mut Ground, address: u64) {
        let lines = self.slab_bytes / self.line_bytes;
        let free_lines = self.slab(address).free_lines;
        if free_lines == lines {
            self.open.remove(&address);
            if let Some(slab) = self.slabs.remove(&address) {
                ground.release_slab(&slab.memory);
            }
        } else if free_lines * 100 >= lines * self.free_percent {
            self.open.insert(address);
        } else {
            self.open.remove(&address);
        }
    }

    /// The lines that a block touches.
    fn lines_of(&self, offset: u64, size_bytes: u64) -> std::ops::Range<usize> {
        let end = offset + rounded(size_bytes);
        (offset / self.line_bytes) as usize..end.div_ceil(self.line_bytes) as usize
    }
}

impl BlockAllocator for Lines {
    fn alloc(&mut self, ground: &mut Ground, thread: u16, size_bytes: u64, align_bytes: u64) -> Spot {
        let align = align_bytes.max(LINE_BYTES);
        let aligned = |span: Span| span.from.next_multiple_of(align);
        let span = match self.current.get(&thread) {
            Some(&span) if aligned(span) + rounded(size_bytes) <= span.until => span,
            _ => self.next_span(ground, thread, rounded(size_bytes) + align - LINE_BYTES),
        };
        let offset = aligned(span);
        self.current.insert(thread, Span { from: offset + rounded(size_bytes), ..span });
        let lines = self.lines_of(offset, size_bytes);
        let slab = self.slab(span.slab);
        for count in &mut slab.counts[lines] {
            slab.free_lines -= u64::from(*count == 0);
            *count += 1;
        }
        ground.touch(&mut slab.memory, offset, size_bytes);
        Spot { slab: span.slab, offset }
    }

    fn free(&mut self, ground: &mut Ground, thread: u16, spot: Spot, size_bytes: u64) {
        let lines = self.lines_of(spot.offset, size_bytes);
        let all = self.slab_bytes / self.line_bytes;
        let slab_bytes = self.slab_bytes;
        let slab = self.slab(spot.slab);
        for count in &mut slab.counts[lines] {
            *count -= 1;
            slab.free_lines += u64::from(*count == 0);
        }
        let (held, is_empty) = (slab.held, slab.free_lines == all);
        match self.current.get_mut(&thread) {
            Some(span) if span.slab == spot.slab && is_empty => (span.from, span.until) = (0, slab_bytes),
            Some(span) if span.slab == spot.slab && span.from == spot.offset + rounded(size_bytes) => {
                span.from = spot.offset;
            }
            _ if !held => self.settle(ground, spot.slab),
            _ => {}
        }
    }

    fn resize(&mut self, _: &mut Ground, _: u16, _: Spot, old_bytes: u64, new_bytes: u64) -> bool {
        // The line counts depend on the block's rounded length, so it must not change.
        rounded(new_bytes) == rounded(old_bytes)
    }
}
