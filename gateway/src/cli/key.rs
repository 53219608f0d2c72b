//! `turnway key …`: creates, lists, migrates and revokes API keys through a node's operators' listener.
use super::calendar::date;
use super::http::{Ask, PATIENCE, Server};
use super::table::{Column, Table};
use super::{Exit, Trouble, say, say_json};
use crate::config::amount::parse_wait;
use clap::{Args, Subcommand};
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// Default address of a node's operators' listener.
const ADMIN: &str = "http://127.0.0.1:8081";
/// Number of keys that a node seals in one request.
const MIGRATE_AT_ONCE: usize = 100;
/// A key's lifetime may be given in days, which `parse_wait` does not accept.
const DAY: Duration = Duration::from_secs(86_400);

/// Subcommands of `turnway key`.
#[derive(Clone, Debug, Subcommand)]
pub enum KeyCommand {
    /// Create a key; the key is printed once and cannot be printed again
    New(NewArgs),
    /// List all keys, newest first, without their secrets
    List(OfficeArgs),
    /// Seal keys of an earlier release, whose rights are not protected by a seal yet; without --yes only list them
    Migrate(MigrateArgs),
    /// Revoke a key: within 5 s no node accepts it, and its connections are closed
    Revoke(RevokeArgs),
}

/// Arguments that select the node to ask.
#[derive(Clone, Debug, Args)]
pub struct OfficeArgs {
    /// Address of a node's operators' listener; any node of a fleet
    #[arg(long, value_name = "URL", env = "TURNWAY_ADMIN", default_value = ADMIN)]
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
    /// Scopes of the key: read, write, act_as (any user of the tenant), operator (every session of the tenant, but not the node)
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
    #[arg(long, value_name = "WAIT", value_parser = lasting)]
    pub lasts: Option<Duration>,
    /// The node to ask.
    #[command(flatten)]
    pub office: OfficeArgs,
}

/// Arguments of `turnway key migrate`.
#[derive(Clone, Debug, Args)]
pub struct MigrateArgs {
    /// Seal the listed keys: confirms that every row grants the intended rights
    #[arg(long)]
    pub yes: bool,
    /// The node to ask.
    #[command(flatten)]
    pub office: OfficeArgs,
}

/// Arguments of `turnway key revoke`.
#[derive(Clone, Debug, Args)]
pub struct RevokeArgs {
    /// Id of the key: the part between the two underscores, as `turnway key list` shows it
    pub key_id: String,
    /// The node to ask.
    #[command(flatten)]
    pub office: OfficeArgs,
}

#[derive(Deserialize)]
struct List {
    keys: Vec<Key>,
}

/// The fields of a key that the table shows.
#[derive(Deserialize)]
struct Key {
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
pub async fn run(command: KeyCommand, json: bool) -> Result<Exit, Trouble> {
    match command {
        KeyCommand::New(args) => make(args, json).await,
        KeyCommand::List(args) => list(&args, json).await,
        KeyCommand::Migrate(args) => migrate(&args, json).await,
        KeyCommand::Revoke(args) => revoke(&args, json).await,
    }
}

async fn ask(office: &OfficeArgs, method: Method, path: &str, body: Option<Value>) -> Result<Value, Trouble> {
    let ask = Ask { method, path, who: None, body, patience: PATIENCE };
    Server::parse(&office.admin)?.ask(ask).await
}

async fn make(args: NewArgs, json: bool) -> Result<Exit, Trouble> {
    let mut body = json!({
        "tenant": args.tenant, "user_id": args.user, "scopes": args.scopes, "label": args.label,
        "lasts_s": args.lasts.map(|lasts| lasts.as_secs()),
    });
    if !args.serves.is_empty() {
        body["serves"] = args.serves.into();
    }
    let made = ask(&args.office, Method::POST, "/v1/keys", Some(body)).await?;
    if json {
        say_json(&made)?;
        return Ok(Exit::Fine);
    }
    let key = made.get("key").and_then(Value::as_str);
    let key = key.ok_or_else(|| Trouble::Failed("the node's answer has an unexpected format, probably because it runs another release".to_owned()))?;
    // The key stands alone on its line, so that a program can read it.
    say(&format!("{key}\n"))?;
    Ok(Exit::Fine)
}

async fn list(args: &OfficeArgs, json: bool) -> Result<Exit, Trouble> {
    let told = ask(args, Method::GET, "/v1/keys", None).await?;
    if json {
        say_json(&told)?;
        return Ok(Exit::Fine);
    }
    say(&shown(listed(told)?))?;
    Ok(Exit::Fine)
}

async fn migrate(args: &MigrateArgs, json: bool) -> Result<Exit, Trouble> {
    let all = listed(ask(&args.office, Method::GET, "/v1/keys", None).await?)?;
    let unsealed: Vec<Key> = all.into_iter().filter(|key| !key.sealed && key.revoked_ts.is_none()).collect();
    if unsealed.is_empty() {
        say("every key is sealed\n")?;
        return Ok(Exit::Fine);
    }
    let ids: Vec<String> = unsealed.iter().map(|key| key.key_id.clone()).collect();
    if !args.yes {
        say(&shown(unsealed))?;
        say("These keys are not accepted until they are sealed. Check what each one grants, revoke unknown ones, then run the command again with --yes.\n")?;
        return Ok(Exit::Failed);
    }
    let mut sealed = Vec::new();
    for ids in ids.chunks(MIGRATE_AT_ONCE) {
        let told =
            ask(&args.office, Method::POST, "/v1/keys:migrate", Some(json!({ "key_ids": ids }))).await?;
        if json {
            say_json(&told)?;
        }
        sealed.extend(listed(told)?);
    }
    if !json {
        say(&shown(sealed))?;
    }
    Ok(Exit::Fine)
}

fn listed(told: Value) -> Result<Vec<Key>, Trouble> {
    let List { keys } = serde_json::from_value(told)
        .map_err(|error| Trouble::Failed(format!("the node's answer has an unexpected format, probably because it runs another release: {error}")))?;
    Ok(keys)
}

fn yes() -> bool {
    true
}

/// Returns the keys as a table.
fn shown(keys: Vec<Key>) -> String {
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
        table.row([
            key.key_id,
            state.to_owned(),
            key.tenant,
            key.user_id.unwrap_or_default(),
            key.scopes.join(","),
            key.serves.join(","),
            date(key.created_ts),
            key.revoked_ts.or(key.expires_ts).map(date).unwrap_or_default(),
            key.label.unwrap_or_default(),
        ]);
    }
    table.text()
}

async fn revoke(args: &RevokeArgs, json: bool) -> Result<Exit, Trouble> {
    // The argument may also be a whole key; only the key's id leaves this process.
    let id = args.key_id.strip_prefix("twk_").and_then(|rest| rest.split('_').next()).unwrap_or(&args.key_id);
    if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(Trouble::Usage("expected a key id, as `turnway key list` shows it".to_owned()));
    }
    let told = ask(&args.office, Method::POST, &format!("/v1/keys/{id}:revoke"), None).await?;
    if json {
        say_json(&told)?
    } else {
        say(&format!("key {id} is revoked\n"))?
    }
    Ok(Exit::Fine)
}

/// Parses a lifetime: a wait as elsewhere in the configuration, or a number of days.
fn lasting(text: &str) -> Result<Duration, String> {
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok()).map(|days| DAY * days);
    let lasting = days.or_else(|| parse_wait(text)).filter(|lasting| lasting.as_secs() > 0);
    lasting.ok_or_else(|| "expected a time such as 90d, 12h or 30m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_lifetime_is_parsed() {
        assert_eq!(lasting("90d"), Ok(DAY * 90));
        assert_eq!(lasting("12h"), Ok(Duration::from_secs(43_200)));
        for bad in ["", "d", "0d", "1.5d", "90", "500ms", "-1d"] {
            assert!(lasting(bad).is_err(), "{bad}");
        }
    }
}
