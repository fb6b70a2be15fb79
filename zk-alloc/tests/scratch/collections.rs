//! Collections in a `Scratch`, compared with the same ones outside.
#![allow(unsafe_code, reason = "calls Allocator itself")]

use std::alloc::Layout;
use std::hash::RandomState;
use std::ptr::NonNull;
use std::slice;

use allocator_api2::alloc::Allocator;
use allocator_api2::boxed::Box as ScratchBox;
use allocator_api2::vec::Vec as ScratchVec;
use proptest::prelude::*;
use zk_alloc::Scratch;

#[derive(Clone, Copy, Debug)]
enum Op {
    New,
    Extend { which: usize, n: usize, value: u8 },
    Truncate { which: usize, n: usize },
    Shrink { which: usize },
    Drop { which: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let which = any::<usize>;
    let n = || prop_oneof![4 => 0..100usize, 2 => 0..2_000usize, 1 => 0..20_000usize];
    prop_oneof![
        2 => Just(Op::New),
        8 => (which(), n(), any::<u8>()).prop_map(|(which, n, value)| Op::Extend { which, n, value }),
        2 => (which(), n()).prop_map(|(which, n)| Op::Truncate { which, n }),
        2 => which().prop_map(|which| Op::Shrink { which }),
        2 => which().prop_map(|which| Op::Drop { which }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// The last block grows and shrinks in place, and others move. Either way, each vector has the same contents as
    /// elsewhere, even if the scratch is full.
    #[test]
    fn vectors_in_a_scratch_have_the_contents_of_ordinary_vectors(ops in prop::collection::vec(op(), 1..200)) {
        let mut scratch = Scratch::with_capacity(32 << 10);
        let mut vectors: Vec<(ScratchVec<u8, &Scratch>, Vec<u8>)> = Vec::new();
        for op in ops {
            let count = vectors.len().max(1);
            match op {
                Op::New => vectors.push((ScratchVec::new_in(&scratch), Vec::new())),
                Op::Extend { which, n, value } => {
                    let Some((inside, outside)) = vectors.get_mut(which % count) else { continue };
                    if inside.try_reserve(n).is_ok() {
                        inside.extend((0..n).map(|i| value.wrapping_add(i as u8)));
                        outside.extend((0..n).map(|i| value.wrapping_add(i as u8)));
                    }
                }
                Op::Truncate { which, n } => {
                    let Some((inside, outside)) = vectors.get_mut(which % count) else { continue };
                    inside.truncate(n);
                    outside.truncate(n);
                }
                Op::Shrink { which } => {
                    let Some((inside, _)) = vectors.get_mut(which % count) else { continue };
                    inside.shrink_to_fit();
                    assert_eq!(inside.capacity(), inside.len());
                }
                Op::Drop { which } => {
                    if !vectors.is_empty() {
                        vectors.swap_remove(which % count);
                    }
                }
            }
            assert!(vectors.iter().all(|(inside, outside)| inside[..] == outside[..]));
            assert!(vectors.iter().map(|(inside, _)| inside.capacity()).sum::<usize>() <= scratch.used_bytes());
        }
        drop(vectors);
        scratch.reset();
        assert_eq!(scratch.used_bytes(), 0);
    }
}

/// A vector that is built by pushing must not leave its smaller buffers behind.
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
    // A block that is not the last returns nothing, because the block behind it stays in place.
    let boxed = ScratchBox::new_in([7u64; 100], &scratch);
    let with_box = scratch.used_bytes();
    drop(first);
    assert_eq!(scratch.used_bytes(), with_box);
    assert_eq!(*boxed, [7; 100]);
}

#[test]
fn maps_of_hashbrown_live_in_a_scratch() {
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

/// Zeroed blocks and zeroed growth, in memory that was written before.
#[test]
fn zeroed_blocks_in_reused_memory_are_zero() {
    let mut scratch = Scratch::with_capacity(1 << 16);
    scratch.alloc_array(1 << 16, |_| 0xA5u8);
    scratch.reset();
    let scratch = &scratch;
    let bytes = |block: NonNull<[u8]>| -> &'static mut [u8] {
        // SAFETY: initialised blocks of a scratch that outlives their use in this test, each read only while it is
        // held.
        unsafe { slice::from_raw_parts_mut(block.cast::<u8>().as_ptr(), block.len()) }
    };
    let layout = |size| Layout::from_size_align(size, 16).unwrap();
    let block = scratch.allocate_zeroed(layout(1000)).unwrap();
    assert!(bytes(block).iter().all(|&byte| byte == 0));
    bytes(block).fill(1);
    // In place, then moved because something follows, then refused because no room is left.
    // SAFETY: the blocks are held, with these layouts.
    let grown = unsafe { scratch.grow_zeroed(block.cast(), layout(1000), layout(3000)) }.unwrap();
    assert_eq!(grown.cast::<u8>(), block.cast::<u8>());
    assert!(bytes(grown).iter().enumerate().all(|(at, &byte)| byte == u8::from(at < 1000)));
    scratch.alloc(1u8);
    // SAFETY: as above.
    let moved = unsafe { scratch.grow_zeroed(grown.cast(), layout(3000), layout(5000)) }.unwrap();
    assert_ne!(moved.cast::<u8>(), grown.cast::<u8>());
    assert!(bytes(moved).iter().enumerate().all(|(at, &byte)| byte == u8::from(at < 1000)));
    // SAFETY: as above.
    assert!(unsafe { scratch.grow_zeroed(moved.cast(), layout(5000), layout(1 << 16)) }.is_err());
    assert!(bytes(moved).iter().enumerate().all(|(at, &byte)| byte == u8::from(at < 1000)));
}

/// `Allocator` lets a block change its alignment together with its length.
#[test]
fn a_block_moves_if_its_new_alignment_requires_it() {
    let scratch = &Scratch::with_capacity(1 << 16);
    scratch.alloc(1u8);
    let (old, new) = (Layout::from_size_align(100, 1).unwrap(), Layout::from_size_align(50, 4096).unwrap());
    let block = scratch.allocate(old).unwrap();
    // SAFETY: a block of 100 bytes.
    unsafe { block.cast::<u8>().write_bytes(7, 100) };
    // SAFETY: the block is held, with this layout.
    let moved = unsafe { scratch.shrink(block.cast(), old, new) }.unwrap();
    assert!(moved.cast::<u8>().addr().get().is_multiple_of(4096));
    // SAFETY: the 50 bytes that were copied there.
    assert!(unsafe { slice::from_raw_parts(moved.cast::<u8>().as_ptr(), 50) }.iter().all(|&byte| byte == 7));
}
