//! `SecretBuf`: a buffer for secrets, kept out of swap, core dumps and forked children where the system allows, and zeroed when it is
//! dropped.
#![allow(unsafe_code, reason = "reads and writes a mapping of its own")]

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, compiler_fence};
use std::{fmt, slice};

use crate::os::{self, Errno, Mapping};
use crate::scratch::MemoryRefused;

/// A buffer of fixed length for a witness, a key or a blinding factor, in pages of its own.
///
/// ```
/// use zk_alloc::SecretBuf;
///
/// let mut witness = SecretBuf::zeroed(1 << 10);
/// witness[..4].copy_from_slice(b"seed");
/// assert_eq!(witness[..5], *b"seed\0");
/// assert!(!format!("{witness:?}").contains("seed"));
/// drop(witness); // zeroed, then unmapped
/// ```
///
/// | protection | where | when the system refuses |
/// |---|---|---|
/// | zeroed before its memory is unmapped | everywhere | |
/// | in pages of its own, never the heap's or the arena's | Unix | [`MemoryRefused`] |
/// | between two pages that no access may touch | Unix | [`MemoryRefused`] |
/// | locked in memory, never in swap (`mlock`) | Unix | skipped: [`is_locked`](Self::is_locked) |
/// | not in core dumps (`MADV_DONTDUMP`) | Linux | skipped: [`is_left_out_of_dumps`](Self::is_left_out_of_dumps) |
/// | a child of `fork` finds zeroes (`MADV_WIPEONFORK`) | Linux from 4.14 | skipped: [`is_wiped_on_fork`](Self::is_wiped_on_fork) |
///
/// Locked memory is scarce (`RLIMIT_MEMLOCK`, often 8 MiB for a process), and a buffer takes whole pages. Prefer one buffer for many
/// secrets to many buffers.
///
/// A buffer starts on a page boundary, so it can be viewed as field elements, for example with `bytemuck`.
///
/// # Limits
///
/// - The caller has to zero all copies: the slice that was [copied in](Self::from_slice), values computed from it, registers and
///   stack frames. For values on the stack, use the crate `zeroize`.
/// - It has no `Clone` and no `==`. To compare secrets in constant time, use the crate `subtle`.
/// - It is not zeroed when the process ends without dropping it (`exit`, `abort`, a static). The kernel then reclaims the pages, and zeroes
///   them before another process gets them.
/// - Anyone who can read the memory of the process (root, a debugger, the owner of a hibernation image) can read the buffer.
///
/// ```compile_fail,E0599
/// let copy = zk_alloc::SecretBuf::zeroed(32).clone();
/// ```
pub struct SecretBuf {
    /// Unmapped only after [`Drop::drop`] has zeroed it, because fields are dropped after that call.
    _memory: Mapping,
    start: NonNull<u8>,
    len: usize,
    locked: bool,
    left_out_of_dumps: bool,
    wiped_on_fork: bool,
}

// SAFETY: the bytes belong to the buffer alone. `&self` only reads them, and `&mut self` writes them.
unsafe impl Send for SecretBuf {}
// SAFETY: as above.
unsafe impl Sync for SecretBuf {}

impl SecretBuf {
    /// Creates a buffer of `len` zero bytes.
    ///
    /// # Panics
    /// If the system refuses memory. [`try_zeroed`](Self::try_zeroed) returns an error instead.
    #[must_use]
    #[track_caller]
    pub fn zeroed(len: usize) -> Self {
        Self::try_zeroed(len).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Creates a buffer of `len` zero bytes.
    ///
    /// # Errors
    /// If the system refuses memory. A refused lock is not an error: see [`is_locked`](Self::is_locked).
    pub fn try_zeroed(len: usize) -> Result<Self, MemoryRefused> {
        let (memory, pages) = os::map_guarded(len).map_err(|Errno(errno)| MemoryRefused { asked_bytes: len, errno })?;
        let (start, pages_len) = (pages.cast::<u8>(), pages.len());
        // All three calls come before the first secret is written.
        // SAFETY: the range consists of the pages of the mapping made above.
        let locked = unsafe { os::lock(start.as_ptr(), pages_len) }.is_ok();
        // SAFETY: as above.
        let left_out_of_dumps = unsafe { os::leave_out_of_dumps(start.as_ptr(), pages_len) }.is_ok();
        // SAFETY: as above; this type documents that the buffer reads as zeroes in a forked child.
        let wiped_on_fork = unsafe { os::wipe_on_fork(start.as_ptr(), pages_len) }.is_ok();
        Ok(Self { _memory: memory, start, len, locked, left_out_of_dumps, wiped_on_fork })
    }

    /// Copies `secret` into a new buffer. The original stays as it is: zero it yourself.
    ///
    /// # Panics
    /// If the system refuses memory. [`try_from_slice`](Self::try_from_slice) returns an error instead.
    #[must_use]
    #[track_caller]
    pub fn from_slice(secret: &[u8]) -> Self {
        Self::try_from_slice(secret).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Copies `secret` into a new buffer. The original stays as it is: zero it yourself.
    ///
    /// # Errors
    /// If the system refuses memory. A refused lock is not an error: see [`is_locked`](Self::is_locked).
    pub fn try_from_slice(secret: &[u8]) -> Result<Self, MemoryRefused> {
        let mut buffer = Self::try_zeroed(secret.len())?;
        buffer.copy_from_slice(secret);
        Ok(buffer)
    }

    /// Returns whether the system locked the buffer in memory, so that it never reaches swap. A child of `fork` inherits the buffer, but
    /// not the lock.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.locked
    }

    /// Returns whether the system leaves the buffer out of core dumps.
    #[must_use]
    pub fn is_left_out_of_dumps(&self) -> bool {
        self.left_out_of_dumps
    }

    /// Returns whether a child of `fork` finds zeroes in the buffer. A prover that forks workers has to pass its secrets to them in another
    /// way.
    #[must_use]
    pub fn is_wiped_on_fork(&self) -> bool {
        self.wiped_on_fork
    }
}

impl Deref for SecretBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: these are `len` initialised bytes of this buffer's mapping, and nothing writes to them while `self` is borrowed.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for SecretBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: these are `len` initialised bytes of this buffer's mapping, which are accessed only through `self`.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for SecretBuf {
    fn drop(&mut self) {
        let start = self.start.cast::<MaybeUninit<u8>>().as_ptr();
        // SAFETY: as in `deref_mut`. `wipe` only writes zeroes, so all bytes stay initialised.
        wipe(unsafe { slice::from_raw_parts_mut(start, self.len) });
    }
}

/// Formats the length and whether the buffer is locked, but never the contents.
impl fmt::Debug for SecretBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretBuf").field("len", &self.len).field("locked", &self.locked).finish_non_exhaustive()
    }
}

/// Zeroes `bytes`, even if they are never read again. The compiler may remove an ordinary write to memory that is about to be freed, but
/// not a volatile one.
pub(crate) fn wipe(bytes: &mut [MaybeUninit<u8>]) {
    // SAFETY: any bytes are valid as `MaybeUninit<u64>`.
    let (head, words, tail) = unsafe { bytes.align_to_mut::<MaybeUninit<u64>>() };
    head.iter_mut().for_each(zero);
    // Zero whole words: byte by byte, a large range would take eight times as long.
    words.iter_mut().for_each(zero);
    tail.iter_mut().for_each(zero);
    // Keep the compiler from moving later accesses (unmapping, reuse) before the writes.
    compiler_fence(Ordering::SeqCst);
}

fn zero<T>(place: &mut MaybeUninit<T>) {
    // SAFETY: the reference is exclusive, and a `MaybeUninit` needs no drop.
    unsafe { std::ptr::write_volatile(place, MaybeUninit::zeroed()) };
}
