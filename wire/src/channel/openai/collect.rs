//! An answer in one response: one `chat.completion`. Nothing is sent before the turn's end, so a restart of the
//! turn is harmless.
use super::frame::{ChatAnswerMessage, ChatResponseHead, Completion, finish_reason};
use super::progress::{ChatEvent, Progress};
use super::{ChatError, usage};
use crate::channel::notification::Notification;
use turnway_core::id::RunId;
use turnway_core::protocol::agent::StopReason;
use turnway_core::protocol::json::Json;

/// Maximum bytes of reasoning kept with an answer; the rest is dropped. The answer's text is limited at the session
/// (`TURN_TEXT_BYTES_MAX`), reasoning is not.
const REASONING_BYTES_MAX: usize = 256 * 1024;

/// Collects one answer until the turn's end.
#[derive(Debug)]
pub struct ChatCollector {
    head: ChatResponseHead,
    progress: Progress,
    text: String,
    reasoning: String,
    end: Option<Result<CollectedEnd, ChatError>>,
}

#[derive(Debug)]
struct CollectedEnd {
    stop: StopReason,
    usage: Option<Json>,
}

// === impl ChatCollector ===

impl ChatCollector {
    /// Creates the collector for a turn's answer.
    pub fn new(head: ChatResponseHead, run_id: RunId) -> Self {
        let text = String::new();
        let reasoning = String::new();
        Self { head, progress: Progress::new(run_id, 0), text, reasoning, end: None }
    }

    /// Returns whether the turn has ended.
    pub fn is_finished(&self) -> bool {
        self.end.is_some()
    }

    /// Processes a notification; notifications of other turns are ignored.
    pub fn push(&mut self, note: &Notification) {
        let Self { progress, text, reasoning, end, .. } = self;
        progress.handle_notification(note, &mut |step| match step {
            ChatEvent::Text(piece) => text.push_str(piece),
            ChatEvent::Reasoning(piece) => {
                let left = REASONING_BYTES_MAX.saturating_sub(reasoning.len());
                reasoning.push_str(&piece[..piece.floor_char_boundary(left)]);
            }
            ChatEvent::Restarted => {
                text.clear();
                reasoning.clear();
            }
            ChatEvent::Done(stop, counted) => {
                *end = Some(Ok(CollectedEnd { stop, usage: usage::openai_usage(counted) }))
            }
            ChatEvent::Failed(error) => *end = Some(Err(error)),
        });
    }

    /// Returns the answer or the error, or `None` before the turn's end.
    pub fn response(&self) -> Option<Result<String, ChatError>> {
        Some(match self.end.as_ref()? {
            Ok(CollectedEnd { stop, usage }) => {
                let reasoning_content = Some(&*self.reasoning).filter(|text| !text.is_empty());
                let message =
                    ChatAnswerMessage { role: "assistant", content: &self.text, refusal: (), reasoning_content };
                let completion = Completion::new(&self.head, message, finish_reason(*stop), usage.as_ref());
                // Responses have string keys and finite numbers only, so they always serialise.
                Ok(serde_json::to_string(&completion).unwrap_or_default())
            }
            Err(error) => Err(error.clone()),
        })
    }
}

#[cfg(test)]
mod tests;
