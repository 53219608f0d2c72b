//! A session's log as a conversation, read backwards from any position.
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Arc;
use turnway_core::id::{AgentId, MessageId, RunId, Seq, UserId};
use turnway_core::private::Private;
use turnway_core::protocol::entry::{Entry, Fact, InputFact, RunFact};
use turnway_core::protocol::input::Content;
use turnway_core::protocol::refusal::Code;
use turnway_core::time::Millis;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TranscriptMessage {
    /// Log position: of the message itself, or of the end of the answer.
    pub seq: Seq,
    pub run_id: RunId,
    #[serde(flatten)]
    pub by: TranscriptAuthor,
    /// The addressee of a message, or the author of an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    pub content: Content,
    /// The time of the message, or of the answer's end.
    pub ts: Millis,
}

/// The author of a message, with the fields of its kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum TranscriptAuthor {
    User {
        user_id: UserId,
        message_id: MessageId,
    },
    Assistant {
        /// `completed`, `failed` or `cancelled`; the content may be partial unless `completed`.
        status: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        code: Option<Code>,
        /// The beginning of the text has been trimmed from the log.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        trimmed: bool,
    },
}

/// Reads a log backwards until it has enough messages.
///
/// A turn is two messages: the question at the turn's first fact, and the answer at its last: the text of the final
/// attempt up to the recorded length. A turn that was rolled back is omitted, together with the turns that had
/// become part of it.
#[derive(Debug)]
pub struct Transcript {
    limit: usize,
    bytes_max: usize,
    /// Sorted by age, oldest first.
    found: VecDeque<PartialMessage>,
    /// Older messages exist beyond the limit.
    more: bool,
    ends: TurnEnds,
}

/// The ends of turns whose first fact has not been read yet; their number is bounded by the number of open turns.
#[derive(Debug, Default)]
struct TurnEnds {
    /// Turns with a known end.
    ended: Vec<RunId>,
    /// Turns that were rolled back.
    rolled_back: Vec<RunId>,
    /// Turns that became part of another turn, which is the second item.
    absorbed: Vec<(RunId, RunId)>,
}

#[derive(Debug)]
struct PartialMessage {
    message: TranscriptMessage,
    /// The part of an answer that is still to be read.
    missing: Option<MissingText>,
    /// A user message whose turn's end has not been read.
    lacks_end: bool,
    bytes: usize,
}

/// An answer whose beginning has not been read yet.
#[derive(Debug)]
struct MissingText {
    attempt: u32,
    /// Length of the text that counts, in bytes.
    text_bytes: u64,
    /// Last piece first.
    pieces: Vec<Arc<Entry>>,
}

/// One page of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TranscriptPage {
    /// Sorted by age, oldest first.
    pub messages: Vec<TranscriptMessage>,
    /// Older messages exist before this position.
    pub before: Option<Seq>,
    /// Turns whose message is on the page and whose end is not.
    pub without_end: Vec<RunId>,
}

// === impl Transcript ===

impl Transcript {
    /// Creates a reader for at most `limit` messages of `bytes_max` bytes in total; the first message is returned
    /// whatever its size.
    pub fn new(limit: usize, bytes_max: usize) -> Self {
        Self { limit, bytes_max, found: VecDeque::new(), more: false, ends: TurnEnds::default() }
    }

    /// Returns whether no older fact is needed.
    pub fn is_done(&self) -> bool {
        self.more && self.found.iter().all(|finding| finding.missing.is_none())
    }

    /// Processes the next older fact.
    pub fn push_older(&mut self, seq: Seq, entry: &Arc<Entry>) {
        let Some(run_id) = &entry.run_id else { return };
        match &entry.fact {
            Fact::Run(fact) => self.push_run_fact(seq, entry, run_id, fact),
            Fact::Input(InputFact::Admitted { agent_id, .. }) => {
                if let Some(finding) = self.incomplete_answer(run_id) {
                    finding.message.agent_id.get_or_insert_with(|| agent_id.clone());
                }
            }
            Fact::Input(InputFact::UserMessage { message_id, user, message, agent_id, .. }) => {
                let by = TranscriptAuthor::User { user_id: user.clone(), message_id: message_id.clone() };
                let run_id = run_id.clone();
                let agent_id = agent_id.clone();
                let content = message.content.clone();
                let question = TranscriptMessage { seq, run_id, by, agent_id, content, ts: entry.time };
                self.push_question(question, entry.weight());
            }
            Fact::Session(_)
            | Fact::Member(_)
            | Fact::Handover(_)
            | Fact::Action(_)
            | Fact::Binding(_)
            | Fact::Delivery(_)
            | Fact::Model(_)
            | Fact::Input(InputFact::Gathered { .. } | InputFact::SteerAcked { .. })
            | Fact::Unknown(_) => {}
        }
    }

    fn push_run_fact(&mut self, seq: Seq, entry: &Arc<Entry>, run_id: &RunId, fact: &RunFact) {
        if entry.fact.retracts_turn() {
            return self.ends.record_rolled_back(run_id);
        }
        match fact {
            // The message became part of another turn, which holds the answer.
            RunFact::Done { host_run_id: Some(host), .. } => self.ends.record_absorbed(run_id, host),
            RunFact::Done { attempt, text_bytes, .. } => {
                self.push_answer(seq, entry, run_id, ("completed", None), (*attempt, *text_bytes));
            }
            RunFact::Failed { attempt, code, text_bytes, .. } => {
                self.push_answer(seq, entry, run_id, ("failed", Some(*code)), (*attempt, *text_bytes));
            }
            RunFact::Cancelled { attempt, text_bytes, .. } => {
                self.push_answer(seq, entry, run_id, ("cancelled", None), (*attempt, *text_bytes));
            }
            RunFact::TextDelta { .. } => self.push_text(run_id, entry),
            RunFact::Started { agent_id, attempt, .. } | RunFact::Restarted { agent_id, attempt, .. } => {
                if let Some(finding) = self.incomplete_answer(run_id)
                    && finding.missing.as_ref().is_some_and(|lacks| lacks.attempt == *attempt)
                {
                    finding.message.agent_id = Some(agent_id.clone());
                    finding.complete();
                }
            }
            RunFact::AgentStarted { .. }
            | RunFact::AgentDone { .. }
            | RunFact::State { .. }
            | RunFact::Resumed { .. }
            | RunFact::Suspended { .. }
            | RunFact::Cancelling { .. } => {}
        }
    }

    /// Ends at the beginning of the log; the missing text of an answer is reported as trimmed.
    pub fn finish(mut self) -> TranscriptPage {
        for finding in &mut self.found {
            if finding.missing.is_some()
                && let TranscriptAuthor::Assistant { trimmed, .. } = &mut finding.message.by
            {
                *trimmed = true;
            }
            finding.complete();
        }
        let next = self.found.front().filter(|_| self.more).map(|oldest| oldest.message.seq);
        let unended = self.found.iter().filter(|finding| finding.lacks_end);
        let unended = unended.map(|finding| finding.message.run_id.clone()).collect();
        let messages = self.found.into_iter().map(|finding| finding.message).collect();
        TranscriptPage { messages, before: next, without_end: unended }
    }

    /// Adds a piece of an answer, if the answer lacks it.
    fn push_text(&mut self, run_id: &RunId, entry: &Arc<Entry>) {
        if let Fact::Run(RunFact::TextDelta { attempt, offset, text, .. }) = &entry.fact
            && let Some(finding) = self.incomplete_answer(run_id)
            && let Some(lacks) = &mut finding.missing
            && lacks.attempt == *attempt
            && *offset < lacks.text_bytes
        {
            lacks.pieces.push(Arc::clone(entry));
            finding.bytes += text.reveal().len();
            self.trim();
        }
    }

    /// Adds a user message: the first fact of its turn.
    fn push_question(&mut self, message: TranscriptMessage, bytes: usize) {
        if let Some(finding) = self.incomplete_answer(&message.run_id) {
            finding.complete();
        }
        match self.ends.remove(&message.run_id) {
            Some(TurnVisibility::RolledBack) => {}
            end => self.add(PartialMessage { message, missing: None, lacks_end: end.is_none(), bytes }),
        }
    }

    fn push_answer(
        &mut self,
        seq: Seq,
        end: &Entry,
        run_id: &RunId,
        (status, code): (&'static str, Option<Code>),
        (attempt, text_bytes): (u32, u64),
    ) {
        self.ends.ended.push(run_id.clone());
        let by = TranscriptAuthor::Assistant { status, code, trimmed: false };
        let content = Content::Text(String::new());
        let message = TranscriptMessage { seq, run_id: run_id.clone(), by, agent_id: None, content, ts: end.time };
        let lacks = Some(MissingText { attempt, text_bytes, pieces: Vec::new() });
        self.add(PartialMessage { message, missing: lacks, lacks_end: false, bytes: 512 });
    }

    fn add(&mut self, finding: PartialMessage) {
        self.more |= self.found.len() >= self.limit;
        if !self.more {
            self.found.push_front(finding);
            self.trim();
        }
    }

    /// Drops the oldest messages while the page exceeds its size.
    fn trim(&mut self) {
        let mut bytes: usize = self.found.iter().map(|finding| finding.bytes).sum();
        while bytes > self.bytes_max && self.found.len() > 1 {
            bytes -= self.found.pop_front().map_or(0, |finding| finding.bytes);
            self.more = true;
        }
    }

    fn incomplete_answer(&mut self, run_id: &RunId) -> Option<&mut PartialMessage> {
        self.found.iter_mut().find(|finding| finding.missing.is_some() && finding.message.run_id == *run_id)
    }
}

// === impl TurnEnds ===

/// Place of an ended turn in the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TurnVisibility {
    Included,
    RolledBack,
}

impl TurnEnds {
    fn record_absorbed(&mut self, run_id: &RunId, host: &RunId) {
        self.ended.push(run_id.clone());
        self.absorbed.push((run_id.clone(), host.clone()));
    }

    fn record_rolled_back(&mut self, run_id: &RunId) {
        self.ended.push(run_id.clone());
        self.rolled_back.push(run_id.clone());
    }

    /// Removes and returns the outcome of a turn whose first fact has been reached; `None` if no end was read.
    fn remove(&mut self, run_id: &RunId) -> Option<TurnVisibility> {
        let seen = remove_first(&mut self.ended, |seen| seen == run_id)?;
        let hosted = remove_first(&mut self.absorbed, |(hosted, _)| hosted == run_id);
        // The host's first fact precedes those of the turns that it absorbed, so the host is still listed.
        let undone = match hosted {
            Some((_, host)) => self.rolled_back.contains(&host),
            None => remove_first(&mut self.rolled_back, |undone| *undone == seen).is_some(),
        };
        Some(if undone { TurnVisibility::RolledBack } else { TurnVisibility::Included })
    }
}

fn remove_first<T>(from: &mut Vec<T>, is_it: impl FnMut(&T) -> bool) -> Option<T> {
    from.iter().position(is_it).map(|at| from.swap_remove(at))
}

// === impl PartialMessage ===

impl PartialMessage {
    /// Joins the pieces, and cuts the text at the length that counts.
    fn complete(&mut self) {
        let Some(lacks) = self.missing.take() else { return };
        let mut text = String::new();
        for piece in lacks.pieces.iter().rev() {
            if let Fact::Run(RunFact::TextDelta { offset, text: more, .. }) = &piece.fact {
                text.push_str(truncate(more, lacks.text_bytes - offset));
            }
        }
        self.message.content = Content::Text(text);
    }
}

/// Returns at most `bytes` bytes of a text; never splits a code point.
fn truncate(text: &Private<String>, bytes: u64) -> &str {
    let text = text.reveal();
    let upto = usize::try_from(bytes).unwrap_or(usize::MAX).min(text.len());
    &text[..text.floor_char_boundary(upto)]
}

#[cfg(test)]
mod tests;
