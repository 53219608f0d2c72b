//! Formats messages and turn endings of a conversation as text. Shared by the chat and the replay.
use turnway_client::{Done, StoredMessage};

/// Formats a message as `SENDER: TEXT`; the role stands in for a missing sender.
pub(super) fn message_line(message: &StoredMessage) -> String {
    format!("{}: {}", message.sender.as_deref().unwrap_or(&message.role), message.text)
}

/// Returns the name that is printed before an answer: the agent's name, or `agent` if there is none.
pub(super) fn speaker_name(agent: Option<&str>) -> &str {
    agent.filter(|agent| !agent.is_empty()).unwrap_or("agent")
}

/// Describes how a turn ended, or returns `None` if it completed with its whole text.
pub(super) fn ending_text(done: &Done) -> Option<String> {
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
