//! Serves `POST /v1/store/backup`: copies the store of a running node.
use crate::response::{self, Body};
use crate::store::embedded::{CheckReport, Copier, EmbeddedOpenError};
use bytes::{Buf, Bytes};
use http::{HeaderMap, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::Semaphore;
use turnway_core::protocol::refusal::Code;

/// Maximum body size: a path and a little JSON around it.
const BODY_BYTES_MAX: usize = 16 * 1024;

/// The handler that copies the store; it refuses if the store is in memory.
#[derive(Clone)]
pub struct Backup {
    copier: Option<Copier>,
    /// One copy at a time: each reads the whole store and keeps its old versions.
    permits: Arc<Semaphore>,
}

/// The body of a backup request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BackupRequest {
    /// A new or empty directory on the node's machine.
    to: PathBuf,
}

/// The answer for a finished copy.
#[derive(Serialize)]
struct BackupReport<'a> {
    ok: bool,
    dir: &'a Path,
    #[serde(flatten)]
    report: &'a CheckReport,
}

/// The status, code and explanation of a refused backup.
struct BackupRefusal(StatusCode, Code, String);

// === impl Backup ===

impl Backup {
    /// Creates the handler for a store; `None` if the store is in memory.
    pub fn new(copier: Option<Copier>) -> Self {
        Self { copier, permits: Arc::new(Semaphore::new(1)) }
    }

    /// Makes a copy, and answers once it is on disk and was verified.
    pub(super) async fn answer<B>(&self, headers: &HeaderMap, body: B) -> Response<Body>
    where
        B: http_body_util::BodyExt<Data: Buf, Error: Into<Box<dyn Error + Send + Sync>>>,
    {
        match self.copy(headers, body).await {
            Ok(response) => response,
            Err(BackupRefusal(status, code, why)) => response::problem(status, code, why),
        }
    }

    async fn copy<B>(&self, headers: &HeaderMap, body: B) -> Result<Response<Body>, BackupRefusal>
    where
        B: http_body_util::BodyExt<Data: Buf, Error: Into<Box<dyn Error + Send + Sync>>>,
    {
        let BackupRequest { to } = read_request(headers, body).await?;
        let conflict = |why: &str| BackupRefusal(StatusCode::CONFLICT, Code::Busy, why.to_owned());
        let memory = "this node's store is in memory: there is nothing to back up";
        let copier = self.copier.clone().ok_or_else(|| invalid(StatusCode::CONFLICT, memory))?;
        let turn = Arc::clone(&self.permits).try_acquire_owned();
        let turn = turn.map_err(|_| conflict("another backup is in progress"))?;
        tracing::info!("store backup requested by an operator");
        // The copy is finished even if the client disconnects.
        let copied = tokio::task::spawn_blocking(move || {
            let copied = copier.copy(&to);
            drop(turn);
            (to, copied)
        });
        let gone = |_| {
            BackupRefusal(StatusCode::INTERNAL_SERVER_ERROR, Code::InternalError, "the backup task failed".to_owned())
        };
        let (to, copied) = copied.await.map_err(gone)?;
        let report = copied.map_err(|error| refuse(&error))?;
        tracing::info!(facts = report.facts, "store backup finished");
        Ok(response::json(StatusCode::OK, &BackupReport { ok: report.left_out == 0, dir: &to, report: &report }))
    }
}

async fn read_request<B>(headers: &HeaderMap, body: B) -> Result<BackupRequest, BackupRefusal>
where
    B: http_body_util::BodyExt<Data: Buf, Error: Into<Box<dyn Error + Send + Sync>>>,
{
    // A browser page cannot send this content type without a preflight.
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.split(';').next().map(str::trim) != Some("application/json") {
        return Err(invalid(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content-type: expected application/json"));
    }
    let bad = || invalid(StatusCode::BAD_REQUEST, "expected {\"to\": DIRECTORY} with an absolute path");
    let body: Bytes = Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(|_| bad())?.to_bytes();
    let request: BackupRequest = serde_json::from_slice(&body).map_err(|_| bad())?;
    if request.to.is_absolute() { Ok(request) } else { Err(bad()) }
}

fn invalid(status: StatusCode, why: &str) -> BackupRefusal {
    BackupRefusal(status, Code::InvalidMessage, why.to_owned())
}

fn refuse(error: &EmbeddedOpenError) -> BackupRefusal {
    tracing::warn!(%error, "store backup failed");
    let why = error.to_string();
    match error {
        EmbeddedOpenError::NotEmpty { .. }
        | EmbeddedOpenError::InUse { .. }
        | EmbeddedOpenError::Missing { .. }
        | EmbeddedOpenError::Network { .. }
        | EmbeddedOpenError::Directory { .. } => invalid(StatusCode::CONFLICT, &why),
        EmbeddedOpenError::Damaged { .. }
        | EmbeddedOpenError::Format { .. }
        | EmbeddedOpenError::Thread(_)
        | EmbeddedOpenError::Fault(_) => BackupRefusal(StatusCode::INTERNAL_SERVER_ERROR, Code::InternalError, why),
    }
}
