//! `ZK_ALLOC_THP`: a setting that the host has a say in. The wish is one type, what becomes of it another.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::os::{self, HostHugePages};

/// What is wished of huge pages: `ZK_ALLOC_THP`. What becomes of it is the host's affair: [`HugePagesOutcome`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum HugePages {
    /// Where they pay.
    #[default]
    Auto,
    /// Everywhere.
    Always,
    /// Nowhere at first; the background thread makes what stays resident huge afterwards, unless the host would give huge pages
    /// unasked.
    Later,
    /// Nowhere.
    Never,
}

/// What the arena does about huge pages: what was [wished](HugePages), after a look at the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum HugePagesOutcome {
    /// Asks for them where they pay; the host has them.
    Auto,
    /// Asks for them everywhere; the host has them.
    Always,
    /// Does not ask for them at first. A background thread ([`start_background_thread`](crate::start_background_thread)), if there
    /// is one, makes what stays resident huge by and by, with 2% of a processor's time; without it, nothing becomes huge. That was
    /// wished, or [`HugePages::Auto`] where a hypervisor takes free memory back, so that the first touch of a huge page has to get
    /// hundreds of small ones.
    Later,
    /// Forbids them where `Later` would wait, because the host would give them unasked, at the first touch. Nothing is made huge
    /// afterwards.
    Avoided,
    /// Forbids them, whatever the host's setting.
    Never,
    /// The host has none to ask for.
    Unavailable,
}

impl fmt::Display for HugePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl fmt::Display for HugePagesOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Later => "later",
            Self::Avoided => "avoided",
            Self::Never => "never",
            Self::Unavailable => "unavailable",
        })
    }
}

impl HugePages {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Later => "later",
            Self::Never => "never",
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Auto),
            "always" => Some(Self::Always),
            "later" => Some(Self::Later),
            "never" => Some(Self::Never),
            _ => None,
        }
    }

    /// What becomes of it on a host.
    pub(super) fn on(self, host: HostHugePages) -> HugePagesOutcome {
        match (self, host) {
            (Self::Never, _) => HugePagesOutcome::Never,
            (_, HostHugePages::Unavailable) => HugePagesOutcome::Unavailable,
            (Self::Always, _) => HugePagesOutcome::Always,
            (Self::Auto, HostHugePages::Available | HostHugePages::Unasked) => HugePagesOutcome::Auto,
            (_, HostHugePages::Unasked | HostHugePages::CostlyUnasked) => HugePagesOutcome::Avoided,
            (Self::Auto | Self::Later, _) => HugePagesOutcome::Later,
        }
    }
}

/// What the host says, which is looked at once: two files of it take as long to read as many pages to touch.
pub(super) fn host_huge_pages() -> HostHugePages {
    use HostHugePages::{Available, Costly, CostlyUnasked, Unasked, Unavailable};
    /// 0 as long as nobody asked, then the place of the answer in `ANSWERS`, from 1 on.
    static ANSWER: AtomicUsize = AtomicUsize::new(0);
    const ANSWERS: [HostHugePages; 5] = [Available, Unasked, Costly, CostlyUnasked, Unavailable];

    if let Some(&known) = ANSWER.load(Ordering::Relaxed).checked_sub(1).and_then(|place| ANSWERS.get(place)) {
        return known;
    }
    let answer = os::host_huge_pages();
    let place = ANSWERS.iter().position(|&known| known == answer).map_or(0, |place| place + 1);
    ANSWER.store(place, Ordering::Relaxed);
    answer
}
