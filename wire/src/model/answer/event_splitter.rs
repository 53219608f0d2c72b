//! Splits a stream into lines and events by the rules of `text/event-stream` (WHATWG HTML, section 9.2.6), whatever the
//! pieces are in which the stream arrives. Must not interpret the data of an event.
use super::super::limits::MODEL_EVENT_BYTES_MAX;

/// Byte order mark, which may precede the first line.
pub(super) const BOM: &[u8] = b"\xef\xbb\xbf";

/// A splitter of one stream. Its memory is bounded by [`MODEL_EVENT_BYTES_MAX`] for a line and as much for the data.
#[derive(Debug, Default)]
pub(super) struct EventSplitter {
    /// The beginning of a line whose end has not arrived; empty while an event is skipped.
    line: Vec<u8>,
    /// Length of the line so far, also while an event is skipped.
    line_bytes: usize,
    /// Length of the complete lines of the event, with one byte for the end of each.
    event_bytes: usize,
    event_name: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    /// True if an event has begun: a line that is no comment has arrived after the last blank one.
    is_in_event: bool,
    is_too_long: bool,
    is_after_first_line: bool,
    /// True if the last byte was CR, which LF may follow.
    is_after_cr: bool,
    /// True if a line has ended with CR alone, so that CR is likely to end lines again.
    has_lone_cr: bool,
}

/// A part of the stream, at the beginning of the bytes that were given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamPart {
    /// Number of bytes, at least one.
    pub(super) length: usize,
    pub(super) kind: PartKind,
}

/// Kinds of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartKind {
    /// A line whose end has not arrived.
    Unfinished,
    /// The LF of a CRLF whose CR ended the bytes before.
    LineFeed,
    /// A line outside events that means nothing: a comment.
    Comment,
    /// A line of an event.
    Field,
    /// The blank line after an event, or a further one.
    Blank(Option<EventKind>),
}

/// Events as [`EventSplitter::event`] has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventKind {
    /// Name and data are there until the next line.
    Complete,
    /// The event is longer than [`MODEL_EVENT_BYTES_MAX`] and was skipped.
    TooLong,
}

// === impl EventSplitter ===

impl EventSplitter {
    /// Takes the first part of `bytes`, which are not empty.
    pub(super) fn take(&mut self, bytes: &[u8]) -> StreamPart {
        if std::mem::take(&mut self.is_after_cr) {
            if bytes.first() == Some(&b'\n') {
                return StreamPart { length: 1, kind: PartKind::LineFeed };
            }
            self.has_lone_cr = true;
        }
        let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
            self.keep(bytes);
            return StreamPart { length: bytes.len(), kind: PartKind::Unfinished };
        };
        let mut length = end + 1;
        if bytes[end] == b'\r' {
            match bytes.get(length) {
                Some(b'\n') => length += 1,
                Some(_) => self.has_lone_cr = true,
                None => self.is_after_cr = true,
            }
        }
        StreamPart { length, kind: self.end_line(&bytes[..end]) }
    }

    /// Ends the stream: an unfinished line and an event without its blank line count as finished.
    pub(super) fn finish(&mut self) -> Option<EventKind> {
        if self.line_bytes > 0 && matches!(self.end_line(b""), PartKind::Blank(_)) {
            return None;
        }
        if self.is_in_event { self.end_event() } else { None }
    }

    /// Returns name and data of the event that has just ended.
    pub(super) fn event(&self) -> (&[u8], &[u8]) {
        (&self.event_name, &self.data)
    }

    /// Returns true if a line of an event has arrived after the last blank line, or the beginning of any line.
    pub(super) fn is_inside(&self) -> bool {
        self.is_in_event || self.line_bytes > 0
    }

    /// Returns true if the LF of a CRLF may be about to arrive.
    pub(super) fn awaits_line_feed(&self) -> bool {
        self.is_after_cr && !self.has_lone_cr
    }

    /// Returns true while an event is skipped for its length.
    pub(super) fn is_too_long(&self) -> bool {
        self.is_too_long
    }

    /// Keeps the beginning of a line.
    fn keep(&mut self, bytes: &[u8]) {
        self.line_bytes += bytes.len();
        if self.check_length(self.line_bytes) {
            self.line.extend_from_slice(bytes);
        }
    }

    /// Returns true if an event with such a line is still short enough; else the event is skipped from now on.
    fn check_length(&mut self, line_bytes: usize) -> bool {
        if !self.is_too_long && self.event_bytes + line_bytes > MODEL_EVENT_BYTES_MAX {
            self.is_too_long = true;
            self.is_in_event = true;
            self.line = Vec::new();
            self.data = Vec::new();
        }
        !self.is_too_long
    }

    /// Ends a line with its last bytes, without the line end.
    fn end_line(&mut self, rest: &[u8]) -> PartKind {
        let line_bytes = std::mem::take(&mut self.line_bytes) + rest.len();
        if !self.check_length(line_bytes) {
            self.is_after_first_line = true;
            return if line_bytes == 0 { PartKind::Blank(self.end_event()) } else { PartKind::Field };
        }
        if self.line.is_empty() {
            return self.read_line(rest);
        }
        let mut line = std::mem::take(&mut self.line);
        line.extend_from_slice(rest);
        let kind = self.read_line(&line);
        line.clear();
        self.line = line;
        kind
    }

    fn read_line(&mut self, line: &[u8]) -> PartKind {
        let is_first = !std::mem::replace(&mut self.is_after_first_line, true);
        let line = if is_first { line.strip_prefix(BOM).unwrap_or(line) } else { line };
        if line.is_empty() {
            return PartKind::Blank(self.end_event());
        }
        if !self.is_in_event {
            if line[0] == b':' {
                return PartKind::Comment;
            }
            self.is_in_event = true;
            self.has_data = false;
            self.data.clear();
            self.event_name.clear();
        }
        self.event_bytes += line.len() + 1;
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &line[..colon] {
            b"data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
            }
            b"event" => value.clone_into(&mut self.event_name),
            // Comments inside an event, `id`, `retry` and unknown fields.
            _ => {}
        }
        PartKind::Field
    }

    fn end_event(&mut self) -> Option<EventKind> {
        self.event_bytes = 0;
        self.is_in_event = false;
        let has_data = std::mem::take(&mut self.has_data);
        if std::mem::take(&mut self.is_too_long) {
            return Some(EventKind::TooLong);
        }
        has_data.then_some(EventKind::Complete)
    }
}
