//! `turnway adapters …`: shows an account of an adapter, lists those that are paused, pauses and resumes them. Called by
//! `main`.
use super::gateway::GatewayArgs;
use super::http_client::{call, parse_list, unexpected_answer};
use super::place::{format_place, parse_account};
use super::table::{Column, Table};
use super::time_format::format_time;
use super::{CliError, CliExit, write_json, write_stderr, write_stdout};
use crate::clock::Clock;
use clap::{Args, Subcommand};
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use turnway_wire::channel::account::NamedAccount;

/// Subcommands of `turnway adapters`.
#[derive(Clone, Debug, Subcommand)]
pub enum AdaptersCliCommand {
    /// Show whether an adapter serves an account, at which node, and what the adapter can do
    Show(AccountArgs),
    /// List the paused accounts, with the delivery that each was paused by
    Paused(PausedArgs),
    /// Stop what is sent for an account, in the whole fleet
    Pause(AccountArgs),
    /// Let an account send again what has waited
    Resume(AccountArgs),
}

/// Arguments of `turnway adapters paused`.
#[derive(Clone, Debug, Args)]
pub struct PausedArgs {
    /// The gateway and the credentials.
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// Arguments that name an account.
#[derive(Clone, Debug, Args)]
pub struct AccountArgs {
    /// The account, such as rooms/main
    #[arg(value_name = "CHANNEL/ACCOUNT", value_parser = parse_account)]
    pub account: NamedAccount,
    /// The gateway and the credentials.
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// The fields of a paused account that the commands use.
#[derive(Deserialize)]
struct PausedRow {
    channel: String,
    account_id: String,
    reason: String,
    since: u64,
    misplaced: Option<MisplacedRow>,
}

/// The fields of an account that the commands use.
#[derive(Deserialize)]
struct AccountRow {
    channel: String,
    account_id: String,
    holder_node_id: Option<String>,
    since: Option<u64>,
    capabilities: Option<BTreeMap<String, CapabilityRow>>,
    paused: Option<PauseRow>,
}

#[derive(Deserialize)]
struct CapabilityRow {
    level: i8,
    max: Option<u32>,
    unit: Option<String>,
}

#[derive(Deserialize)]
struct PauseRow {
    reason: String,
}

#[derive(Deserialize)]
struct MisplacedRow {
    session_id: String,
    delivery_id: String,
    place: Value,
}

/// Performs a command and prints its answer, as a table or as JSON.
pub async fn run(command: AdaptersCliCommand, json: bool) -> Result<CliExit, CliError> {
    match command {
        AdaptersCliCommand::Show(args) => show(&args, json).await,
        AdaptersCliCommand::Paused(args) => list_paused(&args.gateway, json).await,
        AdaptersCliCommand::Pause(args) => {
            let answer = change(&args, "/v1/accounts/pause").await?;
            if json {
                return write_json(&answer).map(|()| CliExit::Success);
            }
            print_paused(&[answer])
        }
        AdaptersCliCommand::Resume(args) => {
            let answer = change(&args, "/v1/accounts/resume").await?;
            if json {
                write_json(&answer)?;
            } else if answer.get("changed") == Some(&Value::Bool(false)) {
                write_stderr(&format!("{}/{} was not paused\n", args.account.channel, args.account.account));
            }
            Ok(CliExit::Success)
        }
    }
}

async fn change(args: &AccountArgs, path: &str) -> Result<Value, CliError> {
    let body = json!({ "channel": args.account.channel, "account_id": args.account.account });
    call(&args.gateway, Method::POST, path, Some(body)).await
}

async fn show(args: &AccountArgs, json: bool) -> Result<CliExit, CliError> {
    let NamedAccount { channel, account } = &args.account;
    let path = format!("/v1/accounts/show?channel={channel}&account_id={account}");
    let answer = call(&args.gateway, Method::GET, &path, None).await?;
    if json {
        return write_json(&answer).map(|()| CliExit::Success);
    }
    let row = AccountRow::deserialize(&answer).map_err(unexpected_answer)?;
    let mut table = Table::new(vec![
        Column::Left("ACCOUNT"),
        Column::Left("NODE"),
        Column::Left("SINCE"),
        Column::Left("PAUSED"),
        Column::Left("CAPABILITIES"),
    ]);
    let name = format!("{}/{}", row.channel, row.account_id);
    if row.holder_node_id.is_none() {
        write_stderr(&format!("no adapter serves {name}\n"));
    }
    let now = Clock::start().now().store.0;
    let since = row.since.map_or_else(|| "-".to_owned(), |since| format_time(since, now));
    let node = row.holder_node_id.unwrap_or_else(|| "-".to_owned());
    let paused = row.paused.map_or_else(|| "-".to_owned(), |pause| pause.reason);
    let capabilities = row.capabilities.as_ref().map_or_else(|| "-".to_owned(), format_capabilities);
    table.push_row([name, node, since, paused, capabilities]);
    write_stdout(&table.render())?;
    Ok(CliExit::Success)
}

/// Returns capabilities on one line, each with its level and its limit: `key=2 text=2:4000chars`.
fn format_capabilities(capabilities: &BTreeMap<String, CapabilityRow>) -> String {
    let shown = capabilities.iter().map(|(name, CapabilityRow { level, max, unit })| {
        let limit = max.map(|max| format!(":{max}{}", unit.as_deref().unwrap_or_default())).unwrap_or_default();
        format!("{name}={level}{limit}")
    });
    shown.collect::<Vec<_>>().join(" ")
}

async fn list_paused(gateway: &GatewayArgs, json: bool) -> Result<CliExit, CliError> {
    let answer = call(gateway, Method::GET, "/v1/accounts/paused", None).await?;
    if json {
        return write_json(&answer).map(|()| CliExit::Success);
    }
    if answer.get("more") == Some(&Value::Bool(true)) {
        write_stderr("the list is full: other accounts may be paused, too\n");
    }
    print_paused(&parse_list::<Value>(&answer, "accounts")?)
}

fn print_paused(accounts: &[Value]) -> Result<CliExit, CliError> {
    let mut table = Table::new(vec![
        Column::Left("ACCOUNT"),
        Column::Left("REASON"),
        Column::Left("SINCE"),
        Column::Left("SESSION"),
        Column::Left("DELIVERY"),
        Column::Left("PUT INTO"),
    ]);
    let now = Clock::start().now().store.0;
    for account in accounts {
        let row = PausedRow::deserialize(account).map_err(unexpected_answer)?;
        let since = format_time(row.since, now);
        let [session, delivery, place] = match row.misplaced {
            Some(part) => [part.session_id, part.delivery_id, format_place(&part.place)],
            None => ["-"; 3].map(str::to_owned),
        };
        let name = format!("{}/{}", row.channel, row.account_id);
        table.push_row([name, row.reason, since, session, delivery, place]);
    }
    write_stdout(&table.render())?;
    Ok(CliExit::Success)
}
