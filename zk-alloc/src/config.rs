//! Settings: from the environment, else from the program, else the defaults. Resolved once, when the arena opens; what can't be
//! used is named in one warning each.
//!
//! The environment is that which the process was started with (`os::variable`). What the program itself sets there later is not
//! seen: to look would take a lock that the first request, whenever it comes, must not wait for.
//!
//! What the program says stands in its allocator, which brings it along with the first request of all ([`introduce`]). Until
//! then the threshold is not known, so that no request passes by unseen; and no arena opens, for nobody would be served.

mod huge_pages;
mod in_force;
mod settings;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

#[cfg(feature = "c-api")]
use crate::os::HostHugePages;
use crate::os::{self, Host, Value};
use crate::written_once::WrittenOnce;
use in_force::{
    BACKGROUND, HUGE_PAGES, LAZY_ZERO_BYTES, MAX_BYTES, MIN_BYTES, RETAIN_BYTES, RETAIN_FOR, SANDBOX, THREAD_CAPACITY,
    TRACE_ESCAPED, Warning,
};

pub use huge_pages::{HugePages, HugePagesOutcome};
pub use in_force::{InForce, Origin, SettingsInForce};
pub use settings::Settings;

/// What the arena is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// Threads of the machine that this process may use.
    pub(crate) threads: usize,
    /// Address space for each zone, in bytes.
    pub(crate) span_bytes: usize,
    /// What the host made of the wish for huge pages.
    pub(crate) huge_pages: HugePagesOutcome,
    pub(crate) settings: SettingsInForce,
}

pub(crate) const DEFAULT_MIN_BYTES: usize = 0;
/// Where more threads than these wait while one of them clears a giant, the kernel clears it on all of them instead.
const EAGER_ZERO_THREADS: usize = 4;
/// What a giant is in that sense: to clear less at once, and find it in the caches, was faster (docs/design.md).
const GIANT_ZERO_BYTES: usize = 128 << 20;

/// For so long, a process that takes and gives memory keeps what it had at most. The longer, the longer an idle one keeps it; the
/// shorter, the more often one that needs it every few seconds pays for its pages again (docs/preload.md).
const DEFAULT_RETAIN_FOR: Duration = Duration::from_secs(8);

/// Threads beyond the machine's cores that `ZK_ALLOC_SLAB_GB` counts room for, as the crate zk-alloc 0.0.9 did.
const EXTRA_THREADS: usize = 4;

/// The smallest request of the arena's. More than any request as long as it is not known.
static THRESHOLD: AtomicUsize = AtomicUsize::new(UNKNOWN);
pub(crate) const UNKNOWN: usize = usize::MAX;
static THREAD_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Whether somebody warned of values that can't be used before the arena opened.
static HAS_WARNED: AtomicBool = AtomicBool::new(false);
/// What the program says.
static PROGRAM: WrittenOnce<Settings> = WrittenOnce::new();

/// The smallest request that the arena serves, in bytes; [`UNKNOWN`], which no request reaches, until an allocator was
/// [introduced](introduce).
#[inline(always)]
pub(crate) fn threshold() -> usize {
    THRESHOLD.load(Ordering::Relaxed)
}

/// The smallest request that the arena serves, in bytes: `ZK_ALLOC_MIN_BYTES` as the process was started with it, else what the
/// program [set](Settings::min_bytes); 0, which is every request, by default. Smaller requests always go to the backing
/// allocator.
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

/// The arena's capacity for each thread, in bytes: `ZK_ALLOC_SLAB_GB` as the process was started with it, else what the program
/// [set](Settings::thread_capacity_bytes). It is address space, and no memory. 0 before the first phase.
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

/// An allocator is asked for something for the first time: its settings are the program's, unless another came first. Returns
/// whether the threshold is known now; not while another thread is in here, nor where this one was interrupted in here.
#[cold]
pub(crate) fn introduce(settings: &Settings) -> bool {
    PROGRAM.write(|| *settings);
    let Some(program) = program() else { return false };
    THRESHOLD.store(min_bytes(program), Ordering::Relaxed);
    true
}

/// What the program says; `None` as long as no allocator was [introduced](introduce).
pub(crate) fn program() -> Option<&'static Settings> {
    PROGRAM.get()
}

/// Resolves the settings, and makes them current.
pub(crate) fn load(program: &Settings) -> Config {
    let config = Config::resolve(os::host(), os::variable, program, |warning| {
        if !HAS_WARNED.load(Ordering::Relaxed) {
            os::warn(format_args!("{warning}"));
        }
    });
    if config.settings.sandbox.value {
        os::enter_sandbox();
    }
    THREAD_BYTES.store(config.settings.thread_capacity_bytes.value, Ordering::Relaxed);
    config
}

/// Warns of each value in the environment that can't be used, unless `is_said` holds for its variable; [`load`] then warns of none.
#[cfg(feature = "c-api")]
pub(crate) fn warn_before_opening(is_said: impl Fn(&'static str) -> bool) {
    HAS_WARNED.store(true, Ordering::Relaxed);
    let each = |host, warn: &mut dyn FnMut(Warning)| {
        Config::resolve(host, os::variable, &Settings::new(), warn);
    };
    // Any host tells whether there is a warning. This one, whose defaults a warning names, takes longer to ask.
    let mut is_any = false;
    each(Host { threads: 1, memory_bytes: 0, huge_pages: HostHugePages::Unavailable }, &mut |_| is_any = true);
    if is_any {
        each(os::host(), &mut |warning| {
            if !warning.variable().is_some_and(&is_said) {
                os::warn(format_args!("{warning}"));
            }
        });
    }
}

/// As the arena will have it, which warns of what can't be used.
fn min_bytes(program: &Settings) -> usize {
    let set = MIN_BYTES.resolve(os::variable, program.min_bytes, DEFAULT_MIN_BYTES, |_| ());
    set.value.min(UNKNOWN - 1)
}

/// `ZK_ALLOC_MIN_BYTES`, if it is set to something of use.
#[cfg(feature = "c-api")]
pub(crate) fn min_bytes_setting() -> Option<usize> {
    os::variable(MIN_BYTES.variable).as_ref().and_then(|said| MIN_BYTES.usable(said))
}

/// `ZK_ALLOC_BACKGROUND`, if it is set to something of use.
#[cfg(feature = "c-api")]
pub(crate) fn background_setting() -> Option<bool> {
    os::variable(BACKGROUND.variable).as_ref().and_then(|said| BACKGROUND.usable(said))
}

/// What memory that is not the arena's does about huge pages, by the settings and the host. A value that can't be used is
/// warned of when the arena opens.
pub(crate) fn huge_pages() -> HugePagesOutcome {
    let in_code = program().and_then(|program| program.huge_pages);
    let wish = HUGE_PAGES.resolve(os::variable, in_code, HugePages::Auto, |_| ());
    wish.value.on(os::host().huge_pages)
}

impl Config {
    fn resolve(
        machine: Host,
        environment: impl Fn(&'static str) -> Option<Value>,
        program: &Settings,
        mut warn: impl FnMut(Warning),
    ) -> Self {
        let threads = machine.threads + EXTRA_THREADS;
        let thread_bytes = (8 * machine.memory_bytes / threads).max(1 << 30);
        let lazy_zero_bytes = if machine.threads > EAGER_ZERO_THREADS { GIANT_ZERO_BYTES } else { usize::MAX };
        let (asked, warn) = (&environment, &mut warn);
        let settings = SettingsInForce {
            min_bytes: MIN_BYTES.resolve(asked, program.min_bytes, DEFAULT_MIN_BYTES, &mut *warn),
            thread_capacity_bytes: THREAD_CAPACITY.resolve(
                asked,
                program.thread_capacity_bytes,
                thread_bytes,
                &mut *warn,
            ),
            retain_bytes: RETAIN_BYTES.resolve(asked, program.retain_bytes, machine.memory_bytes / 2, &mut *warn),
            retain_for: RETAIN_FOR.resolve(asked, program.retain_for, DEFAULT_RETAIN_FOR, &mut *warn),
            max_bytes: MAX_BYTES.resolve(asked, program.max_bytes, usize::MAX, &mut *warn),
            huge_pages: HUGE_PAGES.resolve(asked, program.huge_pages, HugePages::Auto, &mut *warn),
            lazy_zero_bytes: LAZY_ZERO_BYTES.resolve(asked, program.lazy_zero_bytes, lazy_zero_bytes, &mut *warn),
            sandbox: SANDBOX.resolve(asked, program.sandbox, false, &mut *warn),
            background_thread: BACKGROUND.resolve(asked, program.background_thread, false, &mut *warn),
            trace_escaped: TRACE_ESCAPED.resolve(asked, program.trace_escaped, false, &mut *warn),
        };
        Self {
            threads: machine.threads,
            // Each zone could hold all that the threads may have; address space costs nothing.
            span_bytes: settings.thread_capacity_bytes.value.saturating_mul(threads) / 4,
            huge_pages: settings.huge_pages.value.on(machine.huge_pages),
            settings,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::HostHugePages;

    const MACHINE: Host = Host { threads: 2, memory_bytes: 24 << 30, huge_pages: HostHugePages::Available };

    /// Each setting: its variable, a good value, and the program's word for another, with that as the environment has it.
    const EACH: [(&str, &str, Settings, &str); 10] = [
        ("ZK_ALLOC_MIN_BYTES", "4K", Settings::new().min_bytes(100), "100"),
        ("ZK_ALLOC_SLAB_GB", "8", Settings::new().thread_capacity_bytes(3 << 30), "3"),
        ("ZK_ALLOC_RETAIN_BYTES", "2G", Settings::new().retain_bytes(0), "0"),
        ("ZK_ALLOC_RETAIN_FOR", "0.5", Settings::new().retain_for(Duration::from_secs(60)), "60"),
        ("ZK_ALLOC_MAX_BYTES", "1T", Settings::new().max_bytes(1 << 20), "1048576"),
        ("ZK_ALLOC_THP", "never", Settings::new().huge_pages(HugePages::Always), "always"),
        ("ZK_ALLOC_LAZY_ZERO_BYTES", "4M", Settings::new().lazy_zero_bytes(1 << 30), "1073741824"),
        ("ZK_ALLOC_SANDBOX", "0", Settings::new().sandbox(true), "1"),
        ("ZK_ALLOC_BACKGROUND", "0", Settings::new().background_thread(true), "1"),
        ("ZK_ALLOC_TRACE_ESCAPED", "0", Settings::new().trace_escaped(true), "1"),
    ];

    fn resolve_on(machine: Host, name: &'static str, value: &str, program: &Settings) -> (Config, Vec<String>) {
        let mut warnings = Vec::new();
        let config = Config::resolve(
            machine,
            |asked| (asked == name).then(|| Value::new(value.as_bytes())),
            program,
            |warning| warnings.push(warning.to_string()),
        );
        (config, warnings)
    }

    fn resolve(name: &'static str, value: &str, program: &Settings) -> (SettingsInForce, Vec<String>) {
        let (config, warnings) = resolve_on(MACHINE, name, value, program);
        (config.settings, warnings)
    }

    fn set(name: &'static str, value: &str) -> SettingsInForce {
        let (settings, warnings) = resolve(name, value, &Settings::new());
        assert!(warnings.is_empty(), "{warnings:?}");
        settings
    }

    #[test]
    fn what_is_not_set_has_its_default_and_no_warning() {
        let settings = set("", "");
        assert_eq!(settings.min_bytes.value, 0);
        assert_eq!(settings.retain_bytes.value, 12 << 30);
        assert_eq!(settings.huge_pages.value, HugePages::Auto);
        assert_eq!(settings.to_string(), "all as by default");
    }

    /// The os layer keeps only what it knows by name.
    #[test]
    fn every_setting_is_among_the_variables_that_are_kept() {
        let mut asked_for = Vec::new();
        let asked = std::cell::RefCell::new(&mut asked_for);
        let environment = |name| {
            asked.borrow_mut().push(name);
            None
        };
        Config::resolve(MACHINE, environment, &Settings::new(), |_| unreachable!());
        assert_eq!(asked_for.len(), EACH.len());
        for name in asked_for {
            assert!(os::VARIABLES.contains(&name), "{name} would never be found");
            assert!(EACH.iter().any(|(known, ..)| *known == name), "{name} is not tested");
        }
    }

    #[test]
    fn good_values_are_taken() {
        assert_eq!(set("ZK_ALLOC_MIN_BYTES", "4096").min_bytes.value, 4096);
        assert_eq!(set("ZK_ALLOC_MIN_BYTES", " 64k ").min_bytes.value, 64 << 10);
        assert_eq!(set("ZK_ALLOC_RETAIN_BYTES", "2G").retain_bytes.value, 2 << 30);
        assert_eq!(set("ZK_ALLOC_SLAB_GB", "8").thread_capacity_bytes.value, 8 << 30);
        assert_eq!(set("ZK_ALLOC_THP", "never").huge_pages.value, HugePages::Never);
    }

    /// The environment, else the program, else the default; and what is in force says which.
    #[test]
    fn the_environment_outweighs_the_program_which_outweighs_the_default() {
        for (name, value, program, in_code) in EACH {
            let (by_program, warnings) = resolve("", "", &program);
            assert!(warnings.is_empty(), "{warnings:?}");
            assert_eq!(by_program.to_string(), format!("{name}={in_code} (program)"));
            let (by_both, warnings) = resolve(name, value, &program);
            assert!(warnings.is_empty(), "{warnings:?}");
            assert_eq!(by_both, set(name, value));
            let text = by_both.to_string();
            assert!(text.starts_with(&format!("{name}=")) && text.ends_with(" (environment)"), "{text}");
        }
        let all = Settings::new().min_bytes(1).max_bytes(2).trace_escaped(true);
        let (settings, _) = resolve("ZK_ALLOC_MAX_BYTES", "3", &all);
        assert_eq!(
            settings.to_string(),
            "ZK_ALLOC_MIN_BYTES=1 (program), ZK_ALLOC_MAX_BYTES=3 (environment), ZK_ALLOC_TRACE_ESCAPED=1 (program)"
        );
    }

    #[test]
    fn each_bad_value_is_named_with_what_is_used_instead() {
        let overflowing = "99999999999999999999";
        for (name, _, program, in_code) in EACH {
            for value in ["", "-1", "garbage", "1.5", "1.5K", overflowing, "18446744073709551615G"] {
                if (name, value) == ("ZK_ALLOC_RETAIN_FOR", "1.5") {
                    continue; // A second and a half.
                }
                for (program, instead) in [
                    (Settings::new(), "using the default, "),
                    (program, &*format!("using what the program set, {in_code}")),
                ] {
                    let (settings, warnings) = resolve(name, value, &program);
                    assert_eq!(settings, resolve("", "", &program).0, "{name}={value}");
                    assert_eq!(warnings.len(), 1, "{name}={value}: {warnings:?}");
                    assert!(warnings[0].starts_with(&format!("{name}={value:?} is not ")), "{warnings:?}");
                    assert!(warnings[0].contains(instead), "{warnings:?}");
                }
            }
        }
        assert_eq!(resolve("ZK_ALLOC_SLAB_GB", "0", &Settings::new()).1.len(), 1);
    }

    #[test]
    fn times_are_seconds_and_may_have_parts() {
        let of = |value| set("ZK_ALLOC_RETAIN_FOR", value).retain_for.value;
        assert_eq!(set("", "").retain_for.value, Duration::from_secs(8));
        assert_eq!(of("10"), Duration::from_secs(10));
        assert_eq!(of(" 0.25 "), Duration::from_millis(250));
        assert_eq!((of("0"), of("ever")), (Duration::ZERO, Duration::MAX));
        for value in ["", "-1", "1e3", "inf", "nan", "5s", ".", "1.2.3", "1000000000", "99999999999999999999"] {
            let (settings, warnings) = resolve("ZK_ALLOC_RETAIN_FOR", value, &Settings::new());
            assert_eq!(
                (settings.retain_for.value, warnings.len()),
                (Duration::from_secs(8), 1),
                "{value}: {warnings:?}"
            );
            assert!(warnings[0].ends_with("using the default, 8"), "{warnings:?}");
        }
        for (time, text) in [(Duration::from_millis(250), "0.25"), (Duration::from_nanos(1), "0.000000001")] {
            let (settings, _) = resolve("", "", &Settings::new().retain_for(time));
            assert_eq!(settings.to_string(), format!("ZK_ALLOC_RETAIN_FOR={text} (program)"));
            assert_eq!(of(text), time);
        }
        assert_eq!(
            resolve("", "", &Settings::new().retain_for(Duration::MAX)).0.to_string(),
            "ZK_ALLOC_RETAIN_FOR=ever (program)"
        );
        assert_eq!(
            resolve("", "", &Settings::new().retain_for(Duration::from_secs(1_000_000_000))).1,
            [
                "Settings::retain_for(1000000000s) is not a number of seconds (such as 10 or 0.5), or ever; using the default, 8"
            ]
        );
    }

    /// The same sentence, about what the program wrote.
    #[test]
    fn a_bad_value_in_code_is_named_as_one_in_the_environment_is() {
        let (default, _) = resolve("", "", &Settings::new());
        let sentence = " is not a whole number of GiB, at least 1; using the default, 32";
        assert_eq!(
            resolve("ZK_ALLOC_SLAB_GB", "0", &default_program(0)).1,
            [format!("ZK_ALLOC_SLAB_GB=\"0\"{sentence}"), format!("Settings::thread_capacity_bytes(0){sentence}"),]
        );
        for bytes in [0, 1, (1 << 30) - 1, (1 << 30) + 1, (64 << 40) + (1 << 30), usize::MAX] {
            let (settings, warnings) = resolve("", "", &default_program(bytes));
            assert_eq!(settings, default);
            assert_eq!(warnings, [format!("Settings::thread_capacity_bytes({bytes}){sentence}")]);
            // Who outweighs it is not told.
            assert!(resolve("ZK_ALLOC_SLAB_GB", "2", &default_program(bytes)).1.is_empty());
        }
        assert!(resolve("", "", &default_program(64 << 40)).1.is_empty());
    }

    const fn default_program(thread_capacity_bytes: usize) -> Settings {
        Settings::new().thread_capacity_bytes(thread_capacity_bytes)
    }

    #[test]
    fn giants_are_zeroed_lazily_where_many_threads_would_wait() {
        let of = |threads| {
            let (config, _) = resolve_on(Host { threads, ..MACHINE }, "", "", &Settings::new());
            config.settings.lazy_zero_bytes.value
        };
        assert_eq!([of(1), of(4)], [usize::MAX; 2]);
        assert_eq!([of(5), of(64)], [128 << 20; 2]);
        assert_eq!(set("ZK_ALLOC_LAZY_ZERO_BYTES", "4M").lazy_zero_bytes.value, 4 << 20);
    }

    #[test]
    fn a_host_without_huge_pages_is_not_asked_for_them_nor_at_first_one_where_they_cost_more_than_they_save() {
        use HostHugePages as Says;
        use HugePagesOutcome::{Always, Auto, Avoided, Later, Never, Unavailable};
        let of_all = |value| {
            [Says::Available, Says::Costly, Says::CostlyUnasked, Says::Unavailable].map(|huge_pages| {
                let machine = Host { huge_pages, ..MACHINE };
                resolve_on(machine, "ZK_ALLOC_THP", value, &Settings::new()).0.huge_pages
            })
        };
        assert_eq!(of_all("auto"), [Auto, Later, Avoided, Unavailable]);
        assert_eq!(of_all("always"), [Always, Always, Always, Unavailable]);
        assert_eq!(of_all("later"), [Later, Later, Avoided, Unavailable]);
        assert_eq!(of_all("never"), [Never; 4]);
    }
}
