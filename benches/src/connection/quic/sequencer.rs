//! Merges the messages of several streams into one order, as a WebSocket would have it. A stream of text begins
//! with the number of control messages that come before it, and waits until those were delivered. The end of a
//! turn that arrives before the last of its text waits for that text.
use super::frames::{FrameReader, ReadEnd};
use crate::wire::{self, RunKey, ServerMessage};
use serde::Deserialize;
use std::borrow::Cow;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Sleep, sleep};
use tokio_tungstenite::tungstenite::Utf8Bytes;

/// Time that the end of a turn waits for text of which nothing has arrived: the client may have had it on an
/// earlier connection. Then the end is delivered, and a client that lacks text reports a gap.
const TEXT_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum remembered ended streams whose turn has not ended; usually there are few, and the oldest are
/// forgotten.
const ENDED_MAX: usize = 16;

/// The streams of one connection, merged.
#[derive(Debug)]
pub(super) struct MessageSequencer {
    control: FrameReader,
    /// Number of control messages that were delivered.
    control_count: u64,
    text_streams: Vec<TextStream>,
    /// Text whose stream has ended while its turn has not.
    ended: Vec<TextProgress>,
    held_done: Option<HeldDone>,
}

/// The text stream of one attempt.
#[derive(Debug)]
struct TextStream {
    frames: FrameReader,
    /// Header, `None` until it has arrived.
    head: Option<(u64, TextProgress)>,
    /// Last message; only its end offset is used.
    last: Option<Utf8Bytes>,
}

/// The amount of an answer's text that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TextProgress {
    run: Option<RunKey>,
    attempt: u32,
    /// Offset of its end.
    bytes: u64,
}

/// The header of a text stream.
#[derive(Deserialize)]
struct TextHeader<'a> {
    #[serde(borrow)]
    run_id: Cow<'a, str>,
    attempt: u32,
    #[serde(default)]
    after: u64,
}

/// The end of a turn that waits for its text.
#[derive(Debug)]
struct HeldDone {
    message: Utf8Bytes,
    wants: TextProgress,
    until: Pin<Box<Sleep>>,
}

// === impl MessageSequencer ===

impl MessageSequencer {
    pub(super) fn new(control: FrameReader) -> Self {
        Self { control, control_count: 0, text_streams: Vec::new(), ended: Vec::new(), held_done: None }
    }

    /// Adds a text stream.
    pub(super) fn add(&mut self, frames: FrameReader) {
        self.text_streams.push(TextStream { frames, head: None, last: None });
    }

    /// Returns the next message.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Utf8Bytes, ReadEnd>> {
        loop {
            if let Poll::Ready(text) = self.poll_lanes(cx) {
                return Poll::Ready(text);
            }
            if let Some(mut held) = self.held_done.take() {
                if !self.has_text(held.wants) && held.until.as_mut().poll(cx).is_pending() {
                    self.held_done = Some(held);
                    return Poll::Pending;
                }
                return Poll::Ready(Ok(self.deliver_control(held.message)));
            }
            let message = ready!(self.control.poll(cx))?;
            match required_text(&message).filter(|wants| !self.has_text(*wants)) {
                Some(wants) => {
                    self.held_done = Some(HeldDone { message, wants, until: Box::pin(sleep(TEXT_TIMEOUT)) });
                }
                None => return Poll::Ready(Ok(self.deliver_control(message))),
            }
        }
    }

    fn poll_lanes(&mut self, cx: &mut Context<'_>) -> Poll<Result<Utf8Bytes, ReadEnd>> {
        let mut n = 0;
        while n < self.text_streams.len() {
            match self.text_streams[n].poll(self.control_count, cx) {
                Poll::Ready(Ok(text)) => return Poll::Ready(Ok(text)),
                Poll::Ready(Err(ReadEnd::End)) => {
                    let text = self.text_streams.remove(n).progress();
                    if self.ended.len() == ENDED_MAX {
                        self.ended.remove(0);
                    }
                    self.ended.extend(text);
                }
                Poll::Ready(Err(stop)) => return Poll::Ready(Err(stop)),
                Poll::Pending => n += 1,
            }
        }
        Poll::Pending
    }

    /// Counts a control message as delivered, and forgets text that the message makes obsolete.
    fn deliver_control(&mut self, message: Utf8Bytes) -> Utf8Bytes {
        self.control_count += 1;
        match wire::message_type(&message) {
            // After a new subscription, text is shown anew.
            "subscribed" => self.ended.clear(),
            "done" => {
                let run = ServerMessage::parse(&message).and_then(|heard| heard.run());
                self.ended.retain(|text| text.run != run);
            }
            _ => {}
        }
        message
    }

    /// Returns whether this much of a text has arrived, or its stream has ended.
    fn has_text(&self, wants: TextProgress) -> bool {
        let is_it = |text: &TextProgress| text.run == wants.run && text.attempt == wants.attempt;
        self.ended.iter().any(is_it)
            || self
                .text_streams
                .iter()
                .filter_map(TextStream::progress)
                .any(|text| is_it(&text) && text.bytes >= wants.bytes)
    }
}

/// Returns the text that must have arrived before a message, or `None` if the message need not wait.
fn required_text(message: &str) -> Option<TextProgress> {
    if wire::message_type(message) != "done" {
        return None;
    }
    let heard = ServerMessage::parse(message)?;
    let run = Some(heard.run()?);
    let attempt = heard.attempt?;
    heard.text_bytes.filter(|bytes| *bytes > 0).map(|bytes| TextProgress { run, attempt, bytes })
}

// === impl TextStream ===

impl TextStream {
    fn poll(&mut self, taken: u64, cx: &mut Context<'_>) -> Poll<Result<Utf8Bytes, ReadEnd>> {
        if self.head.is_none() {
            let text = ready!(self.frames.poll(cx))?;
            let head: TextHeader<'_> = serde_json::from_str(&text).map_err(|_| ReadEnd::Broken)?;
            let text = TextProgress { run: RunKey::of(&head.run_id), attempt: head.attempt, bytes: 0 };
            self.head = Some((head.after, text));
        }
        // Checked again after every delivered control message.
        if self.head.as_ref().is_none_or(|(after, _)| *after > taken) {
            return Poll::Pending;
        }
        let text = ready!(self.frames.poll(cx))?;
        self.last = Some(text.clone());
        Poll::Ready(Ok(text))
    }

    /// Returns the text that has arrived so far, or `None` without a header.
    fn progress(&self) -> Option<TextProgress> {
        let (_, text) = self.head.as_ref()?;
        let end = |heard: ServerMessage<'_>| {
            heard.offset.unwrap_or(0) + heard.text.as_deref().unwrap_or_default().len() as u64
        };
        let bytes = self.last.as_deref().and_then(ServerMessage::parse).map_or(0, end);
        Some(TextProgress { bytes, ..*text })
    }
}
