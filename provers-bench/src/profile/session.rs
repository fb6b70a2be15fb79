//! Makes the two proofs, and the page.

use super::cli::Job;
use super::table;
use crate::arms;
use crate::measure::binaries;
use crate::measure::interrupt::Interrupt;
use crate::measure::process::{self, Failure};
use crate::plan::Contestant;
use crate::protocol::profiles::{FILE, FIRST, FOLDER, Profile, TREE, WARM};
use crate::report::{self, ProfilePage};
use crate::run::new_folder;
use anyhow::{Context, bail};
use std::fs;
use std::path::Path;

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
    let against = job.against.as_deref().map(read).transpose()?;
    let arm = arms::named(ARM).context("this bench was built without its feature profile")?;
    let contestant = Contestant { label: ARM.into(), arm };
    let binaries = binaries::folder(&[contestant], &interrupt)?;
    let (folder, _) = new_folder(job.out.as_deref(), &format!("profile-{}", job.prover.name))?;
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
        ("ZK_ALLOC_PROFILE_BYTES".to_owned(), job.mean_bytes.to_string()),
    ];
    environment.extend(arm.environment.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())));
    environment.extend(job.threads.map(|threads| ("RAYON_NUM_THREADS".to_owned(), threads.to_string())));
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
