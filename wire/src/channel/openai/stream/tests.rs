//! Streaming of answers: notifications in, events out.
use super::*;
use crate::channel::notification::CommandReply;
use crate::channel::notification::{ResetReason, RunSnapshot, SessionStateSnapshot};
use crate::channel::openai::collect::ChatCollector;
use serde_json::{Value, json};
use std::sync::Arc;
use turnway_core::id::{AgentId, Epoch, EventId, Seq, SessionId};
use turnway_core::private::Private;
use turnway_core::protocol::agent::TextKind;
use turnway_core::protocol::chunk::TextChunk;
use turnway_core::protocol::entry::{Entry, Fact, RunFact};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::time::Millis;

pub(crate) fn session() -> SessionId {
    SessionId::parse("s1").expect("a name")
}

pub(crate) fn run() -> RunId {
    RunId::parse(&format!("s1.{}", "a".repeat(26))).expect("a run")
}

fn other() -> RunId {
    RunId::parse(&format!("s1.{}", "b".repeat(26))).expect("a run")
}

pub(crate) fn head() -> ChatResponseHead {
    ChatResponseHead::new(&run(), &AgentId::parse("echo").expect("a name"), Millis(1_764_000_000_999))
}

fn fact_of(run_id: RunId, fact: Fact) -> Notification {
    let entry = Entry {
        id: EventId::default(),
        time: Millis(1),
        source: "turnway".into(),
        correlation_id: "c".into(),
        causation_id: None,
        traceparent: None,
        run_id: Some(run_id),
        fact,
    };
    Notification::Fact { session: session(), seq: Seq(1), epoch: Epoch(1), entry: Arc::new(entry), requested: false }
}

pub(crate) fn fact(fact: Fact) -> Notification {
    fact_of(run(), fact)
}

pub(crate) fn delta(attempt: u32, offset: u64, text: &str) -> Notification {
    let kind = TextKind::Text;
    let text = Private(Arc::from(text));
    Notification::Chunk { session: session(), chunk: TextChunk { run_id: run(), attempt, offset, kind, text } }
}

pub(crate) fn thought(text: &str) -> Notification {
    let kind = TextKind::Reasoning;
    let text = Private(Arc::from(text));
    Notification::Chunk { session: session(), chunk: TextChunk { run_id: run(), attempt: 1, offset: 0, kind, text } }
}

pub(crate) fn started(attempt: u32) -> Notification {
    let agent_id = AgentId::parse("echo").expect("a name");
    fact(match attempt {
        1 => Fact::Run(RunFact::Started {
            agent_id,
            attempt,
            request_id: None,
            deadline_ms: Millis(9),
            resumable: false,
        }),
        attempt => {
            Fact::Run(RunFact::Restarted { agent_id, attempt, reason: "owner_lost".to_owned(), resumable: false })
        }
    })
}

pub(crate) fn done(attempt: u32, text_bytes: u64, usage: Option<Value>) -> Notification {
    let stop_reason = StopReason::EndTurn;
    let usage = usage.map(Json);
    let text_sha256 = String::new();
    fact(Fact::Run(RunFact::Done { attempt, stop_reason, text_bytes, text_sha256, usage, host_run_id: None }))
}

pub(crate) fn reset(runs: Vec<RunSnapshot>) -> Notification {
    let active_agent = None;
    let agents = Vec::new();
    let snapshot = SessionStateSnapshot {
        handover: None,
        session: session(),
        state: "open",
        active_agent,
        agents,
        runs,
        seq: Seq(9),
        epoch: Epoch(1),
    };
    Notification::Reply(CommandReply::Subscribed {
        request_id: None,
        snapshot: Box::new(snapshot),
        reset: Some(ResetReason::Trimmed { floor: Seq(9) }),
    })
}

/// Returns a short form of the written events, after checking their heads.
fn words(text: &str) -> Vec<String> {
    text.split_terminator("\n\n")
        .map(|event| event.strip_prefix("data: ").expect("an event"))
        .map(|data| {
            let Ok(chunk) = serde_json::from_str::<Value>(data) else { return data.to_owned() };
            if let Some(error) = chunk.get("error") {
                return format!("error {}", error["code"].as_str().expect("a code"));
            }
            assert_eq!(chunk["id"], format!("chatcmpl-{}", run()));
            assert_eq!((&chunk["object"], &chunk["created"]), (&json!("chat.completion.chunk"), &json!(1_764_000_000)));
            assert_eq!(chunk["model"], "agent/echo");
            let Some(choice) = chunk["choices"].get(0) else { return format!("usage {}", chunk["usage"]) };
            format!("{} {}", choice["delta"], choice["finish_reason"])
        })
        .collect()
}

fn tell(chunks: &mut ChatStream, notes: &[Notification]) -> Vec<String> {
    let mut text = String::new();
    notes.iter().for_each(|note| chunks.push(note, &mut text));
    words(&text)
}

fn chunks() -> ChatStream {
    ChatStream::new(head(), run(), 0, false)
}

const OPEN: &str = r#"{"content":"","role":"assistant"} null"#;

/// Covers: ST-41, ST-23.
#[test]
fn answer_is_streamed_as_chunks_and_done() {
    let mut chunks = chunks();
    assert!(!chunks.has_begun());
    let shown = tell(
        &mut chunks,
        &[
            started(1),
            thought("hm"),
            delta(1, 0, "he"),
            fact_of(
                other(),
                Fact::Run(RunFact::Cancelled { attempt: 1, reason: "x".into(), forced: false, text_bytes: 0 }),
            ),
            // A repeated piece, and a piece that overlaps it.
            delta(1, 0, "he"),
            delta(1, 1, "ello"),
            done(1, 5, Some(json!({ "prompt_tokens": 1, "completion_tokens": 2 }))),
            delta(1, 5, "late"),
        ],
    );
    let said = [
        OPEN,
        r#"{"reasoning_content":"hm"} null"#,
        r#"{"content":"he"} null"#,
        r#"{"content":"llo"} null"#,
        r#"{} "stop""#,
        "[DONE]",
    ];
    assert_eq!(shown, said);
    assert!(chunks.is_finished() && chunks.has_begun() && chunks.error_before_start().is_none());
}

/// Covers: ST-41.
#[test]
fn requested_usage_is_the_last_chunk() {
    let shown = |usage: Option<Value>| {
        let mut chunks = ChatStream::new(head(), run(), 0, true);
        let mut text = String::new();
        for note in [started(1), done(1, 0, usage)] {
            chunks.push(&note, &mut text);
        }
        assert_eq!(text.matches(r#""usage":null"#).count(), 2, "{text}");
        words(&text)
    };
    let usage = r#"usage {"completion_tokens":2,"prompt_tokens":1,"total_tokens":3}"#;
    let counted = json!({ "prompt_tokens": 1, "completion_tokens": 2 });
    assert_eq!(shown(Some(counted)), [OPEN, r#"{} "stop""#, usage, "[DONE]"]);
    assert_eq!(shown(Some(json!({ "tokens": 3 }))), [OPEN, r#"{} "stop""#, "[DONE]"]);
    assert_eq!(shown(None), [OPEN, r#"{} "stop""#, "[DONE]"]);
}

#[test]
fn each_end_maps_to_a_finish_reason() {
    let all = [
        (StopReason::EndTurn, "stop"),
        (StopReason::MaxTokens, "length"),
        (StopReason::Refusal, "content_filter"),
        (StopReason::Error, "stop"),
    ];
    for (stop_reason, word) in all {
        let text_sha256 = String::new();
        let usage = None;
        let end = fact(Fact::Run(RunFact::Done {
            attempt: 1,
            stop_reason,
            text_bytes: 0,
            text_sha256,
            usage,
            host_run_id: None,
        }));
        let shown = tell(&mut chunks(), &[started(1), end]);
        assert_eq!(shown[1..], [format!("{{}} \"{word}\""), "[DONE]".to_owned()]);
    }
}

/// Covers: protocol.md §1 (the OpenAI-compatible front), ST-41.
#[test]
fn restarted_turn_ends_a_started_stream() {
    let mut begun = chunks();
    let shown = tell(&mut begun, &[started(1), delta(1, 0, "he"), started(2), delta(2, 0, "hello"), done(2, 5, None)]);
    assert_eq!(shown, [OPEN, r#"{"content":"he"} null"#, "error owner_lost"]);
    assert!(begun.is_finished());
    // No output was sent yet, so a restart needs no error.
    let mut silent = chunks();
    let shown = tell(&mut silent, &[started(1), thought("hm"), started(2), delta(2, 0, "hello"), done(2, 5, None)]);
    assert_eq!(shown[2..], [r#"{"content":"hello"} null"#, r#"{} "stop""#, "[DONE]"]);
    // A delta of the next attempt has the same effect as the fact that starts the attempt.
    let shown = tell(&mut chunks(), &[started(1), delta(1, 0, "he"), delta(2, 0, "hello")]);
    assert_eq!(shown[2..], ["error owner_lost"]);
}

/// Covers: ST-35: a repeated call is answered from the present attempt on.
#[test]
fn repeated_call_starts_with_the_current_attempt() {
    let all = [started(1), delta(1, 0, "he"), started(2), delta(2, 0, "hello"), done(2, 5, None)];
    let whole = [OPEN, r#"{"content":"hello"} null"#, r#"{} "stop""#, "[DONE]"];
    assert_eq!(tell(&mut ChatStream::new(head(), run(), 2, false), &all), whole);
    assert_eq!(tell(&mut chunks().hold_until_end(), &all), whole);
    let failed = |code| {
        fact(Fact::Run(RunFact::Failed {
            attempt: 1,
            code,
            message: "x".into(),
            agent_code: None,
            retry_after_ms: None,
            agent_body: None,
            text_bytes: 2,
        }))
    };
    let mut held = chunks().hold_until_end();
    assert!(tell(&mut held, &[started(1), delta(1, 0, "he"), failed(Code::OwnerLost)]).is_empty());
    assert_eq!(held.error_before_start().map(|error| (error.status, error.retryable)), Some((503, false)));
}

/// Covers: ST-41.
#[test]
fn error_has_a_status_before_text_and_is_streamed_after() {
    let failed = || {
        let message = "away".to_owned();
        let agent_code = None;
        fact(Fact::Run(RunFact::Failed {
            attempt: 1,
            code: Code::AgentUnavailable,
            message,
            agent_code,
            retry_after_ms: None,
            agent_body: None,
            text_bytes: 0,
        }))
    };
    let cancelled =
        || fact(Fact::Run(RunFact::Cancelled { attempt: 1, reason: "user".into(), forced: false, text_bytes: 2 }));
    let refused = || {
        Notification::Reply(CommandReply::Refused {
            request_id: None,
            session: None,
            run_id: None,
            refusal: Refusal::not_found(),
        })
    };
    for (note, status, code) in [
        (failed(), 503, "agent_unavailable"),
        (cancelled(), 409, "cancelled"),
        (refused(), 404, "not_found"),
        (reset(Vec::new()), 404, "not_found"),
        (done(1, 7, None), 500, "internal_error"),
    ] {
        let mut early = chunks();
        assert!(tell(&mut early, &[started(1), note.clone()]).is_empty());
        assert!(early.is_finished() && early.error_before_start().map(|error| error.status) == Some(status), "{code}");
        let mut late = chunks();
        let shown = tell(&mut late, &[started(1), delta(1, 0, "he"), note]);
        assert_eq!(shown.last(), Some(&format!("error {code}")));
        assert!(late.is_finished() && late.error_before_start().is_none());
    }
    let mut opened = chunks();
    let mut text = String::new();
    opened.send_first_chunk(&mut text);
    opened.send_first_chunk(&mut text);
    opened.abort(ChatError::new(Code::Draining, "this node is draining; retry on another node"), &mut text);
    opened.abort(ChatError::new(Code::Draining, "this node is draining; retry on another node"), &mut text);
    assert_eq!(words(&text), [OPEN, "error draining"]);
}

/// Covers: ST-41: an answer with a gap is never reported as complete.
#[test]
fn missing_text_is_an_internal_error() {
    let shown = tell(&mut chunks(), &[started(1), delta(1, 0, "he"), delta(1, 4, "o"), done(1, 5, None)]);
    assert_eq!(shown[2..], ["error internal_error"]);
    let shown = tell(&mut chunks(), &[started(1), delta(1, 0, "he"), done(1, 5, None)]);
    assert_eq!(shown[2..], ["error internal_error"]);
}

#[test]
fn open_turn_continues_after_a_trimmed_log() {
    let agent_id = AgentId::parse("echo").expect("a name");
    let open = RunSnapshot {
        run_id: run(),
        agent_id,
        user: turnway_core::id::UserId::local(),
        state: "RUNNING",
        attempt: 1,
        text_bytes: 0,
    };
    let notes = [reset(vec![open]), delta(1, 0, "hello"), done(1, 5, None)];
    assert_eq!(tell(&mut chunks(), &notes)[1..], [r#"{"content":"hello"} null"#, r#"{} "stop""#, "[DONE]"]);
    let mut whole = ChatCollector::new(head(), run());
    notes.iter().for_each(|note| whole.push(note));
    assert!(whole.response().is_some_and(|answer| answer.is_ok()));
}
