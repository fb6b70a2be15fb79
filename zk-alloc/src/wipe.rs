//! Zeroing that stays in the program.
#![allow(unsafe_code, reason = "volatile writes")]

use std::mem::MaybeUninit;
use std::sync::atomic::{Ordering, compiler_fence};

/// Zeroes `bytes`, also where nobody reads them again. An ordinary write to memory that is about to be freed may be left out
/// by the compiler; a volatile one may not.
pub(crate) fn wipe(bytes: &mut [MaybeUninit<u8>]) {
    // SAFETY: any bytes are a `MaybeUninit<u64>`.
    let (head, words, tail) = unsafe { bytes.align_to_mut::<MaybeUninit<u64>>() };
    head.iter_mut().for_each(zero);
    // By words: large memory would take eight times as long by bytes.
    words.iter_mut().for_each(zero);
    tail.iter_mut().for_each(zero);
    // What follows (unmapping, reuse) is not moved before the writes.
    compiler_fence(Ordering::SeqCst);
}

fn zero<T>(place: &mut MaybeUninit<T>) {
    // SAFETY: a place of our own, which needs no drop.
    unsafe { std::ptr::write_volatile(place, MaybeUninit::zeroed()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words in the middle and the bytes at both edges are written by different loops, which must leave no gap and
    /// touch nothing beyond.
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
