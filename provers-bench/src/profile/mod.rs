//! The command `profile`: where a prover's memory goes, by stage and by call site, on one page.
//!
//! The arm `zk-alloc-profile` makes two proofs. The process writes its files ([`child`](crate::child)), and the driver
//! draws the page from them.

mod table;

use crate::arms;
use crate::measure::binaries;
use crate::measure::interrupt::Interrupt;
use crate::measure::process::{self, Failure};
use crate::plan::Contestant;
use crate::plan::values::{bytes, whole};
use crate::plan::{self, Size, SizedWorkload, UsageError};
use crate::protocol::profiles::{FILE, FIRST, FOLDER, Profile, TREE, WARM};
use crate::report::{self, ProfilePage};
use crate::run::new_folder;
use crate::workloads::Prover;
use anyhow::{Context, bail};
use clap::{ArgMatches, Args, Command};
use std::fs;
use std::path::{Path, PathBuf};

const NAME: &str = "profile";

/// Options of `profile`.
#[derive(Args, Debug)]
struct ProfileArgs {
    /// Prover to profile
    #[arg(value_name = "PROVER")]
    prover: String,
    /// Workload to profile [default: the prover's first]
    #[arg(long, value_name = "NAME")]
    workload: Option<String>,
    /// Rows of the trace as a power of two, 2^N [default: the workload's own]
    #[arg(long, value_name = "N")]
    log_rows: Option<u32>,
    /// Threads of the prover's pool [default: one per core]
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1..=1024))]
    threads: Option<u64>,
    /// Mean distance of samples in bytes, at most 32m; the suffixes k and m are powers of 1024. Requests of 1 MiB and more are always
    /// sampled
    #[arg(long, value_name = "BYTES", default_value = "64k", value_parser = mean_bytes)]
    mean: u64,
    /// Folder for the profile's own folder [default: prove-bench in cargo's target directory]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Folder of an earlier profile: shows where the peak moved
    #[arg(long, value_name = "DIR")]
    against: Option<PathBuf>,
}

/// A requested profile.
#[derive(Debug)]
pub(crate) struct Job {
    prover: &'static Prover,
    workload: SizedWorkload,
    args: ProfileArgs,
}

pub(crate) fn command() -> Command {
    ProfileArgs::augment_args(Command::new(NAME))
        .about("Where a prover's memory goes, by stage and by call site: two proofs, and one page")
        .after_help("Exit code 0: both proofs were verified; 1: one failed; 2: wrong usage; 130: interrupted.")
}

pub(crate) fn job(provers: &'static [Prover], name: &str, matches: &ArgMatches) -> Option<Result<Job, UsageError>> {
    (name == NAME).then(|| wanted(provers, plan::parsed(matches)?))
}

fn mean_bytes(given: &str) -> Result<u64, String> {
    let valid = bytes(given).ok().filter(|bytes| (1..=32 << 20).contains(bytes));
    valid.ok_or_else(|| "valid are sizes like 512, 64k and 2m, from 1 to 32m".into())
}

fn wanted(provers: &'static [Prover], args: ProfileArgs) -> Result<Job, UsageError> {
    let prover = plan::find("prover", &args.prover, provers, |prover| prover.name)?;
    let first = prover.workloads.first().map(|spec| spec.name.to_owned());
    let name = args.workload.clone().or(first).unwrap_or_default();
    let workloads = plan::workloads(prover, &[name], args.log_rows.map_or(Size::Own, Size::LogRows))?;
    if !cfg!(feature = "profile") {
        let text =
            "this bench was built without its feature profile: `cargo prove-bench profile PROVER` builds it with it";
        return Err(UsageError::Other(text.into()));
    }
    Ok(Job { prover, workload: workloads[0], args })
}

/// The arm that samples its call sites.
const ARM: &str = "zk-alloc-profile";
/// The page and its timeline, in the profile's folder.
const PAGE: &str = "profile.html";
const PICTURE: &str = "timeline.svg";
/// The first proof, and a warm one. The warm one has its caches, so it is the one that repeats in a service.
const PROOFS: u32 = 2;

/// Runs the job, and returns the text for stdout.
pub(crate) fn run(job: &Job) -> anyhow::Result<String> {
    let interrupt = Interrupt::on_signals()?;
    let against = job.args.against.as_deref().map(read).transpose()?;
    let arm = arms::named(ARM).context("this bench was built without its feature profile")?;
    let contestant = Contestant { label: ARM.into(), arm };
    let binaries = binaries::folder(&[contestant], &interrupt)?;
    let (folder, _) = new_folder(job.args.out.as_deref(), &format!("profile-{}", job.prover.name))?;
    // The child may use another working directory, so the path must be absolute.
    let folder = folder.canonicalize().with_context(|| format!("cannot find {}", folder.display()))?;
    prove(job, arm, &binaries, &folder, &interrupt)?;
    let profile = Profile { of: workload(job), ..read(&folder)? };
    fs::write(folder.join(WARM).join(FILE), serde_json::to_string(&profile)?).context("cannot write the profile")?;
    let picture = |proof: &str, name: &str| fs::read_to_string(folder.join(proof).join(name)).ok();
    let tree = fs::read_to_string(folder.join(WARM).join(TREE)).context("the proof left no tree of stages")?;
    let title = format!("{}: where the memory goes", profile.of);
    let page = ProfilePage {
        title: &title,
        profile: &profile,
        tree: &tree,
        peak: picture(WARM, "peak_space.svg"),
        fresh: picture(FIRST, "fresh_space.svg"),
        against: against.as_ref(),
    };
    let path = folder.join(PAGE);
    for (path, text) in
        [(&path, report::profile_page(&page)), (&folder.join(PICTURE), report::profile_picture(&profile))]
    {
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let moved = against.map_or_else(String::new, |before| table::moved(&before, &profile));
    Ok(format!("{title}\n\n{tree}\n{}{moved}\n{}\n", table::sites(&profile), path.display()))
}

fn workload(job: &Job) -> String {
    format!("{} {} 2^{}", job.prover.name, job.workload.spec.name, job.workload.log_rows)
}

fn prove(job: &Job, arm: &arms::Arm, binaries: &Path, folder: &Path, interrupt: &Interrupt) -> Result<(), Failure> {
    let mut environment = vec![
        (FOLDER.to_owned(), folder.display().to_string()),
        ("ZK_ALLOC_PROFILE_BYTES".to_owned(), job.args.mean.to_string()),
    ];
    environment.extend(arm.environment.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())));
    environment.extend(job.args.threads.map(|threads| ("RAYON_NUM_THREADS".to_owned(), threads.to_string())));
    let proved = (ARM, job.prover.name, job.workload);
    process::prove(&binaries.join(arm.binary), &environment, proved, PROOFS, interrupt)
}

/// Reads the profile in a folder.
fn read(folder: &Path) -> anyhow::Result<Profile> {
    let path = folder.join(WARM).join(FILE);
    let text =
        fs::read_to_string(&path).with_context(|| format!("no profile there: cannot read {}", path.display()))?;
    match serde_json::from_str(&text) {
        Ok(profile) => Ok(profile),
        Err(error) => bail!("{} is no profile of this version: {error}", path.display()),
    }
}
