//! Merges the messages of several streams into one order, as a WebSocket would have it. A stream of text begins
//! with the number of control messages that come before it, and waits until those were delivered. The end of a
//! turn that arrives before the last of its text waits for that text.
use super::frames::{Frames, Stop};
use crate::wire::{self, Heard, RunKey};
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
pub(super) struct Order {
    control: Frames,
    /// Number of control messages that were delivered.
    taken: u64,
    lanes: Vec<Lane>,
    /// Text whose stream has ended while its turn has not.
    ended: Vec<Text>,
    held: Option<Held>,
}

/// The text stream of one attempt.
#[derive(Debug)]
struct Lane {
    frames: Frames,
    /// Header, `None` until it has arrived.
    head: Option<(u64, Text)>,
    /// Last message; only its end offset is used.
    last: Option<Utf8Bytes>,
}

/// The amount of an answer's text that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Text {
    run: Option<RunKey>,
    attempt: u32,
    /// Offset of its end.
    bytes: u64,
}

/// The header of a text stream.
#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow)]
    run_id: Cow<'a, str>,
    attempt: u32,
    #[serde(default)]
    after: u64,
}

/// The end of a turn that waits for its text.
#[derive(Debug)]
struct Held {
    message: Utf8Bytes,
    wants: Text,
    until: Pin<Box<Sleep>>,
}

// === impl Order ===

impl Order {
    pub(super) fn new(control: Frames) -> Self {
        Self { control, taken: 0, lanes: Vec::new(), ended: Vec::new(), held: None }
    }

    /// Adds a text stream.
    pub(super) fn add(&mut self, frames: Frames) {
        self.lanes.push(Lane { frames, head: None, last: None });
    }

    /// Returns the next message.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Utf8Bytes, Stop>> {
        loop {
            if let Poll::Ready(text) = self.poll_lanes(cx) {
                return Poll::Ready(text);
            }
            if let Some(mut held) = self.held.take() {
                if !self.has(held.wants) && held.until.as_mut().poll(cx).is_pending() {
                    self.held = Some(held);
                    return Poll::Pending;
                }
                return Poll::Ready(Ok(self.take(held.message)));
            }
            let message = ready!(self.control.poll(cx))?;
            match wanted(&message).filter(|wants| !self.has(*wants)) {
                Some(wants) => {
                    self.held = Some(Held { message, wants, until: Box::pin(sleep(TEXT_TIMEOUT)) });
                }
                None => return Poll::Ready(Ok(self.take(message))),
            }
        }
    }

    fn poll_lanes(&mut self, cx: &mut Context<'_>) -> Poll<Result<Utf8Bytes, Stop>> {
        let mut n = 0;
        while n < self.lanes.len() {
            match self.lanes[n].poll(self.taken, cx) {
                Poll::Ready(Ok(text)) => return Poll::Ready(Ok(text)),
                Poll::Ready(Err(Stop::End)) => {
                    let text = self.lanes.remove(n).text();
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
    fn take(&mut self, message: Utf8Bytes) -> Utf8Bytes {
        self.taken += 1;
        match wire::kind(&message) {
            // After a new subscription, text is shown anew.
            "subscribed" => self.ended.clear(),
            "done" => {
                let run = Heard::parse(&message).and_then(|heard| heard.run());
                self.ended.retain(|text| text.run != run);
            }
            _ => {}
        }
        message
    }

    /// Returns whether this much of a text has arrived, or its stream has ended.
    fn has(&self, wants: Text) -> bool {
        let is_it = |text: &Text| text.run == wants.run && text.attempt == wants.attempt;
        self.ended.iter().any(is_it)
            || self.lanes.iter().filter_map(Lane::text).any(|text| is_it(&text) && text.bytes >= wants.bytes)
    }
}

/// Returns the text that must have arrived before a message, or `None` if the message need not wait.
fn wanted(message: &str) -> Option<Text> {
    if wire::kind(message) != "done" {
        return None;
    }
    let heard = Heard::parse(message)?;
    let (run, attempt) = (Some(heard.run()?), heard.attempt?);
    heard.text_bytes.filter(|bytes| *bytes > 0).map(|bytes| Text { run, attempt, bytes })
}

// === impl Lane ===

impl Lane {
    fn poll(&mut self, taken: u64, cx: &mut Context<'_>) -> Poll<Result<Utf8Bytes, Stop>> {
        if self.head.is_none() {
            let text = ready!(self.frames.poll(cx))?;
            let head: Head<'_> = serde_json::from_str(&text).map_err(|_| Stop::Broken)?;
            let text = Text { run: RunKey::of(&head.run_id), attempt: head.attempt, bytes: 0 };
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
    fn text(&self) -> Option<Text> {
        let (_, text) = self.head.as_ref()?;
        let end = |heard: Heard<'_>| {
            heard.offset.unwrap_or(0) + heard.text.as_deref().unwrap_or_default().len() as u64
        };
        let bytes = self.last.as_deref().and_then(Heard::parse).map_or(0, end);
        Some(Text { bytes, ..*text })
    }
}
