//! What nodes say to each other. Every one of these is safe to lose, to double and to reorder.
//!
//! - [`frame`]: words as bytes.
//! - [`trunk`]: those about agents that have dialed in.
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

/// One message from node to node. The order of variants and fields is the order of bytes in a frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Words {
    /// There is something for you, as far as I know.
    Bell {
        /// Which session.
        key: SessionKey,
        /// Whom I take you for.
        owner: Seen,
        /// What.
        item: Item,
    },
    /// I have that input; ring no more.
    Taken {
        /// Which session.
        key: SessionKey,
        /// Which turn.
        run_id: RunId,
    },
    /// That control entry is answered, durably.
    Answered {
        /// Which session.
        key: SessionKey,
        /// Which.
        control: ControlId,
        /// A fact says so to whoever follows the session.
        shown: bool,
    },
    /// I have no seat there.
    NotMine {
        /// Which session.
        key: SessionKey,
        /// As you rang.
        owner: Seen,
    },
    /// I listen; the store knows.
    Hello {
        /// Which session.
        key: SessionKey,
        /// Since when.
        stamp: Stamp,
    },
    /// Durable facts, and the one they follow.
    Facts {
        /// Which session.
        key: SessionKey,
        /// Who wrote them.
        owner: Seen,
        /// What they follow.
        after: Cursor,
        /// With their epochs.
        #[serde(with = "json::facts")]
        facts: Vec<(Epoch, Arc<Entry>)>,
    },
    /// A piece of an answer.
    Chunk {
        /// Which session.
        key: SessionKey,
        /// By which ownership: an older one than seen is dropped.
        epoch: Epoch,
        /// The piece.
        chunk: Chunk,
    },
    /// Send me that run's text from there on.
    Want {
        /// Which session.
        key: SessionKey,
        /// Which run.
        run_id: RunId,
        /// Which attempt.
        attempt: u32,
        /// From which byte.
        offset: u64,
    },
    /// Where the logs end that you listen to and have not acknowledged.
    Beacon {
        /// By session.
        logs: Vec<(SessionKey, Cursor)>,
    },
    /// How far I have them.
    Have {
        /// By session.
        logs: Vec<(SessionKey, Cursor)>,
    },
    /// I am leaving this with work to do.
    Adopt {
        /// Which session.
        key: SessionKey,
        /// As it was when I left.
        free: Seen,
    },
    /// Are you there?
    Knock,
    /// A piece of what a process prints.
    Printed {
        /// Which session.
        key: SessionKey,
        /// By which ownership: an older one than seen is dropped.
        epoch: Epoch,
        /// In which run it was asked for.
        run_id: RunId,
        /// The piece.
        printed: Box<Printed>,
    },
    /// Of agents that have dialed in; the switchboard has nothing to do with it.
    Trunk(TrunkWords),
    /// I am leaving this with work to do: would you own it?
    Reserve {
        /// Which session.
        key: SessionKey,
        /// By which ownership I have it.
        epoch: Epoch,
    },
    /// I would.
    Reserved {
        /// Which session.
        key: SessionKey,
        /// By which ownership you have it.
        epoch: Epoch,
        /// As whom.
        holder: Holder,
        /// By which claim.
        nonce: Nonce,
    },
}

impl Words {
    /// Bytes they take in a queue: an estimate that is the same everywhere.
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
    /// The session they are about, where they are about one.
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

/// What a bell is rung for: the payload is in it, so that its owner need not read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Item {
    /// An input.
    Input {
        /// Where it lies.
        place: Place,
        /// The place before.
        prev: Place,
        /// What.
        #[serde(with = "json")]
        input: Arc<Input>,
    },
    /// A control entry.
    Control {
        /// Where it lies.
        place: Place,
        /// The place before.
        prev: Place,
        /// What.
        #[serde(with = "json")]
        control: Arc<Control>,
    },
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chunk {
    /// Of which run.
    pub run_id: RunId,
    /// Of which attempt.
    pub attempt: u32,
    /// Bytes of this attempt's text of this kind before it.
    pub offset: u64,
    /// Answer or reasoning.
    pub kind: TextKind,
    /// The piece.
    pub text: Private<Arc<str>>,
}
