//! The HTTP interface: routes, answers without a proof, and the shutdown.

use std::io::Write;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use metrics::{describe_counter, describe_gauge};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::Options;
use crate::prover::Request;
use crate::queue::{TooLarge, Wait, mib};
use crate::service::{Answer, Service};

/// The longest body of a request.
const MAX_BODY_BYTES: usize = 4096;

#[derive(Clone)]
struct App {
    service: Arc<Service>,
    metrics: PrometheusHandle,
}

/// Serves until SIGTERM or Ctrl-C, and then until the running proofs are finished.
///
/// # Errors
/// The port, the workers, or proofs that did not finish in time.
pub async fn serve(options: Options) -> anyhow::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let metrics = PrometheusBuilder::new().install_recorder()?;
    describe_counter!("service_proofs_total", "Requests for proofs, by their outcome");
    describe_counter!("service_worker_processes_total", "Worker processes that were started");
    describe_gauge!("service_waiting_proofs", "Proofs in the queue");
    describe_gauge!("service_running_proofs", "Proofs that run");
    describe_gauge!("service_reserved_bytes", "Peaks of the running proofs");
    describe_gauge!("service_limit_bytes", "Resident memory that the service plans with");
    describe_gauge!("service_rss_bytes", "Resident memory of this process");
    let (port, grace) = (options.port, Duration::from_secs(options.grace.into()));
    let service = Service::new(options).await?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
    let listener = listener.with_context(|| format!("listening on 127.0.0.1:{port}"))?;
    // For people, and for programs that asked for port 0.
    writeln!(std::io::stdout(), "listening on http://{}", listener.local_addr()?).context("printing the address")?;

    let router = Router::new()
        .route("/proofs", post(prove))
        .route("/metrics", get(metrics_text))
        .route("/memory", get(memory_page))
        .fallback(|| async {
            let text = "there is no such path; the service has POST /proofs, GET /metrics, GET /memory";
            Failure::new(StatusCode::NOT_FOUND, text)
        })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(App { service: Arc::clone(&service), metrics });
    let (stop, mut stopped) = watch::channel(());
    let stopping = Arc::clone(&service);
    let server = axum::serve(listener, router).with_graceful_shutdown(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        eprintln!("shutting down: running proofs have {} s to finish", grace.as_secs());
        stopping.stop();
        drop(stop);
    });
    let late = async move {
        // The sender is dropped when the shutdown begins.
        while stopped.changed().await.is_ok() {}
        tokio::time::sleep(grace).await;
    };
    tokio::select! {
        served = async { server.await } => served.context("serving")?,
        () = late => bail!("proofs still run after {} s; they are given up", grace.as_secs()),
    }
    tokio::select! {
        () = service.idle() => Ok(()),
        () = tokio::time::sleep(grace) => bail!("cancelled proofs still run; they are given up"),
    }
}

/// hyper drops this future if the client goes away, which cancels the proof.
async fn prove(State(app): State<App>, body: Bytes) -> Result<Json<Answer>, Failure> {
    let request: Request = serde_json::from_slice(&body).map_err(|error| {
        let text = format!(r#"no request ({error}); send JSON such as {{"log_rows": 12, "seed": 1}}"#);
        Failure::new(if error.is_data() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::BAD_REQUEST }, text)
    })?;
    let (log_rows, allowed) = (request.log_rows, Request::LOG_ROWS);
    if !allowed.contains(&log_rows) {
        let text = format!("log_rows {log_rows} is out of range: use {} to {}", allowed.start(), allowed.end());
        return Err(Failure::new(StatusCode::UNPROCESSABLE_ENTITY, text));
    }
    if request.panic && !app.service.options.allow_faults {
        let text = "panics are for tests: start the service with --allow-faults";
        return Err(Failure::new(StatusCode::UNPROCESSABLE_ENTITY, text));
    }
    app.service.prove(request).await.map(Json)
}

async fn metrics_text(State(app): State<App>) -> Response {
    app.service.record_metrics();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], app.metrics.render()).into_response()
}

async fn memory_page(State(app): State<App>) -> Response {
    app.service.page().map_err(|_| StatusCode::INTERNAL_SERVER_ERROR).into_response()
}

/// The reason why a request gets no proof: what was asked, what was found and what happens now.
#[derive(Debug)]
pub struct Failure {
    status: StatusCode,
    text: String,
    retry_s: Option<u64>,
}

impl Failure {
    fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into(), retry_s: None }
    }

    pub fn queue_full(waiting: usize, retry_s: u64) -> Self {
        let text = format!("the queue is full ({waiting} waiting); try again in {retry_s} s");
        Self { retry_s: Some(retry_s), ..Self::new(StatusCode::SERVICE_UNAVAILABLE, text) }
    }

    pub fn stopping() -> Self {
        let text = "the service is shutting down and starts no more proofs; ask another one";
        Self { retry_s: Some(1), ..Self::new(StatusCode::SERVICE_UNAVAILABLE, text) }
    }

    pub fn too_large(log_rows: u32, why: TooLarge) -> Self {
        let text = format!("2^{log_rows} rows were not started: {}. Raise --memory-limit", Wait::TooLarge(why));
        Self::new(StatusCode::INSUFFICIENT_STORAGE, text)
    }

    pub fn over_budget(log_rows: u32, refused_bytes: usize, budget_bytes: usize) -> Self {
        let (refused, budget) = (mib(refused_bytes), mib(budget_bytes));
        let text = format!(
            "2^{log_rows} rows need more than the budget of a worker: the system refused {refused}, of {budget} in all. \
             The worker is replaced, other proofs go on"
        );
        Self::new(StatusCode::INSUFFICIENT_STORAGE, text)
    }

    pub fn prover(text: String) -> Self {
        let text = format!("there is no proof: {text}. Its memory was freed, other proofs go on");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    }

    pub fn timed_out(seconds: u32) -> Self {
        let text = format!("there was no proof after {seconds} s, the limit of --timeout; the request was cancelled");
        Self::new(StatusCode::GATEWAY_TIMEOUT, text)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(json!({ "error": self.text }))).into_response();
        if let Some(seconds) = self.retry_s {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}
