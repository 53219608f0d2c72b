//! The sessions that this node subscribes to: subscribes, reads the log, and then lets each link follow from its
//! own cursor.
use super::ask::refusal_of;
use super::holdings;
use super::sub::{Mode, Sub, snapshot_note};
use super::view::Asked;
use super::{Purpose, Switchboard, Timer, Waiting};
use crate::channel::authority::{Action, authorize};
use crate::channel::command::Subscribe;
use crate::channel::note::{Decided, Members, Note};
use crate::peer::Words;
use std::collections::BTreeMap;
use turnway_core::id::{Cursor, Epoch, LinkId, RequestId, RunId, Seen, Seq, SessionKey, Stamp, UserId};
use turnway_core::limits;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::session::{Phase, State};
use turnway_core::store::{Op, Refused, View};
use turnway_core::time::Now;

/// The stage of a feed on its way to a known state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Checking whether its links may read the session.
    Checking,
    /// Registering this node's subscription in the store.
    Listening,
    /// Reading the present state.
    Viewing,
    /// The state is known up to the head.
    Live,
}

/// A session that this node subscribes to.
#[derive(Debug)]
pub(super) struct Feed {
    pub(super) stage: Stage,
    /// The session's state after every fact up to the head, which is `state.tail`.
    pub(super) state: State,
    pub(super) user: Option<UserId>,
    /// Boxed: a B-tree node has room for eleven entries, and most sessions have one link.
    pub(super) subs: BTreeMap<LinkId, Box<Sub>>,
    pub(super) stamp: Stamp,
    /// `seq` of the last fact that this node knows to exist.
    pub(super) known: Seq,
    /// The newest epoch seen; text of older epochs is dropped.
    pub(super) epoch: Epoch,
    pub(super) owner: Seen,
    /// Number of the view at which the subscription was registered; only a state that was read later is used.
    listened: u64,
    /// Reads in flight, by their start.
    pub(super) reads: BTreeMap<Seq, Fetch>,
}

/// A read of the log in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fetch {
    /// The known end of the log when the read started.
    pub(super) since: Seq,
    /// The store has lost facts since, and the reply may contain them.
    pub(super) void: bool,
}

impl Feed {
    fn new(stage: Stage) -> Self {
        Self {
            stage,
            state: State::default(),
            user: None,
            subs: BTreeMap::new(),
            stamp: Stamp(0),
            known: Seq(0),
            epoch: Epoch(0),
            owner: Seen::default(),
            listened: 0,
            reads: BTreeMap::new(),
        }
    }
    /// Returns whether a link may lack some text.
    pub(super) fn lacks_text(&self) -> bool {
        self.subs.values().any(|sub| sub.mode == Mode::Live && sub.texts.values().any(|pos| !pos.sure))
    }

    pub(super) fn head(&self) -> Cursor {
        self.state.tail
    }
}

impl Switchboard {
    // === requests of links ===

    pub(super) fn subscribe(&mut self, link: LinkId, ask: Subscribe) {
        let Some(there) = self.links.get_mut(link) else { return };
        let key = SessionKey { tenant: there.principal.tenant.clone(), session: ask.session };
        if there.following() >= limits::LINK_SUBSCRIPTIONS_MAX && !there.follows(&key) {
            let refusal = Refusal::new(Code::RateLimited, "too many subscriptions on one connection");
            return self.refuse(link, ask.request_id, Some(key.session), None, refusal);
        }
        if let Err(over) = self.links.follow(link, &key) {
            let refusal = holdings::refusal_of(over, "subscriptions");
            return self.refuse(link, ask.request_id, Some(key.session), None, refusal);
        }
        let mut sub = Sub::joining(ask.after_seq.map(|seq| (seq, ask.after_epoch)));
        if let Some(feed) = self.feeds.get_mut(&key) {
            let waiting = feed.subs.get(&link).map_or(0, |before| before.greets.len());
            if waiting >= limits::LINK_ASKS_MAX {
                return self.refuse_busy(link, ask.request_id);
            }
            sub.greets = feed.subs.remove(&link).map(|before| before.greets).unwrap_or_default();
        }
        sub.greets.push(ask.request_id);
        sub.types = ask.types;
        let texts =
            ask.runs.into_iter().map(|run| (run.run_id, super::sub::TextPos::named(run.attempt, run.offset)));
        sub.texts = texts.collect();
        self.add(&key, link, sub, Stage::Checking);
    }

    /// Subscribes the sender of a message to its session, from directly before the first fact of its turn.
    pub(super) fn follow(&mut self, key: &SessionKey, link: LinkId, run_id: &RunId, tail: Cursor) {
        let Some(there) = self.links.get_mut(link) else { return };
        if there.follows(key) || there.following() >= limits::LINK_SUBSCRIPTIONS_MAX {
            return;
        }
        if self.links.follow(link, key).is_err() {
            return;
        }
        let epoch = (tail.seq > Seq(0)).then_some(tail.epoch);
        let mut sub = Sub::joining(Some((tail.seq, epoch)));
        sub.hold = Some(run_id.clone());
        self.add(key, link, sub, Stage::Listening);
    }

    fn add(&mut self, key: &SessionKey, link: LinkId, mut sub: Sub, stage: Stage) {
        sub.asked = self.view_number(key);
        if let Some(feed) = self.feeds.get_mut(key) {
            feed.subs.insert(link, Box::new(sub));
            let principal = self.links.get(link).map(|there| &there.principal);
            let known = principal.is_some_and(|who| authorize(who, Action::Read, feed.user.as_ref()).is_ok());
            match feed.stage {
                // A refusal takes the same path through the store as one for an unknown session, so that its timing
                // reveals nothing (S-06).
                Stage::Live if !known && !planted(Mutant::ReadUnchecked) => self.view(key),
                Stage::Live => self.join(key, link, None),
                // A reply to an earlier request may not know the session yet.
                Stage::Checking => self.view(key),
                Stage::Listening | Stage::Viewing => {}
            }
            return;
        }
        let mut feed = Feed::new(stage);
        feed.subs.insert(link, Box::new(sub));
        self.feeds.insert(key.clone(), Box::new(feed));
        match stage {
            Stage::Listening => self.listen(key),
            Stage::Checking | Stage::Viewing | Stage::Live => self.view(key),
        }
    }

    pub(super) fn unsubscribe(&mut self, key: &SessionKey, link: LinkId) {
        self.links.unfollow(link, key);
        let Some(feed) = self.feeds.get_mut(key) else { return };
        feed.subs.remove(&link);
        if feed.subs.is_empty() {
            self.drop_feed(key);
        }
    }

    fn drop_feed(&mut self, key: &SessionKey) {
        let Some(feed) = self.feeds.remove(key) else { return };
        self.timers.clear(&Timer::Read(key.clone()));
        self.timers.clear(&Timer::Want(key.clone()));
        if feed.stage != Stage::Checking {
            self.unlisten(key);
        }
    }

    // === subscribe, then read ===

    pub(super) fn listen(&mut self, key: &SessionKey) {
        self.stamp.0 += 1;
        let (node, stamp) = (self.me, self.stamp);
        if let Some(feed) = self.feeds.get_mut(key) {
            feed.stamp = stamp;
            self.store(Op::Listen { key: key.clone(), node, stamp });
        }
    }

    pub(super) fn unlisten(&mut self, key: &SessionKey) {
        let (node, stamp) = (self.me, self.stamp);
        self.store(Op::Unlisten { key: key.clone(), node, stamp });
    }

    /// Registers every subscription again, because it may have been removed while this node had no lease, or lost
    /// by the store.
    pub(super) fn relisten(&mut self) {
        for key in self.feeds.keys().cloned().collect::<Vec<_>>() {
            if self.feeds.get(&key).is_some_and(|feed| feed.stage != Stage::Checking) {
                self.listen(&key);
            }
        }
    }

    pub(super) fn listening(&mut self, now: Now, key: &SessionKey, stamp: Stamp, owner: Seen) {
        self.outdone(now, key, owner.epoch);
        let number = self.view_number(key);
        let Some(feed) = self.feeds.get_mut(key).filter(|feed| feed.stamp == stamp) else { return };
        feed.owner = owner;
        feed.listened = number;
        if feed.stage != Stage::Live {
            feed.stage = Stage::Viewing;
        }
        // Only a state that is read after the registration leaves no gap.
        self.view(key);
        if let Some(holder) = owner.holder {
            self.tell(now, holder.node, Words::Hello { key: key.clone(), stamp });
        }
    }

    /// Refuses a feed because too many nodes subscribe to the session.
    pub(super) fn unheard_of(&mut self, key: &SessionKey) {
        self.refuse_feed(key, &Refusal::new(Code::RateLimited, "too many nodes subscribe to this session"));
    }

    /// Refuses every request that waits for a session with damaged records.
    pub(super) fn closed_off(&mut self, key: &SessionKey) {
        let refusal = refusal_of(Refused::Damaged);
        self.viewing.remove(key);
        self.rebuilds.remove(key);
        for Waiting { link, request_id, .. } in self.views.remove(key).unwrap_or_default() {
            self.refuse(link, request_id, Some(key.session.clone()), None, refusal.clone());
        }
        self.refuse_feed(key, &refusal);
    }

    /// Drops a feed, and tells each of its links the reason.
    fn refuse_feed(&mut self, key: &SessionKey, refusal: &Refusal) {
        let Some(feed) = self.feeds.remove(key) else { return };
        for (link, sub) in feed.subs {
            self.links.unfollow(link, key);
            self.refuse_sub(link, key, sub.greets, refusal);
        }
    }

    /// Handles a session's present state.
    pub(super) fn known(&mut self, now: Now, key: &SessionKey, view: &View, state: State, asked: Asked) {
        self.outdone(now, key, view.owner.epoch);
        if view.owner.holder.is_some_and(|holder| holder.node == self.me) {
            // The store names this node as owner: it has lost this node's release.
            self.claim(now, key, view.owner);
        }
        self.show_opened(key, view, &state, asked.number);
        self.check(key, view, asked.number);
        let Some(feed) = self.feeds.get_mut(key) else { return };
        (feed.user, feed.known) = (view.user.clone(), feed.known.max(view.tail.seq));
        match feed.stage {
            Stage::Checking if feed.subs.values().all(|sub| sub.asked >= asked.number) => return,
            Stage::Checking => {
                feed.stage = Stage::Listening;
                return self.listen(key);
            }
            Stage::Listening => return,
            Stage::Viewing if feed.listened >= asked.number => return,
            Stage::Viewing => {
                feed.stage = Stage::Live;
                feed.state = state;
                feed.epoch = feed.epoch.max(view.tail.epoch);
                if feed.head().seq < feed.known {
                    // The link was told of the facts while the state was being read; they are not sent again.
                    self.catch_up(key);
                }
            }
            Stage::Live if view.tail.seq < asked.since && !planted(Mutant::CursorBare) => {
                return self.regress(key);
            }
            Stage::Live => {
                // A link may have seen more facts at another node than this node knew until now.
                let after = view.snapshot.as_ref().map_or(Cursor::default(), |snapshot| snapshot.at);
                self.facts(now, key, after, &view.facts);
            }
        }
        self.join_all(key, Some((view.tail, asked.number)));
        self.watch(now, key, view.owner);
        self.behind(now, key);
    }

    /// Answers links without access as if the session did not exist, and removes their subscriptions.
    fn check(&mut self, key: &SessionKey, view: &View, number: u64) {
        let Some(feed) = self.feeds.get_mut(key) else { return };
        let mut denied = Vec::new();
        for (link, sub) in feed.subs.iter().filter(|(_, sub)| sub.asked < number) {
            let principal = self.links.get(*link).map(|there| &there.principal);
            let verdict = principal.map(|principal| authorize(principal, Action::Read, view.user.as_ref()));
            if let Some(Err(refusal)) = verdict.filter(|_| !planted(Mutant::ReadUnchecked)) {
                denied.push((*link, sub.greets.clone(), refusal));
            }
        }
        for (link, greets, refusal) in denied {
            self.unsubscribe(key, link);
            self.refuse_sub(link, key, greets, &refusal);
        }
    }

    pub(super) fn refuse_sub(
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
            self.refuse(link, request_id, Some(key.session.clone()), None, refusal.clone());
        }
    }

    /// Checks every link's cursor against the store again, because the store lacks facts that were shown.
    pub(super) fn regress(&mut self, key: &SessionKey) {
        let number = self.view_number(key);
        let Some(feed) = self.feeds.get_mut(key) else { return };
        (feed.stage, feed.listened) = (Stage::Viewing, number);
        feed.known = Seq(0);
        feed.reads.values_mut().for_each(|fetch| fetch.void = true);
        for sub in feed.subs.values_mut() {
            if !matches!(sub.mode, Mode::Joining { .. }) {
                let Cursor { seq, epoch } = sub.cursor;
                sub.mode = Mode::Joining { asked: Some((seq, Some(epoch))) };
            }
        }
        self.stats.resyncs += 1;
        self.view(key);
    }

    /// Answers links that wait for the session's state.
    fn show_opened(&mut self, key: &SessionKey, view: &View, state: &State, number: u64) {
        let waiting = self.views.remove(key).unwrap_or_default();
        let (ready, early): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|waiting| waiting.asked < number);
        if !early.is_empty() {
            self.views.insert(key.clone(), early);
        }
        for Waiting { link, request_id, purpose, .. } in ready {
            let Some(there) = self.links.get(link) else { continue };
            let verdict = authorize(&there.principal, Action::Read, view.user.as_ref());
            let opened = verdict.and_then(|()| match (state.phase, purpose) {
                (Phase::New, Purpose::Open) => {
                    Err(Refusal::new(Code::SessionOpenFailed, "no agent is configured"))
                }
                (_, Purpose::Handover(id)) if state.handovers.standing(id).is_none() => {
                    Err(Refusal::not_found())
                }
                (Phase::New, Purpose::Look | Purpose::Members | Purpose::Handover(_))
                | (Phase::Open | Phase::Closing | Phase::Closed, _) => Ok(()),
            });
            let standing = match purpose {
                Purpose::Handover(id) => state.handovers.standing(id).map(|standing| (id, standing)),
                Purpose::Open | Purpose::Look | Purpose::Members => None,
            };
            match (opened, standing) {
                (Ok(()), Some((handover_id, standing))) => {
                    let session = key.session.clone();
                    let decided = Decided { request_id, session, handover_id, standing };
                    self.note(link, Note::Handover(Box::new(decided)));
                }
                (Ok(()), None) if purpose == Purpose::Members => {
                    let (agents, active_agent) = (state.agents.clone(), state.active.clone());
                    let members = Members { request_id, session: key.session.clone(), agents, active_agent };
                    self.note(link, Note::Members(Box::new(members)));
                }
                (Ok(()), None) => {
                    self.note(link, Note::Opened { request_id, snapshot: snapshot_note(key, state) });
                }
                (Err(refusal), _) => self.refuse(link, request_id, Some(key.session.clone()), None, refusal),
            }
        }
    }
}

/// Returns the state of a view; `None` if its snapshot cannot be read.
pub(super) fn state_of(view: &View) -> Option<State> {
    let mut state = match &view.snapshot {
        Some(snapshot) => State::from_snapshot(&snapshot.state).ok()?,
        None => State::default(),
    };
    for (epoch, entry) in &view.facts {
        state.apply(*epoch, entry);
    }
    Some(state)
}
