//! The settings that follow from what was found, each with its reason.

use super::facts::Host;
use super::touch::{Pages, Touch};
use crate::results::format;

/// Lines to paste, and why.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) reason: String,
    pub(super) lines: Vec<String>,
}

/// The default of Linux. Memory that was advised in parts takes a mapping for each part.
const USUAL_MAP_COUNT: u64 = 65_530;

/// A difference that is worth a setting: page costs vary by this much from run to run.
const WORTH: f64 = 1.25;

/// The settings for a prover on this host. Empty if the defaults fit.
pub(super) fn settings(host: &Host, touches: &[Touch]) -> Vec<Setting> {
    let setting =
        |reason: String, lines: &[&str]| Setting { reason, lines: lines.iter().map(|&line| line.into()).collect() };
    let mut settings = Vec::new();
    settings.extend(huge_pages(host, touches));
    if let (Some(limit), Some(memory)) = (host.limit_bytes, host.memory_bytes)
        && limit < memory
    {
        let most = limit / 10 * 9;
        settings.push(setting(
            format!(
                "The control group allows {}. At nine tenths of it, the arena purges free memory instead of growing.",
                format::bytes(limit)
            ),
            &[&format!("export ZK_ALLOC_MAX_BYTES={}M", most >> 20)],
        ));
    }
    if let Some(cpus) = host.cpu_limit.filter(|&cpus| cpus < host.cores as f64) {
        settings.push(setting(
            format!("The control group allows {cpus:.1} CPUs of {}. More threads than that are throttled.", host.cores),
            &[&format!("export RAYON_NUM_THREADS={}", (cpus.floor() as usize).max(1))],
        ));
    }
    if host.overcommit == Some(2) {
        settings.push(setting(
            "Overcommit is forbidden: memory that is mapped counts, although nothing touched it. The arena maps as it grows, \
             but a prover's large vectors count in full."
                .into(),
            &["sudo sysctl -w vm.overcommit_memory=0"],
        ));
    }
    if host.nodes > 1 {
        settings.push(setting(
            format!(
                "The machine has {} NUMA nodes, and the arena reuses a page on any thread. On one node, all memory is near; \
                 interleaved, it is equally far.",
                host.nodes
            ),
            &[
                "numactl --cpunodebind=0 --membind=0 YOUR-PROVER    # if a proof fits in one node",
                "numactl --interleave=all YOUR-PROVER               # if it does not",
            ],
        ));
    }
    if let Some(count) = host.max_map_count.filter(|&count| count < USUAL_MAP_COUNT) {
        settings.push(setting(
            format!(
                "A process may have {} mappings, fewer than usual. Beyond them, the kernel refuses memory.",
                format::count(count)
            ),
            &[&format!("sudo sysctl -w vm.max_map_count={USUAL_MAP_COUNT}")],
        ));
    }
    settings
}

/// The setting of huge pages that the measured costs ask for.
fn huge_pages(host: &Host, touches: &[Touch]) -> Option<Setting> {
    let of = |pages| touches.iter().find(|touch| touch.pages == pages);
    let by = |small: std::time::Duration, huge: std::time::Duration| small.as_secs_f64() / huge.as_secs_f64();
    let is_on = host.huge_pages.as_deref().is_some_and(|setting| setting != "never");
    let setting = |reason: String, line: &str| Some(Setting { reason, lines: vec![line.into()] });
    if !is_on {
        return setting(
            "The host forbids huge pages. With them, a prover may fault once for 2 MiB; measure again after this."
                .into(),
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        );
    }
    let (small, huge) = (of(Pages::Small)?, of(Pages::Huge)?);
    let (warm, cold) = (by(small.warm, huge.warm), by(small.cold, huge.cold));
    // Where memory is reported, `auto` forbids huge pages; elsewhere it asks for them.
    match host.reported_bytes {
        Some(_) if cold >= WORTH => setting(
            format!(
                "Huge pages are {cold:.1} times as cheap as small ones here, also after a pause. By default the arena forbids them, \
                 because the kernel reports free memory to a hypervisor."
            ),
            "export ZK_ALLOC_THP=always",
        ),
        Some(_) if warm >= WORTH => setting(
            format!(
                "Only for proofs of gigabytes that follow each other without a pause: huge pages are {warm:.1} times as cheap as small \
                 ones then, and {:.1} times as dear after a pause. By default the arena forbids them here.",
                1.0 / cold
            ),
            "export ZK_ALLOC_THP=always    # or leave it out",
        ),
        None if warm.max(cold) < 1.0 / WORTH => setting(
            format!(
                "Huge pages are {:.1} times as dear as small ones here. By default the arena asks for them.",
                1.0 / warm.max(cold)
            ),
            "export ZK_ALLOC_THP=never",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn host() -> Host {
        Host {
            cores: 8,
            memory_bytes: Some(64_000_000_000),
            huge_pages: Some("madvise".into()),
            overcommit: Some(0),
            nodes: 1,
            max_map_count: Some(USUAL_MAP_COUNT),
            ..Host::default()
        }
    }

    fn touches(small_ns: [u64; 2], huge_ns: [u64; 2]) -> Vec<Touch> {
        [(Pages::Small, small_ns), (Pages::Huge, huge_ns)]
            .map(|(pages, [warm, cold])| Touch {
                pages,
                warm: Duration::from_nanos(warm),
                cold: Duration::from_nanos(cold),
                huge_share: 0.0,
            })
            .into()
    }

    fn lines(host: &Host, touches: &[Touch]) -> Vec<String> {
        settings(host, touches).into_iter().flat_map(|setting| setting.lines).collect()
    }

    #[test]
    fn a_usual_host_needs_no_setting() {
        assert_eq!(lines(&host(), &touches([500, 1000], [120, 300])), Vec::<String>::new());
    }

    /// On a host that reports, `auto` forbids huge pages. The measured costs say whether that is right.
    #[test]
    fn huge_pages_follow_the_costs() {
        let reporting = Host { reported_bytes: Some(2 << 20), ..host() };
        let dear_after_a_pause = touches([500, 1700], [150, 9000]);
        let [setting] = &settings(&reporting, &dear_after_a_pause)[..] else { panic!("one setting") };
        assert!(setting.reason.contains("without a pause"), "{setting:?}");
        assert_eq!(lines(&reporting, &touches([500, 1700], [150, 400])), ["export ZK_ALLOC_THP=always"]);
        assert_eq!(lines(&reporting, &touches([500, 1700], [500, 9000])), Vec::<String>::new());
        assert_eq!(lines(&host(), &touches([500, 500], [2000, 2000])), ["export ZK_ALLOC_THP=never"]);
        let forbidden = Host { huge_pages: Some("never".into()), ..host() };
        assert!(lines(&forbidden, &touches([500, 500], [500, 500]))[0].contains("echo madvise"));
    }

    #[test]
    fn limits_become_caps_and_threads() {
        let contained = Host { limit_bytes: Some(8 << 30), cpu_limit: Some(2.5), ..host() };
        let said = lines(&contained, &touches([500, 1000], [120, 300]));
        assert_eq!(said, ["export ZK_ALLOC_MAX_BYTES=7372M", "export RAYON_NUM_THREADS=2"]);
    }

    #[test]
    fn nodes_overcommit_and_mappings_have_their_lines() {
        let odd = Host { overcommit: Some(2), nodes: 2, max_map_count: Some(1000), ..host() };
        let said = lines(&odd, &touches([500, 1000], [120, 300]));
        assert_eq!(said.len(), 4, "{said:?}");
    }
}
