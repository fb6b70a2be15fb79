//! Makes the two proofs, and the page.

use super::cli::Job;
use super::table;
use crate::arms;
use crate::measure::binaries;
use crate::measure::interrupt::Interrupt;
use crate::measure::process::{ChildProcess, Failure};
use crate::plan::Contestant;
use crate::protocol::Request;
use crate::protocol::profiles::{FILE, FIRST, FOLDER, Profile, TREE, WARM};
use crate::report::{self, ProfilePage};
use crate::run::new_folder;
use crate::together::Concurrent;
use anyhow::{Context, bail};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The arm that samples its call sites.
const ARM: &str = "zk-alloc-profile";
/// Longest wait for one proof. No earlier time exists to derive a limit from.
const PATIENCE: Duration = Duration::from_secs(3600);
/// The page and its timeline, in the profile's folder.
const PAGE: &str = "profile.html";
const PICTURE: &str = "timeline.svg";
/// A warm proof has its caches, so it is the one that repeats in a service.
const PROOFS: [&str; 2] = ["first proof", "warm proof"];

/// Runs the job, and returns the text for stdout; `None` if the user stopped it.
pub(crate) fn run(job: &Job) -> anyhow::Result<Option<String>> {
    let interrupt = Interrupt::on_signals()?;
    let against = job.against.as_deref().map(read).transpose()?;
    let arm = arms::named(ARM).context("this bench was built without its feature profile")?;
    let contestant = Contestant { label: ARM.into(), arm };
    let Some(binaries) = binaries::folder(&[contestant], &interrupt)? else { return Ok(None) };
    let (folder, _) = new_folder(job.out.as_deref(), &format!("profile-{}", job.prover.name))?;
    // The child may use another working directory, so the path must be absolute.
    let folder = folder.canonicalize().with_context(|| format!("cannot find {}", folder.display()))?;
    match prove(job, arm, &binaries, &folder, &interrupt) {
        Err(Failure::Interrupted) => return Ok(None),
        proved => proved?,
    }
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
    Ok(Some(format!("{title}\n\n{tree}\n{}{moved}\n{}\n", table::sites(&profile), path.display())))
}

fn workload(job: &Job) -> String {
    format!("{} {} 2^{}", job.prover.name, job.workload.spec.name, job.workload.log_rows)
}

fn prove(job: &Job, arm: &arms::Arm, binaries: &Path, folder: &Path, interrupt: &Interrupt) -> Result<(), Failure> {
    let mut environment = vec![
        (FOLDER.to_owned(), folder.display().to_string()),
        ("ZK_ALLOC_PROFILE_BYTES".to_owned(), job.mean_bytes.to_string()),
    ];
    environment.extend(arm.environment.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())));
    environment.extend(job.threads.map(|threads| ("RAYON_NUM_THREADS".to_owned(), threads.to_string())));
    let mut child = ChildProcess::start(&binaries.join(arm.binary), &environment, interrupt)?;
    let setup = Request::Setup {
        arm: ARM.into(),
        prover: job.prover.name.into(),
        workload: job.workload.spec.name.into(),
        log_rows: job.workload.log_rows,
        concurrent: Concurrent::default(),
        requires: Vec::new(),
        stack_bytes: 0,
    };
    child.set_up(&setup, PATIENCE)?;
    for (round, name) in (0..).zip(PROOFS) {
        let (sample, refusal) = child.prove(round, u64::from(round), PATIENCE)?;
        if let Some(reason) = refusal {
            return Err(Failure::Workload(format!("the {name} was refused: {reason}")));
        }
        eprintln!("{name}: verified, {:.1} s", sample.wall_ns as f64 / 1e9);
    }
    child.finish().map(|_| ())
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
