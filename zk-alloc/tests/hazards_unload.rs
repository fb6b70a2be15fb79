//! Unloading: a program (the host) closes a plugin whose global allocator is zk-alloc, and continues to run.
#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![allow(unsafe_code, reason = "loads a shared object, and calls it")]

#[path = "support/plugin.rs"]
mod plugin;
mod support;

use std::ffi::{CStr, CString, c_void};
use std::path::PathBuf;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use support::in_its_own_process;

/// The variable that gives the plugin's path to the process that loads it.
const PLUGIN: &str = "ZK_ALLOC_TEST_PLUGIN";
/// The plugin's function that allocates on the calling thread.
const PROVE: &CStr = c"prove";

/// A loaded plugin.
#[derive(Clone, Copy)]
struct Loaded(*mut c_void);

// SAFETY: any thread may use the handle.
unsafe impl Send for Loaded {}

impl Loaded {
    fn load() -> Self {
        let path = std::env::var(PLUGIN).expect("a plugin");
        let path = CString::new(path).expect("no zeroes");
        // SAFETY: `path` is a C string, and the constructors of zk-alloc in the object are safe to run.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{path:?} was not loaded");
        Self(handle)
    }

    /// Calls a function of the plugin, which allocates.
    fn call(self, function: &CStr) {
        // SAFETY: `function` is a C string, and the plugin has a function of that name with this type.
        let served = unsafe {
            let function = libc::dlsym(self.0, function.as_ptr());
            assert!(!function.is_null());
            std::mem::transmute::<*mut c_void, extern "C" fn(u64) -> u64>(function)(7)
        };
        assert!(served >= 5, "the arena served {served} requests");
    }

    fn close(self) {
        // SAFETY: the plugin was loaded once, and is not used afterwards.
        assert_eq!(unsafe { libc::dlclose(self.0) }, 0);
    }
}

fn is_mapped() -> bool {
    std::fs::read_to_string("/proc/self/maps").expect("Linux has it").contains("libplugin.so")
}

/// Does work that is unrelated to the plugin.
fn go_on() {
    for _ in 0..3 {
        let threads: Vec<_> = (0..3).map(|seed| thread::spawn(move || vec![seed; 1 << 20].len())).collect();
        threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), 1 << 20));
        // Gives any thread that the plugin left behind time to run. Three of these pauses last longer than the plugin retains memory.
        thread::sleep(Duration::from_millis(100));
    }
}

/// First, the thread that used the plugin closes it, continues to run, and loads it again. Then, the plugin is closed before threads that
/// used it exit. When such a thread exits, it still calls the plugin's code: the destructor of the thread key that returns the thread's
/// cache.
fn use_and_close() {
    for _ in 0..2 {
        let plugin = Loaded::load();
        plugin.call(PROVE);
        plugin.close();
        assert!(is_mapped(), "the plugin's code is unmapped, but threads call it when they end");
        go_on();
    }
    let plugin = Loaded::load();
    // The spawned thread and the threads that the plugin starts exit before the plugin is closed.
    thread::spawn(move || plugin.call(c"prove_on_own_threads")).join().unwrap();
    let (proved, is_closed) = (&Barrier::new(4), &Barrier::new(4));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(move || {
                plugin.call(PROVE);
                proved.wait();
                is_closed.wait();
            });
        }
        proved.wait();
        plugin.close();
        is_closed.wait();
    });
    go_on();
}

/// Tests each mode of the allocator with and without the background thread, which runs the plugin's code until it is stopped.
#[test]
fn a_plugin_may_be_closed_by_a_thread_that_used_it_and_before_others_end() {
    for is_resident in [false, true] {
        let path = if support::is_alone() { PathBuf::new() } else { plugin::plugin(is_resident) };
        for background in ["0", "1"] {
            let path = path.to_str().expect("text");
            let settings = [(PLUGIN, path), ("ZK_ALLOC_BACKGROUND", background), ("ZK_ALLOC_RETAIN_FOR", "0.2")];
            in_its_own_process(&settings, use_and_close);
        }
    }
}
