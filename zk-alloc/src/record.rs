//! The statistics as metrics, for the recorder that the program installed.

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};

use crate::{os, stats};

/// Sets the allocator's metrics to the values of [`stats`](crate::stats()), through the facade of the crate
/// [metrics](https://docs.rs/metrics). Call it after each proof, or every few seconds. It also describes them, so it is the only call
/// that is needed. It does nothing if the program has no recorder.
///
/// | Metric | Kind | Meaning |
/// |---|---|---|
/// | `zk_alloc_resident_bytes` | gauge | handed out or retained: the arena's part of RSS, if all of it was touched |
/// | `zk_alloc_live_bytes` | gauge | in use now: a leak grows from proof to proof |
/// | `zk_alloc_retained_bytes` | gauge | free and resident, for the next proof |
/// | `zk_alloc_peak_live_bytes` | gauge | the most that was in use |
/// | `zk_alloc_purged_bytes_total` | counter | returned to the kernel |
/// | `zk_alloc_pressure_purges_total` | counter | purges because a control group came near to its memory limit |
/// | `zk_alloc_fresh_bytes_total` | counter | handed out without being resident: each page costs a page fault |
/// | `zk_alloc_overflow_bytes_total` | counter | requests meant for the arena that the backing allocator served |
/// | `zk_alloc_refusals_total` | counter | system calls that the kernel refused |
/// | `zk_alloc_phases_total` | counter | phases begun |
/// | `zk_alloc_process_page_faults_total` | counter | page faults of the whole process that needed no disk (0 where unknown) |
///
/// ```
/// # #[global_allocator]
/// # static ALLOC: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;
/// let proof = zk_alloc::phase(|| vec![1u8; 1 << 20]);
/// zk_alloc::record_metrics();
/// # drop(proof);
/// ```
pub fn record_metrics() {
    let stats = stats::stats();
    let gauges = [
        (
            "zk_alloc_resident_bytes",
            stats.resident_bytes,
            "Handed out or retained by the arena: resident, or resident once touched",
        ),
        ("zk_alloc_live_bytes", stats.live_bytes, "In use now: a leak grows from proof to proof"),
        ("zk_alloc_retained_bytes", stats.retained_bytes(), "Free and resident, for the next proof"),
        ("zk_alloc_peak_live_bytes", stats.peak_live_bytes, "The most that was in use"),
    ];
    for (name, bytes, meaning) in gauges {
        describe_gauge!(name, Unit::Bytes, meaning);
        gauge!(name).set(bytes as f64);
    }
    let counters = [
        ("zk_alloc_purged_bytes_total", Unit::Bytes, stats.purged_bytes, "Returned to the kernel"),
        ("zk_alloc_pressure_purges_total", Unit::Count, stats.pressure_purges, "Purges under memory pressure"),
        ("zk_alloc_fresh_bytes_total", Unit::Bytes, stats.fresh_bytes, "Handed out without being resident"),
        ("zk_alloc_overflow_bytes_total", Unit::Bytes, stats.overflow_bytes, "Served by the backing allocator instead"),
        ("zk_alloc_refusals_total", Unit::Count, stats.refusals, "System calls that the kernel refused"),
        ("zk_alloc_phases_total", Unit::Count, stats.phases, "Phases begun"),
        ("zk_alloc_process_page_faults_total", Unit::Count, os::minor_faults(), "Page faults that needed no disk"),
    ];
    for (name, unit, value, meaning) in counters {
        describe_counter!(name, unit, meaning);
        counter!(name).absolute(value);
    }
}
