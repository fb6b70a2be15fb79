//! Tools to compare placement policies on recorded allocations. `record` writes the allocations of a prover to a trace.
//! `simulate` replays a trace through placement policies and reports the resident memory under each. `replay` replays
//! it under real allocators on real memory. docs/experiments/placement.md has the figures.
//!
//! - `cli`: arguments of the commands
//! - `table`: figures as text
//! - `session`: runs the recorder's binary
//! - `simulate`: a trace through an arena, to figures
//! - `replay`: a trace on real memory
//! - `arena`: where requests go, simulated
//! - `policy`: the policies, as data
//! - `blocks`: small and medium sizes, with classes, lines or bump slabs
//! - `ground`: zones, and the slabs in one of them
//! - `zone`: one span of pages
//!
//! The recording and the replaying process are in [`child`](crate::child), the file format of records in
//! `protocol::records`.

mod arena;
mod blocks;
mod cli;
mod ground;
mod policy;
mod replay;
#[cfg(test)]
mod script;
mod session;
mod simulate;
mod table;
mod zone;

pub(crate) use cli::{Job, commands, job};
pub(crate) use session::Interrupted;

use crate::protocol::records;

/// Runs a command. Returns the text for stdout, and whether a part of the command failed.
pub(crate) fn run(job: &Job) -> anyhow::Result<(String, bool)> {
    match job {
        Job::Record(recording) => {
            let paths = session::record(recording)?;
            Ok((paths.iter().map(|path| format!("{}\n", path.display())).collect(), false))
        }
        Job::Replay(job) => replay::replay(job),
        Job::Simulate { traces, policies } => {
            let mut text = String::new();
            for path in traces {
                let trace = records::read(path)?;
                let figures = policies.iter().map(|policy| (policy.name.as_str(), simulate::simulate(&trace, policy)));
                text += &format!("{}\n\n", table::table(&trace, &figures.collect::<Vec<_>>()));
            }
            Ok((text, false))
        }
    }
}
