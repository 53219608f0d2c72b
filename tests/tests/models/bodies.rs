//! Members of request bodies that the gateway reads, changes or refuses.
use crate::caller::Caller;
use crate::route::Route;
use crate::world::{flag, open_node, with_gpt};
use serde_json::{Value, json};
use tempfile::tempdir;
use turnway_tests::real::upstream::{Answer, ScriptedUpstream};

/// Asserts that `after` is `before` with at most `removed` bytes replaced in one place.
fn must_differ_in_one_place(before: &[u8], after: &[u8], removed: usize) {
    let front = before.iter().zip(after).take_while(|(a, b)| a == b).count();
    let back = before.iter().rev().zip(after.iter().rev()).take_while(|(a, b)| a == b).count();
    let [before, after] = [before, after].map(String::from_utf8_lossy);
    assert!(front + back + removed >= before.len(), "{before}\n{after}");
}

/// Covers: PR-2.
#[tokio::test]
async fn only_the_value_of_model_is_replaced() {
    let upstream = ScriptedUpstream::start(|request| Route::of(&request.path).script(false)).await;
    let dir = tempdir().expect("a directory");
    let node = open_node(&dir, &[flag("gpt", &upstream, "upstream_model=vendor/large-2")]).await;
    let caller = Caller::new(&node);
    for route in Route::ALL {
        // A member of the same name inside of another one is not the model.
        let body = route.request("gpt", false).replace("\"a\":-0.0", "\"a\":{\"model\":\"gpt\"}");
        assert_eq!(caller.post(route.path(), body.clone()).await.status, 200);
        let end = "\"model\"  :  \"gpt\" }";
        assert!(body.contains(end));
        let expected = body.replace(end, "\"model\"  :  \"vendor/large-2\" }");
        assert_eq!(String::from_utf8_lossy(&upstream.next().await.request.body), expected);
    }
    // An escaped spelling of a name is the same name.
    let body = r#"{"model":"\u0067pt","messages":[]}"#;
    assert_eq!(caller.post(Route::Chat.path(), body).await.status, 200);
    assert_eq!(upstream.next().await.request.json()["model"], "vendor/large-2");
}

/// Covers: PR-2.
#[tokio::test]
async fn model_name_of_the_upstream_is_not_asked_for() {
    let upstream = ScriptedUpstream::always(Answer::json(200, Route::Chat.answer())).await;
    let dir = tempdir().expect("a directory");
    let node = open_node(&dir, &[flag("one", &upstream, "name=org/gpt:large,upstream_model=inner")]).await;
    let caller = Caller::new(&node);
    assert_eq!(caller.post(Route::Chat.path(), Route::Chat.request("org/gpt:large", false)).await.status, 200);
    for unknown in ["one", "inner", "gpt", ""] {
        for (route, stream) in Route::modes() {
            let answer = caller.post(route.path(), route.request(unknown, stream)).await;
            assert!([400, 404].contains(&answer.status), "{unknown}: {}", answer.text());
            if !unknown.is_empty() {
                route.must_be(&answer, 404, "model_not_found");
            }
        }
    }
    assert_eq!(upstream.calls(), 1);
}

/// Covers: PR-2: the usage event that only the gateway asked for.
#[tokio::test]
async fn usage_event_asked_for_by_the_gateway_is_removed() {
    let upstream = ScriptedUpstream::always(Route::Chat.script(true)).await;
    let dir = tempdir().expect("a directory");
    let (_node, caller) = with_gpt(&dir, &upstream, "").await;
    let events = Route::Chat.events();
    let usage = events.iter().position(|event| event.contains("\"choices\":[],")).expect("a usage event");
    let without = [&events[..usage], &events[usage + 1..]].concat().concat();
    for options in [
        "",
        ", \"stream_options\": {} ",
        ", \"stream_options\": { \"include_usage\": false }",
        ",\"stream_options\":null",
        ",\"stream_options\":{\"include_obfuscation\":false}",
    ] {
        let body = format!("{{ \"messages\":[],  \"stream\" : true, \"model\": \"gpt\"{options} }}");
        let answer = caller.post(Route::Chat.path(), body.clone()).await;
        assert_eq!((answer.text(), answer.intact), (without.clone(), true), "{options}");
        let request = upstream.next().await.request.clone();
        must_differ_in_one_place(body.as_bytes(), &request.body, "false".len());
        let mut expected: Value = serde_json::from_str(&body).expect("JSON");
        if expected["stream_options"].is_null() {
            expected["stream_options"] = json!({});
        }
        expected["stream_options"]["include_usage"] = true.into();
        assert_eq!(request.json(), expected, "{options}");
    }
}

/// Covers: PR-2.
#[tokio::test]
async fn usage_event_asked_for_by_the_caller_is_kept() {
    let upstream = ScriptedUpstream::always(Route::Chat.script(true)).await;
    let dir = tempdir().expect("a directory");
    let (_node, caller) = with_gpt(&dir, &upstream, "").await;
    let body = Route::Chat.request("gpt", true);
    let answer = caller.post(Route::Chat.path(), body.clone()).await;
    assert_eq!(answer.body, Route::Chat.stream_bytes());
    assert_eq!(upstream.only_request().body, body);
}

/// Covers: PR-2: a usage beside choices belongs to the caller's event.
#[tokio::test]
async fn usage_within_the_last_choice_is_kept() {
    let events = [
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"},\"finish_reason\":null}]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":{\"total_tokens\":2}}\n\n",
        "data: [DONE]\n\n",
    ];
    let upstream = ScriptedUpstream::always(Answer::events(events.map(str::as_bytes))).await;
    let dir = tempdir().expect("a directory");
    let (_node, caller) = with_gpt(&dir, &upstream, "").await;
    let answer = caller.post(Route::Chat.path(), r#"{"model":"gpt","stream":true,"messages":[]}"#).await;
    assert_eq!(answer.text(), events.concat());
}

/// Covers: PR-9.
#[tokio::test]
async fn members_that_would_choose_the_upstream_are_refused() {
    let upstream = ScriptedUpstream::always(Answer::json(200, "{}")).await;
    let dir = tempdir().expect("a directory");
    let (_node, caller) = with_gpt(&dir, &upstream, "").await;
    for member in ["api_key", "api_base", "base_url"] {
        for route in Route::ALL {
            let body = json!({"model": "gpt", "input": "hi", "messages": [], member: "https://evil.example"});
            let answer = caller.post(route.path(), body.to_string()).await;
            route.must_be(&answer, 400, "invalid_message");
            assert!(!answer.text().contains("evil"), "{}", answer.text());
            match route {
                Route::Messages => assert!(answer.text().contains(member), "{}", answer.text()),
                Route::Chat | Route::Responses | Route::Embeddings => {
                    assert_eq!(answer.json()["error"]["param"], member);
                }
            }
        }
    }
    assert_eq!(upstream.calls(), 0);
    // Inside of another member these names are the caller's data.
    let inner = r#"{"model":"gpt","messages":[],"metadata":{"api_key":"x","base_url":"y"}}"#;
    assert_eq!(caller.post(Route::Chat.path(), inner).await.status, 200);
    assert_eq!(upstream.only_request().body, inner);
}

/// Covers: PR-14.
#[tokio::test]
async fn malformed_body_is_refused() {
    let upstream = ScriptedUpstream::always(Answer::json(200, "{}")).await;
    let dir = tempdir().expect("a directory");
    let (_node, caller) = with_gpt(&dir, &upstream, "").await;
    let bodies: [&[u8]; 10] = [
        b"",
        b"gpt",
        b"[]",
        b"\"gpt\"",
        b"{\"model\":\"gpt\"",
        b"{\"model\":\"gpt\"} x",
        b"{\"messages\":[]}",
        b"{\"model\":7}",
        b"{\"model\":null}",
        b"{\"model\":\"gpt\",\"x\":\"\xff\"}",
    ];
    for body in bodies {
        for route in Route::ALL {
            let answer = caller.post(route.path(), body.to_vec()).await;
            route.must_be(&answer, 400, "invalid_message");
        }
    }
    assert_eq!(upstream.calls(), 0);
}

/// Covers: PR-9.
#[tokio::test]
async fn only_the_beta_query_of_messages_is_taken() {
    let upstream = ScriptedUpstream::start(|request| Route::of(&request.path).script(false)).await;
    let dir = tempdir().expect("a directory");
    let (_node, caller) = with_gpt(&dir, &upstream, "").await;
    let beta = format!("{}?beta=true", Route::Messages.path());
    assert_eq!(caller.post(&beta, Route::Messages.request("gpt", false)).await.status, 200);
    assert_eq!(upstream.only_request().query.as_deref(), Some("beta=true"));
    for route in Route::ALL {
        for query in ["api-version=1", "beta=true&x=1", "beta=false", "key=canary"] {
            let answer = caller.post(&format!("{}?{query}", route.path()), route.request("gpt", false)).await;
            route.must_be(&answer, 400, "invalid_message");
        }
        if route != Route::Messages {
            let answer = caller.post(&format!("{}?beta=true", route.path()), route.request("gpt", false)).await;
            route.must_be(&answer, 400, "invalid_message");
        }
    }
    assert_eq!(upstream.calls(), 1);
}
