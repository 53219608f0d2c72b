//! Tasks of sessions for the node: checks whether an agent can join, and stores the member data of an agent that
//! leaves, so that the data is restored on its return (SR-D4, SR-E2). Uses the directory and the store. The receipt
//! goes back to the session, unless another node owns it by then, which repeats the task.
use super::Switchboard;
use super::seat::Seat;
use turnway_core::id::{AgentId, SessionKey};
use turnway_core::machine::Machine;
use turnway_core::protocol::member::{Errand, Member, Receipt};
use turnway_core::session::Input as Told;
use turnway_core::store::{Op, Reply, StoreError};
use turnway_core::time::Now;

/// Prefix of the names of all values that the switchboard stores.
pub const MEMBER_NAMES: &str = "member/";

/// A task in progress.
#[derive(Debug)]
pub(super) struct Out {
    key: SessionKey,
    errand: Errand,
}

/// Returns the name of the stored data of an agent that has left.
fn name_of(key: &SessionKey, agent: &AgentId) -> String {
    format!("{MEMBER_NAMES}{}/{}/{agent}", key.tenant, key.session)
}

impl Switchboard {
    /// Starts a task; a repetition of a running task has no effect.
    pub(super) fn errand(&mut self, now: Now, key: &SessionKey, errand: Errand) {
        if errand.keep.is_none() && self.is_unknown(&errand.agent_id) {
            return self.receipt(now, key, &errand, Receipt::Failed("unknown agent".to_owned()));
        }
        let name = name_of(key, &errand.agent_id);
        self.errands.insert(name.clone(), Out { key: key.clone(), errand });
        self.store(Op::Get { name });
    }

    /// Handles the stored value: the data of a joining agent, or the version to replace.
    pub(super) fn fetched(&mut self, now: Now, name: String, result: Result<Reply, StoreError>) {
        let Some(out) = self.errands.get(&name) else { return };
        match result {
            Ok(Reply::Value { version, value }) => {
                let kept = value.and_then(|json| serde_json::from_slice::<Member>(&json).ok());
                match &out.errand.keep {
                    None => self.returned(now, &name, Receipt::Done(kept)),
                    // An earlier owner has already stored the value.
                    Some(keep) if kept == Some(*keep) => self.returned(now, &name, Receipt::Done(None)),
                    Some(keep) => {
                        // Numbers always serialise.
                        let value = Some(serde_json::to_vec(keep).unwrap_or_default());
                        self.store(Op::Put { name, expect: version, value });
                    }
                }
            }
            Ok(_) => self.returned(now, &name, Receipt::Failed("the store refused the write".to_owned())),
            Err(_) if self.is_wanted(&name) => self.again(now, Op::Get { name }),
            Err(_) => drop(self.errands.remove(&name)),
        }
    }

    /// Handles the result of a write; after an error the value is read again.
    pub(super) fn put_away(&mut self, now: Now, name: String, result: Result<Reply, StoreError>) {
        if !self.errands.contains_key(&name) {
            return;
        }
        match result {
            Ok(reply) => self.fetched(now, name, Ok(reply)),
            Err(_) if self.is_wanted(&name) => self.again(now, Op::Get { name }),
            Err(_) => drop(self.errands.remove(&name)),
        }
    }

    /// Returns whether the session here still waits for the task.
    fn is_wanted(&self, name: &str) -> bool {
        let Some(Out { key, errand }) = self.errands.get(name) else { return false };
        let state = self.seats.get(key).and_then(Seat::owned).map(|owned| owned.runtime.state());
        let change = state.and_then(|state| state.changes.get(&errand.agent_id));
        change.is_some_and(|change| change.tx_id == errand.tx_id)
    }

    fn returned(&mut self, now: Now, name: &str, receipt: Receipt) {
        if let Some(Out { key, errand }) = self.errands.remove(name) {
            self.receipt(now, &key, &errand, receipt);
        }
    }

    fn receipt(&mut self, now: Now, key: &SessionKey, errand: &Errand, receipt: Receipt) {
        if let Some(owned) = self.seats.get_mut(key).and_then(Seat::owned_mut) {
            owned.runtime.handle_input(now, Told::Receipt { tx_id: errand.tx_id, receipt });
        }
        self.pump(now, key);
    }
}
