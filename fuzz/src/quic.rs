//! What clients send by QUIC that is ours to read: frames of the control stream, connection ids, proofs of addresses.
//! QUIC's own packets are quinn's to read.
use quinn::crypto::HandshakeTokenKey;
use quinn::{ConnectionId, ConnectionIdGenerator};
use std::sync::LazyLock;
use turnway::clock::Clock;
use turnway::listen::quic::frames::{Frame, Frames, LENGTH_BYTES, put};
use turnway::listen::quic::ids::Ids;
use turnway::listen::quic::tokens::TokenKeys;
use turnway_core::id::NodeId;
use turnway_core::limits;

/// What a reader asks for at a time, at the most: nothing is kept for what is only announced.
const ROOM_BYTES_MAX: usize = 4 * 1024;
/// The longest id of RFC 9000.
const ID_BYTES_MAX: usize = 20;
/// The node of whom ids begin `0c 61 62 63 64`.
const NODE: NodeId = NodeId(0x6162_6364 << 96);
/// A token ends with this much of chance.
const CHANCE_BYTES: usize = 16;

static KEYS: LazyLock<TokenKeys> = LazyLock::new(|| TokenKeys::new(&[[7; 32], [8; 32]], Clock::start()));

/// A control stream in steps whose size is the first byte: what is read does not depend on them, fits its limit, and is
/// written as it was. Understood are whole messages.
pub fn frames(bytes: &[u8]) -> usize {
    let Some((&step, bytes)) = bytes.split_first() else { return 0 };
    let whole = read(bytes, bytes.len());
    let found = read(bytes, usize::from(step).max(1));
    assert_eq!(whole, found, "in steps of {step}");
    let mut written = bytes::BytesMut::new();
    let mut texts = 0;
    for (n, frame) in found.iter().enumerate() {
        match frame {
            Frame::Text(text) => {
                let max = if n == 0 { limits::HELLO_BYTES_MAX } else { limits::MESSAGE_BYTES_MAX };
                assert!(text.len() <= max, "{} bytes", text.len());
                put(text, &mut written);
                texts += 1;
            }
            Frame::TooLarge | Frame::NotText => assert_eq!(n + 1, found.len(), "nothing more is read"),
        }
    }
    assert!(bytes.starts_with(&written), "it is another text");
    texts
}

/// Reads until nothing more may be read.
fn read(bytes: &[u8], step: usize) -> Vec<Frame> {
    let (mut frames, mut found) = (Frames::default(), Vec::new());
    for mut chunk in bytes.chunks(step.max(1)) {
        while !chunk.is_empty() {
            let room = frames.room();
            assert!(!room.is_empty() && room.len() <= ROOM_BYTES_MAX.max(LENGTH_BYTES), "{}", room.len());
            let count = room.len().min(chunk.len());
            room[..count].copy_from_slice(&chunk[..count]);
            chunk = &chunk[count..];
            found.extend(frames.filled(count));
            if matches!(found.last(), Some(Frame::TooLarge | Frame::NotText)) {
                return found;
            }
        }
    }
    found
}

/// A connection's id, behind its length, and a token. Ids are a node's own by their beginning and length alone; what
/// nobody has sealed opens nothing, and what is sealed opens as it was, and no more with a bit of it bent. Understood is
/// an id of ours.
pub fn proofs(bytes: &[u8]) -> usize {
    let Some((&length, bytes)) = bytes.split_first() else { return 0 };
    let (id, token) = bytes.split_at(bytes.len().min(usize::from(length) % (ID_BYTES_MAX + 1)));
    let is_ours = Ids::of(NODE).validate(&ConnectionId::new(id)).is_ok();
    assert_eq!(is_ours, id.starts_with(b"\x0cabcd"), "{id:?}");
    let (sealed, chance) = token.split_at(token.len().saturating_sub(CHANCE_BYTES));
    let key = KEYS.aead_from_hkdf(chance);
    assert!(key.open(&mut sealed.to_vec(), b"").is_err(), "it was made without a key");
    let mut made = sealed.to_vec();
    key.seal(&mut made, b"").expect("sealed");
    assert_eq!(key.open(&mut made.clone(), b"").ok().as_deref(), Some(sealed));
    made[usize::from(length) % sealed.len().max(1)] ^= 1;
    assert!(key.open(&mut made, b"").is_err(), "a bent one opens");
    usize::from(is_ours)
}
