//! What the kernel says of this process' mappings.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::fs;

/// A mapping, as `/proc/self/smaps` has it.
#[derive(Debug)]
pub(crate) struct Map {
    /// Such as `rw-p`.
    pub(crate) access: String,
    /// Two letters each, as `man 5 proc` lists them.
    flags: Vec<String>,
}

impl Map {
    pub(crate) fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|own| own == flag)
    }
}

/// The mapping that holds an address, if one does.
pub(crate) fn map_of(address: usize) -> Option<Map> {
    let smaps = fs::read_to_string("/proc/self/smaps").expect("Linux has it");
    let mut lines =
        smaps.lines().skip_while(|line| !range(line).is_some_and(|(from, to)| from <= address && address < to));
    let access = lines.next()?.split(' ').nth(1)?.to_owned();
    let flags = lines.find_map(|line| line.strip_prefix("VmFlags:")).expect("the last line of each mapping");
    Some(Map { access, flags: flags.split_ascii_whitespace().map(str::to_owned).collect() })
}

/// The addresses in the first line of a mapping; its other lines have none.
fn range(line: &str) -> Option<(usize, usize)> {
    let (from, to) = line.split(' ').next()?.split_once('-')?;
    Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
}
