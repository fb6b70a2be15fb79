//! Programs of the fuzzer's making, carried out as those of tests/model are.
#![no_main]

use arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use zk_alloc::ZkAllocator;

#[path = "../../tests/model/heap.rs"]
mod heap;
#[path = "../../tests/model/program.rs"]
mod program;

use program::Op;

#[derive(Debug)]
struct Program {
    resident: bool,
    ops: Vec<Op>,
}

impl<'a> Arbitrary<'a> for Program {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let resident = u.arbitrary()?;
        let mut ops = Vec::new();
        while !u.is_empty() && ops.len() < 200 {
            ops.push(op(u)?);
        }
        Ok(Self { resident, ops })
    }
}

fn size(u: &mut Unstructured<'_>) -> Result<usize> {
    let log2 = u.int_in_range(0..=26)?;
    // Around the borders between the paths as often as anywhere else.
    Ok(if u.arbitrary()? { (1 << log2) + u.int_in_range(0..=1)? } else { u.int_in_range(1..=1 << log2)? })
}

fn op(u: &mut Unstructured<'_>) -> Result<Op> {
    Ok(match u.int_in_range(0..=15)? {
        0..4u8 => Op::Alloc { size: size(u)?, align_log2: u.int_in_range(0..=22)?, zeroed: u.arbitrary()? },
        4..6 => Op::Free { which: u.arbitrary()? },
        6..9 => Op::Realloc { which: u.arbitrary()?, size: size(u)? },
        9 => Op::FreeElsewhere { which: u.arbitrary()? },
        10 => Op::AllocElsewhere { size: size(u)? },
        11 => Op::BeginPhase,
        12 => Op::EndPhase { which: u.arbitrary()? },
        13 => Op::Release,
        14 => Op::AllocAbsurd { align_log2: u.int_in_range(0..=22)?, zeroed: u.arbitrary()? },
        _ => Op::ReallocAbsurd { which: u.arbitrary()? },
    })
}

fuzz_target!(|program: Program| {
    let allocator = if program.resident { ZkAllocator::resident() } else { ZkAllocator };
    program::run(&heap::Heap::new(allocator, true), &program.ops);
});
