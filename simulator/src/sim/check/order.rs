//! Checks G4: no order leaves a node before the fact that justifies it is durable.
use super::ledger::{Ordered, StoreRecord};
use turnway_core::id::{AgentId, NodeId, RunId, Seq};
use turnway_core::protocol::agent::{AgentPolicy, Invoke, Order};
use turnway_core::protocol::entry::{Fact, RunFact};
use turnway_core::store::{ModelStore, Op, Reply};
use turnway_core::time::{Mono, Now};

impl StoreRecord {
    /// Returns the policy of an agent.
    pub(crate) fn policy(&self, agent: &AgentId) -> AgentPolicy {
        self.directory.policy(agent)
    }

    /// Checks an order that leaves a node.
    pub(crate) fn ordered(
        &mut self,
        node: NodeId,
        order: &Order,
        model: &mut ModelStore,
        now: Mono,
        (rewinds, restarted): (bool, bool),
    ) {
        if rewinds {
            return;
        }
        match order {
            Order::Invoke(invoke) => {
                let begun = self.invoked(invoke);
                let name = (node, invoke.run_id.clone(), invoke.attempt);
                self.orders.insert(name.clone(), Ordered { begun, told: begun });
                // A resumed attempt may be ordered again.
                let dropped = self.dropped.contains(&name) && invoke.resume.is_none();
                assert!(!dropped, "G4: what was dropped is not ordered any more: {}", invoke.run_id);
                let lease = model.apply(Now { mono: now, ..Now::default() }, &Op::Lease { node, sent: now });
                let leased = matches!(lease, Reply::Leased { left: Some(_) });
                // A lease that was lost with the store's memory is still valid by its node's own clock.
                assert!(leased || restarted, "G4: no order from a node without a lease: {}", invoke.run_id);
            }
            Order::Cancel { run_id, .. } => {
                let turn = self.chronicles.values().find_map(|chronicle| chronicle.stories.get(run_id));
                let known = turn.is_some_and(|turn| turn.cancelling || turn.ended.is_some());
                assert!(known, "G4: no cancel before its fact is durable: {run_id}");
            }
            Order::Steer(steer) => self.handed(node, steer),
            Order::Drop { run_id, attempt } => {
                self.dropped.insert((node, run_id.clone(), *attempt));
            }
            Order::Stop { run_id, .. } => {
                let turn = self.chronicles.values().find_map(|chronicle| chronicle.stories.get(run_id));
                let over = turn.is_some_and(|turn| turn.ended.is_some());
                assert!(over, "G4: nobody is told to stop what another owner may go on with: {run_id}");
            }
            Order::News(delivery) => self.told_of(node, delivery),
            Order::Credit { .. } => {}
        }
    }

    /// Returns the position of the fact by which the attempt was begun.
    fn invoked(&mut self, invoke: &Invoke) -> Seq {
        let Invoke { key, run_id, attempt, epoch, .. } = invoke;
        let goes_on = invoke.resume.is_some();
        let begun = |fact: &Fact, id: Option<&RunId>| {
            let begun = if let Fact::Run(RunFact::Resumed { attempt, .. }) = fact {
                goes_on.then_some(attempt)
            } else if let Fact::Run(RunFact::Started { attempt, .. } | RunFact::Restarted { attempt, .. }) = fact {
                (!goes_on).then_some(attempt)
            } else {
                None
            };
            begun == Some(attempt) && id == Some(run_id)
        };
        let log = self.chronicles.get(key).map_or(&[][..], |chronicle| &chronicle.log);
        // A node that was paused may order an attempt that another owner has resumed meanwhile; the agent knows
        // that owner's epoch.
        let fact =
            log.iter().rposition(|(token, entry)| token.epoch == *epoch && begun(&entry.fact, entry.run_id.as_ref()));
        assert!(fact.is_some(), "G4: no order before its fact is durable: {run_id}.{attempt}");
        let seq = Seq(fact.map_or(0, |at| at as u64 + 1));
        // One owner may resume an attempt more than once, if the connection to its agent is lost.
        let first = self.ordered.insert((run_id.clone(), seq));
        assert!(first, "G4: an attempt is ordered once by each fact that begins it: {run_id}.{attempt}");
        seq
    }
}
