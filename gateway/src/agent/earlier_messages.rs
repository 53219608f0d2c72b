//! Gives an agent that keeps no state the earlier messages of its session, which the operator asked for by `history`. Called
//! by `execution`; models read theirs themselves.
use crate::agent::AgentsInner;
use crate::agent::conversation::EarlierMessage;
use crate::run_token::TokenRun;
use serde_json::Value;
use std::collections::VecDeque;
use turnway_core::limits;
use turnway_core::protocol::agent::{AgentFailure, Invoke};
use turnway_core::protocol::history::{History, HistoryText};
use turnway_core::protocol::json::json_bytes;

/// Adds the earlier messages to an order, unless its client sent its own. All attempts at a run get the same ones.
pub(super) async fn add(agents: &AgentsInner, invoke: &mut Invoke) -> Result<(), AgentFailure> {
    let count = agents.history_messages.get(&invoke.agent_id).copied().unwrap_or(0);
    if count == 0 || invoke.history.is_some() {
        return Ok(());
    }
    let unavailable = |why: String| AgentFailure::Unavailable(why);
    let access = agents.model_access.get().ok_or_else(|| unavailable("the node has not started".to_owned()))?;
    let run = TokenRun::of(invoke);
    let earlier = access.conversations.read_before(run).await.map_err(|error| unavailable(error.to_string()))?;
    let newest = earlier.into_iter().rev().take(count).map(EarlierMessage::into_value);
    invoke.history = newest_inline(newest);
    Ok(())
}

/// Returns the newest messages that fit into an order, oldest first; none if there is no message.
fn newest_inline(newest_first: impl Iterator<Item = Value>) -> Option<History> {
    let mut kept = VecDeque::new();
    // The brackets around the messages; a comma follows each.
    let mut bytes = 2;
    for message in newest_first {
        bytes += json_bytes(&message) + 1;
        if bytes > limits::HISTORY_BYTES_MAX {
            break;
        }
        kept.push_front(message);
    }
    let mut text = HistoryText::default();
    kept.iter().for_each(|message| text.push(message));
    if text.is_empty() { None } else { History::from_text(text).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn text(history: Option<&History>) -> &str {
        history.and_then(History::inline).unwrap_or_default()
    }

    #[test]
    fn newest_messages_go_in_their_order() {
        let newest_first = [json!({"content": "b", "role": "assistant"}), json!({"content": "a", "role": "user"})];
        let history = newest_inline(newest_first.into_iter());
        let expected = r#"[{"content":"a","role":"user"},{"content":"b","role":"assistant"}]"#;
        assert_eq!(text(history.as_ref()), expected);
        assert_eq!(newest_inline(std::iter::empty()), None);
    }

    #[test]
    fn messages_beyond_the_size_of_an_order_are_left_out() {
        let message = |n: usize| json!({"content": format!("{n}\u{1}{}", "x".repeat(1000)), "role": "user"});
        let history = newest_inline((0..1000).map(message));
        let text = text(history.as_ref());
        let kept: Vec<Value> = serde_json::from_str(text).expect("an array");
        assert!(text.len() <= limits::HISTORY_BYTES_MAX && text.len() > limits::HISTORY_BYTES_MAX - 2000);
        assert_eq!(kept.last(), Some(&message(0)), "the newest stays");
        let one = newest_inline(std::iter::once(json!({"content": "x".repeat(300_000), "role": "user"})));
        assert_eq!(one, None, "a message that fits nowhere");
    }
}
