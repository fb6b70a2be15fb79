//! Checks that the lock-free parts keep their promises.

#[cfg(not(loom))]
mod claimed;
#[cfg(not(loom))]
mod moved;
#[cfg(not(loom))]
mod oracle;
#[cfg(all(not(loom), target_os = "linux"))]
mod threads;

#[cfg(loom)]
mod loom_bits;
#[cfg(loom)]
mod loom_cache;
#[cfg(loom)]
mod loom_mapped;
#[cfg(loom)]
mod loom_slabs;
#[cfg(loom)]
mod loom_zone;
#[cfg(loom)]
mod models;

/// Runs the calling test in a process of its own, so that no other test uses the arena's address space. Returns the arena in that
/// process, and `None` in this one.
#[cfg(not(loom))]
fn alone() -> Option<&'static super::Arena> {
    const ALONE: &str = "ZK_ALLOC_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let name = std::thread::current().name().expect("a test's thread").to_owned();
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let output = command.args([&name, "--exact"]).env(ALONE, "1").output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && stdout.contains("1 passed"), "{name}: {stdout}");
        return None;
    }
    crate::config::init_settings(&crate::config::Settings::new());
    Some(super::open().expect("address space"))
}
