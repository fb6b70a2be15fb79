//! The HTTP interface: routes, responses without a proof, and shutdown.

use std::fmt::Display;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::Context;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::Options;
use crate::prover::{Made, Request};
use crate::service::Service;

/// The response to a request for an unknown path.
const NO_PATH: &str = "there is no such path; the service has POST /proofs, GET /metrics, GET /memory";

type App = State<Arc<Service>>;

/// Serves until SIGTERM or Ctrl-C, then finishes the running proofs.
///
/// # Errors
/// If the port cannot be opened, or if the workers' budgets together exceed the limit.
pub async fn serve(options: Options) -> anyhow::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, options.port));
    let listener = TcpListener::bind(address).await.with_context(|| format!("listening on {address}"))?;
    let service = Service::new(options)?;
    // Prints the address for users and for programs that requested port 0.
    writeln!(std::io::stdout(), "listening on http://{}", listener.local_addr()?).context("printing the address")?;

    let metrics = |State(service): App| async move {
        service.record_metrics();
        ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.render())
    };
    let router = Router::new()
        .route("/proofs", post(prove))
        .route("/metrics", get(metrics))
        .route("/memory", get(|State(service): App| async move { service.page() }))
        .fallback(|| async { Failure(StatusCode::NOT_FOUND, NO_PATH.into()) })
        // No valid request is longer.
        .layer(DefaultBodyLimit::max(4096))
        .with_state(Arc::clone(&service));
    let stopped = async move {
        tokio::select!(_ = terminate.recv() => {}, _ = interrupt.recv() => {});
        eprintln!("shutting down: running proofs are finished first");
        service.stop();
    };
    axum::serve(listener, router).with_graceful_shutdown(stopped).await.context("serving")
}

/// Makes the proof that a request asks for. If the client disconnects, hyper drops this future, which cancels the
/// proof.
async fn prove(State(service): App, body: Bytes) -> Result<Json<Made>, Failure> {
    let request: Request = serde_json::from_slice(&body).map_err(|error| {
        let status = if error.is_data() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::BAD_REQUEST };
        Failure(status, format!(r#"invalid request ({error}); send JSON such as {{"log_rows": 12, "seed": 1}}"#))
    })?;
    let (log_rows, allowed) = (request.log_rows, Request::LOG_ROWS);
    if !allowed.contains(&log_rows) {
        let text = format!("log_rows {log_rows} is out of range: use {} to {}", allowed.start(), allowed.end());
        return Err(Failure(StatusCode::UNPROCESSABLE_ENTITY, text));
    }
    service.prove(request).await.map(Json)
}

/// The reason why a request gets no proof. Its text says what was requested, what was found and what happens next.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure(StatusCode, String);

impl Failure {
    pub fn unavailable(text: impl Into<String>) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, text.into())
    }

    pub fn over_memory(log_rows: u32, why: impl Display) -> Self {
        Self(StatusCode::INSUFFICIENT_STORAGE, format!("no proof of 2^{log_rows} rows: {why}"))
    }
}

/// Turns an error that occurred while proving into a response.
impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        let text = format!("the proof failed: {:#}. Its memory was freed, and other proofs continue", error.into());
        Self(StatusCode::INTERNAL_SERVER_ERROR, text)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let Self(status, text) = self;
        let retry = (status == StatusCode::SERVICE_UNAVAILABLE).then_some([(header::RETRY_AFTER, "2")]);
        (status, retry, Json(json!({ "error": text }))).into_response()
    }
}
