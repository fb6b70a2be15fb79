//! Values in force, and their origins. All settings follow one rule: the environment comes first, then the program, then the
//! default. A warning names a value that can't be used, and the next source is asked.

use std::fmt;
use std::time::Duration;

use super::huge_pages::HugePages;
use super::settings::{GIB, MAX_SECONDS, usable_capacity};
use crate::os::{self, Cut, Value};

/// Where the value of a setting came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// The program set it, by [`Settings`](crate::Settings).
    Program,
    /// It was set in the environment that the process was started with, which outweighs the program.
    Environment,
}

/// A setting: its value, and the origin of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct InForce<T> {
    /// The value in force.
    pub value: T,
    /// The origin of the value.
    pub origin: Origin,
}

/// The settings that the arena was opened with. `Display` names those that are not the default, by their variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SettingsInForce {
    /// The smallest request that the arena serves, in bytes.
    pub min_bytes: InForce<usize>,
    /// Address space for each thread, in bytes.
    pub thread_capacity_bytes: InForce<usize>,
    /// The bytes that may stay resident when no phase is open. [`set_retain`](crate::set_retain) may have changed this since.
    pub retain_bytes: InForce<usize>,
    /// In [`Mode::Resident`](crate::Mode::Resident), the peak live size of this time stays resident; `Duration::MAX` is for ever.
    /// [`set_retain`](crate::set_retain) may have changed this since.
    pub retain_for: InForce<Duration>,
    /// The most bytes of the arena that may be resident at any time; `usize::MAX` is no limit.
    pub max_bytes: InForce<usize>,
    /// Whether a request beyond that fails, instead of going to the backing allocator.
    pub max_hard: InForce<bool>,
    /// Where to ask for huge pages. [`Stats::huge_pages`](crate::Stats::huge_pages) has the outcome on this host.
    pub huge_pages: InForce<HugePages>,
    /// From this many bytes on, the kernel zeroes dirty memory; `usize::MAX` is never.
    pub lazy_zero_bytes: InForce<usize>,
    /// Whether the arena makes only the system calls of glibc's malloc.
    pub sandbox: InForce<bool>,
    /// Whether to start the background thread. [`stop_background_thread`](crate::stop_background_thread) does not change this.
    pub background_thread: InForce<bool>,
    /// Whether to print the allocations that outlive their phase, unless [`trace_escaped`](crate::trace_escaped()) turned tracing
    /// off since.
    pub trace_escaped: InForce<bool>,
}

impl fmt::Display for SettingsInForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = "";
        MIN_BYTES.write(self.min_bytes, f, &mut before)?;
        THREAD_CAPACITY.write(self.thread_capacity_bytes, f, &mut before)?;
        RETAIN_BYTES.write(self.retain_bytes, f, &mut before)?;
        RETAIN_FOR.write(self.retain_for, f, &mut before)?;
        MAX_BYTES.write(self.max_bytes, f, &mut before)?;
        MAX_HARD.write(self.max_hard, f, &mut before)?;
        HUGE_PAGES.write(self.huge_pages, f, &mut before)?;
        LAZY_ZERO_BYTES.write(self.lazy_zero_bytes, f, &mut before)?;
        SANDBOX.write(self.sandbox, f, &mut before)?;
        BACKGROUND.write(self.background_thread, f, &mut before)?;
        TRACE_ESCAPED.write(self.trace_escaped, f, &mut before)?;
        if before.is_empty() { f.write_str("all as by default") } else { Ok(()) }
    }
}

/// A value as messages show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    Number(usize),
    Seconds(Duration),
    Word(&'static str),
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(n) => write!(f, "{n}"),
            Self::Seconds(time) => write!(f, "{}", time.as_secs_f64()),
            Self::Word(word) => f.write_str(word),
        }
    }
}

/// A setting: its variable, and the values that it can have.
pub(super) struct Setting<T> {
    pub(super) variable: &'static str,
    wanted: &'static str,
    parse: fn(&str) -> Option<T>,
    /// Whether a value from the environment is allowed. Values from the program always are.
    may_be: fn(T) -> bool,
    /// The value as it would stand in the environment.
    show: fn(T) -> Shown,
}

const BYTES_WANTED: &str = "a number of bytes (such as 65536, 64K, 512M or 2G)";

/// A setting in bytes.
const fn bytes(variable: &'static str, show: fn(usize) -> Shown) -> Setting<usize> {
    Setting { variable, wanted: BYTES_WANTED, parse: parse_bytes, may_be: |_| true, show }
}

pub(super) const MIN_BYTES: Setting<usize> = bytes("ZK_ALLOC_MIN_BYTES", Shown::Number);
pub(super) const RETAIN_BYTES: Setting<usize> = bytes("ZK_ALLOC_RETAIN_BYTES", Shown::Number);
pub(super) const MAX_BYTES: Setting<usize> = bytes("ZK_ALLOC_MAX_BYTES", |bytes| match bytes {
    usize::MAX => Shown::Word("no limit"),
    bytes => Shown::Number(bytes),
});
pub(super) const LAZY_ZERO_BYTES: Setting<usize> = bytes("ZK_ALLOC_LAZY_ZERO_BYTES", |bytes| match bytes {
    usize::MAX => Shown::Word("never"),
    bytes => Shown::Number(bytes),
});

/// Not a setting of the arena: the sampling has it.
#[cfg(feature = "profile")]
pub(super) const PROFILE_BYTES: Setting<usize> =
    Setting { may_be: |bytes| bytes > 0, ..bytes("ZK_ALLOC_PROFILE_BYTES", Shown::Number) };

/// The variable is in GiB, as in the crate zk-alloc 0.0.9. Everything else is in bytes.
pub(super) const THREAD_CAPACITY: Setting<usize> = Setting {
    variable: "ZK_ALLOC_SLAB_GB",
    wanted: "a whole number of GiB, at least 1",
    parse: |text| text.parse::<usize>().ok()?.checked_mul(GIB),
    may_be: |bytes| bytes == usable_capacity(bytes),
    show: |bytes| Shown::Number(bytes / GIB),
};

pub(super) const RETAIN_FOR: Setting<Duration> = Setting {
    variable: "ZK_ALLOC_RETAIN_FOR",
    wanted: "a number of seconds (such as 10 or 0.5), or ever",
    parse: parse_time,
    may_be: |time| time == Duration::MAX || time.as_secs() < MAX_SECONDS,
    show: |time| match time {
        Duration::MAX => Shown::Word("ever"),
        time => Shown::Seconds(time),
    },
};

pub(super) const HUGE_PAGES: Setting<HugePages> = Setting {
    variable: "ZK_ALLOC_THP",
    wanted: "auto, always or never",
    parse: HugePages::parse,
    may_be: |_| true,
    show: |wish| Shown::Word(wish.word()),
};

/// Not a setting of the arena: with "off" there is none.
pub(super) const OFF: Setting<bool> = Setting {
    variable: os::OFF,
    wanted: "on or off",
    parse: |text| match text {
        "on" => Some(false),
        "off" => Some(true),
        _ => None,
    },
    may_be: |_| true,
    show: |is_off| Shown::Word(if is_off { "off" } else { "on" }),
};

/// Not a setting of the arena: 0 is no signal.
pub(super) const RELEASE_SIGNAL: Setting<i32> = Setting {
    variable: "ZK_ALLOC_RELEASE_SIGNAL",
    wanted: "the name or number of a signal without another meaning (such as USR1)",
    parse: os::signal_number,
    may_be: |_| true,
    show: |_| Shown::Word("no signal"),
};

/// A setting that is on or off.
const fn switch(variable: &'static str) -> Setting<bool> {
    Setting {
        variable,
        wanted: "0 or 1",
        parse: |text| match text {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        },
        may_be: |_| true,
        show: |on| Shown::Number(usize::from(on)),
    }
}

pub(super) const MAX_HARD: Setting<bool> = switch("ZK_ALLOC_MAX_HARD");
pub(super) const SANDBOX: Setting<bool> = switch(os::SANDBOX);

pub(super) const BACKGROUND: Setting<bool> = switch("ZK_ALLOC_BACKGROUND");
pub(super) const TRACE_ESCAPED: Setting<bool> = switch("ZK_ALLOC_TRACE_ESCAPED");

/// A value in the environment that can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Warning {
    variable: &'static str,
    value: Value,
    wanted: &'static str,
    instead: Origin,
    used: Shown,
}

#[cfg(feature = "c-api")]
impl Warning {
    pub(super) fn variable(&self) -> &'static str {
        self.variable
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instead = match self.instead {
            Origin::Program => "what the program set",
            _ => "the default",
        };
        let Self { variable, value, wanted, used, .. } = self;
        write!(f, "{variable}={} is not {wanted}; using {instead}, {used}", Cut(value))
    }
}

impl<T: Copy> Setting<T> {
    /// The value in force: from the `environment`, else from the `program`, else the `default`. Warns of a value in the
    /// environment that can't be used.
    pub(super) fn resolve(
        &self,
        environment: impl Fn(&'static str) -> Option<Value>,
        program: Option<T>,
        default: T,
        mut warn: impl FnMut(Warning),
    ) -> InForce<T> {
        let said = environment(self.variable);
        if let Some(value) = said.as_ref().and_then(|said| self.usable(said)) {
            return InForce { value, origin: Origin::Environment };
        }
        let else_in_force = match program {
            Some(value) => InForce { value, origin: Origin::Program },
            None => InForce { value: default, origin: Origin::Default },
        };
        if let Some(value) = said {
            let used = (self.show)(else_in_force.value);
            warn(Warning { variable: self.variable, value, wanted: self.wanted, instead: else_in_force.origin, used });
        }
        else_in_force
    }

    /// The value from the environment, if it can be used.
    pub(super) fn usable(&self, said: &Value) -> Option<T> {
        (self.parse)(said.text()?.trim()).filter(|&value| (self.may_be)(value))
    }

    /// Writes a value that is not the default, as it would stand in the environment, after the separator `before`.
    fn write(&self, set: InForce<T>, f: &mut fmt::Formatter<'_>, before: &mut &str) -> fmt::Result {
        let by = match set.origin {
            Origin::Default => return Ok(()),
            Origin::Program => "program",
            Origin::Environment => "environment",
        };
        write!(f, "{before}{}={} ({by})", self.variable, (self.show)(set.value))?;
        *before = ", ";
        Ok(())
    }
}

/// A number of bytes: a whole number, optionally with K, M, G or T (KiB, MiB, GiB, TiB) behind it. Kubernetes writes Ki, Mi, Gi or Ti.
///
/// Allocates nothing, like all code that runs before the first request is served: that request may come in a signal handler.
pub(super) fn parse_bytes(text: &str) -> Option<usize> {
    let short = text.strip_suffix('i').unwrap_or(text);
    let unit = short.chars().next_back().and_then(|last| "KMGT".find(last.to_ascii_uppercase()));
    let (digits, shift) = match unit {
        Some(index) => (&short[..short.len() - 1], 10 * (index + 1)),
        None => (text, 0),
    };
    digits.parse::<usize>().ok()?.checked_mul(1_usize.checked_shl(shift as u32)?)
}

/// A time: a number of seconds, optionally with a fraction, or "ever". Allocates nothing, as above.
fn parse_time(text: &str) -> Option<Duration> {
    if text == "ever" {
        return Some(Duration::MAX);
    }
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let seconds = text.parse::<f64>().ok().filter(|_| is_number)?;
    Duration::try_from_secs_f64(seconds).ok()
}
