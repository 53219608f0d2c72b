//! Names of connections. Each begins with its node's, in the clear, so that what spreads datagrams over nodes can
//! follow a connection wherever its client moves (S-24).
use quinn::crypto::HmacKey;
use quinn::{ConnectionId, ConnectionIdGenerator, EndpointConfig};
use quinn_proto::InvalidCid;
use std::sync::Arc;
use turnway_core::id::NodeId;

/// Of a node's name; as many as a configuration of a balancer would hold by hand.
const SERVER_BYTES: usize = 4;
/// Chance, so that nobody guesses a name (RFC 9000 §5.1).
const CHANCE_BYTES: usize = 8;
/// All of a name.
pub(super) const ID_BYTES: usize = 1 + SERVER_BYTES + CHANCE_BYTES;
/// As draft-ietf-quic-load-balancers has it: configuration 0, and how many bytes follow.
const FIRST: u8 = (ID_BYTES - 1) as u8;

/// Gives names, and knows which are its own.
#[derive(Clone, Copy, Debug)]
pub struct Ids {
    server: [u8; SERVER_BYTES],
}

/// A server's end. The key of its stateless resets is this process's own: one that nodes share would let any of
/// them, and whoever can send to it, end another's connections (S-22).
pub(super) fn endpoint(node: NodeId) -> EndpointConfig {
    let key: Arc<dyn HmacKey> = Arc::new(reset_key());
    let mut config = EndpointConfig::new(key);
    let ids = Ids::of(node);
    config.cid_generator(move || Box::new(ids));
    config
}

fn reset_key() -> aws_lc_rs::hmac::Key {
    aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &chance::<64>())
}

/// Where the system has no chance to give, a node was not built.
fn chance<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system gives chance: a node is made of it");
    bytes
}

// === impl Ids ===

impl Ids {
    /// Of this node.
    pub fn of(node: NodeId) -> Self {
        let [a, b, c, d, ..] = node.0.to_be_bytes();
        Self { server: [a, b, c, d] }
    }
}

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; ID_BYTES];
        id[0] = FIRST;
        id[1..=SERVER_BYTES].copy_from_slice(&self.server);
        id[1 + SERVER_BYTES..].copy_from_slice(&chance::<CHANCE_BYTES>());
        ConnectionId::new(&id)
    }

    /// What is another node's is not answered, not even by a reset.
    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        let is_ours = id.first() == Some(&FIRST) && id.get(1..=SERVER_BYTES) == Some(&self.server[..]);
        if is_ours { Ok(()) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<std::time::Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: S-24.
    #[test]
    fn a_name_says_whose_it_is_and_no_two_are_alike() {
        let (one, other) = (NodeId(0xdead_beef << 96 | 7), NodeId(0xdead_beee << 96));
        let (mut ours, theirs) = (Ids::of(one), Ids::of(other));
        let (first, second) = (ours.generate_cid(), ours.generate_cid());
        assert_eq!(first[..5], [12, 0xde, 0xad, 0xbe, 0xef]);
        assert_eq!(format!("{one}")[..8], *"deadbeef", "as everywhere else");
        assert!(first.len() == ours.cid_len() && first != second);
        assert!(ours.validate(&first).is_ok() && theirs.validate(&first).is_err());
        assert!(ours.validate(&ConnectionId::new(&[12, 0xde])).is_err());
    }

    /// Covers: S-22.
    #[test]
    fn no_two_processes_end_each_others_connections() {
        let tag = |key: &aws_lc_rs::hmac::Key| aws_lc_rs::hmac::sign(key, b"a name").as_ref().to_vec();
        assert_ne!(tag(&reset_key()), tag(&reset_key()));
    }
}
