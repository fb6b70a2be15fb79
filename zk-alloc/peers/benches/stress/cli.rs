//! The options.

use std::thread;

use clap::Parser;
use clap::builder::{PossibleValue, PossibleValuesParser};

use crate::arms::{ARMS, Arm, BASELINE, BROKEN};
use crate::patterns::{PATTERNS, Pattern};
use crate::report::GROUPS;

/// Measures time and memory of allocators on requests of servers, pools, short-lived threads and provers
#[derive(Debug, Parser)]
#[command(name = "cargo make stress", bin_name = "cargo make stress")]
pub(crate) struct Options {
    /// Run only these patterns, separated by commas; `--list` names them
    #[arg(long, value_delimiter = ',', hide_possible_values = true, value_parser = pattern_names())]
    patterns: Vec<String>,

    /// Run only these arms, separated by commas, and glibc, to which all are compared
    #[arg(long, value_delimiter = ',', value_parser = arm_names())]
    arms: Vec<String>,

    /// How often each arm runs each pattern
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,

    /// Threads of patterns without a fixed number; the default is the number of processors, and at least 2
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,

    /// Seed of the patterns' random numbers and of the order of the arms
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// Run each pattern once before the clock starts, to measure a warm process without the cost of first touches
    #[arg(long)]
    pub(crate) warm: bool,

    /// List patterns and arms
    #[arg(long)]
    pub(crate) list: bool,

    /// Run a hundredth of each pattern once and measure nothing, as `cargo test --benches` does
    #[arg(long)]
    pub(crate) test: bool,

    /// Run only patterns whose names contain this text, which `cargo bench` passes on
    #[arg(hide = true)]
    filter: Option<String>,

    /// Set by `cargo bench`, and not by `cargo test`.
    #[arg(long, hide = true)]
    bench: bool,

    /// Run the one pattern under the one arm in this process, and print a sample.
    #[arg(long, hide = true)]
    pub(crate) child: bool,

    /// A hundredth of the work.
    #[arg(long, hide = true)]
    pub(crate) tiny: bool,
}

impl Options {
    /// The selected patterns, in the order of the list.
    pub(crate) fn patterns(&self) -> Vec<&'static Pattern> {
        let filter = self.filter.as_deref().unwrap_or_default();
        let wanted = |name: &str| self.patterns.is_empty() || self.patterns.iter().any(|asked| asked == name);
        PATTERNS.iter().filter(|pattern| wanted(pattern.name) && pattern.name.contains(filter)).collect()
    }

    /// The selected arms, in the order of the list. A table also includes the baseline.
    pub(crate) fn arms(&self) -> Vec<&'static Arm> {
        let wanted = |name: &str| {
            self.arms.is_empty() || self.arms.iter().any(|asked| asked == name) || (name == BASELINE && !self.child)
        };
        let broken = self.arms.iter().any(|asked| asked == BROKEN.name).then_some(&BROKEN);
        ARMS.iter().filter(|arm| wanted(arm.name)).chain(broken).collect()
    }

    /// Whether figures are measured: false in tests.
    pub(crate) fn measures(&self) -> bool {
        self.bench && !self.test
    }

    pub(crate) fn threads(&self) -> usize {
        let processors = || thread::available_parallelism().map_or(2, |threads| threads.get().max(2));
        self.threads.map_or_else(processors, usize::from)
    }
}

/// The names that `--arms` accepts, including a hidden one.
fn arm_names() -> PossibleValuesParser {
    let broken = PossibleValue::new(BROKEN.name).hide(true);
    PossibleValuesParser::new(ARMS.iter().map(|arm| PossibleValue::new(arm.name)).chain([broken]))
}

fn pattern_names() -> PossibleValuesParser {
    PossibleValuesParser::new(PATTERNS.iter().map(|pattern| pattern.name))
}

/// The list of arms and patterns.
pub(crate) fn listing() -> String {
    let names = ARMS.iter().map(|arm| arm.name).collect::<Vec<_>>().join(", ");
    let mut text = format!("arms: {names}\n");
    for (group, title) in GROUPS {
        text += &format!("\npatterns, {title}:\n");
        for pattern in PATTERNS.iter().filter(|pattern| pattern.group == group) {
            text += &format!("  {:<20} {}\n", pattern.name, pattern.what);
        }
    }
    text
}
