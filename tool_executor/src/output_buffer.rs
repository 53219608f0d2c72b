//! Buffers the output of a process: cuts it into pieces, drops output over the rate limit, and keeps the last
//! bytes.
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::collections::VecDeque;
use turnway_core::limits::{
    OUTPUT_CHUNK_BYTES_MAX, OUTPUT_CHUNK_JSON_BYTES_MAX, OUTPUT_CHUNK_WAIT, OUTPUT_TAIL_BYTES,
    OUTPUT_TAIL_JSON_BYTES_MAX, RUNNER_OUTPUT_BYTES_PER_SECOND,
};
use turnway_core::protocol::action::OutputEncoding;
use turnway_core::protocol::json::json_prefix_len;
use turnway_core::rate::OutputRate;
use turnway_core::time::Mono;

/// A piece of one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputPiece {
    /// Offset of the first byte in the stream.
    pub offset: u64,
    /// At most [`OUTPUT_CHUNK_BYTES_MAX`] bytes, in the form of `encoding`.
    pub data: String,
    pub encoding: OutputEncoding,
    /// Output before this piece was dropped.
    pub truncated: bool,
}

/// The output buffer of one stream of a process.
#[derive(Clone, Debug, Default)]
pub struct OutputBuffer {
    /// Offset of the first pending byte.
    offset: u64,
    pending: Vec<u8>,
    /// Time at which pending output is emitted, however short.
    flush_at: Option<Mono>,
    /// Output was dropped since the last piece.
    gap: bool,
    dropped: bool,
    tail: VecDeque<u8>,
}

// === impl OutputBuffer ===

impl OutputBuffer {
    /// Adds output. Complete pieces are appended to `pieces`.
    pub fn push(&mut self, now: Mono, mut bytes: &[u8], pace: &mut OutputRate, pieces: &mut Vec<OutputPiece>) {
        let keep = &bytes[bytes.len().saturating_sub(OUTPUT_TAIL_BYTES)..];
        self.tail.extend(keep);
        self.tail.drain(..self.tail.len().saturating_sub(OUTPUT_TAIL_BYTES));
        while !bytes.is_empty() {
            let (part, rest) = bytes.split_at(bytes.len().min(OUTPUT_CHUNK_BYTES_MAX - self.pending.len()));
            self.pending.extend_from_slice(part);
            bytes = rest;
            if self.pending.len() == OUTPUT_CHUNK_BYTES_MAX {
                self.emit(now, false, pace, pieces);
            }
        }
        if self.flush_at.is_none() && !self.pending.is_empty() {
            self.flush_at = Some(now + OUTPUT_CHUNK_WAIT);
        }
    }

    /// Emits pending output if its wait has expired.
    pub fn flush(&mut self, now: Mono, pace: &mut OutputRate, pieces: &mut Vec<OutputPiece>) {
        if self.flush_at.is_some_and(|due| due <= now) {
            self.emit(now, false, pace, pieces);
        }
    }

    /// Ends the stream. If the last output was dropped, an empty piece reports that.
    pub fn finish(&mut self, now: Mono, pace: &mut OutputRate, pieces: &mut Vec<OutputPiece>) {
        self.emit(now, true, pace, pieces);
        if std::mem::take(&mut self.gap) {
            let data = String::new();
            let encoding = OutputEncoding::Utf8;
            pieces.push(OutputPiece { offset: self.offset, data, encoding, truncated: true });
        }
    }

    /// Returns the time at which [`Self::flush`] must be called.
    pub fn flush_deadline(&self) -> Option<Mono> {
        self.flush_at
    }

    /// Returns the number of bytes printed.
    pub fn bytes(&self) -> u64 {
        self.offset.saturating_add(u64::try_from(self.pending.len()).unwrap_or(u64::MAX))
    }

    /// Returns whether output was dropped.
    pub fn has_dropped(&self) -> bool {
        self.dropped
    }

    /// Returns the end of the output as a text that fits a result and begins with a complete character. While the
    /// stream is open (`is_over` is false), an incomplete last character is omitted.
    pub fn tail(&self, is_over: bool) -> String {
        let bytes: Vec<u8> = self.tail.iter().copied().collect();
        let is_cut = self.bytes() > bytes.len() as u64;
        let from = if is_cut {
            bytes.iter().take(CONTINUATION_BYTES_MAX).take_while(|byte| is_continuation_byte(**byte)).count()
        } else {
            0
        };
        let to = bytes.len() - if is_over { 0 } else { incomplete_suffix(&bytes) };
        let text = String::from_utf8_lossy(bytes.get(from..to).unwrap_or_default());
        // Bytes that are not valid UTF-8 become U+FFFD, which takes three bytes.
        let text = &text[text.ceil_char_boundary(text.len().saturating_sub(OUTPUT_TAIL_BYTES))..];
        let reversed: String = text.chars().rev().collect();
        reversed[..json_prefix_len(&reversed, OUTPUT_TAIL_JSON_BYTES_MAX)].chars().rev().collect()
    }

    /// Emits pending output in pieces that fit a message.
    fn emit(&mut self, now: Mono, last: bool, pace: &mut OutputRate, pieces: &mut Vec<OutputPiece>) {
        self.flush_at = None;
        while self.emit_one(now, last, pace, pieces) {}
    }

    fn emit_one(&mut self, now: Mono, last: bool, pace: &mut OutputRate, pieces: &mut Vec<OutputPiece>) -> bool {
        // An incomplete last character waits for its remaining bytes.
        let whole = self.pending.len() - if last { 0 } else { incomplete_suffix(&self.pending) };
        let (end, encoding) = match std::str::from_utf8(&self.pending[..whole]) {
            // Control characters take six bytes each in JSON.
            Ok(text) => (json_prefix_len(text, OUTPUT_CHUNK_JSON_BYTES_MAX), OutputEncoding::Utf8),
            Err(_) => (whole, OutputEncoding::Base64),
        };
        if end == 0 {
            return false;
        }
        let piece: Vec<u8> = self.pending.drain(..end).collect();
        let offset = self.offset;
        self.offset = offset.saturating_add(u64::try_from(end).unwrap_or(u64::MAX));
        if !pace.take(now, end, RUNNER_OUTPUT_BYTES_PER_SECOND) {
            (self.gap, self.dropped) = (true, true);
            return true;
        }
        let data = match encoding {
            OutputEncoding::Utf8 => String::from_utf8_lossy(&piece).into_owned(),
            OutputEncoding::Base64 => STANDARD.encode(&piece),
        };
        pieces.push(OutputPiece { offset, data, encoding, truncated: std::mem::take(&mut self.gap) });
        true
    }
}

/// Maximum number of continuation bytes of a UTF-8 character.
const CONTINUATION_BYTES_MAX: usize = 3;

/// Returns whether a byte is a UTF-8 continuation byte.
fn is_continuation_byte(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

/// Returns the number of bytes at the end that begin an incomplete character.
fn incomplete_suffix(bytes: &[u8]) -> usize {
    let rest = bytes.iter().rev().take(CONTINUATION_BYTES_MAX).take_while(|byte| is_continuation_byte(**byte)).count();
    let end = &bytes[bytes.len().saturating_sub(rest + 1)..];
    match std::str::from_utf8(end) {
        Err(error) if error.error_len().is_none() => end.len() - error.valid_up_to(),
        Ok(_) | Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(ms: u64) -> Mono {
        Mono(Duration::from_millis(ms))
    }

    /// Covers: LN-EV7.
    #[test]
    fn small_output_is_batched_and_large_output_split() {
        let mut buffer = OutputBuffer::default();
        let mut pace = OutputRate::default();
        let mut pieces = Vec::new();
        buffer.push(at(0), b"a", &mut pace, &mut pieces);
        buffer.push(at(10), b"b", &mut pace, &mut pieces);
        assert_eq!((pieces.len(), buffer.flush_deadline()), (0, Some(at(50))));
        buffer.flush(at(49), &mut pace, &mut pieces);
        buffer.flush(at(50), &mut pace, &mut pieces);
        assert_eq!((pieces[0].data.as_str(), pieces[0].offset, buffer.flush_deadline()), ("ab", 0, None));
        buffer.push(at(60), &[b'x'; 40_000], &mut pace, &mut pieces);
        let sizes: Vec<usize> = pieces.iter().map(|piece| piece.data.len()).collect();
        assert_eq!(sizes, [2, 16_384, 16_384]);
        buffer.finish(at(61), &mut pace, &mut pieces);
        assert_eq!((pieces[3].offset, pieces[3].data.len(), buffer.bytes()), (32_770, 7232, 40_002));
        assert!(pieces.iter().all(|piece| !piece.truncated) && !buffer.has_dropped());
    }

    /// Covers: LN-EV8.
    #[test]
    fn output_over_the_limit_is_dropped_and_marked() {
        let mut buffer = OutputBuffer::default();
        let mut pace = OutputRate::default();
        let mut pieces = Vec::new();
        for ms in 0..2000 {
            buffer.push(at(ms), &[b'x'; 4096], &mut pace, &mut pieces);
        }
        let carried: usize = pieces.iter().map(|piece| piece.data.len()).sum();
        assert!((500_000..800_000).contains(&carried), "{carried} in 2 s and what may come at once");
        for pair in pieces.windows(2) {
            let end = pair[0].offset + pair[0].data.len() as u64;
            assert_eq!(pair[1].truncated, pair[1].offset != end);
        }
        assert!(buffer.has_dropped() && buffer.bytes() == 2000 * 4096);
        pieces.clear();
        buffer.finish(at(2000), &mut pace, &mut pieces);
        let end = pieces.last().expect("an end");
        assert!(end.truncated && end.offset + end.data.len() as u64 == buffer.bytes());
    }

    /// Covers: LN-EV7.
    #[test]
    fn characters_stay_whole_and_other_bytes_are_encoded() {
        let mut buffer = OutputBuffer::default();
        let mut pace = OutputRate::default();
        let mut pieces = Vec::new();
        let letters = "ä".repeat(10_000);
        buffer.push(at(0), b"x", &mut pace, &mut pieces);
        buffer.push(at(0), letters.as_bytes(), &mut pace, &mut pieces);
        buffer.finish(at(1), &mut pace, &mut pieces);
        let text: String = pieces.iter().map(|piece| piece.data.as_str()).collect();
        assert_eq!(text, format!("x{letters}"));
        assert!(pieces.iter().all(|piece| piece.encoding == OutputEncoding::Utf8 && piece.data.len() <= 16_384));
        pieces.clear();
        buffer.push(at(2), &[0xff, 0, b'a'], &mut pace, &mut pieces);
        buffer.flush(at(52), &mut pace, &mut pieces);
        assert_eq!((pieces[0].encoding, pieces[0].data.as_str()), (OutputEncoding::Base64, "/wBh"));
        // An incomplete character at the end is not text.
        buffer.push(at(60), &[0xc3], &mut pace, &mut pieces);
        buffer.flush(at(110), &mut pace, &mut pieces);
        assert_eq!((pieces.len(), buffer.flush_deadline()), (1, None));
        buffer.finish(at(111), &mut pace, &mut pieces);
        assert_eq!(pieces[1].encoding, OutputEncoding::Base64);
    }

    #[test]
    fn output_tail_is_kept_and_fits_a_result() {
        let mut buffer = OutputBuffer::default();
        let mut pace = OutputRate::default();
        let mut pieces = Vec::new();
        buffer.push(at(0), &[b'a'; 10_000], &mut pace, &mut pieces);
        buffer.push(at(0), b"the end", &mut pace, &mut pieces);
        assert!(buffer.tail(true).ends_with("aathe end") && buffer.tail(true).len() == OUTPUT_TAIL_BYTES);
        buffer.push(at(0), &[1; 5000], &mut pace, &mut pieces);
        let written = serde_json::to_string(&buffer.tail(true)).expect("a text").len();
        assert!((6000..=OUTPUT_TAIL_JSON_BYTES_MAX + 2).contains(&written), "{written}");
    }

    /// Covers: EV-E4.
    #[test]
    fn output_tail_starts_at_a_character_boundary() {
        for character in ["é", "世", "\u{1F600}"] {
            for before in 0..character.len() {
                let mut buffer = OutputBuffer::default();
                let mut pace = OutputRate::default();
                let mut pieces = Vec::new();
                let text = format!("{}{}end", "x".repeat(before), character.repeat(5000));
                buffer.push(at(0), text.as_bytes(), &mut pace, &mut pieces);
                let tail = buffer.tail(true);
                assert!(text.ends_with(&tail) && tail.len() <= OUTPUT_TAIL_BYTES, "{character} {before}");
                assert!(tail.len() > OUTPUT_TAIL_BYTES - character.len());
                // An incomplete character is omitted while more bytes may follow.
                buffer.push(at(0), &character.as_bytes()[..1], &mut pace, &mut pieces);
                assert!(buffer.tail(false).ends_with("end") && buffer.tail(true).ends_with("end\u{FFFD}"));
            }
        }
        // Invalid UTF-8 is shown as U+FFFD and respects the same size limit.
        let mut buffer = OutputBuffer::default();
        let mut pace = OutputRate::default();
        let mut pieces = Vec::new();
        buffer.push(at(0), &[0xff; 10_000], &mut pace, &mut pieces);
        assert!(buffer.tail(true).len() <= OUTPUT_TAIL_BYTES && buffer.tail(true).chars().all(|c| c == '\u{FFFD}'));
    }

    /// One invalid byte makes one binary piece, and the following characters stay complete.
    ///
    /// Covers: LN-EV7.
    #[test]
    fn output_piece_ends_at_a_character_boundary() {
        let mut buffer = OutputBuffer::default();
        let mut pace = OutputRate::default();
        let mut pieces = Vec::new();
        let mut bytes = vec![0xff];
        bytes.extend_from_slice("世".repeat(20_000).as_bytes());
        buffer.push(at(0), &bytes, &mut pace, &mut pieces);
        buffer.finish(at(1), &mut pace, &mut pieces);
        let kinds: Vec<OutputEncoding> = pieces.iter().map(|piece| piece.encoding).collect();
        assert_eq!(kinds, [OutputEncoding::Base64, OutputEncoding::Utf8, OutputEncoding::Utf8, OutputEncoding::Utf8]);
        let rest: String = pieces[1..].iter().map(|piece| piece.data.as_str()).collect();
        assert!(rest.chars().all(|c| c == '世'));
    }

    /// Covers: LN-EV7.
    #[test]
    fn escaped_control_characters_fit_a_message() {
        let mut buffer = OutputBuffer::default();
        let mut pace = OutputRate::default();
        let mut pieces = Vec::new();
        buffer.push(at(0), &[0; 40_000], &mut pace, &mut pieces);
        buffer.finish(at(1), &mut pace, &mut pieces);
        let longest = pieces.iter().map(|piece| serde_json::to_string(&piece.data).expect("a text").len()).max();
        assert!(longest.is_some_and(|bytes| bytes <= OUTPUT_CHUNK_JSON_BYTES_MAX + 2), "{longest:?}");
        assert_eq!(pieces.iter().map(|piece| piece.data.len()).sum::<usize>(), 40_000);
        assert!(pieces.windows(2).all(|pair| pair[1].offset == pair[0].offset + pair[0].data.len() as u64));
    }
}
