//! A soak: starts the service, sends it bounded random load for some minutes, and checks what must hold in the end.
//!
//! `cargo run --bin soak -- --minutes 10`, or `... -- --minutes 10 --service-args "--isolate --budget 128M"`.

mod child;
mod load;
mod rss;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Parser;
use proving_service::bytes::{self, Shown};

use child::Service;
use load::{Load, Tally};
use rss::Sampler;

/// Sends random load to a service of its own, and checks its answers, its memory and its end.
#[derive(Debug, Parser)]
struct Options {
    /// Minutes of load
    #[arg(long, default_value_t = 1.0, value_parser = minutes)]
    minutes: f64,

    /// Clients at once
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    clients: u16,

    /// Requests in all; the load ends early after them
    #[arg(long, default_value_t = 1_000_000)]
    requests: u64,

    /// The random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// The most resident memory of the service and its workers [default: its limit, or its workers' budgets and 128M]
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse)]
    most_rss: Option<usize>,

    /// Options of the service, in one string
    #[arg(long, default_value = "--memory-limit 512M", allow_hyphen_values = true)]
    service_args: String,
}

fn minutes(text: &str) -> Result<f64, String> {
    let minutes = text.parse().ok().filter(|minutes| (0.05..=1440.0).contains(minutes));
    minutes.ok_or_else(|| format!("{text:?} is no time: use 0.05 to 1440 minutes"))
}

/// Live memory may be this much above its baseline: caches of the proving library that grew under load.
const LIVE_MARGIN_BYTES: f64 = 1024.0 * 1024.0;

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    let service = Service::start(&options.service_args)?;
    let load = Load::new(&service, options.seed, options.requests);
    println!("{} on http://{}: load for {} minutes", service.shown(), service.address, options.minutes);

    load.warm_up().context("warming up")?;
    let live_before = service.live_bytes()?;
    let sampler = Sampler::start(service.pid());
    let tally = load.run(options.clients, Instant::now() + Duration::from_secs_f64(options.minutes * 60.0));
    std::thread::sleep(Duration::from_secs(1));
    let live_after = service.settled_live_bytes()?;
    let samples = sampler.stop();
    let failures = check(&service, &options, &tally, live_before, live_after, &samples);
    let end = service.end();

    print!("{tally}");
    println!("live memory: {} before, {} after", shown(live_before), shown(live_after));
    println!("{}", samples.curve());
    let mut failures = failures?;
    failures.extend(end.err().map(|error| format!("{error:#}")));
    for failure in &failures {
        println!("FAILED: {failure}");
    }
    println!("{}", if failures.is_empty() { "passed" } else { "failed" });
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The checks that failed.
fn check(
    service: &Service,
    options: &Options,
    tally: &Tally,
    live_before: f64,
    live_after: f64,
    samples: &rss::Samples,
) -> anyhow::Result<Vec<String>> {
    let mut failures = tally.failures();
    if live_after > live_before + LIVE_MARGIN_BYTES {
        failures.push(format!("{} are live, after {} before the load", shown(live_after), shown(live_before)));
    }
    let most_rss = options.most_rss.unwrap_or_else(|| service.most_rss_bytes());
    if samples.peak_bytes() > most_rss {
        let peak = Shown(samples.peak_bytes());
        failures.push(format!("RSS reached {peak}, and should stay below {}", Shown(most_rss)));
    }
    let done = service.metric("service_proofs_total", "done")?;
    ensure!(done >= 0.0, "the service counts {done} proofs");
    if done < tally.proofs() as f64 {
        failures.push(format!("the service counts {done} proofs, and answered {}", tally.proofs()));
    }
    Ok(failures)
}

fn shown(bytes: f64) -> Shown {
    Shown(bytes as usize)
}
