//! The state machine of one node: routes client commands, owns sessions, and delivers notifications. Its parts have
//! their own state and do not call each other; this file hands each effect of a part to the next part. Performs no IO.
mod adapters;
mod bindings;
mod delivery;
mod effect;
mod histogram;
mod io;
mod links;
mod membership;
mod ownership;
mod router;
mod sink;
mod stats;
mod tasks;

pub use histogram::DurationHistogram;
pub use io::{Input, Output};
pub use ownership::resources::{Capacity, ResourceGauges, over_share_refusal};
pub use stats::{CounterArray, DeliveryChange, SubscriptionStart, SwitchboardStats, TurnResult};

use adapters::{AdapterContext, Adapters, is_adapter_value};
use bindings::{BINDING_FACT, Bindings, is_report};
use delivery::Delivery;
use effect::{DeliveryCommand, DurableFacts, OwnershipCommand, PartEffect};
use links::LinkTable;
use membership::Membership;
use ownership::session_task::MEMBER_PREFIX;
use ownership::{OwnerContext, Ownership};
use router::requests::{RequestKey, RequestPayload};
use router::{AcceptanceReply, RequestRouter, RouterContext};
use sink::{EffectSink, Timer};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tasks::Tasks;
use turnway_core::id::{LinkId, NodeId, SessionKey};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::protocol::agent::AgentDirectory;
use turnway_core::protocol::delivery::DeliveryReport;
use turnway_core::rng::Rng;
use turnway_core::session::Input as RuntimeInput;
use turnway_core::store::{Op, Reply, StoreError, StoreRefusal};
use turnway_core::time::{Deadline, Mono, Now};
use turnway_wire::channel::command::LinkCommand;
use turnway_wire::peer::PeerMessage;

/// Returns whether a named value of the store belongs to the switchboard: the replies to other values are the shell's.
pub fn is_switchboard_value(name: &str) -> bool {
    name.starts_with(MEMBER_PREFIX) || is_adapter_value(name)
}

fn is_adapter_op(op: &Op) -> bool {
    matches!(op, Op::Get { name } | Op::Put { name, .. } if is_adapter_value(name))
}

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

/// The parts of one node, and the way of an effect from one part to the next.
///
/// - [`RequestRouter`]: requests of links until their session's owner has accepted them.
/// - [`Delivery`]: subscribed sessions and the position of each link.
/// - [`Bindings`]: requests about bindings of conversations, and the upkeep of bindings.
/// - [`Adapters`]: connections of adapters, and deliveries to conversations.
/// - [`Tasks`]: tasks that agents give to other agents, and the routes of their completions.
/// - [`Ownership`]: owned and claimed sessions.
/// - [`Membership`]: the node's lease, suspicions of other nodes, takeovers, the shutdown.
/// - [`EffectSink`]: effects, timers, statistics, and the links, which every part notifies.
#[derive(Debug)]
pub struct Switchboard {
    me: NodeId,
    router: RequestRouter,
    bindings: Bindings,
    adapters: Adapters,
    tasks: Tasks,
    delivery: Delivery,
    ownership: Ownership,
    membership: Membership,
    sink: EffectSink,
    /// Effects that wait for their turn in [`Switchboard::step`], the next one last.
    pending: Vec<PartEffect>,
}

impl Switchboard {
    /// Creates a node that owns nothing yet. The node requests its lease at its first timeout.
    pub fn new(config: Config) -> Self {
        let me = config.node;
        let mut rng = Rng::from_seed(config.seed);
        // Drawn from a copy, so that the other parts' numbers do not depend on this part.
        let bindings_seed = Rng::from_seed(config.seed.map(|byte| byte ^ 0xB1)).next_u64();
        let membership = Membership::new(me, config.single_node, config.max_age, &mut rng);
        let router = RequestRouter::new(me, Arc::clone(&config.directory), config.single_node);
        let mut ownership = Ownership::new(me, config.keep_facts, config.capacity, Arc::clone(&config.directory));
        ownership.set_fact_level(router.fact_level());
        let mut sink = EffectSink::new(me, LinkTable::new(config.capacity), rng);
        sink.timers.set(Timer::Renew, Mono::default());
        sink.timers.set(Timer::Sweep, Mono::default());
        sink.timers.set(Timer::Bindings, Mono::default());
        if config.max_age.is_some() {
            sink.timers.set(Timer::Idle, Mono::default());
        }
        Self {
            me,
            bindings: Bindings::new(bindings_seed, router.is_known_to_all(BINDING_FACT), Arc::clone(&config.directory)),
            tasks: Tasks::default(),
            adapters: Adapters::new(me, Arc::clone(&config.directory), |fact| router.is_known_to_all(fact)),
            router,
            delivery: Delivery::new(me),
            ownership,
            membership,
            sink,
            pending: Vec::new(),
        }
    }

    /// Returns whether this node holds a lease, as far as it knows; for readiness.
    pub fn is_leased(&self, now: Now) -> bool {
        self.membership.lease.may_own(now)
    }

    /// Returns the number of sessions that a leaving node still owns.
    pub fn drain_progress(&self) -> Option<usize> {
        self.membership.drain.is_started().then(|| self.ownership.session_count())
    }

    /// Returns the present statistics. The cost grows with the number of owned sessions.
    pub fn stats(&self, now: Now) -> SwitchboardStats {
        let [attempts, content, sessions] = self.ownership.resource_gauges();
        let held = [attempts, content, sessions, self.sink.links.subscriptions().into()];
        let tally = |of: fn(&ResourceGauges) -> u64| CounterArray(held.map(|held| of(&held)));
        let owned = self.ownership.stats(now);
        SwitchboardStats {
            links: (self.sink.links.len() - self.tasks.open_count()) as u64,
            feeds: self.delivery.feed_count() as u64,
            owned_sessions: owned.owned_sessions,
            held: tally(|held| held.held),
            held_max: tally(|held| held.capacity),
            over_share: tally(|held| held.refused),
            permits_waiting: owned.permits_waiting,
            requests: self.router.request_count() as u64,
            bindings_open: self.bindings.open_count() as u64,
            deliveries_open: self.adapters.open_count() as u64,
            adapters: self.adapters.link_count() as u64,
            accounts_paused: self.adapters.paused_count() as u64,
            tasks_open: self.tasks.open_count() as u64,
            timers: self.sink.timers.len() as u64,
            open_turns: owned.open_turns,
            oldest_turn: owned.oldest_turn,
            waiting_turns: owned.waiting_turns,
            waiting_turns_max: owned.waiting_turns_max,
            ..self.sink.stats
        }
    }

    /// Resets a session after a broken invariant: drops the owned session and the feed, and loads both from the
    /// store. Every other session continues.
    pub fn reset_session(&mut self, now: Now, key: &SessionKey) {
        self.sink.abandon(&mut self.pending);
        self.delivery.forget_state_read(key);
        let (ownership, context, sink) = self.ownership(now);
        ownership.reset(context, key, sink);
        self.step(now);
        self.delivery.resync(key, &mut self.sink);
        self.step(now);
    }

    // === effects ===

    /// Hands the effects of the parts over until none is left. An effect's own effects come before the effects that
    /// were added after it, so that outputs have the order in which their causes were decided.
    fn step(&mut self, now: Now) {
        loop {
            self.sink.unload(&mut self.pending);
            let Some(effect) = self.pending.pop() else { break };
            self.hand_over(now, effect);
        }
        self.pending.shrink_to(limits::EFFECTS_KEPT);
    }

    /// Submits a request whose place another part has chosen or checked.
    fn submit_checked(&mut self, now: Now, effect: PartEffect) {
        let context = RouterContext { now, ownership: &self.ownership, delivery: &self.delivery };
        if let PartEffect::SubmitSend(send) = effect {
            self.router.submit_send(context, *send, &mut self.sink);
        } else if let PartEffect::OpenForFiles(opening) = effect {
            self.router.open_for_files(context, *opening, &mut self.sink);
        } else if let PartEffect::SubmitCreation { link, bind } = effect {
            self.router.create_conversation(context, link, *bind, &mut self.sink);
        }
    }

    /// Hands one effect to its part. An effect that several parts use goes to one after the other.
    fn hand_over(&mut self, now: Now, effect: PartEffect) {
        match effect {
            PartEffect::Output(output) => self.sink.output(output),
            PartEffect::Peer(message) => self.handle_peer(now, self.me, message),
            PartEffect::Router(command) => self.router.handle_effect(now, command, &mut self.sink),
            PartEffect::Bindings(command) => self.bindings.handle_effect(now, command, &mut self.sink),
            PartEffect::Adapters(command) => {
                let context = self.adapter_context(now);
                self.adapters.handle_effect(context, command, &mut self.sink);
            }
            PartEffect::SubmitInbound(turn) => {
                let context = RouterContext { now, ownership: &self.ownership, delivery: &self.delivery };
                self.router.submit_inbound(context, *turn, &mut self.sink);
            }
            PartEffect::Tasks(command) => self.tasks.handle_effect(now, command, &mut self.sink),
            PartEffect::NodeCommand { link, command } => self.handle_command(now, link, command),
            PartEffect::SubmitTask { link, key, input } => {
                let context = RouterContext { now, ownership: &self.ownership, delivery: &self.delivery };
                self.router.submit_task(context, link, (key, input), &mut self.sink);
            }
            PartEffect::SubmitSend(_) | PartEffect::SubmitCreation { .. } | PartEffect::OpenForFiles(_) => {
                self.submit_checked(now, effect);
            }
            PartEffect::DropLink(link) => self.handle_disconnect(now, link),
            PartEffect::CancelInbound(cancel) => {
                let context = RouterContext { now, ownership: &self.ownership, delivery: &self.delivery };
                self.router.cancel_inbound(context, *cancel, &mut self.sink);
            }
            PartEffect::Delivery(command) => self.delivery.handle_effect(now, command, &mut self.sink),
            PartEffect::Ownership(command) => {
                let (ownership, context, sink) = self.ownership(now);
                ownership.handle_effect(context, command, sink);
            }
            PartEffect::Membership(command) => self.membership.handle_effect(now, command, &mut self.sink),
            PartEffect::NodeDied(node) => {
                for (key, expect) in self.router.sessions_of(node).chain(self.delivery.open_sessions_of(node)) {
                    self.sink.push(OwnershipCommand::Claim { key, expect });
                }
            }
            PartEffect::FreeSession { key, owner } => {
                if self.membership.drain.is_started() {
                    self.membership.drain.offer_hand_off(key, owner, &mut self.sink);
                } else {
                    self.sink.push(OwnershipCommand::Claim { key, expect: owner });
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
            PartEffect::UsablePage(usable) => {
                self.router.release_acceptances(now, &usable.page.facts, &mut self.sink);
                self.delivery.apply_page(now, &usable, &mut self.sink);
            }
            PartEffect::ExitIfDrained => self.exit_if_drained(),
            PartEffect::Exit => self.exit(),
        }
    }

    fn adapter_context(&self, now: Now) -> AdapterContext {
        AdapterContext::new(now, &self.membership.lease)
    }

    /// Returns the ownership with what it reads and its sink.
    fn ownership(&mut self, now: Now) -> (&mut Ownership, OwnerContext<'_>, &mut EffectSink) {
        let context = OwnerContext { now, membership: &self.membership, delivery: &self.delivery };
        (&mut self.ownership, context, &mut self.sink)
    }

    /// Starts what the input has made room for, and exits once nothing is left to hand over.
    fn finish_input(&mut self, now: Now) {
        self.step(now);
        loop {
            let (ownership, context, sink) = self.ownership(now);
            if !ownership.start_next_permitted(context, sink) {
                break;
            }
            self.step(now);
        }
        self.exit_if_drained();
        self.step(now);
    }

    fn exit_if_drained(&mut self) {
        if self.membership.drain.may_exit(&self.ownership) {
            self.exit();
        }
    }

    fn exit(&mut self) {
        self.membership.drain.end();
        self.delivery.deregister_all(&mut self.sink);
        self.sink.store(Op::Retire { holder: self.membership.lease.holder() });
        self.sink.output(Output::Exit);
    }

    // === inputs ===

    fn handle_command(&mut self, now: Now, link: LinkId, command: LinkCommand) {
        let context = RouterContext { now, ownership: &self.ownership, delivery: &self.delivery };
        self.router.handle_command(context, link, command, &mut self.sink);
    }

    fn handle_disconnect(&mut self, now: Now, link: LinkId) {
        let Some(mut gone) = self.sink.links.disconnect(link) else { return };
        if let Some(account) = gone.adapter.take() {
            let context = self.adapter_context(now);
            self.adapters.disconnect(context, link, &account, &mut self.sink);
        }
        let (requests, sessions) = gone.into_holdings();
        self.router.forget_waiters(link, requests, &mut self.sink);
        for key in sessions {
            self.sink.push(DeliveryCommand::Unsubscribe { key, link });
        }
    }

    fn handle_peer(&mut self, now: Now, from: NodeId, message: PeerMessage) {
        if from != self.me {
            self.membership.drain.add_peer(from);
        }
        match message {
            PeerMessage::InputAccepted { run_id, .. } => self.router.handle_input_accepted(&run_id, &mut self.sink),
            PeerMessage::ControlAnswered { control, shown, .. } => {
                self.router.handle_control_answered(now, &control, shown, &mut self.sink);
            }
            PeerMessage::NotOwner { key, owner } => self.router.handle_not_owner(key, owner, &mut self.sink),
            PeerMessage::Facts { key, owner, after, facts } => {
                self.sink.push(PartEffect::Facts(DurableFacts { key, after, facts, owner: Some(owner) }));
            }
            PeerMessage::Chunk { key, epoch, chunk } => {
                self.delivery.handle_chunk(now, &key, epoch, &chunk, &mut self.sink);
            }
            PeerMessage::ProcessOutput { key, epoch, run_id, printed } => {
                self.delivery.handle_process_output(&key, epoch, &run_id, &printed, &mut self.sink);
            }
            PeerMessage::TailDigest { logs } => {
                self.delivery.handle_tail_digest(now, from, logs, &mut self.sink);
            }
            PeerMessage::HandOff { key, released } => {
                self.membership.takeover.add_node(from);
                self.sink.push(OwnershipCommand::Claim { key, expect: released });
            }
            PeerMessage::Offer { key, owner, item } => {
                let (ownership, context, sink) = self.ownership(now);
                ownership.handle_offer(context, from, &key, owner, item, sink);
            }
            PeerMessage::Subscribed { key, stamp } => {
                self.ownership.handle_subscribed(key, from, stamp, &mut self.sink);
            }
            PeerMessage::FetchText { key, run_id, attempt, offset } => {
                self.ownership.handle_fetch_text(from, &key, (&run_id, attempt, offset), &mut self.sink);
            }
            PeerMessage::Ack { logs } => Ownership::handle_acks(from, logs, &mut self.sink),
            PeerMessage::Reserve { key, epoch } => {
                let (ownership, context, sink) = self.ownership(now);
                ownership.handle_reserve(context, from, &key, epoch, sink);
            }
            PeerMessage::Reserved { key, epoch, holder, nonce } => {
                self.ownership.handle_reserved(from, &key, epoch, (holder, nonce), &mut self.sink);
            }
            PeerMessage::Deliver { order } => {
                let context = self.adapter_context(now);
                self.adapters.handle_order(context, from, order, &mut self.sink);
            }
            PeerMessage::DeliveryReport { key, report } => {
                let context = self.adapter_context(now);
                self.adapters.handle_report(context, key, DeliveryReport::clone(&report), &mut self.sink);
            }
            PeerMessage::NoAdapter { account } => {
                self.adapters.handle_no_adapter(now, from, &account, &mut self.sink);
            }
            PeerMessage::AdapterArrived { account } => {
                let context = self.adapter_context(now);
                self.adapters.handle_arrived(context, &account, &mut self.sink);
            }
            PeerMessage::Signal { signal } => {
                let context = self.adapter_context(now);
                self.adapters.handle_signal(context, from, signal, &mut self.sink);
            }
            PeerMessage::PreviewUnwanted { key, preview_id } => {
                self.adapters.handle_preview_unwanted(&key, &preview_id);
            }
            PeerMessage::Probe | PeerMessage::RemoteAttempt(_) => {}
        }
    }

    fn handle_stored(&mut self, now: Now, op: Op, result: Result<Reply, StoreError>) {
        let sink = &mut self.sink;
        match (op, result) {
            (Op::Renew { holder, fresh, sent, .. }, result) => {
                self.membership.lease.handle_renewed(now, holder, fresh, sent, result, sink);
            }
            (Op::Lease { node, sent }, Ok(Reply::Leased { left })) => {
                let context = AdapterContext::new(now, &self.membership.lease);
                self.adapters.handle_lease_check(context, (node, left.is_some()), sink);
                self.membership.handle_lease_check(now, node, sent, left, sink);
            }
            (Op::Lease { node, .. }, _) => {
                self.adapters.handle_lease_check_failed(node, sink);
                self.membership.suspicions.clear_suspect(node, sink);
            }
            (Op::Sweep { .. }, result) => self.membership.handle_sweep(now, result, &self.ownership, sink),
            (Op::Retire { .. }, _) => {}
            (Op::ScanIdle { before, .. }, result) => {
                self.membership.expiry.handle_idle(now, before, result, sink);
            }
            // A session that was not deleted is found again by the next walk.
            (Op::DeleteIdle { .. }, result) => sink.stats.expired += u64::from(matches!(result, Ok(Reply::Done))),
            (Op::Accept { key, input, hash, .. }, result) => {
                let request_key = RequestKey::Input(input.run_id.clone(), hash);
                self.handle_accepted(now, request_key, key, RequestPayload::Input(input), result);
            }
            (op @ Op::Control { .. }, result) if is_report(&op) => self.handle_report(now, op, result),
            (Op::Control { key, principal, control, create }, result) => {
                let request_key = RequestKey::Control(control.id.clone(), principal);
                let payload = RequestPayload::Control { control, create };
                self.handle_accepted(now, request_key, key, payload, result);
            }
            (Op::ListSessions { link, .. }, result) => router::queries::handle_listed(link, result, sink),
            (Op::Delete { key, link, .. }, result) => router::queries::handle_deleted(link, &key, result, sink),
            (Op::Blob { key, action, link, .. }, result) => {
                router::blobs::handle_answer(link, &key.session, &action, result, sink);
            }
            (Op::Find { run_id, link, .. }, result) => {
                if !self.adapters.handle_found(now, link, &run_id, &result, sink) {
                    router::queries::handle_found(link, run_id, result, sink);
                }
            }
            (op @ Op::FindControl { .. }, result) => self.bindings.handle_control_found(now, op, result, sink),
            (Op::Conversation { op, ticket }, result) => self.bindings.handle_stored(now, op, ticket, result, sink),
            (op @ (Op::Get { .. } | Op::Put { .. }), result) if is_adapter_op(&op) => {
                let context = self.adapter_context(now);
                self.adapters.handle_value(context, op, result, &mut self.sink);
            }
            (Op::Get { name } | Op::Put { name, .. }, result) => {
                let (ownership, context, sink) = self.ownership(now);
                ownership.handle_task_value(context, name, result, sink);
            }
            (Op::Append(append), Ok(reply)) => {
                let (ownership, context, sink) = self.ownership(now);
                ownership.handle_appended(context, &append.key, append.token, reply, sink);
            }
            (op, Err(StoreError::Unknown | StoreError::Unavailable)) => sink.retry(now, op),
            (op, Ok(reply)) => self.handle_reply(now, op, reply),
        }
    }

    /// Handles the reply to a report of a binding's change: the upkeep settles it, and the session's owner is sent the entry.
    fn handle_report(&mut self, now: Now, op: Op, result: Result<Reply, StoreError>) {
        self.bindings.handle_report(now, op.clone(), result.clone(), &mut self.sink);
        if let Op::Control { key, principal, control, create } = op {
            let request_key = RequestKey::Control(control.id.clone(), principal);
            self.handle_accepted(now, request_key, key, RequestPayload::Control { control, create }, result);
        }
    }

    /// Handles the store's reply to a request. The owner here learns of a newer epoch before the reply is used.
    fn handle_accepted(
        &mut self,
        now: Now,
        request_key: RequestKey,
        key: SessionKey,
        payload: RequestPayload,
        result: Result<Reply, StoreError>,
    ) {
        let wait = self.sink.jitter(limits::STORE_RETRY);
        if let Ok(Reply::Accepted(accepted)) = &result {
            let (ownership, context, sink) = self.ownership(now);
            ownership.compare_epoch(context, &key, accepted.owner.epoch, sink);
            self.step(now);
        }
        self.router.use_reply(now, AcceptanceReply { request_key, key, payload, result, wait }, &mut self.sink);
    }

    /// Handles replies of ops that are repeated until they succeed.
    fn handle_reply(&mut self, now: Now, op: Op, reply: Reply) {
        match (op, reply) {
            (op @ (Op::Claim { .. } | Op::Release { .. } | Op::Transfer { .. }), reply) => {
                self.handle_owner_reply(now, op, reply);
            }
            (op @ Op::WriteSnapshot(_), reply @ Reply::Done) => self.handle_owner_reply(now, op, reply),
            (op @ Op::Inbox { .. }, reply @ (Reply::Inbox(_) | Reply::Refused(_) | Reply::Fenced)) => {
                self.handle_owner_reply(now, op, reply);
            }
            (Op::ReadView { key }, Reply::View(view)) => {
                self.delivery.handle_state_read(&key, *view, &mut self.sink);
            }
            (Op::Read { key, after, .. }, Reply::Facts(page)) => {
                self.delivery.handle_page(key, after, page, &mut self.sink);
            }
            (Op::Listen { key, stamp, .. }, Reply::Listening { owner, .. }) => {
                self.sink.push(OwnershipCommand::CompareEpoch { key: key.clone(), epoch: owner.epoch });
                self.sink.push(DeliveryCommand::UseRegistration { key, stamp, owner });
            }
            (
                Op::ReadView { key } | Op::Read { key, .. } | Op::Listen { key, .. },
                Reply::Refused(StoreRefusal::Damaged),
            ) => self.delivery.refuse_damaged(&key, &mut self.sink),
            (Op::Listen { key, .. }, Reply::Refused(_)) => {
                self.delivery.refuse_registration(&key, &mut self.sink);
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
                | Op::Conversation { .. }
                | Op::Blob { .. }
                | Op::Renew { .. }
                | Op::Retire { .. }
                | Op::Lease { .. }
                | Op::Accept { .. }
                | Op::Append(_)
                | Op::Control { .. }
                | Op::Find { .. }
                | Op::FindControl { .. }
                | Op::Delete { .. }
                | Op::ScanIdle { .. }
                | Op::DeleteIdle { .. }
                | Op::ListSessions { .. }
                | Op::Sweep { .. },
                _,
            ) => {}
        }
    }

    /// Handles the replies to an owner's ops.
    fn handle_owner_reply(&mut self, now: Now, op: Op, reply: Reply) {
        if let Op::Claim { nonce, .. } = &op {
            let won = matches!(reply, Reply::Claimed(_));
            self.membership.takeover.handle_claim_answered(now, *nonce, won, &mut self.sink);
        }
        let (ownership, context, sink) = self.ownership(now);
        ownership.handle_reply(context, op, reply, sink);
    }

    fn handle_timer(&mut self, now: Now, timer: Timer) {
        let sink = &mut self.sink;
        match timer {
            Timer::Renew => self.membership.lease.renew(now, sink),
            Timer::Sweep => self.membership.takeover.start_sweep(now, sink),
            Timer::Bindings => self.bindings.tend(now, sink),
            Timer::Adapters => {
                let context = AdapterContext::new(now, &self.membership.lease);
                self.adapters.handle_timeout(context, sink);
            }
            Timer::Tasks => self.tasks.handle_timeout(now, sink),
            Timer::Idle => self.membership.expire_idle_sessions(now, sink),
            Timer::Drain => self.membership.drain.handle_timeout(now, sink),
            Timer::Suspect(node) => self.membership.suspicions.probe_suspect(now, node, sink),
            Timer::Probe => self.probe_owners(now),
            Timer::Offer(request_key) => self.router.send_offer(now, &request_key, sink),
            Timer::Read(key) => self.delivery.catch_up(&key, sink),
            Timer::FetchText(key) => self.delivery.fetch_text(now, &key, sink),
            Timer::TailDigest => sink.push(OwnershipCommand::SendTailDigests),
            Timer::Runtime(key) => sink.push(OwnershipCommand::Wake(key)),
            Timer::Write(key) | Timer::Linger(key) => sink.push(OwnershipCommand::Drive(key)),
            Timer::Reserve(key) => sink.push(OwnershipCommand::EndReserveWait(key)),
            Timer::Repeat(number) => sink.repeat(number),
        }
    }

    /// Probes the nodes that own a session with an open turn or request here.
    fn probe_owners(&mut self, now: Now) {
        let owners = self.delivery.owners_of_open_turns().chain(self.router.owners());
        let owners: BTreeSet<NodeId> = owners.map(|holder| holder.node).filter(|node| *node != self.me).collect();
        self.membership.suspicions.probe_owners(now, owners, &mut self.sink);
    }
}

impl Machine for Switchboard {
    type Input = Input;
    type Output = Output;

    fn handle_input(&mut self, now: Now, input: Input) {
        if self.membership.drain.is_gone() {
            return;
        }
        let sink = &mut self.sink;
        match input {
            Input::Connect { link, principal } => {
                sink.links.connect(link, principal);
                if self.membership.drain.is_started() {
                    sink.notify(link, membership::drain::go_away());
                }
            }
            Input::ServeAccount { link, adapter } => {
                let context = AdapterContext::new(now, &self.membership.lease);
                self.adapters.connect(context, link, &adapter, sink);
            }
            Input::Disconnect { link } => self.handle_disconnect(now, link),
            Input::Command { link, command } => self.handle_command(now, link, command),
            Input::Written { link, weight } => {
                for key in sink.links.count_written(link, weight) {
                    sink.push(DeliveryCommand::ResumeLink { key, link });
                }
            }
            Input::PauseSession { link, session, is_paused } => {
                if let Some(key) = sink.links.pause(link, session, is_paused) {
                    sink.push(DeliveryCommand::ResumeLink { key, link });
                }
            }
            Input::Peer { from, message } => self.handle_peer(now, from, message),
            Input::PublishFailed { to } => {
                self.membership.suspicions.suspect(now, to, sink);
                self.adapters.handle_unreachable(now, to, sink);
            }
            Input::MessagesMissed => self.delivery.register_all_again(sink),
            Input::Stored { op, result } => self.handle_stored(now, op, result),
            Input::Agent { key, run_id, attempt, epoch, events } => {
                let to_input = |event| RuntimeInput::Agent { run_id: run_id.clone(), attempt, epoch, event };
                let (ownership, context, sink) = self.ownership(now);
                ownership.handle_reports(context, &key, events.into_iter().map(to_input), sink);
            }
            Input::Tool { key, action_id, report } => {
                let report = RuntimeInput::Tool { action_id, report };
                let (ownership, context, sink) = self.ownership(now);
                ownership.handle_reports(context, &key, std::iter::once(report), sink);
            }
            Input::Drain => self.membership.drain.begin(now, sink),
            Input::Successors(successors) => self.membership.drain.hand_over_to(successors, sink),
            Input::FactLevel(level) => {
                self.router.set_fact_level(level);
                self.bindings.set_may_report(self.router.is_known_to_all(BINDING_FACT));
                self.adapters.use_known_facts(|fact| self.router.is_known_to_all(fact));
                self.ownership.set_fact_level(level);
            }
        }
        self.finish_input(now);
    }

    fn handle_timeout(&mut self, now: Now) {
        while let Some(timer) = self.sink.timers.pop_due(now.mono) {
            if self.membership.drain.is_gone() {
                return;
            }
            self.handle_timer(now, timer);
            self.step(now);
        }
        self.finish_input(now);
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.sink.outbox.pop_front()
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        if self.membership.drain.is_gone() { None } else { self.sink.timers.next_deadline("switchboard") }
    }
}
