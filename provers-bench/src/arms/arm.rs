//! An arm: an allocator, the binary that links it, its settings, and the conditions that its proofs must meet.

use crate::sample::Sample;

/// An allocator with its settings.
#[derive(Clone, Copy, Debug)]
pub struct Arm {
    /// Name on the command line, in tables and in files.
    pub name: &'static str,
    /// The binary that links the allocator. It is in the driver's folder.
    pub binary: &'static str,
    /// The allocator is our own arena.
    pub is_ours: bool,
    /// Its colour in charts. The arms of one allocator share it.
    pub colour: Colour,
    /// Environment variables that configure it.
    pub environment: &'static [(&'static str, &'static str)],
    /// Settings, as name and value in the allocator's own terms. The allocator must confirm them before the first
    /// proof.
    pub confirms: &'static [(&'static str, &'static str)],
    /// Conditions that each of its proofs must meet. If one fails, the arm did not measure what its name says.
    pub holds: &'static [Condition],
    /// Why the arm may fail without failing the run; `None` if it must not fail.
    pub known_to_fail: Option<&'static str>,
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
    /// The allocator that `binary` links, with its default settings.
    pub const fn new(name: &'static str, binary: &'static str) -> Self {
        let (environment, confirms, holds) = (&[], &[], &[]);
        let (is_ours, colour, known_to_fail) = (false, Colour::OTHER, None);
        Self { name, binary, is_ours, colour, environment, confirms, holds, known_to_fail }
    }
}

/// A condition that every proof of an arm must meet.
#[derive(Clone, Copy, Debug)]
pub enum Condition {
    /// The allocator's counter grew during the proof.
    Grows {
        /// The counter's name in the arm's binary.
        counter: &'static str,
        /// The explanation if the counter did not grow.
        otherwise: &'static str,
    },
    /// The allocator's gauge was above zero after the proof.
    Positive {
        /// The gauge's name in the arm's binary.
        gauge: &'static str,
        /// The explanation if the gauge is zero.
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
