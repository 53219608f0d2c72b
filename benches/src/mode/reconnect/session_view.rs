//! The part of a session that one client has received, kept for comparison with the log.
use crate::mode::session_client::{AnswerProgress, Gap};
use crate::wire::{RunKey, ServerMessage, json_string};
use std::collections::BTreeMap;

/// Received facts by sequence number, and received answers by length and hash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SessionView {
    seqs: Vec<u64>,
    epoch: u64,
    open: BTreeMap<RunKey, ViewedText>,
    ended: BTreeMap<RunKey, ViewedText>,
}

/// The text of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ViewedText {
    answer: AnswerProgress,
    hash: u64,
}

// === impl SessionView ===

impl SessionView {
    /// Applies a message. A fact that is not later than the last one, or text with a wrong offset, is a gap.
    pub(super) fn apply(&mut self, message: &ServerMessage<'_>) -> Result<(), Gap> {
        let mut whole = Ok(());
        if let Some(run) = message.run() {
            whole = self.take_text(run, message);
        }
        if let Some(seq) = message.seq.filter(|_| message.kind != "subscribed") {
            if self.last_seq() >= seq {
                whole = Err(Gap);
            }
            self.seqs.push(seq);
            self.epoch = message.epoch.unwrap_or(self.epoch);
        }
        whole
    }

    fn take_text(&mut self, run: RunKey, message: &ServerMessage<'_>) -> Result<(), Gap> {
        if message.is_text() {
            let text = self.open.entry(run).or_default();
            if message.attempt.unwrap_or(0) != text.answer.attempt {
                *text = ViewedText::default();
            }
            text.hash = fnv(text.hash, message.text.as_deref().unwrap_or_default().as_bytes());
            return text.answer.append(message);
        }
        if message.kind == "done" {
            let text = self.open.remove(&run).unwrap_or_default();
            self.ended.insert(run, text);
            let is_whole =
                message.status.as_deref() != Some("completed") || message.text_bytes.unwrap_or(0) == text.answer.bytes;
            return if is_whole { Ok(()) } else { Err(Gap) };
        }
        Ok(())
    }

    /// Returns the sequence number of the last fact.
    pub(super) fn last_seq(&self) -> u64 {
        self.seqs.last().copied().unwrap_or(0)
    }

    /// Returns whether an answer has begun and not ended.
    pub(super) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Returns a `subscribe` body that resumes from here.
    pub(super) fn cursor(&self, session: &str) -> String {
        let runs: Vec<String> = self
            .open
            .iter()
            .map(|(run, ViewedText { answer, .. })| {
                let id = json_string(&format!("{session}.{}", run.as_str()));
                format!("{id}:{{\"attempt\":{},\"offset\":{}}}", answer.attempt, answer.bytes)
            })
            .collect();
        format!(
            "{{\"session_id\":{},\"after_seq\":{},\"after_epoch\":{},\"runs\":{{{}}}}}",
            json_string(session),
            self.last_seq(),
            self.epoch,
            runs.join(",")
        )
    }

    /// Returns whether a view of the whole log has the same facts and answers, from this view's first fact on.
    pub(super) fn is_within(&self, whole: &Self) -> bool {
        let first = self.seqs.first().copied().unwrap_or(0);
        let from = whole.seqs.partition_point(|seq| *seq < first);
        let same = |text: (&RunKey, &ViewedText)| {
            let there = whole.ended.get(text.0);
            there.is_some_and(|there| there.hash == text.1.hash && there.answer.bytes == text.1.answer.bytes)
        };
        whole.seqs[from..] == self.seqs[..] && self.ended.iter().all(same)
    }
}

impl Default for ViewedText {
    fn default() -> Self {
        Self { answer: AnswerProgress::default(), hash: 0xcbf2_9ce4_8422_2325 }
    }
}

/// Hashes with FNV-1a, which does not depend on how the text is split.
fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "s.abcdefghijklmnopqrstuvwxyz";

    fn view(messages: &[&str]) -> (SessionView, usize) {
        let mut view = SessionView::default();
        let gaps = messages.iter().filter(|text| {
            let text = text.replace("RUN", RUN);
            view.apply(&ServerMessage::parse(&text).expect("a message")).is_err()
        });
        let gaps = gaps.count();
        (view, gaps)
    }

    #[test]
    fn a_view_in_pieces_is_the_view_of_the_whole() {
        let done = r#"{"type":"done","run_id":"RUN","status":"completed","text_bytes":4,"seq":9,"epoch":5}"#;
        let (live, gaps) = view(&[
            r#"{"type":"run_started","run_id":"RUN","seq":4,"epoch":5}"#,
            r#"{"type":"delta","run_id":"RUN","attempt":1,"offset":0,"text":"ä"}"#,
            r#"{"type":"delta","run_id":"RUN","attempt":1,"offset":2,"text":"bc"}"#,
            done,
        ]);
        let (whole, more) = view(&[
            r#"{"type":"session_opened","seq":1,"epoch":5}"#,
            r#"{"type":"run_started","run_id":"RUN","seq":4,"epoch":5}"#,
            r#"{"type":"delta","run_id":"RUN","attempt":1,"offset":0,"text":"äbc"}"#,
            done,
        ]);
        assert_eq!((gaps, more), (0, 0));
        assert!(live.is_within(&whole) && !live.is_open());
        let (other, _) = view(&[r#"{"type":"run_started","run_id":"RUN","seq":4,"epoch":5}"#]);
        assert!(!live.is_within(&other));
    }

    #[test]
    fn repeats_holes_and_short_answers_are_gaps() {
        let done = r#"{"type":"done","run_id":"RUN","status":"completed","text_bytes":4,"seq":9}"#;
        assert_eq!(view(&[done]).1, 1, "text is missing");
        let fact = r#"{"type":"event","seq":3}"#;
        assert_eq!(view(&[fact, fact]).1, 1, "twice");
        assert_eq!(view(&[r#"{"type":"delta","run_id":"RUN","attempt":1,"offset":3,"text":"x"}"#]).1, 1);
    }

    #[test]
    fn a_cursor_is_a_subscribe_body() {
        let (view, _) = view(&[
            r#"{"type":"run_started","run_id":"RUN","seq":4,"epoch":5}"#,
            r#"{"type":"delta","run_id":"RUN","attempt":2,"offset":0,"text":"ä"}"#,
        ]);
        let cursor: serde_json::Value = serde_json::from_str(&view.cursor("s")).expect("JSON");
        assert_eq!((&cursor["after_seq"], &cursor["after_epoch"]), (&4.into(), &5.into()));
        assert_eq!(cursor["runs"][RUN]["offset"], 2);
        assert!(view.is_open());
    }
}
