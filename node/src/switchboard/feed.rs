//! The sessions that this node subscribes to: subscribes, reads the log, and then lets each link follow from its
//! own cursor.
use super::requests::refusal_of;
use super::resources;
use super::state_reads::ReadTicket;
use super::subscription::{Subscription, SubscriptionMode, session_snapshot};
use super::{SnapshotPurpose, SnapshotWaiter, Switchboard, Timer};
use std::collections::BTreeMap;
use turnway_core::id::{
    Cursor, Epoch, LinkId, ListenStamp, OwnershipSnapshot, RequestId, RunId, Seq, SessionKey, UserId,
};
use turnway_core::limits;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::session::{SessionPhase, State};
use turnway_core::store::{Op, SessionView, StoreRefusal};
use turnway_core::time::Now;
use turnway_wire::channel::authority::{ClientOperation, authorize};
use turnway_wire::channel::command::SubscribeCommand;
use turnway_wire::channel::notification::{CommandReply, HandoverReply, MembersReply, Notification};
use turnway_wire::peer::PeerMessage;

/// The stage of a feed on its way to a known state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FeedStage {
    /// Checking whether its links may read the session.
    Checking,
    /// Registering this node's subscription in the store.
    Subscribing,
    /// Reading the present state.
    Reading,
    /// The state is known up to the head.
    Live,
}

/// A session that this node subscribes to.
#[derive(Debug)]
pub(super) struct Feed {
    pub(super) stage: FeedStage,
    /// The session's state after every fact up to the head, which is `state.tail`.
    pub(super) state: State,
    pub(super) user: Option<UserId>,
    /// Boxed: a B-tree node has room for eleven entries, and most sessions have one link.
    pub(super) subs: BTreeMap<LinkId, Box<Subscription>>,
    pub(super) stamp: ListenStamp,
    /// The last fact that this node knows to exist.
    pub(super) known_end: Seq,
    /// The newest epoch seen; text of older epochs is dropped.
    pub(super) epoch: Epoch,
    pub(super) owner: OwnershipSnapshot,
    /// Number of the view at which the subscription was registered; only a state that was read later is used.
    subscribed_view: u64,
    /// Reads in flight, by their start.
    pub(super) reads: BTreeMap<Seq, LogRead>,
}

/// A read of the log in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LogRead {
    /// The known end of the log when the read started.
    pub(super) known_end: Seq,
    /// The store has lost facts since, and the reply may contain them.
    pub(super) stale: bool,
}

impl Feed {
    fn new(stage: FeedStage) -> Self {
        Self {
            stage,
            state: State::default(),
            user: None,
            subs: BTreeMap::new(),
            stamp: ListenStamp(0),
            known_end: Seq(0),
            epoch: Epoch(0),
            owner: OwnershipSnapshot::default(),
            subscribed_view: 0,
            reads: BTreeMap::new(),
        }
    }
    /// Returns whether a link may lack some text.
    pub(super) fn lacks_text(&self) -> bool {
        self.subs
            .values()
            .any(|sub| sub.mode == SubscriptionMode::Live && sub.texts.values().any(|pos| !pos.is_current))
    }

    pub(super) fn head(&self) -> Cursor {
        self.state.tail
    }
}

impl Switchboard {
    // === requests of links ===

    pub(super) fn handle_subscribe(&mut self, link: LinkId, ask: SubscribeCommand) {
        let Some(there) = self.sink.links.get_mut(link) else { return };
        let key = SessionKey { tenant: there.principal.tenant.clone(), session: ask.session };
        if there.subscription_count() >= limits::LINK_SUBSCRIPTIONS_MAX && !there.is_subscribed(&key) {
            let refusal = Refusal::new(Code::RateLimited, "too many subscriptions on one connection");
            return self.sink.refuse(link, ask.request_id, Some(key.session), None, refusal);
        }
        if let Err(over) = self.sink.links.subscribe(link, &key) {
            let refusal = resources::over_share_refusal(over, "subscriptions");
            return self.sink.refuse(link, ask.request_id, Some(key.session), None, refusal);
        }
        let mut sub = Subscription::joining(ask.after_seq.map(|seq| (seq, ask.after_epoch)));
        if let Some(feed) = self.feeds.get_mut(&key) {
            let waiting = feed.subs.get(&link).map_or(0, |before| before.pending_requests.len());
            if waiting >= limits::LINK_REQUESTS_MAX {
                return self.sink.refuse_busy(link, ask.request_id);
            }
            sub.pending_requests = feed.subs.remove(&link).map(|before| before.pending_requests).unwrap_or_default();
        }
        sub.pending_requests.push(ask.request_id);
        sub.types = ask.types;
        let texts = ask
            .runs
            .into_iter()
            .map(|run| (run.run_id, super::subscription::TextPosition::unconfirmed(run.attempt, run.offset)));
        sub.texts = texts.collect();
        self.add_subscription(&key, link, sub, FeedStage::Checking);
    }

    /// Subscribes the sender of a message to its session, from directly before the first fact of its turn.
    pub(super) fn subscribe_sender(&mut self, key: &SessionKey, link: LinkId, run_id: &RunId, tail: Cursor) {
        let Some(there) = self.sink.links.get_mut(link) else { return };
        if there.is_subscribed(key) || there.subscription_count() >= limits::LINK_SUBSCRIPTIONS_MAX {
            return;
        }
        if self.sink.links.subscribe(link, key).is_err() {
            return;
        }
        let epoch = (tail.seq > Seq(0)).then_some(tail.epoch);
        let mut sub = Subscription::joining(Some((tail.seq, epoch)));
        sub.hold_until_run = Some(run_id.clone());
        self.add_subscription(key, link, sub, FeedStage::Subscribing);
    }

    fn add_subscription(&mut self, key: &SessionKey, link: LinkId, mut sub: Subscription, stage: FeedStage) {
        sub.view_number = self.view_number(key);
        if let Some(feed) = self.feeds.get_mut(key) {
            feed.subs.insert(link, Box::new(sub));
            let principal = self.sink.links.get(link).map(|there| &there.principal);
            let known = principal.is_some_and(|who| authorize(who, ClientOperation::Read, feed.user.as_ref()).is_ok());
            match feed.stage {
                // A refusal takes the same path through the store as one for an unknown session, so that its timing
                // reveals nothing (S-06).
                FeedStage::Live if !known && !planted(Mutant::ReadUnchecked) => self.read_state(key),
                FeedStage::Live => self.start_link(key, link, None),
                // A reply to an earlier request may not know the session yet.
                FeedStage::Checking => self.read_state(key),
                FeedStage::Subscribing | FeedStage::Reading => {}
            }
            return;
        }
        let mut feed = Feed::new(stage);
        feed.subs.insert(link, Box::new(sub));
        self.feeds.insert(key.clone(), Box::new(feed));
        match stage {
            FeedStage::Subscribing => self.register_subscription(key),
            FeedStage::Checking | FeedStage::Reading | FeedStage::Live => self.read_state(key),
        }
    }

    pub(super) fn unsubscribe(&mut self, key: &SessionKey, link: LinkId) {
        self.sink.links.unsubscribe(link, key);
        let Some(feed) = self.feeds.get_mut(key) else { return };
        feed.subs.remove(&link);
        if feed.subs.is_empty() {
            self.drop_feed(key);
        }
    }

    fn drop_feed(&mut self, key: &SessionKey) {
        let Some(feed) = self.feeds.remove(key) else { return };
        self.sink.timers.clear(&Timer::Read(key.clone()));
        self.sink.timers.clear(&Timer::FetchText(key.clone()));
        if feed.stage != FeedStage::Checking {
            self.deregister_subscription(key);
        }
    }

    // === subscribe, then read ===

    pub(super) fn register_subscription(&mut self, key: &SessionKey) {
        self.stamp.0 += 1;
        let node = self.me;
        let stamp = self.stamp;
        if let Some(feed) = self.feeds.get_mut(key) {
            feed.stamp = stamp;
            self.sink.store(Op::Listen { key: key.clone(), node, stamp });
        }
    }

    pub(super) fn deregister_subscription(&mut self, key: &SessionKey) {
        let node = self.me;
        let stamp = self.stamp;
        self.sink.store(Op::Unlisten { key: key.clone(), node, stamp });
    }

    /// Registers every subscription again, because it may have been removed while this node had no lease, or lost
    /// by the store.
    pub(super) fn register_all_again(&mut self) {
        for key in self.feeds.keys().cloned().collect::<Vec<_>>() {
            if self.feeds.get(&key).is_some_and(|feed| feed.stage != FeedStage::Checking) {
                self.register_subscription(&key);
            }
        }
    }

    pub(super) fn handle_registered(
        &mut self,
        now: Now,
        key: &SessionKey,
        stamp: ListenStamp,
        owner: OwnershipSnapshot,
    ) {
        self.handle_newer_epoch(now, key, owner.epoch);
        let number = self.view_number(key);
        let Some(feed) = self.feeds.get_mut(key).filter(|feed| feed.stamp == stamp) else { return };
        feed.owner = owner;
        feed.subscribed_view = number;
        if feed.stage != FeedStage::Live {
            feed.stage = FeedStage::Reading;
        }
        // Only a state that is read after the registration leaves no gap.
        self.read_state(key);
        if let Some(holder) = owner.holder {
            self.send_peer(now, holder.node, PeerMessage::Subscribed { key: key.clone(), stamp });
        }
    }

    /// Refuses a feed because too many nodes subscribe to the session.
    pub(super) fn refuse_registration(&mut self, key: &SessionKey) {
        self.refuse_feed(key, &Refusal::new(Code::RateLimited, "too many nodes subscribe to this session"));
    }

    /// Refuses every request that waits for a session with damaged records.
    pub(super) fn refuse_damaged(&mut self, key: &SessionKey) {
        let refusal = refusal_of(StoreRefusal::Damaged);
        self.view_reads.remove(key);
        self.rebuilds.remove(key);
        for SnapshotWaiter { link, request_id, .. } in self.snapshot_waiters.remove(key).unwrap_or_default() {
            self.sink.refuse(link, request_id, Some(key.session.clone()), None, refusal.clone());
        }
        self.refuse_feed(key, &refusal);
    }

    /// Drops a feed, and tells each of its links the reason.
    fn refuse_feed(&mut self, key: &SessionKey, refusal: &Refusal) {
        let Some(feed) = self.feeds.remove(key) else { return };
        for (link, sub) in feed.subs {
            self.sink.links.unsubscribe(link, key);
            self.refuse_subscription(link, key, sub.pending_requests, refusal);
        }
    }

    /// Handles a session's present state.
    pub(super) fn handle_state(
        &mut self,
        now: Now,
        key: &SessionKey,
        view: &SessionView,
        state: State,
        ticket: ReadTicket,
    ) {
        self.handle_newer_epoch(now, key, view.owner.epoch);
        if view.owner.holder.is_some_and(|holder| holder.node == self.me) {
            // The store names this node as owner: it has lost this node's release.
            self.claim(now, key, view.owner);
        }
        self.answer_snapshot_waiters(key, view, &state, ticket.number);
        self.check_access(key, view, ticket.number);
        let Some(feed) = self.feeds.get_mut(key) else { return };
        (feed.user, feed.known_end) = (view.user.clone(), feed.known_end.max(view.tail.seq));
        match feed.stage {
            FeedStage::Checking if feed.subs.values().all(|sub| sub.view_number >= ticket.number) => return,
            FeedStage::Checking => {
                feed.stage = FeedStage::Subscribing;
                return self.register_subscription(key);
            }
            FeedStage::Subscribing => return,
            FeedStage::Reading if feed.subscribed_view >= ticket.number => return,
            FeedStage::Reading => {
                feed.stage = FeedStage::Live;
                feed.state = state;
                feed.epoch = feed.epoch.max(view.tail.epoch);
                if feed.head().seq < feed.known_end {
                    // The link was told of the facts while the state was being read; they are not sent again.
                    self.catch_up(key);
                }
            }
            FeedStage::Live if view.tail.seq < ticket.known_end && !planted(Mutant::CursorBare) => {
                return self.resync_feed(key);
            }
            FeedStage::Live => {
                // A link may have seen more facts at another node than this node knew until now.
                let after = view.snapshot.as_ref().map_or(Cursor::default(), |snapshot| snapshot.at);
                self.handle_facts(now, key, after, &view.facts);
            }
        }
        self.start_links(key, Some((view.tail, ticket.number)));
        self.watch_owner(now, key, view.owner);
        self.schedule_catch_up(now, key);
    }

    /// Answers links without access as if the session did not exist, and removes their subscriptions.
    fn check_access(&mut self, key: &SessionKey, view: &SessionView, number: u64) {
        let Some(feed) = self.feeds.get_mut(key) else { return };
        let mut denied = Vec::new();
        for (link, sub) in feed.subs.iter().filter(|(_, sub)| sub.view_number < number) {
            let principal = self.sink.links.get(*link).map(|there| &there.principal);
            let verdict = principal.map(|principal| authorize(principal, ClientOperation::Read, view.user.as_ref()));
            if let Some(Err(refusal)) = verdict.filter(|_| !planted(Mutant::ReadUnchecked)) {
                denied.push((*link, sub.pending_requests.clone(), refusal));
            }
        }
        for (link, greets, refusal) in denied {
            self.unsubscribe(key, link);
            self.refuse_subscription(link, key, greets, &refusal);
        }
    }

    pub(super) fn refuse_subscription(
        &mut self,
        link: LinkId,
        key: &SessionKey,
        mut greets: Vec<Option<RequestId>>,
        refusal: &Refusal,
    ) {
        if greets.is_empty() {
            greets.push(None);
        }
        for request_id in greets {
            self.sink.refuse(link, request_id, Some(key.session.clone()), None, refusal.clone());
        }
    }

    /// Checks every link's cursor against the store again, because the store lacks facts that were shown.
    pub(super) fn resync_feed(&mut self, key: &SessionKey) {
        let number = self.view_number(key);
        let Some(feed) = self.feeds.get_mut(key) else { return };
        (feed.stage, feed.subscribed_view) = (FeedStage::Reading, number);
        feed.known_end = Seq(0);
        feed.reads.values_mut().for_each(|fetch| fetch.stale = true);
        for sub in feed.subs.values_mut() {
            if !matches!(sub.mode, SubscriptionMode::Joining { .. }) {
                let Cursor { seq, epoch } = sub.cursor;
                sub.mode = SubscriptionMode::Joining { requested_cursor: Some((seq, Some(epoch))) };
            }
        }
        self.sink.stats.resyncs += 1;
        self.read_state(key);
    }

    /// Answers links that wait for the session's state.
    fn answer_snapshot_waiters(&mut self, key: &SessionKey, view: &SessionView, state: &State, number: u64) {
        let waiting = self.snapshot_waiters.remove(key).unwrap_or_default();
        let (ready, early): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|waiting| waiting.view_number < number);
        if !early.is_empty() {
            self.snapshot_waiters.insert(key.clone(), early);
        }
        for SnapshotWaiter { link, request_id, purpose, .. } in ready {
            let Some(there) = self.sink.links.get(link) else { continue };
            let verdict = authorize(&there.principal, ClientOperation::Read, view.user.as_ref());
            let opened = verdict.and_then(|()| match (state.phase, purpose) {
                (SessionPhase::New, SnapshotPurpose::Open) => {
                    Err(Refusal::new(Code::SessionOpenFailed, "no agent is configured"))
                }
                (_, SnapshotPurpose::Handover(id)) if state.handovers.status(id).is_none() => Err(Refusal::not_found()),
                (SessionPhase::New, SnapshotPurpose::Get | SnapshotPurpose::Members | SnapshotPurpose::Handover(_))
                | (SessionPhase::Open | SessionPhase::Closing | SessionPhase::Closed, _) => Ok(()),
            });
            let status = match purpose {
                SnapshotPurpose::Handover(id) => state.handovers.status(id).map(|status| (id, status)),
                SnapshotPurpose::Open | SnapshotPurpose::Get | SnapshotPurpose::Members => None,
            };
            match (opened, status) {
                (Ok(()), Some((handover_id, status))) => {
                    let session = key.session.clone();
                    let decided = HandoverReply { request_id, session, handover_id, standing: status };
                    self.sink.notify(link, Notification::Reply(CommandReply::Handover(Box::new(decided))));
                }
                (Ok(()), None) if purpose == SnapshotPurpose::Members => {
                    let agents = state.agents.clone();
                    let active_agent = state.active.clone();
                    let members = MembersReply { request_id, session: key.session.clone(), agents, active_agent };
                    self.sink.notify(link, Notification::Reply(CommandReply::Members(Box::new(members))));
                }
                (Ok(()), None) => {
                    self.sink.notify(
                        link,
                        Notification::Reply(CommandReply::Opened {
                            request_id,
                            snapshot: session_snapshot(key, state),
                        }),
                    );
                }
                (Err(refusal), _) => self.sink.refuse(link, request_id, Some(key.session.clone()), None, refusal),
            }
        }
    }
}

/// Returns the state of a view; `None` if its snapshot cannot be read.
pub(super) fn state_of(view: &SessionView) -> Option<State> {
    let mut state = match &view.snapshot {
        Some(snapshot) => State::from_snapshot(&snapshot.state).ok()?,
        None => State::default(),
    };
    for (epoch, entry) in &view.facts {
        state.apply(*epoch, entry);
    }
    Some(state)
}
