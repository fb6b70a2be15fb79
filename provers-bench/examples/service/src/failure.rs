//! The reasons why a request gets no proof, for people and for programs.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::budget::Refusal;
use crate::bytes::Shown;
use crate::request::Size;

/// A request without a proof. `Display` says what was asked, what was found and what happens now.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    NotJson(String),
    #[error("{0}")]
    NotAllowed(String),
    #[error("the body is longer than a request may be ({0})")]
    TooLong(String),
    #[error("the queue is full ({waiting} waiting); try again in {retry_s} s")]
    QueueFull { waiting: usize, retry_s: u64 },
    #[error("the service is shutting down and starts no more proofs; ask another one")]
    Stopping,
    #[error(
        "{size} needs {} ({}), and the limit of {} leaves {} for proofs. So it was not started: ask for fewer rows, or \
         raise --memory-limit",
        shown(.need_bytes), basis(.is_estimate), shown(.limit_bytes), shown(.room_bytes)
    )]
    TooLarge { size: Size, need_bytes: usize, limit_bytes: usize, room_bytes: usize, is_estimate: bool },
    #[error("{size} needs more than the budget of its worker: {refusal}. The worker was replaced, other proofs go on")]
    OverBudget { size: Size, refusal: Refusal },
    #[error("the prover panicked: {0}. Its memory was freed, other proofs go on")]
    Panicked(String),
    #[error("the prover failed: {0}")]
    Prover(String),
    #[error("the worker was lost: {0}. It was replaced, other proofs go on")]
    WorkerLost(String),
    #[error("there was no proof after {0} s, the limit of --timeout; the request was cancelled")]
    TimedOut(u64),
    #[error("the request was cancelled")]
    Cancelled,
}

fn shown(bytes: &usize) -> Shown {
    Shown(*bytes)
}

fn basis(is_estimate: &bool) -> &'static str {
    if *is_estimate { "estimated from smaller proofs" } else { "the peak of earlier proofs" }
}

impl Failure {
    pub fn status(&self) -> StatusCode {
        match self {
            Self::NotJson(_) => StatusCode::BAD_REQUEST,
            Self::NotAllowed(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::TooLong(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::QueueFull { .. } | Self::Stopping => StatusCode::SERVICE_UNAVAILABLE,
            Self::TooLarge { .. } | Self::OverBudget { .. } => StatusCode::INSUFFICIENT_STORAGE,
            Self::Panicked(_) | Self::Prover(_) | Self::WorkerLost(_) | Self::Cancelled => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            Self::TimedOut(_) => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// Whether the request was refused before its proof started.
    pub fn is_rejection(&self) -> bool {
        matches!(self, Self::QueueFull { .. } | Self::Stopping | Self::TooLarge { .. })
    }

    fn retry_s(&self) -> Option<u64> {
        match self {
            Self::QueueFull { retry_s, .. } => Some(*retry_s),
            Self::Stopping => Some(1),
            _ => None,
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut body = json!({ "error": self.to_string() });
        match &self {
            Self::OverBudget { refusal, .. } => body["over_budget"] = json!(refusal),
            Self::TooLarge { need_bytes, room_bytes, limit_bytes, .. } => {
                body["need_bytes"] = json!(need_bytes);
                body["room_bytes"] = json!(room_bytes);
                body["limit_bytes"] = json!(limit_bytes);
            }
            _ => {}
        }
        let mut response = (self.status(), Json(body)).into_response();
        if let Some(seconds) = self.retry_s() {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
