//! Length and JSON: `u32`, the most significant byte first, and so many bytes of text.
use std::mem;
use turnway_core::limits;

/// Bytes of a length.
pub const LENGTH_BYTES: usize = 4;
/// A message's room grows in steps of this: what a client only announces costs nothing.
const STEP_BYTES: usize = 4 * 1024;

/// Puts messages together from what comes, and takes no byte of the next one before its turn.
#[derive(Debug)]
pub struct Frames {
    length: [u8; LENGTH_BYTES],
    /// Bytes of it that are there.
    have: u8,
    body: Vec<u8>,
    /// Bytes of the body that are there.
    read: usize,
    /// Bytes of the body there will be.
    whole: usize,
    /// The first message is `hello`, and small.
    max: usize,
}

/// What became of some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A whole message.
    Text(String),
    /// A message is longer than it may be; nothing more is read.
    TooLarge,
    /// A message is not UTF-8; nothing more is read.
    NotText,
}

/// Puts a message behind others.
pub fn put(text: &str, into: &mut bytes::BytesMut) {
    // What we write ends long before.
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    into.extend_from_slice(&length.to_be_bytes());
    into.extend_from_slice(text.as_bytes());
}

// === impl Frames ===

impl Default for Frames {
    fn default() -> Self {
        let (body, max) = (Vec::new(), limits::HELLO_BYTES_MAX);
        Self { length: [0; LENGTH_BYTES], have: 0, body, read: 0, whole: 0, max }
    }
}

impl Frames {
    /// Whether everything that came belongs to whole messages.
    pub fn is_between(&self) -> bool {
        self.have == 0
    }

    /// Where the next bytes go; never empty.
    pub fn room(&mut self) -> &mut [u8] {
        let have = usize::from(self.have);
        if have < LENGTH_BYTES {
            return &mut self.length[have..];
        }
        if self.read == self.body.len() {
            self.body.resize(self.whole.min(self.read + STEP_BYTES), 0);
        }
        &mut self.body[self.read..]
    }

    /// So many bytes were put there.
    pub fn filled(&mut self, bytes: usize) -> Option<Frame> {
        if usize::from(self.have) < LENGTH_BYTES {
            self.have += u8::try_from(bytes).unwrap_or(LENGTH_BYTES as u8);
            if usize::from(self.have) < LENGTH_BYTES {
                return None;
            }
            self.whole = usize::try_from(u32::from_be_bytes(self.length)).unwrap_or(usize::MAX);
            if self.whole > self.max {
                return Some(Frame::TooLarge);
            }
        } else {
            self.read += bytes;
        }
        if self.read < self.whole {
            return None;
        }
        (self.have, self.read, self.whole, self.max) = (0, 0, 0, limits::MESSAGE_BYTES_MAX);
        Some(String::from_utf8(mem::take(&mut self.body)).map_or(Frame::NotText, Frame::Text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is made of these bytes, however many come at a time.
    fn read(bytes: &[u8], step: usize) -> (Vec<Frame>, bool) {
        let (mut frames, mut found) = (Frames::default(), Vec::new());
        for mut chunk in bytes.chunks(step) {
            while !chunk.is_empty() {
                let room = frames.room();
                let count = room.len().min(chunk.len());
                room[..count].copy_from_slice(&chunk[..count]);
                chunk = &chunk[count..];
                found.extend(frames.filled(count));
                if matches!(found.last(), Some(Frame::TooLarge | Frame::NotText)) {
                    return (found, false);
                }
            }
        }
        let is_between = frames.is_between();
        (found, is_between)
    }

    fn frame(text: &[u8]) -> Vec<u8> {
        [&(text.len() as u32).to_be_bytes()[..], text].concat()
    }

    /// Covers: S-11.
    #[test]
    fn messages_come_whole_however_their_bytes_do() {
        let texts = ["{}", "", "é日🙂", &"x".repeat(limits::MESSAGE_BYTES_MAX)];
        let bytes: Vec<u8> = texts.iter().flat_map(|text| frame(text.as_bytes())).collect();
        let whole: Vec<Frame> = texts.iter().map(|text| Frame::Text((*text).to_owned())).collect();
        for step in [1, 3, 4, 5, 4096, bytes.len()] {
            assert_eq!(read(&bytes, step), (whole.clone(), true), "in steps of {step}");
        }
        assert!(!read(&bytes[..bytes.len() - 1], 100).1);
        assert!(!read(&[0, 0], 2).1);
    }

    /// Covers: S-11, S-04.
    #[test]
    fn what_is_too_long_is_seen_by_its_length_alone() {
        let hello = frame(&vec![b'x'; limits::HELLO_BYTES_MAX]);
        assert_eq!(read(&hello, 4096).0.len(), 1);
        let long = frame(&vec![b'x'; limits::HELLO_BYTES_MAX + 1]);
        assert_eq!(read(&long[..4], 4).0, [Frame::TooLarge]);
        let later = [&frame(b"{}")[..], &u32::MAX.to_be_bytes()].concat();
        assert_eq!(read(&later, 3).0, [Frame::Text("{}".to_owned()), Frame::TooLarge]);
        assert_eq!(read(&frame(&[0xff, 0xfe]), 2).0, [Frame::NotText]);
    }

    #[test]
    fn what_is_only_announced_costs_little() {
        let mut frames = Frames { max: limits::MESSAGE_BYTES_MAX, ..Frames::default() };
        frames.room().copy_from_slice(&(limits::MESSAGE_BYTES_MAX as u32).to_be_bytes());
        assert_eq!(frames.filled(4), None);
        assert_eq!(frames.room().len(), STEP_BYTES);
    }
}
