//! The command line.

use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::{bytes, memory};

/// Proves Plonky3 statements over HTTP on 127.0.0.1, and starts a proof only if its memory fits.
#[derive(Clone, Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
pub struct Options {
    #[command(flatten)]
    pub settings: Settings,

    #[command(subcommand)]
    pub role: Option<Role>,
}

/// Roles that the service starts itself in.
#[derive(Clone, Debug, Subcommand)]
pub enum Role {
    /// A worker of `--isolate`: reads requests from standard input, and answers on standard output
    #[command(hide = true)]
    Worker {
        /// Bytes of memory that the worker may map
        #[arg(long)]
        budget: usize,
    },
}

/// The settings of a service.
#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    /// The port on 127.0.0.1; 0 lets the system choose one. The service prints the address
    #[arg(long, default_value_t = 8080)]
    pub port: u16,

    /// Proofs at once, without --isolate
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64), conflicts_with = "isolate")]
    pub proofs: u16,

    /// Proofs that may wait; one more is refused with 503
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub queue: u16,

    /// Resident memory that the service plans with, such as 2G [default: 15/16 of the container's or machine's]
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse)]
    pub memory_limit: Option<usize>,

    /// Seconds until a request for a proof is answered with 504, waiting included
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub timeout: u32,

    /// Seconds that running proofs have to finish after SIGTERM or Ctrl-C
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub grace: u32,

    /// Make each proof in a worker process with a memory budget
    #[arg(long)]
    pub isolate: bool,

    /// Worker processes, and so proofs at once
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64), requires = "isolate")]
    pub workers: u16,

    /// Memory that a worker may map (RLIMIT_DATA). A proof that needs more fails alone
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = budget, requires = "isolate")]
    pub budget: usize,

    /// Sample which call sites hold memory: GET /debug/pprof/heap has the profile
    #[arg(long, conflicts_with = "isolate")]
    pub profile: bool,

    /// Accept requests with "fault": "panic", for tests
    #[arg(long)]
    pub allow_faults: bool,
}

/// The least budget: a worker needs some memory for its threads and the tables of the arena.
const LEAST_BUDGET_BYTES: usize = 64 << 20;

fn budget(text: &str) -> Result<usize, String> {
    let budget = bytes::parse(text)?;
    if budget < LEAST_BUDGET_BYTES {
        return Err(format!("{text} is too little for a worker: use {} or more", bytes::Shown(LEAST_BUDGET_BYTES)));
    }
    Ok(budget)
}

impl Settings {
    /// Proofs at once.
    pub fn slots(&self) -> usize {
        usize::from(if self.isolate { self.workers } else { self.proofs })
    }

    /// The memory that the service plans with. By default, a sixteenth of the container's memory is left out. The kernel
    /// charges page tables and the buffers of sockets to the container, too.
    pub fn limit_bytes(&self) -> usize {
        self.memory_limit.unwrap_or_else(|| memory::limit_bytes() / 16 * 15)
    }

    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout.into())
    }

    pub fn grace(&self) -> Duration {
        Duration::from_secs(self.grace.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &str) -> Result<Settings, clap::Error> {
        Options::try_parse_from(format!("service {args}").split_whitespace()).map(|options| options.settings)
    }

    #[test]
    fn options_that_belong_together_are_taken_and_others_refused() {
        let settings = parsed("--isolate --workers 3 --budget 256M").unwrap();
        assert_eq!((settings.slots(), settings.budget), (3, 256 << 20));
        assert_eq!(parsed("--proofs 5 --memory-limit 2G").unwrap().limit_bytes(), 2 << 30);
        for args in [
            "--budget 1G",
            "--workers 2",
            "--isolate --proofs 2",
            "--isolate --profile",
            "--isolate --budget 1M",
            "--proofs 0",
        ] {
            assert!(parsed(args).is_err(), "{args} was taken");
        }
    }
}
