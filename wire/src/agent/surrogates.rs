//! Joins surrogate pairs that an agent has split between two pieces of text, as agents with UTF-16 strings may do.
//! Runs where events are parsed, so that every offset counts the joined text.
use super::message::{self, AgentMessage};
use turnway_core::id::{AgentEventId, QualifiedRun};
use turnway_core::protocol::agent::TextKind;
use turnway_core::protocol::json::join_surrogates;

/// The first half of a surrogate pair; the second half may begin the next piece.
#[derive(Clone, Debug)]
struct HighSurrogate {
    kind: TextKind,
    high: u16,
    /// The id of the event that ends with this half; the event is reported as processed only together with the
    /// half.
    id: Option<AgentEventId>,
}

/// A parser for one run's events. A half without its counterpart in the next piece of the same text becomes U+FFFD.
#[derive(Clone, Debug, Default)]
pub struct SurrogateJoiner {
    half: Option<HighSurrogate>,
}

// === impl SurrogateJoiner ===

impl SurrogateJoiner {
    /// Parses one event like [`message::parse`]. Returns the completed text before the event, if a half was
    /// waiting, and the event. An unreadable event is a failure.
    pub fn read(
        &mut self,
        kind: &str,
        data: &str,
        id: Option<Option<&str>>,
        run: &QualifiedRun,
    ) -> (Option<AgentMessage>, AgentMessage) {
        match message::parse_with_surrogates(kind, data, id, run) {
            Ok((AgentMessage::Delta { kind, text, id }, halves)) => {
                self.push_piece(kind, text, id, halves.first, halves.last)
            }
            // These events do not affect the run's text, so the other half may still follow.
            Ok((
                message @ (AgentMessage::Unknown
                | AgentMessage::Alive
                | AgentMessage::Steered { .. }
                | AgentMessage::Subscribe { .. }),
                _,
            )) => (None, message),
            Ok((message, _)) => (self.flush(), message),
            Err(failure) => (self.flush(), AgentMessage::Failed(failure)),
        }
    }

    /// Ends the text: returns the unpaired half as U+FFFD, if one is waiting.
    pub fn flush(&mut self) -> Option<AgentMessage> {
        let HighSurrogate { kind, id, .. } = self.half.take()?;
        Some(AgentMessage::Delta { kind, text: char::REPLACEMENT_CHARACTER.to_string(), id })
    }

    fn push_piece(
        &mut self,
        kind: TextKind,
        mut text: String,
        mut id: Option<AgentEventId>,
        first: Option<u16>,
        last: Option<u16>,
    ) -> (Option<AgentMessage>, AgentMessage) {
        let other = self.half.as_ref().is_some_and(|half| half.kind != kind);
        let before = if other { self.flush() } else { None };
        if text.is_empty() {
            // The half stays pending and takes over the id of this event, which adds no text.
            if let Some(half) = &mut self.half {
                half.id = id.take().or(half.id.take());
            }
            return (before, AgentMessage::Delta { kind, text, id });
        }
        if let Some(half) = self.half.take() {
            let (letter, rest) = match first {
                Some(low) => (join_surrogates(half.high, low), &text[char::REPLACEMENT_CHARACTER.len_utf8()..]),
                None => (char::REPLACEMENT_CHARACTER, text.as_str()),
            };
            text = format!("{letter}{rest}");
        }
        if let Some(high) = last {
            text.truncate(text.len() - char::REPLACEMENT_CHARACTER.len_utf8());
            self.half = Some(HighSurrogate { kind, high, id: id.take() });
        }
        (before, AgentMessage::Delta { kind, text, id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnway_core::id::{MessageId, RunId, SessionId, SessionKey, TenantId, UserId};

    /// Plays events, each with an id; returns the results as `text@id` or the event's kind.
    fn play(events: &[(&str, &str)]) -> Vec<String> {
        let session = SessionId::parse("s1").expect("a name");
        let key = SessionKey { tenant: TenantId::default_tenant(), session };
        let run_id = RunId::derive(&key, &UserId::local(), &MessageId::parse("m1").expect("a name"));
        let run = QualifiedRun::of(&key, &run_id);
        let mut joiner = SurrogateJoiner::default();
        let mut briefs = Vec::new();
        for (n, (kind, data)) in events.iter().enumerate() {
            let name = n.to_string();
            let (before, message) = joiner.read(kind, data, Some(Some(&name)), &run);
            briefs.extend(before.iter().chain([&message]).map(brief));
        }
        briefs.extend(joiner.flush().iter().map(brief));
        briefs
    }

    fn brief(message: &AgentMessage) -> String {
        match message {
            AgentMessage::Delta { kind, text, id } => {
                let id = id.as_ref().map_or("-", AgentEventId::as_str);
                let kind = if *kind == TextKind::Text { "" } else { "hm " };
                format!("{kind}{text}@{id}")
            }
            AgentMessage::State { .. } => "state".to_owned(),
            AgentMessage::Done { .. } => "done".to_owned(),
            AgentMessage::Failed(_) => "failed".to_owned(),
            AgentMessage::Unknown | AgentMessage::Alive => "alive".to_owned(),
            AgentMessage::Steered { .. }
            | AgentMessage::Handover { .. }
            | AgentMessage::Action { .. }
            | AgentMessage::Subscribe { .. } => "other".to_owned(),
        }
    }

    const HIGH: (&str, &str) = ("delta", r#"{"text":"a\ud83d"}"#);
    const LOW: (&str, &str) = ("delta", r#"{"text":"\ude00b"}"#);
    const DONE: (&str, &str) = ("done", "{}");

    #[test]
    fn surrogate_pair_cut_between_pieces_is_joined() {
        assert_eq!(play(&[HIGH, LOW, DONE]), ["a@-", "\u{1F600}b@1", "done"]);
        assert_eq!(play(&[HIGH, ("delta", r#"{"text":""}"#), LOW]), ["a@-", "@-", "\u{1F600}b@2"]);
        // An event without text may stand between the two halves.
        assert_eq!(play(&[HIGH, ("ping", "{}"), LOW]), ["a@-", "alive", "\u{1F600}b@2"]);
        let both = ("delta", r#"{"text":"\ude00\ud83d"}"#);
        assert_eq!(play(&[HIGH, both, LOW]), ["a@-", "\u{1F600}@-", "\u{1F600}b@2"]);
        let thinks = [
            ("delta", r#"{"kind":"reasoning","text":"\ud83d"}"#),
            ("delta", r#"{"kind":"reasoning","text":"\ude00"}"#),
        ];
        assert_eq!(play(&thinks), ["hm @-", "hm \u{1F600}@1"]);
    }

    /// An event's id is reported only with all of its text.
    #[test]
    fn lone_surrogate_becomes_a_replacement_character() {
        assert_eq!(play(&[LOW, DONE]), ["\u{FFFD}b@0", "done"]);
        assert_eq!(play(&[HIGH, DONE]), ["a@-", "\u{FFFD}@0", "done"]);
        assert_eq!(play(&[HIGH]), ["a@-", "\u{FFFD}@0"]);
        assert_eq!(play(&[HIGH, HIGH, DONE]), ["a@-", "\u{FFFD}a@-", "\u{FFFD}@1", "done"]);
        assert_eq!(play(&[HIGH, ("state", r#"{"state":"x"}"#), LOW]), ["a@-", "\u{FFFD}@0", "state", "\u{FFFD}b@2"]);
        let thinks = ("delta", r#"{"kind":"reasoning","text":"hm"}"#);
        assert_eq!(play(&[HIGH, thinks, LOW]), ["a@-", "\u{FFFD}@0", "hm hm@1", "\u{FFFD}b@2"]);
        assert_eq!(play(&[HIGH, ("delta", "{}")]), ["a@-", "\u{FFFD}@0", "failed"]);
    }
}
