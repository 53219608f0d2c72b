//! What a plugin may do in a turn.
use crate::envelope::{Envelope, Kind};
use crate::failure::{Failure, Stage, Trouble};
use crate::prompt::Prompt;
use crate::stream::Pieces;
use futures_util::future::{BoxFuture, FutureExt, ready};
use serde_json::{Map, Value};
use std::fmt;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// What a hook comes to.
pub type Hook<'a, T> = BoxFuture<'a, Result<T, Trouble>>;

/// What is open for one message and closed after it, such as a transaction or a typing notice (TP-S4).
pub trait Lifespan: Send + Sync {
    /// It begins.
    fn open(&self) -> Hook<'_, ()>;
    /// It is over, and how: none, it went well (TP-S5).
    fn close<'a>(&'a self, failure: Option<&'a Failure>) -> Hook<'a, ()>;
}

/// What comes in, and what belongs to it.
#[derive(Clone, Default)]
pub struct Inbound {
    /// The message.
    pub envelope: Envelope,
    /// What is open as long as it is dealt with.
    pub lifespan: Option<Arc<dyn Lifespan>>,
    /// Ends the turn at the next moment; state is saved all the same.
    pub cancel: CancellationToken,
}

impl fmt::Debug for Inbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbound").field("envelope", &self.envelope).finish_non_exhaustive()
    }
}

impl From<Envelope> for Inbound {
    fn from(envelope: Envelope) -> Self {
        Self { envelope, ..Self::default() }
    }
}

/// A turn under way.
#[derive(Clone, Debug)]
pub struct Turn {
    /// What came in, with its session in it (TP-R4).
    pub inbound: Inbound,
    /// Its session.
    pub session_id: String,
    /// What all plugins know (TP-L1).
    pub state: Map<String, Value>,
    /// What the model is told of itself.
    pub system_prompt: Option<String>,
    /// What the model has answered; empty before, and where it failed (TP-S3).
    pub output: String,
    /// The output has been shown piece by piece.
    pub streamed: bool,
    /// Why it came to no good end, as far as it is known.
    pub failure: Option<Failure>,
    /// What plugins of higher priority have rendered: who renders a default has none to add to it.
    pub rendered: Vec<Envelope>,
}

// === impl Turn ===

impl Turn {
    /// The output as one message to where the turn's came from, or what stands for it where there is none (TP-O3,
    /// TP-N9): whoever renders it otherwise changes its text and leaves the rest, such as whether it was shown.
    pub fn message(&self) -> Envelope {
        let is_fallback = self.failure == Some(Failure::NoOutput);
        let kind = if is_fallback && self.output.is_empty() { Kind::Error } else { Kind::Message };
        let text = match kind {
            Kind::Error => Failure::NoOutput.to_string(),
            Kind::Message => self.output.clone(),
        };
        let reply = self.inbound.envelope.reply(text);
        Envelope { kind, fallback: is_fallback, streamed: self.streamed, ..reply }
    }
}

/// Where messages go in the end, and pieces of text before them.
pub trait Router: Send + Sync {
    /// Whether this conversation wants text as it comes.
    fn streams(&self, inbound: &Envelope) -> bool {
        let _ = inbound;
        false
    }
    /// Takes the pieces on their way, to show them before the turn ends (TP-M12). What it gives back is the output.
    fn wrap(&self, turn: &Turn, pieces: Pieces) -> Pieces {
        let _ = turn;
        pieces
    }
    /// Delivers a message. Of a [`streamed`](Envelope::streamed) one the text has been shown.
    fn deliver<'a>(&'a self, outbound: &'a Envelope) -> Hook<'a, bool>;
}

/// Where what was said in sessions is kept, turn by turn.
pub trait TapeStore: Send + Sync {
    /// Adds what a turn has come to, in order (TP-G2).
    fn append<'a>(&'a self, session_id: &'a str, entries: &'a [Value]) -> Hook<'a, ()>;
}

/// Whoever sends messages the way all go.
pub(crate) trait Exit: Sync {
    /// Whether somebody says to have delivered it.
    fn dispatch<'a>(&'a self, outbound: &'a Envelope) -> BoxFuture<'a, Result<bool, Failure>>;
}

/// The way out, for whoever hears of an error.
pub struct Outlet<'a>(&'a dyn Exit);

impl<'a> Outlet<'a> {
    pub(crate) fn to(exit: &'a dyn Exit) -> Self {
        Self(exit)
    }

    /// Sends a message the way all go; whether somebody says to have delivered it.
    pub async fn dispatch(&self, outbound: &Envelope) -> Result<bool, Failure> {
        self.0.dispatch(outbound).await
    }
}

/// A plugin: whatever it does not fill is left to those registered before it, and in the end to the built-in one.
pub trait Plugin: Send + Sync {
    /// Its name, for logs and errors.
    fn name(&self) -> &str;

    /// Whether what an agent says is shown as the agent said it, byte for byte: it neither changes pieces nor answers
    /// itself nor renders anything. A host of agents that can be asked for the rest of an answer may do so only then, for
    /// their bytes are counted in it (docs/plugins.md); it believes the answer, and `false` is never wrong.
    fn keeps_text(&self) -> bool {
        false
    }

    /// Which session a message belongs to; the first answer counts (TP-R1).
    fn resolve_session<'a>(&'a self, inbound: &'a Inbound) -> Hook<'a, Option<String>> {
        let _ = inbound;
        nothing()
    }

    /// What this plugin knows of a session (TP-L1).
    fn load_state<'a>(&'a self, inbound: &'a Inbound, session_id: &'a str) -> Hook<'a, Map<String, Value>> {
        let _ = (inbound, session_id);
        nothing()
    }

    /// Why a turn is not done; the first refusal counts.
    fn admit<'a>(&'a self, turn: &'a Turn) -> Hook<'a, Option<Trouble>> {
        let _ = turn;
        nothing()
    }

    /// What the model is told of itself; the first answer counts.
    fn system_prompt<'a>(&'a self, turn: &'a Turn) -> Hook<'a, Option<String>> {
        let _ = turn;
        nothing()
    }

    /// What the model is asked; the first answer counts, also an empty one (TP-B2, TP-B4).
    fn build_prompt<'a>(&'a self, turn: &'a Turn) -> Hook<'a, Option<Prompt>> {
        let _ = turn;
        nothing()
    }

    /// The whole answer at once; fill this or [`run_model_stream`](Self::run_model_stream), not both (TP-M1, TP-M3).
    fn run_model<'a>(&'a self, turn: &'a Turn, prompt: &'a Prompt) -> Hook<'a, Option<String>> {
        let _ = (turn, prompt);
        nothing()
    }

    /// The answer piece by piece (TP-M2).
    fn run_model_stream<'a>(&'a self, turn: &'a Turn, prompt: &'a Prompt) -> Hook<'a, Option<Pieces>> {
        let _ = (turn, prompt);
        ready(Ok(None)).boxed()
    }

    /// Changes the pieces on their way, streamed or not. Every plugin may; the later registered is further from the model.
    fn adapt_stream(&self, turn: &Turn, pieces: Pieces) -> Pieces {
        let _ = turn;
        pieces
    }

    /// What is to be kept of the turn: called once, however it ended (TP-S1, TP-S2).
    fn save_state<'a>(&'a self, turn: &'a Turn) -> Hook<'a, ()> {
        let _ = turn;
        nothing()
    }

    /// Where turns are kept, for hosts whose sessions have no log of their own; the first answer counts (TP-N12).
    fn provide_tape_store(&self) -> Option<Arc<dyn TapeStore>> {
        None
    }

    /// What is said; all plugins' messages make one list (TP-O1, TP-O2).
    fn render_outbound<'a>(&'a self, turn: &'a Turn) -> Hook<'a, Vec<Envelope>> {
        let _ = turn;
        nothing()
    }

    /// Says it; `true` once that is done (TP-O4, TP-O5).
    fn dispatch_outbound<'a>(&'a self, outbound: &'a Envelope) -> Hook<'a, bool> {
        let _ = outbound;
        nothing()
    }

    /// Hears of what went wrong. Its own errors and panics end here (TP-E5).
    fn on_error<'a>(
        &'a self,
        stage: Stage,
        failure: &'a Failure,
        inbound: &'a Envelope,
        outlet: &'a Outlet<'a>,
    ) -> Hook<'a, ()> {
        let _ = (stage, failure, inbound, outlet);
        nothing()
    }
}

/// What a hook comes to that has nothing to say.
pub fn nothing<'a, T: Default + Send + 'a>() -> Hook<'a, T> {
    ready(Ok(T::default())).boxed()
}
