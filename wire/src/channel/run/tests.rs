//! The state of a turn after each of its facts.
use super::*;
use serde_json::{Value, json};
use turnway_core::id::EventId;
use turnway_core::private::Private;
use turnway_core::protocol::entry::Admission;
use turnway_core::protocol::input::{Content, Message, Role, Strategy};

const RUN: &str = "s1.abcdefghijklmnopqrstuvwxyz";

fn entry(time: u64, fact: Fact) -> Entry {
    Entry {
        id: EventId::default(),
        time: Millis(time),
        source: "turnway".into(),
        correlation_id: "c".into(),
        causation_id: None,
        traceparent: None,
        run_id: RunId::parse(RUN).ok(),
        fact,
    }
}

fn agent() -> AgentId {
    AgentId::parse("a").expect("a name")
}

fn asked() -> Fact {
    Fact::Input(InputFact::UserMessage {
        message_id: MessageId::parse("m1").expect("a name"),
        request_id: None,
        user: UserId::parse("ann").expect("a name"),
        message: Message { role: Role::User, content: Content::Text("hi".to_owned()) },
        history_sha256: None,
        agent_id: None,
        strategy: Strategy::Enqueue,
        metadata: None,
        origin: None,
    })
}

fn after(facts: Vec<Fact>) -> Value {
    let mut run = RunView::new(RunId::parse(RUN).expect("a run"));
    for (n, fact) in (1..).zip(facts) {
        run.apply(Seq(n), &entry(n * 10, fact));
        let mut other =
            entry(1, Fact::Run(RunFact::Cancelled { attempt: 9, reason: String::new(), forced: false, text_bytes: 9 }));
        other.run_id = RunId::parse(&format!("s1.{}", "b".repeat(26))).ok();
        run.apply(Seq(n + 100), &other);
    }
    serde_json::to_value(&run).expect("JSON")
}

/// Covers: MP-D13.
#[test]
fn run_view_is_derived_from_its_facts() {
    let queued =
        json!({"run_id": RUN, "session_id": "s1", "status": "QUEUED", "attempt": 0, "text_bytes": 0, "seq": 0});
    assert_eq!(after(Vec::new()), queued);
    let reason = || "why".to_owned();
    let begun = || {
        vec![
            asked(),
            Fact::Input(InputFact::Admitted {
                agent_id: agent(),
                strategy: Admission::Run,
                position: None,
                host_run_id: None,
                replaces: None,
            }),
            Fact::Run(RunFact::Started {
                agent_id: agent(),
                attempt: 1,
                request_id: None,
                deadline_ms: Millis(9),
                resumable: false,
            }),
            Fact::Run(RunFact::AgentStarted { agent_id: agent(), attempt: 1 }),
            Fact::Run(RunFact::TextDelta { attempt: 1, offset: 0, text: Private("hö".to_owned()), mark: None }),
        ]
    };
    let status = |facts: Vec<Fact>| after(facts)["status"].clone();
    assert_eq!(status(begun()[..2].to_vec()), "QUEUED");
    assert_eq!(status(begun()[..3].to_vec()), "ROUTING");
    let running = after(begun());
    let expected = json!({"run_id": RUN, "session_id": "s1", "status": "RUNNING", "user_id": "ann", "message_id": "m1",
        "agent_id": "a", "attempt": 1, "text_bytes": 3, "created_ts": 10, "started_ts": 30, "seq": 5});
    assert_eq!(running, expected);
    let with = |fact: Fact| after([begun(), vec![fact]].concat());
    let restarted =
        with(Fact::Run(RunFact::Restarted { agent_id: agent(), attempt: 2, reason: reason(), resumable: false }));
    assert_eq!((&restarted["status"], &restarted["text_bytes"]), (&"ROUTING".into(), &0.into()));
    let cancelling = Fact::Run(RunFact::Cancelling { reason: reason(), deadline_ms: Millis(9), request_id: None });
    assert_eq!(with(cancelling)["status"], "CANCELLING");
    let usage = Some(Json(json!({"tokens": 1})));
    let stop_reason = StopReason::EndTurn;
    let text_sha256 = String::new();
    let done = with(Fact::Run(RunFact::Done {
        attempt: 1,
        stop_reason,
        text_bytes: 3,
        text_sha256,
        usage,
        host_run_id: None,
    }));
    assert_eq!(
        (&done["status"], &done["usage"]["tokens"], &done["ended_ts"]),
        (&"completed".into(), &1.into(), &60.into())
    );
    let code = Code::AgentTimeout;
    let message = "late".to_owned();
    let failed = with(Fact::Run(RunFact::Failed {
        attempt: 1,
        code,
        message,
        agent_code: None,
        retry_after_ms: None,
        agent_body: None,
        text_bytes: 3,
    }));
    assert_eq!(failed["error"], json!({"code": "agent_timeout", "message": "late", "retryable": true}));
    let cancelled = with(Fact::Run(RunFact::Cancelled { attempt: 1, reason: reason(), forced: true, text_bytes: 2 }));
    assert_eq!((&cancelled["status"], &cancelled["text_bytes"]), (&"cancelled".into(), &2.into()));
}

/// Covers: EV-T6.
#[test]
fn steered_input_names_its_host_run() {
    let host = || RunId::parse(&format!("s1.{}", "h".repeat(26))).ok();
    let admitted = |strategy, host_run_id| {
        Fact::Input(InputFact::Admitted { agent_id: agent(), strategy, position: None, host_run_id, replaces: None })
    };
    let handed = || vec![asked(), admitted(Admission::Steered, host())];
    assert_eq!(after(handed())["host_run_id"], json!(host()));
    let back = [handed(), vec![admitted(Admission::Queued, None)]].concat();
    assert_eq!(after(back).get("host_run_id"), None);
    let stop_reason = StopReason::Steered;
    let text_sha256 = String::new();
    let end = Fact::Run(RunFact::Done {
        attempt: 0,
        stop_reason,
        text_bytes: 0,
        text_sha256,
        usage: None,
        host_run_id: host(),
    });
    let ended = after([handed(), vec![end]].concat());
    assert_eq!((&ended["status"], &ended["host_run_id"]), (&json!("completed"), &json!(host())));
}
