//! Decodes the fuzzer's input as a sequence of allocator operations, and runs it with the checks of tests/model.
#![no_main]

use libfuzzer_sys::fuzz_target;
use zk_alloc::ZkAllocator;

#[path = "../../tests/model/heap.rs"]
mod heap;
#[path = "../../tests/model/program.rs"]
mod program;

use program::{OP_BYTES, Op};

fuzz_target!(|bytes: &[u8]| {
    let (ops, rest) = bytes.as_chunks::<OP_BYTES>();
    let ops: Vec<_> = ops.iter().take(200).map(|&bytes| Op::decode(bytes)).collect();
    let is_resident = rest.len() % 2 == 0;
    let allocator = if is_resident { ZkAllocator::resident() } else { ZkAllocator };
    program::run(&heap::Heap::new(allocator, true), &ops);
});
