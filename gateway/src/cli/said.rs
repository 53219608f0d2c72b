//! What is said in a conversation, as people read it; the same in a chat and in a replay.
use turnway_client::{Done, Message};

/// A message.
pub(super) fn said(message: &Message) -> String {
    format!("{}: {}", message.sender.as_deref().unwrap_or(&message.role), message.text)
}

/// An agent's name before its answer.
pub(super) fn answerer(agent: Option<&str>) -> &str {
    agent.filter(|agent| !agent.is_empty()).unwrap_or("agent")
}

/// How a turn ended, where it is not the usual way.
pub(super) fn ending(done: &Done) -> Option<String> {
    let short = (!done.complete).then(|| format!("[{} of {} bytes]", done.text.len(), done.text_bytes));
    let how = match (done.status.as_str(), &done.error) {
        ("completed", _) => None,
        (status, Some(error)) => Some(format!("[{status}: {} {}]", error.code, error.message)),
        (status, None) => Some(format!("[{status}]")),
    };
    match (short, how) {
        (Some(short), Some(how)) => Some(format!("{short} {how}")),
        (short, how) => short.or(how),
    }
}
