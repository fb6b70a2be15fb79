//! A span that a worker of rayon makes has no parent for tracing. It stands under the span that the pool works for.

use rayon::prelude::*;
use tracing::info_span;
use zk_alloc::ZkAllocator;

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator::resident();

/// There is one test: rayon's workers see the global subscriber only.
#[test]
fn spans_of_workers_stand_under_the_span_that_they_work_for() {
    const PARTS: u64 = 64;
    let memory = zk_alloc_tracing::init();
    info_span!("prove").in_scope(|| {
        info_span!("commit").in_scope(|| {
            let hash = |_| info_span!("hash").in_scope(|| drop(std::hint::black_box(vec![1u8; 1 << 20])));
            (0..PARTS).into_par_iter().for_each(hash);
        });
        // Without a span of its own, the work counts where the pool is waited for.
        info_span!("open").in_scope(|| {
            (0..PARTS).into_par_iter().for_each(|_| drop(std::hint::black_box(vec![1u8; 1 << 20])));
        });
        rayon::join(|| info_span!(parent: None, "root").in_scope(|| ()), || ());
    });
    let report = memory.report();
    assert_eq!(report.spans.iter().map(|span| span.name.as_str()).collect::<Vec<_>>(), ["prove", "root"]);
    let prove = &report.spans[0];
    let [commit, open] = prove.children.as_slice() else { panic!("two stages: {report}") };
    let [hash] = commit.children.as_slice() else { panic!("one kind of work: {report}") };
    assert_eq!((hash.name.as_str(), hash.count), ("hash", PARTS));
    for span in [commit, hash, open] {
        assert!(span.totals.allocated_bytes >= PARTS << 20, "{}: {report}", span.name);
    }
    assert!(hash.threads.iter().all(|thread| thread.thread.starts_with("rayon ")), "{report:#?}");
    let by_threads: u64 = hash.threads.iter().map(|thread| thread.totals.allocated_bytes).sum();
    assert!(by_threads >= PARTS << 20, "{report:#?}");
    // The main thread only waited.
    assert!(open.threads[0].totals.allocated_bytes < 1 << 20, "{report:#?}");
}
