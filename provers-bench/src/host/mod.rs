//! The command `host`: the price of memory on this machine, and the settings that follow from it.

mod advice;
mod facts;
mod touch;

use crate::machine::memory;
use crate::plan::values::whole;
use crate::plan::{self, UsageError};
use clap::{ArgMatches, Args, Command};
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use facts::Host;
use std::time::Duration;
use touch::{Pages, Touch};

const NAME: &str = "host";

/// The memory that each measurement touches, or a tenth of the available memory if that is less.
const TOUCHED_BYTES: u64 = 256 << 20;
const HUGE_BYTES: u64 = 2 << 20;

/// The job of the command.
#[derive(Args, Debug)]
pub(crate) struct Job {
    /// Seconds to idle before each cold measurement; a kernel reports free memory to a hypervisor after 2
    #[arg(long, value_name = "SECONDS", default_value = "4", value_parser = whole::<u64>(0..=600))]
    idle: u64,
}

pub(crate) fn command() -> Command {
    Job::augment_args(Command::new(NAME))
        .about("What memory costs on this machine, and the settings that follow; takes less than 30 s")
        .after_help("Exit code 0: measured; 1: memory could not be mapped; 2: wrong usage.")
}

pub(crate) fn job(name: &str, matches: &ArgMatches) -> Option<Result<Job, UsageError>> {
    (name == NAME).then(|| plan::parsed(matches))
}

/// Measures, and returns the text to print.
pub(crate) fn run(job: &Job) -> anyhow::Result<String> {
    let host = Host::observe();
    let room = memory::available_bytes().unwrap_or(TOUCHED_BYTES * 10) / 10;
    let bytes = (room.clamp(HUGE_BYTES, TOUCHED_BYTES) / HUGE_BYTES * HUGE_BYTES) as usize;
    let idle = Duration::from_secs(job.idle);
    let touches = touches(bytes, idle)?;
    let mut counts: Vec<usize> = (0..).map(|log2| 1 << log2).take_while(|&threads| threads < host.cores).collect();
    counts.push(host.cores);
    let rates = counts.into_iter().map(|threads| Ok((threads, touch::faults_a_second(threads, bytes)?)));
    let rates = rates.collect::<anyhow::Result<Vec<_>>>()?;
    let settings = advice::settings(&host, &touches);
    Ok([host.line(), cost_table(&touches, idle), rate_table(&rates), fact_table(&host), text(&settings)].join("\n\n"))
}

/// The cost of each kind of page that the kernel has.
fn touches(bytes: usize, idle: Duration) -> anyhow::Result<Vec<Touch>> {
    let small = touch::first_touch(Pages::Small, bytes, idle)?;
    // Kernels before 5.14 refuse to populate. That row is then missing.
    let others = [Pages::Populated, Pages::Huge].map(|pages| touch::first_touch(pages, bytes, idle).ok());
    Ok([Some(small)].into_iter().chain(others).flatten().collect())
}

fn cost_table(touches: &[Touch], idle: Duration) -> String {
    let header = [
        "first touch, for each 4 KiB",
        "right after as much was freed",
        &format!("after {} idle seconds", idle.as_secs()),
    ]
    .map(str::to_owned);
    let rows = touches.iter().map(|touch| {
        let kind = match touch.pages {
            Pages::Small => "small pages".to_owned(),
            Pages::Populated => "small pages, 2 MiB in a call (MADV_POPULATE_WRITE)".to_owned(),
            Pages::Huge => {
                format!("huge pages where the kernel makes them ({:.0}% of 2 MiB)", touch.huge_share * 100.0)
            }
        };
        let cost = |cost: Duration| format!("{:.2} us", cost.as_nanos() as f64 / 1e3);
        [kind, cost(touch.warm), cost(touch.cold)]
    });
    table(header, rows, [CellAlignment::Left, CellAlignment::Right, CellAlignment::Right])
}

fn rate_table(rates: &[(usize, f64)]) -> String {
    let header = ["page faults at once", "in a second", "of as many single threads"].map(str::to_owned);
    let single = rates.first().map_or(1.0, |&(_, rate)| rate);
    let rows = rates.iter().map(|&(threads, rate)| {
        let name = format!("on {threads} {}", if threads == 1 { "thread" } else { "threads" });
        [name, format!("{:.2} million", rate / 1e6), format!("{:.0}%", rate / single / threads as f64 * 100.0)]
    });
    table(header, rows, [CellAlignment::Left, CellAlignment::Right, CellAlignment::Right])
}

fn fact_table(host: &Host) -> String {
    let header = ["the host", "is set to", "which matters because"].map(str::to_owned);
    table(header, host.rows(), [CellAlignment::Left; 3])
}

fn table(header: [String; 3], rows: impl IntoIterator<Item = [String; 3]>, alignments: [CellAlignment; 3]) -> String {
    let mut table = Table::new();
    table.set_content_arrangement(ContentArrangement::Disabled).load_style(UTF8_FULL_CONDENSED);
    table.set_header(header);
    table.add_rows(rows);
    for (column, alignment) in table.column_iter_mut().zip(alignments) {
        column.set_cell_alignment(alignment);
    }
    table.trim_fmt()
}

/// The settings as lines of a shell, each under its reason.
fn text(settings: &[(String, String)]) -> String {
    if settings.is_empty() {
        return "The defaults fit this host: nothing to set.\n".into();
    }
    let said = settings.iter().map(|(reason, lines)| format!("# {reason}\n{lines}\n"));
    format!("Settings for this host:\n\n{}", said.collect::<Vec<_>>().join("\n"))
}
