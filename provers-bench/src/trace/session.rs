//! Records traces, from the driver: the recorder's binary makes the proofs and writes the trace.

use crate::arms::Arm;
use crate::child::recording::{MIN_BYTES, PATH, TITLE};
use crate::measure::binaries;
use crate::measure::interrupt::Interrupt;
use crate::measure::process::{ChildProcess, Failure};
use crate::plan::{Contestant, SizedWorkload};
use crate::protocol::{Request, records};
use crate::together::Concurrent;
use crate::workloads::Prover;
use anyhow::{Context, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A requested `record`.
#[derive(Debug)]
pub(crate) struct Recording {
    pub(crate) prover: &'static Prover,
    pub(crate) workloads: Vec<SizedWorkload>,
    pub(crate) proofs: u32,
    pub(crate) threads: Option<u64>,
    pub(crate) min_bytes: u64,
    pub(crate) out: Option<PathBuf>,
}

/// The recorder. It is not an arm of the bench, because its times mean nothing.
static RECORDER: Arm = Arm::new("recorder", "record");

/// Longest wait for one proof. No earlier time exists to derive a limit from.
const PATIENCE: Duration = Duration::from_secs(3600);

/// The user stopped a command. The text says what is lost.
#[derive(Debug, thiserror::Error)]
#[error("interrupted: {0}")]
pub(crate) struct Interrupted(pub(crate) &'static str);

const INTERRUPTED: Interrupted = Interrupted("the trace that was being recorded is lost");

/// Records every workload and returns the paths of the traces. An interrupted recording leaves the traces before it.
pub(crate) fn record(recording: &Recording) -> anyhow::Result<Vec<PathBuf>> {
    let interrupt = Interrupt::on_signals()?;
    let recorder = Contestant { label: RECORDER.name.into(), arm: &RECORDER };
    let folder = binaries::folder(&[recorder], &interrupt)?.ok_or(INTERRUPTED)?;
    let out = recording.out.clone().unwrap_or_else(|| binaries::measured_folder(&folder).join("traces"));
    fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    // The child may use another working directory, so the path must be absolute.
    let out = out.canonicalize().with_context(|| format!("cannot find {}", out.display()))?;
    recording.workloads.iter().map(|workload| one(recording, workload, &folder, &out, &interrupt)).collect()
}

fn one(
    recording: &Recording,
    workload: &SizedWorkload,
    folder: &Path,
    out: &Path,
    interrupt: &Interrupt,
) -> anyhow::Result<PathBuf> {
    let (prover, name, log_rows) = (recording.prover.name, workload.spec.name, workload.log_rows);
    let path = out.join(format!("{prover}-{name}-{log_rows}.trace"));
    let threads = recording.threads.map(|threads| threads.to_string());
    let counted = threads.as_deref().unwrap_or("one a core");
    let title = format!("{prover} {name} 2^{log_rows}, {} proofs, threads: {counted}", recording.proofs);
    let mut environment = vec![
        (PATH.to_owned(), path.display().to_string()),
        (TITLE.to_owned(), title.clone()),
        (MIN_BYTES.to_owned(), recording.min_bytes.to_string()),
    ];
    environment.extend(threads.map(|threads| ("RAYON_NUM_THREADS".to_owned(), threads)));
    eprintln!("{title}");
    let failed = |failure: Failure| match failure {
        Failure::Interrupted => INTERRUPTED.into(),
        failure => anyhow::Error::new(failure).context(format!("{name} 2^{log_rows} was not recorded")),
    };
    let mut child = ChildProcess::start(&folder.join(RECORDER.binary), &environment, interrupt).map_err(failed)?;
    let (arm, requires) = (RECORDER.name.into(), Vec::new());
    let setup = Request::Setup {
        arm,
        prover: prover.into(),
        workload: name.into(),
        log_rows,
        concurrent: Concurrent::default(),
        requires,
        stack_bytes: 0,
    };
    child.set_up(&setup, PATIENCE).map_err(failed)?;
    for proof in 1..=recording.proofs {
        let (sample, refusal) = child.prove(proof, u64::from(proof), PATIENCE).map_err(failed)?;
        if let Some(reason) = refusal {
            bail!("{name} 2^{log_rows}: proof {proof} was refused: {reason}");
        }
        eprintln!("proof {proof} of {}: verified, {:.1} s", recording.proofs, sample.wall_ns as f64 / 1e9);
    }
    child.finish().map_err(failed)?;
    let trace = records::read(&path)?;
    eprintln!("{} records, {} lost: {}", trace.records.len(), trace.header.lost, path.display());
    Ok(path)
}
