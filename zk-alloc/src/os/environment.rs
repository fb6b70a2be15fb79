//! The process's environment as it was at its start: the settings, read without the standard library's lock.
//!
//! `std::env` guards the environment with a lock, which another thread may hold (it sets a variable), or which no thread
//! of this process will ever leave (a fork copied it taken). The first request of all may come in such a moment, and must
//! not wait. So the values are copied before `main`, when the process has one thread, and read from that copy ever after.
//! What the program itself sets later is not seen. (In a library that `dlopen` brings, the copy is made then.)
#![allow(unsafe_code, reason = "runs before main, and reads the C library's list of variables")]

use std::fmt::{self, Write};

use crate::written_once::WrittenOnce;

/// Every variable that the crate reads. One that is not listed here is never found.
pub(crate) const VARIABLES: &[&str] = &[
    "ZK_ALLOC_SLAB_GB",
    "ZK_ALLOC_MIN_BYTES",
    "ZK_ALLOC_RETAIN_BYTES",
    "ZK_ALLOC_RETAIN_FOR",
    "ZK_ALLOC_MAX_BYTES",
    "ZK_ALLOC_THP",
    "ZK_ALLOC_LAZY_ZERO_BYTES",
    super::SANDBOX,
    "ZK_ALLOC_BACKGROUND",
    "ZK_ALLOC_TRACE_ESCAPED",
    super::pages::TEST_PAGE_BYTES,
    super::TEST_BARE_METAL,
];

/// More than any usable value is long, and more than a message shows of one ([`Cut`](super::Cut)).
const HEAD_BYTES: usize = 96;

/// The value of a variable, or the head of one that is too long to be of use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Value {
    bytes: [u8; HEAD_BYTES],
    len: u8,
    is_cut: bool,
}

impl Value {
    pub(crate) const fn new(value: &[u8]) -> Self {
        let mut bytes = [0; HEAD_BYTES];
        let len = if value.len() < HEAD_BYTES { value.len() } else { HEAD_BYTES };
        let mut at = 0;
        while at < len {
            bytes[at] = value[at];
            at += 1;
        }
        Self { bytes, len: len as u8, is_cut: len < value.len() }
    }

    /// The value, if it is text and here as a whole.
    pub(crate) fn text(&self) -> Option<&str> {
        if self.is_cut { None } else { std::str::from_utf8(self.head()).ok() }
    }

    fn head(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// As the standard library shows an `OsStr`.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for chunk in self.head().utf8_chunks() {
            for char in chunk.valid().chars() {
                match char {
                    '\'' => f.write_char(char)?,
                    _ => write!(f, "{}", char.escape_debug())?,
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02X}")?;
            }
        }
        f.write_str(if self.is_cut { "" } else { "\"" })
    }
}

/// The value of each of [`VARIABLES`].
type Values = [Option<Value>; VARIABLES.len()];

static SNAPSHOT: WrittenOnce<Values> = WrittenOnce::new();

/// The value that a variable of [`VARIABLES`] had when the process started, if it had one. Allocates nothing and waits for
/// nobody, but where there is no way to run before `main` (outside of Unix): there the standard library is asked.
pub(crate) fn variable(name: &str) -> Option<Value> {
    let taken_now = || {
        // A constructor of a library's that runs before ours. (A signal handler that interrupts the copying finds no
        // variables: it can't wait for what it interrupted.)
        hook::take();
        SNAPSHOT.get()
    };
    let values = SNAPSHOT.get().or_else(taken_now)?;
    values[VARIABLES.iter().position(|&known| known == name)?]
}

#[cfg(unix)]
mod hook {
    use std::ffi::{CStr, c_char};
    use std::hint::black_box;

    use super::{SNAPSHOT, VARIABLES, Value, Values};

    #[cfg(not(target_vendor = "apple"))]
    fn environ() -> *const *const c_char {
        unsafe extern "C" {
            // environ(7). The C library sets it before it runs constructors. (glibc would also pass it to them, musl not.)
            static environ: *const *const c_char;
        }
        // SAFETY: a variable of the C library's, which only the program changes: see `take`.
        unsafe { environ }
    }

    #[cfg(target_vendor = "apple")]
    fn environ() -> *const *const c_char {
        unsafe extern "C" {
            // environ(7): dynamic libraries have no symbol for the variable itself.
            safe fn _NSGetEnviron() -> *mut *const *const c_char;
        }
        // SAFETY: the address of a variable of the C library's, which only the program changes: see `take`.
        unsafe { *_NSGetEnviron() }
    }

    /// The values of [`VARIABLES`], out of the C library's list. The first of equal names counts, as for getenv(3).
    fn copied() -> Values {
        let mut values = [None; VARIABLES.len()];
        let mut at = environ();
        while !at.is_null() {
            // SAFETY: the list ends with a null pointer, which is not passed. It is the list at the start of the process, when
            // there is no other thread that could change it.
            let entry = unsafe { *at };
            if entry.is_null() {
                break;
            }
            // SAFETY: each entry is a string of C's; as above.
            let entry = unsafe { CStr::from_ptr(entry) }.to_bytes();
            let found = VARIABLES
                .iter()
                .zip(values.iter_mut())
                .find_map(|(name, value)| Some((value, entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?)));
            if let Some((value @ None, bytes)) = found {
                *value = Some(Value::new(bytes));
            }
            // SAFETY: not past the null pointer that ends the list.
            at = unsafe { at.add(1) };
        }
        values
    }

    extern "C" fn copy() {
        SNAPSHOT.write(copied);
    }

    // Before constructors of the program's that name no priority (101 is the first that is not the C library's own): those may
    // start threads, which may change the environment.
    // SAFETY: the loader calls what is listed here as functions of C's, before `main`. It may pass arguments, which such a
    // function does not look at.
    #[used]
    #[cfg_attr(not(target_vendor = "apple"), unsafe(link_section = ".init_array.00101"))]
    #[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__mod_init_func"))]
    static BEFORE_MAIN: extern "C" fn() = copy;

    /// For who is before [`BEFORE_MAIN`]. Through that, so that no linker leaves it out: what somebody refers to is kept.
    pub(super) fn take() {
        black_box(&BEFORE_MAIN)();
    }
}

#[cfg(not(unix))]
mod hook {
    use super::{SNAPSHOT, VARIABLES, Value};

    pub(super) fn take() {
        let value = |name| std::env::var_os(name).map(|found| Value::new(found.as_encoded_bytes()));
        SNAPSHOT.write(|| std::array::from_fn(|index| value(VARIABLES[index])));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_shown_as_the_standard_library_shows_it() {
        for text in ["", "4096", "a \"b\" 'c'\\", "\u{1b}[2J\n\t", "żółw"] {
            assert_eq!(format!("{:?}", Value::new(text.as_bytes())), format!("{text:?}"));
            assert_eq!(Value::new(text.as_bytes()).text(), Some(text));
        }
        let broken = Value::new(b"4\xFF\xFE96");
        assert_eq!((format!("{broken:?}"), broken.text()), (r#""4\xFF\xFE96""#.into(), None));
    }

    #[test]
    fn a_value_too_long_is_cut_and_of_no_use() {
        let whole = Value::new(&[b'9'; HEAD_BYTES]);
        assert_eq!(whole.text(), Some(&*"9".repeat(HEAD_BYTES)));
        let cut = Value::new(&[b'9'; HEAD_BYTES + 1]);
        assert_eq!((cut.text(), format!("{cut:?}")), (None, format!("\"{}", "9".repeat(HEAD_BYTES))));
    }
}
