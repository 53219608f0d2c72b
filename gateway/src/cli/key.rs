//! `turnway key …`: creates, lists, migrates and revokes API keys through a node's operators' listener.
use super::http_client::{ANSWER_TIMEOUT, ApiClient, ApiRequest};
use super::table::{Column, Table};
use super::time_format::format_date;
use super::{CliError, CliExit, write_json, write_stdout};
use crate::config::amount::parse_long_wait;
use clap::{Args, Subcommand};
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// Default address of a node's operators' listener.
const DEFAULT_ADMIN_URL: &str = "http://127.0.0.1:8081";
/// Number of keys that a node seals in one request.
const MIGRATE_BATCH_MAX: usize = 100;

/// Subcommands of `turnway key`.
#[derive(Clone, Debug, Subcommand)]
pub enum KeyCommand {
    /// Create a key; the key is printed once and cannot be printed again
    New(NewArgs),
    /// List all keys, newest first, without their secrets
    List(AdminArgs),
    /// Seal keys of an earlier release, whose rights are not protected by a seal yet; without --yes only list them
    Migrate(MigrateArgs),
    /// Revoke a key: within 5 s no node accepts it, and its connections are closed
    Revoke(RevokeArgs),
}

/// Arguments that select the node to ask.
#[derive(Clone, Debug, Args)]
pub struct AdminArgs {
    /// Address of a node's operators' listener; any node of a fleet
    #[arg(long, value_name = "URL", env = "TURNWAY_ADMIN", default_value = DEFAULT_ADMIN_URL)]
    pub admin: String,
}

/// Arguments of `turnway key new`.
#[derive(Clone, Debug, Args)]
pub struct NewArgs {
    /// Tenant of the key
    #[arg(long, value_name = "TENANT", default_value = "default")]
    pub tenant: String,
    /// User of the key; without it, the key acts as a user of its own
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// Scopes of the key: read, write, act_as (any user of the tenant), operator (every session of the tenant, but not
    /// the node), models (calls of models)
    #[arg(long, value_name = "SCOPE,…", value_delimiter = ',', default_value = "read,write")]
    pub scopes: Vec<String>,
    /// Roles that the key may serve for the sessions of its tenant: agent:NAME (a dial-in agent), tools:NAME (the tool
    /// runner of that id, or the tool of that name), adapter:CHANNEL/ACCOUNT
    #[arg(long, value_name = "ROLE,…", value_delimiter = ',')]
    pub serves: Vec<String>,
    /// A label for people
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// Lifetime, such as 12h or 90d; without it the key is valid until it is revoked
    #[arg(long, value_name = "WAIT", value_parser = parse_lifetime)]
    pub lasts: Option<Duration>,
    /// The node to ask.
    #[command(flatten)]
    pub admin_args: AdminArgs,
}

/// Arguments of `turnway key migrate`.
#[derive(Clone, Debug, Args)]
pub struct MigrateArgs {
    /// Seal the listed keys: confirms that every row grants the intended rights
    #[arg(long)]
    pub yes: bool,
    /// The node to ask.
    #[command(flatten)]
    pub admin_args: AdminArgs,
}

/// Arguments of `turnway key revoke`.
#[derive(Clone, Debug, Args)]
pub struct RevokeArgs {
    /// Id of the key: the part between the two underscores, as `turnway key list` shows it
    pub key_id: String,
    /// The node to ask.
    #[command(flatten)]
    pub admin_args: AdminArgs,
}

#[derive(Deserialize)]
struct KeyList {
    keys: Vec<KeyRow>,
}

/// The fields of a key that the table shows.
#[derive(Deserialize)]
struct KeyRow {
    key_id: String,
    good: bool,
    /// A node of an earlier release does not send this field; its keys count as sealed.
    #[serde(default = "yes")]
    sealed: bool,
    tenant: String,
    user_id: Option<String>,
    scopes: Vec<String>,
    #[serde(default)]
    serves: Vec<String>,
    label: Option<String>,
    created_ts: u64,
    expires_ts: Option<u64>,
    revoked_ts: Option<u64>,
}

/// Runs the subcommand.
pub async fn run(command: KeyCommand, json: bool) -> Result<CliExit, CliError> {
    match command {
        KeyCommand::New(args) => create(args, json).await,
        KeyCommand::List(args) => list(&args, json).await,
        KeyCommand::Migrate(args) => migrate(&args, json).await,
        KeyCommand::Revoke(args) => revoke(&args, json).await,
    }
}

async fn ask(office: &AdminArgs, method: Method, path: &str, body: Option<Value>) -> Result<Value, CliError> {
    let ask = ApiRequest { method, path, credentials: None, body, timeout: ANSWER_TIMEOUT };
    ApiClient::parse(&office.admin)?.request_json(ask).await
}

async fn create(args: NewArgs, json: bool) -> Result<CliExit, CliError> {
    let mut body = json!({
        "tenant": args.tenant, "user_id": args.user, "scopes": args.scopes, "label": args.label,
        "lasts_s": args.lasts.map(|lasts| lasts.as_secs()),
    });
    if !args.serves.is_empty() {
        body["serves"] = args.serves.into();
    }
    let made = ask(&args.admin_args, Method::POST, "/v1/keys", Some(body)).await?;
    if json {
        write_json(&made)?;
        return Ok(CliExit::Success);
    }
    let key = made.get("key").and_then(Value::as_str);
    let unexpected = "the answer has an unexpected format; the node may run another release: it has no key";
    let key = key.ok_or_else(|| CliError::Failed(unexpected.to_owned()))?;
    // The key stands alone on its line, so that a program can read it.
    write_stdout(&format!("{key}\n"))?;
    Ok(CliExit::Success)
}

async fn list(args: &AdminArgs, json: bool) -> Result<CliExit, CliError> {
    let answer = ask(args, Method::GET, "/v1/keys", None).await?;
    if json {
        write_json(&answer)?;
        return Ok(CliExit::Success);
    }
    write_stdout(&render_table(parse_keys(answer)?))?;
    Ok(CliExit::Success)
}

async fn migrate(args: &MigrateArgs, json: bool) -> Result<CliExit, CliError> {
    let all = parse_keys(ask(&args.admin_args, Method::GET, "/v1/keys", None).await?)?;
    let unsealed: Vec<KeyRow> = all.into_iter().filter(|key| !key.sealed && key.revoked_ts.is_none()).collect();
    if unsealed.is_empty() {
        write_stdout("every key is sealed\n")?;
        return Ok(CliExit::Success);
    }
    let ids: Vec<String> = unsealed.iter().map(|key| key.key_id.clone()).collect();
    if !args.yes {
        write_stdout(&render_table(unsealed))?;
        write_stdout(
            "These keys are not accepted until they are sealed. Check what each one grants, revoke unknown ones, then \
             run the command again with --yes.\n",
        )?;
        return Ok(CliExit::Failed);
    }
    let mut sealed = Vec::new();
    for ids in ids.chunks(MIGRATE_BATCH_MAX) {
        let answer = ask(&args.admin_args, Method::POST, "/v1/keys:migrate", Some(json!({ "key_ids": ids }))).await?;
        if json {
            write_json(&answer)?;
        }
        sealed.extend(parse_keys(answer)?);
    }
    if !json {
        write_stdout(&render_table(sealed))?;
    }
    Ok(CliExit::Success)
}

fn parse_keys(answer: Value) -> Result<Vec<KeyRow>, CliError> {
    let KeyList { keys } = serde_json::from_value(answer).map_err(|error| {
        CliError::Failed(format!("the answer has an unexpected format; the node may run another release: {error}"))
    })?;
    Ok(keys)
}

fn yes() -> bool {
    true
}

/// Returns the keys as a table.
fn render_table(keys: Vec<KeyRow>) -> String {
    let mut table = Table::new(vec![
        Column::Left("KEY"),
        Column::Left("STATE"),
        Column::Left("TENANT"),
        Column::Left("USER"),
        Column::Left("SCOPES"),
        Column::Left("SERVES"),
        Column::Left("CREATED"),
        Column::Left("ENDS"),
        Column::Left("LABEL"),
    ]);
    for key in keys {
        let state = match (key.good, key.revoked_ts) {
            (true, _) => "valid",
            (false, Some(_)) => "revoked",
            (false, None) if !key.sealed => "unsealed",
            (false, None) => "expired",
        };
        table.push_row([
            key.key_id,
            state.to_owned(),
            key.tenant,
            key.user_id.unwrap_or_default(),
            key.scopes.join(","),
            key.serves.join(","),
            format_date(key.created_ts),
            key.revoked_ts.or(key.expires_ts).map(format_date).unwrap_or_default(),
            key.label.unwrap_or_default(),
        ]);
    }
    table.render()
}

async fn revoke(args: &RevokeArgs, json: bool) -> Result<CliExit, CliError> {
    // The argument may also be a whole key; only the key's id leaves this process.
    let id = args.key_id.strip_prefix("twk_").and_then(|rest| rest.split('_').next()).unwrap_or(&args.key_id);
    if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(CliError::Usage("expected a key id, as `turnway key list` shows it".to_owned()));
    }
    let answer = ask(&args.admin_args, Method::POST, &format!("/v1/keys/{id}:revoke"), None).await?;
    if json {
        write_json(&answer)?
    } else {
        write_stdout(&format!("key {id} is revoked\n"))?
    }
    Ok(CliExit::Success)
}

/// Parses a lifetime: a wait as elsewhere in the configuration, or a number of days.
fn parse_lifetime(text: &str) -> Result<Duration, String> {
    let lasting = parse_long_wait(text).filter(|lasting| lasting.as_secs() > 0);
    lasting.ok_or_else(|| "expected a time such as 90d, 12h or 30m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_lifetime_is_parsed() {
        assert_eq!(parse_lifetime("90d"), Ok(Duration::from_secs(90 * 86_400)));
        assert_eq!(parse_lifetime("12h"), Ok(Duration::from_secs(43_200)));
        for bad in ["", "d", "0d", "1.5d", "90", "500ms", "-1d"] {
            assert!(parse_lifetime(bad).is_err(), "{bad}");
        }
    }
}
