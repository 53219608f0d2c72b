//! The state machine of one node: routes client commands, owns sessions, and delivers notifications. Performs no
//! IO; the gateway's driver performs its outputs.
mod append;
mod commands;
mod deliver;
mod delivery;
mod drain;
mod effect;
mod feed;
mod histogram;
mod idle_expiry;
mod io;
mod join;
mod lease;
mod links;
mod owned_session;
mod owned_text;
mod ownership;
mod page;
mod queries;
mod rebuild;
mod reclaim;
mod requests;
mod resources;
mod router;
mod session_task;
mod sink;
mod snapshot_waiters;
mod state_reads;
mod stats;
mod subscribers;
mod subscription;
mod takeover;
mod text;
mod transfer;

pub use histogram::DurationHistogram;
pub use io::{Input, Output};
pub use resources::{Capacity, ResourceGauges, over_share_refusal};
pub use session_task::MEMBER_PREFIX;
pub use stats::{CounterArray, SubscriptionStart, SwitchboardStats, TurnResult};

use delivery::Delivery;
use effect::{DeliveryCommand, DurableFacts, MembershipCommand, OwnershipCommand, PartEffect};
use lease::{Lease, Suspect};
use links::LinkTable;
use owned_session::SessionOwnership;
use requests::{RequestKey, RequestPayload};
use router::Router;
use sink::{EffectSink, Timer};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{LinkId, NodeId, OwnershipSnapshot, SessionKey};
use turnway_core::machine::Machine;
use turnway_core::protocol::agent::AgentDirectory;
use turnway_core::rng::Rng;
use turnway_core::session::Input as RuntimeInput;
use turnway_core::store::{Op, Reply, StoreError, StoreRefusal};
use turnway_core::time::{Deadline, Mono, Now};
use turnway_wire::peer::PeerMessage;

/// The settings of a node.
#[derive(Clone, Debug)]
pub struct Config {
    /// The id of one start of one process.
    pub node: NodeId,
    /// The known agents.
    pub directory: Arc<AgentDirectory>,
    /// From the system, or from a simulation.
    pub seed: [u8; 32],
    /// No other node can share the store (the embedded store), so the lease of a lost owner need not expire first.
    pub single_node: bool,
    /// Minimum number of facts kept for each session; `None`: all facts, forever.
    pub keep_facts: Option<u64>,
    /// Time that a session is kept after its last fact; `None`: forever.
    pub max_age: Option<Duration>,
    /// Limits of what users may hold on this node.
    pub capacity: Capacity,
}

/// The router, the edge, the host of session runtimes, and the delivery of one node.
///
/// - Client requests: modules `links`, `requests`, `offers`; reads of states and lists: `queries`.
/// - Subscribed sessions and the position of each link: `feed`, `subscription`, `log_reads`, `deliver`, `text`.
/// - Owned sessions: `ownership`, `owned_session`, `append`, `subscribers`.
/// - The node's own lease, and suspicions of other nodes: `lease`; sessions of dead nodes: `takeover`; shutdown:
///   `drain`, `transfer`.
#[derive(Debug)]
pub struct Switchboard {
    me: NodeId,
    single_node: bool,
    keep_facts: Option<u64>,
    aging: idle_expiry::IdleWalk,
    directory: Arc<AgentDirectory>,
    lease: Lease,
    suspects: BTreeMap<NodeId, Suspect>,
    /// Owner nodes without a lease at the last check, and the time of the first such check.
    without_lease: BTreeMap<NodeId, Mono>,
    takeover: takeover::TakeoverState,
    /// Nodes that have sent a message to this node.
    peers: BTreeSet<NodeId>,
    owned_sessions: BTreeMap<SessionKey, SessionOwnership>,
    /// Sessions that the store assigns to this node and that this node does not have: given up while the lease had
    /// lapsed.
    unclaimed_ownership: BTreeMap<SessionKey, OwnershipSnapshot>,
    router: Router,
    delivery: Delivery,
    holdings: resources::ResourceLedgers,
    drain: Option<drain::Drain>,
    /// Tasks of sessions, by the name of the stored object.
    session_tasks: BTreeMap<String, session_task::RunningTask>,
    sink: EffectSink,
    /// Effects that wait for their turn in [`Switchboard::step`], the next one last.
    pending: Vec<PartEffect>,
}

impl Switchboard {
    /// Creates a node that owns nothing yet. The node requests its lease at its first timeout.
    pub fn new(config: Config) -> Self {
        let mut rng = Rng::from_seed(config.seed);
        let lease = Lease::new(config.node, &mut rng);
        let mut sink = EffectSink::new(config.node, LinkTable::new(config.capacity), rng);
        sink.timers.set(Timer::Renew, Mono::default());
        sink.timers.set(Timer::Sweep, Mono::default());
        if config.max_age.is_some() {
            sink.timers.set(Timer::Idle, Mono::default());
        }
        Self {
            me: config.node,
            single_node: config.single_node,
            keep_facts: config.keep_facts,
            aging: idle_expiry::IdleWalk::new(config.max_age),
            directory: Arc::clone(&config.directory),
            lease,
            suspects: BTreeMap::new(),
            without_lease: BTreeMap::new(),
            takeover: takeover::TakeoverState::default(),
            peers: BTreeSet::new(),
            owned_sessions: BTreeMap::new(),
            unclaimed_ownership: BTreeMap::new(),
            router: Router::new(config.node, config.directory),
            delivery: Delivery::new(config.node),
            holdings: resources::ResourceLedgers::new(config.capacity),
            drain: None,
            session_tasks: BTreeMap::new(),
            sink,
            pending: Vec::new(),
        }
    }

    /// Hands the effects of the parts over until none is left. An effect's own effects come before the effects that
    /// were added after it, so that outputs have the order in which their causes were decided.
    fn step(&mut self, now: Now) {
        loop {
            self.sink.unload(&mut self.pending);
            let Some(effect) = self.pending.pop() else { return };
            self.hand_over(now, effect);
        }
    }

    /// Hands one effect to its part.
    fn hand_over(&mut self, now: Now, effect: PartEffect) {
        match effect {
            PartEffect::Output(output) => self.sink.output(output),
            PartEffect::Peer(message) => self.handle_peer(now, self.me, message),
            PartEffect::Router(command) => self.router.handle_effect(now, command, &mut self.sink),
            PartEffect::Delivery(command) => self.delivery.handle_effect(now, command, &mut self.sink),
            PartEffect::Ownership(command) => self.hand_to_ownership(now, command),
            PartEffect::Membership(MembershipCommand::SuspectNode(node)) => self.handle_publish_failed(now, node),
            PartEffect::Membership(MembershipCommand::AddFasterNode(node)) => self.takeover.add_node(node),
            PartEffect::Membership(MembershipCommand::ScheduleSweep(left)) => self.schedule_sweep(now, left),
            PartEffect::NodeDied(node) => {
                for (key, expect) in self.router.sessions_of(node).chain(self.delivery.open_sessions_of(node)) {
                    self.sink.push(OwnershipCommand::Claim { key, expect });
                }
            }
            PartEffect::FreeSession { key, owner } => {
                if self.drain.is_some() {
                    self.offer_hand_off(&key, owner);
                } else {
                    self.claim(now, &key, owner);
                }
            }
            PartEffect::PresentState(found) => {
                let owner = found.view.owner;
                let key = found.key.clone();
                self.sink.push(OwnershipCommand::CompareEpoch { key: key.clone(), epoch: owner.epoch });
                if owner.holder.is_some_and(|holder| holder.node == self.me) {
                    // The store names this node as owner: it has lost this node's release.
                    self.sink.push(OwnershipCommand::Claim { key, expect: owner });
                }
                self.sink.push(DeliveryCommand::UseState(found));
            }
            PartEffect::Facts(durable) => {
                self.router.release_acceptances(now, &durable.facts, &mut self.sink);
                self.delivery.handle_facts(now, &durable, &mut self.sink);
            }
            PartEffect::UsablePage { key, page, since } => {
                self.router.release_acceptances(now, &page.facts, &mut self.sink);
                self.delivery.apply_page(now, &key, &page, since, &mut self.sink);
            }
        }
    }

    fn hand_to_ownership(&mut self, now: Now, command: OwnershipCommand) {
        match command {
            OwnershipCommand::Admit(new) => self.admit(new),
            OwnershipCommand::Claim { key, expect } => self.claim(now, &key, expect),
            OwnershipCommand::CompareEpoch { key, epoch } => self.handle_newer_epoch(now, &key, epoch),
            OwnershipCommand::StartOwning { key, token, state } => self.start_owning(now, &key, token, *state),
            OwnershipCommand::Drop(key) => self.drop_owned_session(&key),
        }
    }

    fn handle_disconnect(&mut self, link: LinkId) {
        let Some(gone) = self.sink.links.disconnect(link) else { return };
        let (requests, sessions) = gone.into_holdings();
        self.router.forget_waiters(link, requests, &mut self.sink);
        for key in sessions {
            self.sink.push(DeliveryCommand::Unsubscribe { key, link });
        }
    }

    fn handle_peer(&mut self, now: Now, from: NodeId, message: PeerMessage) {
        if from != self.me {
            self.peers.insert(from);
        }
        match message {
            PeerMessage::Offer { key, owner, item } => self.handle_offer(now, from, &key, owner, item),
            PeerMessage::InputAccepted { run_id, .. } => self.router.handle_input_accepted(&run_id, &mut self.sink),
            PeerMessage::ControlAnswered { control, shown, .. } => {
                self.router.handle_control_answered(&control, shown, &mut self.sink);
            }
            PeerMessage::NotOwner { key, owner } => self.router.handle_not_owner(key, owner, &mut self.sink),
            PeerMessage::Subscribed { key, stamp } => self.handle_subscribed(now, &key, from, stamp),
            PeerMessage::Facts { key, owner, after, facts } => {
                self.sink.push(PartEffect::Facts(DurableFacts { key, after, facts, owner: Some(owner) }));
            }
            PeerMessage::Chunk { key, epoch, chunk } => {
                self.delivery.handle_chunk(now, &key, epoch, &chunk, &mut self.sink);
            }
            PeerMessage::FetchText { key, run_id, attempt, offset } => {
                self.handle_fetch_text(from, &key, &run_id, attempt, offset)
            }
            PeerMessage::TailDigest { logs } => self.delivery.handle_tail_digest(now, from, logs, &mut self.sink),
            PeerMessage::Ack { logs } => self.handle_ack(now, from, &logs),
            PeerMessage::HandOff { key, released: free } => self.handle_hand_off(now, from, &key, free),
            PeerMessage::ProcessOutput { key, epoch, run_id, printed } => {
                self.delivery.handle_process_output(&key, epoch, &run_id, &printed, &mut self.sink);
            }
            PeerMessage::Reserve { key, epoch } => self.handle_reserve(now, from, &key, epoch),
            PeerMessage::Reserved { key, epoch, holder, nonce } => {
                self.handle_reserved(from, &key, epoch, (holder, nonce))
            }
            PeerMessage::Probe | PeerMessage::RemoteAttempt(_) => {}
        }
    }

    fn handle_stored(&mut self, now: Now, op: Op, result: Result<Reply, StoreError>) {
        match (op, result) {
            (Op::Renew { holder, fresh, sent, .. }, result) => self.handle_renewed(now, holder, fresh, sent, result),
            (Op::Lease { node, sent }, Ok(Reply::Leased { left })) => self.handle_lease_check(now, node, sent, left),
            (Op::Lease { node, .. }, _) => self.clear_suspect(node),
            (Op::Sweep { .. }, result) => self.handle_sweep(now, result),
            (Op::Retire { .. }, _) => {}
            (Op::ScanIdle { before, .. }, result) => self.handle_idle(now, before, result),
            (Op::DeleteIdle { .. }, result) => self.handle_forgotten(&result),
            (Op::Accept { key, input, hash, .. }, result) => {
                let ask_key = RequestKey::Input(input.run_id.clone(), hash);
                Router::handle_accepted(ask_key, key, RequestPayload::Input(input), result, &mut self.sink);
            }
            (Op::Control { key, principal, control, create }, result) => {
                let ask_key = RequestKey::Control(control.id.clone(), principal);
                let payload = RequestPayload::Control { control, create };
                Router::handle_accepted(ask_key, key, payload, result, &mut self.sink);
            }
            (Op::ListSessions { link, .. }, result) => queries::handle_listed(link, result, &mut self.sink),
            (Op::Delete { key, link, .. }, result) => queries::handle_deleted(link, &key, result, &mut self.sink),
            (Op::Find { run_id, link, .. }, result) => queries::handle_found(link, run_id, result, &mut self.sink),
            (Op::Get { name }, result) => self.handle_fetched(now, name, result),
            (Op::Put { name, .. }, result) => self.handle_put(now, name, result),
            (op, Err(StoreError::Unknown | StoreError::Unavailable)) => self.sink.retry(now, op),
            (op, Ok(reply)) => self.handle_reply(now, op, reply),
        }
    }

    /// Handles replies of ops that are repeated until they succeed.
    fn handle_reply(&mut self, now: Now, op: Op, reply: Reply) {
        match (op, reply) {
            (Op::Claim { key, holder, nonce, expect, .. }, reply) => {
                self.handle_claimed(now, &key, (holder, nonce), expect, reply);
            }
            (Op::Append(append), reply) => self.handle_appended(now, &append.key, append.token, reply),
            (Op::Release { key, token, drain, .. }, reply) => self.handle_released(now, &key, token, drain, &reply),
            (Op::Transfer { key, token, to, .. }, reply) => self.handle_transferred(now, &key, token, to, &reply),
            (Op::ReadView { key }, Reply::View(view)) => self.delivery.handle_state_read(&key, *view, &mut self.sink),
            (Op::Read { key, after, .. }, Reply::Facts(page)) => {
                self.delivery.handle_page(key, after, page, &mut self.sink);
            }
            (Op::WriteSnapshot(keep), Reply::Done) => {
                self.handle_snapshot_stored(now, &keep.key, keep.token, keep.at.seq)
            }
            (Op::Inbox { key, token, after, control_after }, Reply::Inbox(inputs)) => {
                self.handle_inbox(now, &key, token, (after, control_after), inputs);
            }
            (Op::Listen { key, stamp, .. }, Reply::Listening { owner, .. }) => {
                self.sink.push(OwnershipCommand::CompareEpoch { key: key.clone(), epoch: owner.epoch });
                self.sink.push(DeliveryCommand::UseRegistration { key, stamp, owner });
            }
            (
                Op::ReadView { key } | Op::Read { key, .. } | Op::Listen { key, .. },
                Reply::Refused(StoreRefusal::Damaged),
            ) => self.delivery.refuse_damaged(&key, &mut self.sink),
            (Op::Listen { key, .. }, Reply::Refused(_)) => self.delivery.refuse_registration(&key, &mut self.sink),
            // The owner's session was quarantined because of damaged records.
            (Op::Inbox { key, token, .. }, Reply::Refused(_) | Reply::Fenced) => {
                self.reload_from_store(now, &key, token);
            }
            (
                Op::Listen { .. }
                | Op::Unlisten { .. }
                | Op::ReadView { .. }
                | Op::Read { .. }
                | Op::Inbox { .. }
                | Op::WriteSnapshot(_)
                | Op::Trim { .. }
                | Op::Expire { .. }
                | Op::Get { .. }
                | Op::Put { .. }
                | Op::Renew { .. }
                | Op::Retire { .. }
                | Op::Lease { .. }
                | Op::Accept { .. }
                | Op::Control { .. }
                | Op::Find { .. }
                | Op::Delete { .. }
                | Op::ScanIdle { .. }
                | Op::DeleteIdle { .. }
                | Op::ListSessions { .. }
                | Op::Sweep { .. },
                _,
            ) => {}
        }
    }

    /// Starts what the input has made room for, and exits once nothing is left to hand over.
    fn finish_input(&mut self, now: Now) {
        self.step(now);
        self.start_permitted_turns(now);
        self.exit_if_drained();
        self.step(now);
    }

    fn handle_timer(&mut self, now: Now, timer: Timer) {
        match timer {
            Timer::Renew => self.renew_lease(now),
            Timer::Sweep => self.start_sweep(now),
            Timer::Idle => self.walk_idle(now),
            Timer::TailDigest => self.send_tail_digests(now),
            Timer::Probe => self.probe_owners(now),
            Timer::Drain => self.handle_drain_timeout(now),
            Timer::Suspect(node) => self.probe_suspect(now, node),
            Timer::Offer(ask) => self.router.send_offer(now, &ask, &mut self.sink),
            Timer::Read(key) => self.delivery.catch_up(&key, &mut self.sink),
            Timer::FetchText(key) => self.delivery.fetch_text(now, &key, &mut self.sink),
            Timer::Runtime(key) => self.handle_runtime_timeout(now, &key),
            Timer::Write(key) | Timer::Linger(key) => self.drive_runtime(now, &key),
            Timer::Reserve(key) => self.handle_reserve_timeout(&key),
            Timer::Repeat(number) => self.sink.repeat(number),
        }
    }
}

impl Machine for Switchboard {
    type Input = Input;
    type Output = Output;

    fn handle_input(&mut self, now: Now, input: Input) {
        if self.is_gone() {
            return;
        }
        match input {
            Input::Connect { link, principal } => {
                self.sink.links.connect(link, principal);
                if self.drain.is_some() {
                    self.sink.notify(link, drain::go_away());
                }
            }
            Input::Disconnect { link } => self.handle_disconnect(link),
            Input::Command { link, command } => self.router.handle_command(now, link, command, &mut self.sink),
            Input::Written { link, weight } => {
                for key in self.sink.links.count_written(link, weight) {
                    self.sink.push(DeliveryCommand::ResumeLink { key, link });
                }
            }
            Input::PauseSession { link, session, is_paused } => {
                if let Some(key) = self.sink.links.pause(link, session, is_paused) {
                    self.sink.push(DeliveryCommand::ResumeLink { key, link });
                }
            }
            Input::Peer { from, message } => self.handle_peer(now, from, message),
            Input::PublishFailed { to } => self.handle_publish_failed(now, to),
            Input::MessagesMissed => self.delivery.register_all_again(&mut self.sink),
            Input::Stored { op, result } => self.handle_stored(now, op, result),
            Input::Agent { key, run_id, attempt, epoch, events } => {
                let to_input = |event| RuntimeInput::Agent { run_id: run_id.clone(), attempt, epoch, event };
                self.handle_reports(now, &key, events.into_iter().map(to_input));
            }
            Input::Tool { key, action_id, report } => self.handle_tool_report(now, &key, action_id, report),
            Input::Drain => self.begin_drain(now),
            Input::Successors(successors) => self.hand_over_to_successors(now, successors),
        }
        self.finish_input(now);
    }

    fn handle_timeout(&mut self, now: Now) {
        while let Some(timer) = self.sink.timers.pop_due(now.mono) {
            if self.is_gone() {
                return;
            }
            self.handle_timer(now, timer);
            self.step(now);
        }
        self.finish_input(now);
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.sink.pop_output()
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        if self.is_gone() { None } else { self.sink.timers.next_deadline("switchboard") }
    }
}
