//! Page runs: the large sizes, each in the zone of its size.
//!
//! Why zones: the one giant buffer of a proof leaves a giant hole behind. A small thing that lives across proofs and
//! lands in that hole makes the next giant go elsewhere, and the process pays for two (docs/design.md).

use super::zone::{HugeAdvice, ZoneSpec};
use crate::config::{Config, HugePages};
use crate::kept;
use crate::os::HUGE_PAGE_BYTES;
use crate::route;

/// A zone's granule is the unit of its bitmap: about an eighth of the smallest run at most, so that little is wasted, and
/// large enough that even the largest runs are a handful of words.
const fn granule_bytes(zone: route::Zone) -> usize {
    match zone {
        route::Zone::Small => 16 << 10,
        route::Zone::Mid => 64 << 10,
        route::Zone::Giant => HUGE_PAGE_BYTES,
    }
}

/// Where threads keep the run that they freed last. A giant is never hidden from the others.
const fn kept(zone: route::Zone) -> Option<kept::Place> {
    match zone {
        route::Zone::Small => Some(kept::Place::Small),
        route::Zone::Mid => Some(kept::Place::Mid),
        route::Zone::Giant => None,
    }
}

/// A prover whose small runs fit in here keeps them in small pages (docs/design.md).
const SMALL_PAGES_BYTES: usize = 8 << 20;

/// Where there are no huge pages, memory comes in blocks of the same size.
const BLOCK_BYTES: usize = HUGE_PAGE_BYTES;

/// What the zones are made from, in the order of [`route::Zone`]; in the one that slabs lie in, the first bytes are theirs.
pub(crate) fn zone_specs(config: &Config, slabs_only_bytes: usize) -> [ZoneSpec; 3] {
    let huge = HugeAdvice::of(config.huge_pages);
    // In small pages, a fault for each costs more than clearing them here.
    let (lazy_zero_bytes, block_bytes) = match huge {
        HugeAdvice::Ask => (config.lazy_zero_bytes, 0),
        HugeAdvice::Forbid | HugeAdvice::Leave => (usize::MAX, BLOCK_BYTES),
    };
    [route::Zone::Small, route::Zone::Mid, route::Zone::Giant].map(|zone| {
        let in_small_pages = zone == route::Zone::Small && config.huge_pages != HugePages::Always;
        let small_pages_bytes = if in_small_pages { SMALL_PAGES_BYTES } else { 0 };
        ZoneSpec {
            granule_bytes: granule_bytes(zone),
            huge,
            slabs_only_bytes: if zone == route::SLABS { slabs_only_bytes } else { 0 },
            block_bytes,
            small_pages_bytes,
            lazy_zero_bytes,
            kept: kept(zone),
        }
    })
}

/// The alignment of a run: what was asked for, and a huge page's for runs that fill one.
pub(crate) const fn run_align(size: usize, align: usize) -> usize {
    if size >= HUGE_PAGE_BYTES && align < HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { align }
}
