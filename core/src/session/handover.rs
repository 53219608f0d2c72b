//! Handovers from agent to agent: what the facts of scenario F make of a session, and what the agent that was handed
//! it is told with its next turn.
use crate::id::{AgentId, EventId, RequestId, RunId};
use crate::limits;
use crate::mutant::{Mutant, planted};
use crate::private::Private;
use crate::protocol::entry::{Entry, Fact};
use crate::protocol::handover::{HandoverAsked, HandoverContext, Rejection};
use crate::protocol::member::ChangeAsked;
use crate::session::state::State;
use crate::time::Millis;
use serde::{Deserialize, Serialize};

/// What the log says of a session's handovers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handovers {
    /// The one that is under way: one at a time.
    pub open: Option<Box<Handover>>,
    /// The last that was confirmed, until its agent has completed a turn with it.
    pub given: Option<Box<Given>>,
    /// How the latest ones ended, the last one last: whoever decides again is answered from here.
    pub ended: Vec<Ended>,
    /// Which run has asked last, and how often.
    asked: Option<(RunId, u32)>,
    /// What is said in the turn that speaks, should it be handed over (SR-T9).
    said: Option<Box<(RunId, Said)>>,
}

/// The end of an answer, as far as it is recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// At most [`limits::HANDOVER_TEXT_BYTES_MAX`] bytes.
    pub text: Private<String>,
    /// Something before them was left out.
    pub is_cut: bool,
}

/// One that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handover {
    /// Its name.
    pub id: EventId,
    /// The turn in which it was asked for.
    pub run_id: RunId,
    /// Who asks.
    pub from: AgentId,
    /// Who is to answer.
    pub to: AgentId,
    /// Why.
    pub reason: Private<String>,
    /// What the other agent needs to know.
    pub summary: Private<String>,
    /// When it is rejected if nobody has decided.
    pub deadline: Millis,
    /// A person has agreed, and the agent is to become a member first.
    pub joining: Option<Joining>,
    /// What was said in that turn, once it has ended.
    pub said: Said,
}

/// A change of members that a handover waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joining {
    /// Its name.
    pub tx_id: EventId,
    /// Of the request that decided.
    pub request_id: Option<RequestId>,
}

/// One that was confirmed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Given {
    /// Its name.
    pub id: EventId,
    /// The turn in which it was asked for.
    pub run_id: RunId,
    /// Who has asked.
    pub from: AgentId,
    /// Who answers.
    pub to: AgentId,
    /// Why.
    pub reason: Private<String>,
    /// What it needs to know.
    pub summary: Private<String>,
    /// It answers where nobody is addressed, or somebody has chosen otherwise since.
    pub switched: bool,
    /// The turn with which it is told.
    pub told: Option<RunId>,
    /// What was said in the turn in which it was asked for, once that has ended.
    pub said: Said,
}

/// One that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Its name.
    pub id: EventId,
    /// Why it came to nothing; none: it was confirmed.
    pub why: Option<Rejection>,
}

/// What has become of a handover, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing yet.
    Open,
    /// It was confirmed.
    Confirmed,
    /// It came to nothing.
    Rejected(Rejection),
}

// === impl Handovers ===

impl Handovers {
    /// As the release before knew them: of what is said now it kept nothing.
    pub(super) fn without_said(
        open: Option<Handover>,
        given: Option<Given>,
        ended: Vec<Ended>,
        asked: Option<(RunId, u32)>,
    ) -> Self {
        Self { open: open.map(Box::new), given: given.map(Box::new), ended, asked, said: None }
    }

    /// What has become of one; none: it is not known (any more).
    pub fn standing(&self, id: EventId) -> Option<Standing> {
        if self.open.as_ref().is_some_and(|open| open.id == id) {
            return Some(Standing::Open);
        }
        let ended = self.ended.iter().find(|ended| ended.id == id)?;
        Some(ended.why.map_or(Standing::Confirmed, Standing::Rejected))
    }

    fn end(&mut self, id: EventId, why: Option<Rejection>) -> Option<Box<Handover>> {
        let open = self.open.take_if(|open| open.id == id)?;
        if self.ended.len() >= limits::HANDOVERS_KEPT_MAX {
            self.ended.remove(0);
        }
        self.ended.push(Ended { id, why });
        Some(open)
    }

    /// How often a run has asked.
    pub(super) fn times(&self, run_id: &RunId) -> u32 {
        self.asked.as_ref().filter(|(asked, _)| asked == run_id).map_or(0, |(_, times)| *times)
    }

    /// What an agent is told with a turn.
    pub(super) fn told_with(&self, run_id: &RunId) -> Option<Box<HandoverContext>> {
        let given = self.given.as_ref().filter(|given| given.told.as_ref() == Some(run_id))?;
        Some(Box::new(HandoverContext {
            handover_id: given.id,
            from: given.from.clone(),
            run_id: given.run_id.clone(),
            reason: given.reason.clone(),
            summary: given.summary.clone(),
            text: given.said.text.clone(),
            is_cut: given.said.is_cut,
        }))
    }

    /// An attempt begins to speak.
    fn begins(&mut self, run_id: Option<&RunId>) {
        self.said = run_id.map(|run_id| Box::new((run_id.clone(), Said::default())));
    }

    fn says(&mut self, run_id: Option<&RunId>, text: &str) {
        let said = self.said.as_mut().filter(|said| Some(&said.0) == run_id);
        said.into_iter().for_each(|said| said.1.push(text));
    }

    /// A turn has ended. What was said in it stays with the handover that was asked for in it.
    fn keep_said(&mut self, run_id: &RunId) {
        let Some(said) = self.said.take_if(|said| said.0 == *run_id) else { return };
        let open = self.open.iter_mut().map(|open| (&open.run_id, &mut open.said));
        let given = self.given.iter_mut().map(|given| (&given.run_id, &mut given.said));
        if let Some((_, kept)) = open.chain(given).find(|(of, _)| *of == run_id) {
            *kept = said.1;
        }
    }
}

// === impl Said ===

impl Said {
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

// === impl State ===

impl State {
    /// What any fact makes of the session's handovers.
    pub(super) fn apply_to_handovers(&mut self, entry: &Entry) {
        let handovers = &mut self.handovers;
        #[expect(clippy::wildcard_enum_match_arm, reason = "nothing else touches a handover")]
        match &entry.fact {
            Fact::HandoverRequested(asked) => {
                let Some(run_id) = entry.run_id.clone() else { return };
                handovers.asked = Some((run_id.clone(), handovers.times(&run_id) + 1));
                handovers.open = Some(Box::new(Handover::new(run_id.clone(), asked)));
                if let Some(resume) = self.runs.get_mut(&run_id).and_then(|run| run.resume.as_mut()) {
                    resume.reach(asked.mark.as_ref());
                }
            }
            Fact::HandoverConfirmed(done) => {
                let switched = self.active.as_ref() == Some(&done.to);
                let open = handovers.end(done.handover_id, None);
                handovers.given = open.map(|open| Box::new(Given::new(*open, switched)));
            }
            Fact::HandoverRejected(ended) => drop(handovers.end(ended.handover_id, Some(ended.why))),
            Fact::AgentAdding(ChangeAsked { handover_id: Some(id), tx_id, request_id, .. }) => {
                if let Some(open) = handovers.open.as_mut().filter(|open| open.id == *id) {
                    open.joining = Some(Joining { tx_id: *tx_id, request_id: request_id.clone() });
                }
            }
            Fact::AgentSwitched { .. } => {
                handovers.given.iter_mut().for_each(|given| given.switched = true);
            }
            Fact::AgentRemoved(done) => drop(handovers.given.take_if(|given| given.to == done.agent_id)),
            Fact::SessionClosed { .. } => handovers.given = None,
            Fact::AgentStreamDelta { text, .. } => handovers.says(entry.run_id.as_ref(), text.reveal()),
            // Another attempt begins its answer anew.
            Fact::RunRestarted { .. } => handovers.begins(entry.run_id.as_ref()),
            Fact::RunStarted { agent_id, .. } => {
                handovers.begins(entry.run_id.as_ref());
                let given = handovers.given.as_mut().filter(|given| given.to == *agent_id);
                given.into_iter().for_each(|given| given.told = given.told.take().or(entry.run_id.clone()));
            }
            fact if fact.is_terminal() => {
                handovers.told(entry.run_id.as_ref(), fact);
                entry.run_id.iter().for_each(|run_id| handovers.keep_said(run_id));
            }
            _ => {}
        }
    }
}

impl Handovers {
    /// A turn has ended: who has completed it knows now; else it is told again.
    fn told(&mut self, run_id: Option<&RunId>, fact: &Fact) {
        let Some(given) = self.given.as_mut().filter(|given| given.told.is_some()) else { return };
        if given.told.as_ref() != run_id {
            return;
        }
        given.told = None;
        if matches!(fact, Fact::RunDone { .. }) && !planted(Mutant::HandoverToldAgain) {
            self.given = None;
        }
    }
}

impl Handover {
    fn new(run_id: RunId, asked: &HandoverAsked) -> Self {
        Self {
            id: asked.handover_id,
            run_id,
            from: asked.from.clone(),
            to: asked.to.clone(),
            reason: asked.reason.clone(),
            summary: asked.summary.clone(),
            deadline: asked.deadline_ms,
            joining: None,
            said: Said::default(),
        }
    }
}

impl Given {
    fn new(open: Handover, switched: bool) -> Self {
        let Handover { id, run_id, from, to, reason, summary, said, .. } = open;
        Self { id, run_id, from, to, reason, summary, switched, told: None, said }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: SR-T9.
    #[test]
    fn of_a_long_answer_the_end_is_kept_in_whole_letters() {
        let mut said = Said::default();
        said.push(&"a".repeat(limits::HANDOVER_TEXT_BYTES_MAX));
        assert!(!said.is_cut && said.text.reveal().len() == limits::HANDOVER_TEXT_BYTES_MAX);
        said.push("\u{e9}");
        assert!(said.is_cut && said.text.reveal().ends_with("a\u{e9}"));
        assert_eq!(said.text.reveal().len(), limits::HANDOVER_TEXT_BYTES_MAX);
        // A letter that would be cut in two is left out.
        let mut said = Said::default();
        said.push(&"\u{e9}".repeat(limits::HANDOVER_TEXT_BYTES_MAX / 2));
        said.push("x");
        assert_eq!(said.text.reveal().len(), limits::HANDOVER_TEXT_BYTES_MAX - 1);
    }
}
