//! Failures in a turn: state is saved once, all plugins are notified, and no plugin affects another.
use crate::scripted::{Behavior, CallLog, RecordingLifespan, RecordingRouter, ScriptedPlugin};
use crate::{inbound, plain};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use turnway_pipeline::{Inbound, PipelineStage, TurnFailure};

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
        for (act, code) in [(Behavior::Fail, "broken"), (Behavior::Panic, "internal_error")] {
            let book = CallLog::default();
            let mut actor = ScriptedPlugin { model: Behavior::Say("fine"), ..ScriptedPlugin::new("actor", &book) };
            change(&mut actor, act);
            let router = RecordingRouter { book: book.clone(), streams: false };
            let message = Inbound { lifespan: Some(Arc::new(RecordingLifespan(book.clone()))), ..inbound("hi") };
            let failure = plain().with(actor).with_router(router).process(message).await.expect_err(name);
            let TurnFailure::Hook { stage: at, plugin, .. } = &failure else { panic!("{name}: {failure}") };
            assert_eq!((*at, plugin.as_str(), failure.code()), (stage, "actor", code), "{name}");
            assert_eq!(book.of("save_state").len(), saves, "{name}: {:?}", book.lines());
            assert_eq!(book.of("closed").len(), saves, "{name}");
            assert_eq!(book.of("heard"), [format!("heard actor turn {code}")], "{name}");
            let is_told = book.of("delivered").iter().any(|line| line.starts_with("delivered Error"));
            // A failed dispatch cannot be reported by a dispatch.
            assert_eq!(is_told, stage != PipelineStage::DispatchOutbound, "{name}: {:?}", book.lines());
        }
    }
    let book = CallLog::default();
    let actor = ScriptedPlugin { admit: Behavior::Say("not today"), ..ScriptedPlugin::new("actor", &book) };
    let failure = plain().with(actor).process(inbound("hi")).await.expect_err("it is refused");
    assert_eq!((failure.code(), book.of("saved")), ("blocked", vec!["saved \"\" Some(\"blocked\")".to_owned()]));
}

/// Covers: TP-E5, LN-TP13.
#[tokio::test]
async fn failing_error_hook_does_not_affect_others() {
    for act in [Behavior::Fail, Behavior::Panic] {
        let book = CallLog::default();
        let fails = ScriptedPlugin { model: Behavior::Fail, ..ScriptedPlugin::new("fails", &book) };
        let deaf = ScriptedPlugin { hears: act, ..ScriptedPlugin::new("deaf", &book) };
        let pipeline = plain().with(fails).with(ScriptedPlugin::new("calm", &book)).with(deaf);
        let failure = pipeline.process(inbound("hi")).await.expect_err("it fails");
        assert_eq!(failure.code(), "broken", "the first failure is the turn's");
        let heard = ["heard deaf turn broken", "heard calm turn broken", "heard fails turn broken"];
        assert_eq!(book.of("heard"), heard);
    }
}

/// Covers: TP-S1, RX-13, LN-TP31.
#[tokio::test]
async fn cancelled_turn_saves_state_once_and_is_reported() {
    let hangs: [Change; 3] =
        [|actor, act| actor.admit = act, |actor, act| actor.prompt = act, |actor, act| actor.model = act];
    for hang in hangs {
        let book = CallLog::default();
        let mut actor = ScriptedPlugin::new("actor", &book);
        hang(&mut actor, Behavior::Hang);
        let cancel = CancellationToken::new();
        let message = Inbound { cancel: cancel.clone(), ..inbound("hi") };
        let pipeline = plain().with(actor);
        let (ended, ()) = tokio::join!(pipeline.process(message), async { cancel.cancel() });
        assert_eq!(ended.expect_err("it is cancelled"), TurnFailure::Cancelled);
        assert_eq!(book.of("saved"), ["saved \"\" Some(\"cancelled\")"]);
        assert_eq!(book.of("heard"), ["heard actor turn cancelled"]);
    }
}

/// Covers: TP-S1, RX-13.
#[tokio::test]
async fn dropped_turn_still_saves_its_state() {
    let book = CallLog::default();
    let closed = CancellationToken::new();
    let span = book.clone();
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
    let actor = ScriptedPlugin { model: Behavior::Hang, ..ScriptedPlugin::new("actor", &book) };
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
    assert_eq!(book.of("closed"), ["closed Some(\"cancelled\")"]);
    assert_eq!(book.of("save_state").len(), 1);
}
