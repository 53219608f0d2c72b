//! Checks that the user of `store.url` has every right that a node needs: each command and each pattern of keys and
//! channels is tried in a form that changes nothing. Called at start and by the monitor.
use crate::config::redis::RedisUrl;
use crate::redis::connect;
use crate::redis::server_error::{ServerCondition, classify};
use crate::store::redis::RedisOpenError;
use ::redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisError, ServerError, Value, cmd};
use std::fmt;
use std::time::Duration;

/// Timeout of a command: longer than the longest round trip at which a node can hold a lease.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(4);
/// Maximum missing rights that are named in an error.
const LISTED_MAX: usize = 6;

/// Every pattern of keys that a node uses, and a key that matches the pattern. Commands on these keys change nothing
/// even if a key exists: they use a hash field that is never set, or fail on a key of another type.
pub(super) const KEYS: [(&str, &str); 18] = [
    ("own:*", "own:{turnway/probe}"),
    ("in:*", "in:{turnway/probe}"),
    ("ctl:*", "ctl:{turnway/probe}"),
    ("log:*", "log:{turnway/probe}"),
    ("dd:*", "dd:{turnway/probe}"),
    ("ap:*", "ap:{turnway/probe}"),
    ("ls:*", "ls:{turnway/probe}"),
    ("snap:*", "snap:{turnway/probe}"),
    ("node:*", "node:{turnway/probe}"),
    ("nidx:*", "nidx:{turnway/probe}"),
    ("ix:*", "ix:{turnway/probe}"),
    ("val:*", "val:{turnway/probe}"),
    ("mark:*", "mark:{turnway/probe}"),
    ("rate:*", "rate:{turnway/probe}"),
    ("lives", "lives"),
    ("tenants", "tenants"),
    ("realm", "realm"),
    ("nodes", "nodes"),
];

/// Every command that a node or one of its functions uses, in a form that changes nothing: on a missing key, under an
/// unmet condition, or with an argument that is checked after the rights. The mark is a string, so that SADD to it
/// fails; it is deleted at the end.
pub(super) const COMMANDS: [&str; 32] = [
    "FCALL turnway1_mark 1 mark:{turnway/probe} 1",
    "FCALL_RO turnway1_version 0",
    "PING",
    "TIME",
    "HGET own:{turnway/probe} f",
    "HMGET own:{turnway/probe} f",
    "HGETALL own:{turnway/probe}",
    "HVALS own:{turnway/probe}",
    "HLEN own:{turnway/probe}",
    "HEXISTS own:{turnway/probe} f",
    "HSCAN own:{turnway/probe} 0",
    "HDEL own:{turnway/probe} f",
    "HSET own:{turnway/probe} f v odd",
    "HINCRBY own:{turnway/probe} f none",
    "XLEN own:{turnway/probe}",
    "XRANGE own:{turnway/probe} - + COUNT 1",
    "XADD own:{turnway/probe} NOMKSTREAM * f v",
    "XDEL own:{turnway/probe} 1-1",
    "XTRIM own:{turnway/probe} MAXLEN 0",
    "ZADD own:{turnway/probe} XX 0 m",
    "ZREM own:{turnway/probe} m",
    "ZSCORE own:{turnway/probe} m",
    "ZRANGE own:{turnway/probe} 0 0",
    "ZREVRANGEBYLEX own:{turnway/probe} + - LIMIT 0 1",
    "SADD mark:{turnway/probe} m",
    "SMEMBERS own:{turnway/probe}",
    "SET own:{turnway/probe} v XX",
    "GET own:{turnway/probe}",
    "PEXPIREAT own:{turnway/probe} 1",
    "PUBLISH inbox:{turnway/probe} x",
    "DEL mark:{turnway/probe}",
    "WAIT 0 1",
];
/// Needed only if replies wait for replicas.
const WAIT: &str = "WAIT";
/// The channel of a node id that no node has.
const CHANNEL: &str = "inbox:{turnway/probe}";

/// A missing right: the ACL rule that would grant it, and the server's error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingRight {
    rule: String,
    error: String,
}

/// The rights that are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingRights(Vec<MissingRight>);

/// Checks that the user has every right that a node needs. Fails if the server could not be asked.
pub(super) async fn check(url: &RedisUrl, with_wait: bool, within: Duration) -> Result<(), RedisOpenError> {
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(COMMAND_TIMEOUT));
    let mut connection = connect::connect_within(url, config, within).await?;
    let commands = COMMANDS.iter().filter(|words| with_wait || !words.starts_with(WAIT));
    let mut tries: Vec<(String, Cmd)> = commands.map(|words| (acl_rule(words), parse_command(words))).collect();
    for (pattern, key) in KEYS {
        for words in [format!("HGET {key} turnway-probe"), format!("HDEL {key} turnway-probe")] {
            tries.push((format!("~{pattern}"), parse_command(&words)));
        }
    }
    let mut pipeline = Pipeline::with_capacity(tries.len());
    for (_, command) in &tries {
        pipeline.add_command(command.clone());
    }
    let answers = connection.send_packed_commands(&pipeline, 0, tries.len()).await;
    let answers = answers.map_err(|error| RedisOpenError::Command { error })?;
    let mut missing: Vec<MissingRight> = tries
        .into_iter()
        .zip(answers)
        .filter_map(|((rule, _), answer)| {
            let Value::ServerError(error) = answer else { return None };
            MissingRight::of(rule, &error)
        })
        .collect();
    if let Err(error) = connection.subscribe(CHANNEL).await {
        missing.extend(MissingRight::of_channel(&error));
    }
    // Missing rights on keys are reported by the rule for keys, and each rule once.
    missing.dedup_by(|later, first| later.rule == first.rule);
    if missing.is_empty() { Ok(()) } else { Err(RedisOpenError::Rights(MissingRights(missing))) }
}

fn parse_command(words: &str) -> Cmd {
    let mut words = words.split(' ');
    let mut command = cmd(words.next().unwrap_or_default());
    for word in words {
        command.arg(word);
    }
    command
}

/// Returns the ACL rule that allows a command.
fn acl_rule(words: &str) -> String {
    format!("+{}", words.split(' ').next().unwrap_or_default().to_ascii_lowercase())
}

// === impl MissingRight ===

impl MissingRight {
    fn of(rule: String, error: &ServerError) -> Option<Self> {
        let detail = error.details().unwrap_or_default();
        if classify(error.code(), detail) != Some(ServerCondition::Forbidden) {
            return None;
        }
        // For an allowed command only its keys may be forbidden; keys are tried separately.
        let is_about_keys = error.code() == "NOPERM" && (detail.contains("key") || detail.contains("channel"));
        if is_about_keys && rule.starts_with('+') && rule != "+publish" {
            return None;
        }
        let rule = if is_about_keys && rule == "+publish" { "&inbox:*".to_owned() } else { rule };
        Some(Self { rule, error: format!("{} {detail}", error.code()) })
    }

    fn of_channel(error: &RedisError) -> Option<Self> {
        let code = error.code().unwrap_or_default();
        let detail = error.detail().unwrap_or_default();
        if classify(code, detail) != Some(ServerCondition::Forbidden) {
            return None;
        }
        let rule = if detail.contains("channel") { "&inbox:*" } else { "+subscribe" };
        Some(Self { rule: rule.to_owned(), error: format!("{code} {detail}") })
    }
}

impl fmt::Display for MissingRights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, MissingRight { rule, error }) in self.0.iter().take(LISTED_MAX).enumerate() {
            write!(f, "{}`{rule}` ({error})", if n > 0 { ", " } else { "" })?;
        }
        match self.0.len().checked_sub(LISTED_MAX) {
            Some(more @ 1..) => write!(f, ", and {more} more"),
            Some(0) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::library::SOURCE;
    use std::collections::BTreeSet;

    /// Returns the commands that the library calls, in lower case.
    fn called() -> BTreeSet<String> {
        let calls = SOURCE.split("redis.call('").skip(1).chain(SOURCE.split("redis.pcall('").skip(1));
        calls.filter_map(|rest| rest.split('\'').next()).map(str::to_ascii_lowercase).collect()
    }

    /// Covers: S-40.
    #[test]
    fn rights_check_covers_every_function_command() {
        let tried: BTreeSet<String> = COMMANDS.iter().map(|words| acl_rule(words)[1..].to_owned()).collect();
        let missing: Vec<String> = called().difference(&tried).cloned().collect();
        // The function that calls INFO works without its answer.
        assert_eq!(missing, ["info"]);
    }

    /// Covers: S-40.
    #[test]
    fn shipped_user_has_every_checked_right() {
        let shipped = include_str!("../../../../deploy/redis-users.acl");
        let node = shipped.lines().find(|line| line.starts_with("user turnway on")).expect("the user of nodes");
        let rules: BTreeSet<&str> = node.split(' ').collect();
        for rule in COMMANDS.iter().map(|words| acl_rule(words)) {
            assert!(rules.contains(rule.as_str()), "{rule}");
        }
        for (pattern, _) in KEYS {
            assert!(rules.contains(format!("~{pattern}").as_str()), "{pattern}");
        }
        let patterns = node.split(' ').filter(|rule| rule.starts_with('~')).count();
        assert_eq!(patterns, KEYS.len(), "every pattern is tried");
    }
}
