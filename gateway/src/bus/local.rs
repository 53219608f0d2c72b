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
    fn publish(&self, mail: &mut Vec<AddressedMessage>) {
        for to in mail.drain(..).map(|(to, _)| to).collect::<BTreeSet<_>>() {
            // If the queue is full, the next message to that node reports it.
            self.events.try_send(BusEvent::NotSubscribed(to));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus;
    use turnway_bindings::peer::PeerMessage;
    use turnway_core::id::NodeId;

    #[test]
    fn message_to_another_node_is_reported_undeliverable() {
        let (mouth, mut ear) = bus::event_channel();
        let mut mail =
            vec![(NodeId(2), PeerMessage::Probe), (NodeId(1), PeerMessage::Probe), (NodeId(2), PeerMessage::Probe)];
        LocalBus::new(mouth).publish(&mut mail);
        assert!(mail.is_empty());
        assert_eq!(ear.try_recv(), Ok(BusEvent::NotSubscribed(NodeId(1))));
        assert_eq!(ear.try_recv(), Ok(BusEvent::NotSubscribed(NodeId(2))));
        assert!(ear.try_recv().is_err());
    }
}
