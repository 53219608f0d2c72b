//! Tests of the text that the model gets beside the message.
use super::*;
use turnway_pipeline::{BuiltinPlugin, MessageEnvelope, Pipeline};

fn noon() -> Timestamp {
    Timestamp::from_second(1_800_000_000).expect("a time")
}

/// Answers, and where it is asked what it was asked says that.
struct Echo;

impl Plugin for Echo {
    fn name(&self) -> &'static str {
        "echo"
    }
    fn run_model<'a>(&'a self, turn: &'a Turn, prompt: &'a Prompt) -> HookFuture<'a, Option<String>> {
        let Prompt::Text(text) = prompt else { return ready(Ok(None)).boxed() };
        let said = &turn.inbound.envelope.content;
        let answer = if said == "what?" { text.clone() } else { format!("to {said}") };
        ready(Ok(Some(answer))).boxed()
    }
}

/// Covers: TP-L1, TP-B2, TP-S2, TP-N14.
#[tokio::test]
async fn the_model_is_told_the_time_and_what_was_said_last() {
    let pipeline = Pipeline::new("/").with(BuiltinPlugin::new()).with(Echo).with(PromptBuilder::by(3, noon));
    let ask = async |session: &str, text: &str| {
        let envelope = MessageEnvelope { session_id: Some(session.to_owned()), ..MessageEnvelope::from_text(text) };
        pipeline.process(envelope.into()).await.expect("it is answered").turn.output
    };
    assert_eq!(ask("s1", "what?").await, "It is 2027-01-15 08:00 UTC.\nwhat?");
    ask("s2", "one").await;
    ask("s2", "two").await;
    let told = ask("s2", "what?").await;
    assert_eq!(told, "It is 2027-01-15 08:00 UTC.\n> to one\n> two\n> to two\nwhat?");
}
