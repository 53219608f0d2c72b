//! Fuzz targets for the parts of QUIC that the gateway reads: control-stream frames, connection ids and
//! address-validation tokens. Packets of QUIC are read by quinn.
use quinn::crypto::HandshakeTokenKey;
use quinn::{ConnectionId, ConnectionIdGenerator};
use std::sync::LazyLock;
use turnway::clock::Clock;
use turnway::listen::quic::address_tokens::AddressTokenKeys;
use turnway::listen::quic::connection_ids::NodeConnectionIds;
use turnway::listen::quic::frames::{LENGTH_BYTES, QuicFrame, QuicFrameReader, encode};
use turnway_core::id::NodeId;
use turnway_core::limits;

/// Maximum buffer that a reader asks for at a time: announced lengths must not reserve memory.
const BUFFER_BYTES_MAX: usize = 4 * 1024;
/// Maximum length of a connection id (RFC 9000).
const ID_BYTES_MAX: usize = 20;
/// The node whose connection ids begin with `0c 61 62 63 64`.
const NODE: NodeId = NodeId(0x6162_6364 << 96);
/// Number of random bytes at the end of a token.
const RANDOM_BYTES: usize = 16;

static KEYS: LazyLock<AddressTokenKeys> = LazyLock::new(|| AddressTokenKeys::new(&[[7; 32], [8; 32]], Clock::start()));

/// Reads a control stream in steps of the size given by the first byte. Asserts that the frames do not depend
/// on the steps, fit their limits, and are written as they were read. Returns the number of whole messages.
pub fn frames(bytes: &[u8]) -> usize {
    let Some((&step, bytes)) = bytes.split_first() else { return 0 };
    let whole = read(bytes, bytes.len());
    let found = read(bytes, usize::from(step).max(1));
    assert_eq!(whole, found, "in steps of {step}");
    let mut written = bytes::BytesMut::new();
    let mut texts = 0;
    for (n, frame) in found.iter().enumerate() {
        match frame {
            QuicFrame::Text(text) => {
                let max = if n == 0 { limits::HELLO_BYTES_MAX } else { limits::MESSAGE_BYTES_MAX };
                assert!(text.len() <= max, "{} bytes", text.len());
                encode(text, &mut written);
                texts += 1;
            }
            QuicFrame::TooLarge | QuicFrame::NotText => {
                assert_eq!(n + 1, found.len(), "nothing more is read")
            }
        }
    }
    assert!(bytes.starts_with(&written), "it is another text");
    texts
}

/// Reads until the end, or until a frame that ends the stream.
fn read(bytes: &[u8], step: usize) -> Vec<QuicFrame> {
    let mut frames = QuicFrameReader::default();
    let mut found = Vec::new();
    for mut chunk in bytes.chunks(step.max(1)) {
        while !chunk.is_empty() {
            let room = frames.buffer();
            assert!(!room.is_empty() && room.len() <= BUFFER_BYTES_MAX.max(LENGTH_BYTES), "{}", room.len());
            let count = room.len().min(chunk.len());
            room[..count].copy_from_slice(&chunk[..count]);
            chunk = &chunk[count..];
            found.extend(frames.advance(count));
            if matches!(found.last(), Some(QuicFrame::TooLarge | QuicFrame::NotText)) {
                return found;
            }
        }
    }
    found
}

/// Checks a connection id, whose length is the first byte, and a token. An id is ours by its prefix and length
/// alone. Asserts that unsealed bytes do not open, that a sealed token opens unchanged, and that a flipped bit
/// prevents opening. Returns 1 if the id is ours.
pub fn ids_and_tokens(bytes: &[u8]) -> usize {
    let Some((&length, bytes)) = bytes.split_first() else { return 0 };
    let (id, token) = bytes.split_at(bytes.len().min(usize::from(length) % (ID_BYTES_MAX + 1)));
    let is_ours = NodeConnectionIds::for_node(NODE).validate(&ConnectionId::new(id)).is_ok();
    assert_eq!(is_ours, id.starts_with(b"\x0cabcd"), "{id:?}");
    let (sealed, chance) = token.split_at(token.len().saturating_sub(RANDOM_BYTES));
    let key = KEYS.aead_from_hkdf(chance);
    assert!(key.open(&mut sealed.to_vec(), b"").is_err(), "it was made without a key");
    let mut made = sealed.to_vec();
    key.seal(&mut made, b"").expect("sealed");
    assert_eq!(key.open(&mut made.clone(), b"").ok().as_deref(), Some(sealed));
    made[usize::from(length) % sealed.len().max(1)] ^= 1;
    assert!(key.open(&mut made, b"").is_err(), "a bent one opens");
    usize::from(is_ours)
}
