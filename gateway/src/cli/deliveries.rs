//! `turnway deliveries …`: lists, explains and settles the answers to conversations that were not sent. Called by `main`.
use super::gateway::GatewayArgs;
use super::http_client::{call, parse_list, path_with_query};
use super::place::{PlaceFilter, format_place, parse_filter, parse_place, place_body};
use super::sessions::{PAGE_LEN_MAX, fetch_page};
use super::table::{Column, Table};
use super::time_format::{format_time, parse_wait};
use super::{CliError, CliExit, write_json, write_stderr, write_stdout};
use crate::clock::Clock;
use clap::{Args, Subcommand};
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;
use turnway_core::protocol::conversation::ConversationRef;

/// Facts in one page of a log.
const FACTS_LEN: usize = 500;

/// Subcommands of `turnway deliveries`.
#[derive(Clone, Debug, Subcommand)]
pub enum DeliveriesCliCommand {
    /// List deliveries that are not sent; without a session, those that are held or have failed, of all sessions
    Ls(DeliveryListArgs),
    /// Print what is known of a delivery, and its facts
    Why(DeliveryArgs),
    /// Send a held or failed delivery again; a part in doubt then may appear twice
    Retry(DeliveryArgs),
    /// Drop a delivery
    Drop(DeliveryArgs),
    /// Send a text to a conversation that is bound to a session, without a turn
    Send(SendArgs),
    /// Send every held or failed delivery of a conversation, an account or a session again
    RetryAll(SettleAllArgs),
    /// Drop every failed delivery, with --held also every held one, of a conversation, an account or a session
    Prune(PruneArgs),
}

/// Arguments of `turnway deliveries ls`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Without a session, all sessions that the credential sees are searched, page by page.")]
pub struct DeliveryListArgs {
    /// The session whose deliveries are listed
    pub session: Option<String>,
    /// Only those to this conversation or account
    #[arg(long, value_name = "CHANNEL/ACCOUNT[/CONVERSATION]", value_parser = parse_filter)]
    pub place: Option<PlaceFilter>,
    /// The gateway and the credentials.
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// Arguments that name a delivery.
#[derive(Clone, Debug, Args)]
pub struct DeliveryArgs {
    /// The session that the delivery belongs to
    pub session: String,
    /// The delivery's id
    pub delivery: String,
    /// The gateway and the credentials.
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// Arguments of `turnway deliveries send`.
#[derive(Clone, Debug, Args)]
pub struct SendArgs {
    /// The session whose conversation gets the text
    pub session: String,
    /// The text, at most 24 KiB
    pub text: String,
    /// The conversation; without it, the only one that is bound to the session
    #[arg(long, value_name = "CHANNEL/ACCOUNT/CONVERSATION", value_parser = parse_place)]
    pub to: Option<ConversationRef>,
    /// Name of the message: the same name again is the same message
    #[arg(long, value_name = "ID")]
    pub message_id: Option<String>,
    /// The gateway and the credentials.
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// Arguments of `turnway deliveries retry-all`.
#[derive(Clone, Debug, Args)]
pub struct SettleAllArgs {
    /// Those to this conversation or account
    #[arg(
        long,
        value_name = "CHANNEL/ACCOUNT[/CONVERSATION]",
        value_parser = parse_filter,
        required_unless_present = "session"
    )]
    pub place: Option<PlaceFilter>,
    /// Only those of this session
    #[arg(long)]
    pub session: Option<String>,
    /// Only those that were requested within this time, such as 2h
    #[arg(long, value_name = "WAIT", value_parser = parse_wait)]
    pub since: Option<Duration>,
    /// The gateway and the credentials.
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// Arguments of `turnway deliveries prune`.
#[derive(Clone, Debug, Args)]
pub struct PruneArgs {
    /// The deliveries that are looked at.
    #[command(flatten)]
    pub deliveries: SettleAllArgs,
    /// Also drop those that are held
    #[arg(long)]
    pub held: bool,
}

/// A delivery as lists return it, with its session. Fields that this release does not know are kept for the JSON output.
#[derive(Clone, Debug, Serialize)]
struct ListedDelivery {
    session_id: String,
    #[serde(flatten)]
    delivery: Value,
}

/// The fields of a delivery that the commands use.
#[derive(Deserialize)]
struct DeliveryRow {
    delivery_id: String,
    kind: String,
    conversation: Value,
    state: String,
    reason: Option<String>,
    part: u32,
    parts: u32,
    attempts: u32,
    requested_ts: u64,
}

/// A decision on deliveries that are not sent.
#[derive(Clone, Copy)]
enum Settlement {
    Retry,
    Drop,
}

/// Sends a text and prints the id of its delivery.
async fn send(args: &SendArgs, json: bool) -> Result<CliExit, CliError> {
    let mut body = json!({ "text": args.text });
    if let Some(place) = &args.to {
        body["conversation"] = place_body(place);
    }
    if let Some(message_id) = &args.message_id {
        body["message_id"] = message_id.as_str().into();
    }
    let path = format!("/v1/sessions/{}/messages", args.session);
    let accepted = call(&args.gateway, Method::POST, &path, Some(body)).await?;
    if json {
        write_json(&accepted)?;
    } else {
        let id = accepted.get("delivery_id").and_then(Value::as_str).unwrap_or_default();
        write_stdout(&format!("{id}\n"))?;
    }
    Ok(CliExit::Success)
}

/// Performs a command and prints its answer, as a table or as JSON.
pub async fn run(command: DeliveriesCliCommand, json: bool) -> Result<CliExit, CliError> {
    match command {
        DeliveriesCliCommand::Send(args) => send(&args, json).await,
        DeliveriesCliCommand::Ls(args) => {
            let listed = fetch(&args.gateway, args.session.as_deref(), args.place.as_ref()).await?;
            print_deliveries(&listed, json)
        }
        DeliveriesCliCommand::Why(args) => explain(&args, json).await,
        DeliveriesCliCommand::Retry(args) => settle_one(&args, Settlement::Retry, json).await,
        DeliveriesCliCommand::Drop(args) => settle_one(&args, Settlement::Drop, json).await,
        DeliveriesCliCommand::RetryAll(args) => settle_all(&args, Settlement::Retry, &["held", "failed"], json).await,
        DeliveriesCliCommand::Prune(args) => {
            let states: &[&str] = if args.held { &["held", "failed"] } else { &["failed"] };
            settle_all(&args.deliveries, Settlement::Drop, states, json).await
        }
    }
}

/// Fetches the deliveries of a session, or those of all sessions whose lists show some as undelivered.
async fn fetch(
    gateway: &GatewayArgs,
    session: Option<&str>,
    place: Option<&PlaceFilter>,
) -> Result<Vec<ListedDelivery>, CliError> {
    let sessions = match session {
        Some(session) => vec![session.to_owned()],
        None => find_sessions(gateway).await?,
    };
    let mut found = Vec::new();
    for session_id in sessions {
        let path = path_with_query("/v1/deliveries", &[("session_id", &session_id)]);
        let answer = call(gateway, Method::GET, &path, None).await?;
        let deliveries: Vec<Value> = parse_list(&answer, "deliveries")?;
        let fits = |delivery: &Value| {
            let conversation = delivery.get("conversation").unwrap_or(&Value::Null);
            place.is_none_or(|place| place.matches(conversation))
                && (session.is_some() || delivery.get("state").and_then(Value::as_str) != Some("pending"))
        };
        let deliveries = deliveries.into_iter().filter(fits);
        found.extend(deliveries.map(|delivery| ListedDelivery { session_id: session_id.clone(), delivery }));
    }
    Ok(found)
}

/// Returns the sessions that have undelivered messages: the gateway has no list of them over all sessions.
async fn find_sessions(gateway: &GatewayArgs) -> Result<Vec<String>, CliError> {
    let mut found = Vec::new();
    let mut before = None;
    loop {
        let page = fetch_page(gateway, PAGE_LEN_MAX, before.as_deref()).await?;
        let undelivered = page.sessions.iter().filter(|session| session.pointer("/annotations/undelivered").is_some());
        found.extend(undelivered.filter_map(|session| Some(session.get("session_id")?.as_str()?.to_owned())));
        before = page.next;
        if before.is_none() {
            return Ok(found);
        }
    }
}

/// Settles every delivery that fits, and prints those that were settled.
async fn settle_all(
    args: &SettleAllArgs,
    settlement: Settlement,
    states: &[&str],
    json: bool,
) -> Result<CliExit, CliError> {
    let now = Clock::start().now().store.0;
    let first = args.since.map_or(0, |since| now.saturating_sub(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)));
    let mut settled = Vec::new();
    for listed in fetch(&args.gateway, args.session.as_deref(), args.place.as_ref()).await? {
        let row = listed.row()?;
        if !states.contains(&row.state.as_str()) || row.requested_ts < first {
            continue;
        }
        match settle(&args.gateway, &listed.session_id, &row.delivery_id, settlement).await {
            Ok(_) => settled.push(listed),
            // Somebody else has settled it, or its receipt has come.
            Err(CliError::Refused { code, .. }) if code == "not_found" => {}
            Err(error) => {
                write_stderr(&format!("settled {} deliveries before this error\n", settled.len()));
                return Err(error);
            }
        }
    }
    print_deliveries(&settled, json)
}

async fn settle_one(args: &DeliveryArgs, settlement: Settlement, json: bool) -> Result<CliExit, CliError> {
    let answer = settle(&args.gateway, &args.session, &args.delivery, settlement).await?;
    if json {
        write_json(&answer)?;
    }
    Ok(CliExit::Success)
}

async fn settle(
    gateway: &GatewayArgs,
    session: &str,
    delivery: &str,
    settlement: Settlement,
) -> Result<Value, CliError> {
    let body = json!({ "session_id": session, "delivery_id": delivery, "decision": settlement.as_str() });
    call(gateway, Method::POST, "/v1/deliveries/settle", Some(body)).await
}

/// Prints the present state of a delivery, unless it is sent or dropped, and the facts that led to it.
async fn explain(args: &DeliveryArgs, json: bool) -> Result<CliExit, CliError> {
    let listed = fetch(&args.gateway, Some(&args.session), None).await?;
    let of_delivery = |listed: &ListedDelivery| {
        listed.delivery.get("delivery_id").and_then(Value::as_str) == Some(args.delivery.as_str())
    };
    let present: Vec<ListedDelivery> = listed.into_iter().filter(of_delivery).collect();
    let facts = fetch_facts(&args.gateway, &args.session, &args.delivery).await?;
    if present.is_empty() && facts.is_empty() {
        let message = format!("session {} has no delivery {}", args.session, args.delivery);
        return Err(CliError::Refused { code: "not_found".to_owned(), message });
    }
    if json {
        write_json(&json!({ "delivery": present.first(), "facts": facts }))?;
        return Ok(CliExit::Success);
    }
    if !present.is_empty() {
        print_deliveries(&present, false)?;
        write_stdout("\n")?;
    }
    let mut table = Table::new(vec![Column::Left("TIME"), Column::Left("FACT"), Column::Left("DATA")]);
    for fact in facts {
        let text = |name: &str| fact.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        table.push_row([text("time"), text("type"), describe(fact.get("data").unwrap_or(&Value::Null))]);
    }
    write_stdout(&table.render())?;
    Ok(CliExit::Success)
}

/// Fetches the facts of a delivery that the log still has.
pub(super) async fn fetch_facts(gateway: &GatewayArgs, session: &str, delivery: &str) -> Result<Vec<Value>, CliError> {
    let mut found = Vec::new();
    let mut after = Some("0".to_owned());
    while let Some(from) = after {
        let limit = FACTS_LEN.to_string();
        let parameters = [("types", "delivery.*"), ("limit", limit.as_str()), ("after_seq", from.as_str())];
        let path = path_with_query(&format!("/v1/sessions/{session}/events"), &parameters);
        let page = call(gateway, Method::GET, &path, None).await?;
        let facts: Vec<Value> = parse_list(&page, "events")?;
        let ours = |fact: &Value| fact.pointer("/data/delivery_id").and_then(Value::as_str) == Some(delivery);
        found.extend(facts.into_iter().filter(ours));
        after = page.get("next").and_then(Value::as_u64).map(|next| next.to_string()).filter(|next| *next != from);
    }
    Ok(found)
}

/// Describes the data of a fact in one line; texts of parts are left out.
fn describe(data: &Value) -> String {
    let fields = data.as_object().into_iter().flatten();
    let told = fields.filter(|(name, _)| *name != "delivery_id" && *name != "undelivered");
    let shown = told.map(|(name, value)| match (name.as_str(), value) {
        ("parts", Value::Array(parts)) => format!("parts {}", parts.len()),
        ("conversation", conversation) => format!("to {}", format_place(conversation)),
        (name, Value::String(text)) => format!("{name} {text}"),
        (name, value) => format!("{name} {value}"),
    });
    shown.collect::<Vec<_>>().join(", ")
}

fn print_deliveries(listed: &[ListedDelivery], json: bool) -> Result<CliExit, CliError> {
    if json {
        write_json(&json!({ "deliveries": listed }))?;
        return Ok(CliExit::Success);
    }
    let mut table = Table::new(vec![
        Column::Left("SESSION"),
        Column::Left("DELIVERY"),
        Column::Left("CONVERSATION"),
        Column::Left("STATE"),
        Column::Left("KIND"),
        Column::Left("PART"),
        Column::Right("ATTEMPTS"),
        Column::Left("REQUESTED"),
    ]);
    let now = Clock::start().now().store.0;
    for delivery in listed {
        let row = delivery.row()?;
        let requested = format_time(row.requested_ts, now);
        let state = row.reason.map_or(row.state.clone(), |reason| format!("{}: {reason}", row.state));
        table.push_row([
            delivery.session_id.clone(),
            row.delivery_id,
            format_place(&row.conversation),
            state,
            row.kind,
            format!("{} of {}", row.part, row.parts),
            row.attempts.to_string(),
            requested,
        ]);
    }
    write_stdout(&table.render())?;
    Ok(CliExit::Success)
}

// === impl ListedDelivery ===

impl ListedDelivery {
    fn row(&self) -> Result<DeliveryRow, CliError> {
        DeliveryRow::deserialize(&self.delivery).map_err(super::http_client::unexpected_answer)
    }
}

// === impl Settlement ===

impl Settlement {
    fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Drop => "drop",
        }
    }
}
