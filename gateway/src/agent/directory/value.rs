//! Parsers of the values of an agent's keys. Called by `directory`.
use super::BadAgentKey;
use crate::config::amount::parse_wait;
use std::sync::Arc;
use std::time::Duration;
use turnway_core::limits;
use turnway_core::protocol::agent::OnOwnerLoss;
use turnway_core::protocol::pattern::Pattern;

/// Maximum of every timeout of an agent; a larger value is taken for a typing error.
const WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Maximum keep-alive time: servers do not keep an idle connection for longer, and few proxies do.
const KEEP_ALIVE_MAX: Duration = Duration::from_secs(60 * 60);

pub(super) fn on_owner_loss(value: &str) -> Result<OnOwnerLoss, BadAgentKey> {
    match value {
        "retry" => Ok(OnOwnerLoss::Retry),
        "retry_if_silent" => Ok(OnOwnerLoss::RetryIfSilent),
        "fail" => Ok(OnOwnerLoss::Fail),
        "resume" => Ok(OnOwnerLoss::Resume),
        _ => Err(invalid(value, "retry, retry_if_silent, fail or resume")),
    }
}

pub(super) fn wait(value: &str) -> Result<Duration, BadAgentKey> {
    let wait = parse_wait(value).filter(|wait| !wait.is_zero() && *wait <= WAIT_MAX);
    wait.ok_or_else(|| invalid(value, "a wait such as 250ms, 15s, 2m, 1h; at most 24h"))
}

/// Parses how long an idle connection is kept.
pub(super) fn keep_alive(value: &str) -> Result<Duration, BadAgentKey> {
    let wait = if value == "off" { Some(Duration::ZERO) } else { parse_wait(value) };
    let why = "a wait such as 500ms, 4s, 1m, at most 1h; or off";
    wait.filter(|wait| *wait <= KEEP_ALIVE_MAX).ok_or_else(|| invalid(value, why))
}

pub(super) fn flag(value: &str) -> Result<bool, BadAgentKey> {
    value.parse().map_err(|_| invalid(value, "true or false"))
}

pub(super) fn patterns(value: &str) -> Option<Arc<[Pattern]>> {
    if value == "none" {
        return Some(Arc::default());
    }
    let patterns = value.split('|').map(|part| Pattern::parse(part.trim()).ok()).collect::<Option<Arc<[_]>>>()?;
    (patterns.len() <= limits::SUBSCRIBE_TYPES_MAX).then_some(patterns)
}

pub(super) fn invalid(value: &str, why: &'static str) -> BadAgentKey {
    BadAgentKey::Value { value: value.to_owned(), why }
}

/// Parses a number of earlier messages: `off` is 0, and `all` as many as there may be.
pub(super) fn history(text: &str) -> Result<usize, BadAgentKey> {
    let most = limits::MODEL_AGENT_HISTORY_MESSAGES_MAX;
    let count = match text {
        "off" => Some(0),
        "all" => Some(most),
        _ => text.parse().ok().filter(|count| (1..=most).contains(count)),
    };
    count.ok_or_else(|| invalid(text, "a number of messages from 1 to 1000, all or off"))
}
