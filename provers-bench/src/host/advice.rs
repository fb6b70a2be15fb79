//! The settings that follow from what was found, each with its reason.

use super::facts::Host;
use super::touch::{Pages, Touch};
use crate::results::format;

/// The default of Linux. Memory that was advised in parts takes a mapping for each part.
const USUAL_MAP_COUNT: u64 = 65_530;

/// A difference that is worth a setting: page costs vary by this much from run to run.
const WORTH: f64 = 1.25;

/// The share of huge pages that wait for the kernel from which on free memory counts as fragmented.
const STALLS: f64 = 1.0 / 16.0;

/// The settings for a prover on this host: the reason of each, and lines of a shell. Empty if the defaults fit.
pub(super) fn settings(host: &Host, touches: &[Touch]) -> Vec<(String, String)> {
    let mut settings = Vec::new();
    settings.extend(defrag(host, touches));
    settings.extend(huge_pages(host, touches).map(|(reason, line)| (reason, line.to_owned())));
    if let (Some(limit), Some(memory)) = (host.limit_bytes, host.memory_bytes)
        && limit < memory
    {
        settings.push((
            format!("The control group allows {}; at nine tenths of it, the arena purges.", format::bytes(limit)),
            format!("export ZK_ALLOC_MAX_BYTES={}M", (limit / 10 * 9) >> 20),
        ));
    }
    if let Some(cpus) = host.cpu_limit.filter(|&cpus| cpus < host.cores as f64) {
        settings.push((
            format!("The control group allows {cpus:.1} CPUs of {}, and throttles more threads.", host.cores),
            format!("export RAYON_NUM_THREADS={}", (cpus.floor() as usize).max(1)),
        ));
    }
    if host.overcommit == Some(2) {
        settings.push((
            "Overcommit is forbidden: a prover's large vectors count in full, touched or not.".into(),
            "sudo sysctl -w vm.overcommit_memory=0".into(),
        ));
    }
    if host.nodes > 1 {
        settings.push((
            format!("The machine has {} NUMA nodes, and the arena reuses a page on any thread.", host.nodes),
            "numactl --cpunodebind=0 --membind=0 YOUR-PROVER    # if a proof fits in one node\n\
             numactl --interleave=all YOUR-PROVER               # if it does not"
                .into(),
        ));
    }
    if let Some(count) = host.max_map_count.filter(|&count| count < USUAL_MAP_COUNT) {
        settings.push((
            format!("A process may have {} mappings, fewer than usual.", format::count(count)),
            format!("sudo sysctl -w vm.max_map_count={USUAL_MAP_COUNT}"),
        ));
    }
    settings
}

/// The setting for a host whose free memory is in pieces, and where a fault waits until the kernel has made a huge page of them.
fn defrag(host: &Host, touches: &[Touch]) -> Option<(String, String)> {
    let touch = touches.iter().find(|touch| touch.stalls >= STALLS)?;
    let setting = host.kind.defrag.as_deref().unwrap_or("unknown");
    let share = touch.huge_share * 100.0;
    Some((
        format!(
            "Free memory is fragmented: {:.0} of 100 huge pages waited while the kernel moved others away (defrag is {setting}), and \
             {share:.0}% were had. With this, faults take small pages at once instead.",
            touch.stalls * 100.0
        ),
        "echo defer | sudo tee /sys/kernel/mm/transparent_hugepage/defrag".into(),
    ))
}

/// The setting of huge pages that the measured costs ask for.
fn huge_pages(host: &Host, touches: &[Touch]) -> Option<(String, &'static str)> {
    if host.kind.huge_pages.as_deref().is_none_or(|setting| setting == "never") {
        return Some((
            "The host forbids huge pages. Measure again after this.".into(),
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        ));
    }
    let of = |pages| touches.iter().find(|touch| touch.pages == pages);
    let by = |small: std::time::Duration, huge: std::time::Duration| small.as_secs_f64() / huge.as_secs_f64();
    let (small, huge) = (of(Pages::Small)?, of(Pages::Huge)?);
    let (warm, cold) = (by(small.warm, huge.warm), by(small.cold, huge.cold));
    // Where memory is reported, `auto` forbids huge pages; elsewhere it asks for them.
    match host.kind.reported_bytes {
        Some(_) if cold >= WORTH => Some((
            format!(
                "Huge pages are {cold:.1} times as cheap as small ones, also after a pause; the default forbids them here."
            ),
            "export ZK_ALLOC_THP=always",
        )),
        Some(_) if warm >= WORTH => Some((
            format!(
                "For large proofs without a pause between them: huge pages are {warm:.1} times as cheap as small ones then, \
                 and {:.1} times as dear after a pause.",
                1.0 / cold
            ),
            "export ZK_ALLOC_THP=always    # or leave it out",
        )),
        None if warm.max(cold) < 1.0 / WORTH => Some((
            format!("Huge pages are {:.1} times as dear as small ones here.", 1.0 / warm.max(cold)),
            "export ZK_ALLOC_THP=never",
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::kind::Kind;
    use std::time::Duration;

    fn host() -> Host {
        let (memory_bytes, max_map_count) = (Some(64_000_000_000), Some(USUAL_MAP_COUNT));
        Host { cores: 8, memory_bytes, kind: kind("madvise", None), nodes: 1, max_map_count, ..Host::default() }
    }

    fn kind(huge_pages: &str, reported_bytes: Option<u64>) -> Kind {
        Kind { huge_pages: Some(huge_pages.into()), defrag: Some("madvise".into()), reported_bytes, ..Kind::default() }
    }

    /// The lines for a host where the first touch of small pages and of huge pages costs so much, warm and cold.
    fn lines(host: &Host, small_ns: [u64; 2], huge_ns: [u64; 2]) -> String {
        let touches = [(Pages::Small, small_ns), (Pages::Huge, huge_ns)].map(|(pages, costs)| {
            let [warm, cold] = costs.map(Duration::from_nanos);
            Touch { pages, warm, cold, huge_share: 0.0, stalls: 0.0 }
        });
        settings(host, &touches).into_iter().map(|(_, line)| line).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn a_usual_host_needs_no_setting() {
        assert_eq!(lines(&host(), [500, 1000], [120, 300]), "");
    }

    /// On a host that reports, `auto` forbids huge pages. The measured costs say whether that is right.
    #[test]
    fn huge_pages_follow_the_costs() {
        let reporting = Host { kind: kind("madvise", Some(2 << 20)), ..host() };
        let sometimes = "export ZK_ALLOC_THP=always    # or leave it out";
        assert_eq!(lines(&reporting, [500, 1700], [150, 9000]), sometimes);
        assert_eq!(lines(&reporting, [500, 1700], [150, 400]), "export ZK_ALLOC_THP=always");
        assert_eq!(lines(&reporting, [500, 1700], [500, 9000]), "");
        assert_eq!(lines(&host(), [500, 500], [2000, 2000]), "export ZK_ALLOC_THP=never");
        let forbidden = Host { kind: kind("never", None), ..host() };
        assert!(lines(&forbidden, [500, 500], [500, 500]).contains("echo madvise"));
    }

    #[test]
    fn faults_that_wait_for_huge_pages_are_told() {
        let (warm, cold) = (Duration::from_micros(3), Duration::from_micros(3));
        let touch = |stalls| Touch { pages: Pages::Huge, warm, cold, huge_share: 0.4, stalls };
        let (reason, line) = defrag(&host(), &[touch(0.5)]).expect("half of them waited");
        assert!(reason.contains("50 of 100") && reason.contains("madvise") && reason.contains("40%"), "{reason}");
        assert!(line.contains("defrag"));
        assert_eq!(defrag(&host(), &[touch(0.0), touch(0.01)]), None);
    }

    #[test]
    fn limits_nodes_and_kernel_settings_have_their_lines() {
        let contained = Host { limit_bytes: Some(8 << 30), cpu_limit: Some(2.5), ..host() };
        let said = lines(&contained, [500, 1000], [120, 300]);
        assert_eq!(said, "export ZK_ALLOC_MAX_BYTES=7372M; export RAYON_NUM_THREADS=2");
        let odd = Host { overcommit: Some(2), nodes: 2, max_map_count: Some(1000), ..host() };
        assert_eq!(lines(&odd, [500, 1000], [120, 300]).lines().count(), 2);
        assert_eq!(lines(&odd, [500, 1000], [120, 300]).split("; ").count(), 3);
    }
}
