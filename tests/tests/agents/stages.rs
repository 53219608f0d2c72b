//! Attempts through the turn pipeline: the requests that agents receive, the reports of their answers, and
//! how attempts end.
use crate::world::{World, done, order};
use futures_util::{FutureExt, StreamExt, future};
use serde_json::json;
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;
use turnway::agent::plugins::Plugins;
use turnway_core::id::{AgentEventId, AgentId};
use turnway_core::private::Private;
use turnway_core::protocol::agent::{AgentEvent, AgentFailure, Invoke, OnOwnerLoss, Resume, TextKind};
use turnway_core::protocol::input::Content;
use turnway_pipeline::{
    AnswerPiece, AnswerStream, HookError, HookFuture, MessageEnvelope, MessageKind, Plugin, Prompt, Turn,
};

/// Behaviour of the test plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PluginMode {
    #[default]
    Watch,
    /// Declares that it does not change text.
    Keep,
    /// Answers the turn instead of the agent.
    Answer,
    /// Changes text to capitals.
    Shout,
    /// Passes the first piece only.
    Cut,
    /// Adds one more message after the answer.
    Sign,
    /// Replaces the answer by an error.
    Deny,
    /// Never admits a turn.
    Hang,
    /// Panics at the first piece.
    Break,
    /// Passes no piece.
    Hold,
}

#[derive(Clone, Default)]
struct Script {
    act: PluginMode,
    saved: Arc<Mutex<Vec<String>>>,
    saving: Arc<Notify>,
}

impl Script {
    fn of(act: PluginMode) -> (Self, Plugins) {
        let script = Self { act, ..Self::default() };
        (script.clone(), Plugins::default().with(script))
    }

    fn saved(&self) -> Vec<String> {
        self.saved.lock().expect("unharmed").clone()
    }
}

impl Plugin for Script {
    fn name(&self) -> &'static str {
        "script"
    }
    fn keeps_text(&self) -> bool {
        self.act == PluginMode::Keep
    }
    fn admit<'a>(&'a self, _: &'a Turn) -> HookFuture<'a, Option<HookError>> {
        if self.act == PluginMode::Hang { future::pending().boxed() } else { future::ready(Ok(None)).boxed() }
    }
    fn run_model<'a>(&'a self, _: &'a Turn, _: &'a Prompt) -> HookFuture<'a, Option<String>> {
        future::ready(Ok((self.act == PluginMode::Answer).then(|| "mine".to_owned()))).boxed()
    }
    fn adapt_stream(&self, _: &Turn, pieces: AnswerStream) -> AnswerStream {
        let shout = |piece| match piece {
            AnswerPiece::Text(text) => AnswerPiece::Text(text.to_uppercase()),
            other @ (AnswerPiece::Error(_) | AnswerPiece::Other(..)) => other,
        };
        match self.act {
            PluginMode::Shout => pieces.map(shout).boxed(),
            PluginMode::Cut => pieces.take(1).boxed(),
            PluginMode::Hold => pieces.filter(|_| future::ready(false)).boxed(),
            PluginMode::Break => pieces.map(|_| panic!("as the test wants")).boxed(),
            PluginMode::Watch
            | PluginMode::Keep
            | PluginMode::Answer
            | PluginMode::Sign
            | PluginMode::Deny
            | PluginMode::Hang => pieces,
        }
    }
    fn save_state<'a>(&'a self, turn: &'a Turn) -> HookFuture<'a, ()> {
        let how = turn.failure.as_ref().map_or("fine", |failure| failure.code());
        self.saved.lock().expect("unharmed").push(format!("{how}: {}", turn.output));
        self.saving.notify_one();
        future::ready(Ok(())).boxed()
    }
    fn render_outbound<'a>(&'a self, turn: &'a Turn) -> HookFuture<'a, Vec<MessageEnvelope>> {
        let reply = |text: &str| turn.inbound.envelope.reply(text);
        let rendered = match self.act {
            PluginMode::Sign => vec![reply(&turn.output), reply("Yours, script")],
            PluginMode::Deny => vec![MessageEnvelope { kind: MessageKind::Error, ..reply("no such thing") }],
            PluginMode::Watch
            | PluginMode::Keep
            | PluginMode::Answer
            | PluginMode::Shout
            | PluginMode::Cut
            | PluginMode::Hang
            | PluginMode::Hold
            | PluginMode::Break => Vec::new(),
        };
        future::ready(Ok(rendered)).boxed()
    }
}

fn text(text: &str) -> AgentEvent {
    AgentEvent::Delta { kind: TextKind::Text, text: Private(text.to_owned()), id: None }
}

fn reported(code: &str, message: &str) -> AgentEvent {
    let message = Private(message.to_owned());
    AgentEvent::Failed(AgentFailure::Reported { code: code.to_owned(), message })
}

/// Covers: TP-G1, TP-M12, TP-N7, TP-O1, RX-14.
#[tokio::test]
async fn reported_text_is_the_output_of_all_plugins() {
    for (act, said, saved) in [
        (PluginMode::Watch, vec!["one ", "two"], "one two"),
        (PluginMode::Shout, vec!["ONE ", "TWO"], "ONE TWO"),
        // Rendered text that was already reported is not repeated; new text follows it.
        (PluginMode::Sign, vec!["one ", "two", "\n\nYours, script"], "one two"),
    ] {
        let (script, plugins) = Script::of(act);
        let mut world = World::with_plugins("", plugins).await;
        let ask = order("a", "m1", "hi");
        let (stream, _) = world.begin(&ask).await;
        stream.delta("one ").await;
        stream.send("event: state\ndata: {\"state\":\"busy\",\"detail\":{\"at\":1}}\n\n").await;
        stream.send("event: delta\ndata: {\"kind\":\"reasoning\",\"text\":\"hm\"}\n\n").await;
        stream.delta("two").await;
        stream.done().await;
        let mut heard = Vec::new();
        let end = loop {
            match world.event(&ask).await {
                AgentEvent::Delta { kind: TextKind::Text, text, id: None } => heard.push(text.0),
                AgentEvent::Delta { kind: TextKind::Reasoning, text, .. } => assert_eq!(text.reveal(), "hm"),
                AgentEvent::State { state, detail, .. } => {
                    assert_eq!((state.as_str(), detail.map(|it| it.0)), ("busy", Some(json!({"at": 1}))));
                    assert_eq!(heard.len(), 1, "in its place in the text");
                }
                end @ (AgentEvent::Acked
                | AgentEvent::Delta { .. }
                | AgentEvent::Done { .. }
                | AgentEvent::Steered { .. }
                | AgentEvent::Handover { .. }
                | AgentEvent::Subscribed(_)
                | AgentEvent::Alive
                | AgentEvent::Action { .. }
                | AgentEvent::CancelAcked
                | AgentEvent::Failed(_)) => break end,
            }
        };
        assert_eq!((heard, end), (said.iter().map(ToString::to_string).collect(), done()), "{act:?}");
        assert_eq!(script.saved(), [format!("fine: {saved}")], "{act:?}");
        world.until_idle().await;
    }
}

/// Covers: TP-N4, TP-M1, TP-S1, LN-TP27.
#[tokio::test]
async fn turn_answered_by_a_plugin_skips_the_agent() {
    let (script, plugins) = Script::of(PluginMode::Answer);
    let mut world = World::with_plugins("", plugins).await;
    let ask = order("a", "m1", "hi");
    world.invoke(ask.clone());
    for event in [AgentEvent::Acked, text("mine"), done()] {
        world.expect(&ask, event).await;
    }
    assert_eq!(script.saved(), ["fine: mine"]);
    // The built-in plugin is always present and handles commands, also where an earlier owner has begun to
    // answer.
    let mut world = World::new(",on_owner_loss=resume,steer=true").await;
    let ask = order("a", "m2", ",help");
    let again = Invoke { resume: Some(Resume { after: None, saved: 3 }), ..order("a", "m3", ",nonsense") };
    for (ask, starts) in [(ask, ",help: list the commands\n"), (again, "unknown command: ,nonsense\n")] {
        world.invoke(ask.clone());
        world.expect(&ask, AgentEvent::Acked).await;
        let (said, end) = world.text(&ask).await;
        assert!(said.starts_with(starts) && end == done(), "{said}");
    }
    assert_eq!(world.calls.try_recv().map(|call| call.head.uri).ok().filter(|uri| uri.path() != "/base/cancel"), None);
    // Text that only resembles a command goes to the agent.
    let ask = order("a", "m4", ", and so on");
    world.invoke(ask.clone());
    while world.call().await.head.uri.path() != "/base/invoke" {}
}

/// Covers: TP-B1, TP-N6, TP-N11, ST-37.
#[tokio::test]
async fn unchanged_input_is_forwarded_with_the_workspace_prompt() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("AGENTS.md"), "Be kind.").expect("a file");
    let (_, plugins) = Script::of(PluginMode::Watch);
    let mut world = World::with_plugins("", plugins.with_workspace(dir.path())).await;
    let image = json!({"type": "image_url", "image_url": {"url": "data:,"}});
    let parts = json!([image, {"type": "text", "text": "what "}, {"type": "text", "text": "is it?"}]);
    for (message, content) in [("m1", json!("hi")), ("m2", parts)] {
        let mut ask = order("a", message, "hi");
        ask.message.content = serde_json::from_value::<Content>(content.clone()).expect("content");
        world.invoke(ask.clone());
        let call = world.call().await;
        let body: serde_json::Value = serde_json::from_slice(&call.body).expect("JSON");
        assert_eq!(body["input_message"]["content"], content);
        assert_eq!(body["context"], json!({"tenant": "default", "user_id": "ann", "system_prompt": "Be kind."}));
        call.stream().done().await;
        world.expect(&ask, AgentEvent::Acked).await;
        world.expect(&ask, done()).await;
    }
}

/// Keeps the agent alive while a plugin withholds all but the first piece of the answer.
#[tokio::test]
async fn pieces_withheld_by_a_plugin_are_signs_of_life() {
    let (_, plugins) = Script::of(PluginMode::Hold);
    let mut world = World::with_plugins(",silence=160ms", plugins).await;
    let ask = order("a", "m1", "hi");
    let (stream, _) = world.begin(&ask).await;
    tokio::select! {
        () = world.alive() => {}
        () = async { loop { stream.delta("more").await } } => {}
    }
    stream.done().await;
    assert_eq!(world.text(&ask).await, (String::new(), done()));
}

/// Covers: SR-S10, ST-8.
#[tokio::test]
async fn resume_is_enabled_only_if_plugins_keep_text() {
    let a = AgentId::parse("a").expect("a name");
    for (act, policy) in [(PluginMode::Keep, OnOwnerLoss::Resume), (PluginMode::Shout, OnOwnerLoss::Retry)] {
        let (script, plugins) = Script::of(act);
        let mut world = World::with_plugins(",on_owner_loss=resume,steer=true", plugins).await;
        let known = world.agents.directory().policy(&a);
        assert_eq!((known.on_owner_loss, known.steer), (policy, false), "{act:?}");
        let profile = world.agents.profiles().iter().find(|profile| profile.id == a).cloned();
        assert_eq!(profile.map(|it| (it.resume, it.steer)), Some((act == PluginMode::Keep, false)));
        let ask = order("a", "m1", "hi");
        let (stream, _) = world.begin(&ask).await;
        stream.send("id: e1\nevent: delta\ndata: {\"text\":\"a\"}\n\n").await;
        stream.send("id: e2\nevent: state\ndata: {\"state\":\"busy\"}\n\n").await;
        stream.done().await;
        let mut ids: Vec<Option<AgentEventId>> = Vec::new();
        let mut said = String::new();
        loop {
            match world.event(&ask).await {
                AgentEvent::Delta { text, id, .. } => {
                    said.push_str(text.reveal());
                    ids.push(id);
                }
                AgentEvent::State { id, .. } => ids.push(id),
                end @ (AgentEvent::Acked
                | AgentEvent::Done { .. }
                | AgentEvent::Steered { .. }
                | AgentEvent::Handover { .. }
                | AgentEvent::Subscribed(_)
                | AgentEvent::Alive
                | AgentEvent::Action { .. }
                | AgentEvent::CancelAcked
                | AgentEvent::Failed(_)) => break assert_eq!(end, done()),
            }
        }
        let ids: Vec<&str> = ids.iter().flatten().map(AgentEventId::as_str).collect();
        let expected = if act == PluginMode::Keep { ("a", vec!["e1", "e2"]) } else { ("A", vec![]) };
        assert_eq!((said.as_str(), ids), expected);
        assert_eq!(script.saved().len(), 1);
    }
}

/// Covers: TP-S1, TP-S5, TP-E2, SR-K2, RX-13.
#[tokio::test]
async fn state_is_saved_once_for_each_end_of_an_attempt() {
    // A cancel before the agent receives the request.
    let (script, plugins) = Script::of(PluginMode::Hang);
    let mut world = World::with_plugins(",cancel=true", plugins).await;
    let ask = order("a", "m1", "hi");
    world.invoke(ask.clone());
    world.cancel(&ask);
    world.expect(&ask, AgentEvent::CancelAcked).await;
    assert_eq!(script.saved(), ["cancelled: "]);
    assert!(world.calls.try_recv().is_err(), "it was sent nothing");
    // A cancel in mid-answer, sent to the agent and acknowledged by the end of its stream; then an order that
    // drops the attempt.
    let (script, plugins) = Script::of(PluginMode::Watch);
    let mut world = World::with_plugins(",cancel=true", plugins).await;
    let ask = order("a", "m1", "hi");
    let (stream, _) = world.begin(&ask).await;
    stream.delta("one").await;
    world.expect(&ask, text("one")).await;
    world.cancel(&ask);
    assert_eq!(world.call().await.head.uri.path(), "/base/cancel");
    stream.done().await;
    world.expect(&ask, AgentEvent::CancelAcked).await;
    let ask = order("a", "m2", "hi");
    let (stream, _) = world.begin(&ask).await;
    stream.delta("two").await;
    world.expect(&ask, text("two")).await;
    script.saving.notified().await;
    world.drop_attempt(&ask);
    stream.closed().await;
    script.saving.notified().await;
    assert_eq!(script.saved(), ["cancelled: one", "cancelled: two"]);
    world.until_idle().await;
}

/// Covers: TP-E3, TP-M11, RX-12.
#[tokio::test]
async fn failure_codes_of_agents_and_plugins_are_kept() {
    // The agent's own failure, also where a plugin would transform it.
    let (script, plugins) = Script::of(PluginMode::Shout);
    let mut world = World::with_plugins("", plugins).await;
    let ask = order("a", "m1", "hi");
    let (stream, _) = world.begin(&ask).await;
    stream.delta("one").await;
    stream.send("event: error\ndata: {\"code\":\"quota\",\"message\":\"secret\"}\n\n").await;
    assert_eq!(world.text(&ask).await, ("ONE".to_owned(), reported("quota", "secret")));
    assert_eq!(script.saved(), ["agent_error: ONE"]);
    // A plugin's failure: the rest of the answer is not reported, and an agent that still answers gets a
    // cancel.
    for (act, end, saved) in [
        (
            PluginMode::Break,
            reported("internal_error", "run_model: stream: panicked: as the test wants"),
            "internal_error: ",
        ),
        (PluginMode::Cut, done(), "fine: one"),
        (PluginMode::Deny, reported("error", "no such thing"), "fine: one"),
    ] {
        let (script, plugins) = Script::of(act);
        let mut world = World::with_plugins(",cancel=true", plugins).await;
        let ask = order("a", "m1", "hi");
        let (stream, _) = world.begin(&ask).await;
        stream.delta("one").await;
        let stream = if act == PluginMode::Deny {
            stream.done().await;
            None
        } else {
            Some(stream)
        };
        assert_eq!(world.text(&ask).await.1, end, "{act:?}");
        if let Some(stream) = stream {
            assert_eq!(world.call().await.head.uri.path(), "/base/cancel", "{act:?}");
            stream.closed().await;
        }
        assert_eq!(script.saved(), [saved], "{act:?}");
        world.until_idle().await;
    }
}
