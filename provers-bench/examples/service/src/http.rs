//! The HTTP interface: routes, answers without a proof, and the shutdown.

use std::io::Write;
use std::net::Ipv4Addr;
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
use crate::prover::Request;
use crate::service::{Answer, Service};

/// The longest body of a request.
const MAX_BODY_BYTES: usize = 4096;

type App = State<Arc<Service>>;

/// Serves until SIGTERM or Ctrl-C, and then until the running proofs are finished.
///
/// # Errors
/// The port or the workers.
pub async fn serve(options: Options) -> anyhow::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let port = options.port;
    let service = Service::new(options).await?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
    let listener = listener.with_context(|| format!("listening on 127.0.0.1:{port}"))?;
    // For people, and for programs that asked for port 0.
    writeln!(std::io::stdout(), "listening on http://{}", listener.local_addr()?).context("printing the address")?;

    let metrics = |State(service): App| async move {
        service.record_metrics();
        ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.render())
    };
    let router = Router::new()
        .route("/proofs", post(prove))
        .route("/metrics", get(metrics))
        .route("/memory", get(|State(service): App| async move { service.page() }))
        .fallback(|| async {
            let text = "there is no such path; the service has POST /proofs, GET /metrics, GET /memory";
            Failure::new(StatusCode::NOT_FOUND, text)
        })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(Arc::clone(&service));
    let stopped = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        eprintln!("shutting down: running proofs are finished first");
        service.stop();
    };
    axum::serve(listener, router).with_graceful_shutdown(stopped).await.context("serving")
}

/// hyper drops this future if the client goes away, which cancels the proof.
async fn prove(State(service): App, body: Bytes) -> Result<Json<Answer>, Failure> {
    let request: Request = serde_json::from_slice(&body).map_err(|error| {
        let text = format!(r#"no request ({error}); send JSON such as {{"log_rows": 12, "seed": 1}}"#);
        Failure::new(if error.is_data() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::BAD_REQUEST }, text)
    })?;
    let (log_rows, allowed) = (request.log_rows, Request::LOG_ROWS);
    if !allowed.contains(&log_rows) {
        let text = format!("log_rows {log_rows} is out of range: use {} to {}", allowed.start(), allowed.end());
        return Err(Failure::new(StatusCode::UNPROCESSABLE_ENTITY, text));
    }
    if request.panic && !service.options.allow_faults {
        let text = "panics are for tests: start the service with --allow-faults";
        return Err(Failure::new(StatusCode::UNPROCESSABLE_ENTITY, text));
    }
    service.prove(request).await.map(Json)
}

/// The reason why a request gets no proof: what was asked, what was found and what happens now.
#[derive(Debug)]
pub struct Failure {
    status: StatusCode,
    text: String,
}

impl Failure {
    pub fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    pub fn of_prover(text: impl std::fmt::Display) -> Self {
        let text = format!("there is no proof: {text}. Its memory was freed, other proofs go on");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    }

    pub fn over_memory(log_rows: u32, why: &str) -> Self {
        Self::new(StatusCode::INSUFFICIENT_STORAGE, format!("no proof of 2^{log_rows} rows: {why}"))
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let answer = (self.status, Json(json!({ "error": self.text })));
        match self.status {
            StatusCode::SERVICE_UNAVAILABLE => ([(header::RETRY_AFTER, "2")], answer).into_response(),
            _ => answer.into_response(),
        }
    }
}
