//! The test messages, 128 bytes each: send time, number and padding.
use crate::mode::session_client::monotonic_nanos;
use std::time::Duration;

/// Bytes of a message.
pub const BYTES: usize = 128;
/// First byte of a message, which occurs nowhere else in any of the protocols.
const START_BYTE: u8 = b'~';
/// Bytes of the head: the first byte, and two numbers in 16 and 8 hexadecimal digits.
const HEAD: usize = 1 + 16 + 8;

/// A received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestMessage {
    /// Send time, in nanoseconds of the monotonic clock.
    pub sent_at: u64,
    /// Number of the message.
    pub n: u32,
}

/// Finds messages in a connection's bytes, wherever frames begin and end.
#[derive(Debug, Default)]
pub struct TestMessageScanner {
    /// Beginning of a head that continues in the next piece.
    begun: Vec<u8>,
}

/// Returns the n-th message, stamped with the current time.
pub fn test_message_text(n: u32) -> String {
    let mut text = format!("{}{:016x}{n:08x}", char::from(START_BYTE), monotonic_nanos());
    text.extend(std::iter::repeat_n('x', BYTES - HEAD));
    text
}

// === impl TestMessage ===

impl TestMessage {
    /// Returns the time since the message was sent.
    pub fn age(self) -> Duration {
        Duration::from_nanos(monotonic_nanos().saturating_sub(self.sent_at))
    }

    fn read(head: &[u8]) -> Option<Self> {
        let digits = std::str::from_utf8(head.get(1..HEAD)?).ok()?;
        let said = u64::from_str_radix(digits.get(..16)?, 16).ok()?;
        Some(Self { sent_at: said, n: u32::from_str_radix(digits.get(16..)?, 16).ok()? })
    }
}

// === impl TestMessageScanner ===

impl TestMessageScanner {
    /// Calls `hear` for each message whose head ends in this piece.
    pub fn scan(&mut self, mut piece: &[u8], hear: &mut dyn FnMut(TestMessage)) {
        if !self.begun.is_empty() {
            let more = piece.len().min(HEAD - self.begun.len());
            self.begun.extend_from_slice(&piece[..more]);
            piece = &piece[more..];
            if self.begun.len() < HEAD {
                return;
            }
            TestMessage::read(&self.begun).into_iter().for_each(&mut *hear);
            self.begun.clear();
        }
        while let Some(at) = piece.iter().position(|byte| *byte == START_BYTE) {
            piece = &piece[at..];
            if piece.len() < HEAD {
                self.begun.extend_from_slice(piece);
                return;
            }
            TestMessage::read(piece).into_iter().for_each(&mut *hear);
            piece = &piece[HEAD..];
        }
    }

    /// Discards the beginning of a head, because the next bytes belong to another connection.
    pub fn reset(&mut self) {
        self.begun.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_wherever_they_are_cut() {
        let text =
            format!("[\"{}\"] and {}{}.", test_message_text(7), test_message_text(8), test_message_text(u32::MAX));
        assert_eq!(test_message_text(7).len(), BYTES);
        for cut in 0..text.len() {
            let mut scanner = TestMessageScanner::default();
            let mut found = Vec::new();
            let (one, two) = text.as_bytes().split_at(cut);
            scanner.scan(one, &mut |mark| found.push(mark.n));
            scanner.scan(two, &mut |mark| found.push(mark.n));
            assert_eq!(found, [7, 8, u32::MAX], "cut at {cut}");
        }
    }

    #[test]
    fn what_a_lost_connection_began_is_no_part_of_the_next() {
        let mut scanner = TestMessageScanner::default();
        let mut found = Vec::new();
        scanner.scan(&test_message_text(1).as_bytes()[..9], &mut |mark| found.push(mark.n));
        scanner.reset();
        scanner.scan(test_message_text(2).as_bytes(), &mut |mark| found.push(mark.n));
        assert_eq!(found, [2]);
    }
}
