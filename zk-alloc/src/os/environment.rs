//! The settings from the environment, as it was when the process started, read without the standard library's lock.
//!
//! `std::env` guards the environment with a lock. Another thread may hold it while it sets a variable. After a fork, it may stay
//! locked forever. The first allocation may come at such a moment, and must not wait. So a function before `main` copies the values,
//! while the process has one thread. All later reads use that copy. Variables that the program sets later are not seen. (In a library
//! that `dlopen` loads, the copy is made at that time.)
#![allow(unsafe_code, reason = "runs before main, and reads the C library's list of variables")]

use std::fmt::{self, Write};

use crate::written_once::WrittenOnce;

/// Every variable that the crate reads. A lookup of any other name finds nothing.
pub(crate) const VARIABLES: &[&str] = &[
    "ZK_ALLOC_SLAB_GB",
    "ZK_ALLOC_MIN_BYTES",
    "ZK_ALLOC_RETAIN_BYTES",
    "ZK_ALLOC_RETAIN_FOR",
    "ZK_ALLOC_MAX_BYTES",
    "ZK_ALLOC_THP",
    "ZK_ALLOC_LAZY_ZERO_BYTES",
    super::SANDBOX,
    #[cfg(feature = "tune")]
    super::TUNE,
    "ZK_ALLOC_BACKGROUND",
    "ZK_ALLOC_TRACE_ESCAPED",
    #[cfg(feature = "profile")]
    "ZK_ALLOC_PROFILE",
    #[cfg(feature = "profile")]
    "ZK_ALLOC_PROFILE_BYTES",
    super::pages::TEST_PAGE_BYTES,
    super::TEST_BARE_METAL,
];

/// Longer than any usable value, and longer than the part of a value that a message shows ([`Cut`](super::Cut)).
const HEAD_BYTES: usize = 96;

/// The value of a variable, or the beginning of a value that is too long to be usable.
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

    /// The value, if it is complete and valid UTF-8.
    pub(crate) fn text(&self) -> Option<&str> {
        if self.is_cut { None } else { std::str::from_utf8(self.head()).ok() }
    }

    fn head(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Formats the value as the standard library formats an `OsStr`.
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

/// The value that a variable of [`VARIABLES`] had when the process started, if any. Allocates nothing, and never waits. Outside of
/// Unix nothing can run before `main`, so the standard library is asked.
pub(crate) fn variable(name: &str) -> Option<Value> {
    let taken_now = || {
        // A library's constructor may get here before ours has run. (A signal handler that interrupts the copying finds no variables:
        // it can't wait for the code that it interrupted.)
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
            // environ(7). The C library sets it before it runs constructors. (glibc also passes it to them; musl does not.)
            static environ: *const *const c_char;
        }
        // SAFETY: a variable of the C library, which only the program changes: see `copied`.
        unsafe { environ }
    }

    #[cfg(target_vendor = "apple")]
    fn environ() -> *const *const c_char {
        unsafe extern "C" {
            // environ(7): dynamic libraries have no symbol for the variable itself.
            safe fn _NSGetEnviron() -> *mut *const *const c_char;
        }
        // SAFETY: the address of a variable of the C library, which only the program changes: see `copied`.
        unsafe { *_NSGetEnviron() }
    }

    /// Copies the values of [`VARIABLES`] from the C library's list. The first of equal names counts, as for getenv(3).
    fn copied() -> Values {
        let mut values = [None; VARIABLES.len()];
        let mut at = environ();
        while !at.is_null() {
            // SAFETY: the list ends with a null pointer, where the loop stops. It is the list at the start of the process, when no
            // other thread can change it.
            let entry = unsafe { *at };
            if entry.is_null() {
                break;
            }
            // SAFETY: each entry is a C string; as above.
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

    // Runs before the program's constructors that name no priority: those may start threads, which may change the environment. (101
    // is the first priority that is not reserved for the C library.)
    // SAFETY: the loader calls the C functions listed in this section before `main`. It may pass arguments, which they ignore.
    #[used]
    #[cfg_attr(not(target_vendor = "apple"), unsafe(link_section = ".init_array.00101"))]
    #[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__mod_init_func"))]
    static BEFORE_MAIN: extern "C" fn() = copy;

    /// Copies the values for a caller that runs before [`BEFORE_MAIN`]. The call goes through that static, so that the linker keeps
    /// it.
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
