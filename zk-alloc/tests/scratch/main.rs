//! Memory outside of the arena: a `Scratch` against models, its promises about memory, and the protections of a `SecretBuf`.

#[cfg(feature = "allocator-api2")]
mod collections;
#[cfg(target_os = "linux")]
mod secret;
#[path = "../support/mod.rs"]
mod support;

use std::fmt::Debug;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;
use zk_alloc::{Scratch, ZkAllocator};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator::resident();

/// Whole pages on every machine.
const CAPACITY_BYTES: usize = 64 << 10;
const LINE_BYTES: usize = 64;

/// Aligned to more than a line.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(align(256))]
struct Wide(u64);

/// Makes a value of a type that differs by seed and index.
type Make<T> = fn(u8, usize) -> T;

fn word(seed: u8, index: usize) -> u64 {
    u64::from(seed) << 56 | index as u64
}

#[derive(Clone, Copy, Debug)]
enum How {
    Value,
    Init,
    Copy,
    Uninit,
    Zeroed,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    how: How,
    align: usize,
    bytes: usize,
    seed: u8,
}

/// The addresses of an allocation, and a check of its contents.
type Held<'a> = (Range<usize>, Box<dyn Fn() + 'a>);

fn filled<T>(room: &mut [MaybeUninit<T>], seed: u8, make: Make<T>) -> &mut [T] {
    for (index, slot) in room.iter_mut().enumerate() {
        slot.write(make(seed, index));
    }
    // SAFETY: every element was written.
    #[allow(unsafe_code, reason = "as the caller of an uninitialised array must")]
    unsafe {
        room.assume_init_mut()
    }
}

#[track_caller]
fn assert_zeroed<T>(room: &[MaybeUninit<T>]) {
    // SAFETY: the scratch promises that every byte is zero, and so initialised.
    #[allow(unsafe_code, reason = "looks at each byte")]
    let bytes = unsafe { std::slice::from_raw_parts(room.as_ptr().cast::<u8>(), size_of_val(room)) };
    assert!(bytes.iter().all(|&byte| byte == 0), "not zeroed at {:?}", bytes.iter().position(|&byte| byte != 0));
}

/// Serves one request, and checks the address and the bytes against a model of a scratch with `used` bytes in use.
/// Returns `None` if no room is left.
fn serve<'a, T: Copy + PartialEq + Debug + 'a>(
    scratch: &'a Scratch,
    used: &mut usize,
    request: Request,
    make: Make<T>,
) -> Option<Held<'a>> {
    let Request { how, bytes, seed, .. } = request;
    let len = if let How::Value = how { 1 } else { bytes / size_of::<T>() };
    let align = if let How::Value = how { align_of::<T>() } else { align_of::<T>().max(LINE_BYTES) };
    let (asked, capacity) = (len * size_of::<T>(), scratch.capacity_bytes());
    let left = capacity - *used;
    // The scratch begins at a page boundary, so offsets are aligned as addresses are.
    let start = used.next_multiple_of(align);
    let fits = start + asked <= capacity;
    *used = if fits { start + asked } else { *used };
    let served = match how {
        How::Value => scratch.try_alloc(make(seed, 0)).map(std::slice::from_mut),
        How::Init => scratch.try_alloc_array(len, |index| make(seed, index)),
        How::Copy => {
            let source: Vec<T> = (0..len).map(|index| make(seed, index)).collect();
            scratch.try_alloc_array_copy(&source)
        }
        How::Uninit => scratch.try_alloc_array_uninit(len).map(|room| filled(room, seed, make)),
        How::Zeroed => scratch.try_alloc_array_zeroed(len).map(|room| {
            assert_zeroed(room);
            filled(room, seed, make)
        }),
    };
    assert_eq!(scratch.used_bytes(), *used);
    match served {
        Ok(values) => {
            assert!(fits, "{request:?} was served with {left} bytes left");
            let range = values.as_ptr_range();
            assert!(range.start.addr().is_multiple_of(align), "{request:?}");
            let check = move || {
                let is_intact = values.iter().enumerate().all(|(index, &value)| value == make(seed, index));
                assert!(is_intact, "{request:?} has other contents: {values:?}");
            };
            Some((range.start.addr()..range.end.addr(), Box::new(check)))
        }
        Err(error) => {
            assert!(!fits, "{request:?}: {error}");
            assert_eq!((error.asked_bytes, error.align_bytes), (asked, align));
            assert_eq!((error.left_bytes, error.capacity_bytes), (left, capacity));
            None
        }
    }
}

/// Serves the requests between two resets. Returns the address of the first.
fn round(scratch: &Scratch, requests: &[Request]) -> Option<usize> {
    let used = &mut 0;
    let held: Vec<_> = requests
        .iter()
        .filter_map(|&request| match request.align {
            1 => serve(scratch, used, request, |seed, index| seed.wrapping_add(index as u8)),
            8 => serve(scratch, used, request, word),
            _ => serve(scratch, used, request, |seed, index| Wide(word(seed, index))),
        })
        .collect();
    held.iter().for_each(|(_, check)| check());
    let mut ranges: Vec<_> = held.into_iter().map(|(range, _)| range).filter(|range| !range.is_empty()).collect();
    ranges.sort_by_key(|range| range.start);
    assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "overlap: {ranges:x?}");
    ranges.first().map(|first| first.start)
}

fn request() -> impl Strategy<Value = Request> {
    let how = prop::sample::select(vec![How::Value, How::Init, How::Copy, How::Uninit, How::Zeroed]);
    let align = prop::sample::select(vec![1, 8, 256]);
    let bytes = prop_oneof![8 => 0..2_000usize, 2 => 0..CAPACITY_BYTES, 1 => CAPACITY_BYTES - 8..CAPACITY_BYTES + 9];
    (how, align, bytes, any::<u8>()).prop_map(|(how, align, bytes, seed)| Request { how, align, bytes, seed })
}

/// The ways to take all memory back.
fn back() -> impl Strategy<Value = fn(&mut Scratch)> {
    prop::sample::select(vec![Scratch::reset as fn(&mut Scratch), Scratch::wipe, Scratch::release])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Nothing overlaps, everything is aligned, and contents do not change. Zeroed memory is zero, whatever was there
    /// before. The scratch refuses requests that do not fit, with the right numbers, and each round starts over in the
    /// same memory.
    #[test]
    fn rounds_of_requests_agree_with_a_model(
        rounds in prop::collection::vec((prop::collection::vec(request(), 0..40), back()), 1..6)
    ) {
        let mut scratch = Scratch::with_capacity(CAPACITY_BYTES);
        assert_eq!(scratch.capacity_bytes(), CAPACITY_BYTES);
        let base = scratch.alloc_array_uninit::<u8>(0).as_ptr().addr();
        for (requests, back) in rounds {
            if let Some(first) = round(&scratch, &requests) {
                assert_eq!(first, base);
            }
            back(&mut scratch);
            assert_eq!(scratch.used_bytes(), 0);
        }
    }
}

/// The scratch claims the memory of an array before its values are made, so their initialiser may use the scratch too.
#[test]
fn an_initialiser_may_allocate_and_may_panic() {
    let scratch = Scratch::with_capacity(CAPACITY_BYTES);
    let outer = scratch.alloc_array(10, |index| &*scratch.alloc_array(10, |inner| (index, inner)));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        scratch.alloc_array(10, |index| if index == 5 { panic!("in the midst") } else { index }).len()
    }));
    assert!(panicked.is_err());
    let after = scratch.alloc_array(100, |_| usize::MAX);
    for (index, inner) in outer.iter().enumerate() {
        assert!(inner.iter().copied().eq((0..10).map(|inner| (index, inner))));
    }
    assert!(after.iter().all(|&value| value == usize::MAX));
}

#[test]
fn values_without_a_size_and_with_a_large_alignment_are_served() {
    #[derive(Clone, Copy)]
    #[repr(align(65536))]
    struct Aligned;
    let scratch = Scratch::with_capacity(256 << 10);
    scratch.alloc(1u8);
    assert!((&raw const *scratch.alloc(Aligned)).addr().is_multiple_of(65536));
    // Not made one by one, because only an optimised loop of that length ends.
    assert_eq!(scratch.alloc_array_uninit::<()>(usize::MAX).len(), usize::MAX);
    assert_eq!(scratch.alloc_array(3, |_| Aligned).len(), 3);
    assert_eq!(scratch.alloc_array_zeroed::<[u64; 0]>(usize::MAX / 2).len(), usize::MAX / 2);
    assert!(scratch.used_bytes() <= 65536 * 2);
}

/// A length whose bytes overflow must not return a small array.
#[test]
fn lengths_and_capacities_larger_than_any_memory_are_refused() {
    let scratch = Scratch::with_capacity(1);
    for len in [usize::MAX, usize::MAX / 8 + 2, isize::MAX as usize, isize::MAX as usize / 8 + 1, 1 << 57] {
        let error = scratch.try_alloc_array_uninit::<u64>(len).unwrap_err();
        assert_eq!(error.asked_bytes, len.saturating_mul(8));
        assert_eq!(error.left_bytes, scratch.capacity_bytes());
    }
    for bytes in [usize::MAX, isize::MAX as usize, 1 << 60] {
        assert_eq!(Scratch::try_with_capacity(bytes).unwrap_err().asked_bytes, bytes);
    }
    let panicked = catch_unwind(|| Scratch::with_capacity(1).alloc_array(1 << 20, |_| 0u8).len()).unwrap_err();
    let message = panicked.downcast_ref::<String>().unwrap();
    assert!(message.contains("1048576 bytes") && message.contains("bytes left"), "{message}");
}

/// Tests that also need the arena of the global allocator, or the kernel's account of pages.
#[cfg(target_os = "linux")]
mod beside_the_system {
    use crate::support::in_its_own_process;
    use crate::support::maps::map_of;
    use zk_alloc::{phase, stats};

    use super::*;

    /// The number of resident pages from an address on.
    fn resident_pages(at: usize, bytes: usize) -> usize {
        let mut pages = vec![0u8; bytes.div_ceil(4096)];
        let start = std::ptr::with_exposed_provenance_mut(at);
        // SAFETY: reads no memory of the range, and writes a byte for each page of it.
        #[allow(unsafe_code, reason = "asks the kernel")]
        let answered = unsafe { libc::mincore(start, bytes, pages.as_mut_ptr()) };
        assert_eq!(answered, 0, "{}", std::io::Error::last_os_error());
        pages.iter().filter(|&&page| page & 1 == 1).count()
    }

    /// After a reset, the next round must fault in no page. After a release, the memory belongs to the system again.
    #[test]
    fn pages_stay_resident_until_they_are_released() {
        const BYTES: usize = 1 << 20;
        let mut scratch = Scratch::with_capacity(BYTES);
        let at = scratch.alloc_array(BYTES, |_| 0xA5u8).as_ptr().expose_provenance();
        assert_eq!(resident_pages(at, BYTES), BYTES / 4096);
        scratch.reset();
        assert_eq!(resident_pages(at, BYTES), BYTES / 4096);
        scratch.wipe();
        assert_eq!(resident_pages(at, BYTES), BYTES / 4096);
        scratch.alloc_array(BYTES, |_| 0xA5u8);
        scratch.release();
        assert_eq!(resident_pages(at, BYTES), 0);
        assert_zeroed(scratch.alloc_array_zeroed::<u8>(BYTES));
    }

    /// Programs choose a capacity for the worst case, so untouched memory must cost nothing, even if it is zeroed.
    #[test]
    fn capacity_that_is_not_touched_takes_no_memory() {
        const BYTES: usize = 16 << 30;
        let scratch = Scratch::with_capacity(BYTES);
        let at = scratch.alloc_array_zeroed::<u8>(BYTES).as_ptr().expose_provenance();
        assert_eq!(resident_pages(at, BYTES), 0);
    }

    /// The global allocator has an arena. A reset that touched it would overwrite everyone's buffers.
    #[test]
    fn a_scratch_uses_no_memory_of_the_global_allocator() {
        in_its_own_process(&[], || {
            drop(black_box(vec![1u8; 1 << 20]));
            let before = stats();
            assert!(before.run_allocations > 0, "{before}");
            let scratch = phase(|| Scratch::with_capacity(64 << 20));
            assert!(phase(|| scratch.alloc_array(1 << 20, |index| index as u64)).iter().copied().eq(0..1 << 20));
            let after = stats();
            // The scratch does not use blocks either; the test's own threads use some.
            assert_eq!(after.run_allocations, before.run_allocations);
            assert!(after.slab_bytes - before.slab_bytes < 1 << 20, "{after}");
        });
    }

    /// Operators forbid huge pages where they cost more than they save. That must hold for all memory of the crate.
    #[test]
    fn a_scratch_follows_the_setting_of_huge_pages() {
        for setting in ["never", "auto", "always"] {
            in_its_own_process(&[("ZK_ALLOC_THP", setting)], || {
                // Kernels built without huge pages have neither this file nor these flags.
                let Ok(host) = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled") else { return };
                let scratch = Scratch::with_capacity(8 << 20);
                let map = map_of((&raw const *scratch.alloc(0u8)).addr()).unwrap();
                // If the host has huge pages, `auto` decides by their cost there. It never leaves the choice to the host.
                let wanted = setting == "always" || setting == "auto" && !map.has("nh");
                assert_eq!(map.has("hg"), wanted && !host.contains("[never]"), "{map:?}");
                assert_eq!(map.has("nh"), !wanted, "{map:?}");
            });
        }
    }
}
