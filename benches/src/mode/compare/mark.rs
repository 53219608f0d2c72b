//! The test messages, 128 bytes each: send time, number and padding.
use crate::mode::talk::stamp;
use std::time::Duration;

/// Bytes of a message.
pub const BYTES: usize = 128;
/// First byte of a message, which occurs nowhere else in any of the protocols.
const BEGIN: u8 = b'~';
/// Bytes of the head: the first byte, and two numbers in 16 and 8 hexadecimal digits.
const HEAD: usize = 1 + 16 + 8;

/// A received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Send time, in nanoseconds of the monotonic clock.
    pub said: u64,
    /// Number of the message.
    pub n: u32,
}

/// Finds messages in a connection's bytes, wherever frames begin and end.
#[derive(Debug, Default)]
pub struct Scanner {
    /// Beginning of a head that continues in the next piece.
    begun: Vec<u8>,
}

/// Returns the n-th message, stamped with the current time.
pub fn message(n: u32) -> String {
    let mut text = format!("{}{:016x}{n:08x}", char::from(BEGIN), stamp());
    text.extend(std::iter::repeat_n('x', BYTES - HEAD));
    text
}

// === impl Mark ===

impl Mark {
    /// Returns the time since the message was sent.
    pub fn age(self) -> Duration {
        Duration::from_nanos(stamp().saturating_sub(self.said))
    }

    fn read(head: &[u8]) -> Option<Self> {
        let digits = std::str::from_utf8(head.get(1..HEAD)?).ok()?;
        let said = u64::from_str_radix(digits.get(..16)?, 16).ok()?;
        Some(Self { said, n: u32::from_str_radix(digits.get(16..)?, 16).ok()? })
    }
}

// === impl Scanner ===

impl Scanner {
    /// Calls `hear` for each message whose head ends in this piece.
    pub fn scan(&mut self, mut piece: &[u8], hear: &mut dyn FnMut(Mark)) {
        if !self.begun.is_empty() {
            let more = piece.len().min(HEAD - self.begun.len());
            self.begun.extend_from_slice(&piece[..more]);
            piece = &piece[more..];
            if self.begun.len() < HEAD {
                return;
            }
            Mark::read(&self.begun).into_iter().for_each(&mut *hear);
            self.begun.clear();
        }
        while let Some(at) = piece.iter().position(|byte| *byte == BEGIN) {
            piece = &piece[at..];
            if piece.len() < HEAD {
                self.begun.extend_from_slice(piece);
                return;
            }
            Mark::read(piece).into_iter().for_each(&mut *hear);
            piece = &piece[HEAD..];
        }
    }

    /// Discards the beginning of a head, because the next bytes belong to another connection.
    pub fn forget(&mut self) {
        self.begun.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_wherever_they_are_cut() {
        let text = format!("[\"{}\"] and {}{}.", message(7), message(8), message(u32::MAX));
        assert_eq!(message(7).len(), BYTES);
        for cut in 0..text.len() {
            let (mut scanner, mut found) = (Scanner::default(), Vec::new());
            let (one, two) = text.as_bytes().split_at(cut);
            scanner.scan(one, &mut |mark| found.push(mark.n));
            scanner.scan(two, &mut |mark| found.push(mark.n));
            assert_eq!(found, [7, 8, u32::MAX], "cut at {cut}");
        }
    }

    #[test]
    fn what_a_lost_connection_began_is_no_part_of_the_next() {
        let (mut scanner, mut found) = (Scanner::default(), Vec::new());
        scanner.scan(&message(1).as_bytes()[..9], &mut |mark| found.push(mark.n));
        scanner.forget();
        scanner.scan(message(2).as_bytes(), &mut |mark| found.push(mark.n));
        assert_eq!(found, [2]);
    }
}
