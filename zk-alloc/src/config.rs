//! Settings from the environment: parsed once, when the arena opens; what can't be used is named in one warning each.
//!
//! It is the environment that the process was started with (`os::variable`). What the program itself sets later is not seen:
//! to look would take a lock that the first request, whenever it comes, must not wait for.

mod huge_pages;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::os::{self, Cut, HostHugePages, Value};
use huge_pages::THP;

pub use huge_pages::HugePages;
pub(crate) use huge_pages::huge_pages;

/// What the arena is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// Threads of the machine that this process may use.
    pub(crate) threads: usize,
    /// Address space for each zone, in bytes.
    pub(crate) span_bytes: usize,
    /// Address space for each thread, in bytes: what `ZK_ALLOC_SLAB_GB` asks for, or its share of the default.
    pub(crate) thread_bytes: usize,
    /// The smallest request that the arena serves, in bytes.
    pub(crate) min_bytes: usize,
    /// What may stay resident when no phase is open, in bytes.
    pub(crate) retain_bytes: usize,
    /// What stays resident by itself is what was alive at most in so many nanoseconds; 0 is for ever.
    pub(crate) retain_for_ns: u64,
    /// What may be resident at all, in bytes; beyond, the backing allocator serves.
    pub(crate) max_bytes: usize,
    pub(crate) huge_pages: HugePages,
    /// From so many bytes on, zeroed requests for dirty memory have the kernel clear it page by page.
    pub(crate) lazy_zero_bytes: usize,
    /// Whether to find out, and print, what outlives its phase.
    pub(crate) trace_escaped: bool,
}

const MIN_BYTES_NAME: &str = "ZK_ALLOC_MIN_BYTES";
pub(crate) const DEFAULT_MIN_BYTES: usize = 0;
/// Where more threads than these wait while one of them clears a giant, the kernel clears it on all of them instead.
const EAGER_ZERO_THREADS: usize = 4;
/// What a giant is in that sense: to clear less at once, and find it in the caches, was faster (docs/design.md).
const LAZY_ZERO_BYTES: usize = 128 << 20;

/// Threads beyond the machine's cores that `ZK_ALLOC_SLAB_GB` counts room for, as the crate zk-alloc 0.0.9 did.
const EXTRA_THREADS: usize = 4;

static MIN_BYTES: AtomicUsize = AtomicUsize::new(DEFAULT_MIN_BYTES);
static THREAD_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The smallest request that the arena serves, in bytes: `ZK_ALLOC_MIN_BYTES` as the process was started with it; 0, which is
/// every request, by default. Smaller requests always go to the backing allocator.
#[inline]
#[must_use]
pub fn min_arena_bytes() -> usize {
    MIN_BYTES.load(Ordering::Relaxed)
}

/// The arena's capacity for each thread, in bytes: `ZK_ALLOC_SLAB_GB` as the process was started with it. 0 before the first
/// phase.
#[must_use]
pub fn slab_size() -> usize {
    THREAD_BYTES.load(Ordering::Relaxed)
}

/// Reads the environment and the machine, and makes the result current.
pub(crate) fn load() -> Config {
    let machine = Machine {
        threads: os::available_threads(),
        memory_bytes: os::memory_limit_bytes(),
        host_huge_pages: os::host_huge_pages(),
    };
    let config = Config::parse(machine, os::variable, |warning| os::warn(format_args!("{warning}")));
    MIN_BYTES.store(config.min_bytes, Ordering::Relaxed);
    THREAD_BYTES.store(config.thread_bytes, Ordering::Relaxed);
    config
}

/// The threshold is known before the first request, which decides by it whether to open the arena; all else is read then.
#[cfg(unix)]
#[allow(unsafe_code, reason = "has a function called before main")]
mod before_main {
    use std::sync::atomic::Ordering;

    use crate::config::{DEFAULT_MIN_BYTES, MIN_BYTES, min_bytes_setting};

    // Right after `os::environment` has copied the variables.
    // SAFETY: the loader calls what is listed here as functions of C's, before `main`. It may pass arguments, which such a
    // function does not look at.
    #[used]
    #[cfg_attr(not(target_vendor = "apple"), unsafe(link_section = ".init_array.00102"))]
    #[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__mod_init_func"))]
    static BEFORE_MAIN: extern "C" fn() = read_threshold;

    /// A value that can't be used is warned of when the arena opens.
    extern "C" fn read_threshold() {
        MIN_BYTES.store(min_bytes_setting().unwrap_or(DEFAULT_MIN_BYTES), Ordering::Relaxed);
    }
}

/// `ZK_ALLOC_MIN_BYTES`, if it is set to something of use.
#[cfg_attr(not(unix), allow(dead_code, reason = "nothing runs before `main` there"))]
pub(crate) fn min_bytes_setting() -> Option<usize> {
    os::variable(MIN_BYTES_NAME).as_ref().and_then(|value| parse_bytes(value.text()?.trim()))
}

/// What the settings are judged against.
#[derive(Clone, Copy, Debug)]
struct Machine {
    threads: usize,
    memory_bytes: usize,
    host_huge_pages: HostHugePages,
}

/// A value that can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Warning {
    name: &'static str,
    value: Value,
    wanted: &'static str,
    used: Used,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Used {
    Number(usize),
    Word(&'static str),
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={} is not {}; using the default, ", self.name, Cut(&self.value), self.wanted)?;
        match self.used {
            Used::Number(n) => write!(f, "{n}"),
            Used::Word(word) => f.write_str(word),
        }
    }
}

impl Config {
    fn parse(machine: Machine, lookup: impl Fn(&'static str) -> Option<Value>, mut warn: impl FnMut(Warning)) -> Self {
        let threads = machine.threads + EXTRA_THREADS;
        let default_thread_bytes = (8 * machine.memory_bytes / threads).max(1 << 30);
        let thread_bytes = setting(
            "ZK_ALLOC_SLAB_GB",
            "a whole number of GiB, at least 1",
            |text| {
                text.parse::<usize>()
                    .ok()?
                    .checked_mul(1 << 30)
                    .filter(|&bytes| bytes > 0 && bytes as u64 <= MAX_THREAD_BYTES)
            },
            (default_thread_bytes, Used::Number(default_thread_bytes >> 30)),
            &lookup,
            &mut warn,
        );
        let min_bytes = bytes_setting(MIN_BYTES_NAME, DEFAULT_MIN_BYTES, &lookup, &mut warn);
        let retain_bytes = bytes_setting("ZK_ALLOC_RETAIN_BYTES", machine.memory_bytes / 2, &lookup, &mut warn);
        let retain_for_ns = setting(
            "ZK_ALLOC_RETAIN_FOR",
            "a number of seconds (such as 10 or 0.5), or ever",
            parse_window,
            (DEFAULT_WINDOW_NS, Used::Number((DEFAULT_WINDOW_NS / 1_000_000_000) as usize)),
            &lookup,
            &mut warn,
        );
        let max_bytes = setting(
            "ZK_ALLOC_MAX_BYTES",
            BYTES_WANTED,
            parse_bytes,
            (usize::MAX, Used::Word("no limit")),
            &lookup,
            &mut warn,
        );
        let huge_pages = setting(
            THP,
            "auto, always or never",
            HugePages::parse,
            (HugePages::Auto, Used::Word("auto")),
            &lookup,
            &mut warn,
        );
        let default_lazy_zero = if machine.threads > EAGER_ZERO_THREADS {
            (LAZY_ZERO_BYTES, Used::Number(LAZY_ZERO_BYTES))
        } else {
            (usize::MAX, Used::Word("never"))
        };
        let lazy_zero_bytes =
            setting("ZK_ALLOC_LAZY_ZERO_BYTES", BYTES_WANTED, parse_bytes, default_lazy_zero, &lookup, &mut warn);
        let trace_escaped = setting(
            "ZK_ALLOC_TRACE_ESCAPED",
            "0 or 1",
            |text| match text {
                "0" => Some(false),
                "1" => Some(true),
                _ => None,
            },
            (false, Used::Number(0)),
            &lookup,
            &mut warn,
        );
        Self {
            threads: machine.threads,
            // Each zone could hold all that the threads may have; address space costs nothing.
            span_bytes: thread_bytes.saturating_mul(threads) / 4,
            thread_bytes,
            min_bytes,
            retain_bytes,
            retain_for_ns,
            max_bytes,
            huge_pages: huge_pages.on(machine.host_huge_pages),
            lazy_zero_bytes,
            trace_escaped,
        }
    }
}

/// More address space than this for one thread is a mistake: 64 TiB, half of what x86-64 gives a process.
const MAX_THREAD_BYTES: u64 = 64 << 40;

const BYTES_WANTED: &str = "a number of bytes (such as 65536, 64K, 512M or 2G)";

/// A setting in bytes: a whole number, with K, M, G or T (KiB, MiB, GiB, TiB) behind it if one likes.
fn bytes_setting(
    name: &'static str,
    default: usize,
    lookup: &impl Fn(&'static str) -> Option<Value>,
    warn: &mut impl FnMut(Warning),
) -> usize {
    setting(name, BYTES_WANTED, parse_bytes, (default, Used::Number(default)), lookup, warn)
}

fn setting<T>(
    name: &'static str,
    wanted: &'static str,
    parse: impl Fn(&str) -> Option<T>,
    (default, used): (T, Used),
    lookup: &impl Fn(&'static str) -> Option<Value>,
    warn: &mut impl FnMut(Warning),
) -> T {
    let Some(value) = lookup(name) else { return default };
    if let Some(parsed) = value.text().and_then(|text| parse(text.trim())) {
        return parsed;
    }
    warn(Warning { name, value, wanted, used });
    default
}

/// For so long, a process that takes and gives memory keeps what it had at most. The longer, the longer an idle one keeps it; the
/// shorter, the more often one that needs it every few seconds pays for its pages again (docs/preload.md).
const DEFAULT_WINDOW_NS: u64 = 8_000_000_000;

/// Seconds, in nanoseconds; 0 is "ever", and no time at all is the shortest.
fn parse_window(text: &str) -> Option<u64> {
    if text == "ever" {
        return Some(0);
    }
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let seconds = text.parse::<f64>().ok().filter(|&seconds| is_number && seconds < 1e9)?;
    Some(((seconds * 1e9) as u64).max(1))
}

/// Allocates nothing, like all that is done before the first request is served: it may come in a signal handler.
fn parse_bytes(text: &str) -> Option<usize> {
    let unit = text.chars().next_back().and_then(|last| "KMGT".find(last.to_ascii_uppercase()));
    let (digits, shift) = match unit {
        Some(index) => (&text[..text.len() - 1], 10 * (index + 1)),
        None => (text, 0),
    };
    digits.parse::<usize>().ok()?.checked_mul(1_usize.checked_shl(shift as u32)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: Machine = Machine { threads: 2, memory_bytes: 24 << 30, host_huge_pages: HostHugePages::Available };

    fn parse(name: &'static str, value: &str) -> (Config, Vec<String>) {
        let mut warnings = Vec::new();
        let config = Config::parse(
            MACHINE,
            |asked| (asked == name).then(|| Value::new(value.as_bytes())),
            |warning| warnings.push(warning.to_string()),
        );
        (config, warnings)
    }

    #[test]
    fn what_is_not_set_has_its_default_and_no_warning() {
        let (config, warnings) = parse("", "");
        assert!(warnings.is_empty());
        assert_eq!(config.min_bytes, 0);
        assert_eq!(config.retain_bytes, 12 << 30);
        assert_eq!(config.huge_pages, HugePages::Auto);
    }

    /// The os layer keeps only what it knows by name.
    #[test]
    fn every_setting_is_among_the_variables_that_are_kept() {
        let known = |name| assert!(os::VARIABLES.contains(&name), "{name} would never be found");
        Config::parse(
            MACHINE,
            |asked| {
                known(asked);
                None
            },
            |_| unreachable!(),
        );
        known(THP);
    }

    #[test]
    fn good_values_are_taken() {
        assert_eq!(parse("ZK_ALLOC_MIN_BYTES", "4096").0.min_bytes, 4096);
        assert_eq!(parse("ZK_ALLOC_MIN_BYTES", " 64k ").0.min_bytes, 64 << 10);
        assert_eq!(parse("ZK_ALLOC_RETAIN_BYTES", "2G").0.retain_bytes, 2 << 30);
        assert_eq!(parse("ZK_ALLOC_SLAB_GB", "8").0.thread_bytes, 8 << 30);
        assert_eq!(parse("ZK_ALLOC_THP", "never").0.huge_pages, HugePages::Never);
    }

    #[test]
    fn each_bad_value_is_named_with_the_default_that_is_used() {
        let overflowing = "99999999999999999999";
        for name in [
            "ZK_ALLOC_SLAB_GB",
            "ZK_ALLOC_MIN_BYTES",
            "ZK_ALLOC_RETAIN_BYTES",
            "ZK_ALLOC_MAX_BYTES",
            "ZK_ALLOC_THP",
            "ZK_ALLOC_LAZY_ZERO_BYTES",
            "ZK_ALLOC_TRACE_ESCAPED",
        ] {
            let (default, _) = parse("", "");
            for value in ["", "-1", "garbage", "1.5", overflowing, "18446744073709551615G"] {
                let (config, warnings) = parse(name, value);
                assert_eq!(config, default, "{name}={value}");
                assert_eq!(warnings.len(), 1, "{name}={value}: {warnings:?}");
                assert!(warnings[0].contains(name) && warnings[0].contains(&format!("{value:?}")), "{warnings:?}");
                assert!(warnings[0].contains("using the default, "), "{warnings:?}");
            }
        }
        assert_eq!(parse("ZK_ALLOC_SLAB_GB", "0").1.len(), 1);
    }

    #[test]
    fn times_are_seconds_and_may_have_parts() {
        let of = |value| parse("ZK_ALLOC_RETAIN_FOR", value);
        assert_eq!(parse("", "").0.retain_for_ns, 8_000_000_000);
        assert_eq!(of("10").0.retain_for_ns, 10_000_000_000);
        assert_eq!(of(" 0.25 ").0.retain_for_ns, 250_000_000);
        assert_eq!((of("0").0.retain_for_ns, of("ever").0.retain_for_ns), (1, 0));
        for value in ["", "-1", "1e3", "inf", "nan", "5s", ".", "1.2.3", "99999999999999999999"] {
            let (config, warnings) = of(value);
            assert_eq!((config.retain_for_ns, warnings.len()), (8_000_000_000, 1), "{value}: {warnings:?}");
            assert!(warnings[0].contains("using the default, 8"), "{warnings:?}");
        }
    }

    #[test]
    fn giants_are_zeroed_lazily_where_many_threads_would_wait() {
        let of = |threads| Config::parse(Machine { threads, ..MACHINE }, |_| None, |_| unreachable!()).lazy_zero_bytes;
        assert_eq!([of(1), of(4)], [usize::MAX; 2]);
        assert_eq!([of(5), of(64)], [128 << 20; 2]);
        assert_eq!(parse("ZK_ALLOC_LAZY_ZERO_BYTES", "4M").0.lazy_zero_bytes, 4 << 20);
    }

    #[test]
    fn a_host_without_huge_pages_is_not_asked_for_them_nor_one_where_they_cost_more_than_they_save() {
        let of = |host_huge_pages, value: &str| {
            let lookup = |name| (name == THP).then(|| Value::new(value.as_bytes()));
            Config::parse(Machine { host_huge_pages, ..MACHINE }, lookup, |_| unreachable!()).huge_pages
        };
        let of_all = |value| {
            [HostHugePages::Available, HostHugePages::Costly, HostHugePages::Unavailable].map(|host| of(host, value))
        };
        assert_eq!(of_all("auto"), [HugePages::Auto, HugePages::Avoided, HugePages::Unavailable]);
        assert_eq!(of_all("always"), [HugePages::Always, HugePages::Always, HugePages::Unavailable]);
        assert_eq!(of_all("never"), [HugePages::Never; 3]);
    }
}
