//! An answer in one response: one `chat.completion`. Nothing is sent before the turn's end, so a restart of the
//! turn is harmless.
use super::frame::{Answer, Completion, Head, finish};
use super::progress::{Progress, Step};
use super::{Trouble, usage};
use crate::channel::note::Note;
use turnway_core::id::RunId;
use turnway_core::protocol::agent::StopReason;
use turnway_core::protocol::json::Json;

/// Maximum bytes of reasoning kept with an answer; the rest is dropped. The answer's text is limited at the session
/// (`TURN_TEXT_BYTES_MAX`), reasoning is not.
const REASONING_BYTES_MAX: usize = 256 * 1024;

/// Collects one answer until the turn's end.
#[derive(Debug)]
pub struct Whole {
    head: Head,
    progress: Progress,
    text: String,
    reasoning: String,
    end: Option<Result<End, Trouble>>,
}

#[derive(Debug)]
struct End {
    stop: StopReason,
    usage: Option<Json>,
}

// === impl Whole ===

impl Whole {
    /// Creates the collector for a turn's answer.
    pub fn new(head: Head, run_id: RunId) -> Self {
        let (text, reasoning) = (String::new(), String::new());
        Self { head, progress: Progress::new(run_id, 0), text, reasoning, end: None }
    }

    /// Returns whether the turn has ended.
    pub fn is_over(&self) -> bool {
        self.end.is_some()
    }

    /// Processes a notification; notifications of other turns are ignored.
    pub fn show(&mut self, note: &Note) {
        let Self { progress, text, reasoning, end, .. } = self;
        progress.take(note, &mut |step| match step {
            Step::Text(piece) => text.push_str(piece),
            Step::Reasoning(piece) => {
                let room = REASONING_BYTES_MAX.saturating_sub(reasoning.len());
                reasoning.push_str(&piece[..piece.floor_char_boundary(room)]);
            }
            Step::Restarted => {
                text.clear();
                reasoning.clear();
            }
            Step::Done(stop, counted) => *end = Some(Ok(End { stop, usage: usage::of(counted) })),
            Step::Failed(trouble) => *end = Some(Err(trouble)),
        });
    }

    /// Returns the answer or the error, or `None` before the turn's end.
    pub fn answer(&self) -> Option<Result<String, Trouble>> {
        Some(match self.end.as_ref()? {
            Ok(End { stop, usage }) => {
                let reasoning_content = Some(&*self.reasoning).filter(|text| !text.is_empty());
                let message =
                    Answer { role: "assistant", content: &self.text, refusal: (), reasoning_content };
                let completion = Completion::new(&self.head, message, finish(*stop), usage.as_ref());
                // Responses have string keys and finite numbers only, so they always serialise.
                Ok(serde_json::to_string(&completion).unwrap_or_default())
            }
            Err(trouble) => Err(trouble.clone()),
        })
    }
}

#[cfg(test)]
mod tests;
