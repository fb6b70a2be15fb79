//! The region: a range of address space, cut into zones of equal span. Zones map memory there as they grow.
//!
//! The spans are equal powers of two, so one subtraction and one shift find the zone of an address.
#![allow(unsafe_code, reason = "finds address space, and lays bitmaps over memory")]

use std::ptr::NonNull;

use crate::arena::pages::bitmap::{Bitmap, align_up};
use crate::arena::pages::layout::ZoneSpec;
use crate::arena::pages::zone::Zone;
use crate::os::{self, AddressRange, Errno, Mapping};
use crate::route::RunKind;
use crate::sync::AtomicU64;
use crate::tuning;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Region {
    /// The address space. Memory that a zone mapped there is never unmapped, because a published region stays.
    range: AddressRange,
    /// The words of the zones' bitmaps.
    _words: Mapping,
    span_shift: u32,
    zones: [Zone; ZONES],
}

/// One for each [`RunKind`], in its order.
const ZONES: usize = 3;

/// The bitmaps of a zone that have a bit for each page.
const BITMAPS: usize = 5;
/// The bitmaps of a zone that have a bit for each block, the place of a huge page. Each block has a word, too.
const BLOCK_BITMAPS: usize = 2;

/// Address space for a region, and the memory of its bitmaps.
struct Found {
    span: usize,
    range: AddressRange,
    words: Mapping,
}

impl Found {
    /// Finds address space for `span_bytes` (rounded up to a power of two) for each zone. If the system refuses, as limits leave too little room for
    /// the tables, tries a half, a quarter, ...
    fn largest(span_bytes: usize, specs: &[ZoneSpec; ZONES]) -> Result<Self, Errno> {
        let mut span = span_bytes.clamp(tuning::min_span_bytes(), usize::MAX / 4 / ZONES).next_power_of_two();
        loop {
            match Self::exactly(span, specs) {
                Err(refused) if span / 2 < tuning::min_span_bytes() => return Err(refused),
                Err(_) => span /= 2,
                Ok(found) => return Ok(found),
            }
        }
    }

    fn exactly(span: usize, specs: &[ZoneSpec; ZONES]) -> Result<Self, Errno> {
        // These trial mappings count on top of the program's memory. They are dropped at once, because the program needs the rest of the
        // limits.
        drop(os::reserve(span / tuning::address_part())?);
        drop(os::map_zeroed(span / tuning::data_part())?);
        let range = AddressRange::find(span * ZONES)?;
        let blocks = span / os::HUGE_PAGE_BYTES;
        let block_words = BLOCK_BITMAPS * Bitmap::words_for(blocks) + blocks;
        let words = |spec: &ZoneSpec| BITMAPS * Bitmap::words_for(span / spec.page_bytes) + block_words;
        let words: usize = specs.iter().map(words).sum();
        let words = os::map_zeroed(align_up(words * size_of::<u64>(), os::HUGE_PAGE_BYTES))?.for_table();
        Ok(Self { span, range, words })
    }
}

impl Region {
    /// Finds a region with `span_bytes` for each zone, or less if limits leave less room. Builds it in place, zone by zone, because the
    /// stack may be small. On failure, `place` holds nothing.
    ///
    /// # Errors
    /// The system's last error, if it refuses even the smallest span.
    ///
    /// # Safety
    /// `place` is valid for writes, and only the caller reaches it.
    pub(crate) unsafe fn find_at(place: *mut Self, span_bytes: usize, specs: &[ZoneSpec; ZONES]) -> Result<(), Errno> {
        let Found { span, range, words } = Found::largest(span_bytes, specs)?;
        let (base, mut words_at) = (range.start(), words.start());
        // Slabs and caches keep their blocks as addresses.
        base.as_ptr().expose_provenance();
        let mut take_words = |len: usize| -> &'static [AtomicU64] {
            // SAFETY: the next `len` words of the mapping, which is large enough for all bitmaps and claims, zeroed, kept as long as
            // the zones, and reached through nothing else.
            let words = unsafe { std::slice::from_raw_parts(words_at.cast::<AtomicU64>().as_ptr(), len) };
            // SAFETY: still within the mapping, or one past its end.
            words_at = unsafe { words_at.add(len * size_of::<u64>()) };
            words
        };
        for (index, spec) in specs.iter().enumerate() {
            let pages = span / spec.page_bytes;
            let blocks = span / os::HUGE_PAGE_BYTES;
            let bits = [(); BITMAPS].map(|()| Bitmap::new(take_words(Bitmap::words_for(pages))));
            let block_bits = [(); BLOCK_BITMAPS].map(|()| Bitmap::new(take_words(Bitmap::words_for(blocks))));
            let claims = take_words(blocks);
            // SAFETY: the range is `ZONES` spans long.
            let zone_base = unsafe { base.add(index * span) };
            // SAFETY: the caller's place.
            let zones = unsafe { (&raw mut (*place).zones).cast::<Zone>() };
            // SAFETY: a span of the range for each zone; the bitmaps are clear and describe a span.
            match unsafe { Zone::new(zone_base, *spec, bits, block_bits, claims) } {
                // SAFETY: within the caller's place.
                Ok(zone) => unsafe { zones.add(index).write(zone) },
                Err(refused) => {
                    // SAFETY: written in earlier iterations, and known to nobody.
                    (0..index).for_each(|index| unsafe { zones.add(index).drop_in_place() });
                    return Err(refused);
                }
            }
        }
        // SAFETY: the caller's. With these all fields are written.
        unsafe {
            (&raw mut (*place).range).write(range);
            (&raw mut (*place)._words).write(words);
            (&raw mut (*place).span_shift).write(span.trailing_zeros());
        }
        Ok(())
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.range.start()
    }

    /// Bytes of address space.
    pub(crate) fn len(&self) -> usize {
        ZONES << self.span_shift
    }

    /// The zone of the runs of this kind.
    pub(crate) fn zone(&self, runs: RunKind) -> &Zone {
        &self.zones[runs as usize]
    }

    pub(crate) fn zones(&self) -> &[Zone; ZONES] {
        &self.zones
    }

    /// The zone that holds an address of the region, by the kind of its runs.
    #[inline(always)]
    pub(crate) fn zone_of(&self, at: NonNull<u8>) -> RunKind {
        match (at.addr().get() - self.base().addr().get()) >> self.span_shift {
            0 => RunKind::Aligned,
            1 => RunKind::Mid,
            _ => RunKind::Huge,
        }
    }
}
