//! Tests programs of other projects. Each must print and write the same with the library as without it, at the default
//! threshold and with every request in the arena. Programs that are linked with another allocator run at more
//! thresholds.
#![cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]

mod support;

use std::process::Command;

use support::{ARMS, Arm, Outcome, empty_folder, has, outcome_of, path_of};

/// Runs a program of `programs.sh` in an empty folder, once in each arm, and compares all of its output. Does nothing unless the programs
/// that it `needs` exist. The library must serve the first of these programs, or the test would prove nothing. Only rustc may use its own
/// allocator instead, as the rustc from rustup does.
fn prints_the_same(name: &str, needs: &[&str]) {
    if !is_compared(name, needs, &[]) {
        return;
    }
    // Some programs, such as GNU sort, close standard error before the report.
    let file = empty_folder(&format!("reports-{name}")).join("reports");
    output_of(name, "report", Arm::Everything.command("bash").env("ZK_ALLOC_REPORT", &file));
    let reports = std::fs::read_to_string(file).unwrap_or_default();
    let mut of_program = reports.lines().filter(|line| line.contains(&format!("report of {} (", needs[0])));
    let is_own = |line: &str| name == "rustc" && line.contains(": not in use, malloc comes from ");
    assert!(of_program.any(|line| line.contains(": served ") || is_own(line)), "{name}: {reports}");
}

/// Like `prints_the_same`, for a program that is linked with libjemalloc. Also runs it at thresholds at which the arena serves only part of
/// its memory.
fn prints_the_same_beside_jemalloc(name: &str, needs: &[&str]) {
    if is_compared(name, needs, &["1", "4096"]) {
        let program = path_of(needs[0]).expect("it was found before");
        let loads = outcome_of(Arm::Default.command("ldd").arg(program));
        assert!(loads.out.contains("libjemalloc") && loads.out.contains("libzk_alloc.so"), "{name}: {}", loads.out);
    }
}

/// Runs the program in each arm, and at each of the `thresholds`, and asserts that the output is the same. Returns
/// `false` if a program is missing.
fn is_compared(name: &str, needs: &[&str], thresholds: &[&str]) -> bool {
    if !needs.iter().all(|program| has(program)) || !has("bash") {
        return false;
    }
    let without = output_of(name, "without", &mut Arm::Without.command("bash"));
    assert!(without.ok && !without.out.is_empty(), "{name} fails without the library: {}", without.err);
    let arms = ARMS.iter().map(|arm| (format!("{arm:?}"), arm.command("bash")));
    let at_thresholds = thresholds.iter().map(|threshold| {
        let mut command = Arm::Default.command("bash");
        command.env("ZK_ALLOC_MIN_BYTES", threshold);
        (format!("from-{threshold}"), command)
    });
    for (arm, mut command) in arms.chain(at_thresholds) {
        let with = output_of(name, &arm, &mut command);
        assert!(with.ok, "{name} {arm}: {} {}", with.err, first_lines(&with));
        assert_eq!(with.err, without.err, "{name} {arm}");
        let (own, its) = (first_lines(&without), first_lines(&with));
        assert!(with.out == without.out, "{name} {arm} prints something else: {its}, not {own}");
    }
    true
}

/// Runs a program in a folder of its own, and returns its output.
fn output_of(name: &str, arm: &str, command: &mut Command) -> Outcome {
    let folder = empty_folder(&format!("programs/{name}-{arm}"));
    std::fs::create_dir(folder.join("here")).expect("a folder for a program");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs.sh");
    command.args(["--norc", "--noprofile", script, name]).current_dir(folder.join("here"));
    command.env("USER_HOME", std::env::var_os("HOME").unwrap_or_default()).env("HOME", &folder);
    command.env("SOURCES", env!("CARGO_MANIFEST_DIR")).env("LC_ALL", "C").env("TZ", "UTC");
    let output = outcome_of(command);
    let _ = std::fs::remove_dir_all(&folder);
    output
}

fn first_lines(output: &Outcome) -> String {
    output.out.lines().take(5).collect::<Vec<_>>().join(" | ")
}

/// Defines a test for each program in `programs.sh`: its name, how its output is compared, and the programs that it needs.
macro_rules! programs {
    ($($name:ident: $compare:ident($needs:expr);)*) => {$(
        #[test]
        fn $name() {
            $compare(stringify!($name), &$needs);
        }
    )*};
}

programs! {
    python: prints_the_same(["python3"]);
    python_with_forked_workers: prints_the_same(["python3"]);
    perl: prints_the_same(["perl"]);
    sqlite3: prints_the_same(["sqlite3", "sha256sum"]);
    git: prints_the_same(["git", "sha256sum"]);
    gcc_and_its_linker: prints_the_same(["gcc", "sha256sum"]);
    gpp: prints_the_same(["g++", "sha256sum"]);
    sort_and_its_threads: prints_the_same(["sort", "shuf", "sha256sum"]);
    compressors_and_tar: prints_the_same(["tar", "xz", "gzip", "sha256sum"]);
    awk_and_sed: prints_the_same(["awk", "sed", "grep", "sha256sum"]);
    bash_itself: prints_the_same(["bash", "sort"]);
    make_with_jobs: prints_the_same(["make", "seq", "sort", "sha256sum"]);
    openssl: prints_the_same(["openssl", "sort"]);
    rustc: prints_the_same(["rustc", "sha256sum"]);
    redis_server_and_its_benchmark: prints_the_same_beside_jemalloc(["redis-server", "redis-cli", "redis-benchmark", "awk"]);
    varnishd: prints_the_same_beside_jemalloc(["varnishd", "varnishtest", "gcc"]);
    dig: prints_the_same_beside_jemalloc(["dig", "python3", "sha256sum"]);
    nghttpd: prints_the_same_beside_jemalloc(["nghttpd", "curl", "python3", "sha256sum"]);
}

/// numpy calls C's allocation functions directly, including `calloc` for zeroed arrays and `realloc` for arrays that grow.
#[test]
fn python_with_numpy() {
    let finds_numpy =
        || Command::new("python3").args(["-c", "import numpy"]).output().is_ok_and(|it| it.status.success());
    if !has("python3") || !finds_numpy() {
        return eprintln!("SKIPPED: python3 has no numpy, so this test shows nothing");
    }
    prints_the_same("python_with_numpy", &["python3"]);
}
