//! The errors that [`Scratch`](crate::Scratch) and [`SecretBuf`](crate::SecretBuf) return when there is no memory.

use std::error::Error;
use std::fmt;

/// The system refused memory for a [`Scratch`](crate::Scratch) or a [`SecretBuf`](crate::SecretBuf).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryRefused {
    /// The size of the request, in bytes.
    pub asked_bytes: usize,
    /// The system's error number. It is 0 if the system was not asked, because no address space holds a request of this size.
    pub errno: i32,
}

impl fmt::Display for MemoryRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked_bytes, errno } = self;
        write!(f, "the system refused {asked_bytes} bytes of memory (errno {errno}); nothing was mapped")
    }
}

impl Error for MemoryRefused {}

/// A [`Scratch`](crate::Scratch) has too little memory left for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScratchExhausted {
    /// The size of the request, in bytes; `usize::MAX` if it does not fit into a `usize`.
    pub asked_bytes: usize,
    /// The alignment of the request, in bytes. Padding for it takes some of the bytes that are left.
    pub align_bytes: usize,
    /// Bytes left in the scratch.
    pub left_bytes: usize,
    /// Bytes that an empty scratch holds.
    pub capacity_bytes: usize,
}

impl fmt::Display for ScratchExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked_bytes, align_bytes, left_bytes, capacity_bytes } = self;
        write!(
            f,
            "{asked_bytes} bytes (on a boundary of {align_bytes}) were asked of a scratch that has {left_bytes} of \
             {capacity_bytes} bytes left; nothing was allocated"
        )
    }
}

impl Error for ScratchExhausted {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_what_was_asked_what_was_found_and_what_happens_now() {
        assert_eq!(
            MemoryRefused { asked_bytes: 4096, errno: 12 }.to_string(),
            "the system refused 4096 bytes of memory (errno 12); nothing was mapped"
        );
        assert_eq!(
            ScratchExhausted { asked_bytes: 100, align_bytes: 64, left_bytes: 120, capacity_bytes: 4096 }.to_string(),
            "100 bytes (on a boundary of 64) were asked of a scratch that has 120 of 4096 bytes left; nothing was allocated"
        );
    }
}
