//! Where a thread is, as addresses; and as text, for people.
#![cfg_attr(feature = "backtrace", allow(unsafe_code, reason = "walks the stack without a lock"))]

/// The calls that a thread was in, the innermost first, by the addresses to which they return.
#[cfg(feature = "backtrace")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Frames {
    addresses: [usize; MAX_FRAMES],
    len: u8,
}

/// Frames further out are left away.
#[cfg(feature = "backtrace")]
pub(crate) const MAX_FRAMES: usize = 64;

#[cfg(feature = "backtrace")]
impl Frames {
    /// Where this thread is now. Takes no lock and allocates nothing, as far as the unwinder does not: with glibc before 2.35, it
    /// holds the loader's lock.
    pub(crate) fn capture() -> Self {
        let mut frames = Self { addresses: [0; MAX_FRAMES], len: 0 };
        let note = |frame: &backtrace::Frame| {
            let address = frame.ip().addr();
            // The last frame of some threads.
            if address == 0 {
                return false;
            }
            frames.addresses[usize::from(frames.len)] = address;
            frames.len += 1;
            usize::from(frames.len) < MAX_FRAMES
        };
        // SAFETY: only `dbghelp.dll` on Windows needs synchronisation. On Unix, each thread walks its own stack.
        #[cfg(unix)]
        unsafe {
            backtrace::trace_unsynchronized(note);
        }
        #[cfg(not(unix))]
        backtrace::trace(note);
        frames
    }

    /// The addresses to which the calls return, the innermost first.
    #[cfg(feature = "profile")]
    pub(crate) fn addresses(&self) -> &[usize] {
        &self.addresses[..usize::from(self.len)]
    }

    /// As text: a line for each function, and one for its place in the source, as far as the program's debug information
    /// knows them.
    pub(crate) fn resolved(&self) -> String {
        use std::fmt::Write;

        let mut text = String::new();
        let mut number = 0;
        for &address in &self.addresses[self.made_by()..usize::from(self.len)] {
            let mut is_known = false;
            backtrace::resolve(std::ptr::with_exposed_provenance_mut(address), |symbol| {
                is_known = true;
                let name = symbol.name().map_or_else(|| "unknown".into(), |name| format!("{name:#}"));
                let _ = writeln!(text, "{number:>4}: {name}");
                if let (Some(file), Some(line)) = (symbol.filename(), symbol.lineno()) {
                    let _ = writeln!(text, "             at {}:{line}", file.display());
                }
                number += 1;
            });
            if !is_known {
                let _ = writeln!(text, "{number:>4}: {address:#x}");
                number += 1;
            }
        }
        text
    }

    /// The first frame outside of this diagnosis, which is the same in every backtrace. 0 where it can't be told.
    fn made_by(&self) -> usize {
        let is_ours = |&address: &usize| {
            let mut found = false;
            backtrace::resolve(std::ptr::with_exposed_provenance_mut(address), |symbol| {
                found = found || symbol.name().is_some_and(|name| format!("{name:#}").ends_with("escape::allocated"));
            });
            found
        };
        self.addresses[..usize::from(self.len)].iter().take(8).position(is_ours).map_or(0, |ours| ours + 1)
    }
}

/// Nothing is known.
#[cfg(not(feature = "backtrace"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Frames;

#[cfg(not(feature = "backtrace"))]
impl Frames {
    pub(crate) fn capture() -> Self {
        Self
    }

    pub(crate) fn resolved(&self) -> String {
        "a place that is not known: zk-alloc was built without its feature `backtrace`\n".into()
    }
}
