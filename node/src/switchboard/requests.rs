//! Client requests on their way: stored, offered to the session's owner, and kept until the owner has accepted
//! them.
use super::Switchboard;
use super::effect::DeliveryCommand;
use super::resources;
use super::sink::Timer;
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{
    AgentId, ControlId, EventId, InboxPosition, LinkId, MessageId, OwnershipSnapshot, Principal, RequestId, RunId,
    SessionId, SessionKey,
};
use turnway_core::limits;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::protocol::input::{BodyHash, ControlEntry, ControlRequest, Input, Strategy};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::store::{self, Op, Reply, StoreError, StoreRefusal};
use turnway_core::time::{Mono, Now};
use turnway_wire::channel::authority;
use turnway_wire::channel::command::{CancelTarget, InvokeCommand, LinkCommand};
use turnway_wire::channel::notification::{AcceptedTurn, CommandReply, Notification};
use turnway_wire::peer::{OfferedEntry, PeerMessage};

/// Base interval between offers; the wait grows with the number of offers.
pub(super) const OFFER_INTERVAL: Duration = Duration::from_millis(150);

/// The identity of a request: the same message from two links is one request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RequestKey {
    /// An input, with its body's hash: another body is another request.
    Input(RunId, BodyHash),
    /// A control entry.
    Control(ControlId, Principal),
}

/// A request on its way to the session's owner.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub(super) key: SessionKey,
    principal: Principal,
    pub(super) payload: RequestPayload,
    pub(super) waiters: Vec<RequestWaiter>,
    pub(super) owner: OwnershipSnapshot,
    pub(super) place: Option<(InboxPosition, InboxPosition)>,
    pub(super) offers: u32,
    /// The owner has confirmed the request before the store's reply arrived.
    pub(super) accepted_by_owner: bool,
    /// Time since which the outcome is unknown: an earlier attempt may have been stored, so "nothing was accepted"
    /// could be false.
    unknown_since: Option<Mono>,
}

impl PendingRequest {
    /// Returns whether the outcome is unknown and every waiting client can safely repeat the request. A client that
    /// cannot would start another turn, so its request keeps waiting.
    fn may_be_repeated(&self) -> bool {
        self.place.is_none() && !self.accepted_by_owner && self.waiters.iter().all(|waiter| waiter.repeatable)
    }
}

#[derive(Clone, Debug)]
pub(super) enum RequestPayload {
    Input(Arc<Input>),
    Control { control: Arc<ControlEntry>, create: bool },
}

#[derive(Debug)]
pub(super) struct RequestWaiter {
    pub(super) link: LinkId,
    pub(super) request_id: Option<RequestId>,
    pub(super) answered: bool,
    /// The client wants an acknowledgement of the cancel.
    pub(super) wants_receipt: bool,
    /// The client named the request, so a repetition is recognised.
    repeatable: bool,
    pub(super) since: Mono,
}

impl RequestWaiter {
    fn new(now: Now, link: LinkId, request_id: Option<RequestId>) -> Self {
        Self { link, request_id, answered: false, wants_receipt: false, repeatable: true, since: now.mono }
    }
}

impl Switchboard {
    pub(super) fn handle_command(&mut self, now: Now, link: LinkId, command: LinkCommand) {
        let Some(there) = self.sink.links.get(link) else { return };
        let principal = there.principal.clone();
        let busy = there.is_busy(&command);
        let within = |session: SessionId| SessionKey { tenant: principal.tenant.clone(), session };
        if let Err(refusal) = authority::check_access(&principal, command.kind().operation) {
            return self.sink.refuse(link, command.request_id().cloned(), None, None, refusal);
        }
        if busy && command.kind().counts_as_request {
            return self.sink.refuse_busy(link, command.request_id().cloned());
        }
        match command {
            LinkCommand::Subscribe(command) => self.sink.push(DeliveryCommand::Subscribe { link, command }),
            LinkCommand::Unsubscribe { session, .. } => {
                self.sink.push(DeliveryCommand::Unsubscribe { key: within(session), link });
            }
            LinkCommand::GetSnapshot { request_id, session } => self.read_snapshot(link, &within(session), request_id),
            LinkCommand::List { before, limit } => self.list_sessions(link, principal, before, limit),
            LinkCommand::Delete { session } => self.delete_session(link, within(session), principal),
            LinkCommand::FindRun { run_id } => self.find_run(link, principal, run_id),
            LinkCommand::Invoke(invoke) => self.handle_invoke(now, link, principal, *invoke),
            LinkCommand::Open { request_id, session, agents, active } => {
                if agents.iter().chain(&active).any(|agent| self.is_unknown(agent)) {
                    return self.sink.refuse(link, request_id, session, None, Refusal::not_found());
                }
                let waiter =
                    RequestWaiter { repeatable: session.is_some(), ..RequestWaiter::new(now, link, request_id) };
                let session = session.unwrap_or_else(|| self.make_session(now));
                self.put_control(now, within(session), principal, waiter, ControlRequest::Open { agents, active });
            }
            LinkCommand::Control { request_id, session, request } => {
                let waiter = RequestWaiter::new(now, link, request_id);
                self.put_control(now, within(session), principal, waiter, request);
            }
            LinkCommand::Cancel { request_id, target, wants_receipt: receipt } => {
                let (session, run_id) = match target {
                    CancelTarget::Run(run_id) => (run_id.session(), Some(run_id)),
                    CancelTarget::Session(session) => (session, None),
                };
                let waiter = RequestWaiter { wants_receipt: receipt, ..RequestWaiter::new(now, link, request_id) };
                self.put_control(now, within(session), principal, waiter, ControlRequest::Cancel { run_id });
            }
        }
    }

    pub(super) fn is_unknown(&self, agent: &AgentId) -> bool {
        !self.directory.agents.contains_key(agent)
    }

    fn make_session(&mut self, now: Now) -> SessionId {
        let id = EventId::new(now.store, self.sink.rng.next_u128()).to_string();
        SessionId::parse(&id).unwrap_or_else(|_| unreachable!("a UUID is a name"))
    }

    fn handle_invoke(&mut self, now: Now, link: LinkId, principal: Principal, ask: InvokeCommand) {
        if ask.agent_id.as_ref().is_some_and(|agent| self.is_unknown(agent)) {
            return self.sink.refuse(link, ask.request_id, ask.session, None, Refusal::not_found());
        }
        let is_placed = ask.session.is_some();
        let session = ask.session.unwrap_or_else(|| self.make_session(now));
        let followed = self.sink.links.get(link).map_or(0, |there| there.subscription_count());
        let key = SessionKey { tenant: principal.tenant.clone(), session };
        let follows = self.sink.links.get(link).is_some_and(|there| there.is_subscribed(&key));
        if followed >= limits::LINK_SUBSCRIPTIONS_MAX && !follows {
            let refusal = Refusal::new(Code::RateLimited, "too many subscriptions on one connection");
            return self.sink.refuse(link, ask.request_id, Some(key.session), None, refusal);
        }
        if let Some(over) = self.sink.links.exceeded_bound(link, &key) {
            let refusal = resources::over_share_refusal(over, "subscriptions");
            return self.sink.refuse(link, ask.request_id, Some(key.session), None, refusal);
        }
        let named = ask.message_id.or_else(|| MessageId::parse(ask.request_id.as_ref()?.as_str()).ok());
        let repeatable = is_placed && named.is_some();
        let message_id = named.unwrap_or_else(|| {
            let id = EventId::new(now.store, self.sink.rng.next_u128()).to_string();
            MessageId::parse(&id).unwrap_or_else(|_| unreachable!("a UUID is a label"))
        });
        let input = Arc::new(Input {
            run_id: RunId::derive(&key, &principal.user, &message_id),
            message_id,
            request_id: ask.request_id.clone(),
            user: principal.user.clone(),
            agent_id: ask.agent_id,
            message: ask.message,
            history: ask.history,
            // Acts like `enqueue` if the running agent does not accept steering (RX-4).
            strategy: ask.strategy.unwrap_or(Strategy::Steer),
            replaces: ask.replaces,
            metadata: ask.metadata,
            traceparent: ask.traceparent,
        });
        if input.fact_bytes() > limits::FACT_DATA_BYTES_MAX {
            let why = format!("message and metadata exceed the limit of {} bytes", limits::FACT_DATA_BYTES_MAX);
            let refusal = Refusal::new(Code::TooLarge, why);
            return self.sink.refuse(link, ask.request_id, Some(key.session), None, refusal);
        }
        let hash = input.body_hash();
        let ask_key = RequestKey::Input(input.run_id.clone(), hash);
        if planted(Mutant::AcceptEarly) {
            let run_id = input.run_id.clone();
            let message_id = input.message_id.clone();
            let session = key.session.clone();
            let request_id = ask.request_id.clone();
            let early = AcceptedTurn { request_id, session, run_id, message_id, duplicate: false };
            self.sink.notify(link, Notification::Reply(CommandReply::TurnAccepted(Box::new(early))));
        }
        let waiter = RequestWaiter { repeatable, ..RequestWaiter::new(now, link, ask.request_id) };
        self.put_request(now, ask_key, key, principal, waiter, RequestPayload::Input(input));
    }

    fn put_control(
        &mut self,
        now: Now,
        key: SessionKey,
        principal: Principal,
        waiter: RequestWaiter,
        what: ControlRequest,
    ) {
        let name = if let ControlRequest::Cancel { run_id: Some(run_id) } = &what {
            format!("cancel:{run_id}")
        } else {
            EventId::new(now.store, self.sink.rng.next_u128()).to_string()
        };
        let id = ControlId::parse(&name).unwrap_or_else(|_| unreachable!("a run id is a label"));
        let create = matches!(what, ControlRequest::Open { .. });
        let user = principal.user.clone();
        let request_id = waiter.request_id.clone();
        let control = ControlEntry { id: id.clone(), user, request_id, what };
        let what = RequestPayload::Control { control: Arc::new(control), create };
        let ask_key = RequestKey::Control(id, principal.clone());
        self.put_request(now, ask_key, key, principal, waiter, what);
    }

    fn put_request(
        &mut self,
        now: Now,
        ask_key: RequestKey,
        key: SessionKey,
        principal: Principal,
        waiter: RequestWaiter,
        what: RequestPayload,
    ) {
        let makes_work = matches!(&what, RequestPayload::Input(_) | RequestPayload::Control { create: true, .. });
        if makes_work
            && !self.requests.contains_key(&ask_key)
            && let Err(refusal) = self.check_sessions(&key, &principal)
        {
            return self.sink.refuse(waiter.link, waiter.request_id, Some(key.session), None, refusal);
        }
        if let Some(there) = self.sink.links.get_mut(waiter.link) {
            there.requests.insert(ask_key.clone());
        }
        if let Some(ask) = self.requests.get_mut(&ask_key) {
            ask.waiters.push(waiter);
        } else {
            let owner = OwnershipSnapshot::default();
            let place = None;
            self.requests_by_session.entry(key.clone()).or_default().insert(ask_key.clone());
            let waiters = vec![waiter];
            let in_hand = false;
            let doubt = None;
            let ask = PendingRequest {
                key,
                principal,
                payload: what,
                waiters,
                owner,
                place,
                offers: 0,
                accepted_by_owner: in_hand,
                unknown_since: doubt,
            };
            self.requests.insert(ask_key.clone(), ask);
        }
        self.submit_request(now, &ask_key);
    }

    /// Stores the request, or asks the store again for the owner.
    pub(super) fn submit_request(&mut self, now: Now, ask_key: &RequestKey) {
        let Some(ask) = self.requests.get(ask_key) else { return };
        let key = ask.key.clone();
        let principal = ask.principal.clone();
        let op = match (&ask.payload, ask_key) {
            (RequestPayload::Input(input), RequestKey::Input(_, hash)) => {
                Op::Accept { key, principal, input: Arc::clone(input), hash: *hash }
            }
            (RequestPayload::Control { control, create }, _) => {
                Op::Control { key, principal, control: Arc::clone(control), create: *create }
            }
            (RequestPayload::Input(_), RequestKey::Control(..)) => return,
        };
        self.sink.timers.set(Timer::Offer(ask_key.clone()), now.mono + OFFER_INTERVAL * 20);
        self.sink.store(op);
    }

    pub(super) fn handle_accepted(
        &mut self,
        now: Now,
        ask_key: &RequestKey,
        key: &SessionKey,
        what: RequestPayload,
        result: Result<Reply, StoreError>,
    ) {
        let wait = self.sink.jitter(limits::STORE_RETRY);
        if let Ok(Reply::Accepted(accepted)) = &result {
            self.handle_newer_epoch(now, key, accepted.owner.epoch);
        }
        let Some(ask) = self.requests.get_mut(ask_key) else {
            return self.handle_orphaned_reply(now, key, what, result);
        };
        match result {
            Ok(Reply::Accepted(accepted)) => {
                (ask.place, ask.owner) = (Some((accepted.place, accepted.prev)), accepted.owner);
                self.notify_accepted(now, ask_key, &accepted);
                self.forward_request(now, ask_key, &accepted);
            }
            // A store that refuses everything for now reveals nothing about an earlier attempt, which may have been
            // stored.
            Ok(Reply::Refused(refused)) if ask.unknown_since.is_none() || !refused.is_store_wide() => {
                self.refuse_request(ask_key, refusal_of(refused));
            }
            Err(StoreError::Unavailable) if ask.place.is_none() && ask.unknown_since.is_none() => {
                let why = "the store is unavailable; nothing was accepted, try again later";
                let refusal = Refusal::new(Code::StoreUnavailable, why);
                self.refuse_request(ask_key, refusal.retry_after(limits::STORE_RETRY_AFTER));
            }
            Ok(_) | Err(StoreError::Unknown | StoreError::Unavailable) => {
                let since = *ask.unknown_since.get_or_insert(now.mono);
                if ask.may_be_repeated() && now.mono - since >= limits::STORE_OUTCOME_TIMEOUT {
                    let why = "the store has not confirmed the request, which may have been accepted; repeat it with \
                               the same id";
                    let refusal = Refusal::new(Code::StoreUnavailable, why);
                    return self.refuse_request(ask_key, refusal.retry_after(limits::STORE_RETRY_AFTER));
                }
                self.sink.timers.set(Timer::Offer(ask_key.clone()), now.mono + wait);
            }
        }
    }

    /// Handles a store reply after every client has disconnected; a durable request is carried out all the same.
    fn handle_orphaned_reply(
        &mut self,
        now: Now,
        key: &SessionKey,
        what: RequestPayload,
        result: Result<Reply, StoreError>,
    ) {
        let Ok(Reply::Accepted(accepted)) = result else { return };
        let place = accepted.place;
        let prev = accepted.prev;
        let owner = accepted.owner;
        match owner.holder {
            _ if accepted.ended => {}
            // The store has notified the owner.
            Some(holder) if accepted.offer_receivers.is_some() => {
                if accepted.offer_receivers == Some(0) {
                    self.handle_publish_failed(now, holder.node);
                }
            }
            Some(holder) => {
                let item = match what {
                    RequestPayload::Input(input) => OfferedEntry::Input { place, prev, input },
                    RequestPayload::Control { control, .. } => OfferedEntry::Control { place, prev, control },
                };
                self.sink.send_peer(holder.node, PeerMessage::Offer { key: key.clone(), owner, item });
            }
            None => self.claim(now, key, owner),
        }
    }

    /// Reports the durable input to the clients and subscribes them to the session.
    fn notify_accepted(&mut self, now: Now, ask_key: &RequestKey, accepted: &store::Acceptance) {
        let Some(ask) = self.requests.get_mut(ask_key) else { return };
        let RequestPayload::Input(input) = ask.payload.clone() else { return };
        let key = ask.key.clone();
        let unanswered: Vec<_> = ask.waiters.iter_mut().filter(|waiter| !waiter.answered).collect();
        let mut answered_links = Vec::new();
        for waiter in unanswered {
            waiter.answered = true;
            self.sink.stats.accept_durations.record(now.mono - waiter.since);
            answered_links.push((waiter.link, waiter.request_id.clone()));
        }
        for (link, request_id) in answered_links {
            self.notify_turn_accepted(link, &key, &input, request_id, accepted.duplicate);
            let run_id = input.run_id.clone();
            let tail = accepted.tail;
            self.sink.push(DeliveryCommand::SubscribeSender { key: key.clone(), link, run_id, tail });
        }
    }

    pub(super) fn notify_turn_accepted(
        &mut self,
        link: LinkId,
        key: &SessionKey,
        input: &Input,
        request_id: Option<RequestId>,
        duplicate: bool,
    ) {
        self.sink.stats.accepted += 1;
        self.sink.stats.duplicates += u64::from(duplicate);
        let session = key.session.clone();
        let run_id = input.run_id.clone();
        let message_id = input.message_id.clone();
        let note = AcceptedTurn { request_id, session, run_id, message_id, duplicate };
        self.sink.notify(link, Notification::Reply(CommandReply::TurnAccepted(Box::new(note))));
    }

    /// Offers the request to the owner; without an owner, this node claims the session.
    fn forward_request(&mut self, now: Now, ask_key: &RequestKey, accepted: &store::Acceptance) {
        let Some(ask) = self.requests.get(ask_key) else { return };
        let key = ask.key.clone();
        let in_hand = ask.accepted_by_owner;
        if accepted.ended {
            self.complete_request(ask_key, false);
        } else if in_hand {
            self.remove_request(ask_key);
        } else if let Some(holder) = accepted.owner.holder {
            match accepted.offer_receivers {
                Some(receivers) => self.record_store_offer(now, ask_key, holder.node, receivers),
                None => self.send_offer(now, ask_key),
            }
        } else {
            let wait = self.sink.jitter(OFFER_INTERVAL * 4);
            self.sink.timers.set(Timer::Offer(ask_key.clone()), now.mono + wait);
            if self.drain.is_some() {
                self.offer_hand_off(&key, accepted.owner);
            } else {
                self.claim(now, &key, accepted.owner);
            }
        }
    }
}

pub(super) fn refusal_of(refused: StoreRefusal) -> Refusal {
    match refused {
        StoreRefusal::NotFound => Refusal::not_found(),
        StoreRefusal::Conflict => {
            Refusal::new(Code::IdempotencyConflict, "this message id was already used with a different body")
        }
        StoreRefusal::Closed => Refusal::new(Code::SessionClosed, "the session is closed; open it first"),
        StoreRefusal::Busy => {
            Refusal::new(Code::Busy, "a turn is already open in this session").retry_after(limits::INBOX_RETRY_AFTER)
        }
        StoreRefusal::TooMany => Refusal::new(Code::TooManyPending, "too many inputs of this session are waiting")
            .retry_after(limits::INBOX_RETRY_AFTER),
        StoreRefusal::Quota => {
            let why = "the quota of stored bytes is exhausted; delete sessions or ask the operator to raise it";
            Refusal::new(Code::QuotaExceeded, why).retry_after(limits::QUOTA_RETRY_AFTER)
        }
        StoreRefusal::Full => {
            Refusal::new(Code::StoreUnavailable, "the store is full").retry_after(limits::STORE_RETRY_AFTER)
        }
        StoreRefusal::ReadOnly => {
            let why = "the store is read-only for now; try again later";
            Refusal::new(Code::StoreUnavailable, why).retry_after(limits::STORE_RETRY_AFTER)
        }
        StoreRefusal::Forbidden => {
            let why = "the store denies access to this node; ask the operator to check its permissions";
            Refusal::new(Code::StoreUnavailable, why).retry_after(limits::STORE_RETRY_AFTER)
        }
        StoreRefusal::Damaged => {
            let why = "records of this session are damaged; the session is quarantined until an operator repairs \
                       the store";
            Refusal::new(Code::StoreDamaged, why)
        }
    }
}
