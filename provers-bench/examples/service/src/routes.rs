//! The HTTP interface.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Request as HttpRequest, State};
use axum::http::{StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::json;
use zk_alloc_profile::Profile;

use crate::failure::Failure;
use crate::request::Request;
use crate::service::{Engine, Service};
use crate::{memory, page, record};

/// The longest body of a request.
const MOST_BODY_BYTES: usize = 4096;
/// A request may take this much longer than a proof, to send its body and to read the answer.
const EXTRA: Duration = Duration::from_secs(10);

const PATHS: &str = "POST /proofs, GET /metrics, GET /memory, GET /health, GET /debug/pprof/heap, POST /purge, \
                     POST /soften";

#[derive(Clone)]
struct App {
    service: Arc<Service>,
    metrics: PrometheusHandle,
}

/// The routes.
pub fn router(service: Arc<Service>, metrics: PrometheusHandle) -> Router {
    let most = service.settings.timeout() + EXTRA;
    let limited = move |request: HttpRequest, next: Next| async move {
        let response = tokio::time::timeout(most, next.run(request)).await;
        response.unwrap_or_else(|_| Failure::TimedOut(most.as_secs()).into_response())
    };
    Router::new()
        .route("/proofs", post(prove))
        .route("/metrics", get(metrics_text))
        .route("/memory", get(memory_page))
        .route("/health", get(health))
        .route("/debug/pprof/heap", get(heap_profile))
        .route("/purge", post(|State(app): State<App>| purge(app, false)))
        .route("/soften", post(|State(app): State<App>| purge(app, true)))
        .fallback(|uri: Uri| async move {
            let text = format!("there is no {}; the service has {PATHS}", uri.path());
            (StatusCode::NOT_FOUND, Json(json!({ "error": text })))
        })
        .method_not_allowed_fallback(|| async {
            let text = format!("this path has another method; the service has {PATHS}");
            (StatusCode::METHOD_NOT_ALLOWED, Json(json!({ "error": text })))
        })
        .layer(DefaultBodyLimit::max(MOST_BODY_BYTES))
        .layer(middleware::from_fn(limited))
        .with_state(App { service, metrics })
}

/// hyper drops this future if the client goes away. The ticket is dropped with it, and cancels the proof.
async fn prove(State(app): State<App>, body: Result<Bytes, BytesRejection>) -> Result<Response, Failure> {
    let body = body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Failure::TooLong(format!("{MOST_BODY_BYTES} bytes")),
        _ => Failure::NotJson(format!("the body could not be read: {}", rejection.body_text())),
    })?;
    let request = Request::parse(&body, app.service.settings.allow_faults)?;
    let ticket = app.service.submit(request)?;
    Ok(Json(ticket.answer().await?).into_response())
}

async fn metrics_text(State(app): State<App>) -> Response {
    let text = record::render(&app.service, &app.metrics);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

async fn memory_page(State(app): State<App>) -> Response {
    // A look at each page takes milliseconds for gigabytes.
    match tokio::task::spawn_blocking(move || page::text(&app.service)).await {
        Ok(text) => text.into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// The path that `go tool pprof` and continuous profilers ask for.
async fn heap_profile(State(app): State<App>) -> Response {
    if !app.service.settings.profile {
        let text = "call sites are not sampled: start the service with --profile";
        return (StatusCode::NOT_FOUND, Json(json!({ "error": text }))).into_response();
    }
    // Looking up names may take a second, and so does not run on a thread that serves connections.
    let encode = || zk_alloc::profile::unsampled(|| Profile::new(&zk_alloc::profile::snapshot()).pprof());
    match tokio::task::spawn_blocking(encode).await {
        Ok(Ok(bytes)) => ([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response(),
        _ => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn health(State(app): State<App>) -> Result<&'static str, Failure> {
    if app.service.is_stopping() { Err(Failure::Stopping) } else { Ok("ok\n") }
}

async fn purge(app: App, is_soft: bool) -> Response {
    let before = memory::rss_bytes();
    let body = match &app.service.engine {
        Engine::Here(_) => {
            // It may take milliseconds for each gigabyte, and so does not run on a thread that serves connections.
            let purge = move || if is_soft { zk_alloc::soften() } else { zk_alloc::release() };
            let bytes = tokio::task::spawn_blocking(purge).await.unwrap_or(0);
            json!({ "bytes": bytes, "rss_before_bytes": before, "rss_bytes": memory::rss_bytes() })
        }
        Engine::Workers(pool) => {
            let (bytes, workers) = pool.purge(is_soft).await;
            json!({ "bytes": bytes, "idle_workers": workers })
        }
    };
    Json(body).into_response()
}
