//! Words are masked wherever they are said, and some are refused.
use super::*;
use turnway_pipeline::stream::single_piece;
use turnway_pipeline::{BuiltinPlugin, Inbound, NoOutputPolicy, Pipeline, Prompt};

/// Says the message's text again, a letter at a time.
struct Letters;

impl Plugin for Letters {
    fn name(&self) -> &'static str {
        "letters"
    }
    fn run_model_stream<'a>(&'a self, _: &'a Turn, prompt: &'a Prompt) -> HookFuture<'a, Option<AnswerStream>> {
        let Prompt::Text(text) = prompt else { return ready(Ok(Some(single_piece(String::new())))).boxed() };
        let letters: Vec<AnswerPiece> = text.chars().map(|letter| AnswerPiece::Text(letter.to_string())).collect();
        ready(Ok(Some(futures_util::stream::iter(letters).boxed()))).boxed()
    }
}

/// Covers: TP-O1, TP-N14.
#[tokio::test]
async fn words_are_masked_wherever_pieces_end() {
    let pipeline = Pipeline::new("/").with(BuiltinPlugin::new()).with(Letters).with(Profanity::new(["darn", "Mist"]));
    for (said, shown) in [
        ("a darn good day", "a **** good day"),
        ("Darn", "****"),
        ("darned, undarn", "darned, undarn"),
        ("so ein Mist! MIST", "so ein ****! ****"),
        ("größe·darn·", "größe·****·"),
    ] {
        let outcome = pipeline.process(Inbound::from(MessageEnvelope::from_text(said))).await.expect("it is answered");
        assert_eq!(outcome.turn.output, shown);
        let sent: Vec<&str> = outcome.outbound.iter().map(|it| it.content.as_str()).collect();
        assert_eq!(sent, [shown], "one message, not one more");
    }
}

/// Covers: TP-O1, TP-M9, RX-12.
#[tokio::test]
async fn an_echo_of_a_prompt_is_masked_and_says_what_it_is() {
    let plugin = Profanity::new(["darn"]).refusing(["Bomb"]);
    let pipeline =
        Pipeline::new("/").with(BuiltinPlugin::new()).with(plugin).with_no_output_policy(NoOutputPolicy::Echo);
    let outcome = pipeline.process(MessageEnvelope::from_text("darn it").into()).await.expect("it is echoed");
    let [said] = &outcome.outbound[..] else { panic!("{outcome:?}") };
    assert_eq!((said.content.as_str(), said.fallback), ("**** it", true));
    let refused = pipeline.process(MessageEnvelope::from_text("a bomb!").into()).await.expect_err("it is refused");
    assert_eq!(refused, TurnFailure::Refused(HookError::new("profanity", "not in these words")));
}
