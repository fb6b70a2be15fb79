//! Metrics: the service's own, and those of zk-alloc.

use metrics::{counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use crate::memory;
use crate::service::{Engine, Service};

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its proof was made and verified.
    Done,
    /// The prover failed or panicked, or the proof needed more than its budget.
    Failed,
    /// The client went away, or waited too long.
    Cancelled,
    /// It was refused before it started.
    Rejected,
}

impl Outcome {
    const ALL: [Self; 4] = [Self::Done, Self::Failed, Self::Cancelled, Self::Rejected];

    fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Rejected => "rejected",
        }
    }
}

const PROOFS: &str = "service_proofs_total";

/// Installs the recorder for `/metrics`.
///
/// # Errors
/// The program has a recorder already.
pub fn install() -> anyhow::Result<PrometheusHandle> {
    let handle = PrometheusBuilder::new().install_recorder()?;
    describe_counter!(PROOFS, "Requests for proofs, by their outcome");
    Outcome::ALL.into_iter().for_each(|outcome| counter!(PROOFS, "outcome" => outcome.name()).absolute(0));
    describe_gauge!("service_waiting_proofs", "Proofs in the queue");
    describe_gauge!("service_running_proofs", "Proofs that run");
    describe_gauge!("service_reserved_bytes", "Peaks of the running proofs");
    describe_gauge!("service_limit_bytes", "Resident memory that the service plans with");
    describe_gauge!("service_rss_bytes", "Resident memory of this process");
    describe_gauge!("service_worker_live_bytes", "In use in the arena of a worker");
    describe_gauge!("service_worker_resident_bytes", "Resident in the arena of a worker");
    describe_counter!("service_worker_processes_total", "Processes that a worker's place has had");
    Ok(handle)
}

pub fn count(outcome: Outcome) {
    counter!(PROOFS, "outcome" => outcome.name()).increment(1);
}

/// All metrics, as Prometheus reads them.
pub fn render(service: &Service, handle: &PrometheusHandle) -> String {
    zk_alloc::record_metrics();
    let state = service.state();
    gauge!("service_waiting_proofs").set(state.ledger.waiting_count() as f64);
    gauge!("service_running_proofs").set(state.ledger.running().len() as f64);
    gauge!("service_reserved_bytes").set(state.ledger.reserved_bytes() as f64);
    drop(state);
    gauge!("service_limit_bytes").set(service.settings.limit_bytes() as f64);
    gauge!("service_rss_bytes").set(memory::rss_bytes() as f64);
    if let Engine::Workers(pool) = &service.engine {
        for (number, status) in pool.statuses().into_iter().enumerate() {
            let worker = number.to_string();
            gauge!("service_worker_live_bytes", "worker" => worker.clone()).set(status.figures.live_bytes as f64);
            gauge!("service_worker_resident_bytes", "worker" => worker.clone())
                .set(status.figures.resident_bytes as f64);
            counter!("service_worker_processes_total", "worker" => worker).absolute(status.processes);
        }
    }
    handle.render()
}
