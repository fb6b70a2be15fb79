//! The region: one reservation of address space, cut into zones of equal span.
//!
//! Equal spans, a power of two long, make "which zone does this address belong to" one subtraction and one shift.
#![allow(unsafe_code, reason = "reserves memory and lays bitmaps over it")]

use std::ptr::NonNull;

use super::align::align_up;
use super::bitmap::Bitmap;
use super::layout::ZoneSpec;
use super::zone::Zone;
use crate::os::{self, Errno, Mapping};
use crate::route::RunKind;
use crate::sync::AtomicU64;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Region {
    /// The address space. Never unmapped while anybody could hold an address of it: a region that was published stays.
    reservation: Mapping,
    /// The words of the zones' bitmaps.
    _words: Mapping,
    span_shift: u32,
    zones: [Zone; ZONES],
}

/// One for each [`RunKind`], in its order.
const ZONES: usize = 3;

/// What a zone knows of each granule, a bit each; and it knows one thing of each block for a huge page.
const BITMAPS: usize = 3;

/// The least address space that a zone is worth having for, in bytes.
const MIN_SPAN_BYTES: usize = 64 << 20;

/// The address space of a region, and the memory of its bitmaps.
struct Reserved {
    span: usize,
    reservation: Mapping,
    words: Mapping,
}

impl Reserved {
    /// Reserves `span_bytes` (rounded up to a power of two) for each zone, or the largest half, quarter, ... that the system grants.
    fn largest(span_bytes: usize, specs: &[ZoneSpec; ZONES]) -> Result<Self, Errno> {
        let mut span = span_bytes.clamp(MIN_SPAN_BYTES, usize::MAX / 4 / ZONES).next_power_of_two();
        loop {
            match Self::exactly(span, specs) {
                Err(refused) if span / 2 < MIN_SPAN_BYTES => return Err(refused),
                Err(_) => span /= 2,
                Ok(reserved) => return Ok(reserved),
            }
        }
    }

    fn exactly(span: usize, specs: &[ZoneSpec; ZONES]) -> Result<Self, Errno> {
        let reservation = os::reserve(span * ZONES)?;
        let blocks = span / os::HUGE_PAGE_BYTES;
        let words =
            |spec: &ZoneSpec| BITMAPS * Bitmap::words_for(span / spec.granule_bytes) + Bitmap::words_for(blocks);
        let words: usize = specs.iter().map(words).sum();
        let words = os::map_zeroed(align_up(words * size_of::<u64>(), os::HUGE_PAGE_BYTES))?;
        Ok(Self { span, reservation, words })
    }
}

impl Region {
    /// Reserves a region with `span_bytes` for each zone, or less where the system refuses, and builds it in its place zone by zone:
    /// the stack may be small. On failure, `place` holds nothing.
    ///
    /// # Errors
    /// The system's last error when it grants nothing worth having.
    ///
    /// # Safety
    /// `place` is valid for writes, and only the caller reaches it.
    pub(crate) unsafe fn reserve_at(
        place: *mut Self,
        span_bytes: usize,
        specs: &[ZoneSpec; ZONES],
    ) -> Result<(), Errno> {
        let Reserved { span, reservation, words } = Reserved::largest(span_bytes, specs)?;
        let (base, mut words_at) = (reservation.start(), words.start());
        // Slabs and caches keep their blocks as addresses.
        base.as_ptr().expose_provenance();
        let mut bitmap = |bits: usize| {
            let len = Bitmap::words_for(bits);
            // SAFETY: the next `len` words of the mapping, which is large enough for all bitmaps, zeroed, kept as long as
            // the zones, and reached through nothing else.
            let words = unsafe { std::slice::from_raw_parts(words_at.cast::<AtomicU64>().as_ptr(), len) };
            // SAFETY: still within the mapping, or one past its end.
            words_at = unsafe { words_at.add(len * size_of::<u64>()) };
            Bitmap::new(words)
        };
        for (index, spec) in specs.iter().enumerate() {
            let granules = span / spec.granule_bytes;
            let (bits, blocks) = ([(); BITMAPS].map(|()| bitmap(granules)), bitmap(span / os::HUGE_PAGE_BYTES));
            // SAFETY: the reservation is `ZONES` spans long.
            let zone_base = unsafe { base.add(index * span) };
            // SAFETY: the caller's place.
            let zones = unsafe { (&raw mut (*place).zones).cast::<Zone>() };
            // SAFETY: a span of the reservation for each zone, never unmapped; the bitmaps are clear and describe a span.
            match unsafe { Zone::new(zone_base, *spec, bits, blocks) } {
                // SAFETY: within the caller's place.
                Ok(zone) => unsafe { zones.add(index).write(zone) },
                Err(refused) => {
                    // SAFETY: written in the rounds before, and known to nobody.
                    (0..index).for_each(|index| unsafe { zones.add(index).drop_in_place() });
                    return Err(refused);
                }
            }
        }
        // SAFETY: the caller's. With these all fields are written.
        unsafe {
            (&raw mut (*place).reservation).write(reservation);
            (&raw mut (*place)._words).write(words);
            (&raw mut (*place).span_shift).write(span.trailing_zeros());
        }
        Ok(())
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.reservation.start()
    }

    /// Bytes of address space.
    pub(crate) fn len(&self) -> usize {
        ZONES << self.span_shift
    }

    /// The zone of the runs of some kind.
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
            _ => RunKind::Giant,
        }
    }
}
