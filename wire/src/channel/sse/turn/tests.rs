//! One turn for one reader: from its first message, or from any position, to its end.
use super::*;
use crate::channel::notification::{ResetReason, RunSnapshot, SessionStateSnapshot};
use serde_json::Value;
use std::sync::Arc;
use turnway_core::id::{AgentId, Epoch, EventId, MessageId, Seq, SessionId};
use turnway_core::private::Private;
use turnway_core::protocol::agent::StopReason;
use turnway_core::protocol::chunk::TextChunk;
use turnway_core::protocol::entry::Entry;
use turnway_core::protocol::refusal::Refusal;

fn run(letter: &str) -> RunId {
    RunId::parse(&format!("s1.{}", letter.repeat(26))).expect("a run")
}

fn session() -> SessionId {
    SessionId::parse("s1").expect("a name")
}

fn agent() -> AgentId {
    AgentId::parse("echo").expect("a name")
}

fn fact(seq: u64, epoch: u64, run_id: &RunId, fact: Fact) -> Notification {
    let entry = Entry {
        id: EventId::default(),
        time: Millis(1),
        source: "turnway".into(),
        correlation_id: run_id.as_str().into(),
        causation_id: None,
        traceparent: None,
        run_id: Some(run_id.clone()),
        fact,
    };
    Notification::Fact {
        session: session(),
        seq: Seq(seq),
        epoch: Epoch(epoch),
        entry: Arc::new(entry),
        requested: false,
    }
}

fn started(attempt: u32) -> Fact {
    Fact::Run(RunFact::Started {
        agent_id: agent(),
        attempt,
        request_id: None,
        deadline_ms: Millis(9),
        resumable: false,
    })
}

fn done(attempt: u32, text_bytes: u64) -> Fact {
    let stop_reason = StopReason::EndTurn;
    let text_sha256 = String::new();
    Fact::Run(RunFact::Done { attempt, stop_reason, text_bytes, text_sha256, usage: None, host_run_id: None })
}

fn delta(run_id: &RunId, attempt: u32, offset: u64, text: &str) -> Notification {
    let session = session();
    let run_id = run_id.clone();
    let text = Private(Arc::from(text));
    Notification::Chunk { session, chunk: TextChunk { run_id, attempt, offset, kind: TextKind::Text, text } }
}

/// Parses events as (id, message).
fn events(text: &str) -> Vec<(Option<String>, Value)> {
    let read = |event: &str| {
        let id = event.lines().find_map(|line| line.strip_prefix("id: "));
        let data = event.lines().find_map(|line| line.strip_prefix("data: ")).expect("data");
        (id.map(str::to_owned), serde_json::from_str(data).expect("JSON"))
    };
    text.split_terminator("\n\n").map(read).collect()
}

fn begin(run_id: &RunId, resume: Option<&str>) -> (TurnStream, String) {
    let message_id = MessageId::parse("m1").expect("a name");
    let accepted =
        AcceptedTurn { request_id: None, session: session(), run_id: run_id.clone(), message_id, duplicate: false };
    let resume = resume.map(|text| TurnCursor::parse(text).expect("a cursor"));
    let mut text = String::new();
    (TurnStream::begin(Millis(5), "fsync", accepted, resume, &mut text), text)
}

/// Returns the notifications of a session with two turns and a restart.
fn story() -> Vec<Notification> {
    let mine = run("a");
    let other = run("b");
    let restarted =
        Fact::Run(RunFact::Restarted { agent_id: agent(), attempt: 2, reason: "lost".to_owned(), resumable: false });
    vec![
        fact(3, 1, &other, started(1)),
        delta(&other, 1, 0, "not mine"),
        fact(4, 1, &other, done(1, 8)),
        fact(5, 1, &mine, started(1)),
        delta(&mine, 1, 0, "lost"),
        fact(6, 2, &mine, restarted),
        delta(&mine, 2, 0, "grüß "),
        delta(&mine, 2, 7, "dich"),
        fact(7, 2, &mine, done(2, 11)),
        fact(8, 2, &other, started(1)),
    ]
}

/// Returns the text that a reader has after these events: that of the last attempt.
fn text_of(events: &[(Option<String>, Value)]) -> String {
    let mut text = String::new();
    let mut attempt = Value::Null;
    for (_, message) in events {
        if message["type"] == "delta" {
            if message["attempt"] != attempt {
                text.clear();
                attempt = message["attempt"].clone();
            }
            assert_eq!(message["offset"], text.len(), "a gap or a repeat: {message}");
            text.push_str(message["text"].as_str().expect("text"));
        }
    }
    text
}

fn kinds(events: &[(Option<String>, Value)]) -> Vec<&str> {
    events.iter().filter_map(|(_, message)| message["type"].as_str()).collect()
}

/// Covers: MP-C8, MP-C14.
#[test]
fn turn_stream_shows_only_its_turn_to_the_end() {
    let (mut turn, mut text) = begin(&run("a"), None);
    for note in story() {
        if !turn.is_finished() {
            turn.push(Millis(5), &note, &mut text);
        }
    }
    let events = events(&text);
    assert_eq!(kinds(&events), ["turn_accepted", "run_started", "delta", "event", "delta", "delta", "done"]);
    assert_eq!(text_of(&events), "grüß dich");
    let ids: Vec<Option<&str>> = events.iter().map(|(id, _)| id.as_deref()).collect();
    let place = |at: &str| format!("{at}-aaaaaaaa");
    let expected = ["5-1-1-0", "5-1-1-4", "6-2-2-0", "6-2-2-7", "6-2-2-11", "7-2-2-11"].map(place);
    assert_eq!(ids[0], None, "nothing has been shown yet");
    assert_eq!(ids[1..], expected.each_ref().map(|id| Some(id.as_str())));
}

/// Covers: ST-2, RX-21.
#[test]
fn resumed_turn_stream_gets_the_rest_and_the_end() {
    let (mut turn, mut text) = begin(&run("a"), None);
    story().iter().for_each(|note| turn.push(Millis(5), note, &mut text));
    let whole = events(&text);
    for (n, (id, _)) in whole.iter().enumerate().skip(1) {
        let (mut turn, mut text) = begin(&run("a"), id.as_deref());
        story().iter().for_each(|note| turn.push(Millis(5), note, &mut text));
        let rest = events(&text);
        assert_eq!(rest[0].1["type"], "turn_accepted");
        // The events after the position are the same; after the end, only the end is repeated.
        let after = if n + 1 < whole.len() { &whole[n + 1..] } else { &whole[n..] };
        assert_eq!(&rest[1..], after, "after event {n}");
    }
}

/// Covers: ST-2, RX-21.
#[test]
fn resumed_text_is_cut_at_the_byte_between_characters() {
    for (offset, rest) in [(0, "grüß dich"), (1, "rüß dich"), (4, "ß dich"), (7, "dich"), (10, "h")] {
        let (mut turn, mut text) = begin(&run("a"), Some(&format!("6-2-2-{offset}-aaaaaaaa")));
        turn.push(Millis(5), &delta(&run("a"), 2, 0, "grüß dich"), &mut text);
        let events = events(&text);
        assert_eq!((&events[1].1["text"], &events[1].1["offset"]), (&rest.into(), &offset.into()));
    }
    // A correct reader is never in the middle of a code point; a reader that claims so receives the code point
    // whole.
    let (mut turn, mut text) = begin(&run("a"), Some("6-2-2-3-aaaaaaaa"));
    turn.push(Millis(5), &delta(&run("a"), 2, 0, "grüß"), &mut text);
    assert_eq!(events(&text)[1].1["text"], "üß");
    // Positions in an attempt that has ended, and beyond the available text.
    for (cursor, shown) in [("6-2-3-0-aaaaaaaa", 1), ("6-2-2-99-aaaaaaaa", 1), ("6-2-1-99-aaaaaaaa", 2)] {
        let (mut turn, mut text) = begin(&run("a"), Some(cursor));
        turn.push(Millis(5), &delta(&run("a"), 2, 0, "grüß"), &mut text);
        assert_eq!(events(&text).len(), shown, "{cursor}");
    }
}

#[test]
fn cursor_of_another_turn_is_ignored() {
    let (mut turn, mut text) = begin(&run("a"), Some("7-2-2-11-bbbbbbbb"));
    story().iter().for_each(|note| turn.push(Millis(5), note, &mut text));
    assert_eq!(events(&text).len(), 7);
}

/// After the store lost facts, rewritten facts have a later epoch than any that the reader saw.
#[test]
fn facts_of_a_later_epoch_are_sent_again() {
    let (mut turn, mut text) = begin(&run("a"), Some("6-2-2-5-aaaaaaaa"));
    turn.push(Millis(5), &fact(5, 1, &run("a"), started(1)), &mut text);
    let restarted =
        Fact::Run(RunFact::Restarted { agent_id: agent(), attempt: 2, reason: "lost".to_owned(), resumable: false });
    turn.push(Millis(5), &fact(6, 3, &run("a"), restarted), &mut text);
    turn.push(Millis(5), &delta(&run("a"), 2, 0, "anew"), &mut text);
    let events = events(&text);
    assert_eq!(kinds(&events), ["turn_accepted", "event", "delta"]);
    assert_eq!(events[2].1["text"], "anew");
}

#[test]
fn trimmed_log_is_reported_and_ends_the_ended_turn() {
    let snapshot = |runs| {
        let session = session();
        let state = "open";
        let active_agent = None;
        let agents = Vec::new();
        let snapshot = SessionStateSnapshot {
            session,
            state,
            active_agent,
            agents,
            runs,
            handover: None,
            seq: Seq(9),
            epoch: Epoch(4),
        };
        Notification::Reply(CommandReply::Subscribed {
            request_id: None,
            snapshot: Box::new(snapshot),
            reset: Some(ResetReason::Trimmed { floor: Seq(8) }),
        })
    };
    let open = RunSnapshot {
        run_id: run("a"),
        agent_id: agent(),
        user: turnway_core::id::UserId::local(),
        state: "RUNNING",
        attempt: 1,
        text_bytes: 0,
    };
    for (runs, is_over) in [(vec![open], false), (Vec::new(), true)] {
        let (mut turn, mut text) = begin(&run("a"), None);
        turn.push(Millis(5), &snapshot(runs), &mut text);
        assert_eq!(turn.is_finished(), is_over);
        assert_eq!(events(&text)[1].1["reason"], "trimmed");
    }
    let (mut turn, mut text) = begin(&run("a"), None);
    let session = Some(session());
    let refusal = Refusal::not_found();
    turn.push(
        Millis(5),
        &Notification::Reply(CommandReply::Refused { request_id: None, session, run_id: None, refusal }),
        &mut text,
    );
    assert!(turn.is_finished() && events(&text)[1].1["code"] == "not_found");
}
