//! Meaning of one event of an answer's stream, in each format. Must not fail for members of unexpected types.
use super::super::CallFormat;
use super::super::json_text::{count, each_element, each_member, has_content, member};
use super::super::usage::UsageCounts;
use std::borrow::Cow;

/// Choices of one answer that are told apart; OpenAI allows as many (parameter `n`).
const CHOICES_MAX: u64 = 128;

/// The meaning of one event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EventMeaning {
    /// The upstream reports an error.
    pub(super) is_error: bool,
    /// The answer is complete.
    pub(super) is_last: bool,
    /// Some content, reasoning, refusal or tool call.
    pub(super) has_token: bool,
    /// Usage of chat completions and no choice.
    pub(super) is_only_usage: bool,
    /// A ping, which says nothing about the answer.
    pub(super) is_ping: bool,
    /// Choices in the event, as bits.
    pub(super) choices: u128,
    /// Choices that the event finishes, as bits.
    pub(super) finished: u128,
}

/// The members of an event that are read, without those that are null.
#[derive(Clone, Copy, Debug, Default)]
struct EventMembers<'a> {
    kind: Option<&'a str>,
    object: Option<&'a str>,
    error: Option<&'a str>,
    usage: Option<&'a str>,
    x_groq: Option<&'a str>,
    choices: Option<&'a str>,
    response: Option<&'a str>,
    message: Option<&'a str>,
    delta: Option<&'a str>,
    content_block: Option<&'a str>,
}

/// Reads an event and adds its counts. Returns `None` if its data is neither a JSON object nor `[DONE]`.
pub(super) fn read_event(
    format: CallFormat,
    name: &[u8],
    data: &[u8],
    counts: &mut UsageCounts,
) -> Option<EventMeaning> {
    let text = String::from_utf8_lossy(data);
    let text = text.trim_matches([' ', '\t', '\n', '\r']);
    if text == "[DONE]" {
        return Some(EventMeaning { is_last: true, ..EventMeaning::default() });
    }
    let members = EventMembers::read(text)?;
    let kind = members.kind.map_or_else(|| String::from_utf8_lossy(name), |kind| Cow::Borrowed(kind.trim_matches('"')));
    let mut meaning = match format {
        CallFormat::ChatCompletions | CallFormat::Embeddings => members.chat(),
        CallFormat::Responses => members.responses(&kind),
        CallFormat::Messages => members.messages(&kind),
    };
    meaning.is_error |= name == b"error"
        || kind == "error"
        || members.object == Some("\"error\"")
        || members.error.is_some_and(has_content);
    meaning.is_only_usage &= !meaning.is_error;
    meaning.is_ping = kind == "ping" && !meaning.is_error;
    members.usage(format).into_iter().for_each(|usage| counts.read(usage));
    Some(meaning)
}

// === impl EventMembers ===

impl<'a> EventMembers<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let mut members = Self::default();
        let read = each_member(text, |name, value| {
            let slot = match name {
                "type" => &mut members.kind,
                "object" => &mut members.object,
                "error" => &mut members.error,
                "usage" => &mut members.usage,
                "x_groq" => &mut members.x_groq,
                "choices" => &mut members.choices,
                "response" => &mut members.response,
                "message" => &mut members.message,
                "delta" => &mut members.delta,
                "content_block" => &mut members.content_block,
                _ => return,
            };
            *slot = Some(value).filter(|value| *value != "null");
        });
        read.ok().map(|()| members)
    }

    /// Returns the usage object.
    fn usage(&self, format: CallFormat) -> Option<&'a str> {
        let container = match format {
            CallFormat::ChatCompletions | CallFormat::Embeddings => self.x_groq,
            CallFormat::Responses => self.response,
            CallFormat::Messages => self.message,
        };
        self.usage.or_else(|| member(container?, "usage"))
    }

    fn chat(&self) -> EventMeaning {
        let mut meaning = EventMeaning::default();
        each_element(self.choices.unwrap_or_default(), |choice| read_choice(choice, &mut meaning));
        let has_choices = self.choices.is_some_and(has_content);
        meaning.is_only_usage = !has_choices && self.usage.is_some_and(|usage| usage.starts_with('{'));
        meaning
    }

    fn responses(&self, kind: &str) -> EventMeaning {
        EventMeaning {
            is_error: kind == "response.failed",
            is_last: matches!(kind, "response.completed" | "response.incomplete" | "response.cancelled"),
            has_token: kind.ends_with(".delta") && self.delta.is_some_and(has_content),
            ..EventMeaning::default()
        }
    }

    fn messages(&self, kind: &str) -> EventMeaning {
        let has_token = match kind {
            "content_block_delta" => self.delta.is_some_and(|delta| {
                has_any(delta, |name| matches!(name, "text" | "thinking" | "partial_json" | "citation"))
            }),
            // A tool call may have no arguments, and redacted reasoning has no deltas.
            "content_block_start" => self
                .content_block
                .is_some_and(|block| has_any(block, |name| matches!(name, "text" | "thinking" | "name" | "data"))),
            _ => false,
        };
        EventMeaning { is_last: kind == "message_stop", has_token, ..EventMeaning::default() }
    }
}

/// Adds a choice of chat completions.
fn read_choice(choice: &str, meaning: &mut EventMeaning) {
    let mut index = 0;
    let mut reason = None;
    // Each choice is a valid value, so an error only means that it is no object.
    let _ = each_member(choice, |name, value| match name {
        "index" => index = count(value).unwrap_or(0).min(CHOICES_MAX - 1),
        "finish_reason" => reason = Some(value).filter(|value| value.starts_with('"') && *value != "\"\""),
        "delta" | "message" => meaning.has_token |= has_any(value, is_content_of_chat),
        "text" => meaning.has_token |= has_content(value),
        _ => {}
    });
    meaning.choices |= 1 << index;
    match reason {
        Some("\"error\"") => meaning.is_error = true,
        Some(_) => meaning.finished |= 1 << index,
        None => {}
    }
}

/// Returns true for the members of a delta that carry something of the answer; several names are those of one provider.
fn is_content_of_chat(name: &str) -> bool {
    matches!(
        name,
        "content"
            | "reasoning_content"
            | "reasoning"
            | "reasoning_details"
            | "refusal"
            | "tool_calls"
            | "function_call"
            | "audio"
            | "images"
    )
}

/// Returns true if one of these members has some content.
fn has_any(object: &str, wanted: impl Fn(&str) -> bool) -> bool {
    let mut found = false;
    let read = each_member(object, |name, value| found |= wanted(name) && has_content(value));
    read.is_ok() && found
}
