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
        }))
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
            Fact::RunStarted { agent_id, .. } => {
                let given = handovers.given.as_mut().filter(|given| given.to == *agent_id);
                given.into_iter().for_each(|given| given.told = given.told.take().or(entry.run_id.clone()));
            }
            fact if fact.is_terminal() => handovers.told(entry.run_id.as_ref(), fact),
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
        }
    }
}

impl Given {
    fn new(open: Handover, switched: bool) -> Self {
        let Handover { id, run_id, from, to, reason, summary, .. } = open;
        Self { id, run_id, from, to, reason, summary, switched, told: None }
    }
}
