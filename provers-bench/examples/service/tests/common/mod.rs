//! The real binary on a port of its own, and a small HTTP client: one request on each connection.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

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

/// The answer of the service.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Reply {
    /// The body as JSON; null if it is none.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_default()
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

    /// Sends a request, and does not wait for the answer. Dropping the connection cancels it.
    pub fn send(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(600))).unwrap();
        let (host, length) = (self.address, body.len());
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {length}");
        stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
        stream
    }

    pub fn get(&self, path: &str) -> Reply {
        receive(self.send("GET", path, "")).expect("the service answers")
    }

    pub fn post(&self, body: &str) -> Reply {
        receive(self.send("POST", "/proofs", body)).expect("the service answers")
    }

    pub fn ask(&self, log_rows: u32) -> TcpStream {
        self.send("POST", "/proofs", &body(log_rows, 1))
    }

    pub fn prove(&self, log_rows: u32, seed: u64) -> Reply {
        self.post(&body(log_rows, seed))
    }

    /// A metric. `label` occurs in its line.
    pub fn metric(&self, name: &str, label: &str) -> f64 {
        let text = self.get("/metrics").body;
        let is_it = |line: &&str| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']) && rest.contains(label))
        };
        let value = text.lines().find(is_it).and_then(|line| line.rsplit(' ').next()?.parse().ok());
        value.unwrap_or_else(|| panic!("no {name} with {label} in\n{text}"))
    }

    /// Waits until a metric has a value.
    pub fn until(&self, name: &str, label: &str, value: f64) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while self.metric(name, label) != value {
            assert!(Instant::now() < deadline, "{name} is {} and not {value}", self.metric(name, label));
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The process ids of the workers.
    pub fn workers(&self) -> Vec<Pid> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().flatten();
        let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
        let pids =
            children.flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>());
        pids.filter_map(Pid::from_raw).collect()
    }

    /// The most resident memory that the service had, without its workers.
    pub fn peak_rss_bytes(&self) -> usize {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        value.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn wait(mut self) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the service does not end");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

pub fn body(log_rows: u32, seed: u64) -> String {
    format!(r#"{{"log_rows":{log_rows},"seed":{seed}}}"#)
}

/// Reads an answer.
pub fn receive(mut stream: TcpStream) -> io::Result<Reply> {
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Reply { status, head: head.to_ascii_lowercase(), body: body.to_owned() })
}

fn command(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_proving-service"));
    command.args(["--port", "0", "--allow-faults"]).args(args.split_whitespace()).stdout(Stdio::piped());
    // Each thread has a stack, which counts against the budget of a worker.
    command.env("RAYON_NUM_THREADS", "2");
    command
}

/// Runs a service that must not start; returns its message.
pub fn refused(args: &str) -> String {
    let output = command(args).stderr(Stdio::piped()).output().unwrap();
    assert!(!output.status.success(), "{args} was taken");
    String::from_utf8_lossy(&output.stderr).into_owned()
}
