//! `turnway bindings …`: lists, makes, ends and explains the bindings of conversations to sessions. Called by `main`.
use super::child_binding::{self, BindChildArgs};
use super::gateway::GatewayArgs;
use super::http_client::{call, parse_list, path_with_query};
use super::place::{format_place, parse_place, place_body};
use super::table::{Column, Table};
use super::time_format::{format_date, format_time, parse_wait};
use super::{CliError, CliExit, write_json, write_stdout};
use crate::clock::Clock;
use clap::{Args, Subcommand};
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use turnway_core::protocol::conversation::ConversationRef;

/// Subcommands of `turnway bindings`.
#[derive(Clone, Debug, Subcommand)]
pub enum BindingsCliCommand {
    /// List the active bindings of a session
    Ls(LsArgs),
    /// Bind a conversation to a session
    Bind(BindArgs),
    /// Have the platform make a conversation within another one, and bind it to a session
    BindChild(BindChildArgs),
    /// End the binding of a conversation, or all bindings of a session
    Unbind(UnbindArgs),
    /// Print the binding of a conversation, or those of several at one moment
    Resolve(ResolveArgs),
    /// Print the rows that a lookup looks at, and the reason why each is chosen or not
    Explain(PlaceArgs),
}

/// Arguments of `turnway bindings ls`.
#[derive(Clone, Debug, Args)]
pub struct LsArgs {
    /// The session whose bindings are listed
    pub session: String,
    /// The gateway and the credentials.
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// Arguments of `turnway bindings bind`.
#[derive(Clone, Debug, Args)]
pub struct BindArgs {
    /// The conversation, such as rooms/main/7
    #[arg(value_name = "CHANNEL/ACCOUNT/CONVERSATION", value_parser = parse_place)]
    pub conversation: ConversationRef,
    /// The session that its messages belong to from now on; it must exist
    pub session: String,
    /// The conversation that contains it
    #[arg(long, value_name = "CONVERSATION")]
    pub parent: Option<String>,
    /// End the binding after so long without a message, such as 12h; never: 0s; the default is a day
    #[arg(long, value_name = "WAIT", value_parser = parse_wait)]
    pub idle: Option<Duration>,
    /// End the binding so long after the bind, such as 7d; never: 0s, the default
    #[arg(long, value_name = "WAIT", value_parser = parse_wait)]
    pub max_age: Option<Duration>,
    /// Also send the answers of turns that clients begin in the session to the conversation
    #[arg(long)]
    pub mirror: bool,
    /// Replace the binding of this generation; 0: only if nobody has bound the conversation
    #[arg(long, value_name = "GENERATION")]
    pub expect: Option<u64>,
    /// The gateway and the credentials.
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// Arguments of `turnway bindings unbind`.
#[derive(Clone, Debug, Args)]
pub struct UnbindArgs {
    /// The conversation, such as rooms/main/7
    #[arg(value_name = "CHANNEL/ACCOUNT/CONVERSATION", value_parser = parse_place, required_unless_present = "session")]
    pub conversation: Option<ConversationRef>,
    /// All bindings of this session
    #[arg(long, conflicts_with = "conversation")]
    pub session: Option<String>,
    /// Send the farewell of the channel to the conversation
    #[arg(long)]
    pub farewell: bool,
    /// The gateway and the credentials.
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// Arguments of `turnway bindings resolve`.
#[derive(Clone, Debug, Args)]
pub struct ResolveArgs {
    /// The conversations, such as rooms/main/7
    #[arg(value_name = "CHANNEL/ACCOUNT/CONVERSATION", value_parser = parse_place, required = true)]
    pub conversations: Vec<ConversationRef>,
    /// The conversation that contains it, if only one is named
    #[arg(long, value_name = "CONVERSATION")]
    pub parent: Option<String>,
    /// The gateway and the credentials.
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// Arguments that name a conversation.
#[derive(Clone, Debug, Args)]
pub struct PlaceArgs {
    /// The conversation, such as rooms/main/7
    #[arg(value_name = "CHANNEL/ACCOUNT/CONVERSATION", value_parser = parse_place)]
    pub conversation: ConversationRef,
    /// The conversation that contains it
    #[arg(long, value_name = "CONVERSATION")]
    pub parent: Option<String>,
    /// The gateway and the credentials.
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// The fields of a binding that the table shows.
#[derive(Deserialize)]
struct BindingTableRow {
    binding_id: String,
    session_id: String,
    conversation: Value,
    status: String,
    last_activity_at: u64,
    idle_timeout_ms: Option<u64>,
    max_age_ms: Option<u64>,
    expires_at: Option<u64>,
    reason: Option<String>,
    #[serde(default)]
    mirror: bool,
}

/// A conversation of an answer about several.
#[derive(Deserialize)]
struct FoundTableRow {
    conversation: Value,
    binding: Option<BindingTableRow>,
}

/// The fields of a row that `explain` shows.
#[derive(Deserialize)]
struct CandidateTableRow {
    conversation: Value,
    verdict: String,
    binding: Option<BindingTableRow>,
    last_ended: Option<BindingTableRow>,
}

/// Performs a command and prints its answer, as a table or as the JSON of the gateway.
pub async fn run(command: BindingsCliCommand, json: bool) -> Result<CliExit, CliError> {
    match command {
        BindingsCliCommand::Ls(args) => {
            let path = path_with_query("/v1/bindings", &[("session_id", &args.session)]);
            print_list(&call(&args.gateway, Method::GET, &path, None).await?, json)
        }
        BindingsCliCommand::Bind(args) => {
            let bound = call(&args.gateway, Method::POST, "/v1/bindings", Some(bind_body(&args))).await?;
            print_list(&json!({ "bindings": [bound] }), json)
        }
        BindingsCliCommand::BindChild(args) => {
            let bound = child_binding::bind_child(&args).await?;
            print_list(&json!({ "bindings": [bound] }), json)
        }
        BindingsCliCommand::Unbind(args) => {
            let mut body = match (&args.session, &args.conversation) {
                (Some(session), _) => json!({ "session_id": session }),
                (None, Some(place)) => present_binding(&args.gateway, place).await?,
                (None, None) => return Err(CliError::Usage("name a conversation or --session".to_owned())),
            };
            if args.farewell {
                body["farewell"] = true.into();
            }
            print_list(&call(&args.gateway, Method::POST, "/v1/bindings/unbind", Some(body)).await?, json)
        }
        BindingsCliCommand::Resolve(args) => {
            let [conversation] = args.conversations.as_slice() else { return resolve_all(&args, json).await };
            let found = resolve(&args.gateway, conversation, args.parent.as_deref(), false).await?;
            if json {
                write_json(&found)?;
                return Ok(CliExit::Success);
            }
            match found.get("binding").filter(|binding| !binding.is_null()) {
                Some(binding) => print_list(&json!({ "bindings": [binding] }), false),
                None => write_stdout("nobody has bound this conversation\n").map(|()| CliExit::Success),
            }
        }
        BindingsCliCommand::Explain(args) => {
            let found = resolve(&args.gateway, &args.conversation, args.parent.as_deref(), true).await?;
            print_candidates(&found, json)
        }
    }
}

async fn resolve_all(args: &ResolveArgs, json: bool) -> Result<CliExit, CliError> {
    if args.parent.is_some() {
        return Err(CliError::Usage("--parent belongs to one conversation".to_owned()));
    }
    let places: Vec<Value> = args.conversations.iter().map(place_body).collect();
    let body = json!({ "conversations": places });
    let answer = call(&args.gateway, Method::POST, "/v1/bindings/resolve", Some(body)).await?;
    if json {
        return write_json(&answer).map(|()| CliExit::Success);
    }
    let rows: Vec<FoundTableRow> = parse_list(&answer, "resolutions")?;
    let mut table = Table::new(vec![Column::Left("CONVERSATION"), Column::Left("SESSION"), Column::Left("BINDING")]);
    for FoundTableRow { conversation, binding } in rows {
        let [session, id] = match binding {
            Some(binding) => [binding.session_id, binding.binding_id],
            None => ["-"; 2].map(str::to_owned),
        };
        table.push_row([format_place(&conversation), session, id]);
    }
    write_stdout(&table.render())?;
    Ok(CliExit::Success)
}

fn bind_body(args: &BindArgs) -> Value {
    let millis = |wait: Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    let mut body = json!({ "conversation": place_body(&args.conversation), "session_id": args.session });
    if let Some(parent) = &args.parent {
        body["conversation"]["parent_conversation_id"] = parent.as_str().into();
    }
    if args.mirror {
        body["mirror"] = true.into();
    }
    let numbers = [
        ("idle_timeout_ms", args.idle.map(millis)),
        ("max_age_ms", args.max_age.map(millis)),
        ("expected_generation", args.expect),
    ];
    for (name, number) in numbers {
        if let Some(number) = number {
            body[name] = number.into();
        }
    }
    body
}

/// Returns the body that names the binding which a conversation has now: another one is not ended.
async fn present_binding(gateway: &GatewayArgs, place: &ConversationRef) -> Result<Value, CliError> {
    let found = resolve(gateway, place, None, false).await?;
    let binding = found.get("binding").filter(|binding| !binding.is_null());
    let binding = binding.ok_or_else(|| CliError::Refused {
        code: "not_found".to_owned(),
        message: "nobody has bound this conversation".to_owned(),
    })?;
    let scope = json!({ "channel": place.channel.as_str(), "account_id": place.account_id.as_str() });
    Ok(json!({ "binding_id": binding.get("binding_id"), "scope": scope }))
}

pub(super) async fn resolve(
    gateway: &GatewayArgs,
    place: &ConversationRef,
    parent: Option<&str>,
    explain: bool,
) -> Result<Value, CliError> {
    let mut parameters = vec![
        ("channel", place.channel.as_str()),
        ("account_id", place.account_id.as_str()),
        ("conversation_id", place.conversation_id.as_str()),
    ];
    parameters.extend(parent.map(|parent| ("parent_conversation_id", parent)));
    parameters.extend(explain.then_some(("explain", "true")));
    call(gateway, Method::GET, &path_with_query("/v1/bindings/resolve", &parameters), None).await
}

fn print_list(answer: &Value, json: bool) -> Result<CliExit, CliError> {
    if json {
        write_json(answer)?;
        return Ok(CliExit::Success);
    }
    let rows: Vec<BindingTableRow> = parse_list(answer, "bindings")?;
    let mut table = Table::new(vec![
        Column::Left("CONVERSATION"),
        Column::Left("SESSION"),
        Column::Left("STATUS"),
        Column::Left("ACTIVE"),
        Column::Left("ENDS"),
        Column::Left("BINDING"),
    ]);
    let now = Clock::start().now().store.0;
    for row in rows {
        let active = format_time(row.last_activity_at, now);
        let status =
            row.reason.as_ref().map_or_else(|| row.status.clone(), |reason| format!("{}: {reason}", row.status));
        let status = if row.mirror { format!("{status}, mirror") } else { status };
        let ends = row.format_ends();
        table.push_row([format_place(&row.conversation), row.session_id, status, active, ends, row.binding_id]);
    }
    write_stdout(&table.render())?;
    Ok(CliExit::Success)
}

fn print_candidates(answer: &Value, json: bool) -> Result<CliExit, CliError> {
    if json {
        write_json(answer)?;
        return Ok(CliExit::Success);
    }
    let rows: Vec<CandidateTableRow> = parse_list(answer, "candidates")?;
    let mut table = Table::new(vec![
        Column::Left("CONVERSATION"),
        Column::Left("VERDICT"),
        Column::Left("SESSION"),
        Column::Left("BINDING"),
        Column::Left("LAST ENDED"),
    ]);
    for row in rows {
        let (session, binding) =
            row.binding.map(|binding| (binding.session_id, binding.binding_id)).unwrap_or_default();
        let ended = row.last_ended.map(|ended| format!("{}: {}", ended.binding_id, ended.reason.unwrap_or_default()));
        let verdict = explain_verdict(&row.verdict).to_owned();
        table.push_row([format_place(&row.conversation), verdict, session, binding, ended.unwrap_or_default()]);
    }
    write_stdout(&table.render())?;
    Ok(CliExit::Success)
}

/// Returns a verdict with its consequence.
fn explain_verdict(verdict: &str) -> &str {
    match verdict {
        "bound" => "bound: chosen",
        "unbound" => "unbound: nobody has bound it",
        "moved" => "moved: has the next id",
        "parent" => "parent: never inherited",
        other => other,
    }
}

// === impl BindingTableRow ===

impl BindingTableRow {
    /// Returns the rules by which the binding ends.
    fn format_ends(&self) -> String {
        let rule = |name: &str, ms: Option<u64>| ms.map(|ms| format!("{name} {}", format_wait(ms)));
        let expires = self.expires_at.map(|at| format!("at {}", format_date(at)));
        let rules: Vec<String> =
            [rule("idle", self.idle_timeout_ms), rule("age", self.max_age_ms), expires].into_iter().flatten().collect();
        if rules.is_empty() { "never".to_owned() } else { rules.join(", ") }
    }
}

/// Formats a wait in the largest unit that divides it.
fn format_wait(ms: u64) -> String {
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")];
    let fits = units.into_iter().find(|(unit, _)| ms >= *unit && ms.is_multiple_of(*unit));
    fits.map_or_else(|| format!("{ms}ms"), |(unit, name)| format!("{}{name}", ms / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_shown_in_their_largest_whole_unit() {
        let cases = [(86_400_000, "1d"), (90_000, "90s"), (5_400_000, "90m"), (1_500, "1500ms"), (0, "0ms")];
        for (ms, shown) in cases {
            assert_eq!(format_wait(ms), shown);
        }
    }
}
