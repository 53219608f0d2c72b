//! A log read backwards, from its end or from any other position.
use super::*;
use serde_json::{Value, json};
use turnway_core::id::EventId;
use turnway_core::protocol::agent::StopReason;
use turnway_core::protocol::entry::Admission;
use turnway_core::protocol::input::{Message, Role, Strategy};

fn agent(id: &str) -> AgentId {
    AgentId::parse(id).expect("a name")
}

fn run(letter: &str) -> RunId {
    RunId::parse(&format!("s1.{}", letter.repeat(26))).expect("a run")
}

fn entry(letter: &str, fact: Fact) -> Arc<Entry> {
    Arc::new(Entry {
        id: EventId::default(),
        time: Millis(5),
        source: "turnway".into(),
        correlation_id: "c".into(),
        causation_id: None,
        traceparent: None,
        run_id: Some(run(letter)),
        fact,
    })
}

fn asked(letter: &str) -> Arc<Entry> {
    let content = Content::Text(format!("{letter}?"));
    entry(
        letter,
        Fact::Input(InputFact::UserMessage {
            message_id: MessageId::parse(letter).expect("a name"),
            request_id: None,
            user: UserId::parse("ann").expect("a name"),
            message: Message { role: Role::User, content },
            history_sha256: None,
            agent_id: None,
            strategy: Strategy::Enqueue,
            metadata: None,
            origin: None,
        }),
    )
}

fn admitted(letter: &str) -> Arc<Entry> {
    entry(
        letter,
        Fact::Input(InputFact::Admitted {
            agent_id: agent("a"),
            strategy: Admission::Run,
            position: None,
            host_run_id: None,
            replaces: None,
        }),
    )
}

fn started(letter: &str, attempt: u32) -> Arc<Entry> {
    let agent_id = agent("a");
    let reason = String::new();
    let fact = match attempt {
        1 => Fact::Run(RunFact::Started {
            agent_id,
            attempt,
            request_id: None,
            deadline_ms: Millis(9),
            resumable: false,
        }),
        _ => Fact::Run(RunFact::Restarted { agent_id, attempt, reason, resumable: false }),
    };
    entry(letter, fact)
}

fn text(letter: &str, attempt: u32, offset: u64, text: &str) -> Arc<Entry> {
    entry(letter, Fact::Run(RunFact::TextDelta { attempt, offset, text: Private(text.to_owned()), mark: None }))
}

fn done(letter: &str, attempt: u32, text_bytes: u64) -> Arc<Entry> {
    let stop_reason = StopReason::EndTurn;
    let text_sha256 = String::new();
    entry(
        letter,
        Fact::Run(RunFact::Done { attempt, stop_reason, text_bytes, text_sha256, usage: None, host_run_id: None }),
    )
}

fn cancelled(letter: &str, attempt: u32, text_bytes: u64) -> Arc<Entry> {
    cancelled_by("user", letter, attempt, text_bytes)
}

fn cancelled_by(reason: &str, letter: &str, attempt: u32, text_bytes: u64) -> Arc<Entry> {
    entry(letter, Fact::Run(RunFact::Cancelled { attempt, reason: reason.to_owned(), forced: false, text_bytes }))
}

fn taken_in(letter: &str, host: &str) -> Arc<Entry> {
    let stop_reason = StopReason::Steered;
    let text_sha256 = String::new();
    let host_run_id = Some(run(host));
    entry(
        letter,
        Fact::Run(RunFact::Done { attempt: 0, stop_reason, text_bytes: 0, text_sha256, usage: None, host_run_id }),
    )
}

/// Returns three turns: one with a restart and more text than counts, one that waits and never starts, and one that
/// is cancelled halfway.
fn log() -> Vec<Arc<Entry>> {
    vec![
        asked("a"),
        admitted("a"),
        started("a", 1),
        text("a", 1, 0, "lost"),
        asked("b"),
        admitted("b"),
        started("a", 2),
        text("a", 2, 0, "grüß "),
        text("a", 2, 7, "dich, and more"),
        cancelled("b", 0, 0),
        done("a", 2, 11),
        asked("c"),
        admitted("c"),
        started("c", 1),
        text("c", 1, 0, "a part"),
        cancelled("c", 1, 6),
    ]
}

/// Reads the log from before a position; returns the messages in short form, and whether there are more.
fn read(log: &[Arc<Entry>], before: usize, limit: usize, bytes_max: usize) -> (Vec<String>, bool) {
    let mut transcript = Transcript::new(limit, bytes_max);
    for (n, entry) in log.iter().enumerate().take(before - 1).rev() {
        transcript.push_older(Seq(n as u64 + 1), entry);
        if transcript.is_done() {
            break;
        }
    }
    let TranscriptPage { messages, before: next, .. } = transcript.finish();
    let short = |message: &TranscriptMessage| {
        let by = match &message.by {
            TranscriptAuthor::User { .. } => "user".to_owned(),
            TranscriptAuthor::Assistant { status, trimmed, .. } => {
                format!("{status}{}", if *trimmed { ", trimmed" } else { "" })
            }
        };
        format!("{} {by}: {}", message.seq.0, message.content.plain_text())
    };
    (messages.iter().map(short).collect(), next.is_some())
}

const ALL: [&str; 6] =
    ["1 user: a?", "5 user: b?", "10 cancelled: ", "11 completed: grüß dich", "12 user: c?", "16 cancelled: a part"];

/// Covers: MP-H13, ST-17.
#[test]
fn each_turn_is_an_input_and_an_answer() {
    assert_eq!(read(&log(), 17, 50, usize::MAX), (ALL.map(str::to_owned).to_vec(), false));
    let mut transcript = Transcript::new(9, usize::MAX);
    for (n, entry) in log().iter().enumerate().rev() {
        transcript.push_older(Seq(n as u64 + 1), entry);
    }
    let messages = transcript.finish().messages;
    let expected = json!({"seq": 11, "run_id": run("a"), "role": "assistant", "status": "completed",
        "agent_id": "a", "content": "grüß dich", "ts": 5});
    assert_eq!(serde_json::to_value(&messages[3]).expect("JSON"), expected);
    let expected = json!({"seq": 12, "run_id": run("c"), "role": "user", "user_id": "ann", "message_id": "c",
        "content": "c?", "ts": 5});
    assert_eq!(serde_json::to_value(&messages[4]).expect("JSON"), expected);
    // A turn that never started names its intended agent.
    let agent: Value = serde_json::to_value(&messages[2]).expect("JSON");
    assert_eq!(agent["agent_id"], "a");
}

/// Covers: MP-H13.
#[test]
fn transcript_pages_join_to_the_whole() {
    for limit in 1..=6 {
        let mut whole = Vec::new();
        let mut before = 17;
        loop {
            let (page, more) = read(&log(), before, limit, usize::MAX);
            assert!(page.len() == limit || !more, "{page:?}");
            before = page[0].split(' ').next().and_then(|seq| seq.parse().ok()).expect("a place");
            whole.splice(0..0, page);
            if !more {
                break;
            }
        }
        assert_eq!(whole, ALL, "{limit} at a time");
    }
}

#[test]
fn page_is_bounded_but_has_at_least_one_message() {
    assert_eq!(read(&log(), 17, 50, 1), (vec![ALL[5].to_owned()], true));
    assert_eq!(read(&log(), 12, 50, 515), (vec![ALL[3].to_owned()], true));
    assert_eq!(read(&log(), 17, 50, 1040).0.len(), 2);
}

#[test]
fn answer_with_a_trimmed_start_is_marked() {
    let log = log();
    let mut transcript = Transcript::new(9, usize::MAX);
    for (n, entry) in log.iter().enumerate().skip(8).take(3).rev() {
        transcript.push_older(Seq(n as u64 + 1), entry);
    }
    let found = transcript.finish();
    let answer = serde_json::to_value(&found.messages[1]).expect("JSON");
    assert_eq!((&answer["content"], &answer["trimmed"]), (&"dich".into(), &true.into()));
}

/// Returns a log with a rollback: `d` rolls back `a` and with it `b`, which `a` had absorbed; `c` waited meanwhile.
fn undone() -> Vec<Arc<Entry>> {
    vec![
        asked("a"),
        started("a", 1),
        text("a", 1, 0, "wrong"),
        asked("b"),
        asked("c"),
        asked("d"),
        cancelled_by("rollback", "a", 1, 5),
        taken_in("b", "a"),
        started("d", 1),
        text("d", 1, 0, "right"),
        done("d", 1, 5),
        started("c", 1),
        text("c", 1, 0, "late"),
        done("c", 1, 4),
    ]
}

/// Covers: ST-6.
#[test]
fn rolled_back_turns_are_left_out() {
    let whole = ["5 user: c?", "6 user: d?", "11 completed: right", "14 completed: late"];
    assert_eq!(read(&undone(), 15, 50, usize::MAX), (whole.map(str::to_owned).to_vec(), false));
    // A page that starts before the rollback cannot know of it, and lists the turns concerned.
    for (before, unended) in [(7, vec!["a", "b", "c", "d"]), (8, vec!["b", "c", "d"]), (12, vec!["c"])] {
        let mut transcript = Transcript::new(50, usize::MAX);
        for (n, entry) in undone().iter().enumerate().take(before - 1).rev() {
            transcript.push_older(Seq(n as u64 + 1), entry);
        }
        assert_eq!(transcript.finish().without_end, unended.into_iter().map(run).collect::<Vec<_>>());
    }
}
