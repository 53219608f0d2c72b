//! Reads the messages of one stream: a length of four bytes, then that many bytes of JSON.
use crate::connection::MESSAGE_BYTES_MAX;
use bytes::{Buf, Bytes, BytesMut};
use quinn::{ReadError, RecvStream};
use std::task::{Context, Poll, ready};
use tokio_tungstenite::tungstenite::Utf8Bytes;

/// Bytes of the length prefix.
const LENGTH_BYTES: usize = 4;
/// Size of one read. The buffer is on the stack, so an idle connection holds no memory for it.
const READ_BYTES: usize = 4 * 1024;

/// A stream, and the received part of its next message.
#[derive(Debug)]
pub(super) struct FrameReader {
    stream: RecvStream,
    buffer: BytesMut,
}

/// The reason why a stream yields no further message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadEnd {
    /// The stream has ended.
    End,
    /// The stream ends within a message, or its content is not a message.
    Broken,
    /// The connection is lost.
    Lost,
}

// === impl FrameReader ===

impl FrameReader {
    pub(super) fn new(stream: RecvStream) -> Self {
        Self { stream, buffer: BytesMut::new() }
    }

    /// Returns the next whole message.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Utf8Bytes, ReadEnd>> {
        loop {
            if let Some(text) = split(&mut self.buffer)? {
                return Poll::Ready(Ok(text));
            }
            let mut buffer = [0; READ_BYTES];
            match ready!(self.stream.poll_read(cx, &mut buffer)) {
                Ok(0) if self.buffer.is_empty() => return Poll::Ready(Err(ReadEnd::End)),
                Ok(0) | Err(ReadError::Reset(_)) => return Poll::Ready(Err(ReadEnd::Broken)),
                Ok(count) => self.buffer.extend_from_slice(&buffer[..count]),
                Err(ReadError::ConnectionLost(_)) => return Poll::Ready(Err(ReadEnd::Lost)),
                Err(ReadError::ClosedStream | ReadError::IllegalOrderedRead | ReadError::ZeroRttRejected) => {
                    return Poll::Ready(Err(ReadEnd::End));
                }
            }
        }
    }
}

/// Takes a whole message from the front of the buffer, if there is one.
fn split(buffer: &mut BytesMut) -> Result<Option<Utf8Bytes>, ReadEnd> {
    let Some(length) = buffer.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if length > MESSAGE_BYTES_MAX {
        return Err(ReadEnd::Broken);
    }
    if buffer.len() - LENGTH_BYTES < length {
        return Ok(None);
    }
    buffer.advance(LENGTH_BYTES);
    let text: Bytes = buffer.split_to(length).freeze();
    if buffer.is_empty() {
        // The memory belongs to the message now and is freed with it.
        *buffer = BytesMut::new();
    }
    Utf8Bytes::try_from(text).map(Some).map_err(|_| ReadEnd::Broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_put_together_from_any_pieces() {
        let said = [&[0, 0, 0, 2][..], b"{}", &[0, 0, 0, 3], b"\xc3\xa4!", &[0, 0, 0, 0]].concat();
        for step in 1..=said.len() {
            let mut buffer = BytesMut::new();
            let mut heard = Vec::new();
            for piece in said.chunks(step) {
                buffer.extend_from_slice(piece);
                while let Some(text) = split(&mut buffer).expect("messages") {
                    heard.push(text.to_string());
                }
            }
            assert_eq!((heard.join("|").as_str(), buffer.len()), ("{}|ä!|", 0), "in pieces of {step}");
        }
    }

    #[test]
    fn what_is_no_message_is_not_waited_for() {
        assert_eq!(split(&mut BytesMut::from(&[0xff, 0xff, 0xff, 0xff][..])), Err(ReadEnd::Broken));
        assert_eq!(split(&mut BytesMut::from(&[0, 0, 0, 1, 0xff][..])), Err(ReadEnd::Broken));
        assert_eq!(split(&mut BytesMut::from(&[0, 0, 0, 9, b'{'][..])), Ok(None));
    }
}
