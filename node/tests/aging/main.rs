//! Deletion of sessions because of their age: nodes on one model store, with simulated time.
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{
    ControlId, Epoch, Holder, LeaseId, NodeId, Nonce, OwnershipSnapshot, Principal, SessionId, SessionKey, TenantId,
    UserId,
};
use turnway_core::machine::Machine;
use turnway_core::protocol::agent::AgentDirectory;
use turnway_core::protocol::input::{ControlEntry, ControlRequest};
use turnway_core::store::{Append, ModelStore, Op, Reply};
use turnway_core::time::{Millis, Mono, Now};
use turnway_node::switchboard::{Capacity, Config, Input, Output, Switchboard};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// More than one step of a walk covers.
const SESSIONS: u64 = 700;

/// Nodes on one store.
struct Fleet {
    nodes: Vec<Switchboard>,
    model: ModelStore,
    now: Now,
}

fn key(n: u64) -> SessionKey {
    let tenant = TenantId::parse(&format!("t{}", n % 3)).expect("a name");
    SessionKey { tenant, session: SessionId::parse(&format!("s{n}")).expect("a name") }
}

fn node(number: u8) -> Switchboard {
    Switchboard::new(Config {
        node: NodeId(u128::from(number)),
        directory: Arc::new(AgentDirectory::default()),
        seed: [number; 32],
        single_node: false,
        keep_facts: None,
        max_age: Some(DAY),
        capacity: Capacity::default(),
    })
}

impl Fleet {
    fn new(nodes: u8) -> Self {
        let now = Now { mono: Mono(Duration::from_secs(1)), store: Millis(1_764_000_000_000) };
        Self { nodes: (1..=nodes).map(node).collect(), model: ModelStore::new(false), now }
    }

    fn apply(&mut self, op: &Op) -> Reply {
        self.model.apply(self.now, op)
    }

    /// Opens a session with a control entry in its inbox.
    fn open(&mut self, n: u64) {
        let user = UserId::parse("ann").expect("a name");
        let principal = Principal { tenant: key(n).tenant, user: user.clone(), operator: false, writes: true };
        let id = ControlId::parse(&format!("c{n}")).expect("a name");
        let control = ControlEntry { id, user, request_id: None, what: ControlRequest::Close };
        let op = Op::Control { key: key(n), principal, control: Arc::new(control), create: true };
        assert!(matches!(self.apply(&op), Reply::Accepted(_)));
    }

    /// Claims a session, answers its control entries and releases it.
    fn settle(&mut self, n: u64) {
        let key = key(n);
        let nonce = Nonce(u128::from(n) + 1);
        let expect = OwnershipSnapshot::default();
        let holder = Holder { node: NodeId(99), life: LeaseId(1) };
        let claim = Op::Claim { key: key.clone(), holder, nonce, expect, floor: Epoch(0) };
        let Reply::Claimed(claimed) = self.apply(&claim) else { panic!("not claimed") };
        let answers = claimed.inbox.controls.iter().map(|(place, _)| *place).collect();
        let token = claimed.token;
        let after = claimed.view.tail.seq;
        let facts = Vec::new();
        let ends = Vec::new();
        let closed = None;
        let known = claimed.version;
        let append = Append {
            key: key.clone(),
            token,
            after,
            facts,
            ends,
            answers,
            closed,
            annotations: Vec::new(),
            known_listeners: known,
        };
        assert!(matches!(self.apply(&Op::Append(Box::new(append))), Reply::Appended { .. }));
        let release = Op::Release { key, token, tail: after, drain: false };
        assert_eq!(self.apply(&release), Reply::Released);
    }

    fn drain(&mut self) {
        for node in &mut self.nodes {
            while let Some(output) = node.poll_output() {
                if let Output::Store(op) = output {
                    let result = Ok(self.model.apply(self.now, &op));
                    node.handle_input(self.now, Input::Stored { op, result });
                }
            }
        }
    }

    fn run(&mut self, wait: Duration) {
        let until = self.now.mono + wait;
        loop {
            let due = self.nodes.iter_mut().filter_map(|node| node.poll_timeout().map(|due| due.at)).min();
            let Some(next) = due.filter(|at| *at <= until) else { break };
            self.pass(next.max(self.now.mono) - self.now.mono);
            for node in &mut self.nodes {
                node.handle_timeout(self.now);
            }
            self.drain();
        }
        self.pass(until - self.now.mono);
    }

    fn pass(&mut self, wait: Duration) {
        self.now = Now { mono: self.now.mono + wait, store: self.now.store.after(wait) };
    }

    fn expired(&self) -> u64 {
        self.nodes.iter().map(|node| node.stats(self.now).expired).sum()
    }

    fn left(&self) -> usize {
        self.model.sessions().filter(|(_, slot)| slot.user.is_some() && !slot.deleted).count()
    }
}

#[test]
fn expired_session_is_deleted_once_by_a_fleet() {
    let mut fleet = Fleet::new(3);
    for n in 0..SESSIONS {
        fleet.open(n);
        fleet.settle(n);
    }
    fleet.run(Duration::from_secs(600));
    assert_eq!((fleet.left() as u64, fleet.expired()), (SESSIONS, 0), "none is old");
    fleet.pass(DAY);
    for n in SESSIONS..SESSIONS + 50 {
        fleet.open(n);
        fleet.settle(n);
    }
    fleet.run(Duration::from_secs(600));
    assert_eq!((fleet.left(), fleet.expired()), (50, SESSIONS));
    fleet.run(Duration::from_secs(600));
    assert_eq!(fleet.expired(), SESSIONS, "and none twice");
}
