//! A `Scratch` against a model, and its promises about memory.

#[cfg(target_os = "linux")]
#[path = "support/maps.rs"]
mod maps;
mod support;

use std::fmt::Debug;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use proptest::prelude::*;
use rayon::prelude::*;
use support::{assert_patterned, patterned};
use zk_alloc::{Scratch, ZkAllocator};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator::resident();

/// Whole pages on every machine.
const CAPACITY_BYTES: usize = 64 << 10;
const LINE_BYTES: usize = 64;

/// A type whose values differ by seed and index.
trait Patterned: Copy + PartialEq + Debug {
    fn new(seed: u8, index: usize) -> Self;
}

impl Patterned for u8 {
    fn new(seed: u8, index: usize) -> Self {
        seed.wrapping_add(index as u8)
    }
}

impl Patterned for u64 {
    fn new(seed: u8, index: usize) -> Self {
        u64::from(seed) << 56 | index as u64
    }
}

/// Aligned to more than a line.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(align(256))]
struct Wide(u64);

impl Patterned for Wide {
    fn new(seed: u8, index: usize) -> Self {
        Self(u64::new(seed, index))
    }
}

/// An allocation of any type that a test holds.
trait Held {
    fn range(&self) -> Range<usize>;
    fn assert_intact(&self);
}

struct Block<'a, T> {
    values: &'a mut [T],
    seed: u8,
}

impl<T: Patterned> Held for Block<'_, T> {
    fn range(&self) -> Range<usize> {
        let range = self.values.as_ptr_range();
        range.start.addr()..range.end.addr()
    }

    fn assert_intact(&self) {
        for (index, &value) in self.values.iter().enumerate() {
            assert_eq!(value, T::new(self.seed, index), "value {index} of {}", self.values.len());
        }
    }
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
enum Type {
    Bytes,
    Words,
    Wides,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    how: How,
    of: Type,
    bytes: usize,
    seed: u8,
}

/// How all memory is taken back.
#[derive(Clone, Copy, Debug)]
enum Back {
    Reset,
    Wipe,
    Release,
}

/// The expected counters of a scratch.
struct Model {
    used: usize,
    capacity: usize,
}

impl Model {
    fn claims(&mut self, size: usize, align: usize) -> bool {
        // The scratch begins at a page boundary, so offsets are aligned as addresses are.
        let start = self.used.next_multiple_of(align);
        let fits = start + size <= self.capacity;
        self.used = if fits { start + size } else { self.used };
        fits
    }
}

fn filled<T: Patterned>(room: &mut [MaybeUninit<T>], seed: u8) -> &mut [T] {
    for (index, slot) in room.iter_mut().enumerate() {
        slot.write(T::new(seed, index));
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

/// Serves one request, as the model expects. Returns `None` if the model says that no room is left.
fn serve<'a, T: Patterned + 'a>(
    scratch: &'a Scratch,
    model: &mut Model,
    request: Request,
) -> Option<Box<dyn Held + 'a>> {
    let Request { how, bytes, seed, .. } = request;
    let len = if let How::Value = how { 1 } else { bytes / size_of::<T>() };
    let align = if let How::Value = how { align_of::<T>() } else { align_of::<T>().max(LINE_BYTES) };
    let left = model.capacity - model.used;
    let fits = model.claims(len * size_of::<T>(), align);
    let served = match how {
        How::Value => scratch.try_alloc(T::new(seed, 0)).map(std::slice::from_mut),
        How::Init => scratch.try_alloc_array(len, |index| T::new(seed, index)),
        How::Copy => {
            let source: Vec<T> = (0..len).map(|index| T::new(seed, index)).collect();
            scratch.try_alloc_array_copy(&source)
        }
        How::Uninit => scratch.try_alloc_array_uninit(len).map(|room| filled(room, seed)),
        How::Zeroed => scratch.try_alloc_array_zeroed(len).map(|room| {
            assert_zeroed(room);
            filled(room, seed)
        }),
    };
    assert_eq!(scratch.used_bytes(), model.used);
    match served {
        Ok(values) => {
            assert!(fits, "{request:?} was served with {left} bytes left");
            assert!(values.as_ptr().addr().is_multiple_of(align), "{request:?}");
            Some(Box::new(Block { values, seed }))
        }
        Err(error) => {
            assert!(!fits, "{request:?}: {error}");
            assert_eq!((error.asked_bytes, error.align_bytes), (len * size_of::<T>(), align));
            assert_eq!((error.left_bytes, error.capacity_bytes), (left, model.capacity));
            None
        }
    }
}

/// Serves the requests between two resets. Returns the address of the first.
fn round(scratch: &Scratch, requests: &[Request]) -> Option<usize> {
    let mut model = Model { used: 0, capacity: scratch.capacity_bytes() };
    let mut held: Vec<Box<dyn Held + '_>> = Vec::new();
    for &request in requests {
        held.extend(match request.of {
            Type::Bytes => serve::<u8>(scratch, &mut model, request),
            Type::Words => serve::<u64>(scratch, &mut model, request),
            Type::Wides => serve::<Wide>(scratch, &mut model, request),
        });
    }
    held.iter().for_each(|block| block.assert_intact());
    let mut ranges: Vec<_> = held.iter().map(|block| block.range()).filter(|range| !range.is_empty()).collect();
    ranges.sort_by_key(|range| range.start);
    assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "overlap: {ranges:x?}");
    ranges.first().map(|first| first.start)
}

fn request() -> impl Strategy<Value = Request> {
    let how = prop::sample::select(vec![How::Value, How::Init, How::Copy, How::Uninit, How::Zeroed]);
    let of = prop::sample::select(vec![Type::Bytes, Type::Words, Type::Wides]);
    let bytes = prop_oneof![8 => 0..2_000usize, 2 => 0..CAPACITY_BYTES, 1 => CAPACITY_BYTES - 8..CAPACITY_BYTES + 9];
    (how, of, bytes, any::<u8>()).prop_map(|(how, of, bytes, seed)| Request { how, of, bytes, seed })
}

fn back() -> impl Strategy<Value = Back> {
    prop::sample::select(vec![Back::Reset, Back::Wipe, Back::Release])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Nothing overlaps, everything is aligned, and contents do not change. Zeroed memory is zero, whatever was there
    /// before. The scratch refuses requests that do not fit, with the right numbers, and each round starts over in the
    /// same memory.
    #[test]
    fn rounds_of_requests_are_served_as_a_model_says(
        rounds in prop::collection::vec((prop::collection::vec(request(), 0..40), back()), 1..6)
    ) {
        let mut scratch = Scratch::with_capacity(CAPACITY_BYTES);
        assert_eq!(scratch.capacity_bytes(), CAPACITY_BYTES);
        let base = scratch.alloc_array_uninit::<u8>(0).as_ptr().addr();
        for (requests, back) in rounds {
            if let Some(first) = round(&scratch, &requests) {
                assert_eq!(first, base);
            }
            match back {
                Back::Reset => scratch.reset(),
                Back::Wipe => scratch.wipe(),
                Back::Release => scratch.release(),
            }
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
fn values_without_a_size_and_with_a_large_alignment_have_their_place() {
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
fn lengths_and_capacities_beyond_all_memory_are_refused() {
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

/// Workers write to parts of an array that one thread allocated. The scratch moves to another thread between two
/// rounds.
#[test]
fn threads_share_arrays_and_pass_the_scratch_on() {
    let mut scratch = Scratch::with_capacity(1 << 20);
    for seed in 0..4 {
        scratch = thread::spawn(move || {
            let words = filled(scratch.alloc_array_uninit::<u64>(1 << 14), 0);
            let expected = patterned(words.len(), seed);
            let chunks = words.par_chunks_mut(100).zip(expected.par_chunks(100));
            chunks.for_each(|(chunk, expected)| chunk.copy_from_slice(expected));
            assert_patterned(words, seed);
            scratch.reset();
            scratch
        })
        .join()
        .unwrap();
    }
}

/// Tests that also need the arena of the global allocator, or the kernel's account of pages.
#[cfg(target_os = "linux")]
mod beside_the_system {
    use maps::map_of;
    use support::{alone, is_alone};
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
    fn its_memory_is_its_own_whatever_the_global_allocator() {
        let name = "beside_the_system::its_memory_is_its_own_whatever_the_global_allocator";
        if !is_alone() {
            return alone(name, &[]).assert_passed(name);
        }
        drop(black_box(vec![1u8; 1 << 20]));
        let before = stats();
        assert!(before.run_allocations > 0, "{before}");
        let scratch = phase(|| Scratch::with_capacity(64 << 20));
        assert!(phase(|| scratch.alloc_array(1 << 20, |index| index as u64)).iter().copied().eq(0..1 << 20));
        let after = stats();
        // The scratch does not use blocks either; the test's own threads use some.
        assert_eq!(after.run_allocations, before.run_allocations);
        assert!(after.slab_bytes - before.slab_bytes < 1 << 20, "{after}");
    }

    /// Operators forbid huge pages where they cost more than they save. That must hold for all memory of the crate.
    #[test]
    fn huge_pages_are_asked_for_and_forbidden_as_the_setting_says() {
        let name = "beside_the_system::huge_pages_are_asked_for_and_forbidden_as_the_setting_says";
        if !is_alone() {
            for setting in ["never", "auto", "always"] {
                alone(name, &[("ZK_ALLOC_THP", setting.as_ref())]).assert_passed(setting);
            }
            return;
        }
        // Kernels built without huge pages have neither this file nor these flags.
        let Ok(host) = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled") else { return };
        let setting = std::env::var("ZK_ALLOC_THP").unwrap();
        let scratch = Scratch::with_capacity(8 << 20);
        let map = map_of((&raw const *scratch.alloc(0u8)).addr()).unwrap();
        // If the host has huge pages, `auto` decides by their cost there. It never leaves the choice to the host.
        let wanted = setting == "always" || setting == "auto" && !map.has("nh");
        assert_eq!(map.has("hg"), wanted && !host.contains("[never]"), "{map:?}");
        assert_eq!(map.has("nh"), !wanted, "{map:?}");
    }
}
