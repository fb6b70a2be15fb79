//! The options.

use std::path::PathBuf;
use std::thread;

use clap::Parser;
use clap::builder::{PossibleValue, PossibleValuesParser};

use crate::arms::{ARMS, Arm, BASELINE, BROKEN};
use crate::patterns::{Group, PATTERNS, Pattern};

/// What servers, pools, threads that come and go, and provers ask of an allocator, by time and by memory
#[derive(Debug, Parser)]
#[command(name = "cargo make stress", bin_name = "cargo make stress")]
pub(crate) struct Options {
    /// Only these patterns, separated by commas; `--list` names them
    #[arg(long, value_delimiter = ',', hide_possible_values = true, value_parser = pattern_names())]
    patterns: Vec<String>,

    /// Only these arms, separated by commas, beside glibc, to which all are compared
    #[arg(long, value_delimiter = ',', value_parser = arm_names())]
    arms: Vec<String>,

    /// How often each arm runs each pattern
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,

    /// Threads of the patterns that have no number of their own; as many as there are processors, and at least 2
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,

    /// What the patterns' random numbers and the order of the arms follow from
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// Run each pattern once before the clock starts: what a process that goes on gains, without what a first touch costs
    #[arg(long)]
    pub(crate) warm: bool,

    /// Print the tables in Markdown
    #[arg(long)]
    pub(crate) markdown: bool,

    /// Write each sample to this file, one row a run
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,

    /// List patterns and arms
    #[arg(long)]
    pub(crate) list: bool,

    /// Run a hundredth of each pattern once, measure nothing: what `cargo test --benches` does
    #[arg(long)]
    pub(crate) test: bool,

    /// Only patterns whose names contain this: what `cargo bench` passes on
    #[arg(hide = true)]
    filter: Option<String>,

    /// What `cargo bench` adds, and `cargo test` does not.
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
    /// The patterns asked for, in the order of the list.
    pub(crate) fn patterns(&self) -> Vec<&'static Pattern> {
        let filter = self.filter.as_deref().unwrap_or_default();
        let wanted = |name: &str| self.patterns.is_empty() || self.patterns.iter().any(|asked| asked == name);
        PATTERNS.iter().filter(|pattern| wanted(pattern.name) && pattern.name.contains(filter)).collect()
    }

    /// The arms asked for, in the order of the list; for a table the baseline is among them.
    pub(crate) fn arms(&self) -> Vec<&'static Arm> {
        let wanted = |name: &str| {
            self.arms.is_empty() || self.arms.iter().any(|asked| asked == name) || (name == BASELINE && !self.child)
        };
        let broken = self.arms.iter().any(|asked| asked == BROKEN.name).then_some(&BROKEN);
        ARMS.iter().filter(|arm| wanted(arm.name)).chain(broken).collect()
    }

    /// False where there is nobody to read figures, or no time for them.
    pub(crate) fn measures(&self) -> bool {
        self.bench && !self.test
    }

    pub(crate) fn threads(&self) -> usize {
        let processors = || thread::available_parallelism().map_or(2, |threads| threads.get().max(2));
        self.threads.map_or_else(processors, usize::from)
    }
}

/// The names that `--arms` takes, and the one that it does not tell of.
fn arm_names() -> PossibleValuesParser {
    let broken = PossibleValue::new(BROKEN.name).hide(true);
    PossibleValuesParser::new(ARMS.iter().map(|arm| PossibleValue::new(arm.name)).chain([broken]))
}

fn pattern_names() -> PossibleValuesParser {
    PossibleValuesParser::new(PATTERNS.iter().map(|pattern| pattern.name))
}

/// What there is to choose from.
pub(crate) fn listing() -> String {
    let names = ARMS.iter().map(|arm| arm.name).collect::<Vec<_>>().join(", ");
    let mut text = format!("arms: {names}\n");
    for (group, title) in [(Group::Large, "1 KiB and more"), (Group::Small, "below 1 KiB")] {
        text += &format!("\npatterns, {title}:\n");
        for pattern in PATTERNS.iter().filter(|pattern| pattern.group == group) {
            text += &format!("  {:<20} {}\n", pattern.name, pattern.what);
        }
    }
    text
}
