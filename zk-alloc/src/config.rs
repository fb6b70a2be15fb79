//! Settings come from the environment, else from the program, else from the defaults. They are resolved once, when the arena
//! opens. A warning names each value that can't be used.
//!
//! The environment is the one that the process was started with (`os::variable`). Variables that the program sets later are not
//! seen. Reading them would take a lock, and the first request may come at any time and must not wait for a lock.
//!
//! The program's settings stand in its allocator, which passes them along with the very first request ([`init_settings`]). Until then
//! the threshold is not known, so that no request goes unnoticed. No arena opens before that either: it would serve nobody.

mod huge_pages;
mod in_force;
mod settings;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::os::{self, Host, Value};
#[cfg(feature = "c-api")]
use crate::os::{HostHugePages, Limits};
use crate::tuning;
use crate::written_once::WrittenOnce;
#[cfg(feature = "profile")]
use in_force::PROFILE_BYTES;
use in_force::{
    BACKGROUND, HUGE_PAGES, LAZY_ZERO_BYTES, MAX_BYTES, MAX_HARD, MIN_BYTES, OFF, RELEASE_SIGNAL, RETAIN_BYTES,
    RETAIN_FOR, SANDBOX, THREAD_CAPACITY, TRACE_ESCAPED, Warning,
};

pub use huge_pages::{HugePages, HugePagesOutcome};
pub use in_force::{InForce, Origin, SettingsInForce};
pub use settings::Settings;

/// The parameters of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// Threads of the machine that this process may use.
    pub(crate) threads: usize,
    /// Address space of each zone, in bytes.
    pub(crate) span_bytes: usize,
    /// The outcome of the huge-page setting on this host.
    pub(crate) huge_pages: HugePagesOutcome,
    pub(crate) settings: SettingsInForce,
}

pub(crate) const DEFAULT_MIN_BYTES: usize = 0;

/// Threads beyond the machine's for which `ZK_ALLOC_SLAB_GB` counts room, as in the crate zk-alloc 0.0.9.
const EXTRA_THREADS: usize = 4;

/// The smallest request that the arena serves, in bytes. It is `UNKNOWN`, which is more than any request, until it is known.
static THRESHOLD: AtomicUsize = AtomicUsize::new(UNKNOWN);
pub(crate) const UNKNOWN: usize = usize::MAX;
/// The threshold where the arena serves nothing: also more than any request.
const NEVER: usize = UNKNOWN - 1;
static THREAD_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Whether a caller warned of the values that can't be used before the arena opened.
static HAS_WARNED: AtomicBool = AtomicBool::new(false);
/// The program's settings.
static PROGRAM: WrittenOnce<Settings> = WrittenOnce::new();

/// The smallest request that the arena serves, in bytes. It is [`UNKNOWN`], which no request reaches, until an allocator was
/// [introduced](init_settings).
#[inline(always)]
pub(crate) fn threshold() -> usize {
    THRESHOLD.load(Ordering::Relaxed)
}

/// The smallest request that the arena serves, in bytes. The value of `ZK_ALLOC_MIN_BYTES` at the start of the process comes
/// first, then the program's [setting](Settings::min_bytes). The default is 0: the arena serves every request. Smaller requests
/// always go to the backing allocator. With `ZK_ALLOC=off`, no request is that large.
///
/// ```
/// if zk_alloc::min_arena_bytes() > 4096 {
///     eprintln!("small buffers are the backing allocator's");
/// }
/// ```
#[inline]
#[must_use]
pub fn min_arena_bytes() -> usize {
    match threshold() {
        UNKNOWN => min_bytes(program().unwrap_or(&Settings::new())),
        known => known,
    }
}

/// The arena's capacity for each thread, in bytes. The value of `ZK_ALLOC_SLAB_GB` at the start of the process comes first, then
/// the program's [setting](Settings::thread_capacity_bytes). The capacity is address space, not memory. It is 0 before the first
/// phase.
///
/// ```
/// # #[global_allocator]
/// # static ALLOC: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;
/// zk_alloc::phase(|| drop(vec![1u8; 1 << 20]));
/// println!("{} GiB a thread", zk_alloc::thread_capacity_bytes() >> 30);
/// ```
#[must_use]
pub fn thread_capacity_bytes() -> usize {
    THREAD_BYTES.load(Ordering::Relaxed)
}

/// Takes in the settings of an allocator at its first request. They hold for the program, unless another allocator came first.
/// Returns whether the threshold is known now. It is not if another thread is in here, or if this thread was interrupted in here.
#[cold]
pub(crate) fn init_settings(settings: &Settings) -> bool {
    PROGRAM.write(|| {
        #[cfg(feature = "tune")]
        tune();
        *settings
    });
    let Some(program) = program() else { return false };
    THRESHOLD.store(min_bytes(program), Ordering::Relaxed);
    true
}

/// The program's settings; `None` until an allocator was [introduced](init_settings).
pub(crate) fn program() -> Option<&'static Settings> {
    PROGRAM.get()
}

/// Whether the process was started with `ZK_ALLOC=off`: the backing allocator serves every request, and no arena opens.
pub(crate) fn is_off() -> bool {
    os::variable(OFF.variable).as_ref().and_then(|said| OFF.usable(said)).unwrap_or(false)
}

/// `ZK_ALLOC_RELEASE_SIGNAL`, if it is set to a value that can be used.
pub(crate) fn release_signal() -> Option<i32> {
    os::variable(RELEASE_SIGNAL.variable).as_ref().and_then(|said| RELEASE_SIGNAL.usable(said))
}

/// Resolves the settings, and puts them in force.
pub(crate) fn load(program: &Settings) -> Config {
    let may_warn = !HAS_WARNED.load(Ordering::Relaxed);
    let warn = |warning| {
        if may_warn {
            os::warn(format_args!("{warning}"));
        }
    };
    let config = Config::resolve(os::host(), os::variable, program, warn);
    check_others(os::variable, warn);
    if may_warn {
        warn_of_unknown(|_| false);
    }
    if config.settings.sandbox.value {
        os::enter_sandbox();
    }
    THREAD_BYTES.store(config.settings.thread_capacity_bytes.value, Ordering::Relaxed);
    config
}

/// Sets the constants that `ZK_ALLOC_TUNE` names, and warns of a part that can't be used.
#[cfg(feature = "tune")]
fn tune() {
    let Some(said) = os::variable(os::TUNE) else { return };
    let result = said.text().map_or(Err("a value that is too long"), |text| tuning::set(text, parse_constant));
    if let Err(part) = result {
        os::warn(format_args!("{}: {part:?} sets no constant; the other parts hold", os::TUNE));
    }
}

/// The value of a constant: a number as of bytes, or `never`.
#[cfg(feature = "tune")]
fn parse_constant(text: &str) -> Option<usize> {
    if text == "never" { Some(usize::MAX) } else { in_force::parse_bytes(text) }
}

/// Warns of values of the settings that are not the arena's.
fn check_others(environment: impl Fn(&'static str) -> Option<Value>, mut warn: impl FnMut(Warning)) {
    OFF.resolve(&environment, None, false, &mut warn);
    RELEASE_SIGNAL.resolve(&environment, None, 0, &mut warn);
}

/// Warns of a variable that no part of the allocator reads, unless `is_said` holds for it.
fn warn_of_unknown(is_said: impl Fn(&str) -> bool) {
    let Some(unknown) = os::unknown_variable() else { return };
    let name = unknown.text().unwrap_or_default();
    if is_said(name) {
        return;
    }
    let (shown, nearest) = (os::Cut(&unknown), os::nearest_variable(name));
    match nearest {
        Some(nearest) => {
            os::warn(format_args!("{shown} is set, but there is no such variable; the nearest is {nearest}"));
        }
        None => os::warn(format_args!("{shown} is set, but there is no such variable")),
    }
}

/// Warns of each value in the environment that can't be used, and of a variable that nothing reads, unless `is_said` holds for the
/// variable. [`load`] then warns of none.
#[cfg(feature = "c-api")]
pub(crate) fn warn_before_opening(is_said: impl Fn(&str) -> bool) {
    HAS_WARNED.store(true, Ordering::Relaxed);
    if !os::is_any_variable() {
        return;
    }
    warn_of_unknown(&is_said);
    let each = |host, mut warn: &mut dyn FnMut(Warning)| {
        Config::resolve(host, os::variable, &Settings::new(), &mut warn);
        check_others(os::variable, &mut warn);
    };
    // Any host tells whether there is a warning. The real host, whose defaults a warning names, takes longer to ask.
    let mut is_any = false;
    let limits = Limits { threads: 1, memory_bytes: 0, is_memory_grouped: false };
    each(Host { limits, huge_pages: HostHugePages::Unavailable }, &mut |_| is_any = true);
    if is_any {
        each(os::host(), &mut |warning| {
            if !is_said(warning.variable()) {
                os::warn(format_args!("{warning}"));
            }
        });
    }
}

/// The threshold that the arena will have. The arena warns of a value that can't be used when it opens.
fn min_bytes(program: &Settings) -> usize {
    if is_off() {
        return NEVER;
    }
    let set = MIN_BYTES.resolve(os::variable, program.min_bytes, DEFAULT_MIN_BYTES, |_| ());
    set.value.min(NEVER)
}

/// `ZK_ALLOC_MIN_BYTES`, if it is set to a value that can be used.
#[cfg(feature = "c-api")]
pub(crate) fn min_bytes_setting() -> Option<usize> {
    os::variable(MIN_BYTES.variable).as_ref().and_then(|said| MIN_BYTES.usable(said))
}

/// `ZK_ALLOC_BACKGROUND`, if it is set to a value that can be used.
#[cfg(feature = "c-api")]
pub(crate) fn background_setting() -> Option<bool> {
    os::variable(BACKGROUND.variable).as_ref().and_then(|said| BACKGROUND.usable(said))
}

/// `ZK_ALLOC_PROFILE_BYTES`, or else the default. A warning names a value that can't be used, unless `is_said` holds for its variable.
#[cfg(feature = "profile")]
pub(crate) fn profile_mean_bytes(default: usize, is_said: impl Fn(&'static str) -> bool) -> usize {
    let warn = |warning| {
        if !is_said(PROFILE_BYTES.variable) {
            os::warn(format_args!("{warning}"));
        }
    };
    PROFILE_BYTES.resolve(os::variable, None, default, warn).value
}

/// The outcome of the huge-page setting for memory outside of the arena. The arena warns of a value that can't be used when it
/// opens.
pub(crate) fn huge_pages() -> HugePagesOutcome {
    let in_code = program().and_then(|program| program.huge_pages);
    let wish = HUGE_PAGES.resolve(os::variable, in_code, HugePages::Auto, |_| ());
    wish.value.on(os::host().huge_pages)
}

impl Config {
    /// The resident bytes up to which the program or the environment asked to keep memory. A default asks for nothing.
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
        mut warn: impl FnMut(Warning),
    ) -> Self {
        let threads = machine.limits.threads + EXTRA_THREADS;
        let thread_bytes = (8 * machine.limits.memory_bytes / threads).max(1 << 30);
        let lazy_zero_bytes = if machine.limits.threads > tuning::eager_zero_threads() {
            tuning::huge_run_zero_bytes()
        } else {
            usize::MAX
        };
        let (asked, warn) = (&environment, &mut warn);
        let settings = SettingsInForce {
            min_bytes: MIN_BYTES.resolve(asked, program.min_bytes, DEFAULT_MIN_BYTES, &mut *warn),
            thread_capacity_bytes: THREAD_CAPACITY.resolve(
                asked,
                program.thread_capacity_bytes,
                thread_bytes,
                &mut *warn,
            ),
            retain_bytes: RETAIN_BYTES.resolve(
                asked,
                program.retain_bytes,
                machine.limits.memory_bytes / 2,
                &mut *warn,
            ),
            retain_for: RETAIN_FOR.resolve(
                asked,
                program.retain_for,
                Duration::from_millis(tuning::retain_for_ms() as u64),
                &mut *warn,
            ),
            max_bytes: MAX_BYTES.resolve(asked, program.max_bytes, usize::MAX, &mut *warn),
            max_hard: MAX_HARD.resolve(asked, program.max_hard, false, &mut *warn),
            huge_pages: HUGE_PAGES.resolve(asked, program.huge_pages, HugePages::Auto, &mut *warn),
            lazy_zero_bytes: LAZY_ZERO_BYTES.resolve(asked, program.lazy_zero_bytes, lazy_zero_bytes, &mut *warn),
            sandbox: SANDBOX.resolve(asked, program.sandbox, false, &mut *warn),
            background_thread: BACKGROUND.resolve(asked, program.background_thread, false, &mut *warn),
            trace_escaped: TRACE_ESCAPED.resolve(asked, program.trace_escaped, false, &mut *warn),
        };
        Self {
            threads: machine.limits.threads,
            // By default, a zone spans at least twice the memory, so that any one zone can hold all of it. Address space costs
            // nothing.
            span_bytes: settings.thread_capacity_bytes.value.saturating_mul(threads) / 4,
            huge_pages: settings.huge_pages.value.on(machine.huge_pages),
            settings,
        }
    }
}
