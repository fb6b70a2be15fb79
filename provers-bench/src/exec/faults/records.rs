//! The records of perf_event_open(2), as far as they are read here.

/// A record of the kernel.
#[derive(Debug, PartialEq)]
pub(super) enum Record {
    /// A page fault, with the addresses of its calls, the innermost first. As in all profiles here, each lies behind the
    /// call.
    Fault { process: u32, chain: Vec<u64> },
    /// A file was mapped to run code from it.
    Mapped { process: u32, mapping: Mapping },
    /// There was no room for this many records.
    Lost(u64),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mapping {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) offset: u64,
    pub(super) path: String,
}

/// Types of records.
const LOST: u32 = 2;
const SAMPLE: u32 = 9;
const MMAP2: u32 = 10;

/// The fields of a sample: `PERF_SAMPLE_IP`, `PERF_SAMPLE_TID` and `PERF_SAMPLE_CALLCHAIN`, in this order.
pub(super) const SAMPLE_TYPE: u64 = 1 | 1 << 1 | 1 << 5;

/// From here on, values of a call chain are not addresses: they say in which mode the next calls were.
const FIRST_MARK: u64 = -4095_i64 as u64;

/// Reads a record, its header included; `None` for other types.
pub(super) fn parse(bytes: &[u8]) -> Option<Record> {
    let mut fields = Fields(bytes.get(8..)?);
    match u32::from_ne_bytes(bytes[..4].try_into().ok()?) {
        SAMPLE => {
            let at = fields.u64()?;
            let process = fields.u32()?;
            fields.u32()?;
            let calls = fields.u64()?;
            let chain = (0..calls).map_while(|_| fields.u64()).filter(|&address| address < FIRST_MARK);
            // The chain begins with the instruction itself. The others are where calls return to.
            let outer = chain.skip_while(|&address| address == at);
            Some(Record::Fault { process, chain: std::iter::once(at + 1).chain(outer).collect() })
        }
        MMAP2 => {
            let process = fields.u32()?;
            fields.u32()?;
            let (start, bytes, offset) = (fields.u64()?, fields.u64()?, fields.u64()?);
            // Device, inode, its generation, protection and flags.
            fields.0 = fields.0.get(32..)?;
            let path = fields.0.split(|&byte| byte == 0).next()?;
            let path = String::from_utf8_lossy(path).into_owned();
            Some(Record::Mapped { process, mapping: Mapping { start, end: start + bytes, offset, path } })
        }
        LOST => {
            fields.u64()?;
            Some(Record::Lost(fields.u64()?))
        }
        _ => None,
    }
}

/// The rest of a record.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u32(&mut self) -> Option<u32> {
        let (value, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_ne_bytes(*value))
    }

    fn u64(&mut self) -> Option<u64> {
        let (value, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, body: &[&[u8]]) -> Vec<u8> {
        let body = body.concat();
        let len = u16::try_from(body.len() + 8).unwrap();
        [&kind.to_ne_bytes()[..], &0_u16.to_ne_bytes(), &len.to_ne_bytes(), &body].concat()
    }

    #[test]
    fn samples_mappings_and_losses_are_read() {
        let [ip, user] = [0x5000_u64, -512_i64 as u64].map(u64::to_ne_bytes);
        let ids = [7_u32.to_ne_bytes(), 8_u32.to_ne_bytes()].concat();
        let chain = [&3_u64.to_ne_bytes()[..], &user, &ip, &0x4000_u64.to_ne_bytes()].concat();
        let sample = record(SAMPLE, &[&ip, &ids, &chain]);
        assert_eq!(parse(&sample), Some(Record::Fault { process: 7, chain: vec![0x5001, 0x4000] }));
        // A record that is cut short has no part that is made up.
        assert_eq!(parse(&sample[..20]), None);
        let numbers = [0x1000_u64, 0x2000, 0x300].map(u64::to_ne_bytes).concat();
        let mapped = record(MMAP2, &[&ids, &numbers, &[0; 32], b"/bin/x\0\0"]);
        let mapping = Mapping { start: 0x1000, end: 0x3000, offset: 0x300, path: "/bin/x".into() };
        assert_eq!(parse(&mapped), Some(Record::Mapped { process: 7, mapping }));
        assert_eq!(parse(&record(LOST, &[&[0; 8], &9_u64.to_ne_bytes()])), Some(Record::Lost(9)));
        assert_eq!(parse(&record(3, &[&[0; 16]])), None);
    }
}
