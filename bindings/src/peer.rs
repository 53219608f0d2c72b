//! Messages between nodes, and their binary form ([`frame`]). Every message may be lost, duplicated and reordered
//! without harm. Messages about remote attempts have a module of their own ([`trunk`]).
pub mod frame;
mod json;
pub mod trunk;

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use trunk::TrunkWords;
use turnway_core::id::{ControlId, Cursor, Epoch, Holder, Nonce, Place, RunId, Seen, SessionKey, Stamp};
use turnway_core::private::Private;
use turnway_core::protocol::action::Printed;
use turnway_core::protocol::agent::TextKind;
use turnway_core::protocol::entry::Entry;
use turnway_core::protocol::input::{Control, Input};

/// One message from node to node. The order of variants and fields is their order in a frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Words {
    /// An input or control entry for the session's owner, as far as the sender knows the owner.
    Bell {
        key: SessionKey,
        /// The supposed owner.
        owner: Seen,
        item: Item,
    },
    /// The owner has the input; the sender stops offering it.
    Taken {
        key: SessionKey,
        run_id: RunId,
    },
    /// A control entry has been answered durably.
    Answered {
        key: SessionKey,
        control: ControlId,
        /// A fact reports the answer to the session's subscribers.
        shown: bool,
    },
    /// The sender of this message does not own the session.
    NotMine {
        key: SessionKey,
        /// The owner as the offer named it.
        owner: Seen,
    },
    /// A node subscribes to the session; the store has recorded the subscription.
    Hello {
        key: SessionKey,
        /// The stamp of the subscription.
        stamp: Stamp,
    },
    /// Durable facts.
    Facts {
        key: SessionKey,
        /// The owner that wrote them.
        owner: Seen,
        /// The position that the facts follow.
        after: Cursor,
        /// Each with its epoch.
        #[serde(with = "json::facts")]
        facts: Vec<(Epoch, Arc<Entry>)>,
    },
    /// A piece of an answer.
    Chunk {
        key: SessionKey,
        /// The ownership epoch; a piece of an older epoch is dropped.
        epoch: Epoch,
        chunk: Chunk,
    },
    /// A request for a run's text from an offset.
    Want {
        key: SessionKey,
        run_id: RunId,
        attempt: u32,
        /// UTF-8 bytes.
        offset: u64,
    },
    /// The ends of subscribed logs that the receiver has not acknowledged.
    Beacon {
        logs: Vec<(SessionKey, Cursor)>,
    },
    /// The acknowledged positions of logs.
    Have {
        logs: Vec<(SessionKey, Cursor)>,
    },
    /// The sender leaves a session that has open work; the receiver should claim it.
    Adopt {
        key: SessionKey,
        /// The ownership after the release.
        free: Seen,
    },
    /// A probe for reachability.
    Knock,
    /// A piece of process output.
    Printed {
        key: SessionKey,
        /// The ownership epoch; a piece of an older epoch is dropped.
        epoch: Epoch,
        /// The run that started the process.
        run_id: RunId,
        printed: Box<Printed>,
    },
    /// A message about a remote attempt; the switchboard ignores it.
    Trunk(TrunkWords),
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
}

impl Words {
    /// Returns an estimate of the message's size in a queue in bytes; the same on every node.
    pub fn weight(&self) -> usize {
        let content = match self {
            Self::Bell { item: Item::Input { input, .. }, .. } => input.weight(),
            Self::Facts { facts, .. } => facts.iter().map(|(_, entry)| entry.weight()).sum(),
            Self::Chunk { chunk, .. } => chunk.text.reveal().len(),
            Self::Printed { printed, .. } => printed.data.reveal().len(),
            Self::Beacon { logs } | Self::Have { logs } => logs.len() * 160,
            Self::Trunk(words) => words.weight(),
            Self::Bell { item: Item::Control { .. }, .. }
            | Self::Taken { .. }
            | Self::Answered { .. }
            | Self::NotMine { .. }
            | Self::Hello { .. }
            | Self::Want { .. }
            | Self::Adopt { .. }
            | Self::Reserve { .. }
            | Self::Reserved { .. }
            | Self::Knock => 0,
        };
        content + 256
    }
    /// Returns the session that the message is about, if any.
    pub fn key(&self) -> Option<&SessionKey> {
        match self {
            Self::Bell { key, .. }
            | Self::Taken { key, .. }
            | Self::Answered { key, .. }
            | Self::NotMine { key, .. }
            | Self::Hello { key, .. }
            | Self::Facts { key, .. }
            | Self::Chunk { key, .. }
            | Self::Printed { key, .. }
            | Self::Want { key, .. }
            | Self::Adopt { key, .. }
            | Self::Reserve { key, .. }
            | Self::Reserved { key, .. } => Some(key),
            Self::Beacon { .. } | Self::Have { .. } | Self::Knock | Self::Trunk(_) => None,
        }
    }
}

/// The content of an offer, included so that the owner need not read the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Item {
    /// A user input.
    Input {
        /// Position in the inbox.
        place: Place,
        /// Position of the preceding entry.
        prev: Place,
        #[serde(with = "json")]
        input: Arc<Input>,
    },
    /// A control entry.
    Control {
        /// Position in the inbox.
        place: Place,
        /// Position of the preceding entry.
        prev: Place,
        #[serde(with = "json")]
        control: Arc<Control>,
    },
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chunk {
    pub run_id: RunId,
    pub attempt: u32,
    /// Bytes that precede the piece in this attempt's text of this kind.
    pub offset: u64,
    pub kind: TextKind,
    pub text: Private<Arc<str>>,
}
