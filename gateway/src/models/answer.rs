//! The answer of an upstream on its way to a caller: the bytes to relay, and the copy that tells how it ends. Bounds the
//! time between two pieces and that of the whole call.
use super::decoder::AnswerCopy;
use super::headers;
use crate::clock::Clock;
use crate::config::model::ModelTimes;
use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::time::Mono;
use turnway_wire::model::{AnswerEnd, AnswerOpening, AnswerReader, CallFormat, TokenUsage};

/// An answer whose head has arrived.
pub struct ModelAnswer {
    status: StatusCode,
    headers: HeaderMap,
    /// True if the answer is an event stream.
    is_stream: bool,
    /// True if only the end of the connection ends the body, so that a cut looks like an end.
    ends_with_connection: bool,
    body: Incoming,
    copy: AnswerCopy,
    /// Pieces to relay that have arrived.
    ready: VecDeque<Bytes>,
    end: Option<AnswerOutcome>,
    /// True if the answer ended between two events. Its reader takes an event without its blank line for a whole one.
    ends_between_events: bool,
    clock: Clock,
    silence: Duration,
    /// End of the time of the whole call.
    deadline: Mono,
    /// Since when a piece is waited for; none while the caller does not read.
    waits_since: Option<Mono>,
    marks: AnswerMarks,
    _place: OwnedSemaphorePermit,
}

/// The times of an answer's first parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerMarks {
    pub first_byte: Option<Mono>,
    pub first_token: Option<Mono>,
}

/// The end of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerOutcome {
    Complete,
    /// The upstream reported an error within a successful answer.
    Error,
    /// The upstream refused the call by its status.
    Refused,
    /// The answer was cut off, or ended without its end.
    Truncated,
    /// The answer paused, or lasted, for too long.
    TimedOut,
}

/// The next part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerStep {
    Bytes(Bytes),
    End(AnswerOutcome),
}

/// Properties of the call that an answer belongs to.
pub(super) struct AnswerOf {
    pub(super) format: CallFormat,
    /// True if the gateway asked for the usage of the stream, and the caller did not.
    pub(super) hides_usage: bool,
    pub(super) times: ModelTimes,
    pub(super) deadline: Mono,
    pub(super) place: OwnedSemaphorePermit,
}

// === impl ModelAnswer ===

impl ModelAnswer {
    pub(super) fn new(response: Response<Incoming>, of: AnswerOf, clock: Clock) -> Self {
        let (head, body) = response.into_parts();
        let is_stream = is_event_stream(&head.headers);
        let is_plain = !head.headers.contains_key(header::CONTENT_ENCODING);
        let hides_usage = of.hides_usage && is_plain && head.status.is_success();
        let reader =
            if is_stream { AnswerReader::stream(of.format, hides_usage) } else { AnswerReader::body(of.format) };
        let has_length = body.size_hint().exact().is_some();
        Self {
            status: head.status,
            is_stream,
            ends_with_connection: !has_length && !head.headers.contains_key(header::TRANSFER_ENCODING),
            copy: AnswerCopy::new(&head.headers, reader),
            headers: head.headers,
            body,
            ready: VecDeque::new(),
            end: None,
            ends_between_events: false,
            clock,
            silence: of.times.silence,
            deadline: of.deadline,
            waits_since: None,
            marks: AnswerMarks::default(),
            _place: of.place,
        }
    }

    /// Returns the status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the headers for the caller.
    pub fn caller_headers(&self) -> HeaderMap {
        headers::for_caller(&self.headers)
    }

    /// Returns all headers of the upstream.
    pub(super) fn upstream_headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Returns whether the answer is an event stream to which events can be added.
    pub fn takes_events(&self) -> bool {
        self.is_stream && self.copy.is_plain() && self.status.is_success()
    }

    /// Returns whether a comment may be sent to the caller now: between two events, with nothing waiting.
    pub fn is_between_events(&self) -> bool {
        let is_between = match self.end {
            Some(_) => self.ends_between_events,
            None => self.copy.reader().is_some_and(AnswerReader::is_between_events),
        };
        self.takes_events() && is_between && self.ready.is_empty()
    }

    /// Returns the tokens that the upstream has reported so far.
    pub fn usage(&self) -> TokenUsage {
        self.copy.reader().map(AnswerReader::usage).unwrap_or_default()
    }

    /// Returns the times of the first parts.
    pub fn marks(&self) -> AnswerMarks {
        self.marks
    }

    /// Waits until the first event of a stream is known, and returns whether it is an error. Bytes are held back meanwhile,
    /// so that another upstream may still be asked.
    pub(super) async fn begins_with_error(&mut self) -> bool {
        if !self.is_stream || !self.status.is_success() {
            return false;
        }
        let opened = async {
            while self.opening() == AnswerOpening::Undecided && self.end.is_none() {
                self.receive().await;
                if self.ready.iter().map(Bytes::len).sum::<usize>() > limits::MODEL_OPENING_BYTES_MAX {
                    return;
                }
            }
        };
        // The answer keeps the bytes that have arrived, so the time limit loses none.
        _ = tokio::time::timeout(limits::MODEL_OPENING_WAIT, opened).await;
        self.opening() == AnswerOpening::Error && !planted(Planted::FirstErrorRelayed)
    }

    /// Returns the next part; after the end, the end again. Cancel-safe.
    pub async fn next(&mut self) -> AnswerStep {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return AnswerStep::Bytes(piece);
            }
            if let Some(outcome) = self.end {
                return AnswerStep::End(outcome);
            }
            self.receive().await;
        }
    }

    /// Takes the pieces that have arrived and were not returned.
    pub fn take_ready(&mut self) -> VecDeque<Bytes> {
        std::mem::take(&mut self.ready)
    }

    /// Waits for the next piece, and reads its copy. Cancel-safe.
    async fn receive(&mut self) {
        let now = self.clock.mono();
        let since = *self.waits_since.get_or_insert(now);
        let wait = (since + self.silence).min(self.deadline) - now;
        // A piece that has arrived counts, however late it is taken.
        let frame = tokio::time::timeout(wait, self.body.frame()).await;
        match frame {
            Ok(Some(Ok(frame))) => {
                self.waits_since = None;
                // Trailers are no content.
                if let Ok(bytes) = frame.into_data() {
                    self.read(&bytes);
                }
            }
            Ok(None) => self.finish(true),
            Ok(Some(Err(_))) => self.finish(false),
            Err(_) => {
                self.finish(false);
                self.end =
                    self.end.map(|end| if end == AnswerOutcome::Truncated { AnswerOutcome::TimedOut } else { end });
            }
        }
    }

    fn read(&mut self, bytes: &Bytes) {
        let now = self.clock.mono();
        self.marks.first_byte.get_or_insert(now);
        let mut pieces = Vec::new();
        self.copy.push(bytes, &mut pieces);
        self.ready.extend(pieces.into_iter().filter(|piece| !piece.is_empty()));
        if self.copy.reader().is_some_and(AnswerReader::has_token) {
            self.marks.first_token.get_or_insert(now);
        }
    }

    /// Records the end of the body; `is_proper` if the connection says that it is complete.
    fn finish(&mut self, is_proper: bool) {
        let is_between = self.copy.reader().is_some_and(AnswerReader::is_between_events);
        let held_back = self.copy.finish();
        self.ends_between_events = is_between && held_back.is_none();
        self.ready.extend(held_back);
        let end = self.copy.reader().map(AnswerReader::end);
        let is_proper = is_proper && !(self.ends_with_connection && end == Some(AnswerEnd::Open));
        self.end = Some(match end {
            _ if !self.status.is_success() => {
                if is_proper {
                    AnswerOutcome::Refused
                } else {
                    AnswerOutcome::Truncated
                }
            }
            Some(AnswerEnd::Error) => AnswerOutcome::Error,
            Some(AnswerEnd::Whole) => AnswerOutcome::Complete,
            // A document that is too long to be read, or is none, ends as the connection says.
            Some(AnswerEnd::Open) | None if is_proper && !(self.is_stream && end.is_some()) => AnswerOutcome::Complete,
            Some(AnswerEnd::Open) | None => AnswerOutcome::Truncated,
        });
    }

    fn opening(&self) -> AnswerOpening {
        self.copy.reader().map_or(AnswerOpening::Answer, AnswerReader::opening)
    }
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("text/event-stream")
}
