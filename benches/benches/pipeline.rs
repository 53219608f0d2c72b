//! Cost of the turn pipeline, within one process: `cargo bench -p turnway-benches --bench pipeline`. Measures
//! turns through the built-in plugin with a prepared answer, whole and streamed, and a node agent's attempts
//! from order to end, without plugins and behind one that does nothing.
use futures_util::future::ready;
use futures_util::{FutureExt, StreamExt, stream};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;
use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc;
use turnway::agent::access::GatewayAccess;
use turnway::agent::dialin::RemoteCalls;
use turnway::agent::directory::AgentSpec;
use turnway::agent::plugins::Plugins;
use turnway::agent::{Agents, AttemptReport};
use turnway::auth::pepper::Pepper;
use turnway::clock::Clock;
use turnway::metrics::Metrics;
use turnway::run_token::RunTokens;
use turnway_core::id::{AgentId, Epoch, MessageId, NodeId, RunId, SessionId, SessionKey, TenantId, UserId};
use turnway_core::protocol::agent::{AgentEvent, Invoke, Order};
use turnway_core::protocol::input::{Content, Message, Role};
use turnway_pipeline::builtin::LanguageModel;
use turnway_pipeline::{
    AnswerPiece, AnswerStream, BuiltinPlugin, HookFuture, MessageEnvelope, Pipeline, Plugin, Prompt, Router, Turn,
};

const TURNS: u32 = 200_000;
/// Number of rounds; the median is reported.
const ROUNDS: usize = 5;

/// A model with a prepared answer.
struct Ready;

impl LanguageModel for Ready {
    fn answer<'a>(&'a self, _: &'a Turn, _: &'a Prompt) -> HookFuture<'a, AnswerStream> {
        let words = ["an ", "answer ", "of ", "four words"].map(|word| AnswerPiece::Text(word.to_owned()));
        ready(Ok(stream::iter(words).boxed())).boxed()
    }
}

/// A router that accepts everything.
struct Out(bool);

impl Router for Out {
    fn wants_stream(&self, _: &MessageEnvelope) -> bool {
        self.0
    }
    fn wrap_stream(&self, _: &Turn, pieces: AnswerStream) -> AnswerStream {
        pieces
            .inspect(|piece| {
                black_box(piece);
            })
            .boxed()
    }
    fn deliver<'a>(&'a self, outbound: &'a MessageEnvelope) -> HookFuture<'a, bool> {
        black_box(outbound);
        ready(Ok(true)).boxed()
    }
}

/// A plugin without behaviour.
struct Idle;

impl Plugin for Idle {
    fn name(&self) -> &'static str {
        "idle"
    }
}

/// Returns an order for the agent; each attempt has another number.
fn order(attempt: u32) -> Option<Invoke> {
    let key = SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").ok()? };
    let user = UserId::local();
    Some(Invoke {
        run_id: RunId::derive(&key, &user, &MessageId::parse("m1").ok()?),
        key,
        attempt,
        epoch: Epoch(1),
        agent_id: AgentId::parse("echo").ok()?,
        user,
        message: Message { role: Role::User, content: Content::Text("an answer of four words".to_owned()) },
        history: None,
        origin: None,
        traceparent: None,
        handover: None,
        actions: None,
        system_prompt: None,
        run_token: None,
        messages_url: None,
        resume: None,
    })
}

/// Runs attempts of a node's agent with an answer of five words, one after the other. Returns microseconds
/// for each.
async fn attempts(plugins: Plugins) -> f64 {
    let (reporter, mut reports) = mpsc::channel::<AttemptReport>(64);
    let metrics = Metrics::register(&prometheus::Registry::new()).expect("each family once");
    let specs = AgentSpec::demo().expect("good agents");
    let clock = Clock::start();
    let metrics = Arc::new(metrics);
    let tokens = RunTokens::of_key(Pepper::from_text(&"p".repeat(32)).expect("long enough").key_for("run tokens"));
    let lines = RemoteCalls::new(NodeId(1), &Handle::current(), clock.clone(), Arc::clone(&metrics));
    let agents = Agents::new(
        specs,
        None,
        plugins,
        reporter,
        turnway_core::limits::ATTEMPTS_MAX,
        (&lines, GatewayAccess { tokens, url: "http://127.0.0.1:8080".into() }),
        clock,
        metrics,
    );
    let agents = agents.expect("agents");
    let began = Instant::now();
    for attempt in 1..=TURNS {
        agents.perform(Order::Invoke(order(attempt).expect("good names")));
        loop {
            let report = reports.recv().await.expect("agents");
            if matches!(black_box(report).event, AgentEvent::Done { .. }) {
                break;
            }
        }
    }
    began.elapsed().as_secs_f64() * 1e6 / f64::from(TURNS)
}

async fn turns(pipeline: &Pipeline) -> f64 {
    let message = MessageEnvelope {
        channel: Some("cli".to_owned()),
        chat_id: Some("7".to_owned()),
        session_id: Some("s1".to_owned()),
        ..MessageEnvelope::from_text("a question of some words")
    };
    let began = Instant::now();
    for _ in 0..TURNS {
        let outcome = pipeline.process(message.clone().into()).await.expect("it is answered");
        assert_eq!(outcome.delivered, 1);
    }
    began.elapsed().as_secs_f64() * 1e6 / f64::from(TURNS)
}

fn main() {
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    for streams in [false, true] {
        let pipeline = Pipeline::new("/").with(BuiltinPlugin::new().with_model(Ready)).with_router(Out(streams));
        let took = (0..ROUNDS).map(|_| runtime.block_on(turns(&pipeline))).collect();
        print_report(if streams { "a turn in pieces" } else { "a turn as a whole" }, took);
    }
    for (what, plugins) in [
        ("an attempt of a node without plugins", Plugins::default()),
        ("an attempt of a node behind a plugin", Plugins::default().with(Idle)),
    ] {
        let took = (0..ROUNDS).map(|_| runtime.block_on(attempts(plugins.clone()))).collect();
        print_report(what, took);
    }
}

#[expect(clippy::print_stdout, reason = "a bench's figures are its output")]
fn print_report(what: &str, mut took: Vec<f64>) {
    took.sort_by(f64::total_cmp);
    let median = took[ROUNDS / 2];
    let last = took[ROUNDS - 1];
    println!("{what}: {median:.2} us (median of {ROUNDS}, {:.2} to {last:.2})", took[0]);
}
