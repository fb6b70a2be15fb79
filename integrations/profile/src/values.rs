//! The figures of a call site.

use crate::sites::Figures;

/// A figure that a profile has for each call site. The names are those that pprof shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Value {
    /// `alloc_objects`: the number of allocations.
    AllocObjects,
    /// `alloc_space`: their bytes.
    AllocSpace,
    /// `inuse_objects`: the number of allocations that are alive.
    InuseObjects,
    /// `inuse_space`: their bytes.
    InuseSpace,
    /// `peak_objects`: the number of allocations that were alive at the peak of the live bytes.
    PeakObjects,
    /// `peak_space`: their bytes.
    PeakSpace,
    /// `fresh_space`: the bytes that were not resident when the arena handed them out.
    FreshSpace,
}

impl Value {
    /// All of them, in the order of the file for pprof.
    pub const ALL: [Self; 7] = [
        Self::AllocObjects,
        Self::AllocSpace,
        Self::InuseObjects,
        Self::InuseSpace,
        Self::PeakObjects,
        Self::PeakSpace,
        Self::FreshSpace,
    ];
    /// Those that count bytes. Each has a file of folded stacks and a flame graph.
    pub const OF_BYTES: [Self; 4] = [Self::AllocSpace, Self::InuseSpace, Self::PeakSpace, Self::FreshSpace];

    /// The name that pprof shows.
    ///
    /// ```
    /// assert_eq!(zk_alloc_profile::Value::PeakSpace.name(), "peak_space");
    /// ```
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllocObjects => "alloc_objects",
            Self::AllocSpace => "alloc_space",
            Self::InuseObjects => "inuse_objects",
            Self::InuseSpace => "inuse_space",
            Self::PeakObjects => "peak_objects",
            Self::PeakSpace => "peak_space",
            Self::FreshSpace => "fresh_space",
        }
    }

    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::AllocObjects | Self::InuseObjects | Self::PeakObjects => "count",
            Self::AllocSpace | Self::InuseSpace | Self::PeakSpace | Self::FreshSpace => "bytes",
        }
    }

    pub(crate) fn of(self, figures: &Figures) -> u64 {
        figures[self as usize]
    }

    /// The title of its flame graph.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::AllocObjects => "Allocations",
            Self::AllocSpace => "Bytes allocated",
            Self::InuseObjects => "Allocations alive now",
            Self::InuseSpace => "Bytes alive now",
            Self::PeakObjects => "Allocations alive at the peak",
            Self::PeakSpace => "Bytes alive at the peak",
            Self::FreshSpace => "Fresh bytes, which cost page faults",
        }
    }
}
