//! The messages between driver and child: one JSON value per line. Requests go to the child's stdin, and replies to its original stdout.
//! This module also defines the formats of traces, and [`profiles`] that of profiles: files that one side writes and the other reads.

pub(crate) mod profiles;

use crate::machine::BuildInfo;
use crate::sample::Sample;
use crate::workloads::Concurrent;
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::iter;
use std::path::Path;

/// A message from the driver.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub(crate) enum Request {
    /// Sets the workload up. This is the first request. The answer is [`Reply::Ready`].
    Setup {
        /// Name of the arm in this run. If an allocator is listed twice, its two arms have different names.
        arm: String,
        prover: String,
        workload: String,
        log_rows: u32,
        #[serde(default)]
        concurrent: Concurrent,
        /// Names and values of the allocator's settings that must be in effect; otherwise the child refuses.
        requires: Vec<(String, String)>,
        /// The offset within a page, in bytes, where the stacks of the prover's threads begin. All arms of a round get the same offset.
        stack_bytes: u16,
    },
    /// Prove and verify once. The answer is [`Reply::Proved`].
    Prove { round: u32, seed: u64 },
}

/// Value of `prover` in [`Request::Setup`] that requests a replay. The workload is then the path of a [script](Header::shape), and each
/// proof is one replay of it. In the sample, resident memory excludes what was resident before the first operation, and `rss_bytes` is
/// measured after all blocks are freed.
pub(crate) const REPLAY: &str = "replay";
/// Name of a replay's gauge: resident memory when the most bytes are live.
pub(crate) const RSS_AT_LIVE_PEAK: &str = "rss_at_live_peak_bytes";
/// Name of a replay's gauge: resident memory after the allocator has released its free memory. Missing if the allocator cannot be asked to
/// do so.
pub(crate) const RSS_RELEASED: &str = "rss_released_bytes";

/// A message from a child. The child exits when its stdin ends.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub(crate) enum Reply {
    Ready(Identity),
    Proved {
        sample: Sample,
        /// Why the verifier rejected the proof, if it did.
        refusal: Option<String>,
    },
    /// The workload could not be set up, or could not make a proof.
    Failed {
        reason: String,
    },
}

/// An arm's description of itself.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Identity {
    pub(crate) allocator: String,
    pub(crate) version: String,
    /// Allocator settings that the process found in its environment, as `NAME=value`.
    pub(crate) settings: Vec<String>,
    /// Settings that the allocator itself confirmed, as `name=value`.
    #[serde(default)]
    pub(crate) confirmed: Vec<String>,
    /// Whether `peak_rss_bytes` is the peak of one proof; otherwise it is the peak of the process.
    pub(crate) peak_is_per_proof: bool,
    pub(crate) build: BuildInfo,
}

/// Encodes a message as one line, including the line feed.
pub(crate) fn line<T: Serialize>(message: &T) -> serde_json::Result<String> {
    Ok(serde_json::to_string(message)? + "\n")
}

/// Version of the trace format. It increases when this code can no longer read older traces.
pub(crate) const VERSION: u32 = 1;
/// Number of 64-bit words in a record. The last word is unused; in older traces it contains a time.
pub(crate) const RECORD_WORDS: usize = 4;

/// The kind of event that a record describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Alloc = 1,
    AllocZeroed = 2,
    Free = 3,
    /// A `realloc` of the block at `address` to `size` bytes begins.
    ReallocFrom = 4,
    /// The `realloc` that this thread began has ended. The block is now at `address`; 0 means that the request failed.
    ReallocTo = 5,
}

/// One event. Records are in the order of the events: a block's free precedes the next allocation at its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) op: Op,
    /// The thread's number. Threads are numbered from 1, in the order of their first recorded allocation.
    pub(crate) thread: u16,
    /// Number of the latest proof that began, from 1; 0 before the first.
    pub(crate) proof: u32,
    /// Whether that proof is still being made. While it is verified and dropped, this is `false`.
    pub(crate) in_phase: bool,
    pub(crate) size_bytes: u64,
    pub(crate) align_bytes: u64,
    pub(crate) address: u64,
}

impl Record {
    /// Encodes the record. The words are never all zero, so zeros show that a record was reserved but never written.
    pub(crate) fn to_words(self) -> [u64; RECORD_WORDS] {
        let align_log2 = u64::from(self.align_bytes.trailing_zeros());
        let phase = u64::from(self.proof) << 1 | u64::from(self.in_phase);
        let tags = self.op as u64 | align_log2 << 8 | u64::from(self.thread) << 16 | phase << 32;
        [tags, self.size_bytes, self.address, 0]
    }

    /// Decodes a record; `None` if the words are not a record.
    pub(crate) fn from_words([tags, size_bytes, address, _]: [u64; RECORD_WORDS]) -> Option<Self> {
        let op = [Op::Alloc, Op::AllocZeroed, Op::Free, Op::ReallocFrom, Op::ReallocTo]
            .into_iter()
            .find(|op| *op as u64 == tags & 0xff)?;
        Some(Self {
            op,
            thread: (tags >> 16) as u16,
            proof: (tags >> 33) as u32,
            in_phase: tags >> 32 & 1 == 1,
            size_bytes,
            align_bytes: 1_u64.checked_shl((tags >> 8 & 0xff) as u32)?,
            address,
        })
    }
}

/// The first line of a trace file, which describes the trace.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Header {
    pub(crate) version: u32,
    /// Workload, size, number of proofs and threads, as text for the reader.
    pub(crate) title: String,
    /// Size in bytes below which requests were not recorded.
    pub(crate) min_bytes: u64,
    /// Number of records that are missing because the trace was full, or because a thread never finished writing them. If it is above 0,
    /// results from the trace are wrong.
    pub(crate) lost: u64,
    /// Present only in a script, which is a trace prepared for a replay. Addresses in a script's records are block numbers, and it has no
    /// `ReallocFrom`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shape: Option<Shape>,
}

/// Properties of a script that a replay needs before it reads the records.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Shape {
    pub(crate) records: usize,
    /// Number of blocks. All block numbers are below this.
    pub(crate) blocks: usize,
    /// Number of threads, which are numbered from 1.
    pub(crate) threads: usize,
    /// Index of the record after which the most bytes are live.
    pub(crate) peak_at: usize,
    pub(crate) live_peak_bytes: u64,
}

/// Writes a trace, record by record, so the whole trace need not fit in memory.
pub(crate) fn write(path: &Path, header: &Header, records: impl Iterator<Item = Record>) -> anyhow::Result<()> {
    let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    let mut out = BufWriter::new(file);
    let written = (|| {
        serde_json::to_writer(&mut out, header)?;
        out.write_all(b"\n")?;
        for word in records.flat_map(Record::to_words) {
            out.write_all(&word.to_le_bytes())?;
        }
        out.flush()
    })();
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Opens a trace. Returns its header and an iterator that reads the records from the file.
pub(crate) fn open(path: &Path) -> anyhow::Result<(Header, impl Iterator<Item = anyhow::Result<Record>> + use<>)> {
    let name = path.display().to_string();
    let mut file = BufReader::new(File::open(path).with_context(|| format!("cannot open {name}"))?);
    let mut line = String::new();
    file.read_line(&mut line).with_context(|| format!("{name} is not a trace"))?;
    let header: Header = serde_json::from_str(&line).with_context(|| format!("{name} is not a trace"))?;
    ensure!(header.version == VERSION, "{name} has version {}, not {VERSION}", header.version);
    let next = move || {
        let is_over = file.fill_buf().is_ok_and(<[u8]>::is_empty);
        (!is_over).then(|| {
            let mut words = [[0_u8; size_of::<u64>()]; RECORD_WORDS];
            file.read_exact(words.as_flattened_mut()).with_context(|| format!("{name} is cut off"))?;
            Record::from_words(words.map(u64::from_le_bytes)).with_context(|| format!("{name} has an invalid record"))
        })
    };
    Ok((header, iter::from_fn(next)))
}
