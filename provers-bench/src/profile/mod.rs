//! The command `profile`: shows where a prover's memory goes, by stage and by call site, on one page.
//!
//! The arm `zk-alloc-profile` makes two proofs. The child writes the profile's files ([`child`](crate::child)), from which the driver draws
//! the page.

use crate::arms;
use crate::measure::{Interrupt, binaries, new_folder, process};
use crate::plan::{self, Contestant, Size, UsageError, bytes, whole};
use crate::protocol::profiles::{FILE, FIRST, FOLDER, Profile, TREE, WARM};
use crate::report;
use crate::workloads::Prover;
use anyhow::Context;
use clap::Args;
use std::fs;
use std::path::{Path, PathBuf};

/// Options of `profile`.
#[derive(Args, Debug)]
pub(crate) struct ProfileArgs {
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
    /// Mean distance between samples in bytes, at most 32m; the suffixes k and m are powers of 1024. Requests of 1 MiB and more are always
    /// sampled
    #[arg(long, value_name = "BYTES", default_value = "64k", value_parser = mean_bytes)]
    mean: u64,
    /// Create the profile's folder in DIR [default: prove-bench in cargo's target directory]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Folder of an earlier profile to compare with: shows which call sites grew or shrank
    #[arg(long, value_name = "DIR")]
    against: Option<PathBuf>,
}

fn mean_bytes(given: &str) -> Result<u64, String> {
    let valid = bytes(given).ok().filter(|bytes| (1..=32 << 20).contains(bytes));
    valid.ok_or_else(|| "valid are sizes like 512, 64k and 2m, from 1 to 32m".into())
}

/// The arm whose allocator samples the call sites of allocations.
const ARM: &str = "zk-alloc-profile";
/// The page and its timeline, in the profile's folder.
const PAGE: &str = "profile.html";
const PICTURE: &str = "timeline.svg";
/// A cold proof and a warm one. The warm proof finds the prover's caches filled, as all proofs of a service but the first do.
const PROOFS: u32 = 2;

/// Profiles two proofs, writes the page, and returns the text for stdout.
pub(crate) fn run(provers: &'static [Prover], args: &ProfileArgs) -> anyhow::Result<String> {
    let prover = plan::find("prover", &args.prover, provers, |prover| prover.name)?;
    let first = prover.workloads.first().map(|spec| spec.name.to_owned());
    let name = args.workload.clone().or(first).unwrap_or_default();
    let workload = plan::sized(prover, &[name], args.log_rows.map_or(Size::Own, Size::LogRows))?[0];
    let arm = arms::named(ARM).ok_or_else(|| {
        UsageError(
            "this bench was built without its feature profile: `cargo prove-bench profile PROVER` enables it".into(),
        )
    })?;
    let interrupt = Interrupt::on_signals()?;
    let against = args.against.as_deref().map(read).transpose()?;
    let contestant = Contestant { label: ARM.into(), arm };
    let binaries = binaries::folder(&[contestant], &interrupt)?;
    let (folder, _) = new_folder(args.out.as_deref(), &format!("profile-{}", prover.name))?;
    // The child may use another working directory, so the path must be absolute.
    let folder = folder.canonicalize().with_context(|| format!("cannot find {}", folder.display()))?;
    let mut environment = vec![
        (FOLDER.to_owned(), folder.display().to_string()),
        ("ZK_ALLOC_PROFILE_BYTES".to_owned(), args.mean.to_string()),
    ];
    environment.extend(args.threads.map(|threads| ("RAYON_NUM_THREADS".to_owned(), threads.to_string())));
    let (name, log_rows) = (workload.spec.name, workload.log_rows);
    process::prove((&binaries, arm), &environment, (prover.name, name, log_rows), PROOFS, &interrupt)?;
    let of = format!("{} {name} 2^{log_rows}", prover.name);
    let profile = Profile { of, ..read(&folder)? };
    fs::write(folder.join(WARM).join(FILE), serde_json::to_string(&profile)?).context("cannot write the profile")?;
    let picture = |proof: &str, name: &str| fs::read_to_string(folder.join(proof).join(name)).ok();
    let tree = fs::read_to_string(folder.join(WARM).join(TREE)).context("the proof wrote no tree of stages")?;
    let title = format!("{}: where the memory goes", profile.of);
    let (peak, fresh) = (picture(WARM, "peak_space.svg"), picture(FIRST, "fresh_space.svg"));
    let graphs = (peak.as_deref(), fresh.as_deref());
    let page = report::profile_page(&title, &profile, against.as_ref(), &tree, graphs);
    let path = folder.join(PAGE);
    for (path, text) in [(&path, page), (&folder.join(PICTURE), report::profile_picture(&profile))] {
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let text = report::profile_text(&profile, against.as_ref(), &tree);
    Ok(format!("{title}\n\n{text}\n{}\n", path.display()))
}

/// Reads the profile in a folder.
fn read(folder: &Path) -> anyhow::Result<Profile> {
    let path = folder.join(WARM).join(FILE);
    let text =
        fs::read_to_string(&path).with_context(|| format!("no profile there: cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not a profile of this version", path.display()))
}
