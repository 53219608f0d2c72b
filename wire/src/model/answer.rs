//! Reads an answer of an upstream beside its relay. Must not hold back bytes, except an event that the gateway asked for.
use super::{CallFormat, TokenUsage};
use bytes::Bytes;

mod chat_delta;
mod document;
mod event;
mod event_splitter;
mod stream;

pub use chat_delta::{ChatEnd, ChatFinish, ChatPiece, ChatReader};
use document::DocumentReader;
use stream::StreamReader;

/// A reader of one answer. The bytes are the decoded ones, without a content encoding.
#[derive(Debug)]
pub struct AnswerReader {
    format: CallFormat,
    reader: FormReader,
}

/// The reader of an answer's form.
#[derive(Debug)]
enum FormReader {
    Stream(Box<StreamReader>),
    Document(Box<DocumentReader>),
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
    /// Creates a reader of `text/event-stream`. With `hide_usage`, an event with nothing but usage is removed from the
    /// relayed bytes, because only the gateway asked for it; usage beside choices is left untouched.
    pub fn stream(format: CallFormat, hide_usage: bool) -> Self {
        Self { format, reader: FormReader::Stream(Box::new(StreamReader::new(format, hide_usage))) }
    }

    /// Creates a reader of one JSON document.
    pub fn body(format: CallFormat) -> Self {
        Self { format, reader: FormReader::Document(Box::new(DocumentReader::new(format))) }
    }

    /// Takes the next bytes, and appends to `relay` the bytes that go to the caller now: slices of `bytes`, or a copy of
    /// the beginning of an event that was held back. Without `hide_usage` these are always all of `bytes`.
    pub fn push(&mut self, bytes: &Bytes, relay: &mut Vec<Bytes>) {
        match &mut self.reader {
            FormReader::Stream(stream) => stream.push(bytes, relay),
            FormReader::Document(document) => {
                document.push(bytes);
                if !bytes.is_empty() {
                    relay.push(bytes.clone());
                }
            }
        }
    }

    /// Ends the answer, because the upstream closed or broke. An event that only lacks its blank line counts. Returns the
    /// bytes still held back, which are to be relayed.
    pub fn finish(&mut self) -> Option<Bytes> {
        match &mut self.reader {
            FormReader::Stream(stream) => stream.finish(),
            FormReader::Document(_) => None,
        }
    }

    /// Returns the verdict on the first event of a stream, pings aside, or on the members of a document so far.
    pub fn opening(&self) -> AnswerOpening {
        match &self.reader {
            FormReader::Stream(stream) => stream.opening,
            FormReader::Document(document) => document.opening,
        }
    }

    /// Returns true if the relayed bytes end between two events of a stream, or have not begun: a comment line may be put
    /// here. A document has no such place.
    pub fn is_between_events(&self) -> bool {
        match &self.reader {
            FormReader::Stream(stream) => stream.is_between_events(),
            FormReader::Document(_) => false,
        }
    }

    /// Returns true if some content, reasoning, refusal or tool call has arrived.
    pub fn has_token(&self) -> bool {
        match &self.reader {
            FormReader::Stream(stream) => stream.has_token,
            FormReader::Document(document) => document.has_token,
        }
    }

    /// Returns the token counts so far.
    pub fn usage(&self) -> TokenUsage {
        match &self.reader {
            FormReader::Stream(stream) => stream.counts.totals(self.format),
            FormReader::Document(document) => document.counts.totals(self.format),
        }
    }

    /// Returns the end of the answer, as far as it has arrived.
    pub fn end(&self) -> AnswerEnd {
        match &self.reader {
            FormReader::Stream(stream) => stream.end(),
            FormReader::Document(document) => document.end(),
        }
    }
}
