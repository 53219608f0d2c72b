//! A session as a conversation: what was said, read backwards from anywhere in its log.
//!
//! A turn is two messages: what somebody asked, in the place of its first fact, and what was answered,
//! in the place of its last. An answer is the recorded text of the attempt that counts, up to where its
//! end says.
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Arc;
use turnway_core::id::{AgentId, MessageId, RunId, Seq, UserId};
use turnway_core::private::Private;
use turnway_core::protocol::entry::{Entry, Fact};
use turnway_core::protocol::input::Content;
use turnway_core::protocol::refusal::Code;
use turnway_core::time::Millis;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Said {
    /// Its place: of the message itself, or of the end of the answer.
    pub seq: Seq,
    /// The turn it belongs to.
    pub run_id: RunId,
    /// Whose, and what only this kind has.
    #[serde(flatten)]
    pub by: By,
    /// Who is addressed, or answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// What.
    pub content: Content,
    /// When it was said, or had been said to its end.
    pub ts: Millis,
}

/// Who speaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum By {
    /// A person.
    User {
        /// Who.
        user_id: UserId,
        /// The message's own name.
        message_id: MessageId,
    },
    /// An agent.
    Assistant {
        /// `completed`, `failed` or `cancelled`: where it is not the first, the content may be a part.
        status: &'static str,
        /// Why it failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        code: Option<Code>,
        /// The beginning of the text is forgotten.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        trimmed: bool,
    },
}

/// Reads a log backwards until it has enough messages.
#[derive(Debug)]
pub struct Transcript {
    limit: usize,
    bytes_max: usize,
    /// The oldest first.
    found: VecDeque<Finding>,
    /// There are older ones, which are not wanted.
    more: bool,
}

#[derive(Debug)]
struct Finding {
    said: Said,
    /// What is still to be read of an answer.
    lacks: Option<Lacking>,
    bytes: usize,
}

/// An answer whose beginning was not reached yet.
#[derive(Debug)]
struct Lacking {
    attempt: u32,
    /// Where the text ends that counts.
    text_bytes: u64,
    /// The last piece first.
    pieces: Vec<Arc<Entry>>,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The oldest first.
    pub messages: Vec<Said>,
    /// There are older ones.
    pub more: bool,
}

// === impl Transcript ===

impl Transcript {
    /// Looks for so many messages, of so many bytes together: one is shown whatever its size.
    pub fn new(limit: usize, bytes_max: usize) -> Self {
        Self { limit, bytes_max, found: VecDeque::new(), more: false }
    }

    /// Whether nothing older is of use.
    pub fn is_done(&self) -> bool {
        self.more && self.found.iter().all(|finding| finding.lacks.is_none())
    }

    /// Takes the fact before the last one it was given.
    pub fn take(&mut self, seq: Seq, entry: &Arc<Entry>) {
        let Some(run_id) = &entry.run_id else { return };
        match &entry.fact {
            // It was answered where it was taken.
            Fact::RunDone { host_run_id: Some(_), .. } => {}
            Fact::RunDone { attempt, text_bytes, .. } => {
                self.ended(seq, run_id, entry.time, "completed", None, (*attempt, *text_bytes));
            }
            Fact::RunFailed { attempt, code, text_bytes, .. } => {
                self.ended(seq, run_id, entry.time, "failed", Some(*code), (*attempt, *text_bytes));
            }
            Fact::RunCancelled { attempt, text_bytes, .. } => {
                self.ended(seq, run_id, entry.time, "cancelled", None, (*attempt, *text_bytes));
            }
            Fact::AgentStreamDelta { attempt, offset, text, .. } => {
                let bytes = text.reveal().len();
                if let Some(finding) = self.lacking(run_id)
                    && let Some(lacks) = &mut finding.lacks
                    && lacks.attempt == *attempt
                    && *offset < lacks.text_bytes
                {
                    lacks.pieces.push(Arc::clone(entry));
                    finding.bytes += bytes;
                    self.trim();
                }
            }
            Fact::RunStarted { agent_id, attempt, .. } | Fact::RunRestarted { agent_id, attempt, .. } => {
                if let Some(finding) = self.lacking(run_id)
                    && finding.lacks.as_ref().is_some_and(|lacks| lacks.attempt == *attempt)
                {
                    finding.said.agent_id = Some(agent_id.clone());
                    finding.complete();
                }
            }
            Fact::TurnAdmitted { agent_id, .. } => {
                if let Some(finding) = self.lacking(run_id) {
                    finding.said.agent_id.get_or_insert_with(|| agent_id.clone());
                }
            }
            Fact::UserMessage { message_id, user, message, agent_id, .. } => {
                if let Some(finding) = self.lacking(run_id) {
                    finding.complete();
                }
                let (user_id, message_id) = (user.clone(), message_id.clone());
                let (run_id, agent_id, content) = (run_id.clone(), agent_id.clone(), message.content.clone());
                let by = By::User { user_id, message_id };
                let said = Said { seq, run_id, by, agent_id, content, ts: entry.time };
                self.add(Finding { said, lacks: None, bytes: entry.weight() });
            }
            Fact::SessionOpened { .. }
            | Fact::SessionClosing { .. }
            | Fact::SessionClosed { .. }
            | Fact::SessionNotice { .. }
            | Fact::AgentSwitched { .. }
            | Fact::AgentAdding(_)
            | Fact::AgentAdded(_)
            | Fact::AgentAddFailed(_)
            | Fact::AgentRemoving(_)
            | Fact::AgentRemoved(_)
            | Fact::AgentRemoveFailed(_)
            | Fact::AgentSteerAcked { .. }
            | Fact::AgentInvokeStarted { .. }
            | Fact::AgentInvokeDone { .. }
            | Fact::RunState { .. }
            | Fact::RunResumed { .. }
            | Fact::RunSuspended { .. }
            | Fact::RunCancelling { .. } => {}
        }
    }

    /// Nothing older is there: what an answer still lacks is forgotten.
    pub fn finish(mut self) -> Found {
        for finding in &mut self.found {
            if finding.lacks.is_some()
                && let By::Assistant { trimmed, .. } = &mut finding.said.by
            {
                *trimmed = true;
            }
            finding.complete();
        }
        let messages = self.found.into_iter().map(|finding| finding.said).collect();
        Found { messages, more: self.more }
    }

    fn ended(
        &mut self,
        seq: Seq,
        run_id: &RunId,
        ts: Millis,
        status: &'static str,
        code: Option<Code>,
        (attempt, text_bytes): (u32, u64),
    ) {
        let by = By::Assistant { status, code, trimmed: false };
        let content = Content::Text(String::new());
        let said = Said { seq, run_id: run_id.clone(), by, agent_id: None, content, ts };
        let lacks = Some(Lacking { attempt, text_bytes, pieces: Vec::new() });
        self.add(Finding { said, lacks, bytes: 512 });
    }

    fn add(&mut self, finding: Finding) {
        self.more |= self.found.len() >= self.limit;
        if !self.more {
            self.found.push_front(finding);
            self.trim();
        }
    }

    /// Gives up the oldest ones where all together are too large.
    fn trim(&mut self) {
        let mut bytes: usize = self.found.iter().map(|finding| finding.bytes).sum();
        while bytes > self.bytes_max && self.found.len() > 1 {
            bytes -= self.found.pop_front().map_or(0, |finding| finding.bytes);
            self.more = true;
        }
    }

    fn lacking(&mut self, run_id: &RunId) -> Option<&mut Finding> {
        self.found.iter_mut().find(|finding| finding.lacks.is_some() && finding.said.run_id == *run_id)
    }
}

// === impl Finding ===

impl Finding {
    /// Joins the pieces, and cuts what does not count.
    fn complete(&mut self) {
        let Some(lacks) = self.lacks.take() else { return };
        let mut text = String::new();
        for piece in lacks.pieces.iter().rev() {
            if let Fact::AgentStreamDelta { offset, text: more, .. } = &piece.fact {
                text.push_str(cut(more, lacks.text_bytes - offset));
            }
        }
        self.said.content = Content::Text(text);
    }
}

/// At most so many bytes of a text; a code point is never split.
fn cut(text: &Private<String>, bytes: u64) -> &str {
    let text = text.reveal();
    let upto = usize::try_from(bytes).unwrap_or(usize::MAX).min(text.len());
    &text[..text.floor_char_boundary(upto)]
}

#[cfg(test)]
mod tests;
