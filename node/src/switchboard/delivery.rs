//! The sessions that this node subscribes to: subscribes, reads the log, and lets each link follow from its own
//! cursor. Owns every feed; other parts are reached by effects only.
mod deliver;
mod feed;
mod join;
mod page;
mod rebuild;
pub(super) mod snapshot_waiters;
pub(super) mod state_reads;
mod subscription;
mod text;

use super::effect::{DeliveryCommand, DurableFacts, PartEffect, PresentState, UsablePage};
use super::ownership::resources;
use super::router::requests::refusal_of;
use super::sink::EffectSink;
use super::sink::Timer;
use feed::{Feed, FeedStage};
use join::DeniedSubscription;
use page::PageOutcome;
use rebuild::Rebuilds;
use snapshot_waiters::{SnapshotPurpose, SnapshotWaiters};
use state_reads::{ReadTicket, StateReads, state_of};
use std::collections::BTreeMap;
use subscription::{Subscription, TextPosition};
use turnway_core::id::{
    Cursor, Epoch, FenceToken, Holder, LinkId, ListenStamp, NodeId, OwnershipSnapshot, RequestId, RunId, Seq,
    SessionKey,
};
use turnway_core::limits;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::planted::{self, Planted};
use turnway_core::protocol::action::ProcessOutput;
use turnway_core::protocol::chunk::TextChunk;
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::store::{FactPage, Op, SessionView, StoreRefusal};
use turnway_core::time::Now;
use turnway_wire::channel::authority::{ClientOperation, authorize};
use turnway_wire::channel::command::SubscribeCommand;
use turnway_wire::peer::PeerMessage;

/// The delivery of one node: the subscribed sessions, and the reads of states and logs.
#[derive(Debug)]
pub(super) struct Delivery {
    me: NodeId,
    feeds: BTreeMap<SessionKey, Box<Feed>>,
    /// Number of the last registration of a subscription.
    stamp: ListenStamp,
    reads: StateReads,
    waiters: SnapshotWaiters,
    rebuilds: Rebuilds,
}

impl Delivery {
    pub(super) fn new(me: NodeId) -> Self {
        Self {
            me,
            feeds: BTreeMap::new(),
            stamp: ListenStamp(0),
            reads: StateReads::default(),
            waiters: SnapshotWaiters::default(),
            rebuilds: Rebuilds::default(),
        }
    }

    /// Handles a command of another part.
    pub(super) fn handle_effect(&mut self, now: Now, command: DeliveryCommand, sink: &mut EffectSink) {
        match command {
            DeliveryCommand::Subscribe { link, command } => self.handle_subscribe(link, command, sink),
            DeliveryCommand::SubscribeSender { key, link, run_id, tail } => {
                self.subscribe_sender(&key, link, run_id, tail, sink);
            }
            DeliveryCommand::Unsubscribe { key, link } => self.unsubscribe(&key, link, sink),
            DeliveryCommand::ResumeLink { key, link } => self.resume_link(&key, link, sink),
            DeliveryCommand::AwaitState { key, link, request_id, purpose } => {
                self.await_state(&key, link, request_id, purpose, sink);
            }
            DeliveryCommand::ReadState(key) => self.read_state(&key, sink),
            DeliveryCommand::RebuildForOwner { key, token, view } => self.rebuild_for_owner(&key, token, *view, sink),
            DeliveryCommand::UseState(found) => self.handle_state(now, *found, sink),
            DeliveryCommand::StartAfterState { key, fresh, owner } => {
                self.start_after_state(now, &key, fresh, owner, sink);
            }
            DeliveryCommand::UseRegistration { key, stamp, owner } => self.handle_registered(&key, stamp, owner, sink),
            DeliveryCommand::EndRead { key, after, page } => self.end_read(key, after, page, sink),
            DeliveryCommand::ShowChunk { key, epoch, chunk } => self.handle_chunk(now, &key, epoch, &chunk, sink),
            DeliveryCommand::ShowProcessOutput { key, epoch, run_id, printed } => {
                self.handle_process_output(&key, epoch, &run_id, &printed, sink);
            }
            DeliveryCommand::WatchOwner { key, owner } => self.watch_owner(now, &key, owner, sink),
            DeliveryCommand::SetOwner { key, owner } => self.set_owner(&key, owner),
            DeliveryCommand::SetNewerOwner { key, owner } => self.set_newer_owner(&key, owner),
            DeliveryCommand::RegisterAllAgain => self.register_all_again(sink),
        }
    }

    // === read by other parts ===

    pub(super) fn feed_count(&self) -> usize {
        self.feeds.len()
    }

    pub(super) fn has_feed(&self, key: &SessionKey) -> bool {
        self.feeds.contains_key(key)
    }

    /// Returns the newest epoch that this node has seen of a session.
    pub(super) fn newest_epoch(&self, key: &SessionKey) -> Epoch {
        self.feeds.get(key).map_or(Epoch(0), |feed| feed.epoch)
    }

    /// Returns whether another node owns a session, as far as this node knows.
    pub(super) fn is_owned_elsewhere(&self, key: &SessionKey) -> bool {
        let owner = self.feeds.get(key).and_then(|feed| feed.owner.holder);
        owner.is_some_and(|holder| holder.node != self.me)
    }

    /// Returns the owners of the sessions with an open turn here.
    pub(super) fn owners_of_open_turns(&self) -> impl Iterator<Item = Holder> {
        self.feeds.values().filter(|feed| feed.state.has_open_turn()).filter_map(|feed| feed.owner.holder)
    }

    /// Returns the sessions with an open turn here that a node owns.
    pub(super) fn open_sessions_of(&self, node: NodeId) -> impl Iterator<Item = (SessionKey, OwnershipSnapshot)> {
        let of = move |owner: OwnershipSnapshot| owner.holder.is_some_and(|holder| holder.node == node);
        let shown = self.feeds.iter().filter(move |(_, feed)| feed.state.has_open_turn() && of(feed.owner));
        shown.map(|(key, feed)| (key.clone(), feed.owner))
    }

    // === requests of links ===

    /// Subscribes a link at its request.
    fn handle_subscribe(&mut self, link: LinkId, ask: SubscribeCommand, sink: &mut EffectSink) {
        let Some(there) = sink.links.get_mut(link) else { return };
        let key = SessionKey { tenant: there.principal.tenant.clone(), session: ask.session };
        if there.subscription_count() >= limits::LINK_SUBSCRIPTIONS_MAX && !there.is_subscribed(&key) {
            let refusal = Refusal::new(Code::RateLimited, "too many subscriptions on one connection");
            return sink.refuse(link, ask.request_id, Some(key.session), None, refusal);
        }
        if let Err(over) = sink.links.subscribe(link, &key) {
            let refusal = resources::over_share_refusal(over, "subscriptions");
            return sink.refuse(link, ask.request_id, Some(key.session), None, refusal);
        }
        let mut sub = Subscription::joining(ask.after_seq.map(|seq| (seq, ask.after_epoch)));
        if let Some(feed) = self.feeds.get_mut(&key) {
            let waiting = feed.subs.get(&link).map_or(0, |before| before.pending_requests.len());
            if waiting >= limits::LINK_REQUESTS_MAX {
                return sink.refuse_busy(link, ask.request_id);
            }
            sub.pending_requests = feed.subs.remove(&link).map(|before| before.pending_requests).unwrap_or_default();
        }
        sub.pending_requests.push(ask.request_id);
        sub.types = ask.types;
        let texts = ask.runs.into_iter().map(|run| (run.run_id, TextPosition::unconfirmed(run.attempt, run.offset)));
        sub.texts = texts.collect();
        self.add_subscription(&key, link, sub, FeedStage::Checking, sink);
    }

    /// Subscribes the sender of a message to its session, from directly before the first fact of its turn.
    fn subscribe_sender(&mut self, key: &SessionKey, link: LinkId, run_id: RunId, tail: Cursor, sink: &mut EffectSink) {
        let Some(there) = sink.links.get_mut(link) else { return };
        if there.is_subscribed(key) || there.subscription_count() >= limits::LINK_SUBSCRIPTIONS_MAX {
            return;
        }
        if sink.links.subscribe(link, key).is_err() {
            return;
        }
        let epoch = (tail.seq > Seq(0)).then_some(tail.epoch);
        let mut sub = Subscription::joining(Some((tail.seq, epoch)));
        sub.hold_until_run = Some(run_id);
        self.add_subscription(key, link, sub, FeedStage::Subscribing, sink);
    }

    fn add_subscription(
        &mut self,
        key: &SessionKey,
        link: LinkId,
        mut sub: Subscription,
        stage: FeedStage,
        sink: &mut EffectSink,
    ) {
        sub.view_number = self.reads.number(key);
        if let Some(feed) = self.feeds.get_mut(key) {
            feed.subs.insert(link, Box::new(sub));
            let principal = sink.links.get(link).map(|there| &there.principal);
            let known = principal.is_some_and(|who| authorize(who, ClientOperation::Read, feed.user.as_ref()).is_ok());
            match feed.stage {
                // A refusal takes the same path through the store as one for an unknown session, so that its timing
                // reveals nothing (S-06).
                FeedStage::Live if !known && !planted(Mutant::ReadUnchecked) => self.read_state(key, sink),
                FeedStage::Live => self.start_link(key, link, None, sink),
                // A reply to an earlier request may not know the session yet.
                FeedStage::Checking => self.read_state(key, sink),
                FeedStage::Subscribing | FeedStage::Reading => {}
            }
            return;
        }
        let mut feed = Feed::new(stage);
        feed.subs.insert(link, Box::new(sub));
        self.feeds.insert(key.clone(), Box::new(feed));
        match stage {
            FeedStage::Subscribing => self.register(key, sink),
            FeedStage::Checking | FeedStage::Reading | FeedStage::Live => self.read_state(key, sink),
        }
    }

    /// Ends a link's subscription; a feed is dropped with its last one.
    pub(super) fn unsubscribe(&mut self, key: &SessionKey, link: LinkId, sink: &mut EffectSink) {
        sink.links.unsubscribe(link, key);
        let Some(feed) = self.feeds.get_mut(key) else { return };
        feed.subs.remove(&link);
        if feed.subs.is_empty() {
            self.drop_feed(key, sink);
        }
    }

    fn drop_feed(&mut self, key: &SessionKey, sink: &mut EffectSink) {
        let Some(feed) = self.feeds.remove(key) else { return };
        sink.timers.clear(&Timer::Read(key.clone()));
        sink.timers.clear(&Timer::FetchText(key.clone()));
        if feed.stage != FeedStage::Checking {
            self.deregister(key, sink);
        }
    }

    /// Continues a link that was full or paused.
    pub(super) fn resume_link(&mut self, key: &SessionKey, link: LinkId, sink: &mut EffectSink) {
        if let Some(feed) = self.feeds.get_mut(key) {
            feed.resume_link(key, link, sink);
        }
    }

    /// Answers a link with the session's state, read from now on.
    fn await_state(
        &mut self,
        key: &SessionKey,
        link: LinkId,
        request_id: Option<RequestId>,
        purpose: SnapshotPurpose,
        sink: &mut EffectSink,
    ) {
        self.waiters.add(key, link, request_id, purpose, self.reads.number(key));
        self.read_state(key, sink);
    }

    /// Starts every waiting link. `fresh` is the end of the log as just read, and the number of the view that read
    /// it.
    fn start_links(&mut self, key: &SessionKey, fresh: Option<(Cursor, u64)>, sink: &mut EffectSink) {
        let Some(feed) = self.feeds.get(key) else { return };
        for (link, view_number) in feed.joining_links() {
            let fresh = fresh.filter(|(_, number)| view_number < *number).map(|(tail, _)| tail);
            self.start_link(key, link, fresh, sink);
        }
    }

    fn start_link(&mut self, key: &SessionKey, link: LinkId, fresh: Option<Cursor>, sink: &mut EffectSink) {
        let Some(feed) = self.feeds.get_mut(key) else { return };
        if let Some(denied) = feed.start_link(key, link, fresh, &mut self.reads, sink) {
            self.remove_denied(key, denied, sink);
        }
    }

    fn remove_denied(&mut self, key: &SessionKey, denied: DeniedSubscription, sink: &mut EffectSink) {
        self.unsubscribe(key, denied.link, sink);
        refuse_subscription(denied.link, key, denied.requests, &denied.refusal, sink);
    }

    // === registration in the store ===

    fn register(&mut self, key: &SessionKey, sink: &mut EffectSink) {
        self.stamp.0 += 1;
        let node = self.me;
        let stamp = self.stamp;
        if let Some(feed) = self.feeds.get_mut(key) {
            feed.stamp = stamp;
            sink.store(Op::Listen { key: key.clone(), node, stamp });
        }
    }

    fn deregister(&self, key: &SessionKey, sink: &mut EffectSink) {
        sink.store(Op::Unlisten { key: key.clone(), node: self.me, stamp: self.stamp });
    }

    /// Registers every subscription again, because it may have been removed while this node had no lease, or lost
    /// by the store.
    pub(super) fn register_all_again(&mut self, sink: &mut EffectSink) {
        for key in self.feeds.keys().cloned().collect::<Vec<_>>() {
            if self.feeds.get(&key).is_some_and(|feed| feed.stage != FeedStage::Checking) {
                self.register(&key, sink);
            }
        }
    }

    /// Removes every subscription of a node that exits.
    pub(super) fn deregister_all(&self, sink: &mut EffectSink) {
        for key in self.feeds.keys() {
            self.deregister(key, sink);
        }
    }

    /// Handles the store's confirmation of a subscription.
    fn handle_registered(
        &mut self,
        key: &SessionKey,
        stamp: ListenStamp,
        owner: OwnershipSnapshot,
        sink: &mut EffectSink,
    ) {
        let number = self.reads.number(key);
        let Some(feed) = self.feeds.get_mut(key).filter(|feed| feed.stamp == stamp) else { return };
        feed.owner = owner;
        feed.subscribed_view = number;
        if feed.stage != FeedStage::Live {
            feed.stage = FeedStage::Reading;
        }
        // Only a state that is read after the registration leaves no gap.
        self.read_state(key, sink);
        if let Some(holder) = owner.holder {
            sink.send_peer(holder.node, PeerMessage::Subscribed { key: key.clone(), stamp });
        }
    }

    /// Refuses a feed because too many nodes subscribe to the session.
    pub(super) fn refuse_registration(&mut self, key: &SessionKey, sink: &mut EffectSink) {
        let refusal = Refusal::new(Code::RateLimited, "too many nodes subscribe to this session");
        self.refuse_feed(key, &refusal, sink);
    }

    /// Refuses every request that waits for a session with damaged records.
    pub(super) fn refuse_damaged(&mut self, key: &SessionKey, sink: &mut EffectSink) {
        let refusal = refusal_of(StoreRefusal::Damaged);
        self.reads.end(key);
        self.rebuilds.drop_session(key);
        self.waiters.refuse_all(key, &refusal, sink);
        self.refuse_feed(key, &refusal, sink);
    }

    /// Drops a feed, and tells each of its links the reason.
    fn refuse_feed(&mut self, key: &SessionKey, refusal: &Refusal, sink: &mut EffectSink) {
        let Some(feed) = self.feeds.remove(key) else { return };
        for (link, sub) in feed.subs {
            sink.links.unsubscribe(link, key);
            refuse_subscription(link, key, sub.pending_requests, refusal, sink);
        }
    }

    // === the present state ===

    /// Requests a session's present state, as of now or later.
    pub(super) fn read_state(&mut self, key: &SessionKey, sink: &mut EffectSink) {
        let known_end = self.feeds.get(key).map_or(Seq(0), |feed| feed.head().seq);
        self.reads.request(key, known_end, sink);
    }

    /// Handles the reply of a read of the state.
    pub(super) fn handle_state_read(&mut self, key: &SessionKey, view: SessionView, sink: &mut EffectSink) {
        let Some((ticket, requested_again)) = self.reads.end(key) else { return };
        if requested_again {
            self.read_state(key, sink);
        }
        match state_of(&view) {
            Some(state) => {
                sink.push(PartEffect::PresentState(Box::new(PresentState { key: key.clone(), view, state, ticket })));
            }
            None => self.rebuilds.start(key, None, view, ticket, sink),
        }
    }

    /// Rebuilds the state of a session that this node has claimed.
    fn rebuild_for_owner(&mut self, key: &SessionKey, token: FenceToken, view: SessionView, sink: &mut EffectSink) {
        let ticket = ReadTicket { number: 0, known_end: Seq(0) };
        self.rebuilds.start(key, Some(token), view, ticket, sink);
    }

    /// Handles a session's present state.
    fn handle_state(&mut self, now: Now, found: PresentState, sink: &mut EffectSink) {
        let PresentState { key, view, state, ticket } = found;
        self.waiters.answer(&key, &view, &state, ticket.number, sink);
        self.check_access(&key, &view, ticket.number, sink);
        let Some(feed) = self.feeds.get_mut(&key) else { return };
        (feed.user, feed.known_end) = (view.user.clone(), feed.known_end.max(view.tail.seq));
        match feed.stage {
            FeedStage::Checking if feed.subs.values().all(|sub| sub.view_number >= ticket.number) => {}
            FeedStage::Checking => {
                feed.stage = FeedStage::Subscribing;
                self.register(&key, sink);
            }
            FeedStage::Subscribing => {}
            FeedStage::Reading if feed.subscribed_view >= ticket.number => {}
            FeedStage::Reading => {
                feed.stage = FeedStage::Live;
                feed.state = state;
                feed.epoch = feed.epoch.max(view.tail.epoch);
                if feed.head().seq < feed.known_end {
                    // The link was told of the facts while the state was being read; they are not sent again.
                    feed.catch_up(&key, sink);
                }
                self.start_after_state(now, &key, (view.tail, ticket.number), view.owner, sink);
            }
            FeedStage::Live if view.tail.seq < ticket.known_end && !planted(Mutant::CursorBare) => {
                feed.resync(&key, &mut self.reads, sink);
            }
            FeedStage::Live => {
                // A link may have seen more facts at another node than this node knew until now.
                let after = view.snapshot.as_ref().map_or(Cursor::default(), |snapshot| snapshot.at);
                let facts = DurableFacts { key: key.clone(), after, facts: view.facts, owner: None };
                sink.push(PartEffect::Facts(facts));
                let fresh = (view.tail, ticket.number);
                sink.push(DeliveryCommand::StartAfterState { key, fresh, owner: view.owner });
            }
        }
    }

    /// Starts links after the session's state was read. `fresh` is the end of the log as just read, and the number
    /// of the view that read it.
    fn start_after_state(
        &mut self,
        now: Now,
        key: &SessionKey,
        fresh: (Cursor, u64),
        owner: OwnershipSnapshot,
        sink: &mut EffectSink,
    ) {
        self.start_links(key, Some(fresh), sink);
        let Some(feed) = self.feeds.get_mut(key) else { return };
        feed.watch_owner(now, self.me, owner, sink);
        feed.schedule_catch_up(now, key, sink);
    }

    /// Answers links without access as if the session did not exist, and removes their subscriptions.
    fn check_access(&mut self, key: &SessionKey, view: &SessionView, number: u64, sink: &mut EffectSink) {
        let Some(feed) = self.feeds.get_mut(key) else { return };
        let mut denied = Vec::new();
        for (link, sub) in feed.subs.iter().filter(|(_, sub)| sub.view_number < number) {
            let principal = sink.links.get(*link).map(|there| &there.principal);
            let verdict = principal.map(|principal| authorize(principal, ClientOperation::Read, view.user.as_ref()));
            if let Some(Err(refusal)) = verdict.filter(|_| !planted(Mutant::ReadUnchecked)) {
                denied.push(DeniedSubscription { link: *link, requests: sub.pending_requests.clone(), refusal });
            }
        }
        for denied in denied {
            self.remove_denied(key, denied, sink);
        }
    }

    /// Checks the cursor of every link of a session against the store again.
    pub(super) fn resync(&mut self, key: &SessionKey, sink: &mut EffectSink) {
        if let Some(feed) = self.feeds.get_mut(key) {
            feed.resync(key, &mut self.reads, sink);
        }
    }

    /// Forgets a read of the state; its reply is dropped.
    pub(super) fn forget_state_read(&mut self, key: &SessionKey) {
        self.reads.end(key);
    }

    // === the log ===

    /// Reads the facts that a feed lacks.
    pub(super) fn catch_up(&mut self, key: &SessionKey, sink: &mut EffectSink) {
        if let Some(feed) = self.feeds.get_mut(key) {
            feed.catch_up(key, sink);
        }
    }

    /// Handles a page of the log: rebuilds go first, because an owner may wait for them.
    pub(super) fn handle_page(&mut self, key: SessionKey, after: Seq, page: FactPage, sink: &mut EffectSink) {
        self.rebuilds.apply_page(&key, after, &page, sink);
        sink.push(DeliveryCommand::EndRead { key, after, page });
    }

    /// Ends a feed's read. A page that may be used is applied after it has released acceptances.
    fn end_read(&mut self, key: SessionKey, after: Seq, page: FactPage, sink: &mut EffectSink) {
        let Some(feed) = self.feeds.get_mut(&key) else { return };
        if let Some(since) = feed.end_read(&key, &page, after, &mut self.reads, sink) {
            sink.push(PartEffect::UsablePage(UsablePage { key, after, page, since }));
        }
    }

    /// Applies a page to the links that read from its position, and to the feed.
    pub(super) fn apply_page(&mut self, now: Now, usable: &UsablePage, sink: &mut EffectSink) {
        let UsablePage { key, page, .. } = usable;
        let Some(feed) = self.feeds.get_mut(key) else { return };
        feed.apply_page_to_links(usable, sink);
        let outcome = feed.apply_page(now, key, page, &mut self.reads, sink);
        if outcome == PageOutcome::Dropped {
            return;
        }
        self.start_links(key, None, sink);
        if let Some(feed) = self.feeds.get(key).filter(|_| outcome == PageOutcome::FactsApplied) {
            feed.schedule_text_fetch(key, sink);
        }
    }

    /// Handles durable facts and the position they follow, from an owner here or at another node.
    pub(super) fn handle_facts(&mut self, now: Now, durable: &DurableFacts, sink: &mut EffectSink) {
        let DurableFacts { key, after, facts, owner } = durable;
        let Some(feed) = self.feeds.get_mut(key) else { return };
        feed.handle_facts(now, key, *after, facts, &mut self.reads, sink);
        if let Some(owner) = owner {
            feed.watch_owner(now, self.me, *owner, sink);
        }
    }

    /// Answers a tail digest with the positions that this node has.
    pub(super) fn handle_tail_digest(
        &mut self,
        now: Now,
        from: NodeId,
        logs: Vec<(SessionKey, Cursor)>,
        sink: &mut EffectSink,
    ) {
        let mut have = Vec::new();
        for (key, end) in logs {
            match self.feeds.get_mut(&key) {
                Some(feed) => {
                    if let Some(head) = feed.handle_tail(now, &key, end, &mut self.reads, sink) {
                        have.push((key, head));
                    }
                }
                None => {
                    if !planted::planted(Planted::NeverUnlistened) {
                        self.deregister(&key, sink);
                    }
                    have.push((key, end));
                }
            }
        }
        sink.send_peer(from, PeerMessage::Ack { logs: have });
    }

    // === text ===

    /// Handles a piece of an answer from an owner here or at another node.
    pub(super) fn handle_chunk(
        &mut self,
        now: Now,
        key: &SessionKey,
        epoch: Epoch,
        chunk: &TextChunk,
        sink: &mut EffectSink,
    ) {
        if let Some(feed) = self.feeds.get_mut(key) {
            feed.handle_chunk(now, key, epoch, chunk, sink);
        }
    }

    /// Handles process output from an owner here or at another node.
    pub(super) fn handle_process_output(
        &self,
        key: &SessionKey,
        epoch: Epoch,
        run_id: &RunId,
        printed: &ProcessOutput,
        sink: &mut EffectSink,
    ) {
        if let Some(feed) = self.feeds.get(key) {
            feed.handle_process_output(key, epoch, run_id, printed, sink);
        }
    }

    /// Requests missing text from the owner.
    pub(super) fn fetch_text(&self, now: Now, key: &SessionKey, sink: &mut EffectSink) {
        if let Some(feed) = self.feeds.get(key) {
            feed.fetch_text(now, key, sink);
        }
    }

    // === owners ===

    /// Watches the owner's node while a turn is open.
    fn watch_owner(&mut self, now: Now, key: &SessionKey, owner: OwnershipSnapshot, sink: &mut EffectSink) {
        if let Some(feed) = self.feeds.get_mut(key) {
            feed.watch_owner(now, self.me, owner, sink);
        }
    }

    /// Records the owner after this node gave a session up.
    fn set_owner(&mut self, key: &SessionKey, owner: OwnershipSnapshot) {
        if let Some(feed) = self.feeds.get_mut(key) {
            feed.owner = owner;
        }
    }

    /// Records the owner that this node's claim lost to, unless this node knows of a newer one.
    fn set_newer_owner(&mut self, key: &SessionKey, owner: OwnershipSnapshot) {
        if let Some(feed) = self.feeds.get_mut(key).filter(|feed| feed.owner.epoch <= owner.epoch) {
            feed.owner = owner;
        }
    }
}

/// Refuses the requests of a subscription; a link without any is told all the same.
fn refuse_subscription(
    link: LinkId,
    key: &SessionKey,
    mut requests: Vec<Option<RequestId>>,
    refusal: &Refusal,
    sink: &mut EffectSink,
) {
    if requests.is_empty() {
        requests.push(None);
    }
    for request_id in requests {
        sink.refuse(link, request_id, Some(key.session.clone()), None, refusal.clone());
    }
}
