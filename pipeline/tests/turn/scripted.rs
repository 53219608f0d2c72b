//! A scripted plugin that records its calls.
use futures_util::future::ready;
use futures_util::{FutureExt, StreamExt, stream};
use serde_json::{Map, Value};
use std::sync::{Arc, Mutex, PoisonError};
use turnway_pipeline::{
    AnswerPiece, AnswerStream, Dispatcher, HookError, HookFuture, Inbound, Lifespan, MessageEnvelope, PipelineStage,
    Plugin, Prompt, Router, Turn, TurnFailure,
};

/// Calls of all plugins, in order.
#[derive(Clone, Default)]
pub(crate) struct CallLog(Arc<Mutex<Vec<String>>>);

impl CallLog {
    pub(crate) fn note(&self, line: impl Into<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line.into());
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the lines with this prefix.
    pub(crate) fn of(&self, start: &str) -> Vec<String> {
        self.lines().into_iter().filter(|line| line.starts_with(start)).collect()
    }
}

/// Behaviour of a plugin at one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behavior {
    /// Returns the default.
    Pass,
    /// Returns an answer with this text.
    Say(&'static str),
    Fail,
    /// Panics in the future that the hook returns.
    Panic,
    /// Panics in the call, before there is a future.
    PanicInCall,
    /// Never returns a result.
    Hang,
}

/// A plugin of a test; stages without a script return the default.
#[derive(Clone)]
pub(crate) struct ScriptedPlugin {
    pub(crate) name: &'static str,
    pub(crate) book: CallLog,
    pub(crate) session: Behavior,
    pub(crate) state: Behavior,
    pub(crate) admit: Behavior,
    pub(crate) prompt: Behavior,
    pub(crate) model: Behavior,
    pub(crate) pieces: Option<Vec<AnswerPiece>>,
    pub(crate) save: Behavior,
    pub(crate) render: Behavior,
    pub(crate) dispatch: Behavior,
    pub(crate) hears: Behavior,
}

impl ScriptedPlugin {
    pub(crate) fn new(name: &'static str, log: &CallLog) -> Self {
        let log = log.clone();
        let pass = Behavior::Pass;
        Self {
            name,
            book: log,
            session: pass,
            state: pass,
            admit: pass,
            prompt: pass,
            model: pass,
            pieces: None,
            save: pass,
            render: pass,
            dispatch: pass,
            hears: pass,
        }
    }

    fn act<'a, T: Default + Send + 'a>(
        &'a self,
        stage: &str,
        act: Behavior,
        say: impl FnOnce(&'static str) -> T + Send + 'a,
    ) -> HookFuture<'a, T> {
        self.book.note(format!("{stage} {}", self.name));
        match act {
            Behavior::Pass => ready(Ok(T::default())).boxed(),
            Behavior::Say(what) => ready(Ok(say(what))).boxed(),
            Behavior::Fail => ready(Err(HookError::new("broken", format!("{stage} is broken")))).boxed(),
            Behavior::Panic => async { panic!("as the test wants") }.boxed(),
            Behavior::PanicInCall => panic!("as the test wants"),
            Behavior::Hang => std::future::pending().boxed(),
        }
    }
}

impl Plugin for ScriptedPlugin {
    fn name(&self) -> &'static str {
        self.name
    }
    fn resolve_session<'a>(&'a self, _: &'a Inbound) -> HookFuture<'a, Option<String>> {
        self.act("resolve_session", self.session, |id| Some(id.to_owned()))
    }
    fn load_state<'a>(&'a self, _: &'a Inbound, _: &'a str) -> HookFuture<'a, Map<String, Value>> {
        let own = self.name;
        self.act("load_state", self.state, move |key| {
            Map::from_iter([(key.to_owned(), own.into()), (own.to_owned(), true.into())])
        })
    }
    fn admit<'a>(&'a self, turn: &'a Turn) -> HookFuture<'a, Option<HookError>> {
        self.book.note(format!("admits to {}", turn.session_id));
        self.act("admit", self.admit, |why| Some(HookError::new("blocked", why)))
    }
    fn build_prompt<'a>(&'a self, _: &'a Turn) -> HookFuture<'a, Option<Prompt>> {
        self.act("build_prompt", self.prompt, |text| Some(Prompt::Text(text.to_owned())))
    }
    fn run_model<'a>(&'a self, _: &'a Turn, prompt: &'a Prompt) -> HookFuture<'a, Option<String>> {
        self.book.note(format!("asked {prompt:?}"));
        self.act("run_model", self.model, |text| Some(text.to_owned()))
    }
    fn run_model_stream<'a>(&'a self, _: &'a Turn, _: &'a Prompt) -> HookFuture<'a, Option<AnswerStream>> {
        self.book.note(format!("run_model_stream {}", self.name));
        let pieces = self.pieces.clone().map(|pieces| stream::iter(pieces).boxed());
        ready(Ok(pieces)).boxed()
    }
    fn save_state<'a>(&'a self, turn: &'a Turn) -> HookFuture<'a, ()> {
        self.book.note(format!("saved {:?} {:?}", turn.output, turn.failure.as_ref().map(TurnFailure::code)));
        self.act("save_state", self.save, |_| ())
    }
    fn render_outbound<'a>(&'a self, turn: &'a Turn) -> HookFuture<'a, Vec<MessageEnvelope>> {
        let inbound = turn.inbound.envelope.clone();
        self.act("render_outbound", self.render, move |text| vec![inbound.reply(text)])
    }
    fn dispatch_outbound<'a>(&'a self, outbound: &'a MessageEnvelope) -> HookFuture<'a, bool> {
        self.book.note(format!("sent {}", outbound.content));
        self.act("dispatch_outbound", self.dispatch, |_| true)
    }
    fn on_error<'a>(
        &'a self,
        stage: PipelineStage,
        failure: &'a TurnFailure,
        _: &'a MessageEnvelope,
        _: &'a Dispatcher<'a>,
    ) -> HookFuture<'a, ()> {
        self.book.note(format!("heard {} {stage} {}", self.name, failure.code()));
        self.act("on_error", self.hears, |_| ())
    }
}

/// A lifespan that records its opening and closing.
pub(crate) struct RecordingLifespan(pub(crate) CallLog);

impl Lifespan for RecordingLifespan {
    fn open(&self) -> HookFuture<'_, ()> {
        self.0.note("opened");
        ready(Ok(())).boxed()
    }
    fn close<'a>(&'a self, failure: Option<&'a TurnFailure>) -> HookFuture<'a, ()> {
        self.0.note(format!("closed {:?}", failure.map(TurnFailure::code)));
        ready(Ok(())).boxed()
    }
}

/// A router that records pieces and deliveries.
pub(crate) struct RecordingRouter {
    pub(crate) book: CallLog,
    pub(crate) streams: bool,
}

impl Router for RecordingRouter {
    fn wants_stream(&self, _: &MessageEnvelope) -> bool {
        self.streams
    }
    fn wrap_stream(&self, _: &Turn, pieces: AnswerStream) -> AnswerStream {
        let log = self.book.clone();
        pieces.inspect(move |piece| log.note(format!("shown {piece:?}"))).boxed()
    }
    fn deliver<'a>(&'a self, outbound: &'a MessageEnvelope) -> HookFuture<'a, bool> {
        let text = if outbound.streamed { "" } else { &outbound.content };
        self.book.note(format!("delivered {:?} {text:?}", outbound.kind));
        ready(Ok(true)).boxed()
    }
}
