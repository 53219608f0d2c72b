//! Failures in a turn: state is saved once, all plugins are notified, and no plugin affects another.
use crate::actor::{Act, Actor, Book, Shower, Span};
use crate::{inbound, plain};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use turnway_pipeline::{Failure, Inbound, Stage};

type Change = fn(&mut Actor, Act);

/// Covers: TP-E1, TP-E2, TP-E3, TP-E4, TP-S1, TP-S2, TP-S3, TP-S5, RX-13, RX-24, LN-TP1, LN-TP3, LN-TP13, LN-TP30.
#[tokio::test]
async fn failed_stage_is_reported_and_state_saved_once() {
    let stages: [(&str, Stage, Change, usize); 8] = [
        ("resolve", Stage::ResolveSession, |actor, act| actor.session = act, 0),
        ("load", Stage::LoadState, |actor, act| actor.state = act, 0),
        ("admit", Stage::Admit, |actor, act| actor.admit = act, 1),
        ("prompt", Stage::BuildPrompt, |actor, act| actor.prompt = act, 1),
        ("model", Stage::RunModel, |actor, act| actor.model = act, 1),
        ("save", Stage::SaveState, |actor, act| actor.save = act, 1),
        ("render", Stage::RenderOutbound, |actor, act| actor.render = act, 1),
        ("dispatch", Stage::DispatchOutbound, |actor, act| actor.dispatch = act, 1),
    ];
    for (name, stage, change, saves) in stages {
        for (act, code) in [(Act::Fail, "broken"), (Act::Panic, "internal_error")] {
            let book = Book::default();
            let mut actor = Actor { model: Act::Say("fine"), ..Actor::new("actor", &book) };
            change(&mut actor, act);
            let router = Shower { book: book.clone(), streams: false };
            let message = Inbound { lifespan: Some(Arc::new(Span(book.clone()))), ..inbound("hi") };
            let failure = plain().with(actor).through(router).process(message).await.expect_err(name);
            let Failure::Hook { stage: at, plugin, .. } = &failure else { panic!("{name}: {failure}") };
            assert_eq!((*at, plugin.as_str(), failure.code()), (stage, "actor", code), "{name}");
            assert_eq!(book.of("save_state").len(), saves, "{name}: {:?}", book.lines());
            assert_eq!(book.of("closed").len(), saves, "{name}");
            assert_eq!(book.of("heard"), [format!("heard actor turn {code}")], "{name}");
            let is_told = book.of("delivered").iter().any(|line| line.starts_with("delivered Error"));
            // A failed dispatch cannot be reported by a dispatch.
            assert_eq!(is_told, stage != Stage::DispatchOutbound, "{name}: {:?}", book.lines());
        }
    }
    let book = Book::default();
    let actor = Actor { admit: Act::Say("not today"), ..Actor::new("actor", &book) };
    let failure = plain().with(actor).process(inbound("hi")).await.expect_err("it is refused");
    assert_eq!(
        (failure.code(), book.of("saved")),
        ("blocked", vec!["saved \"\" Some(\"blocked\")".to_owned()])
    );
}

/// Covers: TP-E5, LN-TP13.
#[tokio::test]
async fn failing_error_hook_does_not_affect_others() {
    for act in [Act::Fail, Act::Panic] {
        let book = Book::default();
        let fails = Actor { model: Act::Fail, ..Actor::new("fails", &book) };
        let deaf = Actor { hears: act, ..Actor::new("deaf", &book) };
        let pipeline = plain().with(fails).with(Actor::new("calm", &book)).with(deaf);
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
        let book = Book::default();
        let mut actor = Actor::new("actor", &book);
        hang(&mut actor, Act::Hang);
        let cancel = CancellationToken::new();
        let message = Inbound { cancel: cancel.clone(), ..inbound("hi") };
        let pipeline = plain().with(actor);
        let (ended, ()) = tokio::join!(pipeline.process(message), async { cancel.cancel() });
        assert_eq!(ended.expect_err("it is cancelled"), Failure::Cancelled);
        assert_eq!(book.of("saved"), ["saved \"\" Some(\"cancelled\")"]);
        assert_eq!(book.of("heard"), ["heard actor turn cancelled"]);
    }
}

/// Covers: TP-S1, RX-13.
#[tokio::test]
async fn dropped_turn_still_saves_its_state() {
    let book = Book::default();
    let (closed, span) = (CancellationToken::new(), book.clone());
    struct Tells(Span, CancellationToken);
    impl turnway_pipeline::Lifespan for Tells {
        fn open(&self) -> turnway_pipeline::Hook<'_, ()> {
            self.0.open()
        }
        fn close<'a>(&'a self, failure: Option<&'a Failure>) -> turnway_pipeline::Hook<'a, ()> {
            self.1.cancel();
            self.0.close(failure)
        }
    }
    let actor = Actor { model: Act::Hang, ..Actor::new("actor", &book) };
    let lifespan = Arc::new(Tells(Span(span), closed.clone()));
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
