//! A scripted plugin that records its calls.
use futures_util::future::ready;
use futures_util::{FutureExt, StreamExt, stream};
use serde_json::{Map, Value};
use std::sync::{Arc, Mutex, PoisonError};
use turnway_pipeline::{
    Envelope, Failure, Hook, Inbound, Lifespan, Outlet, Piece, Pieces, Plugin, Prompt, Router, Stage,
    Trouble, Turn,
};

/// Calls of all plugins, in order.
#[derive(Clone, Default)]
pub(crate) struct Book(Arc<Mutex<Vec<String>>>);

impl Book {
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
pub(crate) enum Act {
    /// Returns the default.
    Pass,
    /// Returns an answer with this text.
    Say(&'static str),
    Fail,
    Panic,
    /// Never returns a result.
    Hang,
}

/// A plugin of a test; stages without a script return the default.
#[derive(Clone)]
pub(crate) struct Actor {
    pub(crate) name: &'static str,
    pub(crate) book: Book,
    pub(crate) session: Act,
    pub(crate) state: Act,
    pub(crate) admit: Act,
    pub(crate) prompt: Act,
    pub(crate) model: Act,
    pub(crate) pieces: Option<Vec<Piece>>,
    pub(crate) save: Act,
    pub(crate) render: Act,
    pub(crate) dispatch: Act,
    pub(crate) hears: Act,
}

impl Actor {
    pub(crate) fn new(name: &'static str, book: &Book) -> Self {
        let book = book.clone();
        let pass = Act::Pass;
        Self {
            name,
            book,
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
        act: Act,
        say: impl FnOnce(&'static str) -> T + Send + 'a,
    ) -> Hook<'a, T> {
        self.book.note(format!("{stage} {}", self.name));
        match act {
            Act::Pass => ready(Ok(T::default())).boxed(),
            Act::Say(what) => ready(Ok(say(what))).boxed(),
            Act::Fail => ready(Err(Trouble::new("broken", format!("{stage} is broken")))).boxed(),
            Act::Panic => async { panic!("as the test wants") }.boxed(),
            Act::Hang => std::future::pending().boxed(),
        }
    }
}

impl Plugin for Actor {
    fn name(&self) -> &'static str {
        self.name
    }
    fn resolve_session<'a>(&'a self, _: &'a Inbound) -> Hook<'a, Option<String>> {
        self.act("resolve_session", self.session, |id| Some(id.to_owned()))
    }
    fn load_state<'a>(&'a self, _: &'a Inbound, _: &'a str) -> Hook<'a, Map<String, Value>> {
        let own = self.name;
        self.act("load_state", self.state, move |key| {
            Map::from_iter([(key.to_owned(), own.into()), (own.to_owned(), true.into())])
        })
    }
    fn admit<'a>(&'a self, turn: &'a Turn) -> Hook<'a, Option<Trouble>> {
        self.book.note(format!("admits to {}", turn.session_id));
        self.act("admit", self.admit, |why| Some(Trouble::new("blocked", why)))
    }
    fn build_prompt<'a>(&'a self, _: &'a Turn) -> Hook<'a, Option<Prompt>> {
        self.act("build_prompt", self.prompt, |text| Some(Prompt::Text(text.to_owned())))
    }
    fn run_model<'a>(&'a self, _: &'a Turn, prompt: &'a Prompt) -> Hook<'a, Option<String>> {
        self.book.note(format!("asked {prompt:?}"));
        self.act("run_model", self.model, |text| Some(text.to_owned()))
    }
    fn run_model_stream<'a>(&'a self, _: &'a Turn, _: &'a Prompt) -> Hook<'a, Option<Pieces>> {
        self.book.note(format!("run_model_stream {}", self.name));
        let pieces = self.pieces.clone().map(|pieces| stream::iter(pieces).boxed());
        ready(Ok(pieces)).boxed()
    }
    fn save_state<'a>(&'a self, turn: &'a Turn) -> Hook<'a, ()> {
        self.book.note(format!("saved {:?} {:?}", turn.output, turn.failure.as_ref().map(Failure::code)));
        self.act("save_state", self.save, |_| ())
    }
    fn render_outbound<'a>(&'a self, turn: &'a Turn) -> Hook<'a, Vec<Envelope>> {
        let inbound = turn.inbound.envelope.clone();
        self.act("render_outbound", self.render, move |text| vec![inbound.reply(text)])
    }
    fn dispatch_outbound<'a>(&'a self, outbound: &'a Envelope) -> Hook<'a, bool> {
        self.book.note(format!("sent {}", outbound.content));
        self.act("dispatch_outbound", self.dispatch, |_| true)
    }
    fn on_error<'a>(
        &'a self,
        stage: Stage,
        failure: &'a Failure,
        _: &'a Envelope,
        _: &'a Outlet<'a>,
    ) -> Hook<'a, ()> {
        self.book.note(format!("heard {} {stage} {}", self.name, failure.code()));
        self.act("on_error", self.hears, |_| ())
    }
}

/// A lifespan that records its opening and closing.
pub(crate) struct Span(pub(crate) Book);

impl Lifespan for Span {
    fn open(&self) -> Hook<'_, ()> {
        self.0.note("opened");
        ready(Ok(())).boxed()
    }
    fn close<'a>(&'a self, failure: Option<&'a Failure>) -> Hook<'a, ()> {
        self.0.note(format!("closed {:?}", failure.map(Failure::code)));
        ready(Ok(())).boxed()
    }
}

/// A router that records pieces and deliveries.
pub(crate) struct Shower {
    pub(crate) book: Book,
    pub(crate) streams: bool,
}

impl Router for Shower {
    fn streams(&self, _: &Envelope) -> bool {
        self.streams
    }
    fn wrap(&self, _: &Turn, pieces: Pieces) -> Pieces {
        let book = self.book.clone();
        pieces.inspect(move |piece| book.note(format!("shown {piece:?}"))).boxed()
    }
    fn deliver<'a>(&'a self, outbound: &'a Envelope) -> Hook<'a, bool> {
        let text = if outbound.streamed { "" } else { &outbound.content };
        self.book.note(format!("delivered {:?} {text:?}", outbound.kind));
        ready(Ok(true)).boxed()
    }
}
