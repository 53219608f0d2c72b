//! Connects the turn pipeline to one attempt: the pipeline asks the agent as its model, and the attempt reports the
//! text that leaves the last plugin. Text must be counted here, behind the plugins, because the offsets from which
//! clients resume are those of the text they were shown. Called by `pipelined` and `plugins`.
use crate::agent::attempt::Voice;
use futures_util::FutureExt;
use futures_util::StreamExt;
use futures_util::future::ready;
use futures_util::stream;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Mutex as Baton, mpsc, oneshot};
use turnway_core::id::SaidId;
use turnway_core::private::Private;
use turnway_core::protocol::agent::{AgentEvent, TextKind};
use turnway_core::protocol::input::Content;
use turnway_core::protocol::json::Json;
use turnway_pipeline::builtin::Model;
use turnway_pipeline::{Envelope, Hook, Kind, Piece, Pieces, Prompt, Router, Trouble, Turn};

/// Capacity of the channel from an agent to the pipeline: enough that neither side waits for each step of the other,
/// and little compared with one event, of which a piece is at most a part.
const PIECES_MAX: usize = 8;
/// Maximum bytes of a state's name, as for a state from an agent.
const WORD_BYTES_MAX: usize = 256;
/// Separator between two messages of one turn, which are one answer here.
const BETWEEN: &str = "\n\n";

/// Names of pieces that are not text (docs/plugins.md).
const STATE: &str = "state";
const REASONING: &str = "reasoning";
/// Marks that the whole event with this id was reported; for agents that can resume.
const SAID: &str = "said";

/// The request that the pipeline makes of an agent.
#[derive(Debug)]
pub(super) struct Asked {
    /// Replaces the content of the input message; `None` keeps it unchanged.
    pub(super) content: Option<Content>,
    pub(super) system_prompt: Option<Private<String>>,
}

/// The agent's sending end of the pieces for the pipeline.
#[derive(Debug)]
pub(super) struct Tap(mpsc::Sender<Piece>);

/// The pipeline's model and router, for one attempt.
#[derive(Clone)]
pub(super) struct Desk(Arc<Inside>);

struct Inside {
    voice: Baton<Voice>,
    /// Taken when the agent is asked.
    agent: Mutex<Option<(oneshot::Sender<Asked>, mpsc::Receiver<Piece>)>>,
}

// === impl Tap ===

impl Tap {
    /// Sends a piece of text.
    pub(super) async fn text(&self, kind: TextKind, text: String, id: Option<SaidId>) {
        let piece = match kind {
            TextKind::Text => Piece::Text(text),
            TextKind::Reasoning => Piece::Other(REASONING.to_owned(), text.into()),
        };
        self.piece(piece).await;
        if let Some(id) = id {
            self.piece(Piece::Other(SAID.to_owned(), id.as_str().into())).await;
        }
    }

    /// Sends a state, in order with the text.
    pub(super) async fn state(&self, state: String, detail: Option<Json>, id: Option<SaidId>) {
        let (detail, id) = (detail.map(|detail| detail.0), id.map(|id| id.as_str().to_owned()));
        let told = json!({"state": state, "detail": detail, "id": id});
        self.piece(Piece::Other(STATE.to_owned(), told)).await;
    }

    /// Sends that the agent failed.
    pub(super) async fn trouble(&self, code: &str) {
        // Without the agent's own message, which must not be logged: the attempt reports it unchanged.
        self.piece(Piece::Error(Trouble::new(code, "the agent failed"))).await;
    }

    async fn piece(&self, piece: Piece) {
        // The receiver is gone only after the turn has ended, and this attempt ends with it.
        let _ = self.0.send(piece).await;
    }
}

// === impl Desk ===

impl Desk {
    /// Creates the bridge of an attempt, with the receiver of the request to its agent, and the sender of the agent's
    /// pieces.
    pub(super) fn open(voice: Voice) -> (Self, oneshot::Receiver<Asked>, Tap) {
        let ((asks, asked), (tap, pieces)) = (oneshot::channel(), mpsc::channel(PIECES_MAX));
        let inside = Inside { voice: Baton::new(voice), agent: Mutex::new(Some((asks, pieces))) };
        (Self(Arc::new(inside)), asked, Tap(tap))
    }

    fn agent(&self) -> std::sync::MutexGuard<'_, Option<(oneshot::Sender<Asked>, mpsc::Receiver<Piece>)>> {
        self.0.agent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports a piece that leaves the pipeline.
    async fn pass(&self, piece: &Piece) {
        let mut voice = self.0.voice.lock().await;
        match piece {
            Piece::Text(text) => voice.say(TextKind::Text, text.clone(), None).await,
            Piece::Other(name, Value::String(text)) if name == REASONING => {
                voice.say(TextKind::Reasoning, text.clone(), None).await;
            }
            Piece::Other(name, Value::String(id)) if name == SAID => {
                let Ok(id) = SaidId::parse(id) else { return };
                let (kind, text) = (TextKind::Text, Private(String::new()));
                voice.report(AgentEvent::Delta { kind, text, id: Some(id) }).await;
            }
            Piece::Other(name, told) if name == STATE => {
                if let Some(event) = state(told) {
                    voice.report(event).await;
                }
            }
            // Errors are reported by the end of the attempt; pieces with other names are meant for other plugins.
            Piece::Error(_) | Piece::Other(..) => {}
        }
    }
}

impl Model for Desk {
    /// Asks the agent, once. An input that no plugin changed reaches the agent unchanged.
    fn answer<'a>(&'a self, turn: &'a Turn, prompt: &'a Prompt) -> Hook<'a, Pieces> {
        let Some((asks, pieces)) = self.agent().take() else {
            return ready(Err(Trouble::new("asked_twice", "a plugin asked the agent twice; a turn can ask its agent only once"))).boxed();
        };
        let inbound = &turn.inbound.envelope;
        let is_changed = *prompt != Prompt::of(inbound.content.clone(), &inbound.media);
        let content = is_changed.then(|| match prompt {
            Prompt::Text(text) => Content::Text(text.clone()),
            Prompt::Parts(parts) => Content::Parts(parts.clone()),
        });
        let asked = Asked { content, system_prompt: turn.system_prompt.clone().map(Private) };
        // The attempt holds the receiver as long as it runs.
        let _ = asks.send(asked);
        let pieces = stream::unfold(pieces, async |mut pieces| Some((pieces.recv().await?, pieces)));
        ready(Ok(pieces.boxed())).boxed()
    }
}

impl Router for Desk {
    fn streams(&self, _: &Envelope) -> bool {
        true
    }

    /// Reports each piece before the pipeline gets it. A plugin that answers in place of the agent has acknowledged the
    /// input.
    fn wrap(&self, _: &Turn, pieces: Pieces) -> Pieces {
        let is_own = self.agent().is_some();
        let from = (self.clone(), pieces, is_own);
        let said = stream::unfold(from, async |(desk, mut pieces, is_own)| {
            if is_own {
                desk.0.voice.lock().await.report(AgentEvent::Acked).await;
            }
            let piece = pieces.next().await?;
            desk.pass(&piece).await;
            Some((piece, (desk, pieces, false)))
        });
        said.boxed()
    }

    /// Appends an outbound message to the answer: a turn is one answer here. An error is reported by the end of the
    /// attempt.
    fn deliver<'a>(&'a self, outbound: &'a Envelope) -> Hook<'a, bool> {
        async move {
            if outbound.kind == Kind::Message && !outbound.streamed && !outbound.content.is_empty() {
                let mut voice = self.0.voice.lock().await;
                if outbound.fallback {
                    let (state, detail) = ("fallback".to_owned(), Some(Json(json!({"fallback": true}))));
                    voice.report(AgentEvent::State { state, detail, id: None }).await;
                }
                let between = if voice.is_silent() { "" } else { BETWEEN };
                voice.say(TextKind::Text, format!("{between}{}", outbound.content), None).await;
            }
            Ok(true)
        }
        .boxed()
    }
}

/// Parses a state that passed through the pipeline. Returns `None` for an invalid name, as for a state from an agent.
fn state(told: &Value) -> Option<AgentEvent> {
    let state = told.get("state")?.as_str()?.to_owned();
    if state.is_empty() || state.len() > WORD_BYTES_MAX || state.chars().any(char::is_control) {
        return None;
    }
    let detail = told.get("detail").filter(|detail| !detail.is_null()).cloned().map(Json);
    let id = told.get("id").and_then(Value::as_str).and_then(|id| SaidId::parse(id).ok());
    Some(AgentEvent::State { state, detail, id })
}
