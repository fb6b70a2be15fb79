//! What an arm's binary says about the allocator that it links: its name, its settings, its counters.

use crate::sample::Counters;
use anyhow::{Context, ensure};
use std::env;

/// The allocator of this process, as its binary describes it.
#[derive(Debug)]
pub struct Installed {
    /// Name of the allocator.
    pub name: String,
    /// Version of the linked code.
    pub version: String,
    /// How the names of the environment variables begin that set it.
    pub setting_prefixes: &'static [&'static str],
    /// Counters since the process started; empty where an allocator has none.
    pub counters: fn() -> Counters,
    /// Levels that are no sums; empty likewise.
    pub gauges: fn() -> Counters,
    /// Asks the allocator for a setting that is in force, by its own name; `None` if it knows none of that name.
    pub setting: fn(&str) -> Option<String>,
    /// Runs a prover the way the allocator wants it; it calls the function once. Timed with the proof.
    pub scope: fn(&mut dyn FnMut()),
    /// Replays a recorded phase: what `scope` does, and what an adapter of the allocator does for the prover within.
    pub phase: fn(&mut dyn FnMut()),
    /// Gives all free memory back to the system; `None` where a replay does not ask for that.
    pub release: Option<fn()>,
    /// What the allocator says of itself, for people; `None` if it says nothing.
    pub report: fn() -> Option<String>,
}

impl Installed {
    /// An allocator without counters of its own.
    pub fn named(name: &str, version: &str, setting_prefixes: &'static [&'static str]) -> Self {
        Self {
            name: name.into(),
            version: version.into(),
            setting_prefixes,
            counters: Counters::new,
            gauges: Counters::new,
            setting: |_| None,
            scope: |prove| prove(),
            phase: |play| play(),
            release: None,
            report: || None,
        }
    }

    /// The allocator's settings in this process's environment, as `NAME=value`, sorted: whatever was set from outside
    /// is named beside the figures that it changed.
    pub(crate) fn settings(&self) -> Vec<String> {
        // A preloaded library may be another allocator.
        let is_setting =
            |name: &str| name == "LD_PRELOAD" || self.setting_prefixes.iter().any(|prefix| name.starts_with(prefix));
        let mut settings: Vec<_> = env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value))
            .filter(|(name, _)| is_setting(name))
            .map(|(name, value)| format!("{name}={}", value.to_string_lossy()))
            .collect();
        settings.sort();
        settings
    }

    /// Asks the allocator for each of `required`, names with values. Returns them as `name=value`; fails on the first
    /// that is not in force.
    pub(crate) fn confirm(&self, required: &[(String, String)]) -> anyhow::Result<Vec<String>> {
        let confirmed = required.iter().map(|(name, wanted)| {
            let found = (self.setting)(name)
                .with_context(|| format!("its setting did not take: {} has no setting {name}", self.name))?;
            ensure!(found == *wanted, "its setting did not take: {name} is {found}, not {wanted}");
            Ok(format!("{name}={wanted}"))
        });
        confirmed.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An arm whose settings were refused would show the defaults' figures under the tuned name.
    #[test]
    fn a_setting_that_is_not_in_force_is_named_with_what_is() {
        let setting = |name: &str| (name == "opt.thp").then(|| "default".to_owned());
        let installed = Installed { setting, ..Installed::named("m", "1", &[]) };
        let confirm = |name: &str, value: &str| installed.confirm(&[(name.into(), value.into())]);
        assert_eq!(confirm("opt.thp", "default").unwrap(), ["opt.thp=default"]);
        let reason = confirm("opt.thp", "always").unwrap_err().to_string();
        assert_eq!(reason, "its setting did not take: opt.thp is default, not always");
        assert!(confirm("opt.pht", "1").unwrap_err().to_string().ends_with("m has no setting opt.pht"));
    }
}
