//! The way out of the binary codec: its library is not maintained any more, and another one writes the
//! same bytes, so leaving it is a change of one file.
//!
//! Covers: S-14.
use turnway_core::protocol::codec::{Kind, decode, encode};

/// What the codec puts before a body.
const HEADER: usize = 8;

#[test]
fn another_library_writes_the_same_bytes() {
    let value = (7u8, u64::MAX, "höh 語".to_owned(), vec![1u32, 2, 3], Some(5u16), None::<u16>);
    let ours = encode(Kind::Frame, &value).expect("encodes");
    let theirs = wincode::serialize(&value).expect("encodes");
    assert_eq!(ours[HEADER..], theirs[..]);
    let back: (u8, u64, String, Vec<u32>, Option<u16>, Option<u16>) =
        decode(Kind::Frame, &ours).expect("decodes");
    assert_eq!(back, value);
}
