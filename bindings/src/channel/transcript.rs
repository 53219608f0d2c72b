//! A session as a conversation: what was said, read backwards from anywhere in its log.
//!
//! A turn is two messages: what somebody asked, in the place of its first fact, and what was answered,
//! in the place of its last. An answer is the recorded text of the attempt that counts, up to where its
//! end says. A turn that was rolled back is left out, and with it what had become part of it.
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
    ends: Ends,
}

/// What is known of turns whose first fact was not reached yet: no more of them are open at a time than may wait.
#[derive(Debug, Default)]
struct Ends {
    /// Those that have an end.
    seen: Vec<RunId>,
    /// Those that were rolled back.
    undone: Vec<RunId>,
    /// Those that became part of another.
    hosted: Vec<(RunId, RunId)>,
}

#[derive(Debug)]
struct Finding {
    said: Said,
    /// What is still to be read of an answer.
    lacks: Option<Lacking>,
    /// It is a message, and no end of its turn was seen.
    is_unended: bool,
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
    /// There are older ones, before this place.
    pub next: Option<Seq>,
    /// Turns whose message is among them, and whose end was not.
    pub unended: Vec<RunId>,
}

// === impl Transcript ===

impl Transcript {
    /// Looks for so many messages, of so many bytes together: one is shown whatever its size.
    pub fn new(limit: usize, bytes_max: usize) -> Self {
        Self { limit, bytes_max, found: VecDeque::new(), more: false, ends: Ends::default() }
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
            Fact::RunDone { host_run_id: Some(host), .. } => self.ends.host(run_id, host),
            fact if fact.takes_back() => self.ends.undo(run_id),
            Fact::RunDone { attempt, text_bytes, .. } => {
                self.ended(seq, entry, run_id, ("completed", None), (*attempt, *text_bytes));
            }
            Fact::RunFailed { attempt, code, text_bytes, .. } => {
                self.ended(seq, entry, run_id, ("failed", Some(*code)), (*attempt, *text_bytes));
            }
            Fact::RunCancelled { attempt, text_bytes, .. } => {
                self.ended(seq, entry, run_id, ("cancelled", None), (*attempt, *text_bytes));
            }
            Fact::AgentStreamDelta { .. } => self.stretch(run_id, entry),
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
                let by = By::User { user_id: user.clone(), message_id: message_id.clone() };
                let (run_id, agent_id, content) = (run_id.clone(), agent_id.clone(), message.content.clone());
                let said = Said { seq, run_id, by, agent_id, content, ts: entry.time };
                self.asked(said, entry.weight());
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
            | Fact::HandoverRequested(_)
            | Fact::HandoverConfirmed(_)
            | Fact::HandoverRejected(_)
            | Fact::AgentAction(_)
            | Fact::ToolInvoke(_)
            | Fact::ToolResult(_)
            | Fact::ProcessSpawned(_)
            | Fact::ProcessProgress(_)
            | Fact::ProcessExited(_)
            | Fact::ProcessCanceled(_)
            | Fact::SystemEvent(_)
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
        let next = self.found.front().filter(|_| self.more).map(|oldest| oldest.said.seq);
        let unended = self.found.iter().filter(|finding| finding.is_unended);
        let unended = unended.map(|finding| finding.said.run_id.clone()).collect();
        let messages = self.found.into_iter().map(|finding| finding.said).collect();
        Found { messages, next, unended }
    }

    /// Takes a stretch of an answer, if that lacks it.
    fn stretch(&mut self, run_id: &RunId, entry: &Arc<Entry>) {
        if let Fact::AgentStreamDelta { attempt, offset, text, .. } = &entry.fact
            && let Some(finding) = self.lacking(run_id)
            && let Some(lacks) = &mut finding.lacks
            && lacks.attempt == *attempt
            && *offset < lacks.text_bytes
        {
            lacks.pieces.push(Arc::clone(entry));
            finding.bytes += text.reveal().len();
            self.trim();
        }
    }

    /// Takes a question: the first fact of its turn.
    fn asked(&mut self, said: Said, bytes: usize) {
        if let Some(finding) = self.lacking(&said.run_id) {
            finding.complete();
        }
        match self.ends.forget(&said.run_id) {
            Some(Counts::Not) => {}
            end => self.add(Finding { said, lacks: None, is_unended: end.is_none(), bytes }),
        }
    }

    fn ended(
        &mut self,
        seq: Seq,
        end: &Entry,
        run_id: &RunId,
        (status, code): (&'static str, Option<Code>),
        (attempt, text_bytes): (u32, u64),
    ) {
        self.ends.seen.push(run_id.clone());
        let by = By::Assistant { status, code, trimmed: false };
        let content = Content::Text(String::new());
        let said = Said { seq, run_id: run_id.clone(), by, agent_id: None, content, ts: end.time };
        let lacks = Some(Lacking { attempt, text_bytes, pieces: Vec::new() });
        self.add(Finding { said, lacks, is_unended: false, bytes: 512 });
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

// === impl Ends ===

/// Whether a turn that has ended belongs to the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counts {
    Yes,
    Not,
}

impl Ends {
    fn host(&mut self, run_id: &RunId, host: &RunId) {
        self.seen.push(run_id.clone());
        self.hosted.push((run_id.clone(), host.clone()));
    }

    fn undo(&mut self, run_id: &RunId) {
        self.seen.push(run_id.clone());
        self.undone.push(run_id.clone());
    }

    /// What its end says of a turn whose first fact has been reached; nothing, if there is none so far.
    fn forget(&mut self, run_id: &RunId) -> Option<Counts> {
        let seen = take(&mut self.seen, |seen| seen == run_id)?;
        let hosted = take(&mut self.hosted, |(hosted, _)| hosted == run_id);
        // A host's first fact lies before those of what it took in.
        let undone = match hosted {
            Some((_, host)) => self.undone.contains(&host),
            None => take(&mut self.undone, |undone| *undone == seen).is_some(),
        };
        Some(if undone { Counts::Not } else { Counts::Yes })
    }
}

fn take<T>(from: &mut Vec<T>, is_it: impl FnMut(&T) -> bool) -> Option<T> {
    from.iter().position(is_it).map(|at| from.swap_remove(at))
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
