//! The cost of a large vector that grows. It moves to fresh memory without being copied, and to resident memory without
//! a page fault.
//!
//! There is one test, because page faults are counted for the process.

use zk_alloc::{Phase, ZkAllocator, stats};

#[path = "support/mod.rs"]
mod support;

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

const FROM_BYTES: usize = 8 << 20;
const STEPS: usize = 3;

/// Doubles a vector several times, with another buffer behind it each time, and checks its contents. Returns its
/// addresses.
fn grow() -> Vec<usize> {
    let mut values = support::patterned(FROM_BYTES / size_of::<u64>(), 5);
    let len = values.len();
    let mut behind: Vec<Vec<u8>> = Vec::new();
    let mut places = vec![values.as_ptr().addr()];
    for _ in 0..STEPS {
        behind.push(vec![1; FROM_BYTES]);
        values.reserve_exact(values.capacity());
        places.push(values.as_ptr().addr());
        support::assert_patterned(&values[..len], 5);
        let capacity = values.capacity();
        values.resize(capacity, 0);
    }
    places.dedup();
    places
}

#[test]
fn a_vector_that_grows_again_where_others_were_faults_no_page() {
    // The first round leaves holes where the vector was, and the second fills them.
    for round in 0..4 {
        let (before, purged) = (stats().system_calls, stats().purged_bytes);
        let phase = Phase::new();
        let places = grow();
        let report = phase.report();
        let (faults, calls) = (report.minor_faults, stats().system_calls - before);
        assert!(places.len() > 1, "it has to move to show anything");
        if round == 0 {
            assert!(calls > 0, "pages move where memory is fresh: {report:?}");
            let touched = (FROM_BYTES << STEPS) + STEPS * FROM_BYTES;
            assert!(report.fresh_bytes as usize <= touched + touched / 8, "moved pages are not fresh: {report:?}");
            assert_eq!(stats().purged_bytes, purged, "nor did the kernel get them back");
        } else if round > 1 {
            assert!(faults < 100 && calls == 0, "round {round}: {faults} faults and {calls} system calls");
        }
    }
}
