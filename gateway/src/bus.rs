//! The bus between nodes, for a single node ([`local`]) or over Redis ([`redis`]). It guarantees nothing: messages may
//! be lost, duplicated and reordered. A node that may have missed messages gets [`BusEvent::Gap`], and reads its
//! state from the store again.
pub mod local;
pub mod redis;

use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::mpsc;
use turnway_core::id::NodeId;
use turnway_wire::peer::PeerMessage;
use turnway_wire::peer::frame::PeerFrame;
use turnway_wire::peer::remote::{ALL_NODES, RemoteMessage};

/// Capacity of the queue to the driver: a frame is up to 1 MiB. Further frames wait as bytes in the inbox of the bus,
/// which is limited by bytes.
const EVENTS_MAX: usize = 32;

/// A message, and its receiver.
pub type AddressedMessage = (NodeId, PeerMessage);

/// A transport of messages to other nodes. Events of the bus go to the [`BusEventSender`] that it was made with.
pub trait Bus: Send + Sync + 'static {
    /// Takes all messages of one round of the driver, and empties the list. Never blocks: a message that does not fit
    /// is lost, and counted.
    fn publish(&self, messages: &mut Vec<AddressedMessage>);
}

/// An event of the bus.
#[derive(Clone, Debug, PartialEq)]
pub enum BusEvent {
    /// Messages of another node.
    Frame(PeerFrame),
    /// No process was subscribed to the inbox of this node when a message was sent to it.
    NotSubscribed(NodeId),
    /// Messages may have been missed.
    Gap,
    /// This node leaves, and these nodes can take over.
    Successors(BTreeSet<NodeId>),
    /// The level of facts that every live node knows.
    FactLevel(u32),
}

/// The sending end for events of the bus: messages about dial-in agents go to the remote calls, all others to the
/// driver.
#[derive(Clone)]
pub struct BusEventSender {
    driver: mpsc::Sender<BusEvent>,
    remote_calls: Option<Arc<dyn RemoteCallHandler>>,
}

/// The receiver of messages about dial-in agents. Its methods must not block.
pub trait RemoteCallHandler: Send + Sync + 'static {
    /// Returns the id of this node.
    fn node(&self) -> NodeId;
    /// Handles a message of a node, possibly of this one.
    fn handle_message(&self, from: NodeId, message: RemoteMessage);
    /// Handles the notice that a node received no message.
    fn handle_not_subscribed(&self, node: NodeId);
    /// Handles the notice that messages may have been missed.
    fn handle_gap(&self);
}

/// The driver's receiving end for events of the bus.
pub type BusEventReceiver = mpsc::Receiver<BusEvent>;

/// Creates the two ends of the driver's event queue.
pub fn event_channel() -> (BusEventSender, BusEventReceiver) {
    let (driver, events) = mpsc::channel(EVENTS_MAX);
    (BusEventSender { driver, remote_calls: None }, events)
}

// === impl BusEventSender ===

impl BusEventSender {
    /// Adds the receiver of messages about dial-in agents.
    #[must_use]
    pub fn with_remote_calls(self, lines: Arc<dyn RemoteCallHandler>) -> Self {
        Self { remote_calls: Some(lines), ..self }
    }

    /// Passes an event on; waits while the driver is behind. A driver that is gone receives nothing more, but the
    /// remote calls may still have something to end.
    pub async fn send(&self, event: BusEvent) {
        if let Some(event) = self.split(event) {
            _ = self.driver.send(event).await;
        }
    }

    /// Passes an event on without waiting; the driver's part is lost if its queue is full.
    pub fn try_send(&self, event: BusEvent) {
        if let Some(event) = self.split(event) {
            _ = self.driver.try_send(event);
        }
    }

    /// Hands the remote calls their part of an event, and returns the driver's part.
    fn split(&self, event: BusEvent) -> Option<BusEvent> {
        match event {
            BusEvent::Frame(PeerFrame { from, messages: message }) => {
                let mut rest = Vec::with_capacity(message.len());
                for message in message {
                    if let PeerMessage::RemoteAttempt(message) = message {
                        self.remote_calls.iter().for_each(|handler| handler.handle_message(from, message.clone()));
                    } else {
                        rest.push(message);
                    }
                }
                (!rest.is_empty()).then_some(BusEvent::Frame(PeerFrame { from, messages: rest }))
            }
            BusEvent::NotSubscribed(node) => {
                self.remote_calls.iter().for_each(|handler| handler.handle_not_subscribed(node));
                let is_own =
                    node == ALL_NODES || self.remote_calls.as_ref().is_some_and(|handler| handler.node() == node);
                (!is_own).then_some(BusEvent::NotSubscribed(node))
            }
            BusEvent::Gap => {
                self.remote_calls.iter().for_each(|handler| handler.handle_gap());
                Some(BusEvent::Gap)
            }
            BusEvent::Successors(_) | BusEvent::FactLevel(_) => Some(event),
        }
    }
}
