//! `exec --profile`: which functions of a command cause its page faults, and which hold its memory under our library. The page faults come
//! from a run of the unmodified command, with any allocator. They are sampled with the kernel's software event (perf_event_open(2)),
//! together with their call chains.

use super::preload::{self, Candidate, Target};
use super::process::{self, Ran, Task};
use super::{Job, inherited};
use crate::arms::{OURS, Variables};
use crate::machine::process::{Sampler, page_bytes};
use crate::measure::{Interrupt, new_folder};
use crate::protocol::profiles::{folded_line, function_of, short};
use crate::report::{self, FunctionRow, FunctionTable};
use crate::results::format;
use anyhow::{Context, anyhow, bail};
use perf_event::data::Record;
use perf_event::events::Software;
use perf_event::{Builder, SampleFlag};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io, iter, thread};
use zk_alloc_profile::{Profile, Value};

/// The files of a profile, in its folder.
const PAGE: &str = "profile.html";
const FAULTS: &str = "page-faults.raw";
/// The folder into which our library writes the profile of each process.
const OURS_FOLDER: &str = "under-zk-alloc";
/// Maximum number of rows in the table.
const MAX_FUNCTIONS: usize = 10;

/// Runs the command twice, and returns the text for stdout.
pub(crate) fn profile(job: &Job, interrupt: &Interrupt) -> anyhow::Result<String> {
    let target = Target::of(&job.command)?;
    let (preloaded, _) = inherited();
    let name = target.name;
    process::adopt_orphans()?;
    let (folder, _) = new_folder(job.measured.out.as_deref(), &format!("profile-{name}"))?;
    let folder = folder.canonicalize().with_context(|| format!("cannot find {}", folder.display()))?;
    let run = |environment: &Variables, library: Option<&Path>| {
        let (preloaded, limit) = (preloaded.as_str(), job.timeout);
        let task = Task { command: &job.command, environment, preloaded, library, limit, ..Task::default() };
        process::run(&task, interrupt).with_context(|| format!("{name} failed"))
    };
    eprintln!("{name}: once as it is");
    let faults = sample_faults()?;
    let own = run(&[], None)?;
    let sampled = faults.end()?;
    let page_bytes = page_bytes();
    let Some((raw, share)) = sampled.largest(page_bytes) else {
        bail!("{name} takes too few page faults to sample any")
    };
    let raw_path = folder.join(FAULTS);
    fs::write(&raw_path, raw).with_context(|| format!("cannot write {}", raw_path.display()))?;
    let before = Profile::read(&raw_path)?;

    let ours = target.remark.and_then(|_| ours(job, &preloaded));
    let ours = ours.inspect_err(|reason| eprintln!("not run under {OURS}: {reason}")).ok();
    let under_ours = ours.map(|candidate| {
        eprintln!("{name}: once under {OURS}");
        let mut environment = candidate.variables();
        let place = folder.join(OURS_FOLDER);
        environment.push(("ZK_ALLOC_PROFILE".into(), place.display().to_string()));
        let ran = run(&environment, candidate.library.as_deref())?;
        anyhow::Ok((ran, largest(&place)))
    });
    let under_ours = under_ours.transpose()?;
    let peak = under_ours.as_ref().and_then(|(_, profile)| profile.as_ref());
    let functions = functions(&before, peak, page_bytes);
    let peak = peak.map(|profile| flame_graph(profile, Value::PeakSpace)).transpose()?;
    let title = format!("{name}: page faults by function");
    let facts = facts(&name, &own, under_ours.as_ref().map(|(ran, _)| ran), share, sampled.lost);
    let faults = flame_graph(&before, Value::FreshSpace)?;
    let page = report::faults_page(&title, &facts, &functions, faults.as_deref(), peak.flatten().as_deref());
    let path = folder.join(PAGE);
    fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(format!("{}\n\n{}\n\n{}\n", facts.join("\n"), functions.text(), path.display()))
}

/// Returns the arm with our library.
fn ours(job: &Job, preloaded: &str) -> Result<Candidate, String> {
    let candidate = Candidate { preloaded: preloaded.into(), ..preload::candidate(OURS, &job.library) };
    match &candidate.trouble {
        Some(trouble) => Err(format::outcome(trouble).unwrap_or_default()),
        None => Ok(candidate),
    }
}

/// Returns the profile with the highest peak in a folder, because one process usually does most of a command's work.
fn largest(folder: &Path) -> Option<Profile> {
    let paths = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let raw = paths.filter(|path| path.extension().is_some_and(|extension| extension == "raw"));
    // A process that was killed may have left an incomplete profile.
    let read = |path: PathBuf| Profile::read(&path).inspect_err(|error| eprintln!("left out: {error:#}")).ok();
    raw.filter_map(read).max_by_key(|profile| profile.total(Value::PeakSpace))
}

fn flame_graph(profile: &Profile, value: Value) -> anyhow::Result<Option<String>> {
    Ok(profile.flame_graph(value)?.map(|svg| String::from_utf8_lossy(&svg).into_owned()))
}

/// Formats the results of the two runs as lines of text.
fn facts(name: &str, own: &Ran, ours: Option<&Ran>, share: f64, lost: u64) -> Vec<String> {
    let fact = |how: String, ran: &Ran| {
        let [faults, wall] = [format::count(ran.end.spent.minflt), format::time(ran.end.at.as_nanos() as u64)];
        format!("{how}: {faults} page faults, {wall}, peak RSS {}.", format::bytes(ran.end.peak_rss_bytes))
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

/// Returns a table of the program's functions with the most faulted or live bytes. For each function, it has the page faults and the live
/// bytes at the peak under our library.
fn functions(before: &Profile, peak: Option<&Profile>, page_bytes: u64) -> FunctionTable<'static> {
    // The faulted and the live bytes, by the program's innermost function.
    let mut functions = BTreeMap::<String, [u64; 2]>::new();
    let mut add = |profile: &Profile, value, place: usize| {
        for line in profile.folded(value).lines() {
            let (calls, bytes) = folded_line(line);
            functions.entry(short(function_of(&calls))).or_default()[place] += bytes;
        }
    };
    add(before, Value::FreshSpace, 0);
    peak.iter().for_each(|peak| add(peak, Value::PeakSpace, 1));
    let mut functions: Vec<_> = functions.into_iter().collect();
    functions.sort_by_key(|&(_, [faulted, held])| std::cmp::Reverse(faulted.max(held)));
    let rows = functions.into_iter().take(MAX_FUNCTIONS).map(|(name, [faulted, held])| {
        let held = peak.map_or("-".into(), |_| format::mebibytes(held));
        FunctionRow { name, calls: &[], cells: vec![format::count(faulted / page_bytes), held] }
    });
    FunctionTable { header: "function|page faults|at the peak, under zk-alloc", rows: rows.collect() }
}

/// Number of page faults per sample.
const PERIOD: u64 = 16;
/// Time between two readings of the buffers. A buffer has room for the faults of at least 50 ms. The kernel lets each user lock a buffer of
/// this size per processor.
const EVERY: Duration = Duration::from_millis(5);
const BUFFER_BYTES: usize = 512 << 10;
const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

/// The page faults of a command's processes.
#[derive(Default)]
struct Sampled {
    processes: HashMap<u32, Process>,
    /// Number of samples for which the buffers had no room.
    lost: u64,
}

/// The page faults of one process.
#[derive(Default)]
struct Process {
    /// Executable mappings of files, as lines of `/proc/PID/maps`.
    mappings: Vec<String>,
    /// Number of samples by call chain, innermost address first.
    chains: HashMap<Vec<u64>, u64>,
}

/// Starts to sample the page faults of all processes that this thread starts.
fn sample_faults() -> anyhow::Result<Sampler<Sampled>> {
    let cpus = thread::available_parallelism().map_or(1, usize::from).max(online_cpus());
    let rings = (0..cpus).map(ring).collect::<io::Result<Vec<_>>>();
    let mut rings = rings.map_err(|error| {
        let paranoid = fs::read_to_string(PARANOID).unwrap_or_default();
        anyhow!(
            "the system refuses to sample page faults ({error}): {PARANOID} is {}, and must be 2 or less; a container may \
             also forbid the system call perf_event_open (seccomp)",
            if paranoid.is_empty() { "unknown" } else { paranoid.trim() }
        )
    })?;
    Ok(Sampler::begin(Sampled::default(), move |sampled: &mut Sampled, _| {
        for ring in &mut rings {
            while let Some(record) = ring.next_record() {
                record.parse_record().iter().for_each(|record| sampled.add(record));
            }
        }
        Some(EVERY)
    }))
}

/// Samples page faults on one processor, in programs that the calling thread starts.
fn ring(cpu: usize) -> io::Result<perf_event::Sampler> {
    let mut event = Builder::new(Software::PAGE_FAULTS_MIN);
    event.one_cpu(cpu).inherit(true).enable_on_exec(true).exclude_callchain_kernel(true).mmap(true).mmap2(true);
    event.sample_period(PERIOD).sample(SampleFlag::IP | SampleFlag::TID | SampleFlag::CALLCHAIN);
    event.build()?.sampled(BUFFER_BYTES)
}

/// Returns one more than the highest number of an online processor, from the kernel's list, such as `0-3,8`.
fn online_cpus() -> usize {
    let list = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let last = list.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    last.map_or(1, |last| last + 1)
}

impl Sampled {
    fn add(&mut self, record: &Record<'_>) {
        match record {
            Record::Sample(sample) => {
                if let (Some(process), Some(at), Some(chain)) = (sample.pid(), sample.ip(), sample.callchain()) {
                    self.fault(process, at, chain);
                }
            }
            Record::Mmap2(mapped) => {
                let (start, end, offset) = (mapped.addr, mapped.addr + mapped.len, mapped.pgoff);
                let path = String::from_utf8_lossy(&mapped.filename);
                let line = format!("{start:x}-{end:x} r-xp {offset:08x} 00:00 0 {path}\n");
                self.processes.entry(mapped.pid).or_default().mappings.push(line);
            }
            Record::Lost(lost) => self.lost += lost.lost,
            _ => {}
        }
    }

    /// Adds a page fault at the instruction `at`, with its call chain, innermost first.
    fn fault(&mut self, process: u32, at: u64, chain: &[u64]) {
        // The chain begins with the instruction itself. The other addresses are return addresses, which point after the call. Tools that
        // read a profile expect return addresses, so the first one becomes `at + 1`.
        let addresses = chain.iter().copied().filter(|address| (FIRST_ADDRESS..FIRST_MARK).contains(address));
        let outer = addresses.skip_while(|&address| address == at);
        let chain = iter::once(at + 1).chain(outer).collect();
        *self.processes.entry(process).or_default().chains.entry(chain).or_default() += 1;
    }

    /// Returns the profile of the process with the most page faults, and its share of all faults, from 0 to 1; `None` if there are no
    /// samples. The profile is in the raw format of `zk-alloc-profile`, and records the faulted pages of each call chain as fresh bytes.
    fn largest(&self, page_bytes: u64) -> Option<(String, f64)> {
        let all: u64 = self.processes.values().map(Process::samples).sum();
        let (id, largest) = self.processes.iter().max_by_key(|(id, process)| (process.samples(), **id))?;
        let samples = largest.samples();
        // A forked child has its parent's mappings, which the kernel does not report again. A process without mappings gets those of all
        // others.
        let inherited = self.processes.iter().filter(|(other, _)| largest.mappings.is_empty() && *other != id);
        let mappings = largest.mappings.iter().chain(inherited.flat_map(|(_, process)| &process.mappings));
        let mut text = "zk-alloc-profile 1\nmean_bytes 1\nmissed 0\n".to_owned();
        for (chain, samples) in &largest.chains {
            let addresses: String = chain.iter().map(|address| format!(" {address:x}")).collect();
            text += &format!("site 0 0 0 0 0 0 {} :{addresses}\n", samples * PERIOD * page_bytes);
        }
        text += "maps\n";
        text.extend(mappings.map(String::as_str));
        (samples > 0).then(|| (text, samples as f64 / all as f64))
    }
}

impl Process {
    fn samples(&self) -> u64 {
        self.chains.values().sum()
    }
}

/// No code is mapped below this address. A stack walk through code without frame pointers may end at such an address.
const FIRST_ADDRESS: u64 = 0x1000;
/// Entries of a call chain from this value on are not addresses. They mark the following calls as kernel or user code.
const FIRST_MARK: u64 = -4095_i64 as u64;

#[cfg(test)]
mod tests {
    use super::*;

    /// The text must have the format that `zk-alloc-profile` reads, and must not treat the kernel's marks in a call chain as addresses.
    #[test]
    fn the_profile_is_of_the_process_with_most_faults_and_has_its_mappings() {
        let mut sampled = Sampled::default();
        let mapping = "1000-3000 r-xp 00000400 00:00 0 /bin/prover\n";
        sampled.processes.entry(7).or_default().mappings.push(mapping.into());
        for (process, at) in [(7, 0x1233), (7, 0x1233), (8, 0x98), (7, 0x14ff)] {
            sampled.fault(process, at, &[-512_i64 as u64, at, 0x2000]);
        }
        let (text, share) = sampled.largest(4096).unwrap();
        assert_eq!(share, 0.75);
        assert!(text.contains(&format!("site 0 0 0 0 0 0 {} : 1234 2000\n", 2 * 16 * 4096)), "{text}");
        assert!(text.ends_with("maps\n1000-3000 r-xp 00000400 00:00 0 /bin/prover\n"), "{text}");
        assert!(Sampled::default().largest(4096).is_none());
    }

    /// Samples a real command, under the kernel that the test runs on.
    #[test]
    fn the_faults_of_a_command_are_sampled() {
        let faults = match sample_faults() {
            Ok(faults) => faults,
            Err(refused) => return eprintln!("skipped: {refused}"),
        };
        let mut command = std::process::Command::new("sort");
        let status = command.arg("/proc/self/exe").stdout(std::process::Stdio::null()).status();
        assert!(status.unwrap().success());
        let (text, _) = faults.end().unwrap().largest(4096).expect("a program has page faults");
        assert!(text.contains("/sort") && text.contains("site 0 0 0 0 0 0 "), "{text}");
    }
}
