//! A well-behaved agent: its requests, its events and their order.
use crate::world::{World, done, order, token_run};
use bytes::Bytes;
use serde_json::json;
use std::time::{Duration, Instant};
use turnway_core::private::Private;
use turnway_core::protocol::agent::{AgentEvent, AgentFailure, StopReason, TextKind};
use turnway_core::protocol::history::History;
use turnway_core::protocol::input::Content;
use turnway_core::protocol::json::Json;
use turnway_tests::real::PATIENCE;

/// Covers: MP-E1, SR-A4, SR-S10, MP-G1, MP-G2, SR-A9, SR-K1, EV-E2.
#[tokio::test]
async fn invoke_request_has_the_documented_form() {
    let mut world = World::new("").await;
    let ask = order("a", "m1", "hi \u{1F980}");
    world.invoke(ask.clone());
    let call = world.call().await;
    assert_eq!((call.head.method.as_str(), call.head.uri.path()), ("POST", "/base/invoke"));
    for (name, value) in [
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("x-tenant-id", "default"),
        ("x-session-id", "s1"),
        ("x-run-id", ask.run_id.as_str()),
        ("x-run-attempt", "2"),
        ("x-owner-epoch", "7"),
        ("idempotency-key", ask.run_id.as_str()),
        ("content-type", "application/json"),
        ("accept", "text/event-stream"),
    ] {
        assert_eq!(call.header(name), value, "{name}");
    }
    let body: serde_json::Value = serde_json::from_slice(&call.body).expect("JSON");
    let expected = json!({
        "agent_id": "a",
        "session_id": "s1",
        "run_id": ask.run_id.as_str(),
        "input_message": { "role": "user", "content": "hi \u{1F980}" },
        "context": { "tenant": "default", "user_id": "ann" },
    });
    assert_eq!(body, expected);
    let token = call.token();
    assert_eq!(world.agents.tokens().verify(&token), Some(token_run(&ask)));
    // The response head alone acknowledges the input.
    let stream = call.stream();
    world.expect(&ask, AgentEvent::Acked).await;
    stream.done().await;
    world.expect(&ask, done()).await;
    world.until_idle().await;
}

/// Covers: MP-G3, LN-MP28: the input is not among the earlier messages.
#[tokio::test]
async fn earlier_messages_are_forwarded_unchanged() {
    let mut world = World::new("").await;
    let earlier = json!([{ "role": "system", "content": "be brief" }, { "role": "assistant", "content": null,
        "tool_calls": [{ "id": "c1", "type": "function", "function": { "name": "f", "arguments": "{}" } }] }]);
    let mut ask = order("a", "m1", "hi");
    ask.history = History::from_messages(earlier.as_array().expect("a list")).ok();
    world.invoke(ask.clone());
    let call = world.call().await;
    let body: serde_json::Value = serde_json::from_slice(&call.body).expect("JSON");
    assert_eq!(body["messages"], earlier);
    assert_eq!(body["input_message"], json!({ "role": "user", "content": "hi" }));
    call.reply(200, "text/event-stream", "event: done\ndata: {}\n\n");
    world.expect(&ask, AgentEvent::Acked).await;
    world.expect(&ask, done()).await;
}

/// Covers: SR-A4, SR-G8, MP-G1, MP-G2, ST-37.
#[tokio::test]
async fn missing_trace_is_generated_and_parts_pass_unchanged() {
    let mut world = World::new("").await;
    let parts = json!([{ "type": "text", "text": "hi" }, { "type": "image_url", "image_url": { "url": "x" } }]);
    for (message, given) in [("m1", None), ("m2", Some("no trace\r\nx-evil: 1"))] {
        let mut ask = order("a", message, "");
        ask.traceparent = given.map(str::to_owned);
        ask.message.content = Content::Parts(parts.as_array().expect("a list").clone());
        world.invoke(ask.clone());
        let call = world.call().await;
        let trace = call.header("traceparent").to_owned();
        assert!(trace.len() == 55 && trace.starts_with("00-"), "{trace}");
        assert!(!call.head.headers.contains_key("x-evil"));
        let body: serde_json::Value = serde_json::from_slice(&call.body).expect("JSON");
        assert_eq!(body["input_message"]["content"], parts);
        call.reply(200, "text/event-stream", "event: done\ndata: {}\n\n");
        world.expect(&ask, AgentEvent::Acked).await;
        world.expect(&ask, done()).await;
    }
}

/// Covers: SR-S8, SR-G8, MP-G4, MP-G6, MP-G9.
#[tokio::test]
async fn text_is_reassembled_from_pieces_of_any_size() {
    let mut world = World::new("").await;
    let wanted = "Grüße, 世界 \u{1F980}\u{1F1E9}\u{1F1EA}!\n\t\"end\"";
    for end in ["\n", "\r\n", "\r"] {
        let mut wire = format!(": hello{end}{end}retry: 3{end}");
        for letter in wanted.chars() {
            let data = json!({ "text": letter.to_string() });
            wire.push_str(&format!("event: delta{end}id: 1{end}data:{data}{end}{end}"));
        }
        wire.push_str(&format!("event:done{end}data: {{\"usage\":{end}data: {{\"tokens\":3}}}}{end}{end}"));
        for size in [1, 2, 3, 7, 64, wire.len()] {
            let ask = order("a", &format!("{end:?} {size}"), "hi");
            let (stream, _) = world.begin(&ask).await;
            let pieces: Vec<Bytes> = wire.as_bytes().chunks(size).map(Bytes::copy_from_slice).collect();
            let writer = tokio::spawn(async move {
                for piece in pieces {
                    stream.send(piece).await;
                }
            });
            let (text, last) = world.text(&ask).await;
            assert_eq!(text, wanted, "{end:?}, pieces of {size}");
            let usage = Some(Json(json!({ "tokens": 3 })));
            assert_eq!(last, AgentEvent::Done { stop: StopReason::EndTurn, usage });
            writer.await.expect("all is taken");
        }
    }
}

/// Covers: SR-G8, SR-S8, MP-G4, MP-G5, MP-G6, ST-19, ST-23, LN-TP11.
#[tokio::test]
async fn each_kind_of_event_is_reported_in_order() {
    let mut world = World::new("").await;
    let ask = order("a", "m1", "hi");
    let (stream, _) = world.begin(&ask).await;
    stream.send("event: state\ndata: {\"state\":\"thinking\",\"detail\":{\"step\":1}}\n\n").await;
    stream.send("event: delta\ndata: {\"text\":\"hm\",\"kind\":\"reasoning\"}\n\n").await;
    stream.send(format!("event: delta\ndata: {{\"text\":\"yes\",\"run_id\":\"{}\"}}\n\n", ask.run_id)).await;
    stream.send("event: vote\ndata: {}\n\nevent: surprise\ndata: ?\n\ndata: [DONE]\n\n").await;
    stream.send("event: done\ndata: {\"stop_reason\":\"max_tokens\",\"usage\":{\"out\":2}}\n\n").await;
    let detail = Some(Json(json!({ "step": 1 })));
    world.expect(&ask, AgentEvent::State { state: "thinking".to_owned(), detail, id: None }).await;
    let hm = Private("hm".to_owned());
    world.expect(&ask, AgentEvent::Delta { kind: TextKind::Reasoning, text: hm, id: None }).await;
    world.expect(&ask, AgentEvent::Delta { kind: TextKind::Text, text: Private("yes".to_owned()), id: None }).await;
    let usage = Some(Json(json!({ "out": 2 })));
    world.expect(&ask, AgentEvent::Done { stop: StopReason::MaxTokens, usage }).await;
    assert_eq!(world.agents.unknown_events(), 3);
}

/// Treats everything that an agent sends as text of its own run: nothing in it reaches another run, or opens,
/// cancels or decides anything.
///
/// Covers: S-29, SR-S6, LN-SR12, LN-SR7.
#[tokio::test]
async fn agent_output_is_never_interpreted_as_a_command() {
    let mut world = World::new("").await;
    let ask = order("a", "m1", "hi");
    let other = order("a", "m2", "hi");
    let (_held, _) = world.begin(&other).await;
    let (stream, _) = world.begin(&ask).await;
    let orders = [
        "event: message\ndata: {\"target\":\"FRONTEND\",\"text\":\"look\"}\n\n",
        "event: cancel\ndata: {}\n\n",
        "event: cancel_run\ndata: {\"run_id\":\"RUN\"}\n\n",
        "event: session_close\ndata: {\"session_id\":\"s\"}\n\n",
        "event: approval_decision\ndata: {\"decision\":\"approve\"}\n\n",
        "event: run.cancelled\ndata: {\"run_id\":\"RUN\"}\n\n",
    ];
    for text in orders {
        stream.send(text.replace("RUN", other.run_id.as_str())).await;
    }
    let foreign = json!({ "text": "mine", "session_id": "other", "user": "root" });
    stream.send(format!("event: delta\ndata: {foreign}\n\n")).await;
    let frame = "{\"type\":\"done\"}\n\nevent: done\ndata: {}\n\n";
    stream.delta(frame).await;
    stream.done().await;
    let (text, end) = world.text(&ask).await;
    assert_eq!((text, end), (format!("mine{frame}"), done()), "all of it is text of the run it was asked for");
    assert_eq!(world.agents.unknown_events(), orders.len() as u64);
    assert_eq!(world.agents.running(), 1, "the other run goes on");
    assert!(world.reports.try_recv().is_err(), "and nothing was reported of it");
}

/// Covers: MP-G7, S-38.
#[tokio::test]
async fn agent_error_keeps_its_code_and_debug_hides_content() {
    let mut world = World::new("").await;
    let ask = order("a", "m1", "hi");
    let (stream, _) = world.begin(&ask).await;
    stream.delta("canary").await;
    stream.send("event: error\ndata: {\"code\":\"quota\",\"message\":\"canary\"}\n\n").await;
    let text = world.report().await;
    let end = world.report().await;
    assert!(!format!("{text:?} {end:?} {:?}", world.agents).contains("canary"));
    let code = "quota".to_owned();
    let failure = AgentFailure::Reported { code, message: Private("canary".to_owned()) };
    assert_eq!(end.event, AgentEvent::Failed(failure));
    world.until_idle().await;
}

/// Covers: LN-SR12, MP-G6 (one end), SR-G7.
#[tokio::test]
async fn events_after_the_end_are_dropped() {
    let mut world = World::new("").await;
    for first in ["event: done\ndata: {}\n\n", "event: error\ndata: {\"code\":\"x\",\"message\":\"\"}\n\n"] {
        let ask = order("a", first, "hi");
        let (stream, _) = world.begin(&ask).await;
        let more = "event: delta\ndata: {\"text\":\"late\"}\n\nevent: done\ndata: {}\n\nevent: error\ndata: {}\n\n";
        stream.send(format!("{first}{more}")).await;
        drop(stream);
        let end = world.event(&ask).await;
        assert!(matches!(end, AgentEvent::Done { .. } | AgentEvent::Failed(AgentFailure::Reported { .. })));
        world.until_idle().await;
        assert!(world.reports.try_recv().is_err());
    }
}

/// Returns the connection of one answer to the pool for the next, also where the body ends after its last
/// event.
#[tokio::test]
async fn connection_is_reused_after_the_end() {
    let mut world = World::new("").await;
    let mut peers = std::collections::BTreeSet::new();
    // A connection returns to the pool a moment after its answer, so not each attempt finds one.
    for message in 0..100 {
        let ask = order("a", &message.to_string(), "hi");
        world.invoke(ask.clone());
        let call = world.call().await;
        let is_new = peers.insert(call.peer);
        let stream = call.stream();
        world.expect(&ask, AgentEvent::Acked).await;
        stream.send("event: done\ndata: {}\n\n").await;
        world.expect(&ask, done()).await;
        world.until_idle().await;
        drop(stream);
        if !is_new {
            return;
        }
    }
    panic!("each attempt opened a connection of its own");
}

/// Counts comments, unknown events, `retry` lines, empty pieces and bytes of an unfinished event as signs of
/// life, and as nothing else.
///
/// Covers: MP-G4.
#[tokio::test]
async fn any_byte_from_an_agent_is_a_sign_of_life() {
    let mut world = World::new(",silence=160ms").await;
    let signs = [
        ": ping\n\n",
        "event: ping\ndata: {}\n\n",
        "retry: 3\n\n",
        "event: delta\ndata: {\"text\":\"\"}\n\n",
        "event: delta\ndata: {\"kind\":\"reasoning\",\"text\":\"\"}\n\n",
        ": a line without an end ",
    ];
    for sign in signs {
        let ask = order("a", sign, "hi");
        let (stream, _) = world.begin(&ask).await;
        // A sign that follows another too soon is not reported; many at once would exceed the size of an
        // event.
        let begun = Instant::now();
        loop {
            stream.send(sign).await;
            if tokio::time::timeout(Duration::from_millis(20), world.alive()).await.is_ok() {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "{sign:?} is none");
        }
        stream.send("\n\n").await;
        stream.done().await;
        assert_eq!(world.text(&ask).await, (String::new(), done()), "{sign:?}");
    }
}

/// Joins surrogate halves, since a JavaScript agent may cut its text between them, and passes numbers of any
/// size unchanged.
///
/// Covers: MP-G4, MP-G5.
#[tokio::test]
async fn surrogate_halves_are_joined_and_numbers_unchanged() {
    let mut world = World::new("").await;
    let ask = order("a", "m1", "hi");
    let (stream, _) = world.begin(&ask).await;
    for text in [r"a\ud83d", r"\ude00b\ud83d", "c"] {
        stream.send(format!("event: delta\ndata: {{\"text\":\"{text}\"}}\n\n: ping\n\n")).await;
    }
    let numbers = "[1e400,123456789012345678901234567890,1.50]";
    stream.send(format!("event: state\ndata: {{\"state\":\"s\",\"detail\":{numbers}}}\n\n")).await;
    stream.send(format!("event: done\ndata: {{\"usage\":{numbers}}}\n\n")).await;
    let mut said = String::new();
    let told = loop {
        let event = world.event(&ask).await;
        let AgentEvent::Delta { text, .. } = event else { break event };
        said.push_str(text.reveal());
    };
    let AgentEvent::State { detail, .. } = told else { panic!("unexpected {told:?}") };
    assert_eq!(said, "a\u{1F600}b\u{FFFD}c");
    assert_eq!(detail.map(|detail| detail.text()).as_deref(), Some(numbers));
    let AgentEvent::Done { usage, .. } = world.event(&ask).await else { panic!("the end") };
    assert_eq!(usage.map(|usage| usage.text()).as_deref(), Some(numbers));
}

/// Keeps the text of one report within a checkpoint, and cuts it between characters.
#[tokio::test]
async fn large_deltas_are_split() {
    let mut world = World::new("").await;
    let ask = order("a", "m1", "hi");
    let (stream, _) = world.begin(&ask).await;
    let wanted = format!("x{}", "世".repeat(20_000));
    stream.delta(&wanted).await;
    stream.done().await;
    let mut all = String::new();
    let end = loop {
        let event = world.event(&ask).await;
        let AgentEvent::Delta { text, .. } = event else { break event };
        assert!(text.reveal().len() <= turnway::agent::DELTA_TEXT_BYTES_MAX);
        all.push_str(text.reveal());
    };
    assert!(all == wanted && end == done());
}
