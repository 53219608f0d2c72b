//! Parsing of request bodies, well and badly formed.
use super::*;
use crate::channel::openai::ChatCallIds;
use serde_json::json;
use turnway_core::id::{EventId, MessageId, Principal, SessionId, TenantId, UserId};
use turnway_core::time::Millis;

fn name(session: Option<&str>) -> ChatCallIds {
    let user = UserId::parse("ann").expect("a name");
    let ann = Principal { tenant: TenantId::default_tenant(), user, operator: false, writes: true };
    let call = MessageId::parse("k1").ok();
    let fresh = EventId::new(Millis(1), 1);
    match session.map(|session| SessionId::parse(session).expect("a name")) {
        Some(session) => ChatCallIds::in_session(&ann, session, call, fresh),
        None => ChatCallIds::without_session(&ann, call, fresh, |_| SessionId::for_call(&[7; 32])),
    }
}

/// Returns the usual body with `fields` added or replaced.
fn body(fields: Value) -> String {
    let mut body =
        json!({ "model": "agent/echo", "messages": [{ "role": "user", "content": "hi" }], "temperature": 0.5 });
    let (Value::Object(all), Value::Object(fields)) = (&mut body, fields) else { panic!("objects") };
    all.extend(fields);
    body.to_string()
}

fn refused(fields: Value) -> (u16, Value) {
    let error = ChatCall::parse(&body(fields.clone())).expect_err(&fields.to_string());
    let object: Value = serde_json::from_str(&error.to_json()).expect("JSON");
    (error.status, object["error"].clone())
}

/// Covers: ST-41, MP-G3, ST-37.
#[test]
fn last_message_is_the_input_and_earlier_ones_history() {
    let earlier = json!([
        { "role": "system", "content": "be brief" },
        { "role": "developer", "content": [{ "type": "text", "text": "x" }], "name": "d" },
        { "role": "assistant", "content": null, "tool_calls": [{ "id": "c1" }] },
        { "role": "tool", "content": "42", "tool_call_id": "c1" },
        { "role": "assistant", "refusal": "no" },
    ]);
    let mut messages = earlier.as_array().expect("a list").clone();
    messages.push(json!({ "role": "user", "content": [{ "type": "text", "text": "@bob hi" }], "name": "ann" }));
    let text = body(json!({ "messages": messages, "metadata": { "k": "v" }, "stream": true,
        "stream_options": { "include_usage": true, "include_obfuscation": false }, "user": "eve" }));
    let call = ChatCall::parse(&text).expect("a call");
    assert!(call.stream && call.include_usage && call.agent.as_str() == "echo");
    let kept = name(None);
    let within = name(Some("s1"));
    let invoke = call.clone().into_command(&kept, None).expect("an input");
    assert_eq!(invoke.history.as_ref().map(History::reveal), Some(&*earlier.to_string()));
    assert_eq!(invoke.message.content, Content::Parts(vec![json!({ "type": "text", "text": "@bob hi" })]));
    // The model name decides the agent; a mention in the text has no effect.
    assert_eq!(invoke.agent_id.map(|agent| agent.to_string()), Some("echo".to_owned()));
    assert_eq!((invoke.session, invoke.message_id), (Some(kept.session.clone()), Some(kept.message_id.clone())));
    assert_eq!(invoke.metadata, Some(Json(json!({ "k": "v" }))));
    let invoke = call.into_command(&within, None).expect("an input");
    assert_eq!((invoke.history, invoke.session), (None, SessionId::parse("s1").ok()));
    let plain = ChatCall::parse(&body(json!({}))).expect("a call");
    assert!(!plain.stream && !plain.include_usage);
    assert_eq!(plain.into_command(&kept, None).expect("an input").history, None);
}

/// Covers: ST-41, S-13, S-38.
#[test]
fn unsupported_call_is_refused_with_its_field() {
    let user = |content: Value| json!({ "messages": [{ "role": "user", "content": content }] });
    let cases = [
        (json!({ "messages": null }), "messages"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": "canary" }), "messages"),
        (json!({ "messages": ["canary"] }), "messages[0]"),
        (json!({ "messages": [{ "role": "canary", "content": "x" }] }), "messages[0].role"),
        (json!({ "messages": [{ "role": "user", "content": "x" }, { "content": "x" }] }), "messages[1].role"),
        (json!({ "messages": [{ "role": "assistant", "content": "canary" }] }), "messages[0].role"),
        (json!({ "messages": [{ "role": "tool", "content": "canary" }] }), "messages[0].role"),
        (user(json!(7)), "messages[0].content"),
        (user(json!(null)), "messages[0].content"),
        (user(json!("")), "messages[0].content"),
        (user(json!([{ "text": "canary" }])), "messages[0].content"),
        (user(json!([{ "type": "text", "text": "" }])), "messages[0].content"),
        (json!({ "model": null }), "model"),
        (json!({ "stream": "yes" }), "stream"),
        (json!({ "stream_options": 1 }), "stream_options"),
        (json!({ "metadata": "canary" }), "metadata"),
    ];
    for (fields, param) in cases {
        let (status, error) = refused(fields);
        assert_eq!((status, &error["param"]), (400, &json!(param)));
        assert_eq!((&error["type"], &error["code"]), (&json!("invalid_request_error"), &json!("invalid_message")));
        assert!(!error["message"].as_str().expect("a text").contains("canary"), "{error}");
    }
    for bad in ["", "[]", "{", "{\"model\":\"agent/a\",\"model\":\"agent/a\"}", &"[".repeat(100)] {
        assert_eq!(ChatCall::parse(bad).map_err(|trouble| trouble.status), Err(400), "{bad}");
    }
}

/// Covers: ST-41: an answer has the requested shape, or the request is refused.
#[test]
fn unsupported_output_is_refused_and_tuning_ignored() {
    let tool = json!([{ "type": "function", "function": { "name": "f" } }]);
    for (fields, param) in [
        (json!({ "n": 2 }), "n"),
        (json!({ "tools": tool }), "tools"),
        (json!({ "functions": [{ "name": "f" }] }), "functions"),
        (json!({ "logprobs": true }), "logprobs"),
        (json!({ "modalities": ["text", "audio"] }), "modalities"),
        (json!({ "response_format": { "type": "json_object" } }), "response_format"),
    ] {
        let (status, error) = refused(fields);
        assert_eq!((status, &error["param"]), (400, &json!(param)));
        assert_eq!(error["code"], "unsupported_parameter");
    }
    let tuned = json!({ "n": 1, "tools": [], "functions": null, "logprobs": false, "modalities": ["text"],
        "response_format": { "type": "text" }, "max_tokens": 5, "max_completion_tokens": 5, "stop": ["x"],
        "seed": 1, "top_p": 0.1, "store": true, "tool_choice": "auto", "whatever": [{}] });
    assert!(ChatCall::parse(&body(tuned)).is_ok());
}

/// Covers: ST-41.
#[test]
fn unknown_model_is_not_found() {
    for model in ["gpt-5", "echo", "agent/", "agent/a b", ""] {
        let (status, error) = refused(json!({ "model": model }));
        assert_eq!((status, &error["code"], &error["param"]), (404, &json!("model_not_found"), &json!("model")));
    }
}

/// Covers: S-11, S-48, MP-G3.
#[test]
fn oversized_call_is_context_length_exceeded() {
    let long = |bytes: usize| "x".repeat(bytes);
    let earlier = |bytes: usize| {
        let system = json!({ "role": "system", "content": long(bytes) });
        body(json!({ "messages": [system, { "role": "user", "content": "hi" }] }))
    };
    let too_long = |trouble: ChatError| {
        let error: Value = serde_json::from_str(&trouble.to_json()).expect("JSON");
        (trouble.status, error["error"]["code"].clone()) == (400, json!("context_length_exceeded"))
    };
    assert!(too_long(ChatCall::parse(&body(json!({ "x": long(CHAT_CALL_BYTES_MAX) }))).expect_err("too long")));
    let told =
        |bytes: usize, session| ChatCall::parse(&earlier(bytes)).expect("a call").into_command(&name(session), None);
    assert!(told(HISTORY_BYTES_MAX - 64, None).is_ok());
    assert!(too_long(told(HISTORY_BYTES_MAX, None).expect_err("too long")));
    // If the gateway keeps the conversation, ignored messages do not count towards the limit.
    assert!(told(HISTORY_BYTES_MAX, Some("s1")).is_ok());
}
