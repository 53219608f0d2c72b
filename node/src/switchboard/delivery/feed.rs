//! A session that this node subscribes to: its state, its links' subscriptions, and the reads of its log. The modules
//! `join`, `deliver`, `page` and `text` contain the operations on a feed.
use super::state_reads::StateReads;
use super::subscription::{Subscription, SubscriptionMode};
use crate::switchboard::sink::{EffectSink, Timer};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;
use turnway_core::id::{Cursor, Epoch, LinkId, ListenStamp, NodeId, OwnershipSnapshot, Seq, SessionKey, UserId};
use turnway_core::limits;
use turnway_core::session::State;
use turnway_core::store::Op;
use turnway_core::time::{Mono, Now};

/// Time for a gap to close by itself before the log is read.
const GAP_WAIT: Duration = Duration::from_millis(100);

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
    pub(super) subscribed_view: u64,
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
    pub(super) fn new(stage: FeedStage) -> Self {
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

    // === reads ===

    /// Reads the log from a position; links that read from the same position share one page.
    pub(super) fn read_log(&mut self, key: &SessionKey, after: Seq, sink: &mut EffectSink) {
        if let Entry::Vacant(vacant) = self.reads.entry(after) {
            vacant.insert(LogRead { known_end: self.state.tail.seq, stale: false });
            sink.store(Op::Read { key: key.clone(), after, limit: limits::READ_FACTS_MAX });
        }
    }

    /// Reads the facts that the feed lacks, starting one fact back to check that its last one is still there.
    pub(super) fn catch_up(&mut self, key: &SessionKey, sink: &mut EffectSink) {
        if self.stage == FeedStage::Live {
            let after = Seq(self.head().seq.0.saturating_sub(1));
            self.read_log(key, after, sink);
        }
    }

    /// Schedules a read of the log if this node knows of facts that it lacks.
    pub(super) fn schedule_catch_up(&self, now: Now, key: &SessionKey, sink: &mut EffectSink) {
        if self.head().seq < self.known_end {
            sink.stats.gaps += 1;
            sink.timers.set_earlier(Timer::Read(key.clone()), now.mono + GAP_WAIT);
        } else {
            sink.timers.clear(&Timer::Read(key.clone()));
        }
    }

    /// Schedules a request to the owner, because a link may lack text.
    pub(super) fn schedule_text_fetch(&self, key: &SessionKey, sink: &mut EffectSink) {
        if self.lacks_text() {
            sink.timers.set(Timer::FetchText(key.clone()), Mono::default());
        }
    }

    /// Checks every link's cursor against the store again, because the store lacks facts that were shown.
    pub(super) fn resync(&mut self, key: &SessionKey, reads: &mut StateReads, sink: &mut EffectSink) {
        (self.stage, self.subscribed_view) = (FeedStage::Reading, reads.number(key));
        self.known_end = Seq(0);
        self.reads.values_mut().for_each(|fetch| fetch.stale = true);
        for sub in self.subs.values_mut() {
            if !matches!(sub.mode, SubscriptionMode::Joining { .. }) {
                let Cursor { seq, epoch } = sub.cursor;
                sub.mode = SubscriptionMode::Joining { requested_cursor: Some((seq, Some(epoch))) };
            }
        }
        sink.stats.resyncs += 1;
        reads.request(key, self.head().seq, sink);
    }

    // === links ===

    /// Starts the read that a link in its present mode needs.
    pub(super) fn continue_link(&mut self, key: &SessionKey, link: LinkId, sink: &mut EffectSink) {
        let Some(sub) = self.subs.get(&link) else { return };
        match sub.mode {
            SubscriptionMode::Reading { scan } => self.read_log(key, scan, sink),
            SubscriptionMode::Live => self.schedule_text_fetch(key, sink),
            SubscriptionMode::Joining { .. } | SubscriptionMode::Paused { .. } => {}
        }
    }

    /// Continues a link that was full from its cursor.
    pub(super) fn resume_link(&mut self, key: &SessionKey, link: LinkId, sink: &mut EffectSink) {
        let head = self.head().seq;
        let Some(sub) = self.subs.get_mut(&link) else { return };
        let SubscriptionMode::Paused { scan } = sub.mode else { return };
        sub.mode = if scan >= head { SubscriptionMode::Live } else { SubscriptionMode::Reading { scan } };
        for pos in sub.texts.values_mut() {
            pos.is_current = false;
        }
        self.continue_link(key, link, sink);
    }

    // === the owner ===

    /// Watches the owner's node while a turn is open: one probe per node, not per session.
    pub(super) fn watch_owner(&mut self, now: Now, me: NodeId, owner: OwnershipSnapshot, sink: &mut EffectSink) {
        if self.owner.epoch > owner.epoch {
            return;
        }
        self.owner = owner;
        if self.state.has_open_turn() && owner.holder.is_some_and(|holder| holder.node != me) {
            sink.timers.set_earlier(Timer::Probe, now.mono + limits::PROBE_INTERVAL);
        }
    }
}
