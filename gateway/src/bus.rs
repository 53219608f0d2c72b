//! What nodes say to each other, carried. It promises nothing: words may be lost, doubled and reordered,
//! and a node that may have missed some is told [`Heard::Gap`], and reads anew.
//!
//! - [`alone`]: of one node, which has nobody to speak to.
//! - [`redis`]: an inbox channel for each node.
pub mod alone;
pub mod redis;

use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::mpsc;
use turnway_bindings::peer::Words;
use turnway_bindings::peer::frame::Frame;
use turnway_bindings::peer::trunk::{EVERYONE, TrunkWords};
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

/// Where a bus puts what it hears: what is about agents that have dialed in goes to the lines between nodes, all else to
/// the driver.
#[derive(Clone)]
pub struct Mouth {
    driver: mpsc::Sender<Heard>,
    lines: Option<Arc<dyn Lines>>,
}

/// Who hears what is about agents that have dialed in. Never waits.
pub trait Lines: Send + Sync + 'static {
    /// Which node is at this end.
    fn node(&self) -> NodeId;
    /// A node has said something; it may be this one.
    fn heard(&self, from: NodeId, words: TrunkWords);
    /// Nobody listened at that node.
    fn unheard(&self, node: NodeId);
    /// Words may have been missed.
    fn gap(&self);
}

/// Where a driver finds it.
pub type Ear = mpsc::Receiver<Heard>;

/// A mouth and its ear.
pub fn ear() -> (Mouth, Ear) {
    let (driver, ear) = mpsc::channel(HEARD_MAX);
    (Mouth { driver, lines: None }, ear)
}

// === impl Mouth ===

impl Mouth {
    /// The same, and with these lines.
    #[must_use]
    pub fn with(self, lines: Arc<dyn Lines>) -> Self {
        Self { lines: Some(lines), ..self }
    }

    /// Hands on what was heard; waits where the driver is behind. A driver that is gone hears nothing more: the lines
    /// may still have something to end.
    pub async fn send(&self, heard: Heard) {
        if let Some(heard) = self.part(heard) {
            _ = self.driver.send(heard).await;
        }
    }

    /// The same without waiting: where there is no room it is lost.
    pub fn try_send(&self, heard: Heard) {
        if let Some(heard) = self.part(heard) {
            _ = self.driver.try_send(heard);
        }
    }

    /// Gives the lines what is theirs, and returns what is the driver's.
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
