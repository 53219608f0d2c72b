//! Fuzz targets for input that nodes read from each other and from their store.
use turnway_core::id::{SessionId, SessionKey, TenantId};
use turnway_core::limits::FRAME_MESSAGES_MAX;
use turnway_core::protocol::codec::{BlobKind, encode_head};
use turnway_core::protocol::entry::Entry;
use turnway_wire::peer::frame::PeerFrame;

/// Parses a frame of another node, and the same bytes again as a body behind a valid header.
pub fn frame(bytes: &[u8]) -> usize {
    let whole = read(bytes);
    if let Ok(mut headed) = encode_head(BlobKind::Frame, &(), bytes.len()) {
        headed.extend_from_slice(bytes);
        return whole + read(&headed);
    }
    whole
}

fn read(blob: &[u8]) -> usize {
    let Ok(frame) = PeerFrame::decode(blob) else { return 0 };
    assert!(frame.messages.len() <= FRAME_MESSAGES_MAX);
    assert!(!format!("{frame:?}").is_empty());
    1
}

/// Parses a fact of the log, and asserts that the fact survives a round trip.
pub fn fact(bytes: &[u8]) -> usize {
    let Some(read) = std::str::from_utf8(bytes).ok().and_then(|json| Entry::from_json(json).ok()) else {
        return 0;
    };
    let Ok(session) = SessionId::parse(&read.session_id) else { return 0 };
    let key = SessionKey { tenant: TenantId::default_tenant(), session };
    let json = read.entry.to_json(&key, read.seq, read.epoch);
    let again = Entry::from_json(&json).expect("what we write we read");
    assert_eq!((again.entry, again.seq, again.epoch), (read.entry, read.seq, read.epoch));
    1
}
