//! Rounding.

/// Rounds up to a multiple of `align`, a power of two.
pub(super) const fn align_up(n: usize, align: usize) -> usize {
    (n + (align - 1)) & !(align - 1)
}
