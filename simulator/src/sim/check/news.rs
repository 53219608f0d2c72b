//! Checks G4 and EV-G1: facts sent to a running agent are in the log, come in its order, and include every type
//! that the agent has subscribed to.
use super::ledger::StoreRecord;
use std::sync::Arc;
use turnway_core::id::{NodeId, Seq};
use turnway_core::protocol::action::FactDelivery;

/// Prefixes of the facts that an agent gets about its own actions, without a subscription.
const OF_ACTIONS: [&str; 4] = ["agent.action", "tool.", "process.", "system."];

impl StoreRecord {
    /// Checks a fact that is sent to an agent.
    pub(super) fn told_of(&mut self, node: NodeId, delivery: &FactDelivery) {
        let FactDelivery { key, run_id, attempt, agent_id, seq, epoch: _, entry } = delivery;
        let name = entry.fact.name();
        let chronicle = self.chronicles.get(key);
        let fact = |seq: u64| chronicle.and_then(|chronicle| chronicle.fact(Seq(seq)));
        let durable = fact(seq.0).is_some_and(|(_, known)| Arc::ptr_eq(known, entry) || known == entry);
        assert!(durable, "G4: no agent is told of what is not durable: {run_id} {seq:?} {name}");
        let events = self.directory.policy(agent_id).events;
        let wants = |name: &str| events.iter().any(|pattern| pattern.matches(name));
        let own = OF_ACTIONS.iter().any(|of| name.starts_with(of));
        let asked = self.subscribed.contains(run_id) && (name.starts_with("user.") || name.starts_with("agent."));
        assert!(own || asked || wants(name), "EV-G1: an agent is told of what it has subscribed to: {agent_id} {name}");
        let order = self.orders.get_mut(&(node, run_id.clone(), *attempt));
        let order = order.unwrap_or_else(|| panic!("G4: who is told of something was asked: {run_id}.{attempt}"));
        let told = std::mem::replace(&mut order.told, *seq);
        assert!(told < *seq, "EV-G1: each fact is told once, in its place: {run_id} {seq:?}, told up to {told:?}");
        let missed = (told.0 + 1..seq.0).find(|seq| fact(*seq).is_some_and(|(_, entry)| wants(entry.fact.name())));
        assert_eq!(missed, None, "EV-G1: nothing it has subscribed to is left out: {run_id} {seq:?}");
    }
}
