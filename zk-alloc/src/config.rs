//! Settings come from the environment, else from the program, else from the defaults. They are resolved once, when the arena opens. An
//! unusable value causes a warning, and the next source is used instead.
//!
//! The environment is the one that the process was started with (`os::variable`). Variables that the program sets later are not
//! seen. Reading them would take a lock, and the first request may come at any time and must not wait for a lock.
//!
//! The program's settings are fields of its allocator, which passes them on with the very first request ([`init_settings`]). Until then,
//! the smallest request that the arena serves is unknown, and every request takes the path that calls `init_settings`. No arena opens
//! before that either, because it would serve no request.

#[cfg(test)]
mod tests;

use std::fmt::{self, Display as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[cfg(feature = "c-api")]
use crate::os::Limits;
use crate::os::{self, Host, HostHugePages, Value};
#[cfg(feature = "profile")]
use crate::profile;
use crate::sync::WrittenOnce;
use crate::{arena, gate, tuning};

macro_rules! settings {
    ($($(#[doc = $sentence:literal])+ $name:ident: $type:ty = $default:expr, $variable:literal, $kind:expr;)+) => {
        /// Settings that the program uses instead of the defaults. The environment overrides them, because the operator knows the host.
        ///
        /// ```
        /// use zk_alloc::{HugePages, Settings, ZkAllocator};
        ///
        /// #[global_allocator]
        /// static ALLOC: ZkAllocator = ZkAllocator.settings(
        ///     Settings::new().max_bytes(8 << 30).retain_bytes(1 << 30).huge_pages(HugePages::Never),
        /// );
        ///
        /// zk_alloc::phase(|| drop(vec![1u8; 1 << 20]));
        /// let settings = zk_alloc::stats().settings.unwrap();
        /// assert_eq!(settings.max_bytes.value, 8 << 30);
        /// println!("{settings}"); // with the origin of each value
        /// ```
        ///
        /// Settings take effect when the arena opens, and apply to the whole process. The first [`ZkAllocator`](struct@crate::ZkAllocator)
        /// that gets a request applies its settings; those of others are ignored. If the global allocator is not a `ZkAllocator`,
        /// [`reserve`](crate::reserve) counts as the first request, and applies no settings.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[must_use = "settings take effect in `ZkAllocator::settings`"]
        pub struct Settings {
            $($name: Option<$type>,)+
        }

        impl Settings {
            /// Returns the defaults.
            pub const fn new() -> Self {
                Self { $($name: None,)+ }
            }

            $(
                $(#[doc = $sentence])+
                #[doc = concat!("\n\nIts variable is `", $variable, "`.")]
                pub const fn $name(mut self, value: $type) -> Self {
                    self.$name = Some(value);
                    self
                }
            )+
        }

        /// The settings that the arena was opened with. `Display` lists the settings that are not defaults, under the names of their
        /// variables.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize))]
        #[non_exhaustive]
        pub struct SettingsInForce {
            $($(#[doc = $sentence])+ pub $name: InForce<$type>,)+
        }

        impl SettingsInForce {
            fn resolve(
                host: &Host,
                environment: impl Fn(&'static str) -> Option<Value>,
                program: &Settings,
                mut warn: impl FnMut(&str, fmt::Arguments<'_>),
            ) -> Self {
                $(let $name: fn(&Host) -> $type = $default;)+
                Self { $($name: SETTINGS.$name.resolve(&environment, program.$name, $name(host), &mut warn),)+ }
            }
        }

        impl fmt::Display for SettingsInForce {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut before = "";
                $(SETTINGS.$name.write(self.$name, f, &mut before)?;)+
                if before.is_empty() { f.write_str("all defaults") } else { Ok(()) }
            }
        }

        /// The table of settings, by name.
        pub(crate) struct Table {
            $(pub(crate) $name: Setting<$type>,)+
        }

        pub(crate) const SETTINGS: Table = Table { $($name: Setting { variable: $variable, kind: $kind },)+ };

        /// Every variable that the crate reads. A lookup of any other name finds nothing.
        pub(crate) const VARIABLES: &[&str] = &[
            $($variable,)+
            OFF.variable,
            RELEASE_SIGNAL.variable,
            #[cfg(feature = "tune")]
            TUNE,
            #[cfg(feature = "profile")]
            "ZK_ALLOC_PROFILE",
            #[cfg(feature = "profile")]
            PROFILE_BYTES.variable,
            #[cfg(feature = "profile")]
            PROFILE_SIGNAL.variable,
            os::TEST_PAGE_BYTES,
            os::TEST_BARE_METAL,
        ];
    };
}

settings! {
    /// The smallest request that the arena serves, in bytes.
    min_bytes: usize = |_| DEFAULT_MIN_BYTES, "ZK_ALLOC_MIN_BYTES", BYTES;
    /// Address space for each thread, in bytes. It is rounded up to whole GiB, at least 1 GiB and at most 64 TiB.
    thread_capacity_bytes: usize = default_capacity, "ZK_ALLOC_SLAB_GB", GIBIBYTES;
    /// The bytes that may stay resident when no phase is open. [`set_retain`](crate::set_retain) changes this while the program runs.
    retain_bytes: usize = |host| host.limits.memory_bytes / 2, "ZK_ALLOC_RETAIN_BYTES", BYTES;
    /// In [`Mode::Resident`](crate::Mode::Resident), memory up to the peak live size of this period stays resident. `Duration::MAX` means
    /// forever, and so do 1,000,000,000 seconds and more. [`set_retain`](crate::set_retain) changes this while the program runs.
    retain_for: Duration = |_| Duration::from_millis(tuning::retain_for_ms() as u64), "ZK_ALLOC_RETAIN_FOR", TIME;
    /// The most bytes of the arena that may be resident at any time; `usize::MAX` means no limit.
    max_bytes: usize = |_| usize::MAX, "ZK_ALLOC_MAX_BYTES", LIMIT;
    /// Whether a request beyond [`max_bytes`](Settings::max_bytes) fails (`GlobalAlloc` returns null), instead of going to the backing
    /// allocator.
    max_hard: bool = |_| false, "ZK_ALLOC_MAX_HARD", SWITCH;
    /// Whether and where to ask for huge pages. [`Stats::huge_pages`](crate::Stats::huge_pages) has the outcome on this host.
    huge_pages: HugePages = |_| HugePages::Auto, "ZK_ALLOC_THP", PAGES;
    /// Dirty memory for zeroed requests of this size and more is purged, so that the kernel zeroes each page when a thread touches it.
    /// `usize::MAX` means never.
    lazy_zero_bytes: usize = default_lazy_zero, "ZK_ALLOC_LAZY_ZERO_BYTES", THRESHOLD;
    /// Whether the arena makes only the system calls of glibc's malloc: mmap, munmap, mremap, mprotect, futex, and madvise with
    /// `MADV_DONTNEED`. Set it if the program enters a sandbox that kills it for any other call.
    sandbox: bool = |_| false, "ZK_ALLOC_SANDBOX", SWITCH;
    /// Whether to start a background thread, as [`start_background_thread`](crate::start_background_thread) does. The first phase starts
    /// it, or the first request in [`Mode::Resident`](crate::Mode::Resident). A forked child does not start it again.
    background_thread: bool = |_| false, "ZK_ALLOC_BACKGROUND", SWITCH;
    /// Whether to trace and print the allocations that outlive their phase. [`trace_escaped`](crate::trace_escaped()) changes this while
    /// the program runs.
    trace_escaped: bool = |_| false, "ZK_ALLOC_TRACE_ESCAPED", SWITCH;
}

/// Switches the arena on or off. Not among the arena's settings, because with "off" there is no arena.
const OFF: Setting<bool> = Setting {
    variable: "ZK_ALLOC",
    kind: Kind {
        wanted: "on or off",
        parse: |text| (text == "off").then_some(true).or((text == "on").then_some(false)),
        show: |is_off, f| f.write_str(if is_off { "off" } else { "on" }),
        ..SWITCH
    },
};

/// A signal of the operator's choice; 0 means none.
const SIGNAL: Kind<i32> = Kind {
    wanted: "the name or number of a signal without another meaning (such as USR1)",
    parse: os::signal_number,
    bound: |number| number,
    show: |_, f| f.write_str("no signal"),
};

/// The signal on which free memory is released. Not a setting of the arena.
pub(crate) const RELEASE_SIGNAL: Setting<i32> = Setting { variable: "ZK_ALLOC_RELEASE_SIGNAL", kind: SIGNAL };
#[cfg(feature = "profile")]
pub(crate) const PROFILE_SIGNAL: Setting<i32> = Setting { variable: "ZK_ALLOC_PROFILE_SIGNAL", kind: SIGNAL };

/// The mean distance between samples. A setting of the profiler, not of the arena.
#[cfg(feature = "profile")]
const PROFILE_BYTES: Setting<usize> =
    Setting { variable: "ZK_ALLOC_PROFILE_BYTES", kind: Kind { bound: |bytes| bytes.max(1), ..BYTES } };

/// The variable that sets the allocator's constants.
#[cfg(feature = "tune")]
const TUNE: &str = "ZK_ALLOC_TUNE";

/// A kind of value: how to parse it from an environment variable, check it, and show it.
struct Kind<T> {
    wanted: &'static str,
    parse: fn(&str) -> Option<T>,
    /// Returns the usable value that is nearest to this one. It replaces a value that the program sets; an unusable value in the
    /// environment is refused instead.
    bound: fn(T) -> T,
    /// Writes the value in the format of the environment variable.
    show: fn(T, &mut fmt::Formatter<'_>) -> fmt::Result,
}

const BYTES: Kind<usize> = Kind {
    wanted: "a number of bytes (such as 65536, 64K, 512M or 2G)",
    parse: parse_bytes,
    bound: |bytes| bytes,
    show: |bytes, f| bytes.fmt(f),
};

/// Like [`BYTES`], but `usize::MAX` means no limit.
const LIMIT: Kind<usize> =
    Kind { show: |bytes, f| if bytes == usize::MAX { f.write_str("no limit") } else { bytes.fmt(f) }, ..BYTES };

/// Like [`BYTES`], but `usize::MAX` means never.
const THRESHOLD: Kind<usize> =
    Kind { show: |bytes, f| if bytes == usize::MAX { f.write_str("never") } else { bytes.fmt(f) }, ..BYTES };

const GIB: usize = 1 << 30;
/// The most address space for one thread: 64 TiB, half of what x86-64 gives a process.
const MAX_CAPACITY_GIB: usize = if usize::BITS < 64 { 1 } else { 64 << 10 };

/// A number of bytes that the variable gives in GiB, as in the crate zk-alloc 0.0.9.
const GIBIBYTES: Kind<usize> = Kind {
    wanted: "a whole number of GiB, at least 1",
    parse: |text| text.parse::<usize>().ok()?.checked_mul(GIB),
    bound: |bytes| bytes.div_ceil(GIB).clamp(1, MAX_CAPACITY_GIB) * GIB,
    show: |bytes, f| (bytes / GIB).fmt(f),
};

/// Times of this many seconds (31 years) and more mean forever.
const MAX_SECONDS: u64 = 1_000_000_000;

const TIME: Kind<Duration> = Kind {
    wanted: "a number of seconds (such as 10 or 0.5), or ever",
    parse: parse_time,
    bound: |time| if time.as_secs() < MAX_SECONDS { time } else { Duration::MAX },
    show: |time, f| if time == Duration::MAX { f.write_str("ever") } else { time.as_secs_f64().fmt(f) },
};

const SWITCH: Kind<bool> = Kind {
    wanted: "0 or 1",
    parse: |text| (text == "1").then_some(true).or((text == "0").then_some(false)),
    bound: |on| on,
    show: |on, f| usize::from(on).fmt(f),
};

const PAGES: Kind<HugePages> = Kind {
    wanted: "auto, always or never",
    parse: |text| match text {
        "auto" => Some(HugePages::Auto),
        "always" => Some(HugePages::Always),
        "never" => Some(HugePages::Never),
        _ => None,
    },
    bound: |wish| wish,
    show: |wish, f| wish.fmt(f),
};

/// A setting: its variable, and the values that it can have.
pub(crate) struct Setting<T> {
    variable: &'static str,
    kind: Kind<T>,
}

impl<T: Copy + PartialEq> Setting<T> {
    /// Returns the value in force: from the `environment`, else from the `program`, else the `default`. Warns of an unusable value in the
    /// environment, and names its variable.
    fn resolve(
        &self,
        environment: impl Fn(&'static str) -> Option<Value>,
        program: Option<T>,
        default: T,
        mut warn: impl FnMut(&str, fmt::Arguments<'_>),
    ) -> InForce<T> {
        let given = environment(self.variable);
        if let Some(value) = given.as_ref().and_then(|given| self.usable(given)) {
            return InForce { value, origin: Origin::Environment };
        }
        let else_in_force = match program {
            Some(value) => InForce { value: (self.kind.bound)(value), origin: Origin::Program },
            None => InForce { value: default, origin: Origin::Default },
        };
        if let Some(value) = given {
            let instead = match else_in_force.origin {
                Origin::Program => "what the program set",
                _ => "the default",
            };
            let (variable, wanted, used) = (self.variable, self.kind.wanted, self.shown(else_in_force.value));
            warn(variable, format_args!("{variable}={value:?} is not {wanted}; using {instead}, {used}"));
        }
        else_in_force
    }

    /// Returns the value from the environment, if it is set and usable.
    pub(crate) fn environment_value(&self) -> Option<T> {
        self.usable(&os::variable(self.variable)?)
    }

    fn usable(&self, given: &Value) -> Option<T> {
        (self.kind.parse)(given.text()?.trim()).filter(|&value| (self.kind.bound)(value) == value)
    }

    fn shown(&self, value: T) -> Shown<T> {
        Shown { value, show: self.kind.show }
    }

    /// Writes the setting in the format of its environment variable, after the separator `before`. Writes nothing for a default.
    fn write(&self, set: InForce<T>, f: &mut fmt::Formatter<'_>, before: &mut &str) -> fmt::Result {
        let by = match set.origin {
            Origin::Default => return Ok(()),
            Origin::Program => "program",
            Origin::Environment => "environment",
        };
        write!(f, "{before}{}={} ({by})", self.variable, self.shown(set.value))?;
        *before = ", ";
        Ok(())
    }
}

/// A value as messages show it.
struct Shown<T> {
    value: T,
    show: fn(T, &mut fmt::Formatter<'_>) -> fmt::Result,
}

impl<T: Copy> fmt::Display for Shown<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.show)(self.value, f)
    }
}

/// Where the value of a setting came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Origin {
    /// Neither the program nor the environment set it.
    Default,
    /// The program set it, by [`Settings`](crate::Settings).
    Program,
    /// It was set in the environment that the process was started with, which overrides the program.
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

/// Whether and where to ask for huge pages: `ZK_ALLOC_THP`. The [outcome](HugePagesOutcome) depends on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum HugePages {
    /// Where they save more time than they cost.
    #[default]
    Auto,
    /// Everywhere.
    Always,
    /// Nowhere.
    Never,
}

/// The arena's use of huge pages: the outcome of the [setting](HugePages) on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum HugePagesOutcome {
    /// The host provides them, and the arena asks for them where they save more time than they cost.
    Auto,
    /// The host provides them, and the arena asks for them everywhere.
    Always,
    /// The outcome of [`HugePages::Auto`] if the kernel reports free memory to a hypervisor, which then reclaims it. The first touch of a
    /// huge page then has to get hundreds of small pages from the hypervisor, so the arena forbids huge pages.
    Avoided,
    /// The arena forbids them, regardless of the host's setting.
    Never,
    /// The host does not provide them.
    Unavailable,
}

impl fmt::Display for HugePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        })
    }
}

impl fmt::Display for HugePagesOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Avoided => "avoided",
            Self::Never => "never",
            Self::Unavailable => "unavailable",
        })
    }
}

impl HugePages {
    /// Returns the outcome on a host.
    fn on(self, host: HostHugePages) -> HugePagesOutcome {
        match (self, host) {
            (Self::Never, _) => HugePagesOutcome::Never,
            (_, HostHugePages::Unavailable) => HugePagesOutcome::Unavailable,
            (Self::Always, _) => HugePagesOutcome::Always,
            (Self::Auto, HostHugePages::Available) => HugePagesOutcome::Auto,
            (Self::Auto, HostHugePages::Costly) => HugePagesOutcome::Avoided,
        }
    }
}

/// The parameters of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// The number of hardware threads that this process may use.
    pub(crate) threads: usize,
    /// Address space of each zone, in bytes.
    pub(crate) span_bytes: usize,
    /// The outcome of the huge-page setting on this host.
    pub(crate) huge_pages: HugePagesOutcome,
    pub(crate) settings: SettingsInForce,
}

pub(crate) const DEFAULT_MIN_BYTES: usize = 0;

/// The arena reserves address space for this many threads more than the machine has, as the crate zk-alloc 0.0.9 did.
const EXTRA_THREADS: usize = 4;

/// The value of [`min_arena_bytes`] if the arena serves no requests. It is larger than any request.
const NEVER: usize = gate::UNKNOWN - 1;
/// Whether `warn_of_settings` has warned of values that can't be used. The arena then does not warn of them when it opens.
static HAS_WARNED: AtomicBool = AtomicBool::new(false);
/// The program's settings.
static PROGRAM: WrittenOnce<Settings> = WrittenOnce::new();

/// Returns the smallest request that the arena serves, in bytes. `ZK_ALLOC_MIN_BYTES` at the start of the process overrides the program's
/// [setting](Settings::min_bytes). The default is 0: the arena serves every request. Smaller requests always go to the backing allocator.
/// With `ZK_ALLOC=off`, no request is that large.
///
/// ```
/// if zk_alloc::min_arena_bytes() > 4096 {
///     eprintln!("the backing allocator serves small buffers");
/// }
/// ```
#[inline]
#[must_use]
pub fn min_arena_bytes() -> usize {
    match gate::min_bytes() {
        gate::UNKNOWN => min_bytes(program().unwrap_or(&Settings::new())),
        known => known,
    }
}

/// Returns the arena's capacity for each thread, in bytes. `ZK_ALLOC_SLAB_GB` at the start of the process overrides the program's
/// [setting](Settings::thread_capacity_bytes). The capacity is address space, not memory. It is 0 before the first phase.
///
/// ```
/// # #[global_allocator]
/// # static ALLOC: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;
/// zk_alloc::phase(|| drop(vec![1u8; 1 << 20]));
/// println!("{} GiB a thread", zk_alloc::thread_capacity_bytes() >> 30);
/// ```
#[must_use]
pub fn thread_capacity_bytes() -> usize {
    arena::get().map_or(0, |arena| arena.config().settings.thread_capacity_bytes.value)
}

/// Returns [`thread_capacity_bytes`]. The name comes from the crate zk-alloc 0.0.9, which gave each thread a slab of its own. In this
/// crate, a slab is something else: memory that is cut into blocks.
#[must_use]
#[deprecated = "renamed to `thread_capacity_bytes`: a slab is something else now"]
pub fn slab_size() -> usize {
    thread_capacity_bytes()
}

/// Records the settings of an allocator at its first request. They apply to the whole program, unless another allocator came first. Returns
/// whether the smallest request that the arena serves is known now. It is not known while another thread runs this function, or in a signal
/// handler that interrupted it.
#[cold]
pub(crate) fn init_settings(settings: &Settings) -> bool {
    PROGRAM.write(|| {
        #[cfg(feature = "tune")]
        tune();
        *settings
    });
    let Some(program) = program() else { return false };
    gate::set_min_bytes(min_bytes(program));
    true
}

/// Returns the program's settings; `None` until [`init_settings`].
pub(crate) fn program() -> Option<&'static Settings> {
    PROGRAM.get()
}

/// Returns whether the process was started with `ZK_ALLOC=off`. If so, the backing allocator serves every request, and no arena opens.
#[must_use]
pub fn is_off() -> bool {
    OFF.environment_value().unwrap_or(false)
}

/// Installs `run` as the handler of the signal that `setting` names, unless the program handles or ignores that signal. Returns whether it
/// is installed. Must not be called in a signal handler. `run` must do only what a signal handler may do.
pub(crate) fn on_signal_of(setting: &Setting<i32>, run: fn()) -> bool {
    let Some(signal) = setting.environment_value() else { return false };
    let is_ours = os::on_signal(signal, run);
    if !is_ours {
        os::warn(format_args!("signal {signal} is handled or ignored already; {} has no effect", setting.variable));
    }
    is_ours
}

/// Resolves the settings, prints the warnings, and enters the sandbox if the settings ask for it.
pub(crate) fn load(program: &Settings) -> Config {
    let has_warned = HAS_WARNED.load(Ordering::Relaxed);
    let config = resolve_all(os::host(), program, &mut |_, warning| {
        if !has_warned {
            os::warn(warning);
        }
    });
    if config.settings.sandbox.value {
        os::enter_sandbox();
    }
    config
}

/// Resolves the settings on a host. Calls `warn`, with the name of the variable and the text, for each unusable value in the environment,
/// and for a variable that nothing reads.
fn resolve_all(host: Host, program: &Settings, warn: &mut dyn FnMut(&str, fmt::Arguments<'_>)) -> Config {
    let config = Config::resolve(host, os::variable, program, &mut *warn);
    OFF.resolve(os::variable, None, false, &mut *warn);
    RELEASE_SIGNAL.resolve(os::variable, None, 0, &mut *warn);
    #[cfg(feature = "profile")]
    PROFILE_SIGNAL.resolve(os::variable, None, 0, &mut *warn);
    if let Some(unknown) = os::unknown_variable() {
        let name = unknown.text().unwrap_or_default();
        match os::nearest_variable(name) {
            Some(nearest) => {
                warn(name, format_args!("{unknown:?} is set, but there is no such variable; the nearest is {nearest}"))
            }
            None => warn(name, format_args!("{unknown:?} is set, but there is no such variable")),
        }
    }
    config
}

/// Sets the constants that `ZK_ALLOC_TUNE` names, and warns of a part that can't be used.
#[cfg(feature = "tune")]
fn tune() {
    let Some(value) = os::variable(TUNE) else { return };
    let result = value.text().map_or(Err("a value that is too long"), |text| tuning::set(text, parse_constant));
    if let Err(part) = result {
        os::warn(format_args!("{}: {part:?} sets no constant; the other parts take effect", TUNE));
    }
}

/// Parses the value of a constant: a number in the format of [`parse_bytes`], or `never`.
#[cfg(feature = "tune")]
fn parse_constant(text: &str) -> Option<usize> {
    if text == "never" { Some(usize::MAX) } else { parse_bytes(text) }
}

/// Warns of each value in the environment that can't be used, and of a variable that nothing reads, unless `is_reported` returns `true` for
/// the variable. The arena then gives no such warning when it opens.
#[cfg(feature = "c-api")]
pub fn warn_of_settings(is_reported: impl Fn(&str) -> bool) {
    HAS_WARNED.store(true, Ordering::Relaxed);
    // Find out first whether there is a warning, which does not depend on the host. Only the text of a warning names the host's defaults,
    // and they take longer to read.
    let limits = Limits { threads: 1, memory_bytes: 0, is_memory_grouped: false };
    let mut is_any = false;
    resolve_all(Host { limits, huge_pages: HostHugePages::Unavailable }, &Settings::new(), &mut |_, _| is_any = true);
    if is_any {
        resolve_all(os::host(), &Settings::new(), &mut |variable, warning| {
            warn_unless(&is_reported, variable, warning)
        });
    }
}

/// Writes a warning about a variable, unless `is_reported` returns `true` for the variable.
#[cfg(feature = "profile")]
fn warn_unless(is_reported: impl Fn(&str) -> bool, variable: &str, warning: fmt::Arguments<'_>) {
    if !is_reported(variable) {
        os::warn(warning);
    }
}

/// Returns the smallest request that the arena will serve. This gives no warning: the arena warns of an unusable value when it opens.
fn min_bytes(program: &Settings) -> usize {
    if is_off() {
        return NEVER;
    }
    let set = SETTINGS.min_bytes.resolve(os::variable, program.min_bytes, DEFAULT_MIN_BYTES, |_, _| ());
    set.value.min(NEVER)
}

/// Returns the value of `ZK_ALLOC_MIN_BYTES`, if it is set and usable.
#[cfg(feature = "c-api")]
#[must_use]
pub fn min_bytes_setting() -> Option<usize> {
    SETTINGS.min_bytes.environment_value()
}

/// Returns the mean distance between samples, in bytes: `ZK_ALLOC_PROFILE_BYTES`, or the default. Warns of an unusable value, unless
/// `is_reported` returns `true` for its variable.
#[cfg(feature = "profile")]
#[must_use]
pub fn profile_mean_bytes(is_reported: impl Fn(&str) -> bool) -> usize {
    let warn = |variable: &str, warning: fmt::Arguments<'_>| warn_unless(&is_reported, variable, warning);
    PROFILE_BYTES.resolve(os::variable, None, profile::MEAN_BYTES, warn).value
}

/// Returns the outcome of the huge-page setting for memory outside of the arena. This gives no warning: the arena warns of an unusable
/// value when it opens.
pub(crate) fn huge_pages() -> HugePagesOutcome {
    let in_code = program().and_then(|program| program.huge_pages);
    let wish = SETTINGS.huge_pages.resolve(os::variable, in_code, HugePages::Auto, |_, _| ());
    wish.value.on(os::host().huge_pages)
}

impl Config {
    /// Returns the number of resident bytes up to which the program or the environment asked to retain free memory; 0 if neither did.
    pub(crate) fn kept_bytes(&self) -> usize {
        let (bytes, time) = (self.settings.retain_bytes, self.settings.retain_for);
        match (bytes.origin, time.origin) {
            (_, Origin::Program | Origin::Environment) if time.value == Duration::MAX => usize::MAX,
            (Origin::Program | Origin::Environment, _) => bytes.value,
            _ => 0,
        }
    }

    fn resolve(
        machine: Host,
        environment: impl Fn(&'static str) -> Option<Value>,
        program: &Settings,
        warn: impl FnMut(&str, fmt::Arguments<'_>),
    ) -> Self {
        let settings = SettingsInForce::resolve(&machine, environment, program, warn);
        Self {
            threads: machine.limits.threads,
            // By default, a zone spans at least twice the memory, so that any one zone can hold all of it. Address space costs
            // nothing.
            span_bytes: settings.thread_capacity_bytes.value.saturating_mul(machine.limits.threads + EXTRA_THREADS) / 4,
            huge_pages: settings.huge_pages.value.on(machine.huge_pages),
            settings,
        }
    }
}

/// Returns the default address space for each thread.
fn default_capacity(host: &Host) -> usize {
    (8 * host.limits.memory_bytes / (host.limits.threads + EXTRA_THREADS)).max(GIB)
}

fn default_lazy_zero(host: &Host) -> usize {
    if host.limits.threads > tuning::eager_zero_threads() { tuning::huge_run_zero_bytes() } else { usize::MAX }
}

/// Parses a number of bytes: a whole number, optionally followed by K, M, G or T (KiB, MiB, GiB, TiB). Also accepts Ki, Mi, Gi and Ti, as
/// Kubernetes writes them.
///
/// Allocates nothing, like all code that runs before the first request is served: that request may come in a signal handler.
fn parse_bytes(text: &str) -> Option<usize> {
    let short = text.strip_suffix('i').unwrap_or(text);
    let unit = short.chars().next_back().and_then(|last| "KMGT".find(last.to_ascii_uppercase()));
    let (digits, shift) = match unit {
        Some(index) => (&short[..short.len() - 1], 10 * (index + 1)),
        None => (text, 0),
    };
    digits.parse::<usize>().ok()?.checked_mul(1_usize.checked_shl(shift as u32)?)
}

/// Parses a time: a number of seconds, optionally with a fraction, or "ever". Allocates nothing, like [`parse_bytes`].
fn parse_time(text: &str) -> Option<Duration> {
    if text == "ever" {
        return Some(Duration::MAX);
    }
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let seconds = text.parse::<f64>().ok().filter(|_| is_number)?;
    Duration::try_from_secs_f64(seconds).ok()
}
