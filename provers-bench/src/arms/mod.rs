//! The table of arms. An arm is an allocator, the binary that links it, its settings, the conditions that its proofs must meet, and the
//! library that `exec` preloads for it.
//!
//! - `mod`: the table
//! - `allocators`: the allocator that each arm's binary installs, and its description
//! - `tuned`: our arena with other values of its constants

mod allocators;
pub(crate) mod tuned;

pub use crate::sample::Counters;
pub use allocators::*;

use crate::sample::Sample;

/// An allocator with its settings.
#[derive(Clone, Copy, Debug)]
pub struct Arm {
    /// Name on the command line, in tables and in files.
    pub name: &'static str,
    /// The binary that links the allocator, in the driver's folder.
    pub binary: &'static str,
    /// Whether the allocator is our own arena.
    pub is_ours: bool,
    /// Colour in charts, which all arms of an allocator share.
    pub colour: Colour,
    /// Environment variables that configure it.
    pub environment: &'static [(&'static str, &'static str)],
    /// Settings (name and value, in the allocator's own terms) that the allocator must confirm before the first proof.
    /// jemalloc also confirms every option in its environment variable.
    pub confirms: &'static [(&'static str, &'static str)],
    /// Conditions that show whether a proof measured the settings that the arm is named after. Each is the name of a counter that must grow
    /// during the proof, or of a gauge that must be above zero after it, and the message for a failure.
    pub holds: &'static [(&'static str, &'static str)],
    /// Why the arm may fail without failing the run; `None` if it must not fail.
    pub known_to_fail: Option<&'static str>,
    /// How `exec` starts a program with the same allocator; `None` if it cannot.
    pub(crate) preload: Option<Preload>,
}

/// A library to preload, and the arm's settings as environment variables of that library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Preload {
    pub(crate) library: Library,
    pub(crate) environment: &'static [(&'static str, &'static str)],
}

/// Where the library comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    /// None: the C library's own functions serve all requests.
    None,
    /// A package of the distribution.
    Packaged { files: &'static [&'static str], debian: &'static str, fedora: &'static str },
    /// `zk-alloc-preload` of this workspace.
    Ours,
}

/// A CSS colour, for a light and a dark background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour {
    /// On a light background.
    pub light: &'static str,
    /// On a dark background.
    pub dark: &'static str,
}

impl Colour {
    /// The colour of an arm without one of its own, and of an unknown arm.
    pub const OTHER: Self = Self { light: "#3f9bd1", dark: "#9bd4f5" };
}

impl Arm {
    /// Returns an arm for the allocator that `binary` links, with default settings.
    pub const fn new(name: &'static str, binary: &'static str) -> Self {
        let (environment, confirms, holds) = (&[], &[], &[]);
        let (is_ours, colour, known_to_fail, preload) = (false, Colour::OTHER, None, None);
        Self { name, binary, is_ours, colour, environment, confirms, holds, known_to_fail, preload }
    }

    /// Sets the arm's colour, for a light and for a dark background.
    const fn coloured(self, light: &'static str, dark: &'static str) -> Self {
        Self { colour: Colour { light, dark }, ..self }
    }

    /// Returns an arm with the same allocator and other settings. `exec` skips the new arm unless it [`preloads`](Self::preloads) a
    /// library.
    const fn set(self, name: &'static str, environment: &'static [(&'static str, &'static str)]) -> Self {
        Self { name, environment, preload: None, ..self }
    }

    /// Returns the arm's environment variables as owned strings.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        owned(self.environment)
    }

    /// Returns the settings (name and value) that the arm's process must confirm: each option of jemalloc, and
    /// [`confirms`](Self::confirms).
    pub fn requires(&self) -> Vec<(String, String)> {
        let options = self.environment.iter().filter(|(name, _)| *name == JEMALLOC_CONF);
        let options = options.flat_map(|(_, options)| options.split(',')).filter_map(|option| option.split_once(':'));
        let options = options.map(|(name, value)| (format!("opt.{name}"), value.to_owned()));
        options.chain(owned(self.confirms)).collect()
    }

    /// Returns which of the conditions in [`holds`](Self::holds) this sample does not meet; `None` if it meets all.
    pub(crate) fn objection(&self, sample: &Sample) -> Option<String> {
        self.holds.iter().find_map(|(figure, otherwise)| {
            match sample.counters.get(*figure).or_else(|| sample.gauges.get(*figure)) {
                Some(0) => Some(format!("{otherwise} ({figure} is 0)")),
                Some(_) => None,
                None => Some(format!("the allocator does not report {figure}")),
            }
        })
    }

    /// Sets the library and the settings with which `exec` starts this arm.
    const fn preloads(self, library: Library, environment: &'static [(&'static str, &'static str)]) -> Self {
        Self { preload: Some(Preload { library, environment }), ..self }
    }
}

/// Environment variables or settings, as names and values.
pub(crate) type Variables = [(String, String)];

/// Copies names and values into owned strings.
pub(crate) fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

const GLIBC: Arm = Arm::new(BASELINE, "with-glibc").coloured("#6f7782", "#98a1ad").preloads(Library::None, &[]);
const JEMALLOC: Arm =
    Arm::new("jemalloc", "with-jemalloc").coloured("#d98200", "#f0a636").preloads(JEMALLOC_LIBRARY, &[]);
const MIMALLOC: Arm =
    Arm::new("mimalloc", "with-mimalloc").coloured("#009e73", "#2fc497").preloads(MIMALLOC_LIBRARY, &[]);
const TCMALLOC: Arm =
    Arm::new("tcmalloc", "with-tcmalloc").coloured("#7a5cc0", "#b39df0").preloads(TCMALLOC_LIBRARY, &[]);
/// Our arm with default settings. Its proofs count only if the arena served requests.
const ZK_ALLOC: Arm = Arm {
    is_ours: true,
    holds: &[ARENA_SERVES],
    ..Arm::new("zk-alloc", "with-zk-alloc").coloured("#0072b2", "#3fa9ee")
};
const ZK_ALLOC_RESIDENT: Arm = Arm { name: "zk-alloc-resident", binary: "with-zk-alloc-resident", ..ZK_ALLOC };

const JEMALLOC_LIBRARY: Library =
    Library::Packaged { files: &["libjemalloc.so.2"], debian: "libjemalloc2", fedora: "jemalloc" };
const MIMALLOC_LIBRARY: Library = Library::Packaged {
    files: &["libmimalloc.so.3", "libmimalloc.so.2", "libmimalloc.so.2.0"],
    debian: "libmimalloc2.0",
    fedora: "mimalloc",
};
const TCMALLOC_LIBRARY: Library = Library::Packaged {
    files: &["libtcmalloc_minimal.so.4", "libtcmalloc.so.4"],
    debian: "libtcmalloc-minimal4",
    fedora: "gperftools-libs",
};

/// Makes glibc retain all memory: it maps no request separately, never trims the heap, and keeps per-thread heaps.
/// Raising `mmap_threshold` instead does not work everywhere. mallopt(3) limits it to 32 MiB, and provers allocate
/// larger buffers. glibc 2.36 accepts more, but older versions silently reject such a value.
const GLIBC_RETAINS: (&str, &str) = (
    "GLIBC_TUNABLES",
    "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1099511627776:glibc.malloc.top_pad=67108864",
);
/// Makes glibc request huge pages (`MADV_HUGEPAGE`) for its heap and for large blocks.
const GLIBC_HUGE: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
/// The environment variable with the options of the jemalloc that Rust programs link.
const JEMALLOC_CONF: &str = "_RJEM_MALLOC_CONF";
/// Makes jemalloc never purge, and request huge pages.
const JEMALLOC_RETAINS: &str = "thp:always,metadata_thp:auto,retain:true,dirty_decay_ms:-1,muzzy_decay_ms:-1";

/// TCMalloc takes its settings from the program, through `MallocExtension`. The arm's binary reads these variables and
/// applies them: the maximum size of a per-CPU cache, and the sampling interval of the heap profiler (0 disables it),
/// both in bytes.
const CACHE_BYTES: &str = "TCMALLOC_MAX_PER_CPU_CACHE_SIZE";
const SAMPLING_BYTES: &str = "TCMALLOC_PROFILE_SAMPLING_INTERVAL";

const ARENA_SERVES: (&str, &str) = ("arena_allocations", "the arena served nothing");
/// The condition for arms that request huge pages: zk-alloc continues without them if the kernel provides none.
const IN_HUGE_PAGES: (&str, &str) = ("large_folio_bytes", "its setting did not take: nothing lies in huge pages");
#[cfg(feature = "profile")]
const IS_SAMPLED: (&str, &str) = ("is_sampled", "its setting did not take: no call sites were sampled");

/// All arms of this workspace, in table order.
pub const ARMS: &[Arm] = &[
    GLIBC,
    Arm { confirms: &[("retains 256 MiB", "yes")], ..GLIBC.set("glibc-tuned", &[GLIBC_RETAINS]) }
        .preloads(Library::None, &[GLIBC_RETAINS]),
    Arm {
        confirms: &[("asks for huge pages", "yes")],
        known_to_fail: Some("glibc gives this advice only where transparent huge pages are set to madvise"),
        ..GLIBC.set("glibc-hugetlb", &[GLIBC_HUGE])
    }
    .preloads(Library::None, &[GLIBC_HUGE]),
    JEMALLOC,
    JEMALLOC
        .set("jemalloc-tuned", &[(JEMALLOC_CONF, JEMALLOC_RETAINS)])
        .preloads(JEMALLOC_LIBRARY, &[("MALLOC_CONF", JEMALLOC_RETAINS)]),
    // Settings that other projects use; each arm is named after the project. The sources are in docs/data/arms.md.
    Arm {
        confirms: &[("opt.dirty_decay_ms", "10000")],
        ..JEMALLOC.set("jemalloc-plonky3", &[(JEMALLOC_CONF, "thp:always,metadata_thp:auto,retain:true")])
    },
    JEMALLOC
        .set("jemalloc-triton", &[(JEMALLOC_CONF, "thp:always,metadata_thp:always,background_thread:true,narenas:32")]),
    JEMALLOC.set(
        "jemalloc-openvm",
        &[(
            JEMALLOC_CONF,
            "retain:true,background_thread:true,metadata_thp:always,thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1",
        )],
    ),
    JEMALLOC
        .set("jemalloc-hpa", &[(JEMALLOC_CONF, "hpa:true")])
        .preloads(JEMALLOC_LIBRARY, &[("MALLOC_CONF", "hpa:true")]),
    // jemalloc at its lowest memory use: it purges freed pages at once.
    JEMALLOC.set("jemalloc-decay-0", &[(JEMALLOC_CONF, "dirty_decay_ms:0,muzzy_decay_ms:0")]),
    MIMALLOC,
    Arm {
        name: "mimalloc-tuned",
        environment: &[("MIMALLOC_PURGE_DELAY", "-1"), ("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1")],
        confirms: &[("purge_delay", "-1"), ("allow_large_os_pages", "1")],
        ..MIMALLOC
    }
    // mimalloc 2.1 and newer read the first two variables, older versions the others. Every version ignores unknown
    // names.
    .preloads(
        MIMALLOC_LIBRARY,
        &[
            ("MIMALLOC_PURGE_DELAY", "-1"),
            ("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1"),
            ("MIMALLOC_ALLOW_DECOMMIT", "0"),
            ("MIMALLOC_LARGE_OS_PAGES", "1"),
        ],
    ),
    Arm::new("snmalloc", "with-snmalloc").coloured("#b8578f", "#dd8fbd"),
    TCMALLOC,
    Arm {
        name: "tcmalloc-tuned",
        // By default glibc claims the kernel's restartable sequences (rseq) for itself. TCMalloc's per-CPU caches need
        // them, so its documentation recommends this setting.
        environment: &[("GLIBC_TUNABLES", "glibc.pthread.rseq=0"), (CACHE_BYTES, "16777216"), (SAMPLING_BYTES, "0")],
        confirms: &[
            ("PerCpuCachesActive", "true"),
            ("MaxPerCpuCacheSize", "16777216"),
            ("ProfileSamplingInterval", "0"),
        ],
        ..TCMALLOC
    }
    // Variables of gperftools, the TCMalloc that distributions package. With them it releases nothing, and threads cache more.
    .preloads(
        TCMALLOC_LIBRARY,
        &[("TCMALLOC_RELEASE_RATE", "0"), ("TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES", "268435456")],
    ),
    Arm {
        known_to_fail: Some("it resets memory that the prover still uses, so that a second proof may not verify"),
        ..Arm::new("bump-reset", "with-bump-reset").coloured("#8a6d1d", "#cdae58")
    },
    ZK_ALLOC.preloads(Library::Ours, &[]),
    Arm { holds: &[ARENA_SERVES, IN_HUGE_PAGES], ..ZK_ALLOC.set("zk-alloc-thp-always", &[("ZK_ALLOC_THP", "always")]) },
    ZK_ALLOC.set("zk-alloc-thp-never", &[("ZK_ALLOC_THP", "never")]),
    // Purges all free memory at the end of each phase.
    ZK_ALLOC.set("zk-alloc-retain-0", &[("ZK_ALLOC_RETAIN_BYTES", "0")]),
    // Samples call sites.
    #[cfg(feature = "profile")]
    Arm { holds: &[ARENA_SERVES, IS_SAMPLED], ..ZK_ALLOC.set("zk-alloc-profile", &[("ZK_ALLOC_PROFILE", "1")]) },
    ZK_ALLOC_RESIDENT,
    // Its background thread purges memory that was not needed during the last second.
    ZK_ALLOC_RESIDENT.set("zk-alloc-idle-1s", &[("ZK_ALLOC_RETAIN_FOR", "1"), ("ZK_ALLOC_BACKGROUND", "1")]),
];

/// Returns the arm with this name.
pub(crate) fn named(name: &str) -> Option<&'static Arm> {
    ARMS.iter().find(|arm| arm.name == name).or_else(|| tuned::named(name))
}

/// A named set of arms for the command line.
pub(crate) struct Set {
    pub(crate) name: &'static str,
    pub(crate) contains: fn(&Arm) -> bool,
}

/// Our arm with default settings. It represents our arms in the sets `quick` and `peers`, and is the arm that `check` compares with a
/// baseline.
pub(crate) const OURS: &str = ZK_ALLOC.name;

/// All sets.
pub(crate) const SETS: &[Set] = &[
    Set { name: "quick", contains: |arm| ["glibc", "jemalloc", OURS].contains(&arm.name) },
    Set { name: "peers", contains: |arm| arm.name == OURS || !arm.is_ours },
    Set { name: "all", contains: |_| true },
];

/// The set that runs if `--allocators` is not given.
pub(crate) const DEFAULT_SET: &str = "quick";

/// The arm that the others are compared with. If it does not take part, the first arm takes its place.
pub const BASELINE: &str = "glibc";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    /// If two arms or sets shared a name, one would be measured in place of the other.
    #[test]
    fn names_of_arms_and_sets_are_unique_and_the_baseline_exists() {
        let names = || ARMS.iter().map(|arm| arm.name).chain(SETS.iter().map(|set| set.name));
        for name in names().chain([BASELINE, DEFAULT_SET]) {
            assert_eq!(names().filter(|other| *other == name).count(), 1, "{name}");
        }
    }

    /// Without its condition, an arm whose arena is unused would report glibc's measurements as its own, and an arm that requests huge
    /// pages would report measurements without them.
    #[test]
    fn a_zero_or_missing_figure_breaks_its_condition() {
        let arm = named("zk-alloc-thp-always").unwrap();
        let with = |name: &str, value| Counters::from([(name.to_owned(), value)]);
        let objection = |served, bytes| {
            let sample = sample::tests::sample(1, with("arena_allocations", served));
            arm.objection(&Sample { gauges: with("large_folio_bytes", bytes), ..sample })
        };
        assert_eq!(objection(1, 2 << 20), None);
        assert!(objection(0, 2 << 20).unwrap().contains("served nothing"));
        assert!(objection(1, 0).unwrap().contains("nothing lies in huge pages"));
        assert!(arm.objection(&Sample::default()).unwrap().contains("does not report"));
    }
}
