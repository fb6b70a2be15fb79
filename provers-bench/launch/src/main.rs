//! `cargo prove-bench PROVER ...` builds the package of that prover only, reports the build, and starts its bench.
//!
//! A prover is a package: a folder in `provers-bench/provers`, or one given by `--package`. `package` reads manifests,
//! `command_line` reads the arguments, and `run` runs cargo.

mod command_line;
mod package;
mod run;

use command_line::Asked;
use package::Package;
use run::Run;
use std::env;
use std::path::Path;
use std::process::ExitCode;

/// Exit code for an invalid command line, the same as the bench's.
const USAGE: u8 = 2;
/// Exit code after Ctrl-C, the same as the bench's.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let bench_folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this package lies in that of the bench");
    let provers = package::all_in(&bench_folder.join("provers"));
    match command_line::read(&Package::bench(bench_folder), &provers, env::args_os().skip(1).collect()) {
        Ok(Asked::Help) => {
            print!("{}", command_line::help(&provers));
            ExitCode::SUCCESS
        }
        Ok(Asked::Runs(runs)) => match &runs[..] {
            [run] => run.build_and_become(),
            runs => each(runs),
        },
        Err(message) => {
            eprintln!("prove-bench: {message}");
            ExitCode::from(USAGE)
        }
    }
}

/// Runs the benches one after another and returns the worst exit code.
fn each(runs: &[Run]) -> ExitCode {
    // The child that this process waits for also receives the signal, exits cleanly, and reports it by its exit code.
    if let Err(error) = ctrlc::set_handler(|| ()) {
        eprintln!("prove-bench: cannot wait for Ctrl-C: {error}");
    }
    let mut worst = 0;
    for run in runs {
        let code = run.build_and_run();
        worst = worst.max(code);
        if code == INTERRUPTED || code == USAGE {
            break;
        }
    }
    ExitCode::from(worst)
}
