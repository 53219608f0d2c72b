//! Messages between nodes, and their binary form ([`frame`]). Every message may be lost, duplicated and reordered
//! without harm. Messages about remote attempts have a module of their own ([`remote`]).
pub mod frame;
pub mod remote;

use remote::RemoteMessage;
use std::sync::Arc;
use turnway_core::id::{
    ControlId, Cursor, DeliveryId, Epoch, Holder, InboxPosition, ListenStamp, Nonce, OwnershipSnapshot, RunId,
    SessionKey,
};
use turnway_core::protocol::action::ProcessOutput;
use turnway_core::protocol::chunk::TextChunk;
use turnway_core::protocol::delivery::{AccountKey, DeliveryOrder, DeliveryReport};
use turnway_core::protocol::entry::Entry;
use turnway_core::protocol::input::{ControlEntry, Input};
use turnway_core::protocol::signal::ConversationSignal;

/// One message from node to node. The types in [`frame`] are its form in bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerMessage {
    /// An input or control entry for the session's owner, as far as the sender knows the owner.
    Offer {
        key: SessionKey,
        /// The supposed owner.
        owner: OwnershipSnapshot,
        item: OfferedEntry,
    },
    /// The owner has the input; the sender stops offering it.
    InputAccepted { key: SessionKey, run_id: RunId },
    /// A control entry has been answered durably.
    ControlAnswered {
        key: SessionKey,
        control: ControlId,
        /// A fact reports the answer to the session's subscribers.
        shown: bool,
    },
    /// The sender of this message does not own the session.
    NotOwner {
        key: SessionKey,
        /// The owner as the offer named it.
        owner: OwnershipSnapshot,
    },
    /// A node subscribes to the session; the store has recorded the subscription.
    Subscribed {
        key: SessionKey,
        /// The stamp of the subscription.
        stamp: ListenStamp,
    },
    Facts {
        key: SessionKey,
        /// The owner that wrote them.
        owner: OwnershipSnapshot,
        /// The position that the facts follow.
        after: Cursor,
        /// Each with its epoch.
        facts: Vec<(Epoch, Arc<Entry>)>,
    },
    /// A piece of an answer.
    Chunk {
        key: SessionKey,
        /// The ownership epoch; a piece of an older epoch is dropped.
        epoch: Epoch,
        chunk: TextChunk,
    },
    /// A request for a run's text from an offset.
    FetchText {
        key: SessionKey,
        run_id: RunId,
        attempt: u32,
        /// Counted in UTF-8 bytes.
        offset: u64,
    },
    /// The ends of subscribed logs that the receiver has not acknowledged.
    TailDigest { logs: Vec<(SessionKey, Cursor)> },
    /// The acknowledged positions of logs.
    Ack { logs: Vec<(SessionKey, Cursor)> },
    /// The sender leaves a session that has open work; the receiver should claim it.
    HandOff {
        key: SessionKey,
        /// The ownership after the release.
        released: OwnershipSnapshot,
    },
    /// A probe for reachability.
    Probe,
    /// A piece of process output.
    ProcessOutput {
        key: SessionKey,
        /// The ownership epoch; a piece of an older epoch is dropped.
        epoch: Epoch,
        /// The run that started the process.
        run_id: RunId,
        printed: Box<ProcessOutput>,
    },
    /// A message about a remote attempt; the switchboard ignores it.
    RemoteAttempt(RemoteMessage),
    /// The sender will leave a session that has open work and asks the receiver to take it over.
    Reserve {
        key: SessionKey,
        /// The sender's ownership epoch.
        epoch: Epoch,
    },
    /// The receiver of a `Reserve` agrees to take the session over.
    Reserved {
        key: SessionKey,
        /// The present owner's epoch.
        epoch: Epoch,
        /// The successor's holder id.
        holder: Holder,
        /// The nonce of the successor's claim.
        nonce: Nonce,
    },
    /// Have an adapter of the receiver send a part. Repeated until it is answered.
    Deliver { order: Arc<DeliveryOrder> },
    /// The result of an attempt to send a part; the receiver owns the session, as far as the sender knows.
    DeliveryReport { key: SessionKey, report: Arc<DeliveryReport> },
    /// The sender has no adapter that sends for the account.
    NoAdapter { account: Arc<AccountKey> },
    /// An adapter of the sender sends for the account from now on.
    AdapterArrived { account: Arc<AccountKey> },
    /// Have an adapter of the receiver show a signal. Never repeated.
    Signal { signal: Arc<ConversationSignal> },
    /// The adapter shows no previews in the conversation; the receiver owns the session.
    PreviewUnwanted {
        key: SessionKey,
        /// The preview that was not shown.
        preview_id: DeliveryId,
    },
}

impl PeerMessage {
    /// Returns an estimate of the message's size in a queue in bytes; the same on every node.
    pub fn weight(&self) -> usize {
        let content = match self {
            Self::Offer { item: OfferedEntry::Input { input, .. }, .. } => input.weight(),
            Self::Facts { facts, .. } => facts.iter().map(|(_, entry)| entry.weight()).sum(),
            Self::Chunk { chunk, .. } => chunk.text.reveal().len(),
            Self::ProcessOutput { printed, .. } => printed.data.reveal().len(),
            Self::TailDigest { logs } | Self::Ack { logs } => logs.len() * 160,
            Self::RemoteAttempt(message) => message.weight(),
            Self::Deliver { order } => order.text.reveal().len() + 512,
            Self::Signal { signal } => signal.weight(),
            Self::Offer { item: OfferedEntry::Control { .. }, .. }
            | Self::InputAccepted { .. }
            | Self::ControlAnswered { .. }
            | Self::NotOwner { .. }
            | Self::Subscribed { .. }
            | Self::FetchText { .. }
            | Self::HandOff { .. }
            | Self::Reserve { .. }
            | Self::Reserved { .. }
            | Self::DeliveryReport { .. }
            | Self::NoAdapter { .. }
            | Self::AdapterArrived { .. }
            | Self::PreviewUnwanted { .. }
            | Self::Probe => 0,
        };
        content + 256
    }
    /// Returns the session that the message is about, if any.
    pub fn key(&self) -> Option<&SessionKey> {
        match self {
            Self::Offer { key, .. }
            | Self::InputAccepted { key, .. }
            | Self::ControlAnswered { key, .. }
            | Self::NotOwner { key, .. }
            | Self::Subscribed { key, .. }
            | Self::Facts { key, .. }
            | Self::Chunk { key, .. }
            | Self::ProcessOutput { key, .. }
            | Self::FetchText { key, .. }
            | Self::HandOff { key, .. }
            | Self::Reserve { key, .. }
            | Self::Reserved { key, .. }
            | Self::PreviewUnwanted { key, .. }
            | Self::DeliveryReport { key, .. } => Some(key),
            Self::Deliver { order } => Some(&order.key),
            Self::Signal { signal } => Some(&signal.key),
            Self::TailDigest { .. }
            | Self::Ack { .. }
            | Self::Probe
            | Self::RemoteAttempt(_)
            | Self::NoAdapter { .. }
            | Self::AdapterArrived { .. } => None,
        }
    }
}

/// The content of an offer, included so that the owner need not read the store.
#[derive(Clone, Debug, PartialEq)]
pub enum OfferedEntry {
    /// A user input.
    Input {
        /// Position in the inbox.
        position: InboxPosition,
        /// Position of the preceding entry.
        prev: InboxPosition,
        input: Arc<Input>,
    },
    /// A control entry.
    Control {
        /// Position in the inbox.
        position: InboxPosition,
        /// Position of the preceding entry.
        prev: InboxPosition,
        control: Arc<ControlEntry>,
    },
}
