//! The model stage: whole answers, streams, and no answer.
use crate::scripted::{Behavior, CallLog, RecordingRouter, ScriptedPlugin};
use crate::{inbound, plain};
use serde_json::json;
use turnway_pipeline::{AnswerPiece, HookError, MessageKind, NoOutputPolicy};

fn text(text: &str) -> AnswerPiece {
    AnswerPiece::Text(text.to_owned())
}

fn trouble() -> AnswerPiece {
    AnswerPiece::Error(HookError::new("llm_error", "it hiccups"))
}

/// Covers: TP-M1, TP-M2, TP-M3, TP-M4, TP-M5, TP-M6, TP-M12, TP-O6, TP-N10, RX-14, LN-TP11, LN-TP33.
#[tokio::test]
async fn whole_and_streamed_answers_are_interchangeable() {
    for streams in [false, true] {
        for pieces in [None, Some(vec![text("fi"), AnswerPiece::Other("usage".to_owned(), json!(1)), text("ne")])] {
            let log = CallLog::default();
            let model = if pieces.is_some() { Behavior::Pass } else { Behavior::Say("fine") };
            let model = ScriptedPlugin { model, pieces: pieces.clone(), ..ScriptedPlugin::new("model", &log) };
            // This plugin answers in neither form, so the one registered before is called (TP-M6).
            let none = ScriptedPlugin::new("none", &log);
            let router = RecordingRouter { book: log.clone(), streams };
            let pipeline = plain().with(model).with(none).with_router(router);
            let outcome = pipeline.process(inbound("hi")).await.expect("it is answered");
            assert_eq!((outcome.turn.output.as_str(), outcome.delivered), ("fine", 1));
            let shown = match (streams, pieces.is_some()) {
                (false, _) => 0,
                (true, true) => 3,
                (true, false) => 1,
            };
            assert_eq!(log.of("shown").len(), shown, "streams {streams}");
            // Text that was streamed is not delivered again.
            let delivered = format!("delivered Message {:?}", if streams { "" } else { "fine" });
            assert_eq!(log.of("delivered"), [delivered]);
        }
    }
}

/// Covers: TP-M7, TP-M8, TP-M9, TP-M10, RX-12.
#[tokio::test]
async fn missing_output_is_reported_and_replaced() {
    let image = json!({"type": "image_url", "image_url": {"url": "data:,"}});
    for (stands, media, output) in [
        (NoOutputPolicy::Error, vec![], ""),
        (NoOutputPolicy::Echo, vec![], "the prompt"),
        (NoOutputPolicy::Echo, vec![image], "hi"),
    ] {
        let log = CallLog::default();
        let mut none = ScriptedPlugin::new("none", &log);
        if media.is_empty() {
            none.prompt = Behavior::Say("the prompt");
        }
        let mut message = inbound("hi");
        message.envelope.media = media;
        let pipeline = plain().with(none).with_no_output_policy(stands);
        let outcome = pipeline.process(message).await.expect("the turn goes on");
        assert_eq!(log.of("heard"), ["heard none run_model no_output"]);
        assert_eq!(log.of("saved"), [format!("saved {output:?} Some(\"no_output\")")]);
        let [said] = &outcome.outbound[..] else { panic!("{outcome:?}") };
        assert!(said.fallback, "it says what it is: {said:?}");
        match stands {
            NoOutputPolicy::Error => assert_eq!(said.kind, MessageKind::Error),
            NoOutputPolicy::Echo => {
                assert_eq!((said.kind, said.content.as_str()), (MessageKind::Message, output))
            }
        }
    }
}

/// Covers: TP-M11.
#[tokio::test]
async fn stream_errors_are_reported_and_the_last_piece_decides() {
    for (pieces, ends_well) in
        [(vec![text("a"), trouble(), trouble(), text("b")], true), (vec![text("ab"), trouble()], false)]
    {
        let log = CallLog::default();
        let heard = pieces.iter().filter(|piece| matches!(piece, AnswerPiece::Error(_))).count();
        let model = ScriptedPlugin { pieces: Some(pieces), ..ScriptedPlugin::new("model", &log) };
        let ended = plain().with(model).process(inbound("hi")).await;
        assert_eq!(log.of("heard model run_model llm_error").len(), heard);
        assert_eq!(ended.is_ok(), ends_well);
        let code = if ends_well { "None" } else { "Some(\"llm_error\")" };
        assert_eq!(log.of("saved"), [format!("saved \"ab\" {code}")]);
    }
}

/// Suppresses rendered text that equals the streamed text, even if the plugin does not mark it.
///
/// Covers: TP-O1, RX-14, LN-TP33.
#[tokio::test]
async fn streamed_text_is_not_sent_again() {
    for (rendered, delivered) in [("fine", "delivered Message \"\""), ("more", "delivered Message \"more\"")] {
        let log = CallLog::default();
        let model = ScriptedPlugin {
            model: Behavior::Say("fine"),
            render: Behavior::Say(rendered),
            ..ScriptedPlugin::new("model", &log)
        };
        let pipeline = plain().with(model).with_router(RecordingRouter { book: log.clone(), streams: true });
        pipeline.process(inbound("hi")).await.expect("it is answered");
        assert_eq!(log.of("delivered"), [delivered]);
    }
}
