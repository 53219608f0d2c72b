//! The interface of plugins, and the types that their hooks get.
use crate::envelope::{MessageEnvelope, MessageKind};
use crate::failure::{HookError, PipelineStage, TurnFailure};
use crate::prompt::Prompt;
use crate::stream::AnswerStream;
use futures_util::future::{BoxFuture, FutureExt, ready};
use serde_json::{Map, Value};
use std::fmt;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// The future that a hook returns.
pub type HookFuture<'a, T> = BoxFuture<'a, Result<T, HookError>>;

/// A resource that is open for one message and closed after it, such as a transaction or a typing notice (TP-S4).
pub trait Lifespan: Send + Sync {
    /// Opens the resource.
    fn open(&self) -> HookFuture<'_, ()>;
    /// Closes the resource with the turn's failure; `None`: the turn succeeded (TP-S5).
    fn close<'a>(&'a self, failure: Option<&'a TurnFailure>) -> HookFuture<'a, ()>;
}

/// An incoming message, with its lifespan and its cancellation.
#[derive(Clone, Default)]
pub struct Inbound {
    pub envelope: MessageEnvelope,
    /// A resource that is open while the message is handled.
    pub lifespan: Option<Arc<dyn Lifespan>>,
    /// Ends the turn at the next moment; state is saved all the same.
    pub cancel: CancellationToken,
}

impl fmt::Debug for Inbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbound").field("envelope", &self.envelope).finish_non_exhaustive()
    }
}

impl From<MessageEnvelope> for Inbound {
    fn from(envelope: MessageEnvelope) -> Self {
        Self { envelope, ..Self::default() }
    }
}

/// A turn in progress.
#[derive(Clone, Debug)]
pub struct Turn {
    /// The incoming message, with its session set (TP-R4).
    pub inbound: Inbound,
    pub session_id: String,
    /// The state loaded by all plugins (TP-L1).
    pub state: Map<String, Value>,
    pub system_prompt: Option<String>,
    /// The model's answer; empty before, and if the model failed (TP-S3).
    pub output: String,
    /// True if the output has been shown piece by piece.
    pub streamed: bool,
    /// The reason why the turn failed, as far as it is known.
    pub failure: Option<TurnFailure>,
    /// Messages rendered by plugins of higher priority: a plugin that renders a default need not add one.
    pub rendered: Vec<MessageEnvelope>,
}

// === impl Turn ===

impl Turn {
    /// Returns the output as one message to the turn's origin, or its substitute if there is no output (TP-O3,
    /// TP-N9). A plugin that renders the output in another way changes the text and keeps the rest, such as
    /// `streamed`.
    pub fn output_message(&self) -> MessageEnvelope {
        let is_fallback = self.failure == Some(TurnFailure::NoOutput);
        let kind = if is_fallback && self.output.is_empty() { MessageKind::Error } else { MessageKind::Message };
        let text = match kind {
            MessageKind::Error => TurnFailure::NoOutput.to_string(),
            MessageKind::Message => self.output.clone(),
        };
        let reply = self.inbound.envelope.reply(text);
        MessageEnvelope { kind, fallback: is_fallback, streamed: self.streamed, ..reply }
    }
}

/// The destination of messages, and of pieces of text before them.
pub trait Router: Send + Sync {
    /// Returns whether this conversation wants text as it is produced.
    fn wants_stream(&self, inbound: &MessageEnvelope) -> bool {
        let _ = inbound;
        false
    }
    /// Wraps the pieces, to show them before the turn ends (TP-M12). The returned pieces are the output.
    fn wrap_stream(&self, turn: &Turn, pieces: AnswerStream) -> AnswerStream {
        let _ = turn;
        pieces
    }
    /// Delivers a message. The text of a [`streamed`](MessageEnvelope::streamed) message has already been shown.
    fn deliver<'a>(&'a self, outbound: &'a MessageEnvelope) -> HookFuture<'a, bool>;
}

/// A store for the turns of sessions.
pub trait TapeStore: Send + Sync {
    /// Appends the entries of a turn, in order (TP-G2).
    fn append<'a>(&'a self, session_id: &'a str, entries: &'a [Value]) -> HookFuture<'a, ()>;
}

/// A sender of messages that takes the path of all messages.
pub(crate) trait DispatchOutbound: Sync {
    /// Sends a message; returns whether a plugin or the router reports it as delivered.
    fn dispatch<'a>(&'a self, outbound: &'a MessageEnvelope) -> BoxFuture<'a, Result<bool, TurnFailure>>;
}

/// A sender of messages, for plugins that handle an error.
pub struct Dispatcher<'a>(&'a dyn DispatchOutbound);

impl<'a> Dispatcher<'a> {
    pub(crate) fn to(exit: &'a dyn DispatchOutbound) -> Self {
        Self(exit)
    }

    /// Sends a message on the path of all messages; returns whether a plugin or the router reports it as delivered.
    pub async fn dispatch(&self, outbound: &MessageEnvelope) -> Result<bool, TurnFailure> {
        self.0.dispatch(outbound).await
    }
}

/// A plugin. A hook that it does not implement is left to the plugins registered before it, and in the end to the
/// built-in one.
///
/// | stage | of all plugins | if none answers |
/// |---|---|---|
/// | [`Self::resolve_session`] | the first answer | channel and chat |
/// | [`Self::load_state`] | all, the later registered wins | the pipeline's own state |
/// | [`Self::admit`] | the first refusal | the turn is admitted |
/// | [`Self::build_prompt`] | the first answer | the message's text |
/// | [`Self::run_model`], [`Self::run_model_stream`] | the first answer | [`NoOutputPolicy`](crate::NoOutputPolicy) |
/// | [`Self::save_state`] | all, exactly once from `load_state` on | - |
/// | [`Self::render_outbound`] | all, one list | one message with the output |
/// | [`Self::dispatch_outbound`] | all, for each message | - |
pub trait Plugin: Send + Sync {
    /// Returns the plugin's name, for logs and errors.
    fn name(&self) -> &str;

    /// Returns whether the agent's text is shown exactly as the agent sent it, byte for byte: the plugin neither
    /// changes pieces nor answers itself nor renders messages. Only then may a host resume an agent's answer, since
    /// the answer's bytes are counted (docs/plugins.md). The host relies on this value; `false` is always safe.
    fn keeps_text(&self) -> bool {
        false
    }

    /// Returns the session that a message belongs to; the first answer counts (TP-R1).
    fn resolve_session<'a>(&'a self, inbound: &'a Inbound) -> HookFuture<'a, Option<String>> {
        let _ = inbound;
        no_answer()
    }

    /// Returns the plugin's state of a session (TP-L1).
    fn load_state<'a>(&'a self, inbound: &'a Inbound, session_id: &'a str) -> HookFuture<'a, Map<String, Value>> {
        let _ = (inbound, session_id);
        no_answer()
    }

    /// Returns the reason for refusing a turn; the first refusal counts.
    fn admit<'a>(&'a self, turn: &'a Turn) -> HookFuture<'a, Option<HookError>> {
        let _ = turn;
        no_answer()
    }

    /// Returns the system prompt; the first answer counts.
    fn system_prompt<'a>(&'a self, turn: &'a Turn) -> HookFuture<'a, Option<String>> {
        let _ = turn;
        no_answer()
    }

    /// Returns the prompt for the model; the first answer counts, even an empty one (TP-B2, TP-B4).
    fn build_prompt<'a>(&'a self, turn: &'a Turn) -> HookFuture<'a, Option<Prompt>> {
        let _ = turn;
        no_answer()
    }

    /// Returns the whole answer at once; implement this or [`run_model_stream`](Self::run_model_stream), not both
    /// (TP-M1, TP-M3).
    fn run_model<'a>(&'a self, turn: &'a Turn, prompt: &'a Prompt) -> HookFuture<'a, Option<String>> {
        let _ = (turn, prompt);
        no_answer()
    }

    /// Returns the answer piece by piece (TP-M2).
    fn run_model_stream<'a>(&'a self, turn: &'a Turn, prompt: &'a Prompt) -> HookFuture<'a, Option<AnswerStream>> {
        let _ = (turn, prompt);
        ready(Ok(None)).boxed()
    }

    /// Changes the pieces of an answer, streamed or not. Every plugin may do so; the later registered is further from
    /// the model.
    fn adapt_stream(&self, turn: &Turn, pieces: AnswerStream) -> AnswerStream {
        let _ = turn;
        pieces
    }

    /// Saves the plugin's state: called once for each turn, however the turn ended (TP-S1, TP-S2).
    fn save_state<'a>(&'a self, turn: &'a Turn) -> HookFuture<'a, ()> {
        let _ = turn;
        no_answer()
    }

    /// Returns a store for turns, for hosts whose sessions have no log of their own; the first answer counts
    /// (TP-N12).
    fn provide_tape_store(&self) -> Option<Arc<dyn TapeStore>> {
        None
    }

    /// Renders the messages to be sent; all plugins' messages make one list (TP-O1, TP-O2).
    fn render_outbound<'a>(&'a self, turn: &'a Turn) -> HookFuture<'a, Vec<MessageEnvelope>> {
        let _ = turn;
        no_answer()
    }

    /// Sends a message; returns true once it is delivered (TP-O4, TP-O5).
    fn dispatch_outbound<'a>(&'a self, outbound: &'a MessageEnvelope) -> HookFuture<'a, bool> {
        let _ = outbound;
        no_answer()
    }

    /// Handles a failure. Errors and panics of this hook are only logged (TP-E5).
    fn on_error<'a>(
        &'a self,
        stage: PipelineStage,
        failure: &'a TurnFailure,
        inbound: &'a MessageEnvelope,
        outlet: &'a Dispatcher<'a>,
    ) -> HookFuture<'a, ()> {
        let _ = (stage, failure, inbound, outlet);
        no_answer()
    }
}

/// Returns the result of a hook without an answer.
pub fn no_answer<'a, T: Default + Send + 'a>() -> HookFuture<'a, T> {
    ready(Ok(T::default())).boxed()
}
