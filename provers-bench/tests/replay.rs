//! Tests `record` and `replay` from the command line to the tables, with handwritten traces whose results are known and with traces of real
//! proofs.

mod common;

use common::{Bench, Outcome, ended, interrupt, wait_for};
use std::fs;

const ALLOC: u64 = 1;
const ZEROED: u64 = 2;
const FREE: u64 = 3;
const REALLOC_FROM: u64 = 4;
const REALLOC_TO: u64 = 5;

const MIB: u64 = 1 << 20;

/// A handwritten trace.
struct Trace {
    bench: Bench,
    bytes: Vec<u8>,
    /// Number of the latest proof. It starts high to use the upper bits of the word that it shares with other fields.
    proof: u64,
}

impl Trace {
    /// Creates an empty trace. `name` must differ between the tests of one process.
    fn new(name: &str) -> Self {
        let header = r#"{"version":1,"title":"by hand","min_bytes":64,"lost":0}"#;
        Self { bench: Bench::new(name), bytes: format!("{header}\n").into_bytes(), proof: 1 << 30 }
    }

    /// Adds operations `(operation, thread, address, size)`, all with an alignment of 16. If `in_phase`, they are in the phase of a new
    /// proof, otherwise after the phase of the latest one.
    fn add(&mut self, in_phase: bool, operations: &[(u64, u64, u64, u64)]) -> &mut Self {
        self.proof += u64::from(in_phase);
        for &(operation, thread, address, size_bytes) in operations {
            let tags = operation | 4 << 8 | thread << 16 | u64::from(in_phase) << 32 | self.proof << 33;
            let words = [tags, size_bytes, address, 7];
            self.bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        self
    }

    /// Runs `replay` on the trace, with `setting` in its environment. It must exit with `code`.
    #[track_caller]
    fn replay(&self, setting: Option<(&str, &str)>, options: &str, code: i32) -> Outcome {
        let path = self.bench.path("made.trace");
        fs::write(&path, &self.bytes).unwrap();
        ended(self.bench.command(&format!("replay {path} {options}")).envs(setting), code)
    }
}

/// Returns the number in the row of `arm` and the column of this name; `None` if the cell has a dash.
fn figure(table: &str, arm: &str, column: &str) -> Option<f64> {
    let cells = |line: &str| -> Vec<String> { line.split('|').map(|cell| cell.trim().to_owned()).collect() };
    let mut lines = table.lines().filter(|line| line.starts_with('|')).map(cells);
    let header = lines.find(|cells| cells[1] == "allocator").expect("a table of arms");
    let at = header.iter().position(|name| name == column).unwrap_or_else(|| panic!("no {column} in {table}"));
    let row = lines.find(|cells| cells[1] == arm).unwrap_or_else(|| panic!("no {arm} in {table}"));
    row[at].parse().ok()
}

/// Returns a trace of three threads and two phases. Blocks grow, shrink, move, change threads, outlive their phase, or are never freed. If
/// the script freed a block twice, or used it after its free, the replay would fail.
fn known() -> Trace {
    let mut trace = Trace::new("known");
    trace.add(false, &[(ALLOC, 1, 1, MIB), (FREE, 1, 999, MIB)]);
    trace.add(
        false,
        &[
            (ALLOC, 1, 800, 100),
            (REALLOC_FROM, 1, 800, 200),
            // Another thread gets the old address before the first thread records the new address of its block.
            (ZEROED, 2, 800, 300),
            (REALLOC_TO, 1, 700, 200),
            (REALLOC_FROM, 2, 600, 400),
            (REALLOC_TO, 2, 600, 400),
            (FREE, 2, 700, 200),
            // The trace lacks the free of the previous block at this address.
            (ALLOC, 1, 600, 500),
            // This `realloc` failed.
            (REALLOC_FROM, 1, 600, 1 << 50),
            (REALLOC_TO, 1, 0, 1 << 50),
            // This block is large between two `realloc`s and small before and after.
            (ALLOC, 1, 500, 100),
            (REALLOC_FROM, 1, 500, 3 * MIB),
            (REALLOC_TO, 1, 501, 3 * MIB),
            (REALLOC_FROM, 1, 501, 200),
            (REALLOC_TO, 1, 501, 200),
            (FREE, 1, 501, 200),
        ],
    );
    trace.add(
        true,
        &[
            (ALLOC, 1, 2, 20 * MIB),
            (ZEROED, 2, 3, 10 * MIB),
            (REALLOC_FROM, 3, 3, 30 * MIB),
            (ZEROED, 2, 3, 40_000),
            (REALLOC_TO, 3, 4, 30 * MIB),
            (FREE, 2, 2, 20 * MIB),
            (ALLOC, 2, 5, 100),
        ],
    );
    trace.add(false, &[(REALLOC_FROM, 1, 4, MIB), (REALLOC_TO, 1, 4, MIB), (FREE, 1, 4, MIB)]);
    trace.add(true, &[(ALLOC, 3, 4, 40 * MIB), (FREE, 1, 3, 40_000), (FREE, 1, 4, 40 * MIB)]);
    trace
}

/// A replay must write to its blocks, because pages become resident only when they are written.
#[test]
fn the_memory_of_a_trace_is_resident_under_every_allocator() {
    let arms = ["glibc", "jemalloc", "mimalloc", "snmalloc", "tcmalloc", "zk-alloc"];
    let text = known().replay(None, &format!("--allocators {} --rounds 2", arms.join(",")), 0).out;
    for arm in arms {
        let figure = |column| figure(&text, arm, column);
        assert_eq!(figure("live peak MiB"), Some(51.0), "{text}");
        let at_peak = figure("RSS at live peak MiB").unwrap();
        // The upper bound leaves room for allocators' tables and for huge pages.
        assert!((50.9..200.0).contains(&at_peak), "{arm}: {text}");
        assert!(figure("peak RSS MiB").unwrap() >= at_peak, "{arm}: {text}");
        assert!(figure("minor faults").unwrap() > 0.0, "{arm}: {text}");
    }
    assert!(text.starts_with("by hand; 27 operations on 3 threads, of 64 bytes and more"), "{text}");
    assert!(figure(&text, "glibc", "RSS after all frees MiB").unwrap() < 2.0, "{text}");
    // Only our arm purges on request and counts its system calls. Its arena serves only requests within phases, so the count also shows
    // that the replay opened phases.
    assert_eq!(figure(&text, "glibc", "after release() MiB"), None);
    assert!(figure(&text, "zk-alloc", "after release() MiB").unwrap() < 10.0, "{text}");
    assert!(figure(&text, "zk-alloc", "system calls").is_some_and(|calls| calls > 0.0), "{text}");
}

/// An allocator that hands out memory that is still in use must fail. The bump-reset arm does so by design: each phase overwrites the
/// blocks of the phase before it.
#[test]
fn an_allocator_that_overwrites_blocks_fails_and_says_which() {
    let mut trace = Trace::new("overwritten");
    let blocks = |first: u64| -> Vec<_> { (first..first + 100).map(|block| (ALLOC, 1, block, 64 << 10)).collect() };
    trace.add(true, &blocks(0)).add(true, &blocks(1000));
    // This arm is known to fail, so the exit code is 0.
    let text = trace.replay(None, "--allocators bump-reset,glibc", 0).out;
    assert!(text.contains("bump-reset: FAILED: step ") && text.contains("overwritten while it was alive"), "{text}");
    assert!(figure(&text, "glibc", "peak RSS MiB").is_some_and(|mib| mib > 12.0), "{text}");
}

/// Users compare thresholds by replaying without small blocks, and by changing the allocator's settings; both must work.
#[test]
fn small_blocks_can_be_left_out_and_settings_reach_the_allocator() {
    let text = known().replay(None, "--allocators zk-alloc --min-bytes 1m", 0).out;
    assert!(text.starts_with("by hand; 12 operations on 3 threads, of 1048576 bytes and more"), "{text}");
    let setting = Some(("ZK_ALLOC_MIN_BYTES", "1000000000"));
    let text = known().replay(setting, "--allocators zk-alloc", 1).out;
    assert!(text.contains("zk-alloc: ZK_ALLOC_MIN_BYTES=1000000000 was set"), "{text}");
    assert!(text.contains("zk-alloc: FAILED: the arena served nothing"), "{text}");
    assert_eq!(figure(&text, "zk-alloc", "peak RSS MiB"), None, "a failed arm shows no figures: {text}");
}

#[test]
fn a_missing_or_invalid_trace_is_an_error_before_anything_runs() {
    let mut whole = known();
    whole.bytes.pop();
    let Outcome { err, .. } = whole.replay(None, "", 1);
    assert!(err.contains(".trace is cut off"), "{err}");
    let Outcome { err, .. } = Trace::new("invalid").add(true, &[(ALLOC, 1, 1, u64::MAX)]).replay(None, "", 1);
    assert!(err.contains("record 0 of the trace ") && err.contains(" can't be replayed: "), "{err}");
    let Outcome { err, .. } = known().replay(None, "no-such.trace", 1);
    assert!(err.starts_with("prove-bench: nothing was replayed: cannot open no-such.trace: "), "{err}");
}

/// Records real proofs and replays them. The recorder must not miss requests or phases.
#[test]
fn recorded_proofs_can_be_replayed() {
    let bench = Bench::new("record");
    let arguments = "record plonky3 --workloads keccak --log-rows 10 --proofs 2 --threads 2";
    let Outcome { out: path, err: progress } = bench.run(arguments, 0);
    assert!(progress.contains("proof 2 of 2: verified") && progress.contains(" 0 lost: "), "{progress}");
    assert!(path.trim_end().ends_with("plonky3-keccak-10.trace"), "{path}");

    let table = bench.run(&format!("replay {} --allocators zk-alloc", path.trim_end()), 0).out;
    assert!(table.starts_with("plonky3 keccak 2^10, 2 proofs"), "{table}");
    let operations = table.split("; ").nth(1).and_then(|text| text.split(' ').next()?.parse::<u64>().ok()).unwrap();
    let live_peak_mib = figure(&table, "zk-alloc", "live peak MiB").unwrap();
    // Keccak's trace matrix, including space for its extension, takes 21 MB by itself, so the live peak must be larger than 15 MiB.
    assert!(live_peak_mib > 15.0 && operations > 50, "{table}");
}

/// After Ctrl-C, the exit code must be the one by which shells recognise an interrupt, not that of a failure.
#[test]
fn an_interrupted_recording_exits_as_shells_expect() {
    let bench = Bench::new("record-interrupt");
    let arguments = "record plonky3 --workloads keccak --log-rows 10 --proofs 10000 --threads 1";
    let mut driver = bench.command(arguments).spawn().unwrap();
    wait_for(&mut driver, "proof 1 of");
    interrupt(&mut driver, 130);
}
