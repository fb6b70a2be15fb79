//! Memory that the harness maps for itself, because the recorded or measured allocator must not serve it.
#![allow(unsafe_code, reason = "fills memory that must not be allocated")]

use anyhow::Context;
use memmap2::MmapOptions;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// The alignment of every mapping.
const PAGE_BYTES: usize = 4096;

/// Zeroed memory that is never unmapped. Only written pages take memory.
pub(crate) fn zeroed(bytes: usize) -> anyhow::Result<NonNull<u8>> {
    let map = MmapOptions::new().len(bytes.max(1)).no_reserve_swap().map_anon();
    let mut map = ManuallyDrop::new(map.with_context(|| format!("cannot map {bytes} bytes for the harness"))?);
    NonNull::new(map.as_mut_ptr()).context("the kernel mapped address 0")
}

/// A table of `len` values that is never unmapped. Each value comes from `next`. The whole table is resident from now
/// on.
pub(crate) fn table<T>(len: usize, mut next: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<&'static mut [T]> {
    const { assert!(align_of::<T>() <= PAGE_BYTES && size_of::<T>() > 0) };
    let bytes = len.checked_mul(size_of::<T>()).with_context(|| format!("a table of {len} entries is too large"))?;
    let start = zeroed(bytes)?.cast::<T>();
    for index in 0..len {
        let value = next()?;
        // SAFETY: `index` is below `len`, so the slot is inside the mapping, which is aligned for `T` and used by
        // nothing else.
        unsafe { start.add(index).write(value) };
    }
    // SAFETY: all `len` values were just written. Nothing else refers to the mapping, which is never unmapped.
    Ok(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_holds_what_it_was_given_and_an_error_ends_it() {
        let mut count = 0_u64;
        let mut next = || {
            count += 1;
            anyhow::Ok(count)
        };
        assert_eq!(table(3, &mut next).unwrap(), [1, 2, 3]);
        assert!(table(0, next).unwrap().is_empty());
        assert!(table::<u64>(3, || anyhow::bail!("no more")).is_err());
    }
}
