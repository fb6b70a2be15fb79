//! A program without phases asks for the background thread in code. Its first request starts the thread.
#![cfg(target_os = "linux")]

mod support;
#[path = "support/tasks.rs"]
mod tasks;

use std::ffi::OsStr;

use support::{alone, is_alone};
use tasks::{are_ours, ours};
use zk_alloc::{Settings, ZkAllocator, stats};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator::resident().settings(Settings::new().background_thread(true));

#[test]
fn a_setting_in_code_holds_unless_the_environment_says_otherwise() {
    let test = "a_setting_in_code_holds_unless_the_environment_says_otherwise";
    if is_alone() {
        let settings = stats().settings.expect("there is an arena");
        are_ours(usize::from(settings.background_thread.value));
        return println!("ours {}; {settings}.", ours().len());
    }
    let told = |settings: &[(&str, &OsStr)]| {
        let ended = alone(test, settings);
        ended.assert_passed(test);
        assert_eq!(ended.stderr, "");
        ended.stdout
    };
    let by_program = told(&[]);
    assert!(by_program.contains("ours 1; ZK_ALLOC_BACKGROUND=1 (program)."), "{by_program}");
    let forbidden = told(&[("ZK_ALLOC_BACKGROUND", OsStr::new("0"))]);
    assert!(forbidden.contains("ours 0; ZK_ALLOC_BACKGROUND=0 (environment)."), "{forbidden}");
}
