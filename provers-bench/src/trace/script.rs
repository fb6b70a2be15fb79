//! Handwritten traces for tests.

use super::policy::Policy;
use super::simulate::{Figures, simulate};
use crate::protocol::records::{Header, Op, Record, Trace};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;

/// A handwritten trace. Numbers name its blocks instead of addresses.
#[derive(Default)]
pub(crate) struct Script {
    records: Vec<Record>,
    proof: u32,
    in_phase: bool,
}

impl Script {
    pub(crate) fn proof(&mut self) -> &mut Self {
        self.proof += 1;
        self.in_phase = true;
        self
    }

    pub(crate) fn rest(&mut self) -> &mut Self {
        self.in_phase = false;
        self
    }

    pub(crate) fn add(&mut self, op: Op, thread: u16, address: u64, size_bytes: u64) -> &mut Self {
        let (proof, in_phase) = (self.proof, self.in_phase);
        let time_ns = self.records.len() as u64;
        self.records.push(Record { op, thread, proof, in_phase, size_bytes, align_bytes: 8, address, time_ns });
        self
    }

    pub(crate) fn alloc(&mut self, address: u64, size_bytes: u64) -> &mut Self {
        self.add(Op::Alloc, 1, address, size_bytes)
    }

    pub(crate) fn free(&mut self, address: u64) -> &mut Self {
        self.add(Op::Free, 1, address, 0)
    }

    pub(crate) fn realloc(&mut self, from: u64, to: u64, size_bytes: u64) -> &mut Self {
        self.add(Op::ReallocFrom, 1, from, size_bytes).add(Op::ReallocTo, 1, to, size_bytes)
    }

    pub(crate) fn simulate(&self, name: &str) -> Figures {
        let policy = Policy::all().into_iter().find(|policy| policy.name == name).unwrap();
        let trace = Trace { header: Header::new(String::new(), KIB, 0), records: self.records.clone() };
        simulate(&trace, &policy)
    }
}
