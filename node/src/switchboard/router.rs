//! The requests of this node's links on their way: stored, offered to the session's owner, kept until the owner has
//! accepted them, and answered at their end. Owns the table of requests; other parts are reached by effects only.
pub(super) mod blobs;
mod commands;
pub(super) mod queries;
pub(super) mod requests;

use super::adapters::files;
use super::adapters::inbound::InboundSession;
use super::bindings::repeats;
use super::delivery::Delivery;
use super::delivery::snapshot_waiters::SnapshotPurpose;
use super::effect::{DeliveryCommand, MembershipCommand, OwnershipCommand, PartEffect, RouterCommand};
use super::ownership::Ownership;
use super::sink::{EffectSink, Timer};
use requests::{
    NewRequest, PendingRequest, RequestKey, RequestPayload, RequestWaiter, end_of_bindings, inbound_refusal, refusal_of,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{
    AgentId, ControlId, Epoch, EventId, Holder, LinkId, NodeId, OwnershipSnapshot, Principal, RunId, SessionKey,
};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::agent::AgentDirectory;
use turnway_core::protocol::entry::{Entry, FACT_LEVEL, Fact, InputFact, LOWEST_FACT_LEVEL, RunFact};
use turnway_core::protocol::history::History;
use turnway_core::protocol::input::{ControlEntry, ControlRequest, Input};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::shrink::Shrink;
use turnway_core::store::{self, Op, Reply, StoreError, StoreRefusal};
use turnway_core::time::Now;
use turnway_wire::channel::adapter::{IgnoreReason, InboundDisposition, InboundReceipt};
use turnway_wire::channel::command::{ControlAnswer, ControlKind};
use turnway_wire::channel::notification::{AcceptedSend, AcceptedTurn, CommandReply, Notification, RequestedChild};
use turnway_wire::peer::{OfferedEntry, PeerMessage};

/// Base interval between offers; the wait grows with the number of offers.
const OFFER_INTERVAL: Duration = Duration::from_millis(150);

/// Number of offers after which the store is asked for the owner again.
const OFFERS_PER_LOOKUP: u32 = 4;

/// The requests of one node's links.
#[derive(Debug)]
pub(super) struct RequestRouter {
    me: NodeId,
    directory: Arc<AgentDirectory>,
    /// The level of facts that every live node knows.
    fact_level: u32,
    requests: BTreeMap<RequestKey, PendingRequest>,
    requests_by_session: BTreeMap<SessionKey, BTreeSet<RequestKey>>,
}

/// The store's reply to a request.
#[derive(Debug)]
pub(super) struct AcceptanceReply {
    pub(super) request_key: RequestKey,
    pub(super) key: SessionKey,
    pub(super) payload: RequestPayload,
    pub(super) result: Result<Reply, StoreError>,
    /// The wait before another try, drawn when the reply arrived.
    pub(super) wait: Duration,
}

/// The time, and the parts that the router reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct RouterContext<'a> {
    pub(super) now: Now,
    pub(super) ownership: &'a Ownership,
    pub(super) delivery: &'a Delivery,
}

impl RequestRouter {
    pub(super) fn new(me: NodeId, directory: Arc<AgentDirectory>, single_node: bool) -> Self {
        let fact_level = if single_node { FACT_LEVEL } else { LOWEST_FACT_LEVEL };
        Self { me, directory, fact_level, requests: BTreeMap::new(), requests_by_session: BTreeMap::new() }
    }

    /// Sets the level of facts that every live node knows.
    pub(super) fn set_fact_level(&mut self, level: u32) {
        self.fact_level = level;
    }

    /// Returns the level of facts that every live node knows.
    pub(super) fn fact_level(&self) -> u32 {
        self.fact_level
    }

    /// Returns whether every live node knows this type of fact.
    pub(super) fn is_known_to_all(&self, fact: &str) -> bool {
        Fact::level_of(fact) <= self.fact_level
    }

    /// Handles an effect of another part.
    pub(super) fn handle_effect(&mut self, now: Now, command: RouterCommand, sink: &mut EffectSink) {
        match command {
            RouterCommand::AcceptInput(run_id) => self.handle_input_accepted(&run_id, sink),
            RouterCommand::OfferAll { key, owner } => self.offer_all(now, &key, owner, sink),
        }
    }

    /// Returns whether no agent of this name is configured.
    pub(super) fn is_unknown(&self, agent: &AgentId) -> bool {
        !self.directory.agents.contains_key(agent)
    }

    // === acceptance ===

    /// Adds a request, unless its user would own too many sessions here.
    fn put_request(&mut self, context: RouterContext<'_>, new: NewRequest, sink: &mut EffectSink) {
        if new.makes_work()
            && !self.requests.contains_key(&new.request_key)
            && let Some(refusal) = context.ownership.session_refusal(context.delivery, &new.key, &new.principal)
        {
            let RequestWaiter { link, request_id, .. } = new.waiter;
            sink.push(OwnershipCommand::CountRefusedSession(new.principal));
            return sink.refuse(link, request_id, Some(new.key.session), None, refusal);
        }
        self.add_request(context.now, new, sink);
    }

    fn add_request(&mut self, now: Now, new: NewRequest, sink: &mut EffectSink) {
        let NewRequest { request_key, key, principal, waiter, payload, route } = new;
        if let Some(there) = sink.links.get_mut(waiter.link) {
            there.requests.insert(request_key.clone());
        }
        if let Some(request) = self.requests.get_mut(&request_key) {
            request.waiters.push(waiter);
        } else {
            self.requests_by_session.entry(key.clone()).or_default().insert(request_key.clone());
            let request = PendingRequest {
                key,
                principal,
                payload,
                route,
                waiters: vec![waiter],
                owner: OwnershipSnapshot::default(),
                position: None,
                offers: 0,
                accepted_by_owner: false,
                unknown_since: None,
                awaits_open: false,
                opens: 0,
            };
            self.requests.insert(request_key.clone(), request);
        }
        self.submit_request(now, &request_key, sink);
    }

    /// Stores the request, or asks the store again for the owner.
    fn submit_request(&self, now: Now, request_key: &RequestKey, sink: &mut EffectSink) {
        let Some(request) = self.requests.get(request_key).filter(|request| !request.awaits_open) else { return };
        let key = request.key.clone();
        let principal = request.principal.clone();
        let op = match (&request.payload, request_key) {
            (RequestPayload::Input(input), RequestKey::Input(_, hash)) => {
                let route = request.route.clone();
                Op::Accept { key, principal, input: Arc::clone(input), hash: *hash, route }
            }
            (RequestPayload::Control { control, create }, _) => {
                Op::Control { key, principal, control: Arc::clone(control), create: *create }
            }
            (RequestPayload::Input(_), RequestKey::Control(..)) => return,
        };
        sink.timers.set(Timer::Offer(request_key.clone()), now.mono + OFFER_INTERVAL * 20);
        sink.store(op);
    }

    /// Uses the store's reply to a request; the ownership has compared its epoch.
    pub(super) fn use_reply(&mut self, now: Now, reply: AcceptanceReply, sink: &mut EffectSink) {
        let AcceptanceReply { request_key, key, payload, result, wait } = reply;
        let Some(request) = self.requests.get_mut(&request_key) else {
            return handle_orphaned_reply(key, payload, result, sink);
        };
        match result {
            Ok(Reply::Accepted(accepted)) => {
                (request.position, request.owner) = (Some((accepted.position, accepted.prev)), accepted.owner);
                self.notify_accepted(now, &request_key, &accepted, sink);
                self.forward_request(now, &request_key, &accepted, sink);
            }
            Ok(Reply::Refused(StoreRefusal::Closed)) if request.opens_session() => {
                self.open_session_for(now, &request_key, sink);
            }
            // A store that refuses everything for now reveals nothing about an earlier attempt, which may have been
            // stored.
            Ok(Reply::Refused(refused)) if request.unknown_since.is_none() || !refused.is_store_wide() => {
                self.refuse_request(&request_key, refusal_of(refused), sink);
            }
            Err(StoreError::Unavailable) if request.position.is_none() && request.unknown_since.is_none() => {
                let why = "the store is unavailable; nothing was accepted, try again later";
                let refusal = Refusal::new(Code::StoreUnavailable, why);
                self.refuse_request(&request_key, refusal.retry_after(limits::STORE_RETRY_AFTER), sink);
            }
            Ok(_) | Err(StoreError::Unknown | StoreError::Unavailable) => {
                let since = *request.unknown_since.get_or_insert(now.mono);
                if request.may_be_repeated() && now.mono - since >= limits::STORE_OUTCOME_TIMEOUT {
                    let why = "the store has not confirmed the request, which may have been accepted; repeat it with \
                               the same id";
                    let refusal = Refusal::new(Code::StoreUnavailable, why);
                    let refusal = refusal.retry_after(limits::STORE_RETRY_AFTER);
                    return self.refuse_request(&request_key, refusal, sink);
                }
                sink.timers.set(Timer::Offer(request_key.clone()), now.mono + wait);
            }
        }
    }

    /// Reports a durable input to its clients and subscribes them to the session, or a durable report to its node.
    fn notify_accepted(
        &mut self,
        now: Now,
        request_key: &RequestKey,
        accepted: &store::Acceptance,
        sink: &mut EffectSink,
    ) {
        let Some(request) = self.requests.get_mut(request_key) else { return };
        let input = match &request.payload {
            RequestPayload::Input(input) => Arc::clone(input),
            RequestPayload::Control { control, .. } => {
                if ControlKind::of(&control.what).answer == ControlAnswer::Stored {
                    request.waiters.iter_mut().for_each(|waiter| notify_stored(waiter, sink));
                }
                return;
            }
        };
        let key = request.key.clone();
        for waiter in request.waiters.iter_mut().filter(|waiter| !waiter.answered) {
            notify_input_accepted(now, waiter, &key, &input, accepted.duplicate, sink);
            if waiter.inbound.is_none() {
                let run_id = input.run_id.clone();
                let tail = accepted.tail;
                sink.push(DeliveryCommand::SubscribeSender { key: key.clone(), link: waiter.link, run_id, tail });
            }
        }
    }

    /// Offers the request to the owner; without an owner, this node claims the session.
    fn forward_request(
        &mut self,
        now: Now,
        request_key: &RequestKey,
        accepted: &store::Acceptance,
        sink: &mut EffectSink,
    ) {
        let Some(request) = self.requests.get(request_key) else { return };
        let key = request.key.clone();
        let in_hand = request.accepted_by_owner;
        if accepted.ended {
            self.complete_request(now, request_key, false, sink);
        } else if in_hand {
            self.remove_request(request_key, sink);
        } else if let Some(holder) = accepted.owner.holder {
            match accepted.offer_receivers {
                Some(receivers) => self.record_store_offer(now, request_key, holder.node, receivers, sink),
                None => self.send_offer(now, request_key, sink),
            }
        } else {
            let wait = sink.jitter(OFFER_INTERVAL * 4);
            sink.timers.set(Timer::Offer(request_key.clone()), now.mono + wait);
            sink.push(PartEffect::FreeSession { key, owner: accepted.owner });
        }
    }

    /// Opens the closed session of a conversation, as its user would, and submits the input once the session is open.
    fn open_session_for(&mut self, now: Now, request_key: &RequestKey, sink: &mut EffectSink) {
        let Some(request) = self.requests.get_mut(request_key) else { return };
        let Some(link) = request.waiters.first().map(|waiter| waiter.link) else { return };
        request.awaits_open = true;
        request.opens += 1;
        let key = request.key.clone();
        let principal = request.principal.clone();
        sink.timers.clear(&Timer::Offer(request_key.clone()));
        let waiter =
            RequestWaiter { opens_for: Some(Box::new(request_key.clone())), ..RequestWaiter::new(now, link, None) };
        let what = ControlRequest::Open { agents: Vec::new(), active: None };
        self.add_request(now, new_control(now, key, principal, waiter, what, sink), sink);
    }

    /// Submits an input whose session was opened for it.
    fn submit_after_open(&mut self, now: Now, request_key: &RequestKey, sink: &mut EffectSink) {
        if let Some(request) = self.requests.get_mut(request_key) {
            request.awaits_open = false;
        }
        self.submit_request(now, request_key, sink);
    }

    // === offers ===

    /// Offers a request to its owner; after several offers, asks the store again for the owner.
    pub(super) fn send_offer(&mut self, now: Now, request_key: &RequestKey, sink: &mut EffectSink) {
        let wait = sink.jitter(OFFER_INTERVAL);
        let Some(request) = self.requests.get_mut(request_key) else { return };
        request.offers += 1;
        let (Some((place, prev)), Some(holder)) = (request.position, request.owner.holder) else {
            return self.submit_request(now, request_key, sink);
        };
        if request.offers.is_multiple_of(OFFERS_PER_LOOKUP) {
            return self.submit_request(now, request_key, sink);
        }
        let item = match &request.payload {
            RequestPayload::Input(input) => OfferedEntry::Input { position: place, prev, input: Arc::clone(input) },
            RequestPayload::Control { control, .. } => {
                OfferedEntry::Control { position: place, prev, control: Arc::clone(control) }
            }
        };
        let key = request.key.clone();
        let owner = request.owner;
        sink.timers.set(Timer::Offer(request_key.clone()), now.mono + wait * request.offers.min(20));
        if holder.node != self.me {
            sink.timers.set_earlier(Timer::Probe, now.mono + limits::PROBE_INTERVAL);
        }
        sink.send_peer(holder.node, PeerMessage::Offer { key, owner, item });
    }

    /// Records that the store itself notified the owner when it accepted the request; the answer is awaited as
    /// after any offer.
    fn record_store_offer(
        &mut self,
        now: Now,
        request_key: &RequestKey,
        node: NodeId,
        receivers: u32,
        sink: &mut EffectSink,
    ) {
        let wait = sink.jitter(OFFER_INTERVAL);
        let Some(request) = self.requests.get_mut(request_key) else { return };
        request.offers += 1;
        sink.timers.set(Timer::Offer(request_key.clone()), now.mono + wait * request.offers.min(20));
        sink.timers.set_earlier(Timer::Probe, now.mono + limits::PROBE_INTERVAL);
        if receivers == 0 {
            sink.push(MembershipCommand::SuspectNode(node));
        }
    }

    /// Sets the owner of every request of a session, and offers the requests to it.
    fn offer_all(&mut self, now: Now, key: &SessionKey, owner: OwnershipSnapshot, sink: &mut EffectSink) {
        for request_key in self.requests_by_session.get(key).cloned().unwrap_or_default() {
            if let Some(request) = self.requests.get_mut(&request_key).filter(|request| request.position.is_some()) {
                request.owner = owner;
                self.send_offer(now, &request_key, sink);
            }
        }
    }

    /// Handles the message of a supposed owner that does not own the session: the session is free.
    pub(super) fn handle_not_owner(&self, key: SessionKey, owner: OwnershipSnapshot, sink: &mut EffectSink) {
        let mut requests = self
            .requests_by_session
            .get(&key)
            .into_iter()
            .flatten()
            .filter_map(|request_key| self.requests.get(request_key));
        if requests.any(|request| request.owner == owner) {
            sink.push(OwnershipCommand::Claim { key, expect: owner });
        }
    }

    /// Returns the sessions with requests here that a node owns.
    pub(super) fn sessions_of(&self, node: NodeId) -> impl Iterator<Item = (SessionKey, OwnershipSnapshot)> {
        let of = move |owner: OwnershipSnapshot| owner.holder.is_some_and(|holder| holder.node == node);
        self.requests
            .values()
            .filter(move |request| of(request.owner))
            .map(|request| (request.key.clone(), request.owner))
    }

    /// Returns the owners that requests here were offered to.
    pub(super) fn owners(&self) -> impl Iterator<Item = Holder> {
        self.requests.values().filter_map(|request| request.owner.holder)
    }

    pub(super) fn request_count(&self) -> usize {
        self.requests.len()
    }

    fn remove_request(&mut self, request_key: &RequestKey, sink: &mut EffectSink) -> Option<PendingRequest> {
        let request = self.requests.remove(request_key)?;
        sink.timers.clear(&Timer::Offer(request_key.clone()));
        for waiter in &request.waiters {
            if let Some(there) = sink.links.get_mut(waiter.link) {
                if !planted(Planted::AsksKept) {
                    there.requests.remove(request_key);
                }
                there.requests.shrink_if_empty();
            }
        }
        if let Some(request_keys) = self.requests_by_session.get_mut(&request.key) {
            request_keys.remove(request_key);
            if request_keys.is_empty() {
                self.requests_by_session.remove(&request.key);
            }
        }
        Some(request)
    }

    fn refuse_request(&mut self, request_key: &RequestKey, refusal: Refusal, sink: &mut EffectSink) {
        let Some(request) = self.remove_request(request_key, sink) else { return };
        if request.is_decision() && refusal.code == Code::IdempotencyConflict {
            return notify_decided(request, sink);
        }
        let run_id = match &request.payload {
            RequestPayload::Input(_) => None,
            RequestPayload::Control { control, .. } => control.what.cancelled_run().cloned(),
        };
        for waiter in request.waiters.into_iter().filter(|waiter| !waiter.answered) {
            if let Some(input) = waiter.opens_for {
                self.refuse_request(&input, refusal.clone(), sink);
                continue;
            }
            let told = waiter.inbound.and_then(|session| inbound_refusal(session, &refusal));
            if waiter.inbound == Some(InboundSession::Bound) && told.is_some() {
                sink.push(end_of_bindings(request.key.clone(), &refusal));
            }
            let refusal = told.unwrap_or_else(|| refusal.clone());
            sink.refuse(waiter.link, waiter.request_id, Some(request.key.session.clone()), run_id.clone(), refusal);
        }
    }

    /// Handles the owner's confirmation of an input.
    pub(super) fn handle_input_accepted(&mut self, run_id: &RunId, sink: &mut EffectSink) {
        for request_key in self.requests_of_run(run_id) {
            let Some(request) = self.requests.get_mut(&request_key) else { continue };
            if request.waiters.iter().all(|waiter| waiter.answered) {
                self.remove_request(&request_key, sink);
            } else {
                request.accepted_by_owner = true;
            }
        }
    }

    fn requests_of_run(&self, run_id: &RunId) -> Vec<RequestKey> {
        let all = RequestKey::Input(run_id.clone(), [0; 32])..=RequestKey::Input(run_id.clone(), [255; 32]);
        self.requests.range(all).map(|(request_key, _)| request_key.clone()).collect()
    }

    /// Handles the durable answer to a control entry.
    pub(super) fn handle_control_answered(
        &mut self,
        now: Now,
        control: &ControlId,
        shown: bool,
        sink: &mut EffectSink,
    ) {
        let named = |request_key: &RequestKey| matches!(request_key, RequestKey::Control(id, _) if id == control);
        let first = RequestKey::Control(control.clone(), Principal::first());
        let matching = self
            .requests
            .range(first..)
            .map(|(request_key, _)| request_key)
            .take_while(|request_key| named(request_key));
        for request_key in matching.cloned().collect::<Vec<_>>() {
            self.complete_request(now, &request_key, shown, sink);
        }
    }

    /// Completes a request and answers its clients. `shown`: a fact reports the result to the session's
    /// subscribers.
    fn complete_request(&mut self, now: Now, request_key: &RequestKey, shown: bool, sink: &mut EffectSink) {
        let Some(request) = self.remove_request(request_key, sink) else { return };
        let RequestPayload::Control { control, .. } = &request.payload else { return };
        for mut waiter in request.waiters {
            if let Some(input) = waiter.opens_for {
                self.submit_after_open(now, &input, sink);
                continue;
            }
            match ControlKind::of(&control.what).answer {
                ControlAnswer::Opened if waiter.inbound.is_some() => {
                    let answer = files::prepared(request.key.clone(), control.user.clone(), waiter.request_id);
                    sink.notify(waiter.link, answer);
                }
                ControlAnswer::Opened => await_snapshot(&request.key, waiter, SnapshotPurpose::Open, sink),
                ControlAnswer::Members => await_snapshot(&request.key, waiter, SnapshotPurpose::Members, sink),
                ControlAnswer::Handover(handover_id) => {
                    await_snapshot(&request.key, waiter, SnapshotPurpose::Handover(handover_id), sink);
                }
                ControlAnswer::Stored => notify_stored(&mut waiter, sink),
                ControlAnswer::Message => notify_message_accepted(&request.key, waiter, &control.what, sink),
                ControlAnswer::Creation => notify_child_requested(&request.key, waiter, &control.what, sink),
                ControlAnswer::Performed(kind) => notify_performed(&request.key, waiter, kind, sink),
                ControlAnswer::PerformedOrFact(kind) => {
                    let follows = sink.links.get(waiter.link).is_some_and(|link| link.is_subscribed(&request.key));
                    if !(shown && follows) {
                        notify_performed(&request.key, waiter, kind, sink);
                    }
                }
                ControlAnswer::Receipt if waiter.inbound.is_some() => {
                    let receipt = InboundReceipt {
                        request_id: waiter.request_id,
                        disposition: InboundDisposition::Recorded,
                        reason: None,
                        session: Some(request.key.session.clone()),
                        run_id: control.what.cancelled_run().cloned(),
                        duplicate: false,
                    };
                    let reply = CommandReply::InboundAccepted(Box::new(receipt));
                    sink.notify(waiter.link, Notification::Reply(reply));
                }
                ControlAnswer::Receipt if !waiter.wants_receipt => {}
                ControlAnswer::Receipt => {
                    let request_id = waiter.request_id;
                    let session = request.key.session.clone();
                    let run_id = control.what.cancelled_run().cloned();
                    sink.notify(
                        waiter.link,
                        Notification::Reply(CommandReply::CancelAccepted { request_id, session, run_id }),
                    );
                }
            }
        }
    }

    /// Forgets a disconnected link's waits.
    pub(super) fn forget_waiters(&mut self, link: LinkId, request_keys: BTreeSet<RequestKey>, sink: &mut EffectSink) {
        // A request is dropped with its last client; a stored one is found by its owner or by a sweep.
        for request_key in request_keys {
            let Some(request) = self.requests.get_mut(&request_key) else { continue };
            request.waiters.retain(|waiter| waiter.link != link);
            if request.waiters.is_empty() {
                self.remove_request(&request_key, sink);
            }
        }
    }

    /// Releases the acceptance of turns whose first facts arrive, which proves their durability, so that no link
    /// sees a part of a turn before `turn_accepted` (protocol.md §1.3).
    pub(super) fn release_acceptances(&mut self, now: Now, facts: &[(Epoch, Arc<Entry>)], sink: &mut EffectSink) {
        for (_, entry) in facts {
            let Some(run_id) = entry.run_id.as_ref().filter(|_| !self.requests.is_empty()) else { continue };
            if let Fact::Input(InputFact::UserMessage { .. }) = &entry.fact {
                for request_key in self.requests_of_run(run_id) {
                    self.release_acceptance(now, &request_key, &entry.fact, sink);
                }
            }
            if matches!(entry.fact, Fact::Run(RunFact::Started { .. })) || entry.fact.is_terminal() {
                self.handle_input_accepted(run_id, sink);
            }
        }
    }

    fn release_acceptance(&mut self, now: Now, request_key: &RequestKey, fact: &Fact, sink: &mut EffectSink) {
        let Some(request) = self.requests.get_mut(request_key) else { return };
        let RequestPayload::Input(input) = request.payload.clone() else { return };
        if !records_input(&input, fact) {
            return;
        }
        let key = request.key.clone();
        for waiter in request.waiters.iter_mut().filter(|waiter| !waiter.answered) {
            if sink.links.get(waiter.link).is_some_and(|there| there.is_subscribed(&key)) {
                notify_input_accepted(now, waiter, &key, &input, false, sink);
            }
        }
    }
}

/// Returns the request to add an entry to the control lane of a session.
fn new_control(
    now: Now,
    key: SessionKey,
    principal: Principal,
    waiter: RequestWaiter,
    what: ControlRequest,
    sink: &mut EffectSink,
) -> NewRequest {
    let named =
        |name: &str| ControlId::parse(name).unwrap_or_else(|_| unreachable!("the id of a run or of a call is a label"));
    let id = if let Some(run_id) = what.cancelled_run() {
        named(&format!("cancel:{run_id}"))
    } else if let ControlRequest::SendMessage { send } = &what
        && !planted(Planted::SendRepeated)
    {
        repeats::send_control(&send.delivery_id)
    } else if let ControlRequest::StartModelCall { start } = &what {
        named(&format!("call-start:{}", start.call_id))
    } else if let ControlRequest::EndModelCall { end } = &what {
        named(&format!("call-end:{}", end.call_id))
    } else if let ControlRequest::CreateConversation { creation } = &what {
        repeats::creation_control(&creation.delivery_id)
    } else {
        named(&EventId::new(now.store, sink.rng.next_u128()).to_string())
    };
    let create = matches!(what, ControlRequest::Open { .. });
    let user = principal.user.clone();
    let request_id = waiter.request_id.clone();
    let control = ControlEntry { id: id.clone(), user, request_id, what };
    let payload = RequestPayload::Control { control: Arc::new(control), create };
    let request_key = RequestKey::Control(id, principal.clone());
    NewRequest { request_key, key, principal, waiter, payload, route: None }
}

/// Handles a store reply after every client has disconnected; a durable request is carried out all the same.
fn handle_orphaned_reply(
    key: SessionKey,
    payload: RequestPayload,
    result: Result<Reply, StoreError>,
    sink: &mut EffectSink,
) {
    let Ok(Reply::Accepted(accepted)) = result else { return };
    let place = accepted.position;
    let prev = accepted.prev;
    let owner = accepted.owner;
    match owner.holder {
        _ if accepted.ended => {}
        // The store has notified the owner.
        Some(holder) if accepted.offer_receivers.is_some() => {
            if accepted.offer_receivers == Some(0) {
                sink.push(MembershipCommand::SuspectNode(holder.node));
            }
        }
        Some(holder) => {
            let item = match payload {
                RequestPayload::Input(input) => OfferedEntry::Input { position: place, prev, input },
                RequestPayload::Control { control, .. } => OfferedEntry::Control { position: place, prev, control },
            };
            sink.send_peer(holder.node, PeerMessage::Offer { key, owner, item });
        }
        None => sink.push(OwnershipCommand::Claim { key, expect: owner }),
    }
}

/// Tells a client that its message to a conversation is in the log.
fn notify_message_accepted(key: &SessionKey, waiter: RequestWaiter, what: &ControlRequest, sink: &mut EffectSink) {
    let ControlRequest::SendMessage { send } = what else { return };
    let accepted = AcceptedSend {
        request_id: waiter.request_id,
        session: key.session.clone(),
        message_id: send.message_id.clone(),
        delivery_id: send.delivery_id.clone(),
    };
    sink.notify(waiter.link, Notification::Reply(CommandReply::MessageAccepted(Box::new(accepted))));
}

/// Tells a client that its request for a conversation is in the log.
fn notify_child_requested(key: &SessionKey, waiter: RequestWaiter, what: &ControlRequest, sink: &mut EffectSink) {
    let ControlRequest::CreateConversation { creation } = what else { return };
    let child = RequestedChild {
        request_id: waiter.request_id,
        session: key.session.clone(),
        creation_id: creation.creation_id.clone(),
        delivery_id: creation.delivery_id.clone(),
    };
    sink.notify(waiter.link, Notification::Reply(CommandReply::ChildRequested(Box::new(child))));
}

/// Tells an adapter that a button of the same message was pressed before.
fn notify_decided(request: PendingRequest, sink: &mut EffectSink) {
    for waiter in request.waiters.into_iter().filter(|waiter| !waiter.answered) {
        let receipt = InboundReceipt {
            request_id: waiter.request_id,
            disposition: InboundDisposition::Ignored,
            reason: Some(IgnoreReason::Decided),
            session: None,
            run_id: None,
            duplicate: false,
        };
        sink.notify(waiter.link, Notification::Reply(CommandReply::InboundAccepted(Box::new(receipt))));
    }
}

/// Tells a client that its request is performed.
fn notify_performed(key: &SessionKey, waiter: RequestWaiter, kind: &'static str, sink: &mut EffectSink) {
    let request_id = waiter.request_id;
    let session = key.session.clone();
    sink.notify(waiter.link, Notification::Reply(CommandReply::Performed { kind, request_id, session }));
}

/// Tells the node that its report is durable.
fn notify_stored(waiter: &mut RequestWaiter, sink: &mut EffectSink) {
    if !std::mem::replace(&mut waiter.answered, true) {
        sink.notify(waiter.link, Notification::Reply(CommandReply::Stored));
    }
}

/// Tells a client that its input is durable, or an adapter that the message it brought is.
fn notify_input_accepted(
    now: Now,
    waiter: &mut RequestWaiter,
    key: &SessionKey,
    input: &Input,
    duplicate: bool,
    sink: &mut EffectSink,
) {
    waiter.answered = true;
    sink.stats.accept_durations.record(now.mono - waiter.since);
    sink.stats.accepted += 1;
    sink.stats.duplicates += u64::from(duplicate);
    let request_id = waiter.request_id.clone();
    let session = key.session.clone();
    let run_id = input.run_id.clone();
    let reply = if waiter.inbound.is_some() {
        let receipt = InboundReceipt {
            request_id,
            disposition: if input.is_edit() { InboundDisposition::Recorded } else { InboundDisposition::Run },
            reason: None,
            session: Some(session),
            run_id: Some(run_id),
            duplicate,
        };
        CommandReply::InboundAccepted(Box::new(receipt))
    } else {
        let message_id = input.message_id.clone();
        CommandReply::TurnAccepted(Box::new(AcceptedTurn { request_id, session, run_id, message_id, duplicate }))
    };
    sink.notify(waiter.link, Notification::Reply(reply));
}

/// Answers a client with the session's state after its request.
fn await_snapshot(key: &SessionKey, waiter: RequestWaiter, purpose: SnapshotPurpose, sink: &mut EffectSink) {
    let RequestWaiter { link, request_id, .. } = waiter;
    sink.push(DeliveryCommand::AwaitState { key: key.clone(), link, request_id, purpose });
}

/// Returns whether the fact records this input, and not another body with the same id.
fn records_input(input: &Input, fact: &Fact) -> bool {
    let Fact::Input(InputFact::UserMessage { message, history_sha256, agent_id, strategy, metadata, .. }) = fact else {
        return false;
    };
    input.message == *message
        && input.history.as_ref().map(History::sha256) == *history_sha256
        && input.agent_id == *agent_id
        && input.strategy == *strategy
        && input.metadata == *metadata
}
