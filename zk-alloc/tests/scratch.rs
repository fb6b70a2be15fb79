//! Memory outside of the arena. A `Scratch` must agree with a model and use memory as documented, and a `SecretBuf` must have its
//! protections.

mod support;

use std::fmt::Debug;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;
use zk_alloc::{Scratch, ZkAllocator};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator::resident();

/// The capacity of a scratch in bytes. It is a whole number of pages on every machine.
const CAPACITY_BYTES: usize = 64 << 10;
const LINE_BYTES: usize = 64;

/// A value that is aligned to more than a cache line.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(align(256))]
struct Wide(u64);

/// A function that makes a value of type `T` from a seed and an index.
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

#[track_caller]
fn assert_zeroed<T>(array: &[MaybeUninit<T>]) {
    // SAFETY: the scratch promises that every byte is zero, and therefore initialised.
    #[allow(unsafe_code, reason = "looks at each byte")]
    let bytes = unsafe { std::slice::from_raw_parts(array.as_ptr().cast::<u8>(), size_of_val(array)) };
    assert!(bytes.iter().all(|&byte| byte == 0), "not zeroed at {:?}", bytes.iter().position(|&byte| byte != 0));
}

/// Makes one request and checks its address, contents and size against a model of the scratch, in which `used` bytes are in use. Adds the
/// request to `used`. Returns `None` if there is not enough room.
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
    // The scratch begins at a page boundary, so offsets are aligned like addresses.
    let start = used.next_multiple_of(align);
    let fits = start + asked <= capacity;
    *used = if fits { start + asked } else { *used };
    let source = || (0..len).map(|index| make(seed, index)).collect::<Vec<T>>();
    let served = match how {
        How::Value => scratch.try_alloc(make(seed, 0)).map(std::slice::from_mut),
        How::Init => scratch.try_alloc_array(len, |index| make(seed, index)),
        How::Copy => scratch.try_alloc_array_copy(&source()),
        How::Uninit => scratch.try_alloc_array_uninit::<T>(len).map(|array| array.write_copy_of_slice(&source())),
        How::Zeroed => scratch.try_alloc_array_zeroed::<T>(len).map(|array| {
            assert_zeroed(array);
            array.write_copy_of_slice(&source())
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

/// Makes the requests between two resets and checks that they do not overlap. Returns the lowest address of an allocation, if there is one.
fn round(scratch: &Scratch, requests: &[Request]) -> Option<usize> {
    let used = &mut 0;
    let claim = |&request: &Request| match request.align {
        1 => serve(scratch, used, request, |seed, index| seed.wrapping_add(index as u8)),
        8 => serve(scratch, used, request, word),
        _ => serve(scratch, used, request, |seed, index| Wide(word(seed, index))),
    };
    let claims: Vec<_> = requests.iter().filter_map(claim).collect();
    claims.iter().for_each(|(_, check)| check());
    let mut ranges: Vec<_> = claims.into_iter().map(|(range, _)| range).filter(|range| !range.is_empty()).collect();
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

/// Returns a strategy that selects one of the methods that free all memory of a scratch.
fn back() -> impl Strategy<Value = fn(&mut Scratch)> {
    prop::sample::select(vec![Scratch::reset as fn(&mut Scratch), Scratch::wipe, Scratch::release])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Allocations do not overlap, are aligned, and keep their contents. Zeroed memory is zero, even if it was written before. The scratch
    /// refuses requests that do not fit, with the right numbers in the error. Each round starts again at the beginning of the scratch.
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

/// The scratch claims an array's memory before the array's values are made, so their initialiser may use the scratch too.
#[test]
fn an_initialiser_may_allocate_and_may_panic() {
    let scratch = Scratch::with_capacity(CAPACITY_BYTES);
    let outer = scratch.alloc_array(10, |index| &*scratch.alloc_array(10, |inner| (index, inner)));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        scratch.alloc_array(10, |index| if index == 5 { panic!("in the middle") } else { index }).len()
    }));
    assert!(panicked.is_err());
    let after = scratch.alloc_array(100, |_| usize::MAX);
    for (index, inner) in outer.iter().enumerate() {
        assert!(inner.iter().copied().eq((0..10).map(|inner| (index, inner))));
    }
    assert!(after.iter().all(|&value| value == usize::MAX));
}

#[test]
fn extreme_sizes_and_alignments_are_served_or_refused() {
    #[derive(Clone, Copy)]
    #[repr(align(65536))]
    struct Aligned;
    let scratch = Scratch::with_capacity(256 << 10);
    scratch.alloc(1u8);
    assert!((&raw const *scratch.alloc(Aligned)).addr().is_multiple_of(65536));
    // Leaves the array uninitialised, because a loop over `usize::MAX` elements ends only if the compiler removes it.
    assert_eq!(scratch.alloc_array_uninit::<()>(usize::MAX).len(), usize::MAX);
    assert_eq!(scratch.alloc_array(3, |_| Aligned).len(), 3);
    assert_eq!(scratch.alloc_array_zeroed::<[u64; 0]>(usize::MAX / 2).len(), usize::MAX / 2);
    let used = scratch.used_bytes();
    assert!(used <= 65536 * 2);
    // If a length overflows when it is converted to bytes, the request must fail, not return a small array.
    for len in [usize::MAX, usize::MAX / 8 + 2, isize::MAX as usize, isize::MAX as usize / 8 + 1, 1 << 57] {
        let error = scratch.try_alloc_array_uninit::<u64>(len).unwrap_err();
        assert_eq!((error.asked_bytes, error.left_bytes), (len.saturating_mul(8), scratch.capacity_bytes() - used));
    }
    for bytes in [usize::MAX, isize::MAX as usize, 1 << 60] {
        assert_eq!(Scratch::try_with_capacity(bytes).unwrap_err().asked_bytes, bytes);
    }
    let panicked = catch_unwind(|| Scratch::with_capacity(1).alloc_array(1 << 20, |_| 0u8).len()).unwrap_err();
    let message = panicked.downcast_ref::<String>().unwrap();
    assert!(message.contains("1048576 bytes") && message.contains("bytes left"), "{message}");
}

/// Tests that also read what the kernel reports about pages.
#[cfg(target_os = "linux")]
mod beside_the_system {
    use super::*;
    use crate::support::in_its_own_process;
    use crate::support::maps::{map_of, resident_pages};

    /// Programs choose a capacity for the worst case, so untouched memory must not become resident, even if a zeroed array is there. After
    /// a reset, the pages stay resident, so the next round faults in none. A release must return them to the system.
    #[test]
    fn pages_are_resident_from_the_first_touch_until_they_are_released() {
        const LARGE: usize = 16 << 30;
        const BYTES: usize = 1 << 20;
        let large = Scratch::with_capacity(LARGE);
        assert_eq!(resident_pages(large.alloc_array_zeroed::<u8>(LARGE).as_ptr().expose_provenance(), LARGE), 0);
        let mut scratch = Scratch::with_capacity(BYTES);
        let at = scratch.alloc_array_zeroed::<u8>(BYTES).as_ptr().expose_provenance();
        for back in [Scratch::reset, Scratch::wipe] {
            back(&mut scratch);
            scratch.alloc_array(BYTES, |_| 0xA5u8);
            assert_eq!(resident_pages(at, BYTES), BYTES / 4096);
            back(&mut scratch);
            assert_eq!(resident_pages(at, BYTES), BYTES / 4096);
        }
        scratch.release();
        assert_eq!(resident_pages(at, BYTES), 0);
        assert_zeroed(scratch.alloc_array_zeroed::<u8>(BYTES));
    }

    /// `ZK_ALLOC_THP` must also apply to a `Scratch`, because operators forbid huge pages where they cost more than they save.
    #[test]
    fn a_scratch_follows_the_setting_of_huge_pages() {
        for setting in ["never", "auto", "always"] {
            in_its_own_process(&[("ZK_ALLOC_THP", setting)], || {
                // Kernels built without huge pages have neither this file nor these flags.
                let Ok(host) = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled") else { return };
                let scratch = Scratch::with_capacity(8 << 20);
                let map = map_of((&raw const *scratch.alloc(0u8)).addr()).unwrap();
                // If the host has huge pages, `auto` either asks for them or forbids them, depending on their cost there.
                let wanted = setting == "always" || setting == "auto" && !map.has("nh");
                assert_eq!(map.has("hg"), wanted && !host.contains("[never]"), "{map:?}");
                assert_eq!(map.has("nh"), !wanted, "{map:?}");
            });
        }
    }
}

/// Tests of collections in a `Scratch`.
#[cfg(feature = "allocator-api2")]
#[allow(unsafe_code, reason = "calls Allocator itself")]
mod collections {
    use std::alloc::Layout;
    use std::hash::RandomState;
    use std::ptr::NonNull;

    use allocator_api2::alloc::Allocator;
    use allocator_api2::boxed::Box as ScratchBox;
    use allocator_api2::vec::Vec as ScratchVec;
    use proptest::prelude::*;
    use zk_alloc::Scratch;

    #[derive(Clone, Copy, Debug)]
    enum Op {
        New,
        Extend,
        Truncate,
        Shrink,
        Drop,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop::sample::select([vec![Op::New, Op::Truncate, Op::Shrink, Op::Drop], vec![Op::Extend; 4]].concat())
    }

    /// Returns a strategy for numbers of bytes.
    fn bytes() -> impl Strategy<Value = usize> {
        prop_oneof![4 => 0..100usize, 2 => 0..2_000usize, 1 => 0..20_000usize]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

        /// The last block grows in place, and other blocks move to grow. In both cases, each vector has the same contents as an ordinary
        /// one, even if the scratch is full.
        #[test]
        fn vectors_in_a_scratch_have_the_contents_of_ordinary_vectors(
            ops in prop::collection::vec((op(), any::<usize>(), bytes(), any::<u8>()), 1..200)
        ) {
            let mut scratch = Scratch::with_capacity(32 << 10);
            let mut vectors: Vec<(ScratchVec<u8, &Scratch>, Vec<u8>)> = Vec::new();
            for (op, which, n, value) in ops {
                let which = which % vectors.len().max(1);
                match (op, vectors.get_mut(which)) {
                    (Op::New, _) => vectors.push((ScratchVec::new_in(&scratch), Vec::new())),
                    (Op::Extend, Some((inside, outside))) => {
                        if inside.try_reserve(n).is_ok() {
                            inside.extend((0..n).map(|i| value.wrapping_add(i as u8)));
                            outside.extend((0..n).map(|i| value.wrapping_add(i as u8)));
                        }
                    }
                    (Op::Truncate, Some((inside, outside))) => {
                        inside.truncate(n);
                        outside.truncate(n);
                    }
                    (Op::Shrink, Some((inside, _))) => {
                        inside.shrink_to_fit();
                        assert_eq!(inside.capacity(), inside.len());
                    }
                    (Op::Drop, Some(_)) => drop(vectors.swap_remove(which)),
                    (_, None) => {}
                }
                assert!(vectors.iter().all(|(inside, outside)| inside[..] == outside[..]));
                assert!(vectors.iter().map(|(inside, _)| inside.capacity()).sum::<usize>() <= scratch.used_bytes());
            }
            drop(vectors);
            scratch.reset();
            assert_eq!(scratch.used_bytes(), 0);
        }
    }

    /// A vector that grows by pushing must not leave its earlier, smaller buffers behind.
    #[test]
    fn the_last_vector_grows_in_place_and_returns_its_memory() {
        let scratch = Scratch::with_capacity(1 << 20);
        let mut first = ScratchVec::new_in(&scratch);
        first.extend(0..1000u32);
        let before = scratch.used_bytes();
        let mut last = ScratchVec::new_in(&scratch);
        last.push(0u64);
        let at = last.as_ptr();
        last.extend(1..50_000u64);
        assert_eq!(last.as_ptr(), at);
        last.truncate(10);
        last.shrink_to_fit();
        assert!(last.iter().copied().eq(0..10) && last.as_ptr() == at);
        assert!(scratch.used_bytes() < before + 200, "{scratch:?}");
        drop(last);
        assert!(scratch.used_bytes() < before + 64, "{scratch:?}");
        // Dropping a block that is not the last returns no memory.
        let boxed = ScratchBox::new_in([7u64; 100], &scratch);
        let with_box = scratch.used_bytes();
        drop(first);
        assert_eq!(scratch.used_bytes(), with_box);
        assert_eq!(*boxed, [7; 100]);
    }

    #[test]
    fn hashbrown_maps_work_in_a_scratch() {
        let mut scratch = Scratch::with_capacity(1 << 20);
        for round in 0..3u64 {
            let mut map = hashbrown::HashMap::with_hasher_in(RandomState::new(), &scratch);
            map.extend((0..2_000u64).map(|key| (key, key * round)));
            assert!((0..2_000).all(|key| map[&key] == key * round));
            assert!(scratch.used_bytes() > 2_000 * 16);
            drop(map);
            scratch.reset();
        }
    }

    /// Zeroed blocks and zeroed growth are zero in memory that was written before. A block that shrinks to a larger alignment, which
    /// `Allocator` allows, moves if it must.
    #[test]
    fn zeroed_blocks_in_reused_memory_are_zero_and_move_if_they_must() {
        let mut scratch = Scratch::with_capacity(1 << 16);
        scratch.alloc_array(1 << 16, |_| 0xA5u8);
        scratch.reset();
        let scratch = &scratch;
        // SAFETY: these are initialised blocks of a scratch that outlives their use in this test. Each is read only while it is allocated.
        let bytes = |block: NonNull<[u8]>| -> &'static mut [u8] { unsafe { &mut *block.as_ptr() } };
        let is_kept = |block| bytes(block).iter().enumerate().all(|(at, &byte)| byte == u8::from(at < 1000));
        let layout = |size| Layout::from_size_align(size, 16).unwrap();
        let block = scratch.allocate_zeroed(layout(1000)).unwrap();
        assert!(bytes(block).iter().all(|&byte| byte == 0));
        bytes(block).fill(1);
        // The block grows in place, then moves because another block follows it, then fails to grow because no room is left.
        // SAFETY: the block is allocated, with this layout.
        let grown = unsafe { scratch.grow_zeroed(block.cast(), layout(1000), layout(3000)) }.unwrap();
        assert!(grown.cast::<u8>() == block.cast::<u8>() && is_kept(grown));
        scratch.alloc(1u8);
        // SAFETY: `grown` is allocated, with this layout.
        let moved = unsafe { scratch.grow_zeroed(grown.cast(), layout(3000), layout(5000)) }.unwrap();
        assert!(moved.cast::<u8>() != grown.cast::<u8>() && is_kept(moved));
        // SAFETY: `moved` is allocated, with this layout.
        assert!(unsafe { scratch.grow_zeroed(moved.cast(), layout(5000), layout(1 << 16)) }.is_err());
        assert!(is_kept(moved));
        let aligned = Layout::from_size_align(500, 4096).unwrap();
        // SAFETY: `moved` is still allocated with this layout, because its growth failed.
        let shrunk = unsafe { scratch.shrink(moved.cast(), layout(5000), aligned) }.unwrap();
        assert!(shrunk.cast::<u8>().addr().get().is_multiple_of(4096) && is_kept(shrunk));
    }
}

/// Tests of the protections of a `SecretBuf`, as the kernel reports them.
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "touches guarded memory on purpose")]
mod secret {
    use std::os::unix::process::ExitStatusExt;

    use crate::support::maps::map_of;
    use crate::support::process::{give_up_root, in_a_fork, limited, lockable_bytes};
    use crate::support::{alone, child};
    use zk_alloc::SecretBuf;

    const PAGE_BYTES: usize = 4096;

    fn address(secret: &SecretBuf) -> usize {
        secret.as_ptr().addr()
    }

    /// Logs often print values with `{:?}`, which must not show a secret. If a length overflows when it is rounded up to whole pages, the
    /// request must fail, not return a small buffer.
    #[test]
    fn debug_prints_no_contents_and_lengths_larger_than_any_memory_are_refused() {
        let secret = SecretBuf::from_slice(&[0xA5; 8]);
        let text = format!("{secret:?} {secret:#?}");
        assert!(text.contains("len: 8"), "{text}");
        assert!(!text.contains("165") && !text.to_lowercase().contains("a5"), "{text}");
        let largest = isize::MAX as usize;
        for len in [usize::MAX, usize::MAX - PAGE_BYTES, largest, largest - 2 * PAGE_BYTES, 1 << 60] {
            assert_eq!(SecretBuf::try_zeroed(len).unwrap_err().asked_bytes, len);
        }
    }

    /// The kernel may refuse each of the protections. What the buffer reports about them must match what the kernel reports.
    #[test]
    fn the_kernel_locks_a_secret_and_leaves_it_out_of_dumps_and_children() {
        let secret = SecretBuf::zeroed(2 * PAGE_BYTES + 1);
        let map = map_of(address(&secret)).unwrap();
        assert_eq!(map.access, "rw-p");
        assert_eq!(map.has("lo"), secret.is_locked(), "{map:?}");
        // All tests of this binary together lock less than 1 MiB.
        assert!(secret.is_locked() || lockable_bytes() < 1 << 20, "{map:?}");
        assert!(map.has("dd") && secret.is_left_out_of_dumps(), "{map:?}");
        assert!(map.has("wf") && secret.is_wiped_on_fork(), "{map:?}");
        for guard in [address(&secret) - 1, address(&secret) + 3 * PAGE_BYTES] {
            assert_eq!(map_of(guard).unwrap().access, "---p");
        }
    }

    /// If the pages stayed mapped, a stale pointer could still read them.
    #[test]
    fn a_dropped_buffer_is_no_longer_mapped() {
        alone!();
        // Runs in a process of its own, so no other thread maps memory at the same place.
        let secret = SecretBuf::from_slice(&[0xA5; 5 * PAGE_BYTES]);
        let start = address(&secret);
        assert!(map_of(start).is_some());
        drop(secret);
        for at in (start - PAGE_BYTES..start + 6 * PAGE_BYTES).step_by(PAGE_BYTES) {
            assert!(map_of(at).is_none(), "{:?}", map_of(at));
        }
    }

    /// A read that runs past the end of a neighbouring buffer, for example in a C library, must kill the process before it reaches the
    /// secret.
    #[test]
    fn reading_past_either_end_ends_the_process() {
        for offset in [-1, PAGE_BYTES as isize] {
            let ended = child(&[], || {
                let secret = SecretBuf::zeroed(PAGE_BYTES);
                // SAFETY: the address is invalid on purpose, and the access must kill the process here.
                unsafe { secret.as_ptr().wrapping_offset(offset).read_volatile() };
            });
            assert!(ended.is_none_or(|ended| ended.status.signal() == Some(libc::SIGSEGV)), "byte {offset} was read");
        }
    }

    /// A forked child inherits a copy of the parent's memory. It must not contain secrets, because the child may, for example, dump core.
    #[test]
    fn a_child_of_fork_finds_zeroes_and_the_parent_keeps_its_secret() {
        let secret = SecretBuf::from_slice(&[0xA5; 3 * PAGE_BYTES]);
        let start = secret.as_ptr();
        // SAFETY: the address is within the buffer, of which the child has a copy.
        let is_zero = || (0..3 * PAGE_BYTES).all(|at| unsafe { start.add(at).read_volatile() } == 0);
        assert_eq!(in_a_fork(|| u8::from(!is_zero())), 0, "the child read a secret");
        assert!(secret.iter().all(|&byte| byte == 0xA5));
    }

    /// Containers often allow no locked memory. A prover must run there too, and must be able to find out that its secrets are not locked.
    #[test]
    fn without_memory_to_lock_a_buffer_works_and_says_that_it_is_not_locked() {
        alone!();
        // The limit does not apply to root, so the test gives up root.
        limited(libc::RLIMIT_MEMLOCK, 0, || {
            assert!(give_up_root());
            let secret = SecretBuf::from_slice(&[0xA5; PAGE_BYTES]);
            assert!(!secret.is_locked() && !map_of(address(&secret)).unwrap().has("lo"));
            assert!(secret.is_left_out_of_dumps() && secret.is_wiped_on_fork());
            assert!(secret.iter().all(|&byte| byte == 0xA5));
        });
    }
}
