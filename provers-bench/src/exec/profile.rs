//! `exec --profile`: which functions of a command take its page faults, and which hold its memory under our library.

use super::faults;
use super::libraries::Candidate;
use super::process::{self, Ran, Task};
use super::target::Target;
use super::{InheritedEnvironment, Job, candidates};
use crate::arms::{OURS, Variables};
use crate::machine::process::page_bytes;
use crate::measure::{Interrupt, new_folder};
use crate::protocol::profiles::{function_of, short};
use crate::report::{self, Style};
use crate::results::format;
use anyhow::{Context, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use zk_alloc_profile::{Profile, Value};

/// The files of a profile, in its folder.
const PAGE: &str = "profile.html";
const FAULTS: &str = "page-faults.raw";
/// The folder in which our library leaves the profile of each process.
const OURS_FOLDER: &str = "under-zk-alloc";
/// The rows of the table.
const MAX_FUNCTIONS: usize = 10;

/// Runs the command twice, and returns the text for stdout.
pub(crate) fn profile(job: &Job, interrupt: &Interrupt) -> anyhow::Result<String> {
    let target = Target::of(&job.command)?;
    let inherited = InheritedEnvironment::observe();
    let name = target.name();
    process::adopt_orphans()?;
    let (folder, _) = new_folder(job.measured.out.as_deref(), &format!("profile-{name}"))?;
    let folder = folder.canonicalize().with_context(|| format!("cannot find {}", folder.display()))?;
    let run = |environment: &Variables, library: Option<&Path>| {
        let (preloaded, limit) = (inherited.preloaded.as_str(), job.timeout);
        let task = Task { command: &job.command, environment, preloaded, library, limit, ..Task::default() };
        process::run(&task, interrupt).with_context(|| format!("{name} failed"))
    };
    eprintln!("{name}: once as it is");
    let faults = faults::begin()?;
    let own = run(&[], None)?;
    let sampled = faults.end()?;
    let page_bytes = page_bytes();
    let Some((raw, share)) = sampled.largest(page_bytes) else {
        bail!("{name} takes too few page faults to sample any")
    };
    let raw_path = folder.join(FAULTS);
    fs::write(&raw_path, raw).with_context(|| format!("cannot write {}", raw_path.display()))?;
    let before = Profile::read(&raw_path)?;

    let ours = match &target.obstacle {
        Some(obstacle) => Err(obstacle.clone()),
        None => ours(job, &inherited.preloaded),
    };
    let under_ours = match ours {
        Err(reason) => {
            eprintln!("not run under {OURS}: {reason}");
            None
        }
        Ok(candidate) => {
            eprintln!("{name}: once under {OURS}");
            let mut environment = candidate.variables();
            let place = folder.join(OURS_FOLDER);
            environment.push(("ZK_ALLOC_PROFILE".into(), place.display().to_string()));
            let ran = run(&environment, candidate.library.as_deref())?;
            Some((ran, largest(&place)))
        }
    };
    let peak = under_ours.as_ref().and_then(|(_, profile)| profile.as_ref());
    let functions = functions(&before, peak, page_bytes);
    let peak = peak.map(|profile| flame_graph(profile, Value::PeakSpace)).transpose()?;
    let title = format!("{name}: page faults by function");
    let facts = facts(&name, &own, under_ours.as_ref().map(|(ran, _)| ran), share, sampled.lost);
    let functions = &functions[..functions.len().min(MAX_FUNCTIONS)];
    let faults = flame_graph(&before, Value::FreshSpace)?;
    let page = report::faults_page(&title, &facts, functions, faults.as_deref(), peak.flatten().as_deref());
    let path = folder.join(PAGE);
    fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(format!("{}\n\n{}\n\n{}\n", facts.join("\n"), table(functions), path.display()))
}

/// Our library, as an arm.
fn ours(job: &Job, preloaded: &str) -> Result<Candidate, String> {
    let found = candidates(&Job { allocators: vec![OURS.into()], ..job.clone() }, preloaded);
    let candidate = found.into_iter().next().ok_or("there is no such library")?;
    match &candidate.trouble {
        Some(trouble) => Err(format::outcome(trouble).unwrap_or_default()),
        None => Ok(candidate),
    }
}

/// The profile with the highest peak in a folder: one process of a command does most of its work.
fn largest(folder: &Path) -> Option<Profile> {
    let entries = fs::read_dir(folder).ok()?;
    let paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    let raw = paths.iter().filter(|path| path.extension().is_some_and(|extension| extension == "raw"));
    // A process that was killed may have left a part of its profile.
    let read = |path: &PathBuf| Profile::read(path).inspect_err(|error| eprintln!("left out: {error:#}")).ok();
    raw.filter_map(read).max_by_key(|profile| profile.total(Value::PeakSpace))
}

fn flame_graph(profile: &Profile, value: Value) -> anyhow::Result<Option<String>> {
    Ok(profile.flame_graph(value)?.map(|svg| String::from_utf8_lossy(&svg).into_owned()))
}

/// The results of the two runs, as lines of text.
fn facts(name: &str, own: &Ran, ours: Option<&Ran>, share: f64, lost: u64) -> Vec<String> {
    let fact = |how: String, ran: &Ran| {
        let [faults, wall] = [format::count(ran.spent.minflt), format::time(ran.wall.as_nanos() as u64)];
        format!("{how}: {faults} page faults, {wall}, peak RSS {}.", format::bytes(ran.peak_rss_bytes))
    };
    let mut facts = vec![fact(format!("{name} as it is"), own)];
    facts.extend(ours.map(|ran| fact(format!("Under {OURS}, with sampling"), ran)));
    if share < 0.95 {
        facts.push(format!("The functions are those of one process, which takes {:.0}% of the faults.", share * 100.0));
    }
    if lost > 0 {
        facts.push(format!("{} samples were lost.", format::count(lost)));
    }
    facts
}

/// A function, its page faults, and the bytes that it holds at the peak under our library.
type Function = (String, u64, Option<u64>);

/// The program's functions, those with the most faulted or held bytes first.
fn functions(before: &Profile, peak: Option<&Profile>, page_bytes: u64) -> Vec<Function> {
    let faulted = by_function(before, Value::FreshSpace);
    let peak = peak.map(|peak| by_function(peak, Value::PeakSpace));
    let names: BTreeSet<_> = faulted.keys().chain(peak.iter().flat_map(BTreeMap::keys)).collect();
    let of = |figures: &BTreeMap<String, u64>, name: &String| figures.get(name).copied().unwrap_or(0);
    let mut functions: Vec<_> =
        names.into_iter().map(|name| (name, of(&faulted, name), peak.as_ref().map(|peak| of(peak, name)))).collect();
    functions.sort_by_key(|(_, faulted, peak)| std::cmp::Reverse((*faulted).max(peak.unwrap_or(0))));
    functions.into_iter().map(|(name, faulted, peak)| (name.clone(), faulted / page_bytes, peak)).collect()
}

/// A figure in bytes by the program's innermost function.
fn by_function(profile: &Profile, value: Value) -> BTreeMap<String, u64> {
    let mut functions = BTreeMap::<String, u64>::new();
    for line in profile.folded(value).lines() {
        let (calls, bytes) = line.rsplit_once(' ').unwrap_or((line, "0"));
        let calls: Vec<_> = calls.split(';').map(str::to_owned).collect();
        let bytes: u64 = bytes.parse().unwrap_or(0);
        *functions.entry(short(function_of(&calls))).or_default() += bytes;
    }
    functions
}

fn table(functions: &[Function]) -> String {
    let rows = functions.iter().map(|(function, faults, peak)| {
        [function.clone(), format::count(*faults), peak.map_or("-".into(), format::mebibytes)]
    });
    report::drawn("function|page faults|at the peak, under zk-alloc", rows, Style::Terminal)
}
