//! The format of a trace in memory and in a file: a line of JSON, then records of 32 bytes each, little endian.

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

/// Increases when this code can no longer read older traces.
const VERSION: u32 = 1;
/// 64-bit words of a record.
pub(crate) const RECORD_WORDS: usize = 4;

/// The kind of event that a record describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Alloc = 1,
    AllocZeroed = 2,
    Free = 3,
    /// A `realloc` of the block at `address` to `size` bytes begins.
    ReallocFrom = 4,
    /// The same thread's `realloc` ended. The block is now at `address`; 0 means that the request failed.
    ReallocTo = 5,
}

/// One event. Its index in the trace is its sequence number: a block is freed before its address is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) op: Op,
    /// Threads are numbered from 1, in the order of their first allocation.
    pub(crate) thread: u16,
    /// Number of the latest proof that began, from 1; 0 before the first.
    pub(crate) proof: u32,
    /// That proof is being made: it is neither verified nor dropped yet.
    pub(crate) in_phase: bool,
    pub(crate) size_bytes: u64,
    pub(crate) align_bytes: u64,
    pub(crate) address: u64,
    /// Time since the recorder started.
    pub(crate) time_ns: u64,
}

impl Record {
    /// Encodes the record. The words are never all zero, so a record that was started and not written is detectable.
    pub(crate) fn to_words(self) -> [u64; RECORD_WORDS] {
        let align_log2 = u64::from(self.align_bytes.trailing_zeros());
        let phase = u64::from(self.proof) << 1 | u64::from(self.in_phase);
        let tags = self.op as u64 | align_log2 << 8 | u64::from(self.thread) << 16 | phase << 32;
        [tags, self.size_bytes, self.address, self.time_ns]
    }

    /// Decodes a record; `None` if the words are not a record.
    pub(crate) fn from_words([tags, size_bytes, address, time_ns]: [u64; RECORD_WORDS]) -> Option<Self> {
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
            time_ns,
        })
    }
}

/// The trace's description of itself.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Header {
    pub(crate) version: u32,
    /// Workload, size, proofs and threads, for the reader.
    pub(crate) title: String,
    /// Requests below this size were not recorded.
    pub(crate) min_bytes: u64,
    /// Number of records that found no room or that their thread never finished. If it is above 0, the trace's figures
    /// are wrong.
    pub(crate) lost: u64,
}

impl Header {
    pub(crate) fn new(title: String, min_bytes: u64, lost: u64) -> Self {
        Self { version: VERSION, title, min_bytes, lost }
    }
}

/// A recorded run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trace {
    pub(crate) header: Header,
    pub(crate) records: Vec<Record>,
}

/// Writes a trace without collecting its records in memory.
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

/// A trace that is read record by record.
pub(crate) struct Reader {
    pub(crate) header: Header,
    file: BufReader<File>,
    path: PathBuf,
}

/// Opens a trace.
pub(crate) fn open(path: &Path) -> anyhow::Result<Reader> {
    let named = || path.display().to_string();
    let mut file = BufReader::new(File::open(path).with_context(|| format!("cannot open {}", named()))?);
    let mut line = String::new();
    file.read_line(&mut line).with_context(|| format!("{} is no trace", named()))?;
    let header: Header = serde_json::from_str(&line).with_context(|| format!("{} is no trace", named()))?;
    ensure!(header.version == VERSION, "{} has version {}; this reads {VERSION}", named(), header.version);
    Ok(Reader { header, file, path: path.to_owned() })
}

impl Reader {
    /// The next record; `None` at the end.
    pub(crate) fn record(&mut self) -> anyhow::Result<Option<Record>> {
        let named = || self.path.display().to_string();
        if self.file.fill_buf().with_context(|| format!("cannot read {}", named()))?.is_empty() {
            return Ok(None);
        }
        let mut words = [0; RECORD_WORDS];
        for word in &mut words {
            let mut bytes = [0; 8];
            self.file.read_exact(&mut bytes).with_context(|| format!("{} is cut off", named()))?;
            *word = u64::from_le_bytes(bytes);
        }
        Record::from_words(words).map(Some).with_context(|| format!("{} holds what is no record", named()))
    }
}

/// Reads a whole trace.
pub(crate) fn read(path: &Path) -> anyhow::Result<Trace> {
    let mut reader = open(path)?;
    let records: anyhow::Result<_> = std::iter::from_fn(|| reader.record().transpose()).collect();
    Ok(Trace { records: records?, header: reader.header })
}

/// Splits records into the stretches within one phase or between two.
pub(crate) fn sections(records: &[Record]) -> impl Iterator<Item = &[Record]> {
    records.chunk_by(|one, next| one.in_phase == next.in_phase && (!one.in_phase || one.proof == next.proof))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn record() -> Record {
        Record {
            op: Op::ReallocTo,
            thread: 65_535,
            proof: u32::MAX >> 1,
            in_phase: true,
            size_bytes: 1 << 40,
            align_bytes: 1 << 21,
            address: u64::MAX,
            time_ns: 7,
        }
    }

    /// Fields share a word. A field that overflows into its neighbour would replay a different program.
    #[test]
    fn a_record_survives_its_words() {
        let outside = Record { op: Op::Alloc, in_phase: false, proof: 0, align_bytes: 1, ..record() };
        for record in [record(), outside] {
            assert_eq!(Record::from_words(record.to_words()), Some(record));
        }
        assert_eq!(Record::from_words([0; RECORD_WORDS]), None);
    }

    /// A trace cut off by a full disk must not be replayed as a complete one.
    #[test]
    fn a_trace_survives_its_file_and_a_torn_one_is_refused() {
        let path = std::env::temp_dir().join(format!("prove-bench-format-{}.trace", std::process::id()));
        let trace = Trace { header: Header::new("two records".into(), 1024, 0), records: vec![record(); 2] };
        write(&path, &trace.header, trace.records.iter().copied()).unwrap();
        assert_eq!(read(&path).unwrap(), trace);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 9]).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("cut off"));
        fs::remove_file(&path).unwrap();
    }
}
