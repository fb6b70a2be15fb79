//! The service under load: a child process on a port of its own.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Parser;
use proving_service::client;
use proving_service::settings::{Options, Settings};
use rustix::process::{Pid, Signal, kill_process};

/// Memory of the service itself and of a worker's code, next to the workers' budgets.
const BESIDES_BUDGETS_BYTES: usize = 128 << 20;

pub struct Service {
    child: Child,
    pub address: SocketAddr,
    args: Vec<String>,
    pub settings: Settings,
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Service {
    pub fn start(args: &str) -> anyhow::Result<Self> {
        let mut all: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
        all.extend(["--port", "0", "--allow-faults"].map(str::to_owned));
        let name = std::iter::once("proving-service").chain(all.iter().map(String::as_str));
        let settings = Options::try_parse_from(name)?.settings;
        let program = std::env::current_exe()?.with_file_name("proving-service");
        ensure!(program.exists(), "there is no {}: build it with `cargo build`", program.display());
        // Its panics are part of the load, and would fill the terminal.
        let mut command = Command::new(&program);
        let mut child = command.args(&all).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
        let Some(address) = line.trim().strip_prefix("listening on http://").and_then(|text| text.parse().ok()) else {
            let _ = child.kill();
            let _ = child.wait();
            bail!(
                "the service printed {line:?} in place of its address; run it yourself: {} {args}",
                program.display()
            );
        };
        Ok(Self { child, address, args: all, settings })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn shown(&self) -> String {
        format!("proving-service {}", self.args.join(" "))
    }

    /// The most resident memory that the settings allow.
    pub fn most_rss_bytes(&self) -> usize {
        if self.settings.isolate {
            self.settings.slots() * self.settings.budget + BESIDES_BUDGETS_BYTES
        } else {
            self.settings.limit_bytes()
        }
    }

    pub fn metric(&self, name: &str, labels: &str) -> anyhow::Result<f64> {
        let text = client::request(self.address, "GET", "/metrics", "")?.body;
        client::metric(&text, name, labels).with_context(|| format!("{name} {labels} in /metrics"))
    }

    /// Live memory in the arena: of this process, or of the worker that has the most.
    pub fn live_bytes(&self) -> anyhow::Result<f64> {
        if !self.settings.isolate {
            return self.metric("zk_alloc_live_bytes", "");
        }
        let workers = 0..self.settings.slots();
        let mut live = workers.map(|n| self.metric("service_worker_live_bytes", &format!("worker=\"{n}\"")));
        live.try_fold(0.0, |most, live| Ok(live?.max(most)))
    }

    /// The same, once nothing runs. A cancelled proof in this process may still run after the load.
    pub fn settled_live_bytes(&self) -> anyhow::Result<f64> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.metric("service_running_proofs", "")? > 0.0 {
            ensure!(Instant::now() < deadline, "a proof still runs a minute after the load");
            std::thread::sleep(Duration::from_millis(50));
        }
        // A worker reports its figures with each answer.
        client::request(self.address, "POST", "/soften", "")?;
        self.live_bytes()
    }

    /// Sends SIGTERM, and checks the exit code.
    pub fn end(mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the service ended by itself: {status}");
        }
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let deadline = Instant::now() + self.settings.grace() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "after SIGTERM, the service ended with {status}");
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("the service did not end after SIGTERM")
    }
}
