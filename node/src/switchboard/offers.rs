//! Durable requests: offered to their owner until it accepts them, and answered at their end.
use super::Switchboard;
use super::effect::DeliveryCommand;
use super::requests::{OFFER_INTERVAL, PendingRequest, RequestKey, RequestPayload, RequestWaiter};
use super::sink::Timer;
use super::snapshot_waiters::SnapshotPurpose;
use std::collections::BTreeSet;
use std::sync::Arc;
use turnway_core::id::{ControlId, Epoch, LinkId, NodeId, OwnershipSnapshot, Principal, RunId, SessionKey};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::entry::{Entry, Fact, InputFact, RunFact};
use turnway_core::protocol::history::History;
use turnway_core::protocol::input::{ControlRequest, Input};
use turnway_core::protocol::refusal::Refusal;
use turnway_core::shrink::Shrink;
use turnway_core::time::Now;
use turnway_wire::channel::notification::{CommandReply, Notification};
use turnway_wire::peer::{OfferedEntry, PeerMessage};

/// Number of offers after which the store is asked for the owner again.
const OFFERS_PER_LOOKUP: u32 = 4;

impl Switchboard {
    /// Offers a request to its owner; after several offers, asks the store again for the owner.
    pub(super) fn send_offer(&mut self, now: Now, ask_key: &RequestKey) {
        let wait = self.sink.jitter(OFFER_INTERVAL);
        let Some(ask) = self.requests.get_mut(ask_key) else { return };
        ask.offers += 1;
        let (Some((place, prev)), Some(holder)) = (ask.place, ask.owner.holder) else {
            return self.submit_request(now, ask_key);
        };
        if ask.offers.is_multiple_of(OFFERS_PER_LOOKUP) {
            return self.submit_request(now, ask_key);
        }
        let item = match &ask.payload {
            RequestPayload::Input(input) => OfferedEntry::Input { place, prev, input: Arc::clone(input) },
            RequestPayload::Control { control, .. } => {
                OfferedEntry::Control { place, prev, control: Arc::clone(control) }
            }
        };
        let key = ask.key.clone();
        let owner = ask.owner;
        self.sink.timers.set(Timer::Offer(ask_key.clone()), now.mono + wait * ask.offers.min(20));
        if holder.node != self.me {
            self.sink.timers.set_earlier(Timer::Probe, now.mono + limits::PROBE_INTERVAL);
        }
        self.sink.send_peer(holder.node, PeerMessage::Offer { key, owner, item });
    }

    /// Records that the store itself notified the owner when it accepted the request; the answer is awaited as
    /// after any offer.
    pub(super) fn record_store_offer(&mut self, now: Now, ask_key: &RequestKey, node: NodeId, receivers: u32) {
        let wait = self.sink.jitter(OFFER_INTERVAL);
        let Some(ask) = self.requests.get_mut(ask_key) else { return };
        ask.offers += 1;
        self.sink.timers.set(Timer::Offer(ask_key.clone()), now.mono + wait * ask.offers.min(20));
        self.sink.timers.set_earlier(Timer::Probe, now.mono + limits::PROBE_INTERVAL);
        if receivers == 0 {
            self.handle_publish_failed(now, node);
        }
    }

    /// Sets the owner of every request of a session, and offers the requests to it.
    pub(super) fn offer_all(&mut self, now: Now, key: &SessionKey, owner: OwnershipSnapshot) {
        for ask_key in self.requests_by_session.get(key).cloned().unwrap_or_default() {
            if let Some(ask) = self.requests.get_mut(&ask_key).filter(|ask| ask.place.is_some()) {
                ask.owner = owner;
                self.send_offer(now, &ask_key);
            }
        }
    }

    /// Handles a lost claim: another node is the owner, or was until it died.
    pub(super) fn handle_claim_lost(&mut self, now: Now, key: &SessionKey, owner: OwnershipSnapshot) {
        self.delivery.set_newer_owner(key, owner);
        // If the store lost a claim, a late copy of an older one may have won; then no other node would look after
        // a session whose named owner is alive. If this node is named, it claims the session; otherwise it tells
        // the named node.
        let Some(holder) = owner.holder.filter(|holder| holder.node != self.me) else {
            return self.claim(now, key, owner);
        };
        self.takeover.add_node(holder.node);
        self.offer_all(now, key, owner);
        self.sink.send_peer(holder.node, PeerMessage::HandOff { key: key.clone(), released: owner });
    }

    /// Handles the message of a supposed owner that does not own the session: the session is free.
    pub(super) fn handle_not_owner(&mut self, now: Now, key: &SessionKey, owner: OwnershipSnapshot) {
        let mut asks =
            self.requests_by_session.get(key).into_iter().flatten().filter_map(|ask_key| self.requests.get(ask_key));
        if asks.any(|ask| ask.owner == owner) {
            self.claim(now, key, owner);
        }
    }

    /// Handles a dead node: claims its sessions with requests or open turns here.
    pub(super) fn handle_node_died(&mut self, now: Now, node: NodeId) {
        let of = |owner: OwnershipSnapshot| owner.holder.is_some_and(|holder| holder.node == node);
        let requested = self.requests.values().filter(|ask| of(ask.owner)).map(|ask| (ask.key.clone(), ask.owner));
        let shown = self.delivery.open_sessions_of(node);
        for (key, owner) in requested.chain(shown).collect::<Vec<_>>() {
            self.claim(now, &key, owner);
        }
    }

    pub(super) fn remove_request(&mut self, ask_key: &RequestKey) -> Option<PendingRequest> {
        let ask = self.requests.remove(ask_key)?;
        self.sink.timers.clear(&Timer::Offer(ask_key.clone()));
        for waiter in &ask.waiters {
            if let Some(there) = self.sink.links.get_mut(waiter.link) {
                if !planted(Planted::AsksKept) {
                    there.requests.remove(ask_key);
                }
                there.requests.shrink_if_empty();
            }
        }
        if let Some(asks) = self.requests_by_session.get_mut(&ask.key) {
            asks.remove(ask_key);
            if asks.is_empty() {
                self.requests_by_session.remove(&ask.key);
            }
        }
        Some(ask)
    }

    pub(super) fn refuse_request(&mut self, ask_key: &RequestKey, refusal: Refusal) {
        let Some(ask) = self.remove_request(ask_key) else { return };
        let run_id = match &ask.payload {
            RequestPayload::Input(_) => None,
            RequestPayload::Control { control, .. } => match &control.what {
                ControlRequest::Cancel { run_id } => run_id.clone(),
                ControlRequest::Open { .. }
                | ControlRequest::Close
                | ControlRequest::Switch { .. }
                | ControlRequest::Invite { .. }
                | ControlRequest::Remove { .. }
                | ControlRequest::Handover { .. } => None,
            },
        };
        for waiter in ask.waiters.into_iter().filter(|waiter| !waiter.answered) {
            let session = Some(ask.key.session.clone());
            self.sink.refuse(waiter.link, waiter.request_id, session, run_id.clone(), refusal.clone());
        }
    }

    /// Handles the owner's confirmation of an input.
    pub(super) fn handle_input_accepted(&mut self, run_id: &RunId) {
        for ask_key in self.requests_of_run(run_id) {
            let Some(ask) = self.requests.get_mut(&ask_key) else { continue };
            if ask.waiters.iter().all(|waiter| waiter.answered) {
                self.remove_request(&ask_key);
            } else {
                ask.accepted_by_owner = true;
            }
        }
    }

    fn requests_of_run(&self, run_id: &RunId) -> Vec<RequestKey> {
        let all = RequestKey::Input(run_id.clone(), [0; 32])..=RequestKey::Input(run_id.clone(), [255; 32]);
        self.requests.range(all).map(|(ask_key, _)| ask_key.clone()).collect()
    }

    /// Handles the durable answer to a control entry.
    pub(super) fn handle_control_answered(&mut self, control: &ControlId, shown: bool) {
        let named = |ask_key: &RequestKey| matches!(ask_key, RequestKey::Control(id, _) if id == control);
        let first = RequestKey::Control(control.clone(), Principal::first());
        let matching = self.requests.range(first..).map(|(ask_key, _)| ask_key).take_while(|ask_key| named(ask_key));
        for ask_key in matching.cloned().collect::<Vec<_>>() {
            self.complete_request(&ask_key, shown);
        }
    }

    /// Completes a request and answers its clients. `shown`: a fact reports the result to the session's
    /// subscribers.
    pub(super) fn complete_request(&mut self, ask_key: &RequestKey, shown: bool) {
        let Some(ask) = self.remove_request(ask_key) else { return };
        let RequestPayload::Control { control, .. } = &ask.payload else { return };
        for waiter in ask.waiters {
            match &control.what {
                ControlRequest::Open { .. } => self.answer_with_snapshot(&ask.key, waiter, SnapshotPurpose::Open),
                ControlRequest::Switch { .. } | ControlRequest::Invite { .. } | ControlRequest::Remove { .. } => {
                    self.answer_with_snapshot(&ask.key, waiter, SnapshotPurpose::Members);
                }
                ControlRequest::Handover { handover_id, .. } => {
                    self.answer_with_snapshot(&ask.key, waiter, SnapshotPurpose::Handover(*handover_id));
                }
                ControlRequest::Close => {
                    let follows = self.sink.links.get(waiter.link).is_some_and(|link| link.is_subscribed(&ask.key));
                    if !(shown && follows) {
                        let request_id = waiter.request_id;
                        let session = ask.key.session.clone();
                        self.sink
                            .notify(waiter.link, Notification::Reply(CommandReply::Closed { request_id, session }));
                    }
                }
                ControlRequest::Cancel { .. } if !waiter.wants_receipt => {}
                ControlRequest::Cancel { run_id } => {
                    let request_id = waiter.request_id;
                    let session = ask.key.session.clone();
                    let run_id = run_id.clone();
                    self.sink.notify(
                        waiter.link,
                        Notification::Reply(CommandReply::CancelAccepted { request_id, session, run_id }),
                    );
                }
            }
        }
    }

    /// Answers a client with the session's state after its request.
    fn answer_with_snapshot(&mut self, key: &SessionKey, waiter: RequestWaiter, purpose: SnapshotPurpose) {
        let RequestWaiter { link, request_id, .. } = waiter;
        self.sink.push(DeliveryCommand::AwaitState { key: key.clone(), link, request_id, purpose });
    }

    pub(super) fn forget_waiters(&mut self, link: LinkId, asks: BTreeSet<RequestKey>) {
        // A request is dropped with its last client; a stored one is found by its owner or by a sweep.
        for ask_key in asks {
            let Some(ask) = self.requests.get_mut(&ask_key) else { continue };
            ask.waiters.retain(|waiter| waiter.link != link);
            if ask.waiters.is_empty() {
                self.remove_request(&ask_key);
            }
        }
    }

    /// Releases the acceptance of turns whose first facts arrive, which proves their durability, so that no link
    /// sees a part of a turn before `turn_accepted` (protocol.md §1.3).
    pub(super) fn release_acceptances(&mut self, now: Now, facts: &[(Epoch, Arc<Entry>)]) {
        for (_, entry) in facts {
            let Some(run_id) = entry.run_id.as_ref().filter(|_| !self.requests.is_empty()) else { continue };
            if let Fact::Input(InputFact::UserMessage { .. }) = &entry.fact {
                for ask_key in self.requests_of_run(run_id) {
                    self.release_acceptance(now, &ask_key, &entry.fact);
                }
            }
            if matches!(entry.fact, Fact::Run(RunFact::Started { .. })) || entry.fact.is_terminal() {
                self.handle_input_accepted(run_id);
            }
        }
    }

    fn release_acceptance(&mut self, now: Now, ask_key: &RequestKey, fact: &Fact) {
        let Some(ask) = self.requests.get_mut(ask_key) else { return };
        let RequestPayload::Input(input) = ask.payload.clone() else { return };
        if !records_input(&input, fact) {
            return;
        }
        let key = ask.key.clone();
        let links = &self.sink.links;
        let follows = |link: LinkId| links.get(link).is_some_and(|there| there.is_subscribed(&key));
        let mut answered_links = Vec::new();
        for waiter in ask.waiters.iter_mut().filter(|waiter| !waiter.answered && follows(waiter.link)) {
            waiter.answered = true;
            self.sink.stats.accept_durations.record(now.mono - waiter.since);
            answered_links.push((waiter.link, waiter.request_id.clone()));
        }
        for (link, request_id) in answered_links {
            self.notify_turn_accepted(link, &key, &input, request_id, false);
        }
    }
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
