//! State of handovers from agent to agent (scenario F), and the context for the agent that has taken over.
//! `handover_apply`, `member_apply` and `run_apply` change it.
use crate::id::{AgentId, EventId, RequestId, RunId};
use crate::limits;
use crate::mutant::{Mutant, planted};
use crate::private::Private;
use crate::protocol::handover::{HandoverContext, HandoverRejection, HandoverRequested};
use crate::time::Millis;

/// A session's handovers, as recorded in the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handovers {
    /// The open handover; at most one at a time.
    pub open: Option<Box<Handover>>,
    /// The last confirmed handover, until its agent has completed a turn that told of it.
    pub given: Option<Box<ConfirmedHandover>>,
    /// Outcomes of the latest handovers, the last one last, to answer repeated decisions.
    pub ended: Vec<HandoverEnded>,
    /// The run that made the last request, with the number of its requests.
    pub(super) last_request: Option<(RunId, u32)>,
    /// The answer of the running turn, kept in case the session is handed over (SR-T9).
    pub(super) running_answer: Option<Box<(RunId, AnswerTail)>>,
}

/// The end of an answer, as far as it is recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerTail {
    /// At most [`limits::HANDOVER_TEXT_BYTES_MAX`] bytes.
    pub text: Private<String>,
    /// True if text before it was left out.
    pub is_cut: bool,
}

/// An open handover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handover {
    pub id: EventId,
    /// The turn in which the handover was requested.
    pub run_id: RunId,
    /// The requesting agent.
    pub from: AgentId,
    /// The agent that is to take over.
    pub to: AgentId,
    pub reason: Private<String>,
    /// Information for the other agent.
    pub summary: Private<String>,
    /// Time at which the handover is rejected without a decision.
    pub deadline: Millis,
    /// Set if a person has agreed and the agent must become a member first.
    pub joining: Option<PendingJoin>,
    /// The end of the answer in that turn, once the turn has ended.
    pub answer_tail: AnswerTail,
}

/// A change of members that a handover waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingJoin {
    pub tx_id: EventId,
    /// Id of the request that decided.
    pub request_id: Option<RequestId>,
}

/// A confirmed handover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfirmedHandover {
    pub id: EventId,
    /// The turn in which the handover was requested.
    pub run_id: RunId,
    /// The agent that handed over.
    pub from: AgentId,
    /// The agent that has taken over.
    pub to: AgentId,
    pub reason: Private<String>,
    /// Information for the agent.
    pub summary: Private<String>,
    /// True once the agent is active, or another agent was chosen since.
    pub switched: bool,
    /// The turn with which the agent is told of the handover.
    pub notified_run: Option<RunId>,
    /// The end of the answer in the turn in which the handover was requested, once that turn has ended.
    pub answer_tail: AnswerTail,
}

/// A handover that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandoverEnded {
    pub id: EventId,
    /// Reason of the rejection; `None`: the handover was confirmed.
    pub why: Option<HandoverRejection>,
}

/// The status of a handover, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandoverStatus {
    Open,
    Confirmed,
    Rejected(HandoverRejection),
}

// === impl Handovers ===

impl Handovers {
    /// Returns the status of a handover; `None`: it is unknown, or no longer remembered.
    pub fn status(&self, id: EventId) -> Option<HandoverStatus> {
        if self.open.as_ref().is_some_and(|open| open.id == id) {
            return Some(HandoverStatus::Open);
        }
        let ended = self.ended.iter().find(|ended| ended.id == id)?;
        Some(ended.why.map_or(HandoverStatus::Confirmed, HandoverStatus::Rejected))
    }

    /// Opens a requested handover.
    pub(super) fn add(&mut self, run_id: &RunId, requested: &HandoverRequested) {
        self.last_request = Some((run_id.clone(), self.request_count(run_id) + 1));
        self.open = Some(Box::new(Handover::new(run_id.clone(), requested)));
    }

    /// Ends the open handover by a confirmation; `switched` tells whether its agent is active already.
    pub(super) fn confirm(&mut self, id: EventId, switched: bool) {
        self.given = self.end(id, None).map(|open| Box::new(ConfirmedHandover::new(*open, switched)));
    }

    /// Ends the open handover by a rejection.
    pub(super) fn reject(&mut self, id: EventId, why: HandoverRejection) {
        drop(self.end(id, Some(why)));
    }

    /// Lets a handover wait until its agent is a member.
    pub(super) fn wait_for_member(&mut self, id: EventId, joining: PendingJoin) {
        if let Some(open) = self.open.as_mut().filter(|open| open.id == id) {
            open.joining = Some(joining);
        }
    }

    /// Records that an agent was chosen as active.
    pub(super) fn mark_switched(&mut self) {
        self.given.iter_mut().for_each(|given| given.switched = true);
    }

    /// Drops the confirmed handover of an agent that has left.
    pub(super) fn forget_member(&mut self, agent: &AgentId) {
        drop(self.given.take_if(|given| given.to == *agent));
    }

    /// Tells an agent's turn of the handover to the agent.
    pub(super) fn tell_with(&mut self, agent: &AgentId, run_id: &RunId) {
        let given = self.given.as_mut().filter(|given| given.to == *agent);
        given
            .into_iter()
            .for_each(|given| given.notified_run = given.notified_run.take().or_else(|| Some(run_id.clone())));
    }

    fn end(&mut self, id: EventId, why: Option<HandoverRejection>) -> Option<Box<Handover>> {
        let open = self.open.take_if(|open| open.id == id)?;
        if self.ended.len() >= limits::HANDOVERS_KEPT_MAX {
            self.ended.remove(0);
        }
        self.ended.push(HandoverEnded { id, why });
        Some(open)
    }

    /// Returns how often a run has requested a handover.
    pub(super) fn request_count(&self, run_id: &RunId) -> u32 {
        self.last_request.as_ref().filter(|(last_run, _)| last_run == run_id).map_or(0, |(_, times)| *times)
    }

    /// Returns the handover that an agent is told of with a turn.
    pub(super) fn context_for(&self, run_id: &RunId) -> Option<Box<HandoverContext>> {
        let given = self.given.as_ref().filter(|given| given.notified_run.as_ref() == Some(run_id))?;
        Some(Box::new(HandoverContext {
            handover_id: given.id,
            from: given.from.clone(),
            run_id: given.run_id.clone(),
            reason: given.reason.clone(),
            summary: given.summary.clone(),
            text: given.answer_tail.text.clone(),
            is_cut: given.answer_tail.is_cut,
        }))
    }

    /// Starts collecting the answer of an attempt.
    pub(super) fn start_answer(&mut self, run_id: &RunId) {
        self.running_answer = Some(Box::new((run_id.clone(), AnswerTail::default())));
    }

    /// Appends recorded text to the answer of its run.
    pub(super) fn append_answer(&mut self, run_id: &RunId, text: &str) {
        let answer = self.running_answer.as_mut().filter(|answer| answer.0 == *run_id);
        answer.into_iter().for_each(|answer| answer.1.push(text));
    }

    /// Stores the end of an ended turn's answer with the handover that was requested in that turn.
    pub(super) fn store_answer_tail(&mut self, run_id: &RunId) {
        let Some(answer) = self.running_answer.take_if(|answer| answer.0 == *run_id) else { return };
        let open = self.open.iter_mut().map(|open| (&open.run_id, &mut open.answer_tail));
        let given = self.given.iter_mut().map(|given| (&given.run_id, &mut given.answer_tail));
        if let Some((_, kept)) = open.chain(given).find(|(of, _)| *of == run_id) {
            *kept = answer.1;
        }
    }

    /// Handles the end of a turn: an agent that has completed the turn knows of the handover; otherwise the agent is
    /// told again.
    pub(super) fn finish_delivery(&mut self, run_id: &RunId, done: bool) {
        let Some(given) = self.given.as_mut().filter(|given| given.notified_run.is_some()) else { return };
        if given.notified_run.as_ref() != Some(run_id) {
            return;
        }
        given.notified_run = None;
        if done && !planted(Mutant::HandoverToldAgain) {
            self.given = None;
        }
    }
}

// === impl AnswerTail ===

impl AnswerTail {
    fn push(&mut self, text: &str) {
        let kept = &mut self.text.0;
        kept.push_str(text);
        let over = kept.len().saturating_sub(limits::HANDOVER_TEXT_BYTES_MAX);
        if over > 0 {
            kept.drain(..kept.ceil_char_boundary(over));
            self.is_cut = true;
        }
    }
}

impl Handover {
    fn new(run_id: RunId, requested: &HandoverRequested) -> Self {
        Self {
            id: requested.handover_id,
            run_id,
            from: requested.from.clone(),
            to: requested.to.clone(),
            reason: requested.reason.clone(),
            summary: requested.summary.clone(),
            deadline: requested.deadline_ms,
            joining: None,
            answer_tail: AnswerTail::default(),
        }
    }
}

impl ConfirmedHandover {
    fn new(open: Handover, switched: bool) -> Self {
        let Handover { id, run_id, from, to, reason, summary, answer_tail, .. } = open;
        Self { id, run_id, from, to, reason, summary, switched, notified_run: None, answer_tail }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: SR-T9.
    #[test]
    fn long_answer_keeps_its_end_at_a_character_boundary() {
        let mut tail = AnswerTail::default();
        tail.push(&"a".repeat(limits::HANDOVER_TEXT_BYTES_MAX));
        assert!(!tail.is_cut && tail.text.reveal().len() == limits::HANDOVER_TEXT_BYTES_MAX);
        tail.push("\u{e9}");
        assert!(tail.is_cut && tail.text.reveal().ends_with("a\u{e9}"));
        assert_eq!(tail.text.reveal().len(), limits::HANDOVER_TEXT_BYTES_MAX);
        // A character that would be cut in two is left out.
        let mut tail = AnswerTail::default();
        tail.push(&"\u{e9}".repeat(limits::HANDOVER_TEXT_BYTES_MAX / 2));
        tail.push("x");
        assert_eq!(tail.text.reveal().len(), limits::HANDOVER_TEXT_BYTES_MAX - 1);
    }
}
