//! The service, and the worker processes that it starts.

use std::panic;
use std::process::ExitCode;
use std::thread;

use clap::Parser;
use proving_service::budget::Budgeted;
use proving_service::settings::{Options, Role};
use proving_service::{server, worker};
use zk_alloc::{Participants, ZkAllocator};

/// Only proving threads and rayon's workers allocate in the arena; tokio's threads never do. `Budgeted` is for workers: in
/// the service it passes every request on.
#[global_allocator]
static ALLOCATOR: Budgeted<ZkAllocator> = Budgeted(ZkAllocator.participants(Participants::Pool));

fn main() -> ExitCode {
    // One line for each panic, and no backtrace. With RUST_BACKTRACE=1, a prover that panics would read the debug
    // information inside its phase, and the standard library keeps those tens of megabytes for ever.
    panic::set_hook(Box::new(|info| {
        eprintln!("{}: {info}", thread::current().name().unwrap_or("a thread"));
    }));
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let Options { settings, role } = Options::parse();
    if let Some(Role::Worker { budget }) = role {
        return worker::run(budget);
    }
    if !settings.isolate {
        // Rayon's threads start here, and not in the phase of the first proof.
        zk_alloc_plonky3::init();
    }
    if settings.profile {
        zk_alloc::profile::start(zk_alloc::profile::MEAN_BYTES);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(server::run(settings));
    // Proofs that were given up do not hold up the end of the process.
    runtime.shutdown_background();
    result
}
