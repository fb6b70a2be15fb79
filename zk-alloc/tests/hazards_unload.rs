//! A plugin that has the allocator in it is closed, and its host goes on.
#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![allow(unsafe_code, reason = "loads a shared object, and calls it")]

#[path = "support/plugin.rs"]
mod plugin;
mod support;

use std::ffi::{CStr, CString, OsStr, c_void};
use std::path::PathBuf;
use std::sync::{Barrier, LazyLock};
use std::thread;
use std::time::Duration;

use support::{alone, is_alone};

/// Names the plugin to the process that loads it.
const PLUGIN: &str = "ZK_ALLOC_TEST_PLUGIN";
/// The function of the plugin's that allocates on the calling thread.
const PROVE: &CStr = c"prove";

/// A plugin that is loaded.
#[derive(Clone, Copy)]
struct Loaded(*mut c_void);

// SAFETY: a handle, which any thread may use.
unsafe impl Send for Loaded {}

impl Loaded {
    fn load() -> Self {
        let path = std::env::var(PLUGIN).expect("a plugin");
        let path = CString::new(path).expect("no zeroes");
        // SAFETY: a string of C's; what the object's constructors do, the allocator promises.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{path:?} was not loaded");
        Self(handle)
    }

    /// Has the plugin allocate.
    fn call(self, function: &CStr) {
        // SAFETY: a string of C's, and a function of that name and type in the plugin.
        let served = unsafe {
            let function = libc::dlsym(self.0, function.as_ptr());
            assert!(!function.is_null());
            std::mem::transmute::<*mut c_void, extern "C" fn(u64) -> u64>(function)(7)
        };
        assert!(served >= 5, "the arena served {served} requests");
    }

    fn close(self) {
        // SAFETY: loaded once, and not used any more.
        assert_eq!(unsafe { libc::dlclose(self.0) }, 0);
    }
}

fn is_mapped() -> bool {
    std::fs::read_to_string("/proc/self/maps").expect("Linux has it").contains("libplugin.so")
}

/// What a host does that has nothing to do with the plugin.
fn go_on() {
    for _ in 0..3 {
        let threads: Vec<_> = (0..3).map(|seed| thread::spawn(move || vec![seed; 1 << 20].len())).collect();
        threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), 1 << 20));
        // Time for whatever the plugin left running.
        thread::sleep(Duration::from_millis(300));
    }
}

/// Runs the test `name` in processes that load the plugin, in each of the allocator's modes, without and with the background thread,
/// which runs the plugin's code for ever.
#[track_caller]
fn in_each_mode(name: &str, host: impl FnOnce()) {
    if is_alone() {
        return host();
    }
    // Built once, while the other test waits.
    static PLUGINS: LazyLock<[PathBuf; 2]> = LazyLock::new(|| [false, true].map(plugin::plugin));
    for (path, is_resident) in PLUGINS.iter().zip([false, true]) {
        for background in ["0", "1"] {
            let variables = [("ZK_ALLOC_BACKGROUND", background.as_ref()), ("ZK_ALLOC_RETAIN_FOR", "0.2".as_ref())];
            let settings = [[(PLUGIN, path.as_os_str())].as_slice(), &variables].concat();
            let how = format!("{name}, resident: {is_resident}, background thread: {background}");
            alone(name, &settings).assert_passed(&how);
        }
    }
}

/// The thread that used the plugin goes on, and loads it again.
#[test]
fn a_plugin_is_closed_on_the_thread_that_used_it() {
    in_each_mode("a_plugin_is_closed_on_the_thread_that_used_it", || {
        for _ in 0..2 {
            let plugin = Loaded::load();
            plugin.call(PROVE);
            plugin.close();
            assert!(is_mapped(), "the plugin's code is gone, which threads call when they end");
            go_on();
        }
    });
}

/// A thread's end calls the plugin's code: the destructor of the key by which the thread's cache is handed on.
#[test]
fn threads_that_used_a_plugin_end_after_it_was_closed() {
    in_each_mode("threads_that_used_a_plugin_end_after_it_was_closed", || {
        let plugin = Loaded::load();
        // This one ends before, as do the threads that the plugin starts.
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
    });
}
