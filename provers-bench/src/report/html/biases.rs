//! The limits of a run's figures: those of every run, and those of this run.

use crate::results::record::Run;

/// True of every run.
const ALWAYS: [&str; 2] = [
    "One run, on one machine. Other processors, kernels, numbers of cores and neighbours give other ratios: run it on yours.",
    "An interval says how sure the median of these rounds is, not how the rounds of another day will lie. It allows \
     for processes that differ, and takes those of this run for a fair draw. Where many arms are compared, about one in \
     twenty equal ones will seem to differ.",
];

/// True of every run of a command.
const OF_COMMANDS: [&str; 7] = [
    "The authors of zk-alloc wrote this harness. The libraries are those of the distribution, with the defaults that it chose; \
     newer versions may do better. Tuned arms keep what they have, and are not tuned to this program.",
    "The kernel's part of the CPU time is a ceiling for what avoided page faults and system calls can save, and holds input and \
     output as well. It says nothing on what malloc and free take in user mode.",
    "What the command reads lies in the kernel's cache: it ran once before the first round. From a disk it takes longer, \
     under every allocator alike.",
    "Times of processes count once their parents have waited for them. A process whose parent ignores that it ends (SIGCHLD) \
     is in the wall-clock time and in the memory, and not in the CPU time and the page faults.",
    "Memory of several processes is the anonymous memory of all and the file pages of the one that has most. Pages that a \
     forked process shares with its parent count twice. The watcher looks every 20 ms: what is shorter falls between, but for the \
     peak of a single process, which is the kernel's own.",
    "Intervals between lines end when the line arrives: a program that buffers its output prints late. Their CPU times \
     are as coarse as the kernel's clock ticks, 10 ms.",
    "The watcher takes up to 2% of a processor, under every allocator alike.",
];

/// True of every run of a prover.
const OF_PROVERS: [&str; 9] = [
    "The authors of zk-alloc chose the workloads and wrote the harness. A workload whose time is not in its allocations \
     shows no difference, and most provers' hot loops are arithmetic.",
    "Ratios are of proofs made in turns: before each proof the other arms have used the caches, the TLB and the clock's \
     headroom. A prover alone on its machine may find them warmer, under every allocator.",
    "All processes of an arm's turn stay alive, so their memory is taken together: the kernel may have fewer huge pages to \
     give than to one prover alone.",
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

/// The biases of `run`, followed by those of every run of its kind.
pub(super) fn biases(run: &Run) -> Vec<String> {
    let (machine, build) = (&run.machine, &run.machine.build);
    let is_of_prover = !run.is_of_command();
    let in_this_run = [
        (run.interrupted, "This run was interrupted: rounds are missing.".to_owned()),
        (
            is_of_prover && build.profile != "release",
            format!("Built as {}, not as release: not for comparing times.", build.profile),
        ),
        (
            is_of_prover && machine.git_dirty == Some(true),
            "The working tree had changes that no commit holds.".to_owned(),
        ),
        (
            run.workloads.iter().any(|workload| workload.threads > machine.cores),
            format!("More threads than the {} cores of this machine: times scatter.", machine.cores),
        ),
    ];
    let in_this_run = in_this_run.into_iter().filter(|(holds, _)| *holds).map(|(_, text)| text);
    let of_its_kind: &[&str] = if is_of_prover { &OF_PROVERS } else { &OF_COMMANDS };
    in_this_run.chain(ALWAYS.iter().chain(of_its_kind).map(|text| (*text).to_owned())).collect()
}
