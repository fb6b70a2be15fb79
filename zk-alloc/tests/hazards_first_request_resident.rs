//! The first request of a process in a bad moment, with an arena that always serves. No call comes before it, and it
//! brings the settings in code.
#![cfg(target_os = "linux")]

mod first_request;
mod support;

use zk_alloc::{Mode, Origin, Participants, Settings, ZkAllocator, stats};

#[global_allocator]
static ALLOC: ZkAllocator =
    ZkAllocator.settings(Settings::new().retain_bytes(1 << 40)).mode(Mode::Resident).participants(Participants::All);

/// Calls before the first request and after the last one.
const BEGIN: fn() = || ();
const END: fn() = || ();

/// The test harness has made the first request. Methods that build the allocator further keep its settings.
#[test]
fn settings_of_the_installed_allocator_are_in_force_from_the_first_request_on() {
    let retained = stats().settings.expect("there is an arena").retain_bytes;
    let is_set = std::env::var_os("ZK_ALLOC_RETAIN_BYTES").is_some();
    assert!(is_set || (retained.value, retained.origin) == (1 << 40, Origin::Program), "{}", stats());
}
