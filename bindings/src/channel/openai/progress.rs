//! Filters a session's notifications for one call: the turn's text, in order, and its end.
use super::Trouble;
use crate::channel::note::Note;
use turnway_core::id::RunId;
use turnway_core::protocol::agent::{StopReason, TextKind};
use turnway_core::protocol::entry::Fact;
use turnway_core::protocol::json::Json;
use turnway_core::protocol::refusal::Code;

/// One event of a call's turn.
#[derive(Debug, PartialEq)]
pub(super) enum Step<'n> {
    /// The next piece of text.
    Text(&'n str),
    /// A piece of reasoning.
    Reasoning(&'n str),
    /// The text begins again in a new attempt.
    Restarted,
    /// The turn completed.
    Done(StopReason, Option<&'n Json>),
    Failed(Trouble),
}

/// The position of a call in its turn.
#[derive(Debug)]
pub(super) struct Progress {
    run_id: RunId,
    attempt: u32,
    /// Bytes of that attempt's text.
    offset: u64,
    over: bool,
}

// === impl Progress ===

impl Progress {
    /// Creates the progress of a turn; anything before `attempt` is ignored.
    pub(super) fn new(run_id: RunId, attempt: u32) -> Self {
        Self { run_id, attempt, offset: 0, over: false }
    }

    pub(super) fn run_id(&self) -> &RunId {
        &self.run_id
    }

    /// Returns whether the turn has ended.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// Ignores every later notification.
    pub(super) fn stop(&mut self) {
        self.over = true;
    }

    /// Processes a notification; `to` receives the resulting steps in order.
    pub(super) fn take<'n>(&mut self, note: &'n Note, to: &mut dyn FnMut(Step<'n>)) {
        if self.over {
            return;
        }
        match note {
            Note::Fact { entry, .. } if entry.run_id.as_ref() == Some(&self.run_id) => {
                self.take_fact(&entry.fact, to);
            }
            Note::Delta { run_id, attempt, offset, kind, text, .. } if *run_id == self.run_id => {
                if *attempt < self.attempt {
                    return;
                }
                self.begin(*attempt, to);
                match kind {
                    TextKind::Text => self.take_text(*offset, text.reveal(), to),
                    TextKind::Reasoning => to(Step::Reasoning(text.reveal())),
                }
            }
            Note::Subscribed { snapshot, reset: Some(_), .. } => {
                // The facts up to here have been trimmed, possibly including the turn's end.
                match snapshot.runs.iter().find(|run| run.run_id == self.run_id) {
                    Some(run) => self.begin(run.attempt.max(self.attempt), to),
                    None => {
                        let why = "the answer to this call is no longer stored";
                        self.fail(Trouble::new(Code::NotFound, why), to);
                    }
                }
            }
            // The session cannot be followed from this node any more.
            Note::Refused { refusal, .. } => self.fail(Trouble::from(refusal).at_rest(), to),
            Note::Fact { .. }
            | Note::Delta { .. }
            | Note::Subscribed { reset: None, .. }
            | Note::Accepted(_)
            | Note::Opened { .. }
            | Note::Closed { .. }
            | Note::Members(_)
            | Note::Handover(_)
            | Note::CancelTaken { .. }
            | Note::Printed { .. }
            | Note::Listed { .. }
            | Note::Deleted { .. }
            | Note::Found { .. }
            | Note::GoAway { .. } => {}
        }
    }

    fn take_fact<'n>(&mut self, fact: &'n Fact, to: &mut dyn FnMut(Step<'n>)) {
        if let Fact::RunStarted { attempt, .. } | Fact::RunRestarted { attempt, .. } = fact
            && *attempt >= self.attempt
        {
            self.begin(*attempt, to);
        }
        if let Fact::RunDone { attempt, stop_reason, text_bytes, usage, .. } = fact {
            if (*attempt, *text_bytes) != (self.attempt, self.offset) {
                return self.fail(Trouble::new(Code::InternalError, INCOMPLETE).at_rest(), to);
            }
            self.over = true;
            to(Step::Done(*stop_reason, usage.as_ref()));
        }
        if let Fact::RunFailed { code, message, agent_code, retry_after_ms, .. } = fact {
            self.fail(Trouble::failed(*code, message, agent_code.as_deref(), *retry_after_ms), to);
        }
        if let Fact::RunCancelled { reason, .. } = fact {
            self.fail(Trouble::cancelled(reason), to);
        }
    }

    /// Begins an attempt, unless it is the current one.
    fn begin<'n>(&mut self, attempt: u32, to: &mut dyn FnMut(Step<'n>)) {
        if attempt == self.attempt {
            return;
        }
        let first = self.attempt == 0;
        (self.attempt, self.offset) = (attempt, 0);
        if !first {
            to(Step::Restarted);
        }
    }

    /// Emits the new part of a piece of text.
    fn take_text<'n>(&mut self, offset: u64, text: &'n str, to: &mut dyn FnMut(Step<'n>)) {
        let end = offset + text.len() as u64;
        if end <= self.offset {
            return;
        }
        let skip = self.offset.checked_sub(offset).and_then(|skip| usize::try_from(skip).ok());
        match skip.and_then(|skip| text.get(skip..)) {
            Some(rest) => {
                self.offset = end;
                to(Step::Text(rest));
            }
            None => self.fail(Trouble::new(Code::InternalError, INCOMPLETE).at_rest(), to),
        }
    }

    fn fail<'n>(&mut self, trouble: Trouble, to: &mut dyn FnMut(Step<'n>)) {
        self.over = true;
        to(Step::Failed(trouble));
    }
}

/// Error for a gap in the text. Delivery should never leave a gap; if it does, the answer must not count as
/// complete.
const INCOMPLETE: &str = "part of the answer is missing; repeat the request";
