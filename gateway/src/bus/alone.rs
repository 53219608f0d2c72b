//! The bus of a node that shares its store with no other node. Every other node counts as gone. Created by
//! `app::build`.
use crate::bus::{Bus, Heard, Mail, Mouth};
use std::collections::BTreeSet;

/// A bus without other nodes: every receiver of a message is reported as gone.
pub struct Alone {
    mouth: Mouth,
}

impl Alone {
    /// Creates the bus.
    pub fn new(mouth: Mouth) -> Self {
        Self { mouth }
    }
}

impl Bus for Alone {
    fn post(&self, mail: &mut Vec<Mail>) {
        for to in mail.drain(..).map(|(to, _)| to).collect::<BTreeSet<_>>() {
            // If the queue is full, the next message to that node reports it.
            self.mouth.try_send(Heard::Unheard(to));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus;
    use turnway_bindings::peer::Words;
    use turnway_core::id::NodeId;

    #[test]
    fn message_to_another_node_is_reported_undeliverable() {
        let (mouth, mut ear) = bus::ear();
        let mut mail = vec![(NodeId(2), Words::Knock), (NodeId(1), Words::Knock), (NodeId(2), Words::Knock)];
        Alone::new(mouth).post(&mut mail);
        assert!(mail.is_empty());
        assert_eq!(ear.try_recv(), Ok(Heard::Unheard(NodeId(1))));
        assert_eq!(ear.try_recv(), Ok(Heard::Unheard(NodeId(2))));
        assert!(ear.try_recv().is_err());
    }
}
