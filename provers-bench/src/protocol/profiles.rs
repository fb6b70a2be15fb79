//! Defines `profile.json`, which shows where a proof's memory goes, by stage and by call site. The profiled process writes the file, and
//! the driver draws the page from it.

use regex::{Captures, Regex};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::LazyLock;

/// The environment variable that tells a profiled process where to write its files. The driver sets it.
pub(crate) const FOLDER: &str = "PROVE_BENCH_PROFILE_FOLDER";
/// The folders for the files of the first proof and of the warm one, inside the profile's folder.
pub(crate) const FIRST: &str = "first-proof";
pub(crate) const WARM: &str = "warm-proof";
/// Files of the warm proof: the profile, and the tree of its stages.
pub(crate) const FILE: &str = "profile.json";
pub(crate) const TREE: &str = "stages.txt";

/// The profile of a warm proof.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Profile {
    /// The prover, the workload and its size. The driver fills this in.
    #[serde(default)]
    pub(crate) of: String,
    /// Peak of the live bytes, summed over all call sites.
    pub(crate) peak_bytes: u64,
    /// The part of `peak_bytes` that came from the backing allocator.
    pub(crate) backing_bytes: u64,
    /// The mean distance between samples, in bytes.
    pub(crate) mean_bytes: u64,
    /// Number of samples that could not be recorded, and so are missing from the profile.
    pub(crate) missed: u64,
    /// The stages, in the order in which they began.
    pub(crate) stages: Vec<Stage>,
    /// Live and resident memory over time, in chronological order.
    pub(crate) levels: Vec<Level>,
    /// The parts of resident memory over time, in chronological order.
    #[serde(default)]
    pub(crate) parts: Vec<Parts>,
    /// The call sites with live bytes at the peak, the largest first.
    pub(crate) sites: Vec<CallSite>,
}

/// A `tracing` span of the proving thread.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Stage {
    pub(crate) name: String,
    /// The number of enclosing spans.
    pub(crate) depth: u32,
    /// Start of the span, in nanoseconds since the proof began.
    pub(crate) begin_ns: u64,
    pub(crate) end_ns: u64,
}

/// The arena's memory at one moment.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Level {
    /// Nanoseconds since the proof began.
    pub(crate) at_ns: u64,
    pub(crate) live_bytes: u64,
    pub(crate) resident_bytes: u64,
}

/// The parts of the arena's resident memory at one moment.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Parts {
    /// Nanoseconds since the proof began.
    pub(crate) at_ns: u64,
    /// Bytes of each part, in the order of [`PARTS`].
    pub(crate) bytes: [u64; PARTS.len()],
    /// Resident memory as reported by the kernel; `None` if the kernel does not report it.
    pub(crate) kernel_bytes: Option<u64>,
}

/// The names of the parts.
pub(crate) const PARTS: [&str; 6] =
    ["live blocks", "live page runs", "thread caches", "free in slabs", "free page runs", "prefaulted"];

impl Parts {
    pub(crate) fn sum(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// Returns the bytes in live blocks and page runs.
    pub(crate) fn live(&self) -> u64 {
        self.bytes[0] + self.bytes[1]
    }
}

/// A place in the program that allocates memory.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct CallSite {
    /// Its call chain, from the outermost function to the innermost.
    pub(crate) calls: Vec<String>,
    /// Its live bytes at the peak.
    pub(crate) peak_bytes: u64,
    pub(crate) allocations: u64,
    /// The stage in which it allocated most, as the names of nested spans from the outermost to the innermost; empty if it allocated
    /// outside all spans.
    pub(crate) stage: Vec<String>,
    pub(crate) lifetime: Lifetime,
}

/// When a call site's memory is freed. It counts as freed when less than half of its live bytes at the peak are still live.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Lifetime {
    /// Before its stage ended.
    Stage,
    /// After its stage, and before the proof was dropped.
    Proof,
    /// Never; the memory is still live after the proof was dropped.
    Survives,
}

impl Lifetime {
    /// Returns the lifetime in words.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Stage => "dies in its stage",
            Self::Proof => "dies in the proof",
            Self::Survives => "survives the proof",
        }
    }
}

impl CallSite {
    /// Returns the short name of the function that best identifies the call site.
    pub(crate) fn function(&self) -> String {
        short(function_of(&self.calls))
    }
}

/// Call sites in one function that share a stage and a lifetime.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group<'a> {
    /// The largest call site of the group.
    pub(crate) site: &'a CallSite,
    pub(crate) sites: usize,
    pub(crate) peak_bytes: u64,
    pub(crate) allocations: u64,
}

impl Profile {
    /// Returns a note if `earlier` is the profile of another prover, workload or size.
    pub(crate) fn other_than(&self, earlier: &Self) -> Option<String> {
        (earlier.of != self.of).then(|| format!("The earlier profile is of {}.", earlier.of))
    }

    /// Groups the call sites by function, stage and lifetime; the largest group comes first.
    pub(crate) fn groups(&self) -> Vec<Group<'_>> {
        let mut groups = HashMap::new();
        for site in &self.sites {
            let key = (site.function(), &site.stage, site.lifetime);
            let group = groups.entry(key).or_insert(Group { site, sites: 0, peak_bytes: 0, allocations: 0 });
            group.sites += 1;
            group.peak_bytes += site.peak_bytes;
            group.allocations += site.allocations;
        }
        let mut groups: Vec<_> = groups.into_values().collect();
        groups.sort_by_key(|group| (Reverse(group.peak_bytes), &group.site.calls));
        groups
    }
}

/// A call site whose bytes at the peak differ between two profiles.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Move<'a> {
    pub(crate) site: &'a CallSite,
    pub(crate) before_bytes: u64,
    pub(crate) after_bytes: u64,
}

/// Returns the call sites whose bytes at the peak differ between two profiles, the largest change first. Call sites are
/// matched by their call chain.
pub(crate) fn moves<'a>(before: &'a Profile, after: &'a Profile) -> Vec<Move<'a>> {
    let peak_bytes = |profile: &Profile, site: &CallSite| {
        let found = profile.sites.iter().find(|known| known.calls == site.calls);
        found.map_or(0, |found| found.peak_bytes)
    };
    let is_gone = |site: &&CallSite| peak_bytes(after, site) == 0;
    let sites = after.sites.iter().chain(before.sites.iter().filter(is_gone));
    let moved =
        sites.map(|site| Move { site, before_bytes: peak_bytes(before, site), after_bytes: peak_bytes(after, site) });
    let mut moved: Vec<_> = moved.filter(|moved| moved.before_bytes != moved.after_bytes).collect();
    moved.sort_by_key(|moved| Reverse(moved.before_bytes.abs_diff(moved.after_bytes)));
    moved
}

/// Splits a line of folded stacks, `outermost;...;innermost VALUE`, into its functions and its value.
#[cfg(any(test, feature = "profile"))]
pub(crate) fn folded_line(line: &str) -> (Vec<String>, u64) {
    let (functions, figure) = line.rsplit_once(' ').unwrap_or((line, ""));
    (functions.split(';').map(str::to_owned).collect(), figure.parse().unwrap_or(0))
}

/// Crates of libraries and of the bench, and prefixes of C runtime functions. Functions of these do not identify a call site.
const LIBRARIES: [&str; 9] =
    ["alloc", "core", "std", "rayon", "rayon_core", "hashbrown", "tracing", "tracing_core", "provers_bench"];
const RUNTIME: [&str; 5] = ["0x", "_start", "__libc_start", "clone3", "start_thread"];

/// Returns the innermost function in this chain that is neither a library's nor the C runtime's, or else the innermost function.
pub(crate) fn function_of(calls: &[String]) -> &str {
    let is_own = |call: &&String| {
        let path = call.trim_start_matches('<').split_once("::");
        !path.is_some_and(|(first, _)| LIBRARIES.contains(&first))
            && !RUNTIME.iter().any(|prefix| call.starts_with(prefix))
    };
    let found = calls.iter().rev().find(is_own).or_else(|| calls.last());
    found.map_or("[no call site]", String::as_str)
}

/// Returns a function's name without generic arguments. `<T as Trait>` becomes `T`, and `<impl Trait for T>` becomes `T` too.
pub(crate) fn short(name: &str) -> String {
    // Matches an innermost pair of angle brackets and the character or `::` before it. The `>` of an arrow does not close a bracket.
    static BRACKETS: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(\w|::)?<((?:->|[^<>])*)>").expect("a valid expression"));
    let replaced = |found: &Captures<'_>| {
        let (before, inner) = (found.get(1).map_or("", |before| before.as_str()), &found[2]);
        match (before, inner.strip_prefix("impl ")) {
            ("" | "::", Some(block)) => {
                let path = block.rsplit(" for ").next().unwrap_or_default();
                format!("{before}{}", path.rsplit("::").next().unwrap_or_default())
            }
            ("", None) => inner.split(" as ").next().unwrap_or_default().to_owned(),
            ("::", None) => String::new(),
            _ => before.to_owned(),
        }
    };
    let mut short = name.to_owned();
    while let Cow::Owned(shorter) = BRACKETS.replace_all(&short, replaced) {
        short = shorter;
    }
    short
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn site(calls: &[&str], peak_bytes: u64) -> CallSite {
        let calls = calls.iter().map(|&call| call.to_owned()).collect();
        CallSite { calls, peak_bytes, allocations: 1, stage: vec!["commit".into()], lifetime: Lifetime::Proof }
    }

    /// Most memory is allocated by functions such as `Vec::with_capacity`, whose names reveal nothing about the prover. A short name keeps
    /// the type and drops the generic arguments.
    #[test]
    fn a_call_site_is_named_after_the_provers_own_function() {
        let of_an_impl = "tree::batch::<impl mmcs::Mmcs<<P as Packed>::Value> for tree::Mmcs<P, _>>::commit";
        for (calls, expected) in [
            (
                "main;prover::commit;rayon_core::join;<alloc::vec::Vec<T> as core::iter::Extend<T>>::extend",
                "prover::commit",
            ),
            ("prover::commit;tracing::span::Span::in_scope", "prover::commit"),
            ("start_thread;std::thread::run", "std::thread::run"),
            ("prover::commit::<F, G<H>>", "prover::commit"),
            ("prover::commit::{{closure}}", "prover::commit::{{closure}}"),
            ("<alloc::vec::Vec<T> as core::iter::Extend<T>>::extend", "alloc::vec::Vec::extend"),
            (of_an_impl, "tree::batch::Mmcs::commit"),
            ("tree::<impl tree::Tree<T>>::new", "tree::Tree::new"),
            ("<F as core::ops::Fn<(u32,)>>::call::<fn(u8) -> u8>", "F::call"),
            ("a < b", "a < b"),
        ] {
            let (calls, bytes) = folded_line(&format!("{calls} 4096"));
            assert_eq!((short(function_of(&calls)), bytes), (expected.to_owned(), 4096));
        }
    }
}
