//! A proving service with a memory limit: it makes Plonky3 proofs over HTTP, and starts a proof only if its peak fits
//! below the limit. README.md explains how to run it.
//!
//! ```text
//! http      requests and answers, /memory, /metrics, the shutdown
//! service   each request waits for its turn, and makes its proof, here or in its own process with a memory budget
//! queue     which proof may start: no I/O, tested by itself
//! prover    the proof itself: replace it by your own
//! ```

mod http;
mod prover;
mod queue;
mod service;

use std::time::Duration;
use std::{fs, panic, thread};

use clap::Parser;
use zk_alloc::{Participants, ZkAllocator};

/// Only proving threads and rayon's workers allocate in the arena.
#[global_allocator]
static ALLOCATOR: ZkAllocator = ZkAllocator.participants(Participants::Pool);

/// Makes Plonky3 proofs over HTTP on 127.0.0.1, and starts a proof only if its memory fits.
#[derive(Clone, Debug, Parser)]
#[command(version)]
struct Options {
    /// The port on 127.0.0.1; 0 lets the system choose one. The service prints the address
    #[arg(long, default_value_t = 8080)]
    port: u16,

    /// Proofs that run at once
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    proofs: u16,

    /// Proofs that may wait; one more is refused with 503
    #[arg(long, default_value_t = 16)]
    queue: u16,

    /// Resident memory that the service plans with [default: 15/16 of the container's or machine's]
    #[arg(long, value_name = "MIB")]
    memory_limit: Option<usize>,

    /// Make each proof in a worker process that may map this much memory. A proof that needs more fails alone
    #[arg(long, value_name = "MIB")]
    isolate: Option<usize>,

    /// Be a worker of --isolate: read a request from standard input
    #[arg(long, hide = true, requires = "isolate")]
    worker: bool,
}

const MIB: usize = 1 << 20;

impl Options {
    /// Returns the limit in bytes. The default is a sixteenth below the container's or machine's memory, because the kernel also charges
    /// page tables and sockets to the container.
    fn limit_bytes(&self) -> usize {
        let group = fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
        let default = || group.or_else(|| kib_field("/proc/meminfo", "MemTotal:")).unwrap_or(usize::MAX) / 16 * 15;
        self.memory_limit.map_or_else(default, |mib| mib * MIB)
    }
}

/// Reads a field that the kernel writes as `Name:   123 kB`. Returns bytes.
fn kib_field(path: &str, name: &str) -> Option<usize> {
    let text = fs::read_to_string(path).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    value.trim().strip_suffix(" kB")?.parse().ok().map(|kib: usize| kib << 10)
}

/// Returns the resident memory of this process, in bytes.
fn rss_bytes() -> usize {
    kib_field("/proc/self/status", "VmRSS:").unwrap_or(0)
}

fn main() -> anyhow::Result<()> {
    // Prints one line for each panic, without a backtrace. With RUST_BACKTRACE=1, a prover that panics would read the
    // debug information inside its phase, and the standard library would keep those tens of megabytes for ever.
    panic::set_hook(Box::new(|info| eprintln!("{}: {info}", thread::current().name().unwrap_or("a thread"))));
    let options = Options::parse();
    if options.isolate.is_none() || options.worker {
        // Starts rayon's threads now, so that they do not start in the phase of the first proof.
        zk_alloc_plonky3::init();
    }
    if options.worker {
        return service::work(options.isolate.unwrap_or(0) * MIB);
    }
    if options.isolate.is_none() && std::env::var_os("ZK_ALLOC_RETAIN_BYTES").is_none() {
        // By default, the arena retains up to half of the machine's memory between proofs. Here it may retain as much as the service's
        // limit.
        zk_alloc::set_retain(zk_alloc::Retain::Bytes(options.limit_bytes()));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(http::serve(options));
    // Cancelled proofs that are still running must not delay the exit of the process.
    runtime.shutdown_timeout(Duration::ZERO);
    result
}
