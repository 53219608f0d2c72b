//! A streamed answer: `chat.completion.chunk`s as server-sent events, then `[DONE]`.
use super::frame::{ChatChunk, ChatDelta, ChatResponseHead, ChunkChoice, finish_reason};
use super::progress::{ChatEvent, Progress};
use super::{ChatError, usage};
use crate::channel::notification::Notification;
use crate::channel::sse;
use turnway_core::id::RunId;
use turnway_core::protocol::agent::StopReason;
use turnway_core::protocol::json::Json;

/// The marker of a complete answer. An incomplete answer ends with an error object instead.
const DONE_MARKER: &str = "[DONE]";

/// One streamed answer.
#[derive(Debug)]
pub struct ChatStream {
    head: ChatResponseHead,
    progress: Progress,
    writer: ChunkWriter,
    /// Text withheld while the turn may still restart, because its end is yet to be found in the log; none of it
    /// has been sent.
    withheld: Option<String>,
}

/// The state of the output stream.
#[derive(Debug)]
struct ChunkWriter {
    include_usage: bool,
    /// The first chunk, which names the assistant's role, was sent.
    first_chunk_sent: bool,
    /// Some text was sent.
    text_sent: bool,
    /// The error, if the turn failed before anything was sent; the HTTP status can still report it.
    early_error: Option<ChatError>,
}

// === impl ChatStream ===

impl ChatStream {
    /// Creates the answer to a turn, starting at `attempt`. `include_usage` adds a usage chunk at the end.
    pub fn new(head: ChatResponseHead, run_id: RunId, attempt: u32, include_usage: bool) -> Self {
        let writer = ChunkWriter { include_usage, first_chunk_sent: false, text_sent: false, early_error: None };
        Self { head, progress: Progress::new(run_id, attempt), writer, withheld: None }
    }

    /// Withholds all output until the turn's end is known. For a turn that may have ended already, after an unknown
    /// number of attempts.
    #[must_use]
    pub fn hold_until_end(self) -> Self {
        Self { withheld: Some(String::new()), ..self }
    }

    pub fn run_id(&self) -> &RunId {
        self.progress.run_id()
    }

    /// Returns whether the answer is complete.
    pub fn is_finished(&self) -> bool {
        self.progress.has_ended()
    }

    /// Returns whether anything was sent.
    pub fn has_begun(&self) -> bool {
        self.writer.first_chunk_sent
    }

    /// Returns the error that occurred before anything was sent.
    pub fn error_before_start(&self) -> Option<&ChatError> {
        self.writer.early_error.as_ref()
    }

    /// Sends the first chunk unless it was sent. From then on errors are reported in the stream.
    pub fn send_first_chunk(&mut self, to: &mut String) {
        self.writer.send_first_chunk(&self.head, to);
    }

    /// Appends the events for a notification; nothing if it does not concern this turn.
    pub fn push(&mut self, note: &Notification, to: &mut String) {
        let Self { head, progress, writer: page, withheld: held } = self;
        let mut broken = false;
        progress.handle_notification(note, &mut |step| match step {
            // Steps after a failure are ignored.
            _ if broken => {}
            ChatEvent::Text(text) => match held {
                Some(held) => held.push_str(text),
                None => page.text(head, text, to),
            },
            ChatEvent::Reasoning(_) if held.is_some() => {}
            ChatEvent::Reasoning(text) => {
                page.write_after_first(
                    head,
                    ChatDelta { reasoning_content: Some(text), ..ChatDelta::default() },
                    None,
                    to,
                );
            }
            ChatEvent::Restarted if page.text_sent => {
                broken = true;
                page.fail(ChatError::turn_restarted(), to);
            }
            ChatEvent::Restarted => held.iter_mut().for_each(String::clear),
            ChatEvent::Done(stop, usage) => {
                if let Some(text) = held.as_deref().filter(|text| !text.is_empty()) {
                    page.text(head, text, to);
                }
                page.write_end(head, stop, usage, to);
            }
            ChatEvent::Failed(error) => page.fail(error, to),
        });
        if broken {
            progress.stop();
        }
    }

    /// Ends the answer with an error, because the turn cannot be followed any more.
    pub fn abort(&mut self, error: ChatError, to: &mut String) {
        if !self.is_finished() {
            self.progress.stop();
            self.writer.fail(error, to);
        }
    }
}

// === impl ChunkWriter ===

impl ChunkWriter {
    fn send_first_chunk(&mut self, head: &ChatResponseHead, to: &mut String) {
        if !std::mem::replace(&mut self.first_chunk_sent, true) {
            self.write(
                head,
                ChatDelta { role: Some("assistant"), content: Some(""), ..ChatDelta::default() },
                None,
                to,
            );
        }
    }

    fn text(&mut self, head: &ChatResponseHead, text: &str, to: &mut String) {
        self.text_sent = true;
        self.write_after_first(head, ChatDelta { content: Some(text), ..ChatDelta::default() }, None, to);
    }

    fn write_after_first(
        &mut self,
        head: &ChatResponseHead,
        delta: ChatDelta<'_>,
        finish_reason: Option<&'static str>,
        to: &mut String,
    ) {
        self.send_first_chunk(head, to);
        self.write(head, delta, finish_reason, to);
    }

    fn write_end(&mut self, head: &ChatResponseHead, stop: StopReason, counted: Option<&Json>, to: &mut String) {
        self.write_after_first(head, ChatDelta::default(), Some(finish_reason(stop)), to);
        if let Some(usage) = usage::openai_usage(counted).filter(|_| self.include_usage) {
            event(&ChatChunk::new(head, &[], Some(Some(&usage))), to);
        }
        sse::push_event(to, None, DONE_MARKER);
    }

    fn fail(&mut self, error: ChatError, to: &mut String) {
        if self.first_chunk_sent {
            sse::push_event(to, None, &error.to_json());
        } else {
            self.early_error = Some(error);
        }
    }

    fn write(
        &self,
        head: &ChatResponseHead,
        delta: ChatDelta<'_>,
        finish_reason: Option<&'static str>,
        to: &mut String,
    ) {
        let none: Option<&Json> = None;
        let choice = ChunkChoice { index: 0, delta, logprobs: (), finish_reason };
        event(&ChatChunk::new(head, &[choice], self.include_usage.then_some(none)), to);
    }
}

/// Appends a chunk as an event. Chunks have string keys and finite numbers only, so they always serialise.
fn event(chunk: &ChatChunk<'_>, to: &mut String) {
    sse::push_event(to, None, &serde_json::to_string(chunk).unwrap_or_default());
}

#[cfg(test)]
pub(super) mod tests;
