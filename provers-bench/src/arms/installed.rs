//! The description that an arm's binary gives of its allocator: name, settings, counters.

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
    /// Prefixes of the environment variables that configure it.
    pub setting_prefixes: &'static [&'static str],
    /// Counters since the process started; empty if the allocator has none.
    pub counters: fn() -> Counters,
    /// Gauges, which are current levels and not sums; empty if the allocator has none.
    pub gauges: fn() -> Counters,
    /// Returns the value of a setting that is in force, by the allocator's own name for it; `None` if the name is
    /// unknown.
    pub setting: fn(&str) -> Option<String>,
    /// Calls the given function once, in the way that the allocator expects provers to run. It is timed with the proof.
    pub scope: fn(&mut dyn FnMut()),
    /// Replays a recorded phase: it does what `scope` does, and what the allocator's adapter does inside the prover.
    pub phase: fn(&mut dyn FnMut()),
    /// Returns all free memory to the system; `None` if a replay does not do that.
    pub release: Option<fn()>,
}

impl Installed {
    /// An allocator without counters.
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
        }
    }

    /// The allocator's settings in this process's environment, as `NAME=value`, sorted. Settings from outside change
    /// the figures, so the results list them.
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

    /// Asks the allocator for each of `required`, given as name and value. Returns them as `name=value`, or fails on
    /// the first setting that is not in force.
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

    /// An arm with refused settings would show the default figures under the tuned name.
    #[test]
    fn a_setting_that_is_not_in_force_is_named_with_what_is() {
        let setting = |name: &str| (name == "opt.thp").then(|| "default".to_owned());
        let installed = Installed { setting, ..Installed::named("m", "1", &[]) };
        let confirm = |name: &str, value: &str| installed.confirm(&[(name.into(), value.into())]);
        assert_eq!(confirm("opt.thp", "default").unwrap(), ["opt.thp=default"]);
        let reason = confirm("opt.thp", "always").unwrap_err().to_string();
        assert_eq!(reason, "its setting did not take: opt.thp is default, not always");
        let all = [("opt.thp", "default"), ("opt.thp", "default")].map(|(name, value)| (name.into(), value.into()));
        assert_eq!(installed.confirm(&all).unwrap().len(), all.len());
        assert!(confirm("opt.pht", "1").unwrap_err().to_string().ends_with("m has no setting opt.pht"));
    }
}
