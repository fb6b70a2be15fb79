//! Interrupts, as the kernel counts them for the whole machine.

use std::fs;

/// TLB shootdowns on all processors since the machine started; `None` if the kernel does not count them (arm64 needs
/// none).
pub(crate) fn tlb_shootdowns() -> Option<u64> {
    row(&fs::read_to_string("/proc/interrupts").ok()?, "TLB:")
}

/// The sum of a row, which has a count for each processor and then words.
fn row(table: &str, name: &str) -> Option<u64> {
    let counts = table.lines().find_map(|line| line.trim_start().strip_prefix(name))?;
    Some(counts.split_whitespace().map_while(|count| count.parse::<u64>().ok()).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_summed_over_processors() {
        let table = "           CPU0       CPU1\n  0:  9  0  IO-APIC  2-edge\nTLB:  40  2   TLB shootdowns\n";
        assert_eq!((row(table, "TLB:"), row(table, "NMI:")), (Some(42), None));
    }
}
