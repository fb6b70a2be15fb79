//! The cost of a large vector that grows. It moves to fresh memory without being copied, and to resident memory without
//! a page fault. Its moves leave few mappings.

use std::hint::black_box;

use crate::support::{alone, assert_patterned, maps, patterned};
use zk_alloc::{Phase, phase, release, stats};

const FROM_BYTES: usize = 8 << 20;
const STEPS: usize = 3;

/// Doubles a vector several times, with another buffer behind it each time, and checks its contents. Returns its
/// addresses.
fn grow() -> Vec<usize> {
    let mut values = patterned(FROM_BYTES / size_of::<u64>(), 5);
    let len = values.len();
    let mut behind: Vec<Vec<u8>> = Vec::new();
    let mut places = vec![values.as_ptr().addr()];
    for _ in 0..STEPS {
        behind.push(vec![1; FROM_BYTES]);
        values.reserve_exact(values.capacity());
        places.push(values.as_ptr().addr());
        assert_patterned(&values[..len], 5);
        let capacity = values.capacity();
        values.resize(capacity, 0);
    }
    places.dedup();
    places
}

#[test]
fn a_vector_that_grows_into_resident_memory_faults_no_page() {
    alone!();
    // The first round leaves free runs where the vector was, and the second reuses them.
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

/// Vectors that grew from 4 to 16 MiB at the same time, so that each moved twice. Hardly any of their pages are touched.
fn grown_vectors(count: usize) -> Vec<Vec<u8>> {
    let mut vectors: Vec<Vec<u8>> = (0..count).map(|_| Vec::with_capacity(4 << 20)).collect();
    vectors.iter_mut().zip(1u8..).for_each(|(vector, value)| vector.extend([value; 100]));
    for _ in 0..2 {
        for vector in &mut vectors {
            // The length says how much is copied, and all of it is moved.
            vector.reserve_exact(2 * vector.capacity() - vector.len());
            black_box(vector.as_ptr());
        }
    }
    assert!(vectors.iter().zip(1u8..).all(|(vector, value)| vector.iter().all(|&byte| byte == value)));
    vectors
}

/// The kernel does not merge the mapping of moved pages with its neighbours, nor with the pages that the vector then grew by. A process has
/// 65,530 mappings.
#[test]
fn vectors_that_moved_leave_few_mappings() {
    const VECTORS: usize = 100;
    const RETAINED: (&str, &str) = ("ZK_ALLOC_RETAIN_BYTES", "64G");
    alone!(each & [&[("ZK_ALLOC_THP", "never"), RETAINED], &[("ZK_ALLOC_THP", "always"), RETAINED]]);
    drop(phase(|| grown_vectors(1)));
    release();
    let before = maps::count();
    for round in 0..3 {
        let vectors = phase(|| grown_vectors(VECTORS));
        let alive = maps::count();
        assert!(alive < before + 3 * VECTORS + 20, "round {round}: {before} mappings, {alive} with {VECTORS} vectors");
        drop(vectors);
        let freed = maps::count();
        assert!(freed < before + 3 * VECTORS + 20, "round {round}: {before} mappings, {freed} after the vectors");
        release();
        let purged = maps::count();
        assert!(purged < before + 12, "round {round}: {before} mappings, {purged} after the purge");
    }
}
