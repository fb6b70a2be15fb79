//! Under `vm.overcommit_memory=2` the kernel counts all writable memory against a limit, touched or not.
//!
//! The setting affects the whole machine, so this test changes it only if `ZK_ALLOC_TEST_HOST=1` is set, and restores
//! it.

use std::{env, fs, io};

use crate::support::{assert_patterned, child, is_alone, may_change_host, patterned, skip};
use zk_alloc::{overflow_stats, phase, stats};

/// A setting of the kernel's memory management. Dropping it restores the old value.
struct HostSetting {
    path: &'static str,
    old: String,
}

impl HostSetting {
    fn set(path: &'static str, value: &str) -> io::Result<Self> {
        let old = fs::read_to_string(path)?;
        fs::write(path, value)?;
        Ok(Self { path, old })
    }
}

impl Drop for HostSetting {
    fn drop(&mut self) {
        if let Err(error) = fs::write(self.path, self.old.trim()) {
            eprintln!("{} is not {} again: {error}", self.path, self.old.trim());
        }
    }
}

/// Turns strict accounting on, with such a high limit that nothing else on the machine is affected.
fn strict_accounting() -> io::Result<[HostSetting; 2]> {
    let ratio = HostSetting::set("/proc/sys/vm/overcommit_ratio", "1000")?;
    Ok([HostSetting::set("/proc/sys/vm/overcommit_memory", "2")?, ratio])
}

/// The kernel does not count inaccessible address space. The region is as large as usual, and is committed as it grows.
#[test]
fn strict_accounting_changes_neither_the_region_nor_the_service() {
    if !is_alone() && !may_change_host() {
        return println!("skipped: ZK_ALLOC_TEST_HOST=1 allows to change vm.overcommit_memory for a moment");
    }
    // Two such tests at once would restore each other's settings.
    let lock = fs::File::create(env::temp_dir().join("zk-alloc-test-host.lock")).unwrap();
    let reserved = || {
        let ended = child(&[], || {
            for seed in 0..5 {
                let made: Vec<_> = phase(|| [700, 9_000, 90_000, 10 << 20].map(|len| patterned(len, seed)).into());
                made.iter().for_each(|words| assert_patterned(words, seed));
            }
            assert!(stats().slab_allocations >= 5 && stats().run_allocations >= 15, "{}", stats());
            assert_eq!((stats().refusals, overflow_stats()), (0, (0, 0)));
            println!("reserved {}", stats().address_space_bytes);
        })?;
        ended.assert_passed_without_warnings();
        Some(ended.printed("reserved ").to_owned())
    };
    if is_alone() {
        return drop((reserved(), reserved()));
    }
    lock.lock().unwrap();
    let usual = reserved();
    let _strict = match strict_accounting() {
        Ok(strict) => strict,
        Err(error) => return skip("vm.overcommit_memory can't be changed here", error),
    };
    assert_eq!(reserved(), usual);
}
