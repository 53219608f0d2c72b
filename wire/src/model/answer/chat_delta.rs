//! Reads a stream of chat completions as text: for an agent that is a model, which shows the text and relays no bytes.
//! Must not guess: an answer of which something may be missing ends with an error.
use super::super::json_text::{count, each_element, each_member, has_content, member};
use super::super::limits::{MODEL_ERROR_TEXT_BYTES_MAX, MODEL_EVENT_BYTES_MAX};
use super::super::usage::UsageCounts;
use super::super::{CallFormat, TokenUsage};
use super::event_splitter::{EventKind, EventSplitter, PartKind};
use serde::Deserializer;
use serde::de::{Error, Visitor};
use std::fmt;

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChatPiece {
    /// Text of the answer, or of a refusal.
    Text(String),
    /// Reasoning before the answer.
    Reasoning(String),
}

/// Reasons of a model to end an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChatFinish {
    /// The answer is complete, or the reason is one of a provider's own.
    Stop,
    /// The maximum number of tokens was reached.
    Length,
    /// A filter of the provider cut the answer.
    ContentFilter,
    /// The model wants a tool to be called.
    ToolCalls,
}

/// Ends of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChatEnd {
    /// Neither a finish reason nor `[DONE]` has arrived.
    Open,
    Finished(ChatFinish),
    /// The upstream reported an error, with this message of at most [`MODEL_ERROR_TEXT_BYTES_MAX`] bytes, or the stream
    /// cannot be read.
    Error(String),
}

/// A reader of one stream; only the first choice is read.
#[derive(Debug, Default)]
pub struct ChatReader {
    splitter: EventSplitter,
    counts: UsageCounts,
    text: TextDecoder,
    reasoning: TextDecoder,
    finish: Option<ChatFinish>,
    error: Option<String>,
    is_done: bool,
    tool_calls: u64,
}

/// A decoder of JSON texts whose pieces may split a surrogate pair.
#[derive(Debug, Default)]
struct TextDecoder {
    /// The first half of a pair, in the generalised UTF-8 of surrogates.
    half: Option<[u8; 3]>,
}

/// A visitor that takes a JSON text with its unpaired surrogates.
struct TextBytes;

// === impl ChatReader ===

impl ChatReader {
    /// Takes the next bytes, and appends the pieces of the answer in them.
    pub fn push(&mut self, bytes: &[u8], pieces: &mut Vec<ChatPiece>) {
        let mut at = 0;
        while at < bytes.len() {
            let part = self.splitter.take(&bytes[at..]);
            at += part.length;
            match part.kind {
                PartKind::Blank(Some(event)) => self.take_event(event, false, pieces),
                PartKind::Unfinished
                | PartKind::LineFeed
                | PartKind::Comment
                | PartKind::Field
                | PartKind::Blank(None) => {}
            }
        }
    }

    /// Ends the stream. An event that only lacks its blank line counts.
    pub fn finish(&mut self, pieces: &mut Vec<ChatPiece>) {
        if let Some(event) = self.splitter.finish() {
            self.take_event(event, true, pieces);
        }
        let reasoning = self.reasoning.flush();
        let text = self.text.flush();
        push_piece(pieces, reasoning, ChatPiece::Reasoning);
        push_piece(pieces, text, ChatPiece::Text);
    }

    /// Returns true after `[DONE]`: nothing of the answer follows.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Returns the end of the answer, as far as it has arrived. An error counts even after a finish reason.
    pub fn end(&self) -> ChatEnd {
        match (&self.error, self.finish) {
            (Some(message), _) => ChatEnd::Error(message.clone()),
            (None, Some(finish)) => ChatEnd::Finished(finish),
            // Some upstreams send no finish reason.
            (None, None) if self.is_done => ChatEnd::Finished(ChatFinish::Stop),
            (None, None) => ChatEnd::Open,
        }
    }

    /// Returns the token counts so far.
    pub fn usage(&self) -> TokenUsage {
        self.counts.totals(CallFormat::ChatCompletions)
    }

    /// Returns the number of parts of tool calls, which are not read.
    pub fn tool_calls(&self) -> u64 {
        self.tool_calls
    }

    /// Takes an event, the last of the stream if the stream ends within the event.
    fn take_event(&mut self, kind: EventKind, is_cut: bool, pieces: &mut Vec<ChatPiece>) {
        if self.is_done || self.error.is_some() {
            return;
        }
        let event = match kind {
            EventKind::Complete => {
                let (name, data) = self.splitter.event();
                (name == b"error", String::from_utf8_lossy(data).into_owned())
            }
            EventKind::TooLong => {
                self.error = Some(format!("an event of the answer is longer than {MODEL_EVENT_BYTES_MAX} bytes"));
                return;
            }
        };
        let (is_named_error, data) = event;
        let data = data.trim_matches([' ', '\t', '\n', '\r']);
        if data == "[DONE]" {
            self.is_done = true;
        } else if self.read_object(data, is_named_error, pieces).is_err() && !is_cut {
            let why =
                if is_named_error { bounded(data) } else { "an event of the answer is no JSON object".to_owned() };
            self.error = Some(why);
        }
    }

    fn read_object(
        &mut self,
        data: &str,
        is_named_error: bool,
        pieces: &mut Vec<ChatPiece>,
    ) -> Result<(), serde_json::Error> {
        let mut error = None;
        let mut usage = None;
        let mut choices = None;
        let mut message = None;
        let mut is_error = is_named_error;
        each_member(data, |name, value| match name {
            "error" if has_content(value) => error = Some(value),
            "usage" => usage = Some(value),
            "x_groq" => usage = usage.or_else(|| member(value, "usage")),
            "choices" => choices = Some(value),
            "message" => message = Some(value),
            "type" | "object" => is_error |= value == "\"error\"",
            _ => {}
        })?;
        if let Some(usage) = usage {
            self.counts.read(usage);
        }
        if error.is_some() || is_error {
            let text = error.and_then(|error| member(error, "message").or(Some(error))).or(message);
            self.error = Some(text.map_or_else(|| "unknown error".to_owned(), error_text));
            return Ok(());
        }
        each_element(choices.unwrap_or_default(), |choice| self.read_choice(choice, pieces));
        Ok(())
    }

    /// Reads a choice, if it is the first one.
    fn read_choice(&mut self, choice: &str, pieces: &mut Vec<ChatPiece>) {
        let mut index = 0;
        let mut reason = None;
        let mut delta = None;
        // Each choice is a valid value, so an error only means that it is no object.
        let _ = each_member(choice, |name, value| match name {
            "index" => index = count(value).unwrap_or(0),
            "finish_reason" => reason = Some(value).filter(|value| value.starts_with('"') && *value != "\"\""),
            "delta" => delta = Some(value),
            _ => {}
        });
        if index != 0 {
            return;
        }
        if let Some(delta) = delta {
            self.read_delta(delta, pieces);
        }
        match reason {
            None => {}
            Some("\"error\"") => self.error = Some("the model ended its answer with an error".to_owned()),
            Some(reason) => self.finish = Some(ChatFinish::parse(reason)),
        }
    }

    fn read_delta(&mut self, delta: &str, pieces: &mut Vec<ChatPiece>) {
        let mut content = None;
        let mut refusal = None;
        let mut reasoning = None;
        let mut other_reasoning = None;
        let _ = each_member(delta, |name, value| match name {
            "content" => content = Some(value),
            "refusal" => refusal = Some(value),
            "reasoning_content" => reasoning = Some(value),
            "reasoning" => other_reasoning = Some(value),
            "tool_calls" | "function_call" if has_content(value) => self.tool_calls += 1,
            _ => {}
        });
        // Some upstreams send the same reasoning under both names.
        let thought = [reasoning, other_reasoning].into_iter().flatten().find(|value| is_text(value));
        let thought = thought.map(|value| self.reasoning.decode(value)).unwrap_or_default();
        push_piece(pieces, thought, ChatPiece::Reasoning);
        for value in [content, refusal].into_iter().flatten().filter(|value| is_text(value)) {
            let text = self.text.decode(value);
            push_piece(pieces, text, ChatPiece::Text);
        }
    }
}

// === impl ChatFinish ===

impl ChatFinish {
    fn parse(reason: &str) -> Self {
        match reason.trim_matches('"') {
            "length" => Self::Length,
            "content_filter" => Self::ContentFilter,
            "tool_calls" | "function_call" => Self::ToolCalls,
            _ => Self::Stop,
        }
    }
}

// === impl TextDecoder ===

impl TextDecoder {
    /// Decodes a piece. A first half at its end waits for the next piece; any other half becomes U+FFFD.
    fn decode(&mut self, json: &str) -> String {
        let mut bytes = self.half.take().map_or_else(Vec::new, Vec::from);
        // The piece is a valid JSON text.
        bytes.extend(serde_json::Deserializer::from_str(json).deserialize_bytes(TextBytes).unwrap_or_default());
        if let Some(half) = bytes.last_chunk::<3>().copied().filter(|last| is_surrogate(last, 0xa0)) {
            self.half = Some(half);
            bytes.truncate(bytes.len() - half.len());
        }
        from_surrogates(&bytes)
    }

    /// Ends the text.
    fn flush(&mut self) -> String {
        self.half.take().map(|_| char::REPLACEMENT_CHARACTER.to_string()).unwrap_or_default()
    }
}

/// Returns true if three bytes are a surrogate: a first half for `from` 0xa0, a second one for 0xb0.
fn is_surrogate(bytes: &[u8; 3], from: u8) -> bool {
    bytes[0] == 0xed && (from..from + 0x10).contains(&bytes[1])
}

/// Decodes generalised UTF-8: pairs of surrogates become their character, single ones U+FFFD.
fn from_surrogates(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let mut rest = bytes;
    loop {
        let valid = match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                return text;
            }
            Err(error) => error.valid_up_to(),
        };
        text.push_str(&String::from_utf8_lossy(&rest[..valid]));
        rest = &rest[valid..];
        let pair = rest.first_chunk::<6>().and_then(|pair| pair_of(*pair));
        text.push(pair.unwrap_or(char::REPLACEMENT_CHARACTER));
        // Only surrogates are invalid, and each has three bytes.
        rest = rest.get(if pair.is_some() { 6 } else { 3 }..).unwrap_or_default();
    }
}

fn pair_of(bytes: [u8; 6]) -> Option<char> {
    let [first @ .., _, _, _] = bytes;
    let [_, _, _, second @ ..] = bytes;
    if !is_surrogate(&first, 0xa0) || !is_surrogate(&second, 0xb0) {
        return None;
    }
    let low_bits = |half: [u8; 3]| (u32::from(half[1] & 0x0f) << 6) | u32::from(half[2] & 0x3f);
    char::from_u32(0x1_0000 + (low_bits(first) << 10) + low_bits(second))
}

impl Visitor<'_> for TextBytes {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
        Ok(bytes.to_vec())
    }
}

fn is_text(value: &str) -> bool {
    value.starts_with('"')
}

fn push_piece(pieces: &mut Vec<ChatPiece>, text: String, kind: fn(String) -> ChatPiece) {
    if !text.is_empty() {
        pieces.push(kind(text));
    }
}

/// Returns the text of an error that is a JSON value.
fn error_text(value: &str) -> String {
    if is_text(value) { bounded(&TextDecoder::default().decode(value)) } else { bounded(value) }
}

fn bounded(text: &str) -> String {
    text[..text.floor_char_boundary(MODEL_ERROR_TEXT_BYTES_MAX)].to_owned()
}

#[cfg(test)]
mod tests;
