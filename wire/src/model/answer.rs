//! Reads an answer of an upstream beside its relay. Must not hold back bytes, except an event that the gateway asked for.
use super::{CallFormat, TokenUsage};
use bytes::Bytes;

/// A reader of one answer. The bytes are the decoded ones, without a content encoding.
#[derive(Debug)]
pub struct AnswerReader {
    format: CallFormat,
    hide_usage: bool,
}

/// Verdicts on the beginning of an answer, for the choice whether another upstream may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerOpening {
    /// No event has arrived, and no telling member of a document.
    Undecided,
    /// The upstream answers.
    Answer,
    /// The answer is an error, with nothing before it.
    Error,
}

/// Ways in which an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerEnd {
    /// The end has not arrived.
    Open,
    /// The answer is complete.
    Whole,
    /// The upstream reported an error.
    Error,
}

// === impl AnswerReader ===

impl AnswerReader {
    /// Creates a reader of `text/event-stream`. With `hide_usage`, the event with nothing but usage is removed from the
    /// relayed bytes, because only the gateway asked for it; usage beside choices is left untouched.
    pub fn stream(format: CallFormat, hide_usage: bool) -> Self {
        Self { format, hide_usage }
    }

    /// Creates a reader of one JSON document.
    pub fn body(format: CallFormat) -> Self {
        Self { format, hide_usage: false }
    }

    /// Takes the next bytes, and appends to `relay` the bytes that go to the caller now: slices of `bytes`, or a copy of
    /// an event that was held back. Without `hide_usage` these are always all of `bytes`.
    pub fn push(&mut self, bytes: &Bytes, relay: &mut Vec<Bytes>) {
        relay.push(bytes.clone());
    }

    /// Ends the answer, because the upstream closed or broke. Returns the bytes still held back, which are to be relayed.
    pub fn finish(&mut self) -> Option<Bytes> {
        None
    }

    /// Returns the verdict on the first event of a stream, or on the members of a document so far.
    pub fn opening(&self) -> AnswerOpening {
        AnswerOpening::Undecided
    }

    /// Returns true if the relayed bytes end between two events, or have not begun: a comment line may be put here.
    pub fn is_between_events(&self) -> bool {
        false
    }

    /// Returns true if some content, reasoning, refusal or tool call has arrived.
    pub fn has_token(&self) -> bool {
        false
    }

    /// Returns the token counts so far.
    pub fn usage(&self) -> TokenUsage {
        TokenUsage::default()
    }

    /// Returns the end of the answer, as far as it has arrived.
    pub fn end(&self) -> AnswerEnd {
        AnswerEnd::Open
    }
}
