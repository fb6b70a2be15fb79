//! What the figures of a run cannot be trusted with: always, and in this run.

use crate::results::record::Run;

/// True of every run.
const ALWAYS: [&str; 11] = [
    "One run, on one machine. Other processors, kernels, numbers of cores and neighbours give other ratios: run it on yours.",
    "The authors of zk-alloc chose the workloads and wrote the harness. A workload whose time is not in its allocations \
     shows no difference, and most provers' hot loops are arithmetic.",
    "Ratios are of proofs made in turns: before each proof the other arms have used the caches, the TLB and the clock's \
     headroom. A prover alone on its machine may find them warmer, under every allocator.",
    "All processes of an arm's turn stay alive, so their memory is taken together: the kernel may have fewer huge pages to \
     give than to one prover alone.",
    "An interval says how sure the median of these rounds is, not how the rounds of another day will lie. It allows \
     for processes that differ, and takes those of this run for a fair draw. Where many arms are compared, about one in \
     twenty equal ones will seem to differ.",
    "The verdict is on wall-clock time, and says nothing on memory. An arm that keeps its memory between proofs is warm at \
     the price of its resting RSS; one that proves once per process gets the cold figures and none of the warm ones.",
    "Verification, key generation and the start of the process are not timed. Allocations made there still shape the heap.",
    "The arm that counts system calls is zk-alloc; of the others nobody counts, which is not zero.",
    "The live peak is of what the arena served. What it left to the system's allocator is not in it, and the RSS of \
     every arm also holds code, stacks and what was allocated before the proof.",
    "RSS over time is looked at from outside, now and then: short peaks fall between two looks. The peak that the \
     tables show is the kernel's own.",
    "Allocators replace Rust's global allocator. Memory that C code takes from malloc is the C library's in every arm \
     that does not replace malloc itself.",
];

/// Of every run, and of `run` in particular; the particular ones first.
pub(super) fn biases(run: &Run) -> Vec<String> {
    let (machine, build) = (&run.machine, &run.machine.build);
    let in_this_run = [
        (run.interrupted, "This run was interrupted: rounds are missing.".to_owned()),
        (build.profile != "release", format!("Built as {}, not as release: not for comparing times.", build.profile)),
        (machine.git_dirty == Some(true), "The working tree had changes that no commit holds.".to_owned()),
        (
            run.workloads.iter().any(|workload| workload.threads > machine.cores),
            format!("More threads than the {} cores of this machine: times scatter.", machine.cores),
        ),
    ];
    let in_this_run = in_this_run.into_iter().filter(|(holds, _)| *holds).map(|(_, text)| text);
    in_this_run.chain(ALWAYS.map(str::to_owned)).collect()
}
