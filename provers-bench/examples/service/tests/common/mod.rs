//! The real binary on a port of its own.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use proving_service::client::{self, Reply};
use rustix::process::{Pid, Signal, kill_process};

pub struct Server {
    child: Child,
    pub address: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    pub fn start(args: &str) -> Self {
        let mut child = command(args).spawn().expect("the service starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").expect("it prints its address").parse().unwrap();
        Self { child, address }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn post(&self, path: &str, body: &str) -> Reply {
        client::request(self.address, "POST", path, body).expect("the service answers")
    }

    pub fn get(&self, path: &str) -> Reply {
        client::request(self.address, "GET", path, "").expect("the service answers")
    }

    pub fn prove(&self, kind: &str, log_rows: u32, seed: u64) -> Reply {
        self.post("/proofs", &body(kind, log_rows, seed))
    }

    /// Sends a request for a proof, and does not wait for the answer.
    pub fn ask(&self, kind: &str, log_rows: u32) -> std::net::TcpStream {
        client::send(self.address, "POST", "/proofs", &body(kind, log_rows, 1)).unwrap()
    }

    pub fn metric(&self, name: &str, labels: &str) -> f64 {
        let text = self.get("/metrics").body;
        client::metric(&text, name, labels).unwrap_or_else(|| panic!("no {name} with {labels} in\n{text}"))
    }

    /// Waits until a metric has a value.
    pub fn until(&self, name: &str, labels: &str, value: f64) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while self.metric(name, labels) != value {
            assert!(Instant::now() < deadline, "{name} is {} and not {value}", self.metric(name, labels));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
    }

    pub fn wait(mut self) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the service does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

pub fn body(kind: &str, log_rows: u32, seed: u64) -> String {
    format!(r#"{{"kind":"{kind}","log_rows":{log_rows},"seed":{seed}}}"#)
}

pub fn command(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_proving-service"));
    if !args.contains("--port") {
        command.args(["--port", "0"]);
    }
    // Each thread has a stack, which counts against the budget of a worker.
    command.env("RAYON_NUM_THREADS", "2");
    command.args(args.split_whitespace()).stdout(Stdio::piped());
    command
}

/// Runs a service that must not start; returns its message.
pub fn refused(args: &str) -> String {
    let mut child = command(args).stderr(Stdio::piped()).spawn().unwrap();
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(!child.wait().unwrap().success(), "{args} was taken");
    text
}
