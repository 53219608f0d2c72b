//! The bus between nodes, for a single node ([`alone`]) or over Redis ([`redis`]). It guarantees nothing: messages may
//! be lost, duplicated and reordered. A node that may have missed messages gets [`Heard::Gap`], and reads its state
//! from the store again.
pub mod alone;
pub mod redis;

use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::mpsc;
use turnway_bindings::peer::Words;
use turnway_bindings::peer::frame::Frame;
use turnway_bindings::peer::trunk::{EVERYONE, TrunkWords};
use turnway_core::id::NodeId;

/// Capacity of the queue to the driver: a frame is up to 1 MiB. Further frames wait as bytes in the inbox of the bus,
/// which is limited by bytes.
const HEARD_MAX: usize = 32;

/// A message, and its receiver.
pub type Mail = (NodeId, Words);

/// A transport of messages to other nodes. Events of the bus go to the [`Mouth`] that it was made with.
pub trait Bus: Send + Sync + 'static {
    /// Takes all messages of one round of the driver, and empties the list. Never blocks: a message that does not fit
    /// is lost, and counted.
    fn post(&self, mail: &mut Vec<Mail>);
}

/// An event of the bus.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    /// Messages of another node.
    Frame(Frame),
    /// No process was subscribed to the inbox of this node when a message was sent to it.
    Unheard(NodeId),
    /// Messages may have been missed.
    Gap,
    /// This node leaves, and these nodes can take over.
    Heirs(BTreeSet<NodeId>),
}

/// The sending end for events of the bus: messages about dial-in agents go to the remote calls, all others to the
/// driver.
#[derive(Clone)]
pub struct Mouth {
    driver: mpsc::Sender<Heard>,
    lines: Option<Arc<dyn Lines>>,
}

/// The receiver of messages about dial-in agents. Its methods must not block.
pub trait Lines: Send + Sync + 'static {
    /// Returns the id of this node.
    fn node(&self) -> NodeId;
    /// Handles a message of a node, possibly of this one.
    fn heard(&self, from: NodeId, words: TrunkWords);
    /// Handles the notice that a node received no message.
    fn unheard(&self, node: NodeId);
    /// Handles the notice that messages may have been missed.
    fn gap(&self);
}

/// The driver's receiving end for events of the bus.
pub type Ear = mpsc::Receiver<Heard>;

/// Creates the two ends of the driver's event queue.
pub fn ear() -> (Mouth, Ear) {
    let (driver, ear) = mpsc::channel(HEARD_MAX);
    (Mouth { driver, lines: None }, ear)
}

// === impl Mouth ===

impl Mouth {
    /// Adds the receiver of messages about dial-in agents.
    #[must_use]
    pub fn with(self, lines: Arc<dyn Lines>) -> Self {
        Self { lines: Some(lines), ..self }
    }

    /// Passes an event on; waits while the driver is behind. A driver that is gone receives nothing more, but the
    /// remote calls may still have something to end.
    pub async fn send(&self, heard: Heard) {
        if let Some(heard) = self.part(heard) {
            _ = self.driver.send(heard).await;
        }
    }

    /// Passes an event on without waiting; the driver's part is lost if its queue is full.
    pub fn try_send(&self, heard: Heard) {
        if let Some(heard) = self.part(heard) {
            _ = self.driver.try_send(heard);
        }
    }

    /// Hands the remote calls their part of an event, and returns the driver's part.
    fn part(&self, heard: Heard) -> Option<Heard> {
        match heard {
            Heard::Frame(Frame { from, words }) => {
                let mut rest = Vec::with_capacity(words.len());
                for words in words {
                    if let Words::Trunk(words) = words {
                        self.lines.iter().for_each(|lines| lines.heard(from, words.clone()));
                    } else {
                        rest.push(words);
                    }
                }
                (!rest.is_empty()).then_some(Heard::Frame(Frame { from, words: rest }))
            }
            Heard::Unheard(node) => {
                self.lines.iter().for_each(|lines| lines.unheard(node));
                let is_own =
                    node == EVERYONE || self.lines.as_ref().is_some_and(|lines| lines.node() == node);
                (!is_own).then_some(Heard::Unheard(node))
            }
            Heard::Gap => {
                self.lines.iter().for_each(|lines| lines.gap());
                Some(Heard::Gap)
            }
            Heard::Heirs(nodes) => Some(Heard::Heirs(nodes)),
        }
    }
}
