//! `turnway sessions`: lists sessions, newest first. Called by `main`.
use super::gateway::GatewayArgs;
use super::http_client::{call, path_with_query, unexpected_answer};
use super::table::{Column, Table};
use super::time_format::format_time;
use super::{CliError, CliExit, write_json, write_stdout};
use crate::clock::Clock;
use clap::Args;
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Largest page that a gateway returns.
pub(super) const PAGE_LEN_MAX: usize = 200;

/// Arguments of `turnway sessions`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Times are relative on a terminal, and dates in UTC elsewhere. With --json, one object with \
                        the list of `sessions`, as GET /v1/sessions gives it.")]
pub struct SessionsArgs {
    /// Maximum number of sessions, newest first
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub limit: u64,
    /// The gateway and the credentials.
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// The list as the gateway returns it. Fields that this release does not know are kept for the JSON output.
#[derive(Serialize)]
pub(super) struct SessionList {
    pub(super) sessions: Vec<Value>,
    pub(super) next: Option<String>,
}

/// The fields of a session that the table shows.
#[derive(Deserialize)]
struct SessionRow {
    session_id: String,
    user_id: String,
    state: String,
    created_ts: u64,
    seq: u64,
    pending: u64,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// Prints the sessions, as a table or as JSON.
pub async fn run(args: SessionsArgs, json: bool) -> Result<CliExit, CliError> {
    let listed = fetch_all(&args).await?;
    if json {
        write_json(&listed)?;
        return Ok(CliExit::Success);
    }
    let sessions: Result<Vec<SessionRow>, _> = listed.sessions.into_iter().map(serde_json::from_value).collect();
    let sessions = sessions.map_err(unexpected_answer)?;
    let mut columns = vec![
        Column::Left("SESSION"),
        Column::Left("USER"),
        Column::Left("STATE"),
        Column::Left("CREATED"),
        Column::Right("FACTS"),
        Column::Right("OPEN"),
    ];
    if sessions.iter().any(|session| !session.annotations.is_empty()) {
        columns.push(Column::Left("ANNOTATIONS"));
    }
    let mut table = Table::new(columns);
    let now = Clock::start().now().store.0;
    for session in sessions {
        let created = format_time(session.created_ts, now);
        let facts = session.seq.to_string();
        let open = session.pending.to_string();
        let annotations: Vec<_> = session.annotations.iter().map(|(name, text)| format!("{name}: {text}")).collect();
        let annotations = annotations.join(", ");
        table.push_row([session.session_id, session.user_id, session.state, created, facts, open, annotations]);
    }
    write_stdout(&table.render())?;
    Ok(CliExit::Success)
}

/// Fetches page after page, until the limit or the end of the list is reached.
async fn fetch_all(args: &SessionsArgs) -> Result<SessionList, CliError> {
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let mut listed = SessionList { sessions: Vec::new(), next: None };
    loop {
        let count = (limit - listed.sessions.len()).min(PAGE_LEN_MAX);
        let page = fetch_page(&args.gateway, count, listed.next.as_deref()).await?;
        let is_empty = page.sessions.is_empty();
        listed.sessions.extend(page.sessions);
        listed.next = page.next;
        if listed.sessions.len() >= limit || listed.next.is_none() || is_empty {
            return Ok(listed);
        }
    }
}

/// Fetches at most `count` sessions, newest first; `before` continues after an earlier page.
pub(super) async fn fetch_page(
    gateway: &GatewayArgs,
    count: usize,
    before: Option<&str>,
) -> Result<SessionList, CliError> {
    let limit = count.to_string();
    let mut parameters = vec![("limit", limit.as_str())];
    parameters.extend(before.map(|before| ("before", before)));
    let page = call(gateway, Method::GET, &path_with_query("/v1/sessions", &parameters), None).await?;
    let sessions = page.get("sessions").and_then(Value::as_array);
    let sessions = sessions.ok_or_else(|| unexpected_answer("it has no sessions"))?.clone();
    Ok(SessionList { sessions, next: page.get("next").and_then(Value::as_str).map(str::to_owned) })
}
