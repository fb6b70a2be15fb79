//! Whether the children fit the memory together.

use crate::results::format;

/// Those of one process each stay alive for as long as the others, so their peaks add up.
pub(crate) struct Budget {
    /// Before the first child started; `None` if the kernel does not say, and everything is admitted.
    available_bytes: Option<u64>,
    /// Of the cold proofs so far.
    peaks: Vec<u64>,
}

impl Budget {
    /// Room for `available_bytes`, as the kernel says before the first child starts.
    pub(crate) fn of(available_bytes: Option<u64>) -> Self {
        Self { available_bytes, peaks: Vec::new() }
    }

    /// An arm stays, which peaks at `peak_bytes`.
    pub(crate) fn take(&mut self, peak_bytes: u64) {
        self.peaks.push(peak_bytes);
    }

    /// Whether one more arm fits, taken to need as much as the largest so far, and with it the baseline if that still
    /// waits: without the baseline there are no ratios. Otherwise why not.
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

    /// Too many children would drive the machine into the OOM killer; one too few, without the baseline, shows nothing.
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
