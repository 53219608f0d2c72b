//! What nodes say to each other, carried. It promises nothing: words may be lost, doubled and reordered,
//! and a node that may have missed some is told [`Heard::Gap`], and reads anew.
//!
//! - [`alone`]: of one node, which has nobody to speak to.
//! - [`redis`]: an inbox channel for each node.
pub mod alone;
pub mod redis;

use std::collections::BTreeSet;
use tokio::sync::mpsc;
use turnway_bindings::peer::Words;
use turnway_bindings::peer::frame::Frame;
use turnway_core::id::NodeId;

/// What was heard and waits for the driver: a frame is up to a MiB. Whatever waits behind it does so as
/// bytes, and those are counted.
const HEARD_MAX: usize = 32;

/// Words, and whom they are for.
pub type Mail = (NodeId, Words);

/// Carries words to other nodes; what comes of it arrives at the [`Ear`] it was made with.
pub trait Bus: Send + Sync + 'static {
    /// Takes what one round of the driver has to say, and leaves nothing of it. Never waits: what cannot
    /// be taken is lost, and counted.
    fn post(&self, mail: &mut Vec<Mail>);
}

/// What a node hears.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    /// Another node spoke.
    Frame(Frame),
    /// Nobody listened at this node's inbox when it was spoken to.
    Unheard(NodeId),
    /// Something may have been missed.
    Gap,
    /// This node leaves, and these can take over.
    Heirs(BTreeSet<NodeId>),
}

/// Where a bus puts what it hears.
pub type Mouth = mpsc::Sender<Heard>;
/// Where a driver finds it.
pub type Ear = mpsc::Receiver<Heard>;

/// A mouth and its ear.
pub fn ear() -> (Mouth, Ear) {
    mpsc::channel(HEARD_MAX)
}
