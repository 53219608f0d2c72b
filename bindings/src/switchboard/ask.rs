//! Client requests on their way: stored, offered to the session's owner, and kept until the owner has accepted
//! them.
use super::Switchboard;
use super::Timer;
use super::holdings;
use crate::channel::authority;
use crate::channel::command::{Command, Invoke, Target};
use crate::channel::note::{Accepted, Note};
use crate::peer::{Item, Words};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{
    AgentId, ControlId, EventId, LinkId, MessageId, Place, Principal, RequestId, RunId, Seen, SessionId,
    SessionKey,
};
use turnway_core::limits;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::protocol::input::{Ask as Asked, BodyHash, Control, Input, Strategy};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::store::{self, Op, Refused, Reply, StoreError};
use turnway_core::time::{Mono, Now};

/// Base interval between offers; the wait grows with the number of offers.
pub(super) const RING: Duration = Duration::from_millis(150);

/// The identity of a request: the same message from two links is one request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AskKey {
    /// An input, with its body's hash: another body is another request.
    Input(RunId, BodyHash),
    /// A control entry.
    Control(ControlId, Principal),
}

/// A request on its way to the session's owner.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) key: SessionKey,
    principal: Principal,
    pub(super) what: What,
    pub(super) askers: Vec<Asker>,
    pub(super) owner: Seen,
    pub(super) place: Option<(Place, Place)>,
    pub(super) rings: u32,
    /// The owner has confirmed the request before the store's reply arrived.
    pub(super) in_hand: bool,
    /// Time since which the outcome is unknown: an earlier attempt may have been stored, so "nothing was accepted"
    /// could be false.
    doubt: Option<Mono>,
}

impl Ask {
    /// Returns whether the outcome is unknown and every waiting client can safely repeat the request. A client that
    /// cannot would start another turn, so its request keeps waiting.
    fn may_be_asked_again(&self) -> bool {
        self.place.is_none() && !self.in_hand && self.askers.iter().all(|asker| asker.repeatable)
    }
}

#[derive(Clone, Debug)]
pub(super) enum What {
    Input(Arc<Input>),
    Control { control: Arc<Control>, create: bool },
}

#[derive(Debug)]
pub(super) struct Asker {
    pub(super) link: LinkId,
    pub(super) request_id: Option<RequestId>,
    pub(super) told: bool,
    /// The client wants an acknowledgement of the cancel.
    pub(super) receipt: bool,
    /// The client named the request, so a repetition is recognised.
    repeatable: bool,
    pub(super) since: Mono,
}

impl Asker {
    fn new(now: Now, link: LinkId, request_id: Option<RequestId>) -> Self {
        Self { link, request_id, told: false, receipt: false, repeatable: true, since: now.mono }
    }
}

impl Switchboard {
    pub(super) fn refuse(
        &mut self,
        link: LinkId,
        request_id: Option<RequestId>,
        session: Option<SessionId>,
        run_id: Option<RunId>,
        refusal: Refusal,
    ) {
        self.stats.refused.add(refusal.code as usize);
        self.note(link, Note::Refused { request_id, session, run_id, refusal });
    }

    pub(super) fn say(&mut self, now: Now, link: LinkId, command: Command) {
        let Some(there) = self.links.get(link) else { return };
        let (principal, busy) = (there.principal.clone(), there.is_busy(&command));
        let within = |session: SessionId| SessionKey { tenant: principal.tenant.clone(), session };
        let plain = |board: &mut Self, request_id, session, what| {
            let asker = Asker::new(now, link, request_id);
            board.control(now, within(session), principal.clone(), asker, what);
        };
        if let Err(refusal) = authority::permit(&principal, command.action()) {
            return self.refuse(link, command.request_id().cloned(), None, None, refusal);
        }
        if busy && command.may_be_busy() {
            return self.refuse_busy(link, command.request_id().cloned());
        }
        match command {
            Command::Subscribe(subscribe) => self.subscribe(link, subscribe),
            Command::Unsubscribe { session, .. } => self.unsubscribe(&within(session), link),
            Command::Look { request_id, session } => self.look_at(link, &within(session), request_id),
            Command::List { before, limit } => self.list(link, principal, before, limit),
            Command::Delete { session } => self.delete(link, within(session), principal),
            Command::Find { run_id } => self.find(link, principal, run_id),
            Command::Invoke(invoke) => self.invoke(now, link, principal, *invoke),
            Command::Open { request_id, session, agents, active } => {
                if agents.iter().chain(&active).any(|agent| self.is_unknown(agent)) {
                    return self.refuse(link, request_id, session, None, Refusal::not_found());
                }
                let asker = Asker { repeatable: session.is_some(), ..Asker::new(now, link, request_id) };
                let session = session.unwrap_or_else(|| self.make_session(now));
                self.control(now, within(session), principal, asker, Asked::Open { agents, active });
            }
            Command::Close { request_id, session } => plain(self, request_id, session, Asked::Close),
            Command::Members { request_id, session, wish } => plain(self, request_id, session, wish.into()),
            Command::Decide { request_id, session, handover_id, confirm } => {
                plain(self, request_id, session, Asked::Handover { handover_id, confirm });
            }
            Command::Cancel { request_id, target, receipt } => {
                let (session, run_id) = match target {
                    Target::Run(run_id) => (run_id.session(), Some(run_id)),
                    Target::Session(session) => (session, None),
                };
                let asker = Asker { receipt, ..Asker::new(now, link, request_id) };
                self.control(now, within(session), principal, asker, Asked::Cancel { run_id });
            }
        }
    }

    pub(super) fn refuse_busy(&mut self, link: LinkId, request_id: Option<RequestId>) {
        let refusal = Refusal::new(Code::RateLimited, "too many requests are waiting on this connection");
        self.refuse(link, request_id, None, None, refusal.retry_after(limits::STORE_RETRY_AFTER));
    }

    pub(super) fn is_unknown(&self, agent: &AgentId) -> bool {
        !self.directory.agents.contains_key(agent)
    }

    fn make_session(&mut self, now: Now) -> SessionId {
        let id = EventId::new(now.store, self.rng.next_u128()).to_string();
        SessionId::parse(&id).unwrap_or_else(|_| unreachable!("a UUID is a name"))
    }

    fn invoke(&mut self, now: Now, link: LinkId, principal: Principal, ask: Invoke) {
        if ask.agent_id.as_ref().is_some_and(|agent| self.is_unknown(agent)) {
            return self.refuse(link, ask.request_id, ask.session, None, Refusal::not_found());
        }
        let is_placed = ask.session.is_some();
        let session = ask.session.unwrap_or_else(|| self.make_session(now));
        let followed = self.links.get(link).map_or(0, |there| there.following());
        let key = SessionKey { tenant: principal.tenant.clone(), session };
        let follows = self.links.get(link).is_some_and(|there| there.follows(&key));
        if followed >= limits::LINK_SUBSCRIPTIONS_MAX && !follows {
            let refusal = Refusal::new(Code::RateLimited, "too many subscriptions on one connection");
            return self.refuse(link, ask.request_id, Some(key.session), None, refusal);
        }
        if let Some(over) = self.links.over(link, &key) {
            let refusal = holdings::refusal_of(over, "subscriptions");
            return self.refuse(link, ask.request_id, Some(key.session), None, refusal);
        }
        let named = ask.message_id.or_else(|| MessageId::parse(ask.request_id.as_ref()?.as_str()).ok());
        let repeatable = is_placed && named.is_some();
        let message_id = named.unwrap_or_else(|| {
            let id = EventId::new(now.store, self.rng.next_u128()).to_string();
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
            return self.refuse(link, ask.request_id, Some(key.session), None, refusal);
        }
        let hash = input.body_hash();
        let ask_key = AskKey::Input(input.run_id.clone(), hash);
        if planted(Mutant::AcceptEarly) {
            let (run_id, message_id) = (input.run_id.clone(), input.message_id.clone());
            let (session, request_id) = (key.session.clone(), ask.request_id.clone());
            let early = Accepted { request_id, session, run_id, message_id, duplicate: false };
            self.note(link, Note::Accepted(Box::new(early)));
        }
        let asker = Asker { repeatable, ..Asker::new(now, link, ask.request_id) };
        self.put(now, ask_key, key, principal, asker, What::Input(input));
    }

    fn control(&mut self, now: Now, key: SessionKey, principal: Principal, asker: Asker, what: Asked) {
        let name = if let Asked::Cancel { run_id: Some(run_id) } = &what {
            format!("cancel:{run_id}")
        } else {
            EventId::new(now.store, self.rng.next_u128()).to_string()
        };
        let id = ControlId::parse(&name).unwrap_or_else(|_| unreachable!("a run id is a label"));
        let create = matches!(what, Asked::Open { .. });
        let (user, request_id) = (principal.user.clone(), asker.request_id.clone());
        let control = Control { id: id.clone(), user, request_id, what };
        let what = What::Control { control: Arc::new(control), create };
        let ask_key = AskKey::Control(id, principal.clone());
        self.put(now, ask_key, key, principal, asker, what);
    }

    fn put(
        &mut self,
        now: Now,
        ask_key: AskKey,
        key: SessionKey,
        principal: Principal,
        asker: Asker,
        what: What,
    ) {
        let makes_work = matches!(&what, What::Input(_) | What::Control { create: true, .. });
        if makes_work
            && !self.asks.contains_key(&ask_key)
            && let Err(refusal) = self.check_sessions(&key, &principal)
        {
            return self.refuse(asker.link, asker.request_id, Some(key.session), None, refusal);
        }
        if let Some(there) = self.links.get_mut(asker.link) {
            there.asks.insert(ask_key.clone());
        }
        if let Some(ask) = self.asks.get_mut(&ask_key) {
            ask.askers.push(asker);
        } else {
            let (owner, place) = (Seen::default(), None);
            self.asks_of.entry(key.clone()).or_default().insert(ask_key.clone());
            let (askers, in_hand, doubt) = (vec![asker], false, None);
            let ask = Ask { key, principal, what, askers, owner, place, rings: 0, in_hand, doubt };
            self.asks.insert(ask_key.clone(), ask);
        }
        self.look(now, &ask_key);
    }

    /// Stores the request, or asks the store again for the owner.
    pub(super) fn look(&mut self, now: Now, ask_key: &AskKey) {
        let Some(ask) = self.asks.get(ask_key) else { return };
        let (key, principal) = (ask.key.clone(), ask.principal.clone());
        let op = match (&ask.what, ask_key) {
            (What::Input(input), AskKey::Input(_, hash)) => {
                Op::Accept { key, principal, input: Arc::clone(input), hash: *hash }
            }
            (What::Control { control, create }, _) => {
                Op::Control { key, principal, control: Arc::clone(control), create: *create }
            }
            (What::Input(_), AskKey::Control(..)) => return,
        };
        self.timers.set(Timer::Ring(ask_key.clone()), now.mono + RING * 20);
        self.store(op);
    }

    pub(super) fn accepted(
        &mut self,
        now: Now,
        ask_key: &AskKey,
        key: &SessionKey,
        what: What,
        result: Result<Reply, StoreError>,
    ) {
        let wait = self.jitter(limits::STORE_RETRY);
        if let Ok(Reply::Accepted(accepted)) = &result {
            self.outdone(now, key, accepted.owner.epoch);
        }
        let Some(ask) = self.asks.get_mut(ask_key) else {
            return self.deliver_orphan(now, key, what, result);
        };
        match result {
            Ok(Reply::Accepted(accepted)) => {
                (ask.place, ask.owner) = (Some((accepted.place, accepted.prev)), accepted.owner);
                self.tell_askers(now, ask_key, &accepted);
                self.onward(now, ask_key, &accepted);
            }
            // A store that refuses everything for now reveals nothing about an earlier attempt, which may have been
            // stored.
            Ok(Reply::Refused(refused)) if ask.doubt.is_none() || !refused.is_of_store() => {
                self.drop_ask(ask_key, refusal_of(refused));
            }
            Err(StoreError::Unavailable) if ask.place.is_none() && ask.doubt.is_none() => {
                let refusal =
                    Refusal::new(Code::StoreUnavailable, "the store is unavailable; nothing was accepted, try again later");
                self.drop_ask(ask_key, refusal.retry_after(limits::STORE_RETRY_AFTER));
            }
            Ok(_) | Err(StoreError::Unknown | StoreError::Unavailable) => {
                let since = *ask.doubt.get_or_insert(now.mono);
                if ask.may_be_asked_again() && now.mono - since >= limits::STORE_DOUBT {
                    let why = "the store has not confirmed the request, which may have been accepted; repeat it with the same id";
                    let refusal = Refusal::new(Code::StoreUnavailable, why);
                    return self.drop_ask(ask_key, refusal.retry_after(limits::STORE_RETRY_AFTER));
                }
                self.timers.set(Timer::Ring(ask_key.clone()), now.mono + wait);
            }
        }
    }

    /// Handles a store reply after every client has disconnected; a durable request is carried out all the same.
    fn deliver_orphan(&mut self, now: Now, key: &SessionKey, what: What, result: Result<Reply, StoreError>) {
        let Ok(Reply::Accepted(accepted)) = result else { return };
        let (place, prev, owner) = (accepted.place, accepted.prev, accepted.owner);
        match owner.holder {
            _ if accepted.ended => {}
            // The store has notified the owner.
            Some(holder) if accepted.rung.is_some() => {
                if accepted.rung == Some(0) {
                    self.unheard(now, holder.node);
                }
            }
            Some(holder) => {
                let item = match what {
                    What::Input(input) => Item::Input { place, prev, input },
                    What::Control { control, .. } => Item::Control { place, prev, control },
                };
                self.tell(now, holder.node, Words::Bell { key: key.clone(), owner, item });
            }
            None => self.claim(now, key, owner),
        }
    }

    /// Reports the durable input to the clients and subscribes them to the session.
    fn tell_askers(&mut self, now: Now, ask_key: &AskKey, accepted: &store::Accepted) {
        let Some(ask) = self.asks.get_mut(ask_key) else { return };
        let What::Input(input) = ask.what.clone() else { return };
        let key = ask.key.clone();
        let untold: Vec<_> = ask.askers.iter_mut().filter(|asker| !asker.told).collect();
        let mut told = Vec::new();
        for asker in untold {
            asker.told = true;
            self.stats.accepting.add(now.mono - asker.since);
            told.push((asker.link, asker.request_id.clone()));
        }
        for (link, request_id) in told {
            self.note_accepted(link, &key, &input, request_id, accepted.duplicate);
            self.follow(&key, link, &input.run_id, accepted.tail);
        }
    }

    pub(super) fn note_accepted(
        &mut self,
        link: LinkId,
        key: &SessionKey,
        input: &Input,
        request_id: Option<RequestId>,
        duplicate: bool,
    ) {
        self.stats.accepted += 1;
        self.stats.duplicates += u64::from(duplicate);
        let (session, run_id, message_id) =
            (key.session.clone(), input.run_id.clone(), input.message_id.clone());
        let note = Accepted { request_id, session, run_id, message_id, duplicate };
        self.note(link, Note::Accepted(Box::new(note)));
    }

    /// Offers the request to the owner; without an owner, this node claims the session.
    fn onward(&mut self, now: Now, ask_key: &AskKey, accepted: &store::Accepted) {
        let Some(ask) = self.asks.get(ask_key) else { return };
        let (key, in_hand) = (ask.key.clone(), ask.in_hand);
        if accepted.ended {
            self.finish(ask_key, false);
        } else if in_hand {
            self.remove_ask(ask_key);
        } else if let Some(holder) = accepted.owner.holder {
            match accepted.rung {
                Some(heard) => self.was_rung(now, ask_key, holder.node, heard),
                None => self.ring(now, ask_key),
            }
        } else {
            let wait = self.jitter(RING * 4);
            self.timers.set(Timer::Ring(ask_key.clone()), now.mono + wait);
            if self.drain.is_some() {
                self.offer(now, &key, accepted.owner);
            } else {
                self.claim(now, &key, accepted.owner);
            }
        }
    }
}

pub(super) fn refusal_of(refused: Refused) -> Refusal {
    match refused {
        Refused::NotFound => Refusal::not_found(),
        Refused::Conflict => {
            Refusal::new(Code::IdempotencyConflict, "this message id was already used with a different body")
        }
        Refused::Closed => Refusal::new(Code::SessionClosed, "the session is closed; open it first"),
        Refused::Busy => Refusal::new(Code::Busy, "a turn is already open in this session").retry_after(limits::INBOX_RETRY_AFTER),
        Refused::TooMany => Refusal::new(Code::TooManyPending, "too many inputs of this session are waiting")
            .retry_after(limits::INBOX_RETRY_AFTER),
        Refused::Quota => {
            let why = "the quota of stored bytes is exhausted; delete sessions or ask the operator to raise it";
            Refusal::new(Code::QuotaExceeded, why).retry_after(limits::QUOTA_RETRY_AFTER)
        }
        Refused::Full => Refusal::new(Code::StoreUnavailable, "the store is full")
            .retry_after(limits::STORE_RETRY_AFTER),
        Refused::ReadOnly => Refusal::new(Code::StoreUnavailable, "the store is read-only for now; try again later")
            .retry_after(limits::STORE_RETRY_AFTER),
        Refused::Forbidden => {
            let why = "the store denies access to this node; ask the operator to check its permissions";
            Refusal::new(Code::StoreUnavailable, why).retry_after(limits::STORE_RETRY_AFTER)
        }
        Refused::Damaged => {
            Refusal::new(Code::StoreDamaged, "records of this session are damaged; the session is disabled")
        }
    }
}
