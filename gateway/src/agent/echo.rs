//! `builtin:echo`: says what it was told, word by word.
use crate::agent::attempt::Attempt;
use std::time::Duration;
use turnway_core::protocol::agent::{AgentEvent, StopReason, TextKind};

/// Text that begins so is said at [`PACE`], for people who want to watch.
const SLOW: &str = "/slow ";
/// Between two words said slowly.
const PACE: Duration = Duration::from_millis(100);

/// Answers; returns how it ended. Without [`SLOW`] there is no timer: this is what benchmarks measure.
pub(super) async fn run(attempt: &mut Attempt) -> AgentEvent {
    attempt.report(AgentEvent::Acked).await;
    let text = attempt.invoke.message.content.plain();
    match text.strip_prefix(SLOW) {
        Some(text) => Box::pin(say_slowly(attempt, text)).await,
        None => {
            for word in words(&text) {
                if attempt.is_cancelled() {
                    break;
                }
                attempt.say(TextKind::Text, word.to_owned(), None).await;
            }
        }
    }
    if attempt.is_cancelled() {
        return AgentEvent::CancelAcked;
    }
    AgentEvent::Done { stop: StopReason::EndTurn, usage: None }
}

async fn say_slowly(attempt: &mut Attempt, text: &str) {
    let line = attempt.line();
    for word in words(text) {
        attempt.say(TextKind::Text, word.to_owned(), None).await;
        tokio::select! {
            biased;
            () = line.cancel_ordered() => return,
            () = tokio::time::sleep(PACE) => {}
        }
    }
}

/// Words with the white space after them: put together they are the text again.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(char::is_whitespace)
}
