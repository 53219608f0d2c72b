//! What sessions ask of whoever keeps sessions: to see whether an agent can come, and to keep what is known of
//! one that leaves, so that it is known again when it returns (SR-D4, SR-E2). Done on directory and store; a receipt
//! goes back to the session, unless somebody else owns it by then, who asks again.
use super::Switchboard;
use super::seat::Seat;
use turnway_core::id::{AgentId, SessionKey};
use turnway_core::machine::Machine;
use turnway_core::protocol::member::{Errand, Member, Receipt};
use turnway_core::session::Input as Told;
use turnway_core::store::{Op, Reply, StoreError};
use turnway_core::time::Now;

/// What the names of all values begin with that the switchboard asks the store for.
pub const MEMBER_NAMES: &str = "member/";

/// An errand on its way.
#[derive(Debug)]
pub(super) struct Out {
    key: SessionKey,
    errand: Errand,
}

/// Under which name what is known of an agent that has left lies in the store.
fn name_of(key: &SessionKey, agent: &AgentId) -> String {
    format!("{MEMBER_NAMES}{}/{}/{agent}", key.tenant, key.session)
}

impl Switchboard {
    /// Sets out; to be asked again for what is under way changes nothing.
    pub(super) fn errand(&mut self, now: Now, key: &SessionKey, errand: Errand) {
        if errand.keep.is_none() && self.is_unknown(&errand.agent_id) {
            return self.receipt(now, key, &errand, Receipt::Failed("there is no such agent".to_owned()));
        }
        let name = name_of(key, &errand.agent_id);
        self.errands.insert(name.clone(), Out { key: key.clone(), errand });
        self.store(Op::Get { name });
    }

    /// The store has answered: what an agent that comes was known by, or under which version that is replaced.
    pub(super) fn fetched(&mut self, now: Now, name: String, result: Result<Reply, StoreError>) {
        let Some(out) = self.errands.get(&name) else { return };
        match result {
            Ok(Reply::Value { version, value }) => {
                let kept = value.and_then(|json| serde_json::from_slice::<Member>(&json).ok());
                match &out.errand.keep {
                    None => self.returned(now, &name, Receipt::Done(kept)),
                    // An earlier owner has been as far as this.
                    Some(keep) if kept == Some(*keep) => self.returned(now, &name, Receipt::Done(None)),
                    Some(keep) => {
                        // Numbers always serialise.
                        let value = Some(serde_json::to_vec(keep).unwrap_or_default());
                        self.store(Op::Put { name, expect: version, value });
                    }
                }
            }
            Ok(_) => self.returned(now, &name, Receipt::Failed("the store did not take it".to_owned())),
            Err(_) if self.is_wanted(&name) => self.again(now, Op::Get { name }),
            Err(_) => drop(self.errands.remove(&name)),
        }
    }

    /// What is known of an agent was put away, or not: the next look says.
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

    /// Whether the session still waits for it, and here.
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
