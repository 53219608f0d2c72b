//! Collection of answers: notifications in, one answer out.
use super::*;
use crate::channel::openai::stream::tests::{delta, done, fact, head, run, started, thought};
use serde_json::{Value, json};
use turnway_core::protocol::entry::{Fact, RunFact};
use turnway_core::protocol::refusal::Code;

fn answer(notes: &[Notification]) -> Result<Value, ChatError> {
    let mut whole = ChatCollector::new(head(), run());
    for note in notes {
        assert!(!whole.is_finished() && whole.response().is_none());
        whole.push(note);
    }
    let json = whole.response().expect("it is over")?;
    Ok(serde_json::from_str(&json).expect("JSON"))
}

/// Covers: ST-41, ST-23.
#[test]
fn answer_is_one_completion_object() {
    let usage = json!({ "prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3 });
    let notes = [started(1), thought("hm"), delta(1, 0, "he"), delta(1, 2, "llo"), done(1, 5, Some(usage.clone()))];
    let message = json!({ "role": "assistant", "content": "hello", "refusal": null, "reasoning_content": "hm" });
    let expected = json!({
        "id": format!("chatcmpl-{}", run()),
        "object": "chat.completion",
        "created": 1_764_000_000,
        "model": "agent/echo",
        "choices": [{ "index": 0, "message": message, "logprobs": null, "finish_reason": "stop" }],
        "usage": usage,
    });
    assert_eq!(answer(&notes), Ok(expected));
    let plain = answer(&[started(1), done(1, 0, None)]).expect("an answer");
    assert_eq!(plain["choices"][0]["message"], json!({ "role": "assistant", "content": "", "refusal": null }));
    assert_eq!(plain.get("usage"), None, "what nobody counted is not told");
}

/// Covers: protocol.md §1 (the OpenAI-compatible front).
#[test]
fn restart_before_sending_discards_earlier_text() {
    let notes = [started(1), thought("hm"), delta(1, 0, "he"), started(2), delta(2, 0, "hello"), done(2, 5, None)];
    let answer = answer(&notes).expect("an answer");
    let message = json!({ "role": "assistant", "content": "hello", "refusal": null });
    assert_eq!(answer["choices"][0]["message"], message);
}

/// Covers: ST-41, S-48.
#[test]
fn error_is_returned_and_reasoning_is_bounded() {
    let code = Code::AgentTimeout;
    let message = "the agent timed out: no event within its silence limit".to_owned();
    let failed = fact(Fact::Run(RunFact::Failed {
        attempt: 1,
        code,
        message,
        agent_code: None,
        retry_after_ms: None,
        agent_body: None,
        text_bytes: 2,
    }));
    let error = answer(&[started(1), delta(1, 0, "he"), failed]).expect_err("it failed");
    assert_eq!((error.status, error.retryable), (504, false));
    let long = "é".repeat(REASONING_BYTES_MAX);
    let answer = answer(&[started(1), thought(&long), thought("x"), done(1, 0, None)]).expect("an answer");
    let kept = answer["choices"][0]["message"]["reasoning_content"].as_str().map(str::len);
    assert_eq!(kept, Some(REASONING_BYTES_MAX));
}
