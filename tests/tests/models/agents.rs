//! Agents that are models: turns of a real node, answered by a scripted upstream or by the demo model.
use crate::cancel::must_be_closed_soon;
use crate::world::{flag, until_quiet};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tempfile::{TempDir, tempdir};
use turnway_tests::real::command::run;
use turnway_tests::real::node::Node;
use turnway_tests::real::upstream::{Answer, ScriptedUpstream, UpstreamRequest};
use turnway_tests::real::wire::{WebSocketClient, invoke};

fn usage() -> Value {
    json!({
        "prompt_tokens": 30, "completion_tokens": 12, "prompt_tokens_details": {"cached_tokens": 10},
        "completion_tokens_details": {"reasoning_tokens": 5},
    })
}

fn event(data: &Value) -> String {
    format!("data: {data}\n\n")
}

fn delta(delta: Value) -> String {
    event(&json!({"choices": [{"index": 0, "delta": delta}]}))
}

fn finish(reason: &str) -> String {
    event(&json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}))
}

/// Returns an answer with this text.
fn saying(text: &str) -> Answer {
    let counts = event(&json!({"choices": [], "usage": usage()}));
    let events = [delta(json!({"content": text})), finish("stop"), counts, "data: [DONE]\n\n".to_owned()];
    Answer::events(events.iter().map(String::as_bytes))
}

/// Returns an answer that repeats the last message.
fn repeating(request: &UpstreamRequest) -> Answer {
    let body = request.json();
    let last = body["messages"].as_array().and_then(|messages| messages.last()).expect("messages");
    saying(&format!("re: {}", last["content"].as_str().expect("a text")))
}

async fn start(dir: &TempDir, upstream: &ScriptedUpstream, settings: &str) -> (Node, WebSocketClient) {
    let model = flag("large", upstream, "name=gpt");
    let agent = format!("helper=model:gpt{settings}");
    let node = Node::start(dir.path(), &["--model", &model, "--agent", &agent]).await;
    let client = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    (node, client)
}

fn messages(request: &UpstreamRequest) -> Vec<(String, String)> {
    let body = request.json();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let messages = body["messages"].as_array().expect("a list").iter();
    messages.map(|message| (text(&message["role"]), text(&message["content"]))).collect()
}

/// Runs a turn that fails, and returns the failure.
async fn failing_turn(client: &mut WebSocketClient, id: &str) -> Value {
    let accepted = client.ask(id, invoke("s1", "helper", "hi")).await.expect("an answer");
    let run = accepted["run_id"].clone();
    client.until(|message| message["type"] == "error" && message["run_id"] == run).await.expect("a failure")
}

/// Covers: PR-5, PR-6.
#[tokio::test]
async fn model_agent_answers_with_reasoning_apart_and_usage() {
    let events = [
        delta(json!({"role": "assistant", "content": ""})),
        delta(json!({"reasoning_content": "Hm."})),
        delta(json!({"content": "Gr\u{fc}\u{df} "})),
        delta(json!({"content": "dich"})),
        finish("length"),
        event(&json!({"choices": [], "usage": usage()})),
        "data: [DONE]\n\n".to_owned(),
    ];
    let upstream = ScriptedUpstream::always(Answer::events(events.iter().map(String::as_bytes))).await;
    let dir = tempdir().expect("a directory");
    let (node, mut client) = start(&dir, &upstream, ",max_output=64").await;
    client.ask("m1", invoke("s1", "helper", "hi")).await.expect("accepted");
    let mut said = [String::new(), String::new()];
    let done = loop {
        let message = client.next().await.expect("a message");
        match message["type"].as_str() {
            Some("delta") => {
                let is_reasoning = message["kind"] == "reasoning";
                said[usize::from(is_reasoning)].push_str(message["text"].as_str().expect("a text"));
            }
            Some("done") => break message,
            _ => {}
        }
    };
    assert_eq!(said, ["Gr\u{fc}\u{df} dich", "Hm."]);
    assert_eq!(done["stop_reason"], "max_tokens", "{done}");
    let usage = json!({"input_tokens": 30, "cached_input_tokens": 10, "output_tokens": 12, "reasoning_tokens": 5});
    assert_eq!(done["usage"], usage, "{done}");
    let request = upstream.only_request();
    let expected = json!({
        "model": "gpt", "messages": [{"role": "user", "content": "hi"}], "stream": true,
        "stream_options": {"include_usage": true}, "max_completion_tokens": 64,
    });
    assert_eq!((request.path.as_str(), request.json()), ("/v1/chat/completions", expected));
    until_quiet(&node).await;
}

/// Covers: PR-8.
#[tokio::test]
async fn repeated_attempt_sends_the_same_conversation() {
    let asked = AtomicUsize::new(0);
    let upstream = ScriptedUpstream::start(move |request| {
        if messages(request).len() == 6 && asked.fetch_add(1, Ordering::Relaxed) == 0 {
            return Answer::stream().piece(delta(json!({"content": "half"})).as_bytes()).hang();
        }
        repeating(request)
    })
    .await;
    let dir = tempdir().expect("a directory");
    let prompt = dir.path().join("prompt.txt");
    std::fs::write(&prompt, "Be brief.\n").expect("a file");
    let (mut node, mut client) = start(&dir, &upstream, &format!(",system={}", prompt.display())).await;
    for (id, text) in [("m1", "one"), ("m2", "two")] {
        let (said, _) = client.turn("s1", "helper", id, text).await.expect("a turn");
        assert_eq!(said, format!("re: {text}"));
    }
    let accepted = client.ask("m3", invoke("s1", "helper", "three")).await.expect("accepted");
    client.until(|message| message["type"] == "delta").await.expect("a part of the answer");
    // A later input is no part of the conversation before this one.
    client.ask("m4", invoke("s1", "helper", "four")).await.expect("accepted");
    node.kill_and_restart().await;
    let resume = vec![json!({"session_id": "s1", "after_seq": 0})];
    let mut client = WebSocketClient::hello(node.http, "ann", resume).await.expect("welcome");
    let done = |message: &Value| message["type"] == "done" && message["run_id"] == accepted["run_id"];
    client.until(done).await.expect("the end of the repeated turn");
    client.until(|message| message["type"] == "done").await.expect("the end of the last turn");
    let requests = upstream.requests();
    let of_third: Vec<_> = requests.iter().filter(|request| messages(request).len() == 6).collect();
    let [first, second] = of_third.as_slice() else { panic!("{requests:?}") };
    assert_eq!(first.body, second.body, "the same bytes");
    let expected = [
        ("system", "Be brief."),
        ("user", "one"),
        ("assistant", "re: one"),
        ("user", "two"),
        ("assistant", "re: two"),
        ("user", "three"),
    ];
    let owned = |(role, text): &(&str, &str)| ((*role).to_owned(), (*text).to_owned());
    assert_eq!(messages(first), expected.iter().map(owned).collect::<Vec<_>>());
    let last = messages(requests.last().expect("a request"));
    let end = [("user", "three"), ("assistant", "re: three"), ("user", "four")];
    assert_eq!(last[5..], end.iter().map(owned).collect::<Vec<_>>());
}

/// An answer of 40 bytes counts 14 tokens, and the short input 5.
#[tokio::test]
async fn context_budget_bounds_the_conversation() {
    let upstream = ScriptedUpstream::always(saying(&"x".repeat(40))).await;
    let dir = tempdir().expect("a directory");
    let (_node, mut client) = start(&dir, &upstream, ",context=30").await;
    for id in ["m1", "m2", "m3"] {
        client.turn("s1", "helper", id, id).await.expect("a turn");
    }
    let lengths: Vec<usize> = upstream.requests().iter().map(|request| messages(request).len()).collect();
    assert_eq!(lengths, [1, 3, 3]);
    let third = messages(&upstream.requests()[2]);
    assert_eq!((third[0].1.as_str(), third[2].1.as_str()), ("m2", "m3"));
}

/// Covers: PR-8.
#[tokio::test]
async fn cancelled_turn_closes_the_call_of_its_model() {
    let part = delta(json!({"content": "half"}));
    let upstream = ScriptedUpstream::in_order(vec![
        Answer::new().hang(),
        Answer::stream().hang(),
        Answer::stream().piece(part.as_bytes()).hang(),
    ])
    .await;
    let dir = tempdir().expect("a directory");
    let (node, mut client) = start(&dir, &upstream, "").await;
    for (id, has_text) in [("m1", false), ("m2", false), ("m3", true)] {
        let accepted = client.ask(id, invoke("s1", "helper", "hi")).await.expect("accepted");
        let exchange = upstream.next().await;
        if has_text {
            client.until(|message| message["type"] == "delta").await.expect("a part");
        }
        let cancel = json!({"type": "cancel_run", "run_id": accepted["run_id"]});
        let asked = Instant::now();
        client.say(cancel).await.expect("sent");
        must_be_closed_soon(&exchange, asked, id).await;
        let run = accepted["run_id"].clone();
        client.until(|message| message["type"] == "done" && message["run_id"] == run).await.expect("an end");
    }
    until_quiet(&node).await;
}

/// Covers: PR-5, PR-9.
#[tokio::test]
async fn failed_call_fails_the_turn_without_the_upstreams_words() {
    let part = delta(json!({"content": "half"}));
    let error = event(&json!({"error": {"message": "canary of the account"}}));
    let refused = r#"{"error":{"message":"canary of the account"}}"#;
    let cases = [
        ("status 500", Answer::json(500, refused)),
        ("status 400", Answer::json(400, refused)),
        ("refuses the key", Answer::json(401, refused)),
        ("before its end", Answer::stream().piece(part.as_bytes()).cut()),
        ("before its end", Answer::stream().piece(part.as_bytes()).end()),
        ("reported an error", Answer::stream().piece(part.as_bytes()).piece(error.as_bytes()).end()),
        ("not supported", Answer::stream().piece(finish("tool_calls").as_bytes()).end()),
        ("event stream", Answer::json(200, r#"{"choices":[]}"#)),
    ];
    let script: Vec<Answer> = cases.iter().map(|(_, answer)| answer.clone()).collect();
    let upstream = ScriptedUpstream::in_order(script).await;
    let dir = tempdir().expect("a directory");
    let (node, mut client) = start(&dir, &upstream, "").await;
    for (number, (said, _)) in cases.iter().enumerate() {
        let failure = failing_turn(&mut client, &format!("m{number}")).await;
        assert_eq!(failure["code"], "llm_error", "{said}: {failure}");
        let message = failure["message"].as_str().expect("a text");
        assert!(message.contains(said) && !failure.to_string().contains("canary"), "{said}: {failure}");
    }
    until_quiet(&node).await;
}

async fn check(dir: &Path, args: &[&str]) -> (Option<i32>, String) {
    let ended = run(dir, &[&["check-config"][..], args].concat(), &[]).await;
    (ended.code, ended.out + &ended.err)
}

/// Covers: PR-14.
#[tokio::test]
async fn agent_of_an_unknown_model_is_reported() {
    let dir = tempdir().expect("a directory");
    let model = "gpt-large=http://127.0.0.1:1/v1";
    let good = check(dir.path(), &["--model", model, "--agent", "a=model:gpt-large"]).await;
    assert_eq!(good.0, Some(0), "{}", good.1);
    let bad = check(dir.path(), &["--model", model, "--agent", "a=model:gpt-lrage"]).await;
    assert_eq!(bad.0, Some(64), "{}", bad.1);
    assert!(bad.1.contains("there is no model \"gpt-lrage\"; did you mean \"gpt-large\"?"), "{}", bad.1);
    let missing = check(dir.path(), &["--model", model, "--agent", "a=model:gpt-large,system=nowhere"]).await;
    assert!(missing.0 == Some(64) && missing.1.contains("\"nowhere\" cannot be read"), "{}", missing.1);
}

/// The demo model answers from the conversation, alike in every session.
#[tokio::test]
async fn demo_assistant_remembers_the_conversation() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut client = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    for session in ["s1", "s2"] {
        let mut turn = async |id: &str, text: &str| {
            client.turn(session, "assistant", &format!("{session}-{id}"), text).await.expect("a turn")
        };
        let (said, done) = turn("m1", "My cat is Tom").await;
        assert_eq!(said, "You said: \"My cat is Tom\" That is message 1 of our conversation.");
        assert_eq!(done["usage"], json!({"input_tokens": 4, "output_tokens": 13, "reasoning_tokens": 0}), "{done}");
        let (said, _) = turn("m2", "What did I say?").await;
        assert_eq!(said, "Before this you said: \"My cat is Tom\"");
        let (said, _) = turn("m3", "How many words?").await;
        assert_eq!(said, "Before this you have sent 2 messages with 8 words; this one has 3 words.");
    }
}
