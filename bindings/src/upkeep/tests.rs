//! The upkeep of several nodes on one store: answers get lost, nodes die in any step, and each change of a binding is
//! recorded once, in order.
use super::*;
use std::collections::BTreeSet;
use turnway_core::id::{Epoch, FenceToken, Holder, LeaseId, MessageId, NodeId, Nonce, RunId, SessionId, TenantId};
use turnway_core::id::{ListenersVersion, OwnershipSnapshot, Seq};
use turnway_core::protocol::binding::{ExpiryRules, TargetKind};
use turnway_core::protocol::input::{Content, Input as UserInput, Message, Role, Strategy};
use turnway_core::store::binding::{NewBinding, UnnamedFields};
use turnway_core::store::{Append, ModelStore};
use turnway_core::time::Millis;

const SESSIONS: [&str; 2] = ["s", "t"];

fn key(session: &str) -> SessionKey {
    SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse(session).expect("a name") }
}

fn ann() -> Principal {
    let user = UserId::parse("ann").expect("a name");
    Principal { tenant: TenantId::default_tenant(), user, operator: false, writes: true }
}

fn conversation(id: &str) -> ConversationRef {
    ConversationRef::without_parent("rooms", "a", id).expect("a reference")
}

fn conversation_key(id: &str) -> ConversationKey {
    conversation(id).key(&TenantId::default_tenant())
}

/// Nodes with their upkeep, a store that all of them share, and the owner of its sessions.
struct Fleet {
    store: ModelStore,
    now: Now,
    rng: Rng,
    nodes: Vec<BindingUpkeep>,
    /// Ops of nodes that the store has not performed yet.
    in_flight: Vec<(usize, Op)>,
    /// Changes in the order in which the logs have them: session, and the id of the entry without its hash.
    recorded: Vec<(String, String)>,
    tokens: BTreeMap<SessionKey, FenceToken>,
    binds: u128,
}

impl Fleet {
    fn new(seed: u64, nodes: usize) -> Self {
        let now = Now { mono: Mono(Duration::from_secs(1)), store: Millis(1_764_000_000_000) };
        let mut fleet = Self {
            store: ModelStore::new(false),
            now,
            rng: Rng::from_number(seed),
            nodes: Vec::new(),
            in_flight: Vec::new(),
            recorded: Vec::new(),
            tokens: BTreeMap::new(),
            binds: 0,
        };
        fleet.nodes = (0..nodes).map(|n| BindingUpkeep::new(Rng::from_number(seed + n as u64))).collect();
        for session in SESSIONS {
            fleet.create(session);
        }
        fleet
    }

    /// Creates a session, and owns it.
    fn create(&mut self, session: &str) {
        let key = key(session);
        let principal = ann();
        let message_id = MessageId::parse("m").expect("a name");
        let input = UserInput {
            run_id: RunId::derive(&key, &principal.user, &message_id),
            message_id,
            request_id: None,
            user: principal.user.clone(),
            agent_id: None,
            history: None,
            message: Message { role: Role::User, content: Content::Text("hi".to_owned()) },
            strategy: Strategy::Enqueue,
            replaces: None,
            metadata: None,
            origin: None,
            traceparent: None,
        };
        let hash = input.body_hash();
        let run_id = input.run_id.clone();
        let accept = Op::Accept { key: key.clone(), principal, input: Arc::new(input), hash, route: None };
        let Reply::Accepted(accepted) = self.apply(&accept) else { panic!("a session") };
        let holder = Holder { node: NodeId(9), life: LeaseId(9) };
        let claim = Op::Claim {
            key: key.clone(),
            holder,
            nonce: Nonce(9),
            expect: OwnershipSnapshot::default(),
            floor: Epoch(0),
        };
        let Reply::Claimed(claimed) = self.apply(&claim) else { panic!("an owner") };
        self.tokens.insert(key.clone(), claimed.token);
        self.append(&key, vec![(accepted.position, run_id)], Vec::new(), None);
    }

    fn append(
        &mut self,
        key: &SessionKey,
        ends: Vec<(turnway_core::id::InboxPosition, RunId)>,
        answers: Vec<turnway_core::id::InboxPosition>,
        closed: Option<bool>,
    ) {
        let append = Append {
            key: key.clone(),
            token: self.tokens[key],
            after: Seq(0),
            facts: Vec::new(),
            ends,
            answers,
            closed,
            annotations: Vec::new(),
            known_listeners: ListenersVersion(0),
        };
        let reply = self.apply(&Op::Append(Box::new(append)));
        assert!(matches!(reply, Reply::Appended { .. }), "{reply:?}");
    }

    fn apply(&mut self, op: &Op) -> Reply {
        self.store.apply(self.now, op)
    }

    fn change(&mut self, id: &str, action: BindingAction) -> (BindingOutcome, Option<BindingRow>) {
        let key = conversation_key(id);
        let reply = self.apply(&Op::from(ConversationOp::Change { key, action }));
        if let Reply::Conversation(ConversationReply::Row { outcome, row }) = reply {
            return (outcome, row.map(|row| *row));
        }
        assert!(matches!(reply, Reply::Refused(_)), "{reply:?}");
        (BindingOutcome::NotApplied, None)
    }

    fn bind(&mut self, id: &str, session: &str, expiry: ExpiryRules) -> Option<Generation> {
        self.binds += 1;
        let new = NewBinding {
            conversation: conversation(id),
            session: SessionId::parse(session).expect("a name"),
            principal: ann(),
            target_kind: TargetKind::Session,
            expected: None,
            expiry,
            mirror: false,
            metadata: BTreeMap::new(),
            unnamed: UnnamedFields::default(),
            nonce: Nonce(self.binds),
        };
        let (outcome, row) = self.change(id, BindingAction::Bind(Box::new(new)));
        (outcome == BindingOutcome::Applied).then(|| row.expect("a row").active().expect("a binding").generation)
    }

    fn active(&mut self, id: &str) -> Option<Generation> {
        let (_, row) = self.change(id, BindingAction::Resolve);
        Some(row?.active()?.generation)
    }

    /// Tells a node of a change that it has made itself.
    fn tell(&mut self, node: usize, id: &str) {
        if let (_, Some(row)) = self.change(id, BindingAction::Resolve) {
            let changed = Input::Changed { key: conversation_key(id), row: Box::new(row) };
            self.nodes[node].handle_input(self.now, changed);
            self.collect(node);
        }
    }

    fn collect(&mut self, node: usize) {
        while let Some(op) = self.nodes[node].poll_output() {
            self.in_flight.push((node, op));
        }
    }

    /// Performs one op of a node; its answer may get lost, or the node may be dead by then.
    fn perform(&mut self, at: usize, is_lossy: bool) {
        let (node, op) = self.in_flight.swap_remove(at);
        let dropped = is_lossy && self.rng.chance(10);
        let result = if dropped && self.rng.chance(50) {
            Err(StoreError::Unavailable)
        } else {
            let reply = self.apply(&op);
            if dropped { Err(StoreError::Unknown) } else { Ok(reply) }
        };
        if is_lossy && self.rng.chance(5) {
            // The node dies, and another one comes in its place.
            let rng = Rng::from_number(self.rng.next_u64());
            self.nodes[node] = BindingUpkeep::new(rng);
            self.in_flight.retain(|(of, _)| *of != node);
            return;
        }
        self.nodes[node].handle_input(self.now, Input::Stored { op, result });
        self.collect(node);
    }

    /// Lets the owner record what waits in the control lanes.
    fn record(&mut self) {
        for session in SESSIONS {
            let key = key(session);
            let waiting: Vec<_> = match self.store.session(&key) {
                Some(slot) => slot.control.iter().map(|(at, entry)| (*at, Arc::clone(entry))).collect(),
                None => continue,
            };
            for (_, entry) in &waiting {
                let change = entry.id.as_str().split(':').next().expect("a word").to_owned();
                self.recorded.push((session.to_owned(), change));
            }
            if !waiting.is_empty() {
                self.append(&key, Vec::new(), waiting.into_iter().map(|(at, _)| at).collect(), None);
            }
        }
    }

    fn pass(&mut self, wait: Duration) {
        self.now = Now { mono: self.now.mono + wait, store: self.now.store.after(wait) };
        for node in 0..self.nodes.len() {
            self.nodes[node].handle_timeout(self.now);
            self.collect(node);
        }
    }

    /// Lets everything come to rest.
    fn settle(&mut self) {
        for _ in 0..40 {
            self.pass(Duration::from_secs(1));
            while !self.in_flight.is_empty() {
                self.perform(0, false);
            }
            self.record();
        }
        assert!(self.nodes.iter().all(|node| node.open_count() == 0), "work is left");
        let rows: Vec<_> = self.store.conversations().filter(|(_, row)| !row.reports.is_empty()).collect();
        assert!(rows.is_empty(), "{rows:#?}");
    }
}

fn changes(of: &[(String, String)]) -> Vec<&str> {
    of.iter().map(|(_, change)| change.as_str()).collect()
}

/// Covers: BD-L2, BD-S1.
#[test]
fn expired_binding_ends_once_in_its_sessions_log() {
    let mut fleet = Fleet::new(1, 3);
    let idle = ExpiryRules { idle_timeout: Some(10_000), ..ExpiryRules::default() };
    let generation = fleet.bind("7", "s", idle).expect("bound").0;
    fleet.tell(0, "7");
    fleet.settle();
    assert_eq!(fleet.active("7"), None);
    assert_eq!(
        changes(&fleet.recorded),
        [format!("binding.bound.{generation}"), format!("binding.ended.{generation}")]
    );
}

/// The node that made a change dies before the log has it: another node notices within seconds.
#[test]
fn change_of_a_dead_node_is_recorded_by_another() {
    let mut fleet = Fleet::new(2, 2);
    let generation = fleet.bind("7", "s", ExpiryRules::default()).expect("bound").0;
    fleet.settle();
    assert_eq!(changes(&fleet.recorded), [format!("binding.bound.{generation}")]);
    assert_eq!(fleet.active("7").map(|generation| generation.0), Some(generation));
}

/// Covers: BR-35.
#[test]
fn interrupted_move_is_finished_by_another_node() {
    let mut fleet = Fleet::new(3, 2);
    let generation = fleet.bind("7", "s", ExpiryRules::default()).expect("bound");
    let to = ConversationId::parse("8").expect("an id");
    fleet.change("7", BindingAction::StartMove { generation, to });
    fleet.settle();
    assert_eq!((fleet.active("7"), fleet.active("8")), (None, Some(generation)));
    assert_eq!(changes(&fleet.recorded), [format!("binding.bound.{}", generation.0)]);
    let list = Op::from(ConversationOp::List { session: key("s"), principal: None });
    let Reply::Conversation(ConversationReply::Bindings(bindings)) = fleet.apply(&list) else { panic!("a list") };
    assert_eq!(bindings.iter().map(|b| b.conversation.conversation_id.as_str()).collect::<Vec<_>>(), ["8"]);
}

/// Covers: BD-L19, BR-30.
#[test]
fn binding_of_a_deleted_session_ends() {
    let mut fleet = Fleet::new(4, 1);
    fleet.bind("7", "s", ExpiryRules::default()).expect("bound");
    let other = fleet.bind("8", "t", ExpiryRules::default());
    fleet.append(&key("s"), Vec::new(), Vec::new(), Some(true));
    let link = turnway_core::id::LinkId(1);
    assert_eq!(fleet.apply(&Op::Delete { key: key("s"), principal: ann(), link }), Reply::Done);
    fleet.settle();
    assert_eq!(fleet.active("7"), None);
    let (_, row) = fleet.change("7", BindingAction::Resolve);
    let reason = row.and_then(|row| row.last_ended).map(|last| last.reason);
    assert_eq!(reason, Some(UnbindReason::StaleSession));
    assert_eq!(fleet.active("8"), other, "its session is there");
    assert_eq!(fleet.recorded.len(), 1, "{:?}", fleet.recorded);
}

/// After a start, a node examines every row that is due, at most 256 at a time. What it cannot examine stays as it is.
///
/// Covers: BD-L19.
#[test]
fn failed_check_keeps_the_binding_and_checks_are_capped() {
    let mut fleet = Fleet::new(5, 1);
    let count = limits::DUE_BINDINGS_MAX as usize + 40;
    let ids: Vec<String> = (0..count).map(|n| format!("c{n}")).collect();
    for (n, ids) in ids.chunks(limits::SESSION_BINDINGS_MAX).enumerate() {
        let session = format!("session-{n}");
        fleet.create(&session);
        for id in ids {
            fleet.bind(id, &session, ExpiryRules::default()).expect("bound");
        }
    }
    for failure in [StoreError::Unavailable, StoreError::Unknown] {
        fleet.pass(Duration::from_secs(10));
        let mut most = 0;
        while let Some((node, op)) = fleet.in_flight.pop() {
            // The store answers the search and the look at a row, and fails with each report.
            let result = if matches!(op, Op::Control { .. }) { Err(failure) } else { Ok(fleet.apply(&op)) };
            fleet.nodes[node].handle_input(fleet.now, Input::Stored { op, result });
            fleet.collect(node);
            most = most.max(fleet.in_flight.len()).max(fleet.nodes[node].open_count());
        }
        assert_eq!(most, limits::DUE_BINDINGS_MAX as usize, "at a time");
        assert!(ids.iter().all(|id| fleet.active(id).is_some()), "{failure:?}");
    }
    fleet.settle();
    assert!(ids.iter().all(|id| fleet.active(id).is_some()), "and their sessions know of them");
}

/// Covers: BD-L10, BD-L22, BD-M4, BR-32.
#[test]
fn changes_are_recorded_once_in_order_under_random_faults() {
    for seed in 0..1_000 {
        let mut fleet = Fleet::new(seed, 3);
        let mut made = BTreeSet::new();
        for _ in 0..120 {
            let id = ["7", "8", "9"][fleet.rng.below(3) as usize];
            let node = fleet.rng.below(3) as usize;
            match fleet.rng.below(10) {
                0 | 1 => {
                    let idle = fleet.rng.chance(50).then(|| 500 + fleet.rng.below(5_000));
                    let expiry = ExpiryRules { idle_timeout: idle, ..ExpiryRules::default() };
                    let session = SESSIONS[fleet.rng.below(2) as usize];
                    if let Some(generation) = fleet.bind(id, session, expiry) {
                        made.insert((id, generation.0));
                        fleet.tell(node, id);
                    }
                }
                2 => {
                    if let Some(generation) = fleet.active(id) {
                        fleet.change(
                            id,
                            BindingAction::Unbind { generation, reason: UnbindReason::Manual, farewell: false },
                        );
                        fleet.tell(node, id);
                    }
                }
                3 => {
                    let to = ConversationId::parse(["7", "8", "9"][fleet.rng.below(3) as usize]).expect("an id");
                    if let Some(generation) = fleet.active(id) {
                        fleet.change(id, BindingAction::StartMove { generation, to });
                    }
                }
                4 => fleet.record(),
                5 => fleet.pass(Duration::from_millis(fleet.rng.clone().below(4_000))),
                _ if !fleet.in_flight.is_empty() => {
                    let at = fleet.rng.below(fleet.in_flight.len() as u64) as usize;
                    fleet.perform(at, true);
                }
                _ => {}
            }
        }
        fleet.settle();
        check_records(seed, &mut fleet, &made);
    }
}

/// Checks that the logs have each bind once, each end once and after its bind, and no end of what is still bound.
fn check_records(seed: u64, fleet: &mut Fleet, made: &BTreeSet<(&str, u64)>) {
    let mut active = BTreeSet::new();
    for id in ["7", "8", "9"] {
        active.extend(fleet.active(id).map(|generation| generation.0));
    }
    for (_, generation) in made {
        // Two conversations may be bound in the same millisecond, with the same generation.
        let twins = made.iter().filter(|(_, other)| other == generation).count();
        let at = |word: &str| {
            let change = format!("binding.{word}.{generation}");
            let found = fleet.recorded.iter().enumerate().filter(|(_, (_, recorded))| *recorded == change);
            found.map(|(at, _)| at).collect::<Vec<_>>()
        };
        let [bound, ended] = ["bound", "ended"].map(at);
        assert_eq!(bound.len(), twins, "seed {seed}: bound {generation}: {:?}", fleet.recorded);
        if twins == 1 {
            let ends = usize::from(!active.contains(generation));
            let rows: Vec<_> = fleet.store.conversations().collect();
            assert_eq!(ended.len(), ends, "seed {seed}: ended {generation}: {:?} {rows:#?}", fleet.recorded);
            assert!(ended.iter().all(|end| bound[0] < *end), "seed {seed}: {:?}", fleet.recorded);
        }
    }
}
