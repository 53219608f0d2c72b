//! Reads a stream of events beside its relay, and holds back the event that only the gateway asked for.
use super::super::CallFormat;
use super::super::usage::UsageCounts;
use super::event::{EventMeaning, read_event};
use super::event_splitter::{BOM, EventKind, EventSplitter, PartKind};
use super::{AnswerEnd, AnswerOpening};
use bytes::Bytes;

/// A reader of a stream.
#[derive(Debug)]
pub(super) struct StreamReader {
    format: CallFormat,
    hides_usage: bool,
    splitter: EventSplitter,
    /// Bytes of the event that has begun, as far as they are not relayed. Empty without `hides_usage`.
    held: Vec<u8>,
    /// True if the last event was removed, so that the LF after its last CR is, too.
    has_hidden: bool,
    pub(super) counts: UsageCounts,
    pub(super) opening: AnswerOpening,
    pub(super) has_token: bool,
    has_failed: bool,
    is_complete: bool,
    /// Choices that have begun and that have finished, as bits.
    choices: u128,
    finished: u128,
}

/// The part of the pushed bytes that may be relayed: `from..to`. Bytes after it belong to an event that is not decided.
#[derive(Clone, Copy, Debug, Default)]
struct Relayable {
    from: usize,
    to: usize,
}

// === impl StreamReader ===

impl StreamReader {
    pub(super) fn new(format: CallFormat, hides_usage: bool) -> Self {
        Self {
            format,
            hides_usage,
            splitter: EventSplitter::default(),
            held: Vec::new(),
            has_hidden: false,
            counts: UsageCounts::default(),
            opening: AnswerOpening::Undecided,
            has_token: false,
            has_failed: false,
            is_complete: false,
            choices: 0,
            finished: 0,
        }
    }

    pub(super) fn push(&mut self, bytes: &Bytes, relay: &mut Vec<Bytes>) {
        let mut range = Relayable::default();
        let mut at = 0;
        while at < bytes.len() {
            let part = self.splitter.take(&bytes[at..]);
            at += part.length;
            let is_hidden = match part.kind {
                PartKind::Blank(Some(event)) => self.take_event(event, false),
                PartKind::LineFeed => self.has_hidden,
                PartKind::Unfinished | PartKind::Comment | PartKind::Field | PartKind::Blank(None) => false,
            };
            self.has_hidden = is_hidden;
            if !self.hides_usage {
                continue;
            }
            if is_hidden {
                self.held.clear();
                push_slice(bytes, range, relay);
                range = Relayable { from: at, to: at };
            } else if !self.splitter.is_inside() || self.splitter.is_too_long() {
                self.release(relay);
                range.to = at;
            }
        }
        if self.hides_usage {
            push_slice(bytes, range, relay);
            self.held.extend_from_slice(&bytes[range.to..]);
        } else if !bytes.is_empty() {
            relay.push(bytes.clone());
        }
    }

    pub(super) fn finish(&mut self) -> Option<Bytes> {
        if let Some(event) = self.splitter.finish() {
            self.take_event(event, true);
        }
        let held = std::mem::take(&mut self.held);
        (!held.is_empty()).then(|| held.into())
    }

    pub(super) fn is_between_events(&self) -> bool {
        if self.splitter.awaits_line_feed() && !self.has_hidden {
            return false;
        }
        // Nothing of an event that is held back has been relayed. A byte order mark must stay at the beginning.
        let is_held = self.hides_usage && !self.splitter.is_too_long() && !self.held.starts_with(&BOM[..1]);
        !self.splitter.is_inside() || is_held
    }

    pub(super) fn end(&self) -> AnswerEnd {
        if self.has_failed {
            AnswerEnd::Error
        } else if self.is_complete || (self.finished != 0 && self.choices == self.finished) {
            AnswerEnd::Whole
        } else {
            AnswerEnd::Open
        }
    }

    /// Relays the bytes that were held back before the present ones.
    fn release(&mut self, relay: &mut Vec<Bytes>) {
        if !self.held.is_empty() {
            relay.push(std::mem::take(&mut self.held).into());
        }
    }

    /// Takes an event, the last of the stream if the stream ends within the event. Returns true if it is hidden.
    fn take_event(&mut self, kind: EventKind, is_cut: bool) -> bool {
        let meaning = match kind {
            EventKind::Complete => {
                let (name, data) = self.splitter.event();
                match read_event(self.format, name, data, &mut self.counts) {
                    Some(meaning) => meaning,
                    // The rest of the data is missing, so the event says nothing.
                    None if is_cut => return false,
                    None => EventMeaning { is_error: name == b"error", ..EventMeaning::default() },
                }
            }
            EventKind::TooLong => EventMeaning::default(),
        };
        if self.opening == AnswerOpening::Undecided && !meaning.is_ping {
            self.opening = if meaning.is_error { AnswerOpening::Error } else { AnswerOpening::Answer };
        }
        self.has_token |= meaning.has_token;
        self.choices |= meaning.choices;
        self.finished |= meaning.finished;
        self.has_failed |= meaning.is_error && !self.is_complete;
        self.is_complete |= meaning.is_last && !self.has_failed;
        self.hides_usage && meaning.is_only_usage
    }
}

/// Relays a part of the pushed bytes, without copying.
fn push_slice(bytes: &Bytes, range: Relayable, relay: &mut Vec<Bytes>) {
    if range.from < range.to {
        relay.push(bytes.slice(range.from..range.to));
    }
}
