//! Zeroing that the compiler does not remove.
#![allow(unsafe_code, reason = "volatile writes")]

use std::mem::MaybeUninit;
use std::sync::atomic::{Ordering, compiler_fence};

/// Zeroes `bytes`, even if nobody reads them again. The compiler may remove an ordinary write to memory that is about to be freed,
/// but not a volatile one.
pub(crate) fn wipe(bytes: &mut [MaybeUninit<u8>]) {
    // SAFETY: any bytes are valid as `MaybeUninit<u64>`.
    let (head, words, tail) = unsafe { bytes.align_to_mut::<MaybeUninit<u64>>() };
    head.iter_mut().for_each(zero);
    // Word by word: byte by byte, a large range would take eight times as long.
    words.iter_mut().for_each(zero);
    tail.iter_mut().for_each(zero);
    // The compiler moves no later access (unmapping, reuse) before the writes.
    compiler_fence(Ordering::SeqCst);
}

fn zero<T>(place: &mut MaybeUninit<T>) {
    // SAFETY: the reference is ours alone, and a `MaybeUninit` needs no drop.
    unsafe { std::ptr::write_volatile(place, MaybeUninit::zeroed()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Different loops write the words in the middle and the bytes at both edges. They must leave no gap, and touch nothing outside
    /// the range.
    #[test]
    fn every_byte_of_a_range_is_wiped_and_none_beside_it() {
        for start in 0..20 {
            for len in 0..70 {
                let mut bytes = [MaybeUninit::new(0xA5u8); 100];
                wipe(&mut bytes[start..start + len]);
                // SAFETY: initialised two lines above.
                let bytes = bytes.map(|byte| unsafe { byte.assume_init() });
                for (at, &byte) in bytes.iter().enumerate() {
                    let expected = if (start..start + len).contains(&at) { 0 } else { 0xA5 };
                    assert_eq!(byte, expected, "byte {at} of [{start}, {start} + {len})");
                }
            }
        }
    }
}
