//! The answer piece by piece: `chat.completion.chunk`s as server-sent events, then `[DONE]`.
use super::frame::{Chunk, ChunkChoice, Delta, Head, finish};
use super::progress::{Progress, Step};
use super::{Trouble, usage};
use crate::channel::note::Note;
use crate::channel::sse;
use turnway_core::id::RunId;
use turnway_core::protocol::agent::StopReason;
use turnway_core::protocol::json::Json;

/// What says that an answer is whole. An answer that is not ends with an error object instead.
const DONE: &str = "[DONE]";

/// One streamed answer.
#[derive(Debug)]
pub struct Chunks {
    head: Head,
    progress: Progress,
    page: Page,
    /// Text of a turn whose end is yet to be found, which may begin again: nothing of it has been sent.
    held: Option<String>,
}

/// What was sent so far.
#[derive(Debug)]
struct Page {
    include_usage: bool,
    /// The first chunk, which says who speaks, was sent.
    opened: bool,
    /// Some text was sent.
    spoke: bool,
    /// It failed before anything was sent: a status can still tell.
    unsent: Option<Trouble>,
}

// === impl Chunks ===

impl Chunks {
    /// The answer to a turn, from `attempt` on; whether usage closes it.
    pub fn new(head: Head, run_id: RunId, attempt: u32, include_usage: bool) -> Self {
        let page = Page { include_usage, opened: false, spoke: false, unsent: None };
        Self { head, progress: Progress::new(run_id, attempt), page, held: None }
    }

    /// The same for a turn that may have ended already, after we do not know how many attempts: nothing is
    /// sent before its end.
    #[must_use]
    pub fn from_its_end(self) -> Self {
        Self { held: Some(String::new()), ..self }
    }

    /// The turn.
    pub fn run_id(&self) -> &RunId {
        self.progress.run_id()
    }

    /// Whether nothing will follow.
    pub fn is_over(&self) -> bool {
        self.progress.is_over()
    }

    /// Whether anything was sent.
    pub fn has_begun(&self) -> bool {
        self.page.opened
    }

    /// What went wrong before anything was sent.
    pub fn trouble(&self) -> Option<&Trouble> {
        self.page.unsent.as_ref()
    }

    /// Says who speaks, if that was not said yet: from here on trouble comes in the stream.
    pub fn open(&mut self, to: &mut String) {
        self.page.open(&self.head, to);
    }

    /// Appends the events that a note is shown as; none, if it does not belong here.
    pub fn show(&mut self, note: &Note, to: &mut String) {
        let Self { head, progress, page, held } = self;
        let mut broken = false;
        progress.take(note, &mut |step| match step {
            // What follows an end is not looked at.
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

    /// Ends it from here: it cannot be followed any more.
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

/// Our shapes have string keys and finite numbers only, so they always serialise.
fn event(chunk: &Chunk<'_>, to: &mut String) {
    sse::event(to, None, &serde_json::to_string(chunk).unwrap_or_default());
}

#[cfg(test)]
pub(super) mod tests;
