//! The agents that other nodes serve, as announced by those nodes.
use std::collections::{BTreeMap, BTreeSet};
use turnway_core::id::{AgentId, NodeId};
use turnway_core::limits::{SERVING_EXPIRY, SERVING_NODES_MAX};
use turnway_core::time::Mono;
use turnway_wire::peer::remote::AgentCapacity;

/// The agents of the other nodes. The information is a hint: a node without capacity refuses.
#[derive(Debug, Default)]
pub(super) struct AgentLocations(BTreeMap<NodeId, NodeAgents>);

#[derive(Debug)]
struct NodeAgents {
    announced_at: Mono,
    agents: BTreeMap<AgentId, AgentCapacity>,
    /// Calls started there since the announcement.
    calls_since: BTreeMap<AgentId, u32>,
}

// === impl AgentLocations ===

impl AgentLocations {
    /// Records an announcement; returns the agents with free capacity.
    pub(super) fn record_announcement(
        &mut self,
        now: Mono,
        node: NodeId,
        agents: Vec<(AgentId, AgentCapacity)>,
    ) -> Vec<AgentId> {
        self.0.retain(|_, known| is_fresh(now, known));
        if agents.is_empty() {
            self.0.remove(&node);
            return Vec::new();
        }
        if !self.0.contains_key(&node) && self.0.len() >= SERVING_NODES_MAX {
            return Vec::new();
        }
        let free = agents.iter().filter(|(_, serving)| serving.has_room);
        let free = free.map(|(agent, _)| agent.clone()).collect();
        let known =
            NodeAgents { announced_at: now, agents: agents.into_iter().collect(), calls_since: BTreeMap::new() };
        self.0.insert(node, known);
        free
    }

    /// Removes a node.
    pub(super) fn remove_node(&mut self, node: NodeId) {
        self.0.remove(&node);
    }

    /// Counts a call that was started at a node.
    pub(super) fn count_call(&mut self, node: NodeId, agent: &AgentId) {
        if let Some(known) = self.0.get_mut(&node) {
            *known.calls_since.entry(agent.clone()).or_default() += 1;
        }
    }

    /// Returns the node with the lowest load per connection, except those in `tried`.
    pub(super) fn least_loaded_node(&self, now: Mono, agent: &AgentId, tried: &BTreeSet<NodeId>) -> Option<NodeId> {
        let free = self.nodes_with(now, agent).filter(|(node, serving, _)| serving.has_room && !tried.contains(node));
        // Attempts per connection, in thousandths.
        let load = |(node, serving, since): &(NodeId, AgentCapacity, u32)| {
            let open = u64::from(serving.open) + u64::from(*since);
            (open * 1000 / u64::from(serving.connections.max(1)), *node)
        };
        free.min_by_key(load).map(|(node, _, _)| node)
    }

    /// Returns the nodes that serve an agent, with their number of connections.
    pub(super) fn connections(&self, now: Mono, agent: &AgentId) -> Vec<(NodeId, u32)> {
        self.nodes_with(now, agent).map(|(node, serving, _)| (node, serving.connections)).collect()
    }

    fn nodes_with<'a>(
        &'a self,
        now: Mono,
        agent: &'a AgentId,
    ) -> impl Iterator<Item = (NodeId, AgentCapacity, u32)> + use<'a> {
        self.0.iter().filter(move |(_, known)| is_fresh(now, known)).filter_map(|(node, known)| {
            let since = known.calls_since.get(agent).copied().unwrap_or_default();
            Some((*node, *known.agents.get(agent)?, since))
        })
    }
}

fn is_fresh(now: Mono, known: &NodeAgents) -> bool {
    now - known.announced_at < SERVING_EXPIRY
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(s: u64) -> Mono {
        Mono(Duration::from_secs(s))
    }

    /// Covers: MP-F1.
    #[test]
    fn least_busy_node_is_chosen_while_announced() {
        let a = AgentId::parse("a").expect("a name");
        let mut roll = AgentLocations::default();
        let nobody = BTreeSet::new();
        let serving = |connections, open| AgentCapacity { connections, open, has_room: true };
        roll.record_announcement(at(0), NodeId(2), vec![(a.clone(), serving(1, 3))]);
        assert_eq!(
            roll.record_announcement(at(1), NodeId(3), vec![(a.clone(), serving(2, 4))]),
            std::slice::from_ref(&a)
        );
        assert_eq!(roll.least_loaded_node(at(1), &a, &nobody), Some(NodeId(3)));
        // Two calls per connection; the other node has the same load.
        roll.count_call(NodeId(3), &a);
        roll.count_call(NodeId(3), &a);
        roll.count_call(NodeId(3), &a);
        assert_eq!(roll.least_loaded_node(at(1), &a, &nobody), Some(NodeId(2)));
        assert_eq!(roll.least_loaded_node(at(1), &a, &BTreeSet::from([NodeId(2)])), Some(NodeId(3)));
        assert_eq!(roll.connections(at(1), &a), [(NodeId(2), 1), (NodeId(3), 2)]);
        // The announcement of one node has expired; another node serves no agents; a third has no capacity.
        assert_eq!(roll.least_loaded_node(at(7), &a, &nobody), Some(NodeId(3)));
        assert!(
            roll.record_announcement(
                at(7),
                NodeId(4),
                vec![(a.clone(), AgentCapacity { connections: 1, ..AgentCapacity::default() })]
            )
            .is_empty()
        );
        roll.record_announcement(at(7), NodeId(3), vec![]);
        assert_eq!(roll.least_loaded_node(at(7), &a, &nobody), None);
    }
}
