//! The call chain of a thread, as addresses and as readable text.
#![cfg_attr(feature = "backtrace", allow(unsafe_code, reason = "walks the stack without a lock"))]

/// The call chain of a thread: the return addresses of its calls, the innermost first. Without the feature `backtrace`, it is empty.
pub(crate) struct Frames {
    addresses: [usize; MAX_FRAMES],
    len: usize,
}

/// The maximum number of frames that are captured. Further callers are left out.
pub(crate) const MAX_FRAMES: usize = 64;

impl Frames {
    /// Captures the call chain of this thread. Takes no lock of its own and allocates nothing. With glibc before 2.35, the unwinder takes
    /// the loader's lock.
    pub(crate) fn capture() -> Self {
        #[cfg_attr(not(feature = "backtrace"), allow(unused_mut, reason = "stays empty"))]
        let mut frames = Self { addresses: [0; MAX_FRAMES], len: 0 };
        #[cfg(feature = "backtrace")]
        frames.walk();
        frames
    }

    #[cfg(feature = "backtrace")]
    fn walk(&mut self) {
        let note = |frame: &backtrace::Frame| {
            let address = frame.ip().addr();
            // On some threads, the outermost frame has address 0.
            if address == 0 {
                return false;
            }
            self.addresses[self.len] = address;
            self.len += 1;
            self.len < MAX_FRAMES
        };
        // SAFETY: only `dbghelp.dll` on Windows needs synchronisation. On Unix, each thread walks its own stack.
        #[cfg(unix)]
        unsafe {
            backtrace::trace_unsynchronized(note);
        }
        #[cfg(not(unix))]
        backtrace::trace(note);
    }

    /// Returns the return addresses, the innermost first.
    pub(crate) fn addresses(&self) -> &[usize] {
        &self.addresses[..self.len]
    }
}

/// Formats a call chain: a line for each function, and a line for its source location, as far as the program's debug information has them.
pub(crate) fn resolved(addresses: &[usize]) -> String {
    let place = |call: &Call| call.place.as_ref().map_or_else(String::new, |at| format!("             at {at}\n"));
    let calls = calls(addresses).into_iter().enumerate();
    calls.map(|(number, call)| format!("{number:>4}: {}\n{}", call.function, place(&call))).collect()
}

/// Formats a call chain in one line: the program's innermost function with its source location, and that function's caller.
pub(crate) fn in_one_line(addresses: &[usize]) -> String {
    let calls = calls(addresses);
    let mut own = calls.iter().filter(|call| !call.is_of(&LIBRARIES));
    let Some(Call { function, place }) = own.next().or(calls.first()) else { return String::new() };
    let place = place.as_ref().map_or_else(String::new, |place| format!(" ({place})"));
    let caller = own.find(|caller| caller.function != *function);
    let caller = caller.map_or_else(String::new, |caller| format!(", called by {}", caller.function));
    format!("{function}{place}{caller}")
}

/// Prefixes of library functions that appear between the program and the allocator.
const LIBRARIES: [&str; 9] =
    ["alloc::", "core::", "std::", "hashbrown::", "rayon::", "rayon_core::", "backtrace::", "zk_alloc::", "__r"];

/// A function, and its source location.
struct Call {
    function: String,
    place: Option<String>,
}

impl Call {
    fn is_of(&self, crates: &[&str]) -> bool {
        crates.iter().any(|name| self.function.trim_start_matches('<').starts_with(name))
    }
}

/// Returns the calls of a chain, from the caller of the allocator outwards.
#[cfg(feature = "backtrace")]
fn calls(addresses: &[usize]) -> Vec<Call> {
    let mut calls = Vec::new();
    for &address in addresses {
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
    if calls.is_empty() {
        calls.push(Call { function: "an unknown place".into(), place: None });
    }
    let own = calls.iter().position(|call| !call.is_of(&LIBRARIES)).unwrap_or(calls.len());
    let allocator = calls[..own].iter().rposition(|call| call.is_of(&["zk_alloc::"]));
    calls.split_off(allocator.map_or(0, |last| last + 1))
}

#[cfg(not(feature = "backtrace"))]
fn calls(_addresses: &[usize]) -> Vec<Call> {
    let why = "an unknown place: zk-alloc was built without its feature `backtrace`";
    vec![Call { function: why.into(), place: None }]
}
