//! The state of a session that this node owns, or claims.
use super::conversation_turns::ConversationTurn;
use super::resources::PermitState;
use std::collections::BTreeMap;
use std::collections::VecDeque;
use turnway_core::id::{
    ControlId, Cursor, Epoch, FenceToken, InboxPosition, ListenStamp, ListenersVersion, NodeId, Nonce, Seq, SessionKey,
};
use turnway_core::protocol::input::Strategy;
use turnway_core::session::{FactRecord, Output as RuntimeOutput, SessionRuntime, State};
use turnway_core::share::Account;
use turnway_core::store::{Append, Claimed};
use turnway_core::time::Mono;

/// This node's ownership of one session.
#[derive(Debug)]
pub(super) enum SessionOwnership {
    /// Claim in flight.
    Claiming {
        nonce: Nonce,
        since: Mono,
        /// The node that may hand the session over by this claim, if the session is only reserved.
        reserved_for: Option<NodeId>,
    },
    /// Claimed; the state is being rebuilt, because the stored snapshot cannot be read.
    Loading {
        claimed: Box<Claimed>,
        /// Start of the claim, for metrics.
        since: Mono,
        /// The previous owner.
        previous_owner: Option<NodeId>,
    },
    Owned(Box<OwnedSession>),
}

impl SessionOwnership {
    /// Returns whether the session is more than reserved.
    pub(super) fn is_beyond_reserved(&self) -> bool {
        !matches!(self, Self::Claiming { reserved_for: Some(_), .. })
    }
    pub(super) fn owned(&self) -> Option<&OwnedSession> {
        match self {
            Self::Owned(owned) => Some(owned),
            Self::Claiming { .. } | Self::Loading { .. } => None,
        }
    }
    pub(super) fn owned_mut(&mut self) -> Option<&mut OwnedSession> {
        match self {
            Self::Owned(owned) => Some(owned),
            Self::Claiming { .. } | Self::Loading { .. } => None,
        }
    }
}

/// The sessions that this node owns or claims.
#[derive(Debug, Default)]
pub(super) struct OwnedSessions(BTreeMap<SessionKey, SessionOwnership>);

impl OwnedSessions {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
    pub(super) fn contains(&self, key: &SessionKey) -> bool {
        self.0.contains_key(key)
    }
    pub(super) fn get(&self, key: &SessionKey) -> Option<&SessionOwnership> {
        self.0.get(key)
    }
    pub(super) fn insert(&mut self, key: SessionKey, ownership: SessionOwnership) {
        self.0.insert(key, ownership);
    }
    pub(super) fn remove(&mut self, key: &SessionKey) -> Option<SessionOwnership> {
        self.0.remove(key)
    }
    /// Returns a session that this node owns; none that is only claimed.
    pub(super) fn owned(&self, key: &SessionKey) -> Option<&OwnedSession> {
        self.0.get(key).and_then(SessionOwnership::owned)
    }
    pub(super) fn owned_mut(&mut self, key: &SessionKey) -> Option<&mut OwnedSession> {
        self.0.get_mut(key).and_then(SessionOwnership::owned_mut)
    }
    /// Returns a session that this node owns under this claim.
    pub(super) fn owned_by(&mut self, key: &SessionKey, token: FenceToken) -> Option<&mut OwnedSession> {
        self.owned_mut(key).filter(|owned| owned.token == token)
    }
    /// Returns the keys of all sessions; the sessions may be changed meanwhile.
    pub(super) fn keys(&self) -> Vec<SessionKey> {
        self.0.keys().cloned().collect()
    }
    pub(super) fn values(&self) -> impl Iterator<Item = &SessionOwnership> {
        self.0.values()
    }
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&SessionKey, &mut SessionOwnership)> {
        self.0.iter_mut()
    }
    pub(super) fn iter_owned_mut(&mut self) -> impl Iterator<Item = (&SessionKey, &mut OwnedSession)> {
        self.0.iter_mut().filter_map(|(key, ownership)| Some((key, ownership.owned_mut()?)))
    }
}

/// A session that this node owns.
#[derive(Debug)]
pub(super) struct OwnedSession {
    pub(super) token: FenceToken,
    pub(super) runtime: SessionRuntime,
    /// The session after every durable fact; snapshots are made from it.
    pub(super) durable: State,
    pub(super) snapshot_seq: Seq,
    /// Facts up to here were trimmed by this owner.
    pub(super) trimmed: Seq,
    pub(super) bytes_since_snapshot: usize,
    /// Time from which expired message ids may be searched again.
    pub(super) expire_at: Option<Mono>,
    /// The append in flight; at most one, so that the log's order is the order of decisions.
    pub(super) in_flight: Option<Append>,
    /// Start of the append in flight. `ending`: for each turn that it ends, the time of arrival and the strategy.
    /// For metrics.
    pub(super) append_sent_at: Mono,
    pub(super) ending: Vec<(Mono, Strategy)>,
    pub(super) backlog: VecDeque<FactRecord>,
    /// The deadline of a write that may be delayed.
    pub(super) write_at: Option<Mono>,
    /// Control entries that needed no fact.
    pub(super) consumed: Vec<InboxPosition>,
    /// The last positions of inbox and control lane that were handled.
    pub(super) head: InboxPosition,
    pub(super) control_head: InboxPosition,
    /// The same when the append in flight started; a store whose lanes end before that has lost entries.
    pub(super) heads: (InboxPosition, InboxPosition),
    /// A read of inbox and control lane is in flight; `read_again`: another one must follow.
    pub(super) reading: bool,
    pub(super) read_again: bool,
    pub(super) catching_up: bool,
    pub(super) subscribers: BTreeMap<NodeId, SubscriberNode>,
    /// The previous owner.
    pub(super) previous_owner: Option<NodeId>,
    pub(super) version: ListenersVersion,
    /// The nodes that offered control entries, to be notified of the answers.
    pub(super) control_offerers: BTreeMap<ControlId, NodeId>,
    pub(super) lingering: bool,
    pub(super) releasing: bool,
    /// The node that was asked to reserve the session, until it answers.
    pub(super) successor: Option<NodeId>,
    /// The lease of the ownership is lost; the session continues if this claim wins.
    pub(super) reclaim_nonce: Option<Nonce>,
    /// Outputs held back while this node has no lease.
    pub(super) held_outputs: Vec<RuntimeOutput>,
    /// The store may have lost writes, and this owner has yet to check its log.
    pub(super) needs_check: bool,
    /// The account that the session counts for.
    pub(super) account: Option<Account>,
    pub(super) permit: PermitState,
    /// The running turn, if it came from a conversation.
    pub(super) conversation_turn: Option<Box<ConversationTurn>>,
}

/// A subscriber node of a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct SubscriberNode {
    pub(super) stamp: ListenStamp,
    pub(super) acked: Seq,
    pub(super) unanswered_digests: u32,
    /// The stamp at the first lease check after a doubt, and the time of the check; a newer stamp proves that the
    /// node is alive.
    pub(super) checked: Option<(ListenStamp, Mono)>,
}

impl SubscriberNode {
    pub(super) fn new(stamp: ListenStamp) -> Self {
        Self { stamp, acked: Seq(0), unanswered_digests: 0, checked: None }
    }
}

impl OwnedSession {
    pub(super) fn new(claimed: &Claimed, runtime: SessionRuntime, durable: State, snapshot_seq: Seq) -> Self {
        let subscribers = claimed.listeners.iter().map(|(node, stamp)| (*node, SubscriberNode::new(*stamp)));
        Self {
            token: claimed.token,
            runtime,
            durable,
            snapshot_seq,
            trimmed: Seq(0),
            bytes_since_snapshot: 0,
            expire_at: None,
            in_flight: None,
            append_sent_at: Mono::default(),
            ending: Vec::new(),
            backlog: VecDeque::new(),
            write_at: None,
            consumed: Vec::new(),
            head: InboxPosition(0),
            control_head: InboxPosition(0),
            heads: (InboxPosition(0), InboxPosition(0)),
            reading: false,
            read_again: false,
            catching_up: false,
            subscribers: subscribers.collect(),
            previous_owner: None,
            version: claimed.version,
            control_offerers: BTreeMap::new(),
            lingering: false,
            releasing: false,
            successor: None,
            reclaim_nonce: None,
            held_outputs: Vec::new(),
            needs_check: false,
            account: None,
            permit: PermitState::None,
            conversation_turn: None,
        }
    }

    pub(super) fn tail(&self) -> Cursor {
        self.durable.tail
    }

    /// Returns the epoch that facts are written under.
    pub(super) fn epoch(&self) -> Epoch {
        self.token.epoch
    }

    /// Returns whether nothing is to be written and no write is in flight.
    pub(super) fn is_written(&self) -> bool {
        self.in_flight.is_none() && self.backlog.is_empty() && self.consumed.is_empty()
    }

    /// Returns whether every pending write may be delayed, because no client waits for it.
    pub(super) fn may_delay_write(&self) -> bool {
        self.consumed.is_empty() && self.backlog.iter().all(|record| record.entry.fact.is_deferrable())
    }

    /// Returns whether a probably live node subscribes. The previous owner's subscription does not count, because
    /// its death is the likely reason for the takeover.
    pub(super) fn has_live_subscriber(&self) -> bool {
        self.subscribers.keys().any(|node| Some(*node) != self.previous_owner)
    }

    /// Returns whether nothing is to be decided or written, and every subscriber has acknowledged everything (I10).
    pub(super) fn is_quiet(&self, me: NodeId) -> bool {
        let tail = self.tail().seq;
        let all_acked = self.subscribers.iter().all(|(node, subscriber)| *node == me || subscriber.acked >= tail);
        self.is_written() && all_acked && self.runtime.is_idle() && !self.reading && !self.releasing
    }

    /// Returns whether an offered input directly follows the last one, so that its content spares a read of the
    /// inbox.
    pub(super) fn is_next_input(&self, position: InboxPosition, prev: InboxPosition) -> bool {
        position > self.head && prev == self.head
    }
}
