//! A streamed answer: `chat.completion.chunk`s as server-sent events, then `[DONE]`.
use super::frame::{Chunk, ChunkChoice, Delta, Head, finish};
use super::progress::{Progress, Step};
use super::{Trouble, usage};
use crate::channel::note::Note;
use crate::channel::sse;
use turnway_core::id::RunId;
use turnway_core::protocol::agent::StopReason;
use turnway_core::protocol::json::Json;

/// The marker of a complete answer. An incomplete answer ends with an error object instead.
const DONE: &str = "[DONE]";

/// One streamed answer.
#[derive(Debug)]
pub struct Chunks {
    head: Head,
    progress: Progress,
    page: Page,
    /// Text withheld while the turn may still restart, because its end is yet to be found in the log; none of it
    /// has been sent.
    held: Option<String>,
}

/// The state of the output stream.
#[derive(Debug)]
struct Page {
    include_usage: bool,
    /// The first chunk, which names the assistant's role, was sent.
    opened: bool,
    /// Some text was sent.
    spoke: bool,
    /// The error, if the turn failed before anything was sent; the HTTP status can still report it.
    unsent: Option<Trouble>,
}

// === impl Chunks ===

impl Chunks {
    /// Creates the answer to a turn, starting at `attempt`. `include_usage` adds a usage chunk at the end.
    pub fn new(head: Head, run_id: RunId, attempt: u32, include_usage: bool) -> Self {
        let page = Page { include_usage, opened: false, spoke: false, unsent: None };
        Self { head, progress: Progress::new(run_id, attempt), page, held: None }
    }

    /// Withholds all output until the turn's end is known. For a turn that may have ended already, after an unknown
    /// number of attempts.
    #[must_use]
    pub fn from_its_end(self) -> Self {
        Self { held: Some(String::new()), ..self }
    }

    pub fn run_id(&self) -> &RunId {
        self.progress.run_id()
    }

    /// Returns whether the answer is complete.
    pub fn is_over(&self) -> bool {
        self.progress.is_over()
    }

    /// Returns whether anything was sent.
    pub fn has_begun(&self) -> bool {
        self.page.opened
    }

    /// Returns the error that occurred before anything was sent.
    pub fn trouble(&self) -> Option<&Trouble> {
        self.page.unsent.as_ref()
    }

    /// Sends the first chunk unless it was sent. From then on errors are reported in the stream.
    pub fn open(&mut self, to: &mut String) {
        self.page.open(&self.head, to);
    }

    /// Appends the events for a notification; nothing if it does not concern this turn.
    pub fn show(&mut self, note: &Note, to: &mut String) {
        let Self { head, progress, page, held } = self;
        let mut broken = false;
        progress.take(note, &mut |step| match step {
            // Steps after a failure are ignored.
            _ if broken => {}
            Step::Text(text) => match held {
                Some(held) => held.push_str(text),
                None => page.text(head, text, to),
            },
            Step::Reasoning(_) if held.is_some() => {}
            Step::Reasoning(text) => {
                page.say(head, Delta { reasoning_content: Some(text), ..Delta::default() }, None, to);
            }
            Step::Restarted if page.spoke => {
                broken = true;
                page.fail(Trouble::restarted(), to);
            }
            Step::Restarted => held.iter_mut().for_each(String::clear),
            Step::Done(stop, usage) => {
                if let Some(text) = held.as_deref().filter(|text| !text.is_empty()) {
                    page.text(head, text, to);
                }
                page.done(head, stop, usage, to);
            }
            Step::Failed(trouble) => page.fail(trouble, to),
        });
        if broken {
            progress.stop();
        }
    }

    /// Ends the answer with an error, because the turn cannot be followed any more.
    pub fn part(&mut self, trouble: Trouble, to: &mut String) {
        if !self.is_over() {
            self.progress.stop();
            self.page.fail(trouble, to);
        }
    }
}

// === impl Page ===

impl Page {
    fn open(&mut self, head: &Head, to: &mut String) {
        if !std::mem::replace(&mut self.opened, true) {
            self.write(
                head,
                Delta { role: Some("assistant"), content: Some(""), ..Delta::default() },
                None,
                to,
            );
        }
    }

    fn text(&mut self, head: &Head, text: &str, to: &mut String) {
        self.spoke = true;
        self.say(head, Delta { content: Some(text), ..Delta::default() }, None, to);
    }

    fn say(&mut self, head: &Head, delta: Delta<'_>, finish_reason: Option<&'static str>, to: &mut String) {
        self.open(head, to);
        self.write(head, delta, finish_reason, to);
    }

    fn done(&mut self, head: &Head, stop: StopReason, counted: Option<&Json>, to: &mut String) {
        self.say(head, Delta::default(), Some(finish(stop)), to);
        if let Some(usage) = usage::of(counted).filter(|_| self.include_usage) {
            event(&Chunk::new(head, &[], Some(Some(&usage))), to);
        }
        sse::event(to, None, DONE);
    }

    fn fail(&mut self, trouble: Trouble, to: &mut String) {
        if self.opened {
            sse::event(to, None, &trouble.json());
        } else {
            self.unsent = Some(trouble);
        }
    }

    fn write(&self, head: &Head, delta: Delta<'_>, finish_reason: Option<&'static str>, to: &mut String) {
        let none: Option<&Json> = None;
        let choice = ChunkChoice { index: 0, delta, logprobs: (), finish_reason };
        event(&Chunk::new(head, &[choice], self.include_usage.then_some(none)), to);
    }
}

/// Appends a chunk as an event. Chunks have string keys and finite numbers only, so they always serialise.
fn event(chunk: &Chunk<'_>, to: &mut String) {
    sse::event(to, None, &serde_json::to_string(chunk).unwrap_or_default());
}

#[cfg(test)]
pub(super) mod tests;
