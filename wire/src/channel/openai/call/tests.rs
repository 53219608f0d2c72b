//! Parsing of request bodies, well and badly formed.
use super::*;
use crate::channel::openai::ChatCallIds;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use turnway_core::id::{EventId, MessageId, Principal, SessionId, TenantId, UserId};
use turnway_core::limits::{HISTORY_BYTES_MAX, SESSION_BLOBS_MAX};
use turnway_core::protocol::file_url::file_path;
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
    let error = ChatCall::parse(&body(fields.clone()), &name(None)).expect_err(&fields.to_string());
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
    let kept = name(None);
    let call = ChatCall::parse(&text, &kept).expect("a call");
    assert!(call.stream && call.include_usage && call.agent.as_str() == "echo" && call.files.is_empty());
    let invoke = call.into_command(&kept, None);
    assert_eq!(invoke.history.as_ref().and_then(History::inline), Some(&*earlier.to_string()));
    assert_eq!(invoke.message.content, Content::Parts(vec![json!({ "type": "text", "text": "@bob hi" })]));
    // The model name decides the agent; a mention in the text has no effect.
    assert_eq!(invoke.agent_id.map(|agent| agent.to_string()), Some("echo".to_owned()));
    assert_eq!((invoke.session, invoke.message_id), (Some(kept.session.clone()), Some(kept.message_id.clone())));
    assert_eq!(invoke.metadata, Some(Json(json!({ "k": "v" }))));
    let within = name(Some("s1"));
    let invoke = ChatCall::parse(&text, &within).expect("a call").into_command(&within, None);
    assert_eq!((invoke.history, invoke.session), (None, SessionId::parse("s1").ok()));
    let plain = ChatCall::parse(&body(json!({})), &kept).expect("a call");
    assert!(!plain.stream && !plain.include_usage);
    assert_eq!(plain.into_command(&kept, None).history, None);
}

/// Returns a `data:` URL with these bytes.
fn data_url(media_type: &str, bytes: &[u8]) -> String {
    format!("data:{media_type};base64,{}", STANDARD.encode(bytes))
}

/// Covers: PR-24, ST-37, MP-G3.
#[test]
fn files_of_all_messages_are_taken_out_and_named() {
    let earlier = json!({ "role": "user", "content": [
        { "type": "image_url", "image_url": { "url": data_url("image/png", b"one"), "detail": "low" } },
        { "type": "input_audio", "input_audio": { "data": "b25l", "format": "wav" } },
        { "type": "image_url", "image_url": { "url": "https://example.org/a.png" } },
    ] });
    let last = json!({ "role": "user", "content": [
        { "type": "file", "file": { "file_data": data_url("application/pdf", b"two"), "filename": "a.pdf" } },
        { "type": "file", "file": { "url": data_url("text/plain", b"one") } },
        { "type": "file", "file": { "file_id": "f1" } },
    ] });
    let text = body(json!({ "messages": [earlier, last] }));
    let ids = name(None);
    let call = ChatCall::parse(&text, &ids).expect("a call");
    let path = |bytes: &[u8]| file_path(&ids.session, &BlobHash::of(bytes));
    let file = |bytes: &[u8]| call.files.get(&BlobHash::of(bytes)).cloned().expect("a file");
    assert_eq!(call.files.len(), 2, "the same bytes are one file");
    let one = file(b"one");
    assert_eq!((&*one.media_type, &*one.bytes), ("image/png", &b"one"[..]));
    assert_eq!(one.param, "messages[0].content[0].image_url.url");
    let two = file(b"two");
    assert_eq!((&*two.media_type, &*two.param), ("application/pdf", "messages[1].content[0].file.file_data"));
    let invoke = call.clone().into_command(&ids, None);
    assert_eq!(
        invoke.message.content,
        Content::Parts(vec![
            json!({ "type": "file", "file": { "url": path(b"two"), "filename": "a.pdf" } }),
            json!({ "type": "file", "file": { "url": path(b"one") } }),
            json!({ "type": "file", "file": { "file_id": "f1" } }),
        ])
    );
    let mut earlier = earlier;
    earlier["content"][0]["image_url"]["url"] = path(b"one").into();
    let history = invoke.history.expect("a history");
    assert_eq!(history.inline(), Some(&*json!([earlier]).to_string()));
    // If the gateway keeps the conversation, only the last message brings files.
    let within = name(Some("s1"));
    let call = ChatCall::parse(&text, &within).expect("a call");
    assert_eq!(call.files[&BlobHash::of(b"one")].param, "messages[1].content[1].file.url");
    assert_eq!(call.into_command(&within, None).history, None);
}

/// Covers: PR-24, S-13, S-38.
#[test]
fn malformed_file_is_refused_with_its_part() {
    let long = "x".repeat(100);
    let cases = [
        (json!({ "image_url": { "url": "data:image/png;base64,canary" } }), "messages[0].content[1].image_url.url"),
        (json!({ "image_url": { "url": "data:text/plain,canary" } }), "messages[0].content[1].image_url.url"),
        (json!({ "file": { "file_data": "data:canary" } }), "messages[0].content[1].file.file_data"),
        (json!({ "file": { "file_data": "data:;base64,", "url": "canary" } }), "messages[0].content[1].file.file_data"),
        (json!({ long: { "url": "data:canary" } }), "messages[0].content[1]"),
    ];
    for (mut part, param) in cases {
        part["type"] = "file".into();
        let content = json!([{ "type": "text", "text": "look" }, part]);
        let earlier = json!({ "role": "user", "content": content });
        let (status, error) = refused(json!({ "messages": [earlier, { "role": "user", "content": "hi" }] }));
        assert_eq!((status, &error["code"], &error["param"]), (400, &json!("invalid_message"), &json!(param)));
        assert!(!error["message"].as_str().expect("a text").contains("canary"), "{error}");
    }
    let part = |n: usize| json!({ "type": "x", "x": { "url": data_url("a/b", &n.to_be_bytes()) } });
    let parts =
        |count: usize| json!({ "messages": [{ "role": "user", "content": (0..count).map(part).collect::<Vec<_>>() }] });
    let (status, error) = refused(parts(SESSION_BLOBS_MAX + 1));
    assert_eq!((status, &error["code"]), (429, &json!("quota_exceeded")));
    let most = ChatCall::parse(&body(parts(SESSION_BLOBS_MAX)), &name(None)).expect("a call");
    assert_eq!(most.files.len(), SESSION_BLOBS_MAX);
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
        assert_eq!(ChatCall::parse(bad, &name(None)).map_err(|trouble| trouble.status), Err(400), "{bad}");
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
    assert!(ChatCall::parse(&body(tuned), &name(None)).is_ok());
}

/// Covers: ST-41.
#[test]
fn unknown_model_is_not_found() {
    for model in ["gpt-5", "echo", "agent/", "agent/a b", ""] {
        let (status, error) = refused(json!({ "model": model }));
        assert_eq!((status, &error["code"], &error["param"]), (404, &json!("model_not_found"), &json!("model")));
    }
}

/// Covers: S-11, S-48, MP-G3, PR-24.
#[test]
fn long_history_becomes_a_file_and_a_longer_call_is_refused() {
    let long = |bytes: usize| "x".repeat(bytes);
    let earlier = |bytes: usize| {
        let system = json!({ "role": "system", "content": long(bytes) });
        body(json!({ "messages": [system, { "role": "user", "content": "hi" }] }))
    };
    let ids = name(None);
    let rest = body(json!({ "x": "" })).len();
    assert!(ChatCall::parse(&body(json!({ "x": long(CHAT_CALL_BYTES_MAX - rest) })), &ids).is_ok());
    let trouble =
        ChatCall::parse(&body(json!({ "x": long(CHAT_CALL_BYTES_MAX - rest + 1) })), &ids).expect_err("too long");
    let error: Value = serde_json::from_str(&trouble.to_json()).expect("JSON");
    assert_eq!((trouble.status, &error["error"]["code"]), (400, &json!("context_length_exceeded")));
    let short = ChatCall::parse(&earlier(HISTORY_BYTES_MAX - 64), &ids).expect("a call");
    assert!(short.history_file().is_none() && short.files.is_empty());
    let call = ChatCall::parse(&earlier(HISTORY_BYTES_MAX), &ids).expect("a call");
    let [(hash, file)] = &*call.files.clone().into_iter().collect::<Vec<_>>() else { panic!("one file") };
    assert_eq!((&*file.media_type, *hash), ("application/json", BlobHash::of(&file.bytes)));
    assert_eq!(call.history_file(), Some(*hash));
    let read: Value = serde_json::from_slice(&file.bytes).expect("JSON");
    assert_eq!(read, json!([{ "role": "system", "content": long(HISTORY_BYTES_MAX) }]));
    assert_eq!(call.into_command(&ids, None).history, Some(History::File { sha256: *hash }));
    // If the gateway keeps the conversation, earlier messages are ignored.
    let within = ChatCall::parse(&earlier(HISTORY_BYTES_MAX), &name(Some("s1"))).expect("a call");
    assert!(within.history_file().is_none() && within.files.is_empty());
}

/// A long conversation has more values than one message may have.
///
/// Covers: S-13, MP-G3.
#[test]
fn each_message_has_a_limit_of_values_of_its_own() {
    let message = |n: usize| json!({ "role": "user", "content": n.to_string() });
    let call = |count: usize| body(json!({ "messages": (0..count).map(message).collect::<Vec<_>>() }));
    let ids = name(None);
    let many = ChatCall::parse(&call(JSON_NODES_MAX), &ids).expect("a call").into_command(&ids, None);
    assert!(many.history.is_some());
    let list = json!({ "role": "user", "content": "hi", "x": vec![0; JSON_NODES_MAX] });
    assert_eq!(refused(json!({ "messages": [list] })).0, 400);
}
