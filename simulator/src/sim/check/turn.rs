//! Checks G3, G6 and I6: each next fact of a turn must be valid.
use super::ledger::SessionRecord;
use super::steering::SteeringState;
use crate::sim::behaviour::STATES;
use std::collections::{BTreeMap, BTreeSet};
use turnway_core::id::{AgentId, InboxPosition, RunId};
use turnway_core::limits;
use turnway_core::protocol::agent::{AgentDirectory, OnOwnerLoss};
use turnway_core::protocol::entry::{Admission, Entry, Fact, InputFact, RunFact, Scope, SessionFact};
use turnway_core::store::StoredSession;

/// Final state of a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// Number of the last attempt.
    pub(crate) attempt: u32,
    /// Bytes of text that count.
    pub(crate) text_bytes: u64,
    /// True if the turn was completed.
    pub(crate) done: bool,
}

/// One turn so far.
#[derive(Clone, Debug)]
pub(crate) struct TurnRecord {
    /// Number of the message.
    pub(crate) n: u64,
    pub(crate) agent: Option<AgentId>,
    admitted: Option<Admission>,
    /// Position of the input that this one replaces, if any.
    pub(super) position: Option<InboxPosition>,
    pub(super) guest: SteeringState,
    /// Number of attempts begun.
    pub(crate) attempt: u32,
    suspended: u32,
    resumed: u32,
    /// Attempts that the agent did not know.
    pub(super) forgotten: BTreeSet<u32>,
    /// Agent states reported in the open attempt.
    states: usize,
    /// Bytes of each attempt's text in the log.
    pub(crate) saved: BTreeMap<u32, u64>,
    /// True once a cancel is recorded.
    pub(crate) cancelling: bool,
    pub(crate) ended: Option<End>,
}

impl TurnRecord {
    pub(crate) fn new(n: u64) -> Self {
        Self {
            n,
            agent: None,
            admitted: None,
            position: None,
            guest: SteeringState::default(),
            attempt: 0,
            suspended: 0,
            resumed: 0,
            forgotten: BTreeSet::new(),
            states: 0,
            saved: BTreeMap::new(),
            cancelling: false,
            ended: None,
        }
    }

    /// Returns the rank among waiting inputs: interrupts, then returned steering messages, then the others.
    pub(super) fn rank(&self) -> u8 {
        match self.admitted {
            Some(Admission::Interrupts) if self.attempt == 0 => 0,
            Some(_) | None if self.guest.returned.is_some() => 1,
            Some(_) | None => 2,
        }
    }

    /// Returns whether an agent has received the input as a steering message.
    pub(super) fn was_handed(&self) -> bool {
        self.guest.host.is_some() || self.guest.returned.is_some()
    }

    fn policy(&self, directory: &AgentDirectory) -> OnOwnerLoss {
        self.agent.as_ref().map(|agent| directory.policy(agent).on_owner_loss).unwrap_or_default()
    }

    fn begins(&mut self, run_id: &RunId, attempt: u32, directory: &AgentDirectory, rewinds: bool) {
        self.attempt += 1;
        self.states = 0;
        assert_eq!(self.attempt, attempt, "G3: attempts are counted: {run_id}");
        self.counts(run_id);
        if attempt > 1 {
            let known = !self.forgotten.contains(&(attempt - 1));
            let spoke = self.saved.values().any(|bytes| *bytes > 0);
            let again = match self.policy(directory) {
                OnOwnerLoss::Retry => true,
                OnOwnerLoss::RetryIfSilent => !spoke,
                OnOwnerLoss::Fail => false,
                OnOwnerLoss::Resume => !spoke && (!known || rewinds),
            };
            assert!(again, "G3: a turn that may not be repeated is not: {run_id}");
        }
    }

    fn counts(&self, run_id: &RunId) {
        let counted = self.attempt + self.resumed - self.suspended;
        assert!(counted <= limits::TURN_ATTEMPTS_MAX, "G8: attempts are bounded: {run_id}");
    }

    /// Records that another owner resumes the open attempt.
    fn goes_on(&mut self, run_id: &RunId, attempt: u32, directory: &AgentDirectory) {
        assert_eq!(self.attempt, attempt, "G3: what goes on is the attempt under way: {run_id}");
        assert_eq!(self.policy(directory), OnOwnerLoss::Resume, "G3: only what outlives its owner goes on: {run_id}");
        self.resumed += 1;
        self.counts(run_id);
    }

    /// Checks that agent states come in order, each once.
    fn state(&mut self, run_id: &RunId, state: &str) {
        let next = STATES.get(self.states);
        assert_eq!(next, Some(&state), "G6: a recorded state is the next of the agent's: {run_id}");
        self.states += 1;
    }

    fn text(&mut self, run_id: &RunId, attempt: u32, offset: u64, text: &str, answer: Option<&str>) {
        assert_eq!(self.attempt, attempt, "G6: text of the attempt under way: {run_id}");
        let saved = self.saved.entry(attempt).or_default();
        assert_eq!(*saved, offset, "G6: stretches of text join up: {run_id}");
        let there = answer.and_then(|answer| answer.get(offset as usize..offset as usize + text.len()));
        assert!(there == Some(text), "G6: recorded text is what the agent said: {run_id}.{attempt} at {offset}");
        *saved += text.len() as u64;
    }

    fn ends(&mut self, run_id: &RunId, end: End) {
        let saved = self.saved.get(&self.attempt).copied().unwrap_or(0);
        assert_eq!(end.attempt, self.attempt, "G3: a turn ends in its last attempt: {run_id}");
        assert_eq!(end.text_bytes, saved, "G6: all of the text is recorded when a turn ends: {run_id}");
        self.ended = Some(end);
    }
}

impl SessionRecord {
    /// Applies the next fact. `answer`: the whole text of the attempt that the fact is about.
    pub(super) fn take(
        &mut self,
        entry: &Entry,
        answer: Option<&str>,
        slot: Option<&StoredSession>,
        directory: &AgentDirectory,
    ) {
        let speaks = self.active.as_ref().and_then(|run_id| self.stories.get(run_id)?.agent.clone());
        self.company.take(entry, speaks.as_ref());
        self.handed.take(entry, self.rewinds);
        self.acted.take(entry);
        self.bound.take(&entry.fact, self.rewinds);
        match &entry.fact {
            Fact::Session(SessionFact::Opened { user, .. }) => {
                self.closing = false;
                let owner = slot.and_then(|slot| slot.user.as_ref());
                assert!(owner.is_none_or(|owner| owner == user), "G7: a session is its first user's");
            }
            Fact::Session(SessionFact::Closing { .. }) => self.closing = true,
            Fact::Session(SessionFact::Closed { .. }) => {
                assert!(self.closing && self.active.is_none(), "G3: nothing speaks in a closed session");
                let open = self.stories.values().any(|turn| turn.ended.is_none());
                assert!(!open, "G3: every turn that was begun or waits ends before its session closes");
            }
            Fact::Session(_)
            | Fact::Member(_)
            | Fact::Handover(_)
            | Fact::Action(_)
            | Fact::Binding(_)
            | Fact::Delivery(_)
            | Fact::Model(_)
            | Fact::Unknown(_) => {}
            Fact::Input(_) | Fact::Run(_) => {
                let run_id = entry.run_id.as_ref().expect("a fact of a turn names it");
                self.take_of_run(run_id, entry, answer, slot, directory);
            }
        }
    }

    fn take_of_run(
        &mut self,
        run_id: &RunId,
        entry: &Entry,
        answer: Option<&str>,
        slot: Option<&StoredSession>,
        directory: &AgentDirectory,
    ) {
        if let Fact::Run(RunFact::Started { .. }) = &entry.fact {
            self.begins_in_order(run_id, slot);
        }
        self.take_of_guest(run_id, entry);
        self.take_of_place(run_id, entry, slot);
        let active = self.active.as_ref() == Some(run_id);
        let Some(turn) = self.stories.get_mut(run_id) else { panic!("G3: {run_id} has no message") };
        let name = entry.fact.name();
        assert!(turn.ended.is_none(), "G3: nothing follows the end of a turn: {run_id} {name}");
        #[expect(clippy::wildcard_enum_match_arm, reason = "what a turn's story is made of is above")]
        match &entry.fact {
            Fact::Input(InputFact::Admitted { agent_id, strategy, .. }) => {
                turn.agent = Some(agent_id.clone());
                // Admitted again if another agent is to answer, which changes nothing else.
                turn.admitted.get_or_insert(*strategy);
            }
            Fact::Run(RunFact::Started { attempt, agent_id, .. }) => {
                self.company.asks(agent_id);
                turn.begins(run_id, *attempt, directory, self.rewinds);
                self.active = Some(run_id.clone());
            }
            Fact::Run(RunFact::Restarted { attempt, .. }) => {
                assert!(active && !turn.cancelling, "G3: only what was begun begins again: {run_id}");
                turn.begins(run_id, *attempt, directory, self.rewinds);
            }
            Fact::Run(RunFact::Resumed { attempt, .. }) => {
                assert!(active && !turn.cancelling, "G3: only what was begun goes on: {run_id}");
                turn.goes_on(run_id, *attempt, directory);
            }
            Fact::Run(RunFact::State { scope: Scope::Agent, state, .. }) => turn.state(run_id, state),
            Fact::Run(RunFact::TextDelta { attempt, offset, text, .. }) => {
                assert!(active, "G6: text of the turn that speaks: {run_id}");
                turn.text(run_id, *attempt, *offset, text.reveal(), answer);
            }
            Fact::Run(RunFact::Suspended { .. }) => turn.suspended += 1,
            Fact::Run(RunFact::Cancelling { .. }) => turn.cancelling = true,
            Fact::Run(RunFact::Done { host_run_id: Some(_), .. }) => {
                turn.ends(run_id, End { attempt: 0, text_bytes: 0, done: false });
            }
            Fact::Run(RunFact::Done { attempt, text_bytes, text_sha256, .. }) => {
                assert!(!turn.cancelling, "G3: late output does not complete a cancelled turn: {run_id}");
                assert!(active, "G3: only what was begun is completed: {run_id}");
                whole(run_id, *text_bytes, text_sha256, answer);
                turn.ends(run_id, End { attempt: *attempt, text_bytes: *text_bytes, done: true });
            }
            Fact::Run(RunFact::Failed { attempt, text_bytes, .. } | RunFact::Cancelled { attempt, text_bytes, .. }) => {
                let cancels = turn.cancelling && matches!(entry.fact, Fact::Run(RunFact::Failed { .. }));
                assert!(!cancels, "G3: a turn that is being cancelled ends cancelled: {run_id}");
                turn.ends(run_id, End { attempt: *attempt, text_bytes: *text_bytes, done: false });
            }
            Fact::Run(RunFact::AgentStarted { attempt, .. } | RunFact::AgentDone { attempt, .. }) => {
                assert_eq!(*attempt, turn.attempt, "G3: an agent is heard in its attempt: {run_id}");
            }
            // The user message, and facts of no turn, which are handled before.
            _ => {}
        }
        if entry.fact.is_terminal() {
            self.is_over(run_id, slot);
        }
    }

    fn is_over(&mut self, run_id: &RunId, slot: Option<&StoredSession>) {
        self.active = self.active.take().filter(|active| active != run_id);
        let left = slot.is_some_and(|slot| slot.inbox.values().any(|input| input.run_id == *run_id));
        assert!(!left, "G3: an input leaves the inbox with its turn's end: {run_id}");
    }
}

/// Checks that the text of a completed turn is all that the agent sent, and that its hash is right. (G6)
fn whole(run_id: &RunId, text_bytes: u64, sha256: &str, answer: Option<&str>) {
    use sha2::{Digest, Sha256};
    let answer = answer.unwrap_or_default();
    assert_eq!(text_bytes, answer.len() as u64, "G6: the text of a completed turn is whole: {run_id}");
    let hash: String = Sha256::digest(answer.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hash, sha256, "G6: the hash of a completed turn's text is right: {run_id}");
}
