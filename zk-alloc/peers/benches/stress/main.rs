//! A stress suite in the spirit of mimalloc-bench: the requests of servers, pools, short-lived threads and provers,
//! measured by time and by memory. `cargo make stress` measures; `cargo make stress --help` lists the options.
//!
//! Each allocator is called as a `GlobalAlloc` value, and none is installed, so one binary holds them all. Each run of
//! a pattern has a process of its own (this binary again, with hidden arguments), so that its peak is its own.
//!
//! The figures do not include the bookkeeping of the patterns and of the standard library's threads, which goes through
//! glibc in every arm. Every call goes through a virtual function. Both cost every arm the same, except that glibc
//! finds the bookkeeping in its heap.

mod arms;
mod cli;
mod driver;
mod heap;
mod patterns;
mod report;
#[path = "../../../tests/support/mod.rs"]
mod support;

use std::io::{Write as _, stdout};
use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let options = cli::Options::parse();
    let done = if options.child {
        driver::child(&options)
    } else if options.list {
        // Not `print!`, which panics if the reader (such as `head`) has closed the pipe.
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
