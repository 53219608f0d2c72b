//! An example of a plugin: the model is told what time it is and what was said last.
//!
//! It shows state: what `save_state` keeps is what `load_state` knows at the next turn of the session. It keeps it in
//! memory, and of so many sessions only; a plugin that has to outlive its host keeps it elsewhere.
use futures_util::FutureExt;
use futures_util::future::ready;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use turnway_pipeline::{HookFuture, Inbound, Plugin, Prompt, Turn};

/// Sessions that are remembered at most; the one that was remembered first is forgotten for another.
const SESSIONS_MAX: usize = 10_000;

/// Tells the time and the last messages.
#[derive(Debug)]
pub struct PromptBuilder {
    last: usize,
    now: fn() -> Timestamp,
    said: Mutex<Said>,
}

#[derive(Debug, Default)]
struct Said {
    sessions: BTreeMap<String, VecDeque<String>>,
    order: VecDeque<String>,
}

// === impl PromptBuilder ===

impl PromptBuilder {
    /// Tells so many messages.
    pub fn new(last: usize) -> Self {
        Self::by(last, Timestamp::now)
    }

    /// The same, with a clock of one's own.
    pub fn by(last: usize, now: fn() -> Timestamp) -> Self {
        Self { last, now, said: Mutex::default() }
    }
}

impl Plugin for PromptBuilder {
    fn name(&self) -> &'static str {
        "prompt-builder"
    }

    fn keeps_text(&self) -> bool {
        true
    }

    fn load_state<'a>(&'a self, _: &'a Inbound, session_id: &'a str) -> HookFuture<'a, Map<String, Value>> {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let known = said.sessions.get(session_id).cloned().unwrap_or_default();
        ready(Ok(Map::from_iter([("last_messages".to_owned(), json!(known))]))).boxed()
    }

    fn build_prompt<'a>(&'a self, turn: &'a Turn) -> HookFuture<'a, Option<Prompt>> {
        let envelope = &turn.inbound.envelope;
        if envelope.content.starts_with(',') || !envelope.media.is_empty() {
            // Commands and pictures are not ours.
            return ready(Ok(None)).boxed();
        }
        let mut text = format!("It is {}.\n", (self.now)().strftime("%Y-%m-%d %H:%M UTC"));
        for line in turn.state.get("last_messages").and_then(Value::as_array).into_iter().flatten() {
            text.push_str("> ");
            text.push_str(line.as_str().unwrap_or_default());
            text.push('\n');
        }
        text.push_str(&envelope.content);
        ready(Ok(Some(Prompt::Text(text)))).boxed()
    }

    fn save_state<'a>(&'a self, turn: &'a Turn) -> HookFuture<'a, ()> {
        // What failed was not said.
        if turn.failure.is_none() {
            let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            said.keep(&turn.session_id, self.last, &[&turn.inbound.envelope.content, &turn.output]);
        }
        ready(Ok(())).boxed()
    }
}

// === impl Said ===

impl Said {
    fn keep(&mut self, session_id: &str, last: usize, lines: &[&String]) {
        if !self.sessions.contains_key(session_id) {
            if self.order.len() >= SESSIONS_MAX {
                self.order.pop_front().and_then(|oldest| self.sessions.remove(&oldest));
            }
            self.order.push_back(session_id.to_owned());
        }
        let known = self.sessions.entry(session_id.to_owned()).or_default();
        known.extend(lines.iter().map(|line| (*line).clone()));
        known.drain(..known.len().saturating_sub(last));
    }
}

#[cfg(test)]
mod tests;
