// Stands before the README's own definition: if a name has two links, the first one counts.
#![doc = "[zk-alloc]: zk_alloc\n"]
#![doc = include_str!("../README.md")]

mod layer;
mod reading;
mod recording;
mod report;

pub use layer::{MemoryLayer, Recorder, init};
pub use reading::{Level, ThreadTotals, Totals};
pub use report::{Coverage, Report, SpanReport, ThreadReport};

// Does not compile against the crate `zk-alloc` on crates.io, which belongs to another project. That arena overwrites
// live memory.
const _: () = zk_alloc::REUSES_ONLY_WHAT_WAS_FREED;
