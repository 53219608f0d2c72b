//! Failures in a turn: state is saved once, all plugins are notified, and no plugin affects another.
use crate::scripted::{Behavior, CallLog, RecordingLifespan, RecordingRouter, ScriptedPlugin};
use crate::{inbound, plain};
use futures_util::{FutureExt, StreamExt, stream};
use serde_json::Value;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use turnway_pipeline::{
    AnswerStream, HookError, HookFuture, Inbound, MessageEnvelope, PipelineStage, Plugin, Prompt, Router, TapeStore,
    Turn, TurnFailure,
};

type Change = fn(&mut ScriptedPlugin, Behavior);

/// Covers: TP-E1, TP-E2, TP-E3, TP-E4, TP-S1, TP-S2, TP-S3, TP-S5, RX-13, RX-24, LN-TP1, LN-TP3, LN-TP13, LN-TP30.
#[tokio::test]
async fn failed_stage_is_reported_and_state_saved_once() {
    let stages: [(&str, PipelineStage, Change, usize); 8] = [
        ("resolve", PipelineStage::ResolveSession, |actor, act| actor.session = act, 0),
        ("load", PipelineStage::LoadState, |actor, act| actor.state = act, 0),
        ("admit", PipelineStage::Admit, |actor, act| actor.admit = act, 1),
        ("prompt", PipelineStage::BuildPrompt, |actor, act| actor.prompt = act, 1),
        ("model", PipelineStage::RunModel, |actor, act| actor.model = act, 1),
        ("save", PipelineStage::SaveState, |actor, act| actor.save = act, 1),
        ("render", PipelineStage::RenderOutbound, |actor, act| actor.render = act, 1),
        ("dispatch", PipelineStage::DispatchOutbound, |actor, act| actor.dispatch = act, 1),
    ];
    for (name, stage, change, saves) in stages {
        let acts = [
            (Behavior::Fail, "broken"),
            (Behavior::Panic, "internal_error"),
            (Behavior::PanicInCall, "internal_error"),
        ];
        for (act, code) in acts {
            let log = CallLog::default();
            let mut actor = ScriptedPlugin { model: Behavior::Say("fine"), ..ScriptedPlugin::new("actor", &log) };
            change(&mut actor, act);
            let router = RecordingRouter { book: log.clone(), streams: false };
            let message = Inbound { lifespan: Some(Arc::new(RecordingLifespan(log.clone()))), ..inbound("hi") };
            let failure = plain().with(actor).with_router(router).process(message).await.expect_err(name);
            let TurnFailure::Hook { stage: at, plugin, .. } = &failure else { panic!("{name}: {failure}") };
            assert_eq!((*at, plugin.as_str(), failure.code()), (stage, "actor", code), "{name}");
            assert_eq!(log.of("save_state").len(), saves, "{name}: {:?}", log.lines());
            assert_eq!(log.of("closed").len(), saves, "{name}");
            assert_eq!(log.of("heard"), [format!("heard actor turn {code}")], "{name}");
            let is_told = log.of("delivered").iter().any(|line| line.starts_with("delivered Error"));
            // A failed dispatch cannot be reported by a dispatch.
            assert_eq!(is_told, stage != PipelineStage::DispatchOutbound, "{name}: {:?}", log.lines());
        }
    }
    let log = CallLog::default();
    let actor = ScriptedPlugin { admit: Behavior::Say("not today"), ..ScriptedPlugin::new("actor", &log) };
    let failure = plain().with(actor).process(inbound("hi")).await.expect_err("it is refused");
    assert_eq!((failure.code(), log.of("saved")), ("blocked", vec!["saved \"\" Some(\"blocked\")".to_owned()]));
}

/// A router, a tape store and a plugin without hooks, which panic in the call of one method.
#[derive(Clone, Copy)]
struct PanicsIn(&'static str);

impl PanicsIn {
    fn enter(self, method: &str) {
        assert!(self.0 != method, "as the test wants");
    }
}

impl Router for PanicsIn {
    fn wants_stream(&self, _: &MessageEnvelope) -> bool {
        self.enter("wants_stream");
        true
    }
    fn wrap_stream(&self, _: &Turn, pieces: AnswerStream) -> AnswerStream {
        self.enter("wrap_stream");
        pieces
    }
    fn deliver<'a>(&'a self, _: &'a MessageEnvelope) -> HookFuture<'a, bool> {
        self.enter("deliver");
        let is_late = self.0 == "deliver later";
        async move { if is_late { panic!("as the test wants") } else { Ok(true) } }.boxed()
    }
}

impl TapeStore for PanicsIn {
    fn append<'a>(&'a self, _: &'a str, _: &'a [Value]) -> HookFuture<'a, ()> {
        self.enter("append");
        let is_late = self.0 == "append later";
        async move { if is_late { panic!("as the test wants") } else { Ok(()) } }.boxed()
    }
}

impl Plugin for PanicsIn {
    fn name(&self) -> &str {
        self.enter("name");
        "panicking"
    }
    fn admit<'a>(&'a self, _: &'a Turn) -> HookFuture<'a, Option<HookError>> {
        self.enter("admit");
        // This plugin fails and then cannot say who it is.
        let failed = (self.0 == "name").then(|| HookError::new("broken", "it is broken"));
        async move { failed.map_or(Ok(None), Err) }.boxed()
    }
    fn adapt_stream(&self, _: &Turn, pieces: AnswerStream) -> AnswerStream {
        self.enter("adapt_stream");
        let is_late = self.0 == "stream";
        if is_late { stream::once(async { panic!("as the test wants") }).boxed() } else { pieces }
    }
    fn provide_tape_store(&self) -> Option<Arc<dyn TapeStore>> {
        self.enter("provide_tape_store");
        Some(Arc::new(*self))
    }
}

/// Covers: TP-E2, TP-E3, TP-S1, RX-13, LN-TP13.
#[tokio::test]
async fn panic_in_any_call_of_foreign_code_fails_only_its_turn() {
    for (method, stage, whose) in [
        ("admit", PipelineStage::Admit, "panicking"),
        ("name", PipelineStage::Admit, "unnamed"),
        ("wants_stream", PipelineStage::RunModel, "router"),
        ("adapt_stream", PipelineStage::RunModel, "panicking"),
        ("wrap_stream", PipelineStage::RunModel, "router"),
        ("stream", PipelineStage::RunModel, "stream"),
        ("provide_tape_store", PipelineStage::SaveState, "panicking"),
        ("append", PipelineStage::SaveState, "panicking"),
        ("append later", PipelineStage::SaveState, "panicking"),
        ("deliver", PipelineStage::DispatchOutbound, "router"),
        ("deliver later", PipelineStage::DispatchOutbound, "router"),
    ] {
        let log = CallLog::default();
        let calm = ScriptedPlugin { model: Behavior::Say("fine"), ..ScriptedPlugin::new("calm", &log) };
        let message = Inbound { lifespan: Some(Arc::new(RecordingLifespan(log.clone()))), ..inbound("hi") };
        let pipeline = plain().with(calm).with(PanicsIn(method)).with_router(PanicsIn(method));
        let failure = pipeline.process(message).await.expect_err(method);
        let TurnFailure::Hook { stage: at, plugin, trouble } = &failure else { panic!("{method}: {failure}") };
        assert_eq!((*at, plugin.as_str()), (stage, whose), "{method}: {failure}");
        let code = if method == "name" { "broken" } else { "internal_error" };
        assert_eq!(trouble.code, code, "{method}");
        assert_eq!(log.of("heard"), [format!("heard calm turn {code}")], "{method}");
        assert_eq!((log.of("save_state").len(), log.of("closed").len()), (1, 1), "{method}: {:?}", log.lines());
    }
    let outcome = plain().with(PanicsIn("nothing")).with_router(PanicsIn("nothing")).process(inbound(",help")).await;
    assert_eq!(outcome.expect("it is answered").delivered, 1, "without a panic the same plugins serve a turn");
}

/// A value that panics when it is dropped.
struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("as the test wants");
    }
}

/// A plugin that cancels its turn in a hook that never ends.
struct Cancels(CancellationToken);

impl Plugin for Cancels {
    fn name(&self) -> &str {
        "cancels"
    }
    fn build_prompt<'a>(&'a self, _: &'a Turn) -> HookFuture<'a, Option<Prompt>> {
        async move {
            let _held = PanicsWhenDropped;
            self.0.cancel();
            std::future::pending().await
        }
        .boxed()
    }
}

/// Covers: TP-S1, RX-13, LN-TP13.
#[tokio::test]
async fn panic_of_a_cancelled_hook_still_saves_state_once() {
    let log = CallLog::default();
    let cancel = CancellationToken::new();
    let message = Inbound { cancel: cancel.clone(), ..inbound("hi") };
    let pipeline = plain().with(ScriptedPlugin::new("calm", &log)).with(Cancels(cancel));
    let failure = pipeline.process(message).await.expect_err("it is cancelled");
    assert_eq!((failure.code(), failure.location().as_str()), ("internal_error", "turn: pipeline"));
    assert_eq!(log.of("heard"), ["heard calm turn internal_error"]);
    assert_eq!(log.of("save_state").len(), 1);
}

/// Covers: TP-E5, LN-TP13.
#[tokio::test]
async fn failing_error_hook_does_not_affect_others() {
    for act in [Behavior::Fail, Behavior::Panic, Behavior::PanicInCall] {
        let log = CallLog::default();
        let fails = ScriptedPlugin { model: Behavior::Fail, ..ScriptedPlugin::new("fails", &log) };
        let deaf = ScriptedPlugin { hears: act, ..ScriptedPlugin::new("deaf", &log) };
        let pipeline = plain().with(fails).with(ScriptedPlugin::new("calm", &log)).with(deaf);
        let failure = pipeline.process(inbound("hi")).await.expect_err("it fails");
        assert_eq!(failure.code(), "broken", "the first failure is the turn's");
        let heard = ["heard deaf turn broken", "heard calm turn broken", "heard fails turn broken"];
        assert_eq!(log.of("heard"), heard);
    }
}

/// Covers: TP-S1, RX-13, LN-TP31.
#[tokio::test]
async fn cancelled_turn_saves_state_once_and_is_reported() {
    let hangs: [Change; 3] =
        [|actor, act| actor.admit = act, |actor, act| actor.prompt = act, |actor, act| actor.model = act];
    for hang in hangs {
        let log = CallLog::default();
        let mut actor = ScriptedPlugin::new("actor", &log);
        hang(&mut actor, Behavior::Hang);
        let cancel = CancellationToken::new();
        let message = Inbound { cancel: cancel.clone(), ..inbound("hi") };
        let pipeline = plain().with(actor);
        let (ended, ()) = tokio::join!(pipeline.process(message), async { cancel.cancel() });
        assert_eq!(ended.expect_err("it is cancelled"), TurnFailure::Cancelled);
        assert_eq!(log.of("saved"), ["saved \"\" Some(\"cancelled\")"]);
        assert_eq!(log.of("heard"), ["heard actor turn cancelled"]);
    }
}

/// Covers: TP-S1, RX-13.
#[tokio::test]
async fn dropped_turn_still_saves_its_state() {
    let log = CallLog::default();
    let closed = CancellationToken::new();
    let span = log.clone();
    struct Tells(RecordingLifespan, CancellationToken);
    impl turnway_pipeline::Lifespan for Tells {
        fn open(&self) -> turnway_pipeline::HookFuture<'_, ()> {
            self.0.open()
        }
        fn close<'a>(&'a self, failure: Option<&'a TurnFailure>) -> turnway_pipeline::HookFuture<'a, ()> {
            self.1.cancel();
            self.0.close(failure)
        }
    }
    let actor = ScriptedPlugin { model: Behavior::Hang, ..ScriptedPlugin::new("actor", &log) };
    let lifespan = Arc::new(Tells(RecordingLifespan(span), closed.clone()));
    let message = Inbound { lifespan: Some(lifespan), ..inbound("hi") };
    let pipeline = plain().with(actor);
    {
        let mut turn = std::pin::pin!(pipeline.process(message));
        // The turn has begun, and then its caller drops the future.
        let is_ready = futures_util::poll!(turn.as_mut()).is_ready();
        assert!(!is_ready);
        tokio::task::yield_now().await;
    }
    closed.cancelled().await;
    assert_eq!(log.of("closed"), ["closed Some(\"cancelled\")"]);
    assert_eq!(log.of("save_state").len(), 1);
}
