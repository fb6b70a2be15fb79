//! The call chain of a thread, as addresses and as readable text.
#![cfg_attr(feature = "backtrace", allow(unsafe_code, reason = "walks the stack without a lock"))]

/// The call chain of a thread: the return addresses of its calls, the innermost first.
#[cfg(feature = "backtrace")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Frames {
    addresses: [usize; MAX_FRAMES],
    len: u8,
}

/// The most frames that are captured. Outer frames beyond these are left out.
#[cfg(feature = "backtrace")]
pub(crate) const MAX_FRAMES: usize = 64;

#[cfg(feature = "backtrace")]
impl Frames {
    /// The call chain of this thread. Takes no lock of its own and allocates nothing. With glibc before 2.35, the unwinder holds the
    /// loader's lock.
    pub(crate) fn capture() -> Self {
        let mut frames = Self { addresses: [0; MAX_FRAMES], len: 0 };
        let note = |frame: &backtrace::Frame| {
            let address = frame.ip().addr();
            // The stack of some threads ends with such a frame.
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

    /// The return addresses, the innermost first.
    #[cfg(feature = "profile")]
    pub(crate) fn addresses(&self) -> &[usize] {
        &self.addresses[..usize::from(self.len)]
    }

    /// As text: a line for each function, and one for its place in the source, as far as the program's debug information
    /// knows them.
    pub(crate) fn resolved(&self) -> String {
        let place = |call: &Call| call.place.as_ref().map_or_else(String::new, |at| format!("             at {at}\n"));
        self.calls()
            .iter()
            .enumerate()
            .map(|(number, call)| format!("{number:>4}: {}\n{}", call.function, place(call)))
            .collect()
    }

    /// In one line: the program's innermost function with its place, and the function that called it.
    pub(crate) fn in_one_line(&self) -> String {
        one_line(&self.calls())
    }

    fn calls(&self) -> Vec<Call> {
        let mut calls = Vec::new();
        for &address in &self.addresses[self.made_by()..usize::from(self.len)] {
            let before = calls.len();
            backtrace::resolve(std::ptr::with_exposed_provenance_mut(address), |symbol| {
                let function = symbol.name().map_or_else(|| "unknown".into(), |name| format!("{name:#}"));
                let place = symbol.filename().zip(symbol.lineno());
                calls.push(Call { function, place: place.map(|(file, line)| format!("{}:{line}", file.display())) });
            });
            if calls.len() == before {
                calls.push(Call { function: format!("{address:#x}"), place: None });
            }
        }
        calls
    }

    /// The index of the first frame outside of the tracing itself, whose frames are the same in every backtrace. 0 if it is unknown.
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

/// A function, and its place in the source.
#[cfg(feature = "backtrace")]
struct Call {
    function: String,
    place: Option<String>,
}

/// Functions with these prefixes are not the program's own: they lie between it and the allocator.
#[cfg(feature = "backtrace")]
const OF_LIBRARIES: [&str; 8] =
    ["alloc::", "core::", "std::", "hashbrown::", "rayon::", "rayon_core::", "zk_alloc::", "__r"];

/// See [`Frames::in_one_line`].
#[cfg(feature = "backtrace")]
fn one_line(calls: &[Call]) -> String {
    let is_own = |call: &&Call| {
        let function = call.function.trim_start_matches('<');
        !OF_LIBRARIES.iter().any(|library| function.starts_with(library))
    };
    let mut own = calls.iter().filter(is_own);
    let Some(Call { function, place }) = own.next().or(calls.first()) else { return "an unknown place".into() };
    let place = place.as_ref().map_or_else(String::new, |place| format!(" ({place})"));
    let caller = own.find(|caller| caller.function != *function);
    let caller = caller.map_or_else(String::new, |caller| format!(", called by {}", caller.function));
    format!("{function}{place}{caller}")
}

/// Without the feature `backtrace`, nothing is captured.
#[cfg(not(feature = "backtrace"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Frames;

#[cfg(not(feature = "backtrace"))]
impl Frames {
    pub(crate) fn capture() -> Self {
        Self
    }

    pub(crate) fn resolved(&self) -> String {
        format!("an unknown place: {}\n", self.in_one_line())
    }

    pub(crate) fn in_one_line(&self) -> String {
        "zk-alloc was built without its feature `backtrace`".into()
    }
}

#[cfg(all(test, feature = "backtrace"))]
mod tests {
    use super::*;

    /// The line leaves out the calls of the allocator and of libraries, which tell nothing about the place.
    #[test]
    fn a_line_has_the_programs_innermost_function_and_its_caller() {
        let call =
            |(function, place): (&str, Option<&str>)| Call { function: function.into(), place: place.map(Into::into) };
        let calls = [
            ("zk_alloc::observe::allocated", None),
            ("<alloc::vec::Vec<u8> as Clone>::clone", Some("/rustc/vec.rs:1")),
            ("prover::trace", Some("src/trace.rs:12")),
            ("core::ops::call", None),
            ("prover::main", None),
        ];
        assert_eq!(one_line(&calls.map(call)), "prover::trace (src/trace.rs:12), called by prover::main");
    }
}
