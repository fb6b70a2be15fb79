//! `cargo prove-bench PROVER ...`: builds the package of that prover and no other, says so, and starts its bench.
//!
//! A prover is a package: a folder in `provers-bench/provers`, or one that `--package` names. `package` reads what a manifest says,
//! `command_line` what is asked for, and `build` has cargo do it.

mod build;
mod command_line;
mod package;

use build::Bench;
use command_line::{Asked, Run};
use package::Package;
use std::env;
use std::path::Path;
use std::process::ExitCode;

/// The command line cannot be followed: as the bench itself ends then.
const USAGE: u8 = 2;
/// Ended by Ctrl-C, as the bench itself ends then.
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
            [run] => Bench::new(run).build_and_become(),
            runs => each(runs),
        },
        Err(message) => {
            eprintln!("prove-bench: {message}");
            ExitCode::from(USAGE)
        }
    }
}

/// Runs the benches one after the other, and ends as the worst of them did.
fn each(runs: &[Run]) -> ExitCode {
    build::leave_ctrl_c_to_children();
    let mut worst = 0;
    for run in runs {
        let code = Bench::new(run).build_and_run();
        worst = worst.max(code);
        if code == INTERRUPTED || code == USAGE {
            break;
        }
    }
    ExitCode::from(worst)
}
