//! The bus of a node that shares its store with no other node. Every other node counts as gone. Created by
//! `app::build`.
use crate::bus::{AddressedMessage, Bus, BusEvent, BusEventSender};
use std::collections::BTreeSet;

/// A bus without other nodes: every receiver of a message is reported as gone.
pub struct LocalBus {
    events: BusEventSender,
}

impl LocalBus {
    /// Creates the bus.
    pub fn new(events: BusEventSender) -> Self {
        Self { events }
    }
}

impl Bus for LocalBus {
    fn publish(&self, messages: &mut Vec<AddressedMessage>) {
        for to in messages.drain(..).map(|(to, _)| to).collect::<BTreeSet<_>>() {
            // If the queue is full, the next message to that node reports it.
            self.events.try_send(BusEvent::NotSubscribed(to));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus;
    use turnway_core::id::NodeId;
    use turnway_wire::peer::PeerMessage;

    #[test]
    fn message_to_another_node_is_reported_undeliverable() {
        let (event_sender, mut event_receiver) = bus::event_channel();
        let mut messages =
            vec![(NodeId(2), PeerMessage::Probe), (NodeId(1), PeerMessage::Probe), (NodeId(2), PeerMessage::Probe)];
        LocalBus::new(event_sender).publish(&mut messages);
        assert!(messages.is_empty());
        assert_eq!(event_receiver.try_recv(), Ok(BusEvent::NotSubscribed(NodeId(1))));
        assert_eq!(event_receiver.try_recv(), Ok(BusEvent::NotSubscribed(NodeId(2))));
        assert!(event_receiver.try_recv().is_err());
    }
}
