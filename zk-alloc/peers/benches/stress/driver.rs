//! Runs rounds in lockstep. In each round, every arm runs every pattern, each in a process of its own. The arms of a
//! pattern run one after the other in random order, so a round's ratios share the state of the machine.

use std::env;
use std::process::Command;

use crate::arms::{Arm, BROKEN};
use crate::cli::Options;
use crate::measure::Sample;
use crate::patterns::{PATTERNS, Pattern, stream};
use crate::report::{self, Results};

/// Runs the selected patterns, and prints the report. Returns an error if any run failed.
pub(crate) fn drive(options: &Options) -> Result<(), String> {
    let (arms, patterns) = (options.arms(), options.patterns());
    if patterns.is_empty() {
        // Not an error: `cargo bench NAME` passes the name to every bench, and it may belong to another.
        println!("stress: no pattern's name contains what was asked for; --list names them");
        return Ok(());
    }
    let rounds = if options.measures() { options.rounds } else { 1 };
    let mut results = Results::new(arms.clone(), patterns.clone());
    let mut failures = 0;
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        for (index, pattern) in patterns.iter().enumerate() {
            // Each round has its own order, so that the effects of one arm on the next (warm caches, free memory) even
            // out.
            let mut order: Vec<usize> = (0..arms.len()).collect();
            stream(options.seed ^ u64::from(round), index).shuffle(&mut order);
            for arm in order {
                if results.has_failed(arm, index) {
                    continue;
                }
                match run(options, arms[arm], pattern) {
                    Ok(sample) => results.add(round, arm, index, sample),
                    Err(failure) => {
                        eprintln!("{failure}");
                        results.fail(arm, index);
                        failures += 1;
                    }
                }
            }
        }
    }
    if options.measures() {
        print!("{}", report::render(&results, options.warm));
    } else {
        notices_damage(options)?;
        println!("stress: {} patterns under {} arms, a hundredth of each.", patterns.len(), arms.len());
        println!("`cargo make stress` measures.");
    }
    match failures {
        0 => Ok(()),
        _ => Err(format!("{failures} of the arms' patterns failed, as said above")),
    }
}

/// Runs one pattern in a process of its own, which is this binary again.
fn run(options: &Options, arm: &Arm, pattern: &Pattern) -> Result<Sample, String> {
    let failed = |why: String| format!("{} under {} failed: {why}", pattern.name, arm.name);
    let binary = env::current_exe().map_err(|error| failed(format!("this binary can't be found: {error}")))?;
    let mut command = Command::new(binary);
    command.args(["--child", "--arms", arm.name, "--patterns", pattern.name]);
    command.args(["--threads", &options.threads().to_string(), "--seed", &options.seed.to_string()]);
    if !options.measures() {
        command.arg("--tiny");
    }
    if options.warm {
        command.arg("--warm");
    }
    let output = command.output().map_err(|error| failed(format!("its process could not be started: {error}")))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        // The status of a process that SIGALRM ended names the signal.
        return Err(failed(format!("{}: {}", output.status, said.trim())));
    }
    eprint!("{said}");
    let line = String::from_utf8_lossy(&output.stdout);
    Sample::from_line(&line).ok_or_else(|| failed(format!("its process printed {line:?} where a sample was due")))
}

/// Returns an error unless the patterns detect that an allocator is broken.
fn notices_damage(options: &Options) -> Result<(), String> {
    let name = "lifetimes";
    let pattern = PATTERNS.iter().find(|pattern| pattern.name == name).ok_or(format!("{name} is not a pattern"))?;
    match run(options, &BROKEN, pattern) {
        Err(failure) if failure.contains("was written") => Ok(()),
        Err(failure) => Err(format!("damage was to be noticed, but {failure}")),
        Ok(_) => Err(format!("{name} did not notice that the allocator handed out memory that was in use")),
    }
}
