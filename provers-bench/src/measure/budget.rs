//! Checks whether the children fit into memory together.

use crate::results::format;

/// The children of all arms stay alive at the same time, so their peaks add up.
pub(crate) struct Budget {
    /// Available memory before the first child starts. `None` if the kernel does not report it; then every arm is
    /// admitted.
    available_bytes: Option<u64>,
    /// Peak RSS of each cold proof so far.
    peaks: Vec<u64>,
}

impl Budget {
    /// A budget of `available_bytes`, as the kernel reports it before the first child starts.
    pub(crate) fn of(available_bytes: Option<u64>) -> Self {
        Self { available_bytes, peaks: Vec::new() }
    }

    /// Records an admitted arm, which peaks at `peak_bytes`.
    pub(crate) fn take(&mut self, peak_bytes: u64) {
        self.peaks.push(peak_bytes);
    }

    /// Checks whether one more arm fits. It is assumed to need as much memory as the largest arm so far. While the
    /// baseline still waits, the arm must leave room for it, because ratios need the baseline. The error is the reason.
    pub(crate) fn admits(&self, baseline_waits: bool) -> Result<(), String> {
        let (Some(available), Some(&expected)) = (self.available_bytes, self.peaks.iter().max()) else { return Ok(()) };
        let taken: u64 = self.peaks.iter().sum();
        let needed = expected * (1 + u64::from(baseline_waits));
        if taken + needed <= available {
            return Ok(());
        }
        let [expected, taken, available] = [expected, taken, available].map(format::bytes);
        Err(format!("needs about {expected} of memory, the other arms peak at {taken}, {available} were available"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Too many children would trigger the OOM killer. A run that leaves out the baseline shows no ratio.
    #[test]
    fn an_arm_is_admitted_while_its_peak_and_a_waiting_baselines_fit() {
        let budget = |available_bytes, peaks: &[u64]| {
            let mut budget = Budget::of(available_bytes);
            peaks.iter().for_each(|&peak| budget.take(peak));
            budget
        };
        assert!(budget(Some(10), &[]).admits(true).is_ok(), "nothing to go by");
        assert!(budget(None, &[100]).admits(true).is_ok(), "the kernel does not say");
        assert!(budget(Some(25), &[10]).admits(false).is_ok());
        assert!(budget(Some(25), &[10]).admits(true).is_err(), "would take the baseline's place");
        assert!(budget(Some(25), &[10, 8]).admits(false).is_err());
    }
}
