//! A replacement for the binary codec: its library is no longer maintained, but another one writes the same
//! bytes, so that replacing it changes one file.
//!
//! Covers: S-14.
use turnway_core::protocol::codec::{BlobKind, decode, encode};

/// Bytes that the codec puts before a body.
const HEADER: usize = 8;

#[test]
fn wincode_writes_the_same_bytes() {
    let value = (7u8, u64::MAX, "höh 語".to_owned(), vec![1u32, 2, 3], Some(5u16), None::<u16>);
    let ours = encode(BlobKind::Frame, &value).expect("encodes");
    let theirs = wincode::serialize(&value).expect("encodes");
    assert_eq!(ours[HEADER..], theirs[..]);
    let back: (u8, u64, String, Vec<u32>, Option<u16>, Option<u16>) = decode(BlobKind::Frame, &ours).expect("decodes");
    assert_eq!(back, value);
}
