//! The answer at once: one `chat.completion`. Nothing of it is sent before its end, so a turn that begins
//! again does it no harm.
use super::frame::{Answer, Completion, Head, finish};
use super::progress::{Progress, Step};
use super::{Trouble, usage};
use crate::channel::note::Note;
use turnway_core::id::RunId;
use turnway_core::protocol::agent::StopReason;
use turnway_core::protocol::json::Json;

/// Reasoning that is kept beside an answer; more is left out. The answer itself is bounded where it is made
/// (`TURN_TEXT_BYTES_MAX`), reasoning is not.
const REASONING_BYTES_MAX: usize = 256 * 1024;

/// One answer in the making.
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
    /// The answer to a turn.
    pub fn new(head: Head, run_id: RunId) -> Self {
        let (text, reasoning) = (String::new(), String::new());
        Self { head, progress: Progress::new(run_id, 0), text, reasoning, end: None }
    }

    /// Whether nothing will follow.
    pub fn is_over(&self) -> bool {
        self.end.is_some()
    }

    /// Takes what of a note belongs here.
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

    /// The answer, or what went wrong; none, while it is not over.
    pub fn answer(&self) -> Option<Result<String, Trouble>> {
        Some(match self.end.as_ref()? {
            Ok(End { stop, usage }) => {
                let reasoning_content = Some(&*self.reasoning).filter(|text| !text.is_empty());
                let message =
                    Answer { role: "assistant", content: &self.text, refusal: (), reasoning_content };
                let completion = Completion::new(&self.head, message, finish(*stop), usage.as_ref());
                // Our shapes have string keys and finite numbers only, so they always serialise.
                Ok(serde_json::to_string(&completion).unwrap_or_default())
            }
            Err(trouble) => Err(trouble.clone()),
        })
    }
}

#[cfg(test)]
mod tests;
