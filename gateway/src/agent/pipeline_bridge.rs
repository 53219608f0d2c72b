//! Connects the turn pipeline to one attempt: the pipeline asks the agent as its model, and the attempt reports the
//! text that leaves the last plugin. Text must be counted here, behind the plugins, because the offsets from which
//! clients resume are those of the text they were shown. Called by `pipelined` and `plugins`.
use crate::agent::attempt::AttemptReporter;
use futures_util::FutureExt;
use futures_util::StreamExt;
use futures_util::future::ready;
use futures_util::stream;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Mutex as Baton, mpsc, oneshot};
use turnway_core::id::AgentEventId;
use turnway_core::private::Private;
use turnway_core::protocol::agent::{AgentEvent, TextKind};
use turnway_core::protocol::input::Content;
use turnway_core::protocol::json::Json;
use turnway_pipeline::builtin::LanguageModel;
use turnway_pipeline::{
    AnswerPiece, AnswerStream, HookError, HookFuture, MessageEnvelope, MessageKind, Prompt, Router, Turn,
};

/// Capacity of the channel from an agent to the pipeline: enough that neither side waits for each step of the other,
/// and little compared with one event, of which a piece is at most a part.
const PIECES_MAX: usize = 8;
/// Maximum bytes of a state's name, as for a state from an agent.
const STATE_NAME_BYTES_MAX: usize = 256;
/// Separator between two messages of one turn, which are one answer here.
const MESSAGE_SEPARATOR: &str = "\n\n";

/// Names of pieces that are not text (docs/plugins.md).
const STATE: &str = "state";
const REASONING: &str = "reasoning";
/// Marks that the whole event with this id was reported; for agents that can resume.
const EVENT_REPORTED: &str = "said";

/// The request that the pipeline makes of an agent.
#[derive(Debug)]
pub(super) struct ModelRequest {
    /// Replaces the content of the input message; `None` keeps it unchanged.
    pub(super) content: Option<Content>,
    pub(super) system_prompt: Option<Private<String>>,
}

/// The agent's sending end of the pieces for the pipeline.
#[derive(Debug)]
pub(super) struct PieceSender(mpsc::Sender<AnswerPiece>);

/// The pipeline's model and router, for one attempt.
#[derive(Clone)]
pub(super) struct PipelineBridge(Arc<PipelineBridgeInner>);

struct PipelineBridgeInner {
    reporter: Baton<AttemptReporter>,
    /// Taken when the agent is asked.
    agent: Mutex<Option<(oneshot::Sender<ModelRequest>, mpsc::Receiver<AnswerPiece>)>>,
}

// === impl PieceSender ===

impl PieceSender {
    /// Sends a piece of text.
    pub(super) async fn text(&self, kind: TextKind, text: String, id: Option<AgentEventId>) {
        let piece = match kind {
            TextKind::Text => AnswerPiece::Text(text),
            TextKind::Reasoning => AnswerPiece::Other(REASONING.to_owned(), text.into()),
        };
        self.send(piece).await;
        if let Some(id) = id {
            self.send(AnswerPiece::Other(EVENT_REPORTED.to_owned(), id.as_str().into())).await;
        }
    }

    /// Sends a state, in order with the text.
    pub(super) async fn state(&self, state: String, detail: Option<Json>, id: Option<AgentEventId>) {
        let detail = detail.map(|detail| detail.0);
        let id = id.map(|id| id.as_str().to_owned());
        let state_piece = json!({"state": state, "detail": detail, "id": id});
        self.send(AnswerPiece::Other(STATE.to_owned(), state_piece)).await;
    }

    /// Sends that the agent has failed.
    pub(super) async fn error(&self, code: &str) {
        // Without the agent's own message, which must not be logged: the attempt reports it unchanged.
        self.send(AnswerPiece::Error(HookError::new(code, "the agent failed"))).await;
    }

    async fn send(&self, piece: AnswerPiece) {
        // The receiver is gone only after the turn has ended, and this attempt ends with it.
        let _ = self.0.send(piece).await;
    }
}

// === impl PipelineBridge ===

impl PipelineBridge {
    /// Creates the bridge of an attempt, with the receiver of the request to its agent, and the sender of the agent's
    /// pieces.
    pub(super) fn open(reporter: AttemptReporter) -> (Self, oneshot::Receiver<ModelRequest>, PieceSender) {
        let ((request_sender, request), (tap, pieces)) = (oneshot::channel(), mpsc::channel(PIECES_MAX));
        let inside =
            PipelineBridgeInner { reporter: Baton::new(reporter), agent: Mutex::new(Some((request_sender, pieces))) };
        (Self(Arc::new(inside)), request, PieceSender(tap))
    }

    fn agent(&self) -> std::sync::MutexGuard<'_, Option<(oneshot::Sender<ModelRequest>, mpsc::Receiver<AnswerPiece>)>> {
        self.0.agent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports a piece that leaves the pipeline.
    async fn report_piece(&self, piece: &AnswerPiece) {
        let mut reporter = self.0.reporter.lock().await;
        match piece {
            AnswerPiece::Text(text) => reporter.report_text(TextKind::Text, text.clone(), None).await,
            AnswerPiece::Other(name, Value::String(text)) if name == REASONING => {
                reporter.report_text(TextKind::Reasoning, text.clone(), None).await;
            }
            AnswerPiece::Other(name, Value::String(id)) if name == EVENT_REPORTED => {
                let Ok(id) = AgentEventId::parse(id) else { return };
                let kind = TextKind::Text;
                let text = Private(String::new());
                reporter.report(AgentEvent::Delta { kind, text, id: Some(id) }).await;
            }
            AnswerPiece::Other(name, piece_state) if name == STATE => {
                if let Some(event) = parse_state(piece_state) {
                    reporter.report(event).await;
                }
            }
            // Errors are reported by the end of the attempt; pieces with other names are meant for other plugins.
            AnswerPiece::Error(_) | AnswerPiece::Other(..) => {}
        }
    }
}

impl LanguageModel for PipelineBridge {
    /// Asks the agent, once. An input that no plugin changed reaches the agent unchanged.
    fn answer<'a>(&'a self, turn: &'a Turn, prompt: &'a Prompt) -> HookFuture<'a, AnswerStream> {
        let Some((request_sender, pieces)) = self.agent().take() else {
            let why = "a plugin asked the agent twice; a turn can ask its agent only once";
            return ready(Err(HookError::new("asked_twice", why))).boxed();
        };
        let inbound = &turn.inbound.envelope;
        let is_changed = *prompt != Prompt::from_text(inbound.content.clone(), &inbound.media);
        let content = is_changed.then(|| match prompt {
            Prompt::Text(text) => Content::Text(text.clone()),
            Prompt::Parts(parts) => Content::Parts(parts.clone()),
        });
        let request = ModelRequest { content, system_prompt: turn.system_prompt.clone().map(Private) };
        // The attempt holds the receiver as long as it runs.
        let _ = request_sender.send(request);
        let pieces = stream::unfold(pieces, async |mut pieces| Some((pieces.recv().await?, pieces)));
        ready(Ok(pieces.boxed())).boxed()
    }
}

impl Router for PipelineBridge {
    fn wants_stream(&self, _: &MessageEnvelope) -> bool {
        true
    }

    /// Reports each piece before the pipeline gets it. A plugin that answers in place of the agent has acknowledged the
    /// input.
    fn wrap_stream(&self, _: &Turn, pieces: AnswerStream) -> AnswerStream {
        let is_own = self.agent().is_some();
        let from = (self.clone(), pieces, is_own);
        let reported = stream::unfold(from, async |(bridge, mut pieces, is_own)| {
            if is_own {
                bridge.0.reporter.lock().await.report(AgentEvent::Acked).await;
            }
            let piece = pieces.next().await?;
            bridge.report_piece(&piece).await;
            Some((piece, (bridge, pieces, false)))
        });
        reported.boxed()
    }

    /// Appends an outbound message to the answer: a turn is one answer here. An error is reported by the end of the
    /// attempt.
    fn deliver<'a>(&'a self, outbound: &'a MessageEnvelope) -> HookFuture<'a, bool> {
        async move {
            if outbound.kind == MessageKind::Message && !outbound.streamed && !outbound.content.is_empty() {
                let mut reporter = self.0.reporter.lock().await;
                if outbound.fallback {
                    let state = "fallback".to_owned();
                    let detail = Some(Json(json!({"fallback": true})));
                    reporter.report(AgentEvent::State { state, detail, id: None }).await;
                }
                let between = if reporter.is_silent() { "" } else { MESSAGE_SEPARATOR };
                reporter.report_text(TextKind::Text, format!("{between}{}", outbound.content), None).await;
            }
            Ok(true)
        }
        .boxed()
    }
}

/// Parses a state that passed through the pipeline. Returns `None` for an invalid name, as for a state from an agent.
fn parse_state(piece: &Value) -> Option<AgentEvent> {
    let state = piece.get("state")?.as_str()?.to_owned();
    if state.is_empty() || state.len() > STATE_NAME_BYTES_MAX || state.chars().any(char::is_control) {
        return None;
    }
    let detail = piece.get("detail").filter(|detail| !detail.is_null()).cloned().map(Json);
    let id = piece.get("id").and_then(Value::as_str).and_then(|id| AgentEventId::parse(id).ok());
    Some(AgentEvent::State { state, detail, id })
}
