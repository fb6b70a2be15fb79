//! `ZK_ALLOC_THP`: a setting whose outcome depends on the host. The wish is one type, the outcome is another.

use std::fmt;

use crate::os::HostHugePages;

/// Where to ask for huge pages: `ZK_ALLOC_THP`. The [outcome](HugePagesOutcome) depends on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum HugePages {
    /// Where they pay.
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
    /// The arena asks for them where they pay; the host has them.
    Auto,
    /// The arena asks for them everywhere; the host has them.
    Always,
    /// The outcome of [`HugePages::Auto`] if a hypervisor takes free memory back. The first touch of a huge page then has to get
    /// hundreds of small ones, so the arena forbids them.
    Avoided,
    /// The arena forbids them, whatever the host's setting.
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
            Self::Never => "never",
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Auto),
            "always" => Some(Self::Always),
            "never" => Some(Self::Never),
            _ => None,
        }
    }

    /// The outcome on a host.
    pub(super) fn on(self, host: HostHugePages) -> HugePagesOutcome {
        match (self, host) {
            (Self::Never, _) => HugePagesOutcome::Never,
            (_, HostHugePages::Unavailable) => HugePagesOutcome::Unavailable,
            (Self::Always, _) => HugePagesOutcome::Always,
            (Self::Auto, HostHugePages::Available) => HugePagesOutcome::Auto,
            (Self::Auto, HostHugePages::Costly) => HugePagesOutcome::Avoided,
        }
    }
}
