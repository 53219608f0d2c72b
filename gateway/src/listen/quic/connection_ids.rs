//! Generates QUIC connection ids. Each begins with the node's id in the clear, so that a load balancer can route a
//! connection to its node after the client's address changes (S-24).
use quinn::crypto::HmacKey;
use quinn::{ConnectionId, ConnectionIdGenerator, EndpointConfig};
use quinn_proto::InvalidCid;
use std::sync::Arc;
use turnway_core::id::NodeId;

/// Bytes of the node's id in a connection id; few enough for a load balancer to be configured by hand.
const NODE_BYTES: usize = 4;
/// Random bytes, so that connection ids cannot be guessed (RFC 9000 §5.1).
const RANDOM_BYTES: usize = 8;
/// Bytes of a whole connection id.
pub(super) const ID_BYTES: usize = 1 + NODE_BYTES + RANDOM_BYTES;
/// First octet by draft-ietf-quic-load-balancers: configuration 0, and the number of bytes that follow.
const FIRST_OCTET: u8 = (ID_BYTES - 1) as u8;

/// A generator of this node's connection ids, which also recognises them.
#[derive(Clone, Copy, Debug)]
pub struct NodeConnectionIds {
    server: [u8; NODE_BYTES],
}

/// Returns the configuration of a server endpoint. The key of stateless resets belongs to this process alone: with a
/// shared key, each node, and everyone who can send to one, could end another node's connections (S-22).
pub(super) fn endpoint_config(node: NodeId) -> EndpointConfig {
    let key: Arc<dyn HmacKey> = Arc::new(reset_key());
    let mut config = EndpointConfig::new(key);
    let ids = NodeConnectionIds::for_node(node);
    config.cid_generator(move || Box::new(ids));
    config
}

fn reset_key() -> aws_lc_rs::hmac::Key {
    aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &random_bytes::<64>())
}

/// Returns random bytes. A node cannot be built without a random source, so this does not fail.
fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system gives chance: a node is made of it");
    bytes
}

// === impl NodeConnectionIds ===

impl NodeConnectionIds {
    /// Creates the generator of a node.
    pub fn for_node(node: NodeId) -> Self {
        let [a, b, c, d, ..] = node.0.to_be_bytes();
        Self { server: [a, b, c, d] }
    }
}

impl ConnectionIdGenerator for NodeConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; ID_BYTES];
        id[0] = FIRST_OCTET;
        id[1..=NODE_BYTES].copy_from_slice(&self.server);
        id[1 + NODE_BYTES..].copy_from_slice(&random_bytes::<RANDOM_BYTES>());
        ConnectionId::new(&id)
    }

    /// Rejects the ids of other nodes: such packets get no answer, not even a stateless reset.
    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        let is_ours = id.first() == Some(&FIRST_OCTET) && id.get(1..=NODE_BYTES) == Some(&self.server[..]);
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
    fn connection_ids_identify_their_node_and_are_unique() {
        let one = NodeId(0xdead_beef << 96 | 7);
        let other = NodeId(0xdead_beee << 96);
        let mut ours = NodeConnectionIds::for_node(one);
        let theirs = NodeConnectionIds::for_node(other);
        let first = ours.generate_cid();
        let second = ours.generate_cid();
        assert_eq!(first[..5], [12, 0xde, 0xad, 0xbe, 0xef]);
        assert_eq!(format!("{one}")[..8], *"deadbeef", "as everywhere else");
        assert!(first.len() == ours.cid_len() && first != second);
        assert!(ours.validate(&first).is_ok() && theirs.validate(&first).is_err());
        assert!(ours.validate(&ConnectionId::new(&[12, 0xde])).is_err());
    }

    /// Covers: S-22.
    #[test]
    fn stateless_reset_keys_differ_between_processes() {
        let tag = |key: &aws_lc_rs::hmac::Key| aws_lc_rs::hmac::sign(key, b"a name").as_ref().to_vec();
        assert_ne!(tag(&reset_key()), tag(&reset_key()));
    }
}
