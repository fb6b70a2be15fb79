//! The node: its parts run in the background from the start to the drop.

use crate::database::{self, Store};
use crate::health::{Health, Part};
use crate::jobs;
use crate::load::Load;
use crate::mempool::Mempool;
use crate::traffic::{self, Inbox};
use anyhow::ensure;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Longest wait until the mempool is full.
const WARM_WITHIN: Duration = Duration::from_secs(60);
/// Shortest time over which the rate of messages is judged.
const PACE_OVER: Duration = Duration::from_secs(10);
/// A node that sends less than this share of its messages did less work than the others.
const PACE: f64 = 0.8;

/// A running node.
pub(crate) struct Node {
    load: Load,
    health: Arc<Health>,
    /// When the node was warm, and its messages until then.
    warm: (Instant, u64),
    traffic: Option<Runtime>,
    stop_jobs: Option<mpsc::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Node {
    /// Starts all parts, and waits until the node holds as much memory as it will.
    pub(crate) fn start(load: Load) -> anyhow::Result<Self> {
        let health = Arc::new(Health::new());
        let mempool = Arc::new(Mutex::new(Mempool::new(load.mempool_bytes)));
        let (records, received) = tokio::sync::mpsc::channel(database::QUEUE);
        let database = database::start(&load, Store::create(&load)?, received, health.clone())?;
        let warm = (Instant::now(), 0);
        let mut node = Self { load, health, warm, traffic: None, stop_jobs: None, threads: vec![database] };
        let inbox = Inbox { mempool: mempool.clone(), records };
        node.traffic = Some(traffic::start(&node.load, &node.health, inbox)?);
        let (stop_jobs, stopped) = mpsc::channel();
        node.stop_jobs = Some(stop_jobs);
        node.threads.push(jobs::start(&node.load, stopped, node.health.clone())?);
        node.wait_until_warm(&mempool)?;
        Ok(node)
    }

    fn wait_until_warm(&mut self, mempool: &Mutex<Mempool>) -> anyhow::Result<()> {
        let begun = Instant::now();
        let is_full = || mempool.lock().unwrap_or_else(PoisonError::into_inner).is_full();
        while !(self.health.is_everyone_up() && is_full()) {
            self.health.check(self.load.quiet)?;
            ensure!(begun.elapsed() < WARM_WITHIN, "the node is not warm after {WARM_WITHIN:?}");
            thread::sleep(Duration::from_millis(10));
        }
        self.warm = (Instant::now(), self.health.beats(Part::Messages));
        Ok(())
    }

    /// Fails if anything went wrong, if a part has stopped, or if the node fell behind its load.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        self.health.check(self.load.quiet)?;
        let (since, before) = self.warm;
        let messages = self.health.beats(Part::Messages) - before;
        keeps_pace(messages, since.elapsed(), self.load.messages_per_second)
    }

    #[cfg(test)]
    pub(crate) fn health(&self) -> &Health {
        &self.health
    }
}

/// An allocator that slows the node down would otherwise be measured with less traffic than the others.
fn keeps_pace(messages: u64, time: Duration, per_second: u32) -> anyhow::Result<()> {
    let due = f64::from(per_second) * time.as_secs_f64();
    let is_behind = time >= PACE_OVER && (messages as f64) < PACE * due;
    ensure!(!is_behind, "it fell behind its load: {messages} of {due:.0} messages were answered");
    Ok(())
}

impl Drop for Node {
    fn drop(&mut self) {
        // The runtime drops the peers, which hold the senders of records. The database's thread ends with these.
        drop(self.traffic.take());
        drop(self.stop_jobs.take());
        for thread in self.threads.drain(..) {
            // A panic was noticed as silence, and there is nobody left to tell.
            _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_falls_behind_is_noticed() {
        let after = |messages, seconds| keeps_pace(messages, Duration::from_secs(seconds), 200);
        after(0, 9).unwrap();
        after(3_600, 20).unwrap();
        let error = after(3_000, 20).unwrap_err().to_string();
        assert_eq!(error, "it fell behind its load: 3000 of 4000 messages were answered");
    }

    /// A part that stops without an error must fail the next proof.
    #[test]
    fn silence_is_noticed() {
        let mut node = Node::start(Load { quiet: Duration::from_secs(1), ..Load::SMALL }).unwrap();
        node.check().unwrap();
        drop(node.stop_jobs.take());
        thread::sleep(Duration::from_secs(2));
        let error = node.check().unwrap_err().to_string();
        assert!(error.starts_with("no short-lived thread ended in the last"), "{error}");
    }
}
