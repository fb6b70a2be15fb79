//! Placement by evidence: `record` writes down what a prover allocates, `simulate` replays it through placement policies
//! and says what each would have kept resident, `replay` has allocators do it on real memory. docs/placement.md has the
//! figures.
//!
//! ```text
//! cli      what is asked for                  table    figures -> text
//! session  the recorder's binary proves       simulate a trace through an arena -> figures
//! replay   a trace on real memory             arena    where requests go, in numbers only
//! policy   the policies, as data              middle   the middle sizes: classes, lines, bump slabs
//! ground   zones, and slabs in one of them    zone     one span of granules
//! ```
//!
//! What the recording and the replaying process do is in [`child`](crate::child), the file of records in
//! `protocol::records`.

mod arena;
mod cli;
mod ground;
mod middle;
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

/// Does what a command asked for: what goes to stdout, and whether a part of it failed.
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
