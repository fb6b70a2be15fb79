//! The load of a node: rates, sizes and bounds. They are fixed, so that every allocator gets the same work.

use std::ops::RangeInclusive;
use std::time::Duration;

/// How much a node does, and how much it holds.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// Each peer sends to each other peer.
    pub(crate) peers: u32,
    /// Messages of all peers together.
    pub(crate) messages_per_second: u32,
    /// Lengths of messages. Each power of two gets as many messages as the next.
    pub(crate) message_bytes: RangeInclusive<usize>,
    /// A sender takes an answer that comes later for a lost one.
    pub(crate) answer_within: Duration,
    /// Memory of the transactions that the node holds.
    pub(crate) mempool_bytes: usize,
    /// Records that the database holds. A newer one replaces the oldest.
    pub(crate) records: usize,
    /// Memory for the database's pages.
    pub(crate) database_cache_bytes: usize,
    /// Time between two commits.
    pub(crate) commit_every: Duration,
    /// Time between the starts of two short-lived threads.
    pub(crate) job_every: Duration,
    /// A part of the node that shows nothing for this long has stopped.
    pub(crate) quiet: Duration,
    /// Each thread of the node calls this first.
    pub(crate) on_thread_start: fn(),
}

impl Load {
    /// About 20 MB of messages a second, 1,000 threads a minute, and a heap of about 100 MB. It takes a quarter of a core.
    pub(crate) const NODE: Self = Self {
        peers: 4,
        messages_per_second: 2_000,
        message_bytes: 200..=64 << 10,
        answer_within: Duration::from_secs(10),
        mempool_bytes: 64 << 20,
        records: 20_000,
        database_cache_bytes: 16 << 20,
        commit_every: Duration::from_millis(100),
        job_every: Duration::from_millis(60),
        quiet: Duration::from_secs(10),
        on_thread_start: || (),
    };

    /// A node for unit tests. It is warm within a second.
    #[cfg(test)]
    pub(crate) const SMALL: Self = Self {
        peers: 2,
        messages_per_second: 200,
        message_bytes: 200..=4 << 10,
        mempool_bytes: 64 << 10,
        records: 100,
        commit_every: Duration::from_millis(20),
        job_every: Duration::from_millis(20),
        ..Self::NODE
    };
}
