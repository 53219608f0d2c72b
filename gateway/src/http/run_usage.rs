//! Serves `GET /v1/runs/{run_id}/usage`: the calls of models that a run has made, summed up from the facts of its session.
use crate::http::openapi::refusals::ResourceRefusals;
use crate::http::request_link::RequestFailure;
use crate::http::session_facts::{SessionFactReader, with_deadline};
use crate::http::{HttpContext, HttpResult, request_parts};
use crate::response;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use std::sync::Arc;
use turnway_core::id::RunId;
use turnway_wire::channel::run_usage::RunUsage;
use utoipa::ToSchema;

/// The calls of models that a run has made; counts of tokens include the calls whose upstreams reported them
#[derive(Serialize, ToSchema)]
#[schema(as = RunUsage)]
struct RunUsageSchema {
    run_id: String,
    /// Calls that have begun and not ended
    open_calls: u64,
    #[serde(flatten)]
    total: UsageSumSchema,
    /// The same for each agent and model
    by_model: Vec<ModelUsageSchema>,
    /// Facts of the run were trimmed: the sums may lack calls
    #[schema(required = false)]
    trimmed: bool,
}

/// The calls of one agent to one model
#[derive(Serialize, ToSchema)]
#[schema(as = ModelUsage)]
struct ModelUsageSchema {
    agent_id: Option<String>,
    model: String,
    #[serde(flatten)]
    sum: UsageSumSchema,
}

/// Sums over calls that have ended
#[derive(Serialize, ToSchema)]
#[schema(as = UsageSum)]
struct UsageSumSchema {
    /// Calls that have ended
    calls: u64,
    /// Of these, calls without a count of their input
    calls_without_usage: u64,
    input_tokens: u64,
    /// The part of the input that came from caches
    cached_input_tokens: u64,
    output_tokens: u64,
    /// The part of the output that is reasoning
    reasoning_tokens: u64,
    /// Price of the calls that have one, in millionths of the operator's currency
    cost: u64,
    /// Calls that have ended and have no price
    calls_without_cost: u64,
}

/// Sums up the calls of models that a run has made
#[utoipa::path(
    get,
    operation_id = "show_run_usage",
    path = "/v1/runs/{run_id}/usage",
    params(("run_id" = String, Path, description = "Run id of the turn", pattern = r"^[A-Za-z0-9_-]{1,64}\.[a-z2-7]{26}$"), ("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann")),
    responses((status = 200, description = "Sums, derived from the facts of the run", body = RunUsageSchema), ResourceRefusals),
)]
pub(super) async fn show(
    State(context): State<Arc<HttpContext>>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> HttpResult {
    let run_id = request_parts::parse_name(&request_parts::path_parameter(path)?, RunId::parse)?;
    let link = context.open_link(&headers).await?;
    let mut reader = SessionFactReader::new(link, run_id.session());
    let usage = with_deadline(async { Ok(read_usage(&mut reader, &run_id).await?) }).await?;
    Ok(response::json(StatusCode::OK, &usage))
}

/// Sums up the facts from a run's first to its last: a call may end after its run.
async fn read_usage(reader: &mut SessionFactReader, run_id: &RunId) -> Result<RunUsage, RequestFailure> {
    let _slot = reader.acquire_read_slot()?;
    let (after, _) = reader.find_run(run_id).await?;
    let span = reader.start(after.seq, None).await?;
    let mut usage = RunUsage::new(run_id.clone());
    usage.trimmed = span.floor.is_some();
    let mut at = span.after;
    while at < span.snapshot.seq && !usage.is_final() {
        let (position, entry) = reader.next().await?;
        usage.apply(&entry);
        at = position.seq;
    }
    Ok(usage)
}
