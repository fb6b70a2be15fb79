//! What an arm is: an allocator, the binary that links it, its settings, and what must hold of it and its proofs.

use crate::sample::Sample;

/// An allocator with its settings.
#[derive(Clone, Copy, Debug)]
pub struct Arm {
    /// Name on the command line, in tables and in files.
    pub name: &'static str,
    /// The binary that links the allocator; it lies beside the driver.
    pub binary: &'static str,
    /// Our own arena serves it.
    pub is_ours: bool,
    /// Its colour in charts; the arms of one allocator have the same.
    pub colour: Colour,
    /// Environment variables that set it.
    pub environment: &'static [(&'static str, &'static str)],
    /// Settings and values, in the allocator's own words, that it must confirm before it proves.
    pub confirms: &'static [(&'static str, &'static str)],
    /// What each of its proofs must show, or the arm was not what was measured.
    pub holds: &'static [Condition],
    /// Why the arm may fail without failing the run; `None` if it must not fail.
    pub known_to_fail: Option<&'static str>,
}

/// A colour on light paper and on dark, as CSS has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour {
    /// On light paper.
    pub light: &'static str,
    /// On dark paper.
    pub dark: &'static str,
}

impl Colour {
    /// Of an arm that says nothing else, and of one that is not known here.
    pub const OTHER: Self = Self { light: "#3f9bd1", dark: "#9bd4f5" };
}

impl Arm {
    /// The allocator that `binary` links, as it comes.
    pub const fn new(name: &'static str, binary: &'static str) -> Self {
        let (environment, confirms, holds) = (&[], &[], &[]);
        let (is_ours, colour, known_to_fail) = (false, Colour::OTHER, None);
        Self { name, binary, is_ours, colour, environment, confirms, holds, known_to_fail }
    }
}

/// What must hold of every proof of an arm.
#[derive(Clone, Copy, Debug)]
pub enum Condition {
    /// The allocator's counter grew during the proof.
    Grows {
        /// The counter, as the arm's binary names it.
        counter: &'static str,
        /// What it means if the counter did not grow.
        otherwise: &'static str,
    },
    /// The allocator's gauge was not zero after the proof.
    Positive {
        /// The gauge, as the arm's binary names it.
        gauge: &'static str,
        /// What it means if it was zero.
        otherwise: &'static str,
    },
}

impl Condition {
    /// Why `sample` breaks the condition; `None` if it holds.
    pub(crate) fn broken_by(&self, sample: &Sample) -> Option<String> {
        let (name, otherwise, value, zero) = match self {
            Self::Grows { counter, otherwise } => (counter, otherwise, sample.counters.get(*counter), "did not grow"),
            Self::Positive { gauge, otherwise } => (gauge, otherwise, sample.gauges.get(*gauge), "is 0"),
        };
        match value {
            Some(0) => Some(format!("{otherwise} ({name} {zero})")),
            Some(_) => None,
            None => Some(format!("the allocator does not report {name}")),
        }
    }
}
