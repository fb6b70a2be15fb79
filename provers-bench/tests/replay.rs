//! Replaying a trace on real memory, from a file to the tables. The trace is handwritten, so the result is known.

mod common;

use common::{stderr, stdout};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

const ALLOC: u64 = 1;
const ZEROED: u64 = 2;
const FREE: u64 = 3;
const REALLOC_FROM: u64 = 4;
const REALLOC_TO: u64 = 5;

const MIB: u64 = 1 << 20;

/// A trace in its own file, which is removed at the end.
struct Trace {
    path: PathBuf,
    bytes: Vec<u8>,
    proof: u64,
}

impl Trace {
    /// `name` distinguishes the tests of one process.
    fn new(name: &str) -> Self {
        let header = r#"{"version":1,"title":"by hand","min_bytes":64,"lost":0}"#;
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.trace", std::process::id()));
        Self { path, bytes: format!("{header}\n").into_bytes(), proof: 0 }
    }

    /// Adds `(operation, thread, address, size)`, each aligned to 16: in the phase of the next proof, or after the last
    /// one.
    fn add(&mut self, in_phase: bool, operations: &[(u64, u64, u64, u64)]) -> &mut Self {
        self.proof += u64::from(in_phase);
        for &(operation, thread, address, size_bytes) in operations {
            let tags = operation | 4 << 8 | thread << 16 | u64::from(in_phase) << 32 | self.proof << 33;
            let words = [tags, size_bytes, address, 0];
            self.bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        self
    }

    /// Runs `replay` on the trace, with `setting` in its environment.
    fn replay_with(&self, setting: Option<(&str, &str)>, options: &str) -> Output {
        fs::write(&self.path, &self.bytes).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_prove-bench"));
        // The driver must not mistake `cargo test` for `cargo run`.
        command.arg("replay").arg(&self.path).args(options.split_whitespace()).env_remove("CARGO");
        command.envs(setting).output().expect("the driver starts")
    }

    fn replay(&self, options: &str) -> Output {
        self.replay_with(None, options)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The number in a column of an arm's row, by the column's name; `None` for a dash.
fn figure(table: &str, arm: &str, column: &str) -> Option<f64> {
    let cells = |line: &str| -> Vec<String> { line.split('|').map(|cell| cell.trim().to_owned()).collect() };
    let mut lines = table.lines().filter(|line| line.starts_with('|')).map(cells);
    let header = lines.find(|cells| cells[1] == "allocator").expect("a table of arms");
    let at = header.iter().position(|name| name == column).unwrap_or_else(|| panic!("no {column} in {table}"));
    let row = lines.find(|cells| cells[1] == arm).unwrap_or_else(|| panic!("no {arm} in {table}"));
    row[at].parse().ok()
}

/// Three threads and two phases. Blocks grow, move, change threads, outlive their phase, or are never freed.
fn known() -> Trace {
    let mut trace = Trace::new("known");
    trace.add(false, &[(ALLOC, 1, 1, MIB), (FREE, 1, 999, MIB)]);
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
    trace.add(false, &[(FREE, 1, 4, 30 * MIB)]);
    trace.add(true, &[(ALLOC, 3, 4, 40 * MIB), (FREE, 1, 3, 40_000), (FREE, 1, 4, 40 * MIB)]);
    trace
}

/// Pages are resident only after a write. An arm that only allocates would look frugal.
#[test]
fn what_a_trace_needs_is_resident_under_every_allocator() {
    let arms = ["glibc", "jemalloc", "mimalloc", "snmalloc", "tcmalloc", "zk-alloc"];
    let output = known().replay(&format!("--allocators {} --rounds 2", arms.join(",")));
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    for arm in arms {
        let figure = |column| figure(&text, arm, column);
        assert_eq!(figure("live peak MiB"), Some(51.0), "{text}");
        let at_peak = figure("RSS at live peak MiB").unwrap();
        // Some arms add their own tables or whole huge pages; glibc maps each block of this size separately.
        assert!((50.9..200.0).contains(&at_peak), "{arm}: {text}");
        assert!(figure("peak RSS MiB").unwrap() >= at_peak, "{arm}: {text}");
        assert!(figure("minor faults").unwrap() > 0.0, "{arm}: {text}");
    }
    assert!(text.starts_with("by hand; 13 operations on 3 threads, of 64 bytes and more"), "{text}");
    assert!(figure(&text, "glibc", "RSS after all frees MiB").unwrap() < 2.0, "{text}");
    // Only our arm purges on request, and counts its work. The arena serves only within phases, so phases
    // were open.
    assert_eq!(figure(&text, "glibc", "after release() MiB"), None);
    assert!(figure(&text, "zk-alloc", "after release() MiB").unwrap() < 10.0, "{text}");
    assert!(figure(&text, "zk-alloc", "system calls").is_some_and(|calls| calls > 0.0), "{text}");
}

/// An allocator that hands out memory in use must fail. This one does so by design: a phase overwrites the blocks of
/// the phase before it.
#[test]
fn an_allocator_that_overwrites_blocks_fails_and_says_which() {
    let mut trace = Trace::new("overwritten");
    let blocks = |first: u64| -> Vec<_> { (first..first + 100).map(|block| (ALLOC, 1, block, 64 << 10)).collect() };
    trace.add(true, &blocks(0)).add(true, &blocks(1000));
    let output = trace.replay("--allocators bump-reset,glibc");
    let text = stdout(&output);
    assert!(text.contains("bump-reset: FAILED: step ") && text.contains("overwritten while it was alive"), "{text}");
    assert!(figure(&text, "glibc", "peak RSS MiB").is_some_and(|mib| mib > 12.0), "{text}");
    assert_eq!(output.status.code(), Some(0), "it is known to fail: {text}");
}

/// A comparison of thresholds needs both: small blocks left out, and settings that reach the allocator.
#[test]
fn small_blocks_can_be_left_out_and_settings_reach_the_allocator() {
    let output = known().replay("--allocators zk-alloc --min-bytes 1m");
    let text = stdout(&output);
    assert!(text.starts_with("by hand; 9 operations on 3 threads, of 1048576 bytes and more"), "{text}");
    let output = known().replay_with(Some(("ZK_ALLOC_MIN_BYTES", "1000000000")), "--allocators zk-alloc");
    let text = stdout(&output);
    assert!(text.contains("zk-alloc: ZK_ALLOC_MIN_BYTES=1000000000 was set"), "{text}");
    assert!(text.contains("zk-alloc: FAILED: the arena served nothing"), "{text}");
    assert_eq!(output.status.code(), Some(1), "{text}");
}

#[test]
fn a_trace_that_is_not_there_or_not_whole_is_named_before_anything_runs() {
    let mut whole = known();
    whole.bytes.pop();
    let output = whole.replay("");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(".trace is cut off"), "{}", stderr(&output));
    let output = known().replay("no-such.trace");
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(message.starts_with("prove-bench: nothing was replayed: cannot open no-such.trace: "), "{message}");
}
