//! Tracks WebSocket frame boundaries between the socket and its codec, so that the connection task can replace a codec
//! whose buffers have grown. Enforces before the codec what the codec misses or checks only on a complete frame: the
//! limit of fragments (S-11), header rules (RFC 6455) and the size of a first message, which is `hello` (S-04).
use super::maybe_tls::MaybeTlsStream;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};

/// Maximum fragments of one message (S-11): no client needs more, and each fragment costs work without a bound.
const FRAGMENTS_MAX: u8 = 32;
/// Two bytes and at most eight bytes of length (RFC 6455 §5.2). The mask counts as payload here.
const HEADER_BYTES_MAX: usize = 10;
/// Every frame of a client is masked (RFC 6455 §5.3).
const MASK_BYTES: u64 = 4;

/// A socket that tracks how far its reader is within a frame, and can be moved from one codec to another.
#[derive(Debug, Default)]
pub struct FrameGuard {
    /// `None` once the stream was taken out.
    stream: Option<MaybeTlsStream>,
    frames: FrameTracker,
    /// Bytes read since the upgrade.
    received: u64,
    /// Once set, every further read fails with this error.
    violation: Option<FrameViolation>,
}

/// A parser of the frame headers in the bytes of a client.
#[derive(Debug, Default)]
pub struct FrameTracker {
    header: [u8; HEADER_BYTES_MAX],
    /// Header bytes that have arrived, of the frame at hand.
    header_len: u8,
    /// Fragments so far of an unfinished message.
    fragments: u8,
    /// Bytes that the first message may still have; `None` after its end. Small, because its sender is not
    /// authenticated.
    hello_budget: Option<u16>,
    /// Complete messages and control frames that the codec has not yet delivered.
    undelivered: u32,
    /// Bytes of mask and payload that are missing, of the frame at hand.
    remaining: u64,
}

/// A violation for which a frame is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameViolation {
    /// A message has more than `FRAGMENTS_MAX` fragments.
    #[error("too many fragments")]
    TooManyFragments,
    /// A frame header that no client may send (RFC 6455 §5).
    #[error("invalid WebSocket frame (RFC 6455)")]
    InvalidHeader,
    /// The first message is longer than [`limits::HELLO_BYTES_MAX`].
    #[error("the first message is too long for a hello")]
    HelloTooLong,
}

// === impl FrameGuard ===

impl FrameGuard {
    /// Wraps a socket after the upgrade; `read` is what the client has sent behind its request. Also returns the part
    /// of `read` that the codec may parse.
    pub fn new(stream: MaybeTlsStream, mut read: Vec<u8>) -> (Self, Vec<u8>) {
        let mut frames = FrameTracker::before_hello();
        let breach = frames.track(&read).err().map(|(good, breach)| {
            read.truncate(good);
            breach
        });
        (Self { stream: Some(stream), frames, received: 0, violation: breach }, read)
    }

    /// Takes the stream out of its wrapper, to use it without a codec.
    pub fn take_stream(&mut self) -> Option<MaybeTlsStream> {
        self.stream.take()
    }

    /// Records that the codec has delivered one message or control frame to its reader.
    pub fn message_delivered(&mut self) {
        self.frames.undelivered = self.frames.undelivered.saturating_sub(1);
    }

    /// Returns the number of bytes read.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Returns true if the codec holds no undelivered bytes of the client, so that it can be replaced.
    pub fn is_drained(&self) -> bool {
        let frames = &self.frames;
        frames.undelivered == 0 && frames.header_len == 0 && frames.remaining == 0 && frames.fragments == 0
    }

    fn stream(&mut self) -> io::Result<Pin<&mut MaybeTlsStream>> {
        self.stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl AsyncRead for FrameGuard {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Some(breach) = self.violation {
            return Poll::Ready(Err(io::Error::other(breach)));
        }
        let before = buf.filled().len();
        let done = self.stream()?.poll_read(cx, buf);
        self.received += (buf.filled().len() - before) as u64;
        let Err((good, breach)) = self.frames.track(&buf.filled()[before..]) else { return done };
        // The frames before the violation are answered first.
        self.violation = Some(breach);
        buf.set_filled(before + good);
        if good > 0 { done } else { Poll::Ready(Err(io::Error::other(breach))) }
    }
}

impl AsyncWrite for FrameGuard {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_shutdown(cx)
    }
}

// === impl FrameTracker ===

impl FrameTracker {
    /// Creates the tracker of a client that has not sent `hello`.
    pub fn before_hello() -> Self {
        Self { hello_budget: u16::try_from(limits::HELLO_BYTES_MAX).ok(), ..Self::default() }
    }

    /// Tracks more bytes of the client. On a violation, also returns how many bytes lie before the offending header.
    pub fn track(&mut self, bytes: &[u8]) -> Result<(), (usize, FrameViolation)> {
        let mut at = 0;
        let mut header_at = 0;
        while at < bytes.len() {
            if self.remaining > 0 {
                let step = usize::try_from(self.remaining).unwrap_or(usize::MAX).min(bytes.len() - at);
                at += step;
                self.remaining -= step as u64;
            } else {
                if self.header_len == 0 {
                    header_at = at;
                }
                self.header[usize::from(self.header_len)] = bytes[at];
                self.header_len += 1;
                at += 1;
                self.parse_header().map_err(|breach| (header_at, breach))?;
            }
            if self.remaining == 0 && self.header_len == 0 && self.header[0] & 0x80 != 0 {
                // Last byte of a control frame, or of a message's last frame.
                self.undelivered += 1;
                self.header[0] = 0;
            }
        }
        Ok(())
    }

    /// Parses the header if all of it has arrived.
    fn parse_header(&mut self) -> Result<(), FrameViolation> {
        let [first, second, ..] = self.header;
        let need = match (self.header_len, second & 0x7f) {
            (0..2, _) => return Ok(()),
            (_, 126) => 4,
            (_, 127) => 10,
            (_, _) => 2,
        };
        if self.is_invalid(first, second) {
            return Err(FrameViolation::InvalidHeader);
        }
        if self.header_len < need {
            return Ok(());
        }
        let length = self.header[2..usize::from(need)].iter().fold(0, |sum: u64, byte| sum << 8 | u64::from(*byte));
        // The shortest encoding of the length is required, and the most significant bit must be 0 (§5.2).
        let length = match need {
            2 => u64::from(second & 0x7f),
            4 if length >= 126 => length,
            10 if length > u64::from(u16::MAX) && length >> 63 == 0 => length,
            _ => return Err(FrameViolation::InvalidHeader),
        };
        (self.header_len, self.remaining) = (0, length.saturating_add(MASK_BYTES));
        let is_last = first & 0x80 != 0;
        let is_control = first & 0x08 != 0;
        if !is_control {
            self.fragments = if is_last { 0 } else { self.fragments + 1 };
            if let Some(budget) = self.hello_budget {
                let left = u16::try_from(length).ok().and_then(|length| budget.checked_sub(length));
                self.hello_budget = Some(left.ok_or(FrameViolation::HelloTooLong)?).filter(|_| !is_last);
            }
        }
        let most = if planted(Planted::FragmentsDoubled) { FRAGMENTS_MAX * 2 } else { FRAGMENTS_MAX };
        if self.fragments >= most { Err(FrameViolation::TooManyFragments) } else { Ok(()) }
    }

    /// Returns true if the first two bytes alone break a rule.
    fn is_invalid(&self, first: u8, second: u8) -> bool {
        let is_last = first & 0x80 != 0;
        // Reserved bits need an extension (§5.2), and a client must mask (§5.1).
        let is_odd = first & 0x70 != 0 || second & 0x80 == 0;
        is_odd
            || match first & 0x0f {
                // A continuation needs an unfinished message (§5.4).
                0 => self.fragments == 0,
                1 | 2 => self.fragments > 0,
                // A control frame is not fragmented and has at most 125 bytes (§5.5).
                8..=10 => !is_last || second & 0x7f > 125,
                _ => true,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a masked frame of a client.
    fn frame(first: u8, payload: usize) -> Vec<u8> {
        let mut bytes = vec![first];
        match u16::try_from(payload) {
            Ok(short @ 0..126) => bytes.push(0x80 | short as u8),
            Ok(length) => {
                bytes.push(0x80 | 126);
                bytes.extend(length.to_be_bytes());
            }
            Err(_) => {
                bytes.push(0x80 | 127);
                bytes.extend((payload as u64).to_be_bytes());
            }
        }
        bytes.extend([7; 4]);
        bytes.extend(vec![0x81; payload]);
        bytes
    }

    fn between(frames: &FrameTracker) -> bool {
        frames.header_len == 0 && frames.remaining == 0 && frames.fragments == 0
    }

    #[test]
    fn frame_boundaries_are_found_in_any_chunking() {
        let frames = [(0x81, 0), (0x81, 5), (0x89, 125), (0x82, 126), (0x81, 65_535), (0x81, 65_536)];
        let bytes: Vec<u8> = frames.iter().flat_map(|(first, payload)| frame(*first, *payload)).collect();
        for step in [1, 2, 3, 7, 1000, bytes.len()] {
            let mut seen = FrameTracker::default();
            for chunk in bytes.chunks(step) {
                seen.track(chunk).expect("few fragments");
            }
            assert!(between(&seen), "in steps of {step}");
            assert_eq!(seen.undelivered, 6, "in steps of {step}");
        }
        let mut cut = FrameTracker::default();
        for byte in &bytes[..bytes.len() - 1] {
            cut.track(&[*byte]).expect("few fragments");
        }
        assert!(!between(&cut) && cut.undelivered == 5);
    }

    /// Covers: S-11.
    #[test]
    fn fragments_are_limited_and_control_frames_not_counted() {
        let mut seen = FrameTracker::default();
        seen.track(&frame(0x01, 3)).expect("the first");
        for _ in 0..FRAGMENTS_MAX - 2 {
            seen.track(&frame(0x00, 3)).expect("one more");
            seen.track(&frame(0x89, 3)).expect("a ping");
        }
        assert!(!between(&seen));
        let mut whole = FrameTracker::default();
        std::mem::swap(&mut whole, &mut seen);
        let mut more = FrameTracker { fragments: whole.fragments, ..FrameTracker::default() };
        whole.track(&frame(0x80, 3)).expect("the last");
        assert!(between(&whole));
        assert_eq!(more.track(&frame(0x00, 3)), Err((0, FrameViolation::TooManyFragments)));
    }

    /// Covers: S-04.
    #[test]
    fn unauthenticated_client_is_limited_to_the_hello_size() {
        let most = limits::HELLO_BYTES_MAX;
        let mut seen = FrameTracker::before_hello();
        seen.track(&[frame(0x89, 125), frame(0x81, most), frame(0x81, 60_000)].concat()).expect("a hello");
        assert!(between(&seen) && seen.undelivered == 3);
        for longer in [frame(0x81, most + 1), frame(0x81, 60_000), frame(0x82, 70_000)] {
            // The header alone is refused.
            let ping = frame(0x89, 3);
            let result = FrameTracker::before_hello().track(&[&ping[..], &longer[..14]].concat());
            assert_eq!(result, Err((ping.len(), FrameViolation::HelloTooLong)));
        }
        let mut pieces = FrameTracker::before_hello();
        pieces.track(&[frame(0x01, most - 10), frame(0x89, 125), frame(0x00, 10)].concat()).expect("so far");
        assert_eq!(pieces.track(&frame(0x80, 1)), Err((0, FrameViolation::HelloTooLong)));
    }

    /// Covers: S-11.
    #[test]
    fn bytes_before_an_invalid_header_are_still_accepted() {
        let good = frame(0x81, 5);
        for bad in [
            &[0xc1, 0x80][..],
            &[0x81, 0],
            &[0x83, 0x80],
            &[0x80, 0x80],
            &[0x09, 0x80],
            &[0x89, 0xfe],
            &[0x81, 0xfe, 0, 125],
            &[0x81, 0xff, 0, 0, 0, 0, 0, 0, 255, 255],
            &[0x81, 0xff, 128, 0, 0, 0, 0, 0, 0, 0],
        ] {
            let mut seen = FrameTracker::default();
            let result = seen.track(&[&good[..], bad, &[1; 9]].concat());
            assert_eq!(result, Err((good.len(), FrameViolation::InvalidHeader)), "{bad:?}");
            let mut bytewise = FrameTracker::default();
            bytewise.track(&good).expect("it is good");
            let result = bad.iter().map(|byte| bytewise.track(&[*byte])).find(Result::is_err);
            assert_eq!(result, Some(Err((0, FrameViolation::InvalidHeader))), "{bad:?}");
        }
    }
}
