//! Checks ST-9: a steering message is accepted by exactly one attempt that counts, or becomes a turn of its own.
use super::ledger::{SessionRecord, StoreRecord};
use std::collections::BTreeSet;
use turnway_core::id::{NodeId, RunId, SessionKey};
use turnway_core::protocol::entry::{Admission, Entry, Fact, InputFact, RunFact};
use turnway_core::protocol::steer::Steer;

/// Steering messages that agents have accepted by their own account: input, run and attempt.
pub(super) type Taken = BTreeSet<(RunId, RunId, u32)>;

/// State of an input in the log, if it was passed to a run.
#[derive(Clone, Debug, Default)]
pub(super) struct SteeringState {
    /// Run that holds the input; `None` for a turn of its own.
    pub(super) host: Option<RunId>,
    /// Run that has returned the input.
    pub(super) returned: Option<RunId>,
    /// The host has the input in its prompt, and no agent is handed it.
    pub(super) is_gathered: bool,
}

impl StoreRecord {
    /// Records that an agent has accepted a steering message.
    pub(crate) fn took(&mut self, key: &SessionKey, taken: (RunId, RunId, u32)) {
        self.chronicles.entry(key.clone()).or_default().steered.insert(taken);
    }

    /// Checks a steering message to an attempt: the log knows of it, and each owner passes it on once. An owner
    /// that was paused may do so after the next owner has taken the input back; the agent knows that owner's epoch.
    /// (G4)
    pub(super) fn handed(&mut self, node: NodeId, steer: &Steer) {
        let Steer { key, run_id, attempt, epoch, turn_id, .. } = steer;
        let stories = self.chronicles.get(key).map(|chronicle| &chronicle.stories);
        let guest = stories.and_then(|stories| Some(&stories.get(turn_id)?.guest));
        let is_outdone = self.latest_claim(key).is_some_and(|latest| latest > *epoch);
        let had = guest.and_then(|guest| guest.returned.as_ref()).filter(|_| is_outdone);
        let host = guest.and_then(|guest| guest.host.as_ref()).or(had);
        assert_eq!(host, Some(run_id), "G4: nothing is handed over before its fact is durable: {turn_id}");
        // An attempt that resumes over another connection may not know the steering messages of the previous one.
        let order = self.orders.get(&(node, run_id.clone(), *attempt)).map(|order| order.begun);
        let name = (node, *epoch, order, turn_id.clone(), run_id.clone(), *attempt);
        assert!(
            self.handed.insert(name),
            "ST-9: an attempt is handed an input once by each owner and order: {turn_id}"
        );
    }
}

impl SessionRecord {
    /// Returns whether a completed turn has accepted this input in the attempt that counts.
    fn has_taken(&self, host: &RunId, guest: &RunId, done: bool) -> bool {
        let end = self.stories.get(host).and_then(|turn| turn.ended.as_ref());
        let end = end.filter(|end| end.done || !done);
        end.is_some_and(|end| self.steered.contains(&(guest.clone(), host.clone(), end.attempt)))
    }

    /// Applies a fact about an input that a run holds or has held.
    pub(super) fn take_of_guest(&mut self, run_id: &RunId, entry: &Entry) {
        let Some(guest) = self.stories.get(run_id).map(|turn| turn.guest.clone()) else { return };
        let mut next = guest.clone();
        #[expect(clippy::wildcard_enum_match_arm, reason = "the rest is of turns, whoever takes them")]
        match &entry.fact {
            Fact::Input(InputFact::Admitted { strategy: Admission::Steered, host_run_id, .. }) => {
                let host = host_run_id.as_ref();
                assert!(host.is_some() && host == self.active.as_ref(), "ST-7: who takes it runs: {run_id}");
                assert!(guest.host.is_none() && guest.returned.is_none(), "ST-9: it is handed over once: {run_id}");
                next.host = host.cloned();
            }
            Fact::Input(InputFact::Gathered { host_run_id }) => {
                assert!(self.active.is_none(), "BD-M8: a turn takes messages along when it starts: {run_id}");
                assert!(
                    guest.host.is_none() && guest.returned.is_none(),
                    "BD-M8: a message is gathered once: {run_id}"
                );
                next.host = Some(host_run_id.clone());
                next.is_gathered = true;
            }
            Fact::Input(InputFact::Admitted { .. }) => {
                if let Some(host) = next.host.take() {
                    next.returned = Some(host.clone());
                    let twice = self.has_taken(&host, run_id, true) && !self.rewinds;
                    assert!(!twice, "ST-9: what was taken is not asked again: {run_id} of {host}");
                }
            }
            Fact::Input(InputFact::SteerAcked { host_run_id, .. }) => {
                assert_eq!(guest.host.as_ref(), Some(host_run_id), "ST-8: a receipt of what is there: {run_id}");
            }
            Fact::Run(RunFact::Started { .. }) => {
                assert!(guest.host.is_none(), "ST-9: what a run holds is no turn of its own: {run_id}");
            }
            Fact::Run(RunFact::Done { host_run_id: Some(host), .. }) => {
                assert_eq!(guest.host.as_ref(), Some(host), "ST-9: it ends with the run that has it: {run_id}");
                let has_ended = self.stories.get(host).is_some_and(|turn| turn.ended.is_some());
                assert!(
                    has_ended || !guest.is_gathered || self.rewinds,
                    "BD-M8: its turn has ended: {run_id} of {host}"
                );
                let taken = guest.is_gathered || self.has_taken(host, run_id, false) || self.rewinds;
                assert!(taken, "ST-9: what ends with a run was taken by its last attempt: {run_id} of {host}");
            }
            _ => {}
        }
        if let Some(turn) = self.stories.get_mut(run_id) {
            turn.guest = next;
        }
    }
}
