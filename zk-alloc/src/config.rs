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
#[cfg(test)]
mod tests;

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
/// Where more threads than these wait while one of them clears a huge run, the kernel clears it on all of them instead.
const EAGER_ZERO_THREADS: usize = 4;
/// What a huge run is in that sense: to clear less at once, and find it in the caches, was faster (docs/design.md).
const HUGE_RUN_ZERO_BYTES: usize = 128 << 20;

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
            if !is_said(warning.variable()) {
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
        let lazy_zero_bytes = if machine.threads > EAGER_ZERO_THREADS { HUGE_RUN_ZERO_BYTES } else { usize::MAX };
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
