//! Every interleaving, up to so many interruptions, of a real zone on real memory, whose bits are loom's.
#![allow(unsafe_code, reason = "hands out memory of a zone")]

use std::ptr::NonNull;

use loom::thread;

use super::loom_models::{bounded, join};
use crate::arena::bitmap::Bitmap;
use crate::arena::zone::{Contents, GiveBack, HugeAdvice, Zone, ZoneSpec};
use crate::os;
use crate::sync::AtomicU64;

const GRANULE_BYTES: usize = 4 << 10;
const SPEC: ZoneSpec = ZoneSpec {
    granule_bytes: GRANULE_BYTES,
    huge: HugeAdvice::Leave,
    slabs_only_bytes: 0,
    block_bytes: 0,
    small_pages_bytes: 0,
    lazy_zero_bytes: usize::MAX,
    kept: None,
};

/// Memory for one run of a model after the other.
#[derive(Clone, Copy)]
struct Memory(NonNull<u8>);

// SAFETY: an address; who may use what is behind it is what the models are about.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn reserve() -> Self {
        // Every run of the model uses it: it stays.
        Self(Box::leak(Box::new(os::reserve(64 * GRANULE_BYTES).expect("address space"))).start())
    }
}

/// A zone whose first two granules are free, and dirty. Its bits are loom's; its memory is real.
fn dirty_zone(Memory(base): Memory) -> &'static Zone {
    let word = || Bitmap::new(std::slice::from_ref(&*Box::leak(Box::new(AtomicU64::new(0)))));
    // SAFETY: a reservation that is never unmapped, used by one run of one model at a time, and fresh bitmaps.
    let zone = unsafe { Zone::new(base, SPEC, word(), word()) };
    let dirt = zone.claim(2 * GRANULE_BYTES, 1, Contents::Any).expect("an empty zone has room");
    zone.claim(62 * GRANULE_BYTES, 1, Contents::Any).expect("an empty zone has room");
    soil_and_release(&zone, dirt, 2);
    Box::leak(Box::new(zone))
}

fn soil_and_release(zone: &Zone, at: NonNull<u8>, granules: usize) {
    // SAFETY: the granules are the caller's, who gives them away.
    unsafe {
        at.write_bytes(0xFF, granules * GRANULE_BYTES);
        zone.release(at, granules * GRANULE_BYTES);
    }
}

fn assert_zero(at: NonNull<u8>, granules: usize) {
    // SAFETY: the granules are the caller's, and hold at least what the kernel put there.
    let bytes = unsafe { std::slice::from_raw_parts(at.as_ptr(), granules * GRANULE_BYTES) };
    assert!(bytes.iter().all(|&byte| byte == 0), "zeroed memory holds something else");
}

fn soil(zone: &'static Zone) {
    if let Ok(at) = zone.claim(GRANULE_BYTES, 1, Contents::Any) {
        soil_and_release(zone, at, 1);
    }
}

fn want_zeroes(zone: &'static Zone) {
    if let Ok(at) = zone.claim(GRANULE_BYTES, 1, Contents::Zeroed) {
        assert_zero(at, 1);
        soil_and_release(zone, at, 1);
    }
}

fn assert_whole(zone: &'static Zone) {
    let at = zone.claim(2 * GRANULE_BYTES, 1, Contents::Zeroed).expect("all was given back");
    assert_zero(at, 2);
}

#[test]
fn zeroed_memory_is_zero_while_another_thread_trims() {
    let memory = Memory::reserve();
    bounded(3, move || {
        let zone = dirty_zone(memory);
        let thread = thread::spawn(move || {
            _ = zone.trim(usize::MAX, GiveBack::Now);
        });
        want_zeroes(zone);
        join([thread]);
        assert_whole(zone);
    });
}

#[test]
fn zeroed_memory_is_zero_while_others_soil_and_trim() {
    let memory = Memory::reserve();
    bounded(1, move || {
        let zone = dirty_zone(memory);
        let threads = [
            thread::spawn(move || {
                _ = zone.trim(usize::MAX, GiveBack::Now);
            }),
            thread::spawn(move || soil(zone)),
        ];
        want_zeroes(zone);
        join(threads);
        assert_whole(zone);
    });
}
