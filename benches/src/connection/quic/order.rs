//! One order of what comes in several streams: that of a WebSocket.
//!
//! A stream of text begins with how many messages of the control stream come before it, and waits here until they were
//! taken. The end of a turn may come before the last of its text, and waits until that is here.
use super::frames::{Frames, Stop};
use crate::wire::{self, Heard, RunKey};
use serde::Deserialize;
use std::borrow::Cow;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Sleep, sleep};
use tokio_tungstenite::tungstenite::Utf8Bytes;

/// The end of a turn waits so long for text of which nothing is to be seen: a client may have had it on an earlier
/// connection. Then it is told, and whoever lacks text says so.
const TEXT_TIMEOUT: Duration = Duration::from_secs(2);
/// Ended streams whose turn has not ended are few; what becomes of more of them is forgotten.
const ENDED_MAX: usize = 16;

/// The streams of one connection.
#[derive(Debug)]
pub(super) struct Order {
    control: Frames,
    /// Messages of it that were taken.
    taken: u64,
    lanes: Vec<Lane>,
    /// Text whose stream has ended, and whose turn has not.
    ended: Vec<Text>,
    held: Option<Held>,
}

/// The text of one attempt.
#[derive(Debug)]
struct Lane {
    frames: Frames,
    /// Not here yet, at first.
    head: Option<(u64, Text)>,
    /// Its last message, of which only the end is asked.
    last: Option<Utf8Bytes>,
}

/// How much of an answer there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Text {
    run: Option<RunKey>,
    attempt: u32,
    /// Where it ends.
    bytes: u64,
}

/// What a lane begins with.
#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow)]
    run_id: Cow<'a, str>,
    attempt: u32,
    #[serde(default)]
    after: u64,
}

/// The end of a turn, before its last text.
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

    /// One more stream.
    pub(super) fn add(&mut self, frames: Frames) {
        self.lanes.push(Lane { frames, head: None, last: None });
    }

    /// What comes next.
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

    /// A message of the control stream is the next.
    fn take(&mut self, message: Utf8Bytes) -> Utf8Bytes {
        self.taken += 1;
        match wire::kind(&message) {
            // What is shown from now on is shown anew.
            "subscribed" => self.ended.clear(),
            "done" => {
                let run = Heard::parse(&message).and_then(|heard| heard.run());
                self.ended.retain(|text| text.run != run);
            }
            _ => {}
        }
        message
    }

    /// Whether so much of a text is here, or nothing more of it will be.
    fn has(&self, wants: Text) -> bool {
        let is_it = |text: &Text| text.run == wants.run && text.attempt == wants.attempt;
        self.ended.iter().any(is_it)
            || self.lanes.iter().filter_map(Lane::text).any(|text| is_it(&text) && text.bytes >= wants.bytes)
    }
}

/// The text that has to be here before a message is told; none: it waits for nothing.
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
        // It is looked at again when a message of the control stream was taken.
        if self.head.as_ref().is_none_or(|(after, _)| *after > taken) {
            return Poll::Pending;
        }
        let text = ready!(self.frames.poll(cx))?;
        self.last = Some(text.clone());
        Poll::Ready(Ok(text))
    }

    /// What it has said so far; none: nothing is known of it.
    fn text(&self) -> Option<Text> {
        let (_, text) = self.head.as_ref()?;
        let end = |heard: Heard<'_>| {
            heard.offset.unwrap_or(0) + heard.text.as_deref().unwrap_or_default().len() as u64
        };
        let bytes = self.last.as_deref().and_then(Heard::parse).map_or(0, end);
        Some(Text { bytes, ..*text })
    }
}
