//! Filters a session's notifications for one call: the turn's text, in order, and its end.
use super::ChatError;
use crate::channel::notification::{CommandReply, Notification};
use turnway_core::id::RunId;
use turnway_core::protocol::agent::{StopReason, TextKind};
use turnway_core::protocol::entry::{Fact, RunFact};
use turnway_core::protocol::json::Json;
use turnway_core::protocol::refusal::Code;

/// One event of a call's turn.
#[derive(Debug, PartialEq)]
pub(super) enum ChatEvent<'n> {
    /// The next piece of text.
    Text(&'n str),
    /// A piece of reasoning.
    Reasoning(&'n str),
    /// The text begins again in a new attempt.
    Restarted,
    /// The turn completed.
    Done(StopReason, Option<&'n Json>),
    Failed(ChatError),
}

/// The position of a call in its turn.
#[derive(Debug)]
pub(super) struct Progress {
    run_id: RunId,
    attempt: u32,
    /// Bytes of that attempt's text.
    offset: u64,
    ended: bool,
}

// === impl Progress ===

impl Progress {
    /// Creates the progress of a turn; anything before `attempt` is ignored.
    pub(super) fn new(run_id: RunId, attempt: u32) -> Self {
        Self { run_id, attempt, offset: 0, ended: false }
    }

    pub(super) fn run_id(&self) -> &RunId {
        &self.run_id
    }

    /// Returns whether the turn has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Ignores every later notification.
    pub(super) fn stop(&mut self) {
        self.ended = true;
    }

    /// Processes a notification; `to` receives the resulting steps in order.
    pub(super) fn handle_notification<'n>(&mut self, note: &'n Notification, to: &mut dyn FnMut(ChatEvent<'n>)) {
        if self.ended {
            return;
        }
        match note {
            Notification::Fact { entry, .. } if entry.run_id.as_ref() == Some(&self.run_id) => {
                self.handle_fact(&entry.fact, to);
            }
            Notification::Chunk { chunk, .. } if chunk.run_id == self.run_id => {
                if chunk.attempt < self.attempt {
                    return;
                }
                self.begin_attempt(chunk.attempt, to);
                match chunk.kind {
                    TextKind::Text => self.handle_text(chunk.offset, chunk.text.reveal(), to),
                    TextKind::Reasoning => to(ChatEvent::Reasoning(chunk.text.reveal())),
                }
            }
            Notification::Reply(CommandReply::Subscribed { snapshot, reset: Some(_), .. }) => {
                // The facts up to here have been trimmed, possibly including the turn's end.
                match snapshot.runs.iter().find(|run| run.run_id == self.run_id) {
                    Some(run) => self.begin_attempt(run.attempt.max(self.attempt), to),
                    None => {
                        let why = "the answer to this call is no longer stored";
                        self.fail(ChatError::new(Code::NotFound, why), to);
                    }
                }
            }
            // The session cannot be followed from this node any more.
            Notification::Reply(CommandReply::Refused { refusal, .. }) => {
                self.fail(ChatError::from(refusal).not_retryable(), to)
            }
            Notification::Fact { .. }
            | Notification::Chunk { .. }
            | Notification::Reply(_)
            | Notification::ProcessOutput { .. }
            | Notification::Deliver(_)
            | Notification::Signal(_)
            | Notification::AdapterState(_)
            | Notification::LimitReached(_)
            | Notification::GoAway { .. } => {}
        }
    }

    fn handle_fact<'n>(&mut self, fact: &'n Fact, to: &mut dyn FnMut(ChatEvent<'n>)) {
        if let Fact::Run(RunFact::Started { attempt, .. } | RunFact::Restarted { attempt, .. }) = fact
            && *attempt >= self.attempt
        {
            self.begin_attempt(*attempt, to);
        }
        if let Fact::Run(RunFact::Done { attempt, stop_reason, text_bytes, usage, .. }) = fact {
            if (*attempt, *text_bytes) != (self.attempt, self.offset) {
                return self.fail(ChatError::new(Code::InternalError, TEXT_GAP_MESSAGE).not_retryable(), to);
            }
            self.ended = true;
            to(ChatEvent::Done(*stop_reason, usage.as_ref()));
        }
        if let Fact::Run(RunFact::Failed { code, message, agent_code, retry_after_ms, .. }) = fact {
            self.fail(ChatError::turn_failed(*code, message, agent_code.as_deref(), *retry_after_ms), to);
        }
        if let Fact::Run(RunFact::Cancelled { reason, .. }) = fact {
            self.fail(ChatError::turn_cancelled(reason), to);
        }
    }

    /// Begins an attempt, unless it is the current one.
    fn begin_attempt<'n>(&mut self, attempt: u32, to: &mut dyn FnMut(ChatEvent<'n>)) {
        if attempt == self.attempt {
            return;
        }
        let first = self.attempt == 0;
        (self.attempt, self.offset) = (attempt, 0);
        if !first {
            to(ChatEvent::Restarted);
        }
    }

    /// Emits the new part of a piece of text.
    fn handle_text<'n>(&mut self, offset: u64, text: &'n str, to: &mut dyn FnMut(ChatEvent<'n>)) {
        let end = offset + text.len() as u64;
        if end <= self.offset {
            return;
        }
        let skip = self.offset.checked_sub(offset).and_then(|skip| usize::try_from(skip).ok());
        match skip.and_then(|skip| text.get(skip..)) {
            Some(rest) => {
                self.offset = end;
                to(ChatEvent::Text(rest));
            }
            None => self.fail(ChatError::new(Code::InternalError, TEXT_GAP_MESSAGE).not_retryable(), to),
        }
    }

    fn fail<'n>(&mut self, error: ChatError, to: &mut dyn FnMut(ChatEvent<'n>)) {
        self.ended = true;
        to(ChatEvent::Failed(error));
    }
}

/// Error for a gap in the text. Delivery should never leave a gap; if it does, the answer must not count as
/// complete.
const TEXT_GAP_MESSAGE: &str = "part of the answer is missing";
