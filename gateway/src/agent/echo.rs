//! `builtin:echo`: repeats the input, word by word. Called by `execution`.
use crate::agent::attempt::AttemptTask;
use std::time::Duration;
use turnway_core::protocol::agent::{AgentEvent, StopReason, TextKind};

/// Prefix of an input to repeat at [`PACE`], for people who want to watch.
const SLOW: &str = "/slow ";
/// Pause between two words of a slow answer.
const PACE: Duration = Duration::from_millis(100);

/// Answers, and returns how the attempt ended. Without [`SLOW`] there is no timer: benchmarks measure this path.
pub(super) async fn run(attempt: &mut AttemptTask) -> AgentEvent {
    attempt.report(AgentEvent::Acked).await;
    let text = attempt.invoke.message.content.plain_text();
    match text.strip_prefix(SLOW) {
        Some(text) => Box::pin(say_slowly(attempt, text)).await,
        None => {
            for word in words(&text) {
                if attempt.is_cancelled() {
                    break;
                }
                attempt.report_text(TextKind::Text, word.to_owned(), None).await;
            }
        }
    }
    if attempt.is_cancelled() {
        return AgentEvent::CancelAcked;
    }
    AgentEvent::Done { stop: StopReason::EndTurn, usage: None }
}

async fn say_slowly(attempt: &mut AttemptTask, text: &str) {
    let control = attempt.control();
    for word in words(text) {
        attempt.report_text(TextKind::Text, word.to_owned(), None).await;
        tokio::select! {
            biased;
            () = control.wait_cancelled() => return,
            () = tokio::time::sleep(PACE) => {}
        }
    }
}

/// Splits text into words, each with the white space after it: joined they are the text again.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(char::is_whitespace)
}
