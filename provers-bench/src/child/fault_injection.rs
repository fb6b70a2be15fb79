//! Injects faults into a child on request, so that tests can watch the real driver and the real gate handle a failing
//! arm.

use anyhow::{Context, bail};
use std::env;
use std::hint::black_box;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

/// Names a fault as `arm:round:kind`; the round `*` means every round.
pub(crate) const SETTING: &str = "PROVE_BENCH_TEST_FAULT";

/// Memory that a storm of page faults touches: more pages than the gate allows.
const STORM_BYTES: usize = 48 << 20;
const PAGE_BYTES: usize = 4096;

/// Ways in which a child can fail its driver or regress.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    Die,
    Hang,
    Garbage,
    BadProof,
    /// The proof takes longer by this share of its time.
    Slow {
        percent: u32,
    },
    /// The proof touches pages that are new to the process.
    PageFaults,
}

impl Fault {
    /// The fault that a test requested for this proof.
    pub(crate) fn for_proof(arm: &str, round: u32) -> anyhow::Result<Option<Self>> {
        let Ok(setting) = env::var(SETTING) else { return Ok(None) };
        let [wanted_arm, wanted_round, kind] = setting.split(':').collect::<Vec<_>>()[..] else {
            bail!("{SETTING} is arm:round:kind, not {setting}");
        };
        if wanted_arm != arm || (wanted_round != "*" && wanted_round != round.to_string()) {
            return Ok(None);
        }
        Self::named(kind).map(Some)
    }

    fn named(kind: &str) -> anyhow::Result<Self> {
        Ok(match kind.split_once('=') {
            Some(("slow", percent)) => {
                let percent = percent.parse().with_context(|| format!("{SETTING}: slow={percent} is no percentage"))?;
                Self::Slow { percent }
            }
            None if kind == "die" => Self::Die,
            None if kind == "hang" => Self::Hang,
            None if kind == "garbage" => Self::Garbage,
            None if kind == "bad-proof" => Self::BadProof,
            None if kind == "page-faults" => Self::PageFaults,
            _ => bail!("{SETTING} knows die, hang, garbage, bad-proof, slow=PERCENT and page-faults, not {kind}"),
        })
    }

    /// Runs before the proof. A process that dies or hangs does not return.
    pub(crate) fn strike(self) {
        match self {
            Self::Die => process::abort(),
            Self::Hang => loop {
                thread::sleep(Duration::from_secs(3600));
            },
            _ => {}
        }
    }

    /// Runs on the clock, after a proof that took `elapsed`.
    pub(crate) fn disturb(self, elapsed: Duration) -> anyhow::Result<()> {
        match self {
            Self::Slow { percent } => {
                let since = Instant::now();
                while since.elapsed() < elapsed * percent / 100 {
                    std::hint::spin_loop();
                }
                Ok(())
            }
            Self::PageFaults => storm(),
            _ => Ok(()),
        }
    }
}

fn storm() -> anyhow::Result<()> {
    // With huge pages the whole storm would be two dozen faults.
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_thp_disable(true).context("cannot do without huge pages")?;
    // Outside any phase, and larger than glibc keeps: the kernel supplies new pages each time.
    let mut pages = vec![0_u8; STORM_BYTES];
    pages.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 1);
    drop(black_box(pages));
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_thp_disable(false).context("cannot have huge pages back")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A misspelt fault must not pass as a good proof.
    #[test]
    fn a_fault_is_one_of_those_known() {
        assert_eq!(Fault::named("slow=15").unwrap(), Fault::Slow { percent: 15 });
        assert_eq!(Fault::named("page-faults").unwrap(), Fault::PageFaults);
        for wrong in ["slow", "slow=much", "page-fault", ""] {
            assert!(Fault::named(wrong).is_err(), "{wrong}");
        }
    }
}
