//! Frames messages on the control stream: a big-endian `u32` length, then that many bytes of UTF-8 JSON.
use std::mem;
use turnway_core::limits;

/// Bytes of the length prefix.
pub const LENGTH_BYTES: usize = 4;
/// The body buffer grows in steps of this size, so that an announced but unsent message costs no memory.
const STEP_BYTES: usize = 4 * 1024;

/// A reader that assembles messages from stream bytes, and never reads past the message at hand.
#[derive(Debug)]
pub struct QuicFrameReader {
    length: [u8; LENGTH_BYTES],
    /// Bytes of the length that have arrived.
    length_read: u8,
    body: Vec<u8>,
    /// Bytes of the body that have arrived.
    body_read: usize,
    /// Bytes of the whole body.
    body_len: usize,
    /// Maximum body size. Smaller for the first message, which is `hello`.
    max: usize,
}

/// The outcome of received bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuicFrame {
    /// A complete message.
    Text(String),
    /// A message exceeds its maximum size; nothing more may be read.
    TooLarge,
    /// A message is not UTF-8; nothing more may be read.
    NotText,
}

/// Appends a framed message to a buffer.
pub fn encode(text: &str, into: &mut bytes::BytesMut) {
    // Our own messages are far shorter.
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    into.extend_from_slice(&length.to_be_bytes());
    into.extend_from_slice(text.as_bytes());
}

// === impl QuicFrameReader ===

impl Default for QuicFrameReader {
    fn default() -> Self {
        let body = Vec::new();
        let max = limits::HELLO_BYTES_MAX;
        Self { length: [0; LENGTH_BYTES], length_read: 0, body, body_read: 0, body_len: 0, max }
    }
}

impl QuicFrameReader {
    /// Returns true if no incomplete message is pending.
    pub fn is_at_boundary(&self) -> bool {
        self.length_read == 0
    }

    /// Returns the buffer for the next bytes; never empty.
    pub fn buffer(&mut self) -> &mut [u8] {
        let have = usize::from(self.length_read);
        if have < LENGTH_BYTES {
            return &mut self.length[have..];
        }
        if self.body_read == self.body.len() {
            self.body.resize(self.body_len.min(self.body_read + STEP_BYTES), 0);
        }
        &mut self.body[self.body_read..]
    }

    /// Records that `bytes` bytes were written to the buffer. Returns a message or an error once one is determined.
    pub fn advance(&mut self, bytes: usize) -> Option<QuicFrame> {
        if usize::from(self.length_read) < LENGTH_BYTES {
            self.length_read += u8::try_from(bytes).unwrap_or(LENGTH_BYTES as u8);
            if usize::from(self.length_read) < LENGTH_BYTES {
                return None;
            }
            self.body_len = usize::try_from(u32::from_be_bytes(self.length)).unwrap_or(usize::MAX);
            if self.body_len > self.max {
                return Some(QuicFrame::TooLarge);
            }
        } else {
            self.body_read += bytes;
        }
        if self.body_read < self.body_len {
            return None;
        }
        (self.length_read, self.body_read, self.body_len, self.max) = (0, 0, 0, limits::MESSAGE_BYTES_MAX);
        Some(String::from_utf8(mem::take(&mut self.body)).map_or(QuicFrame::NotText, QuicFrame::Text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes these bytes, `step` at a time.
    fn read(bytes: &[u8], step: usize) -> (Vec<QuicFrame>, bool) {
        let mut frames = QuicFrameReader::default();
        let mut found = Vec::new();
        for mut chunk in bytes.chunks(step) {
            while !chunk.is_empty() {
                let buffer = frames.buffer();
                let count = buffer.len().min(chunk.len());
                buffer[..count].copy_from_slice(&chunk[..count]);
                chunk = &chunk[count..];
                found.extend(frames.advance(count));
                if matches!(found.last(), Some(QuicFrame::TooLarge | QuicFrame::NotText)) {
                    return (found, false);
                }
            }
        }
        let is_between = frames.is_at_boundary();
        (found, is_between)
    }

    fn frame(text: &[u8]) -> Vec<u8> {
        [&(text.len() as u32).to_be_bytes()[..], text].concat()
    }

    /// Covers: S-11.
    #[test]
    fn messages_are_reassembled_from_any_chunking() {
        let texts = ["{}", "", "é日🙂", &"x".repeat(limits::MESSAGE_BYTES_MAX)];
        let bytes: Vec<u8> = texts.iter().flat_map(|text| frame(text.as_bytes())).collect();
        let whole: Vec<QuicFrame> = texts.iter().map(|text| QuicFrame::Text((*text).to_owned())).collect();
        for step in [1, 3, 4, 5, 4096, bytes.len()] {
            assert_eq!(read(&bytes, step), (whole.clone(), true), "in steps of {step}");
        }
        assert!(!read(&bytes[..bytes.len() - 1], 100).1);
        assert!(!read(&[0, 0], 2).1);
    }

    /// Covers: S-11, S-04.
    #[test]
    fn oversized_message_is_refused_by_its_length_prefix() {
        let hello = frame(&vec![b'x'; limits::HELLO_BYTES_MAX]);
        assert_eq!(read(&hello, 4096).0.len(), 1);
        let long = frame(&vec![b'x'; limits::HELLO_BYTES_MAX + 1]);
        assert_eq!(read(&long[..4], 4).0, [QuicFrame::TooLarge]);
        let later = [&frame(b"{}")[..], &u32::MAX.to_be_bytes()].concat();
        assert_eq!(read(&later, 3).0, [QuicFrame::Text("{}".to_owned()), QuicFrame::TooLarge]);
        assert_eq!(read(&frame(&[0xff, 0xfe]), 2).0, [QuicFrame::NotText]);
    }

    #[test]
    fn announced_length_reserves_little_memory() {
        let mut frames = QuicFrameReader { max: limits::MESSAGE_BYTES_MAX, ..QuicFrameReader::default() };
        frames.buffer().copy_from_slice(&(limits::MESSAGE_BYTES_MAX as u32).to_be_bytes());
        assert_eq!(frames.advance(4), None);
        assert_eq!(frames.buffer().len(), STEP_BYTES);
    }
}
