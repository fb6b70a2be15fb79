//! A stress suite in the spirit of mimalloc-bench: what servers, pools, threads that come and go, and provers ask of an
//! allocator, by time and by memory. `cargo make stress` measures; `cargo make stress --help` lists the options.
//!
//! Each allocator is called as a `GlobalAlloc` value, none is installed, and so one binary holds them all. Each run of a
//! pattern has a process of its own (this binary again, with hidden arguments), so that the peak is its own.
//!
//! What the figures leave out: the bookkeeping of the patterns and of std's threads goes through glibc in every arm, and
//! every call through a virtual function. Both cost every arm the same, except that glibc finds the bookkeeping in its heap.

mod arms;
mod broken;
mod cli;
mod driver;
mod heap;
mod measure;
mod patterns;
mod random;
mod report;
mod results;

use std::io::{Write as _, stdout};
use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let options = cli::Options::parse();
    let done = if options.child {
        measure::child(&options)
    } else if options.list {
        // Not `print!`, which panics where the reader is `head` and has seen enough.
        stdout().write_all(cli::listing().as_bytes()).map_err(|error| format!("the list was not read: {error}"))
    } else {
        driver::drive(&options)
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stress: {error}");
            ExitCode::FAILURE
        }
    }
}
