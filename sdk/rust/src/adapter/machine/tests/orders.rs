//! Tests of orders: outcomes, repeated orders, deadlines, and the number of orders at a time.
use super::*;
use crate::adapter::outcome::FailureClass;

/// Returns the outcome that was reported last.
fn reported(rig: &Rig) -> Value {
    let mut report = rig.sent.last().expect("a report").clone();
    let fields = report.as_object_mut().expect("an object");
    fields.retain(|key, _| !matches!(key.as_str(), "type" | "delivery_id" | "part"));
    report
}

fn failed_send(failure: PlatformFailure) -> WorkResult {
    WorkResult::Sent(Err(failure))
}

/// Covers: BR-08, BR-10.
#[test]
fn result_of_the_platform_becomes_the_outcome() {
    let wait = Some(Duration::from_millis(1500));
    let limited = PlatformFailure::Rejected { class: FailureClass::RateLimit, retry_after: wait };
    let gone = PlatformFailure::rejected(FailureClass::Gone);
    let unknown = json!({ "outcome": "unknown" });
    let sent = json!({ "outcome": "sent", "external_id": "7", "place": place("lobby") });
    let rate_limit = json!({ "outcome": "rejected", "code": "rate_limit", "retry_after_ms": 1500 });
    let cases = [
        (failed_send(PlatformFailure::not_sent("no route")), json!({ "outcome": "not_sent", "proof": "no route" })),
        (failed_send(gone), json!({ "outcome": "rejected", "code": "gone" })),
        (failed_send(limited), rate_limit),
        (failed_send(PlatformFailure::unknown("timeout")), unknown.clone()),
        (WorkResult::Panicked, unknown.clone()),
        (WorkResult::Sent(Ok(SentPart::new("", "lobby"))), unknown.clone()),
        (WorkResult::Sent(Ok(SentPart::new("a\nb", "lobby"))), unknown),
        (WorkResult::Sent(Ok(SentPart::new("7", "lobby"))), sent),
    ];
    for (n, (result, expected)) in cases.into_iter().enumerate() {
        let mut rig = Rig::new();
        assert_eq!(rig.order("k", 1), ["send k"], "{n}");
        rig.finish("send k", result);
        assert_eq!(reported(&rig), expected, "{n}");
    }
}

/// Covers: BR-11.
#[test]
fn other_place_of_the_platform_is_reported() {
    let mut rig = Rig::new();
    rig.order("k", 1);
    rig.finish("send k", WorkResult::Sent(Ok(SentPart::new("7", "elsewhere"))));
    assert_eq!(reported(&rig)["place"], place("elsewhere"));
}

#[test]
fn change_is_reported_with_its_target() {
    let mut rig = Rig::new();
    let mut edit = deliver("k1", 1);
    edit["kind"] = "edit".into();
    edit["text"] = "new".into();
    edit["target"] = json!({ "external_id": "7" });
    assert_eq!(rig.hear(edit), ["edit 7 new"]);
    rig.finish("edit 7 new", WorkResult::Changed(Ok(())));
    assert_eq!(reported(&rig), json!({ "outcome": "sent", "external_id": "7", "place": place("lobby") }));
    let mut react = deliver("k2", 1);
    react["kind"] = "reaction".into();
    react["text"] = "".into();
    react["target"] = json!({ "message_id": "m1" });
    react["reaction"] = json!({ "emoji": "+1", "remove": false });
    assert_eq!(rig.hear(react), ["react m1 +1"]);
    let forbidden = PlatformFailure::rejected(FailureClass::Permission);
    rig.finish("react m1 +1", WorkResult::Changed(Err(forbidden)));
    assert_eq!(reported(&rig), json!({ "outcome": "rejected", "code": "permission" }));
}

#[test]
fn new_conversation_is_reported_with_its_parent() {
    let mut rig = Rig::new();
    let mut create = json!({
        "type": "create_conversation", "delivery_id": "d-k3", "attempt": 1, "parent": place("lobby"), "name": "a task",
        "key": "k3", "deadline_ts": START_MS + 60_000,
    });
    assert_eq!(rig.hear(create.clone()), ["create a task"]);
    rig.finish("create a task", WorkResult::Created(Err(PlatformFailure::not_sent("no route"))));
    assert_eq!(reported(&rig), json!({ "outcome": "not_created" }));
    create["attempt"] = 2.into();
    assert_eq!(rig.hear(create), ["create a task"]);
    rig.finish("create a task", WorkResult::Created(Ok("thread-1".to_owned())));
    let mut made = place("thread-1");
    made["parent_conversation_id"] = "lobby".into();
    assert_eq!(reported(&rig), json!({ "outcome": "created", "conversation": made }));
}

/// Covers: BR-13.
#[test]
fn repeated_order_in_flight_is_one_message() {
    let mut rig = Rig::new();
    assert_eq!(rig.order("k", 1), ["send k"]);
    assert_eq!(rig.order("k", 1), Vec::<String>::new());
    assert_eq!(rig.order("k", 2), Vec::<String>::new(), "the attempt in progress answers the next one, too");
    assert_eq!(rig.send_part("k"), ["> d-k sent"]);
    assert_eq!(rig.order("k", 7), ["> d-k sent"], "a receipt is remembered");
}

#[test]
fn next_attempt_after_a_failure_is_performed() {
    let mut rig = Rig::new();
    rig.order("k", 1);
    let transient = || failed_send(PlatformFailure::rejected(FailureClass::Transient));
    assert_eq!(rig.finish("send k", transient()), ["> d-k rejected"]);
    assert_eq!(rig.order("k", 1), ["> d-k rejected"], "the same attempt twice is one attempt");
    assert_eq!(rig.order("k", 2), ["send k"]);
    rig.finish("send k", transient());
    rig.wait(limits::REPEATED_ORDER_WINDOW);
    assert_eq!(rig.order("k", 2), ["send k"], "an operator's retry counts anew");
}

#[test]
fn orders_at_a_time_are_limited_and_keep_their_order() {
    let mut rig = Rig::new();
    assert_eq!(rig.order("k1", 1), ["send k1"]);
    assert_eq!(rig.order("k2", 1), ["send k2"]);
    assert_eq!(rig.order("k3", 1), Vec::<String>::new());
    assert_eq!(rig.order("k4", 1), Vec::<String>::new());
    assert_eq!(rig.send_part("k2"), ["> d-k2 sent", "send k3"]);
    assert_eq!(rig.send_part("k1"), ["> d-k1 sent", "send k4"]);
}

#[test]
fn orders_beyond_the_limit_are_not_sent_until_there_is_room() {
    let mut rig = Rig::new();
    for n in 0..limits::ORDERS_MAX {
        rig.order(&format!("k{n}"), 1);
    }
    assert_eq!(rig.order("more", 1), ["> d-more not_sent"]);
    rig.send_part("k0");
    assert_eq!(rig.order("more", 1), Vec::<String>::new());
}

#[test]
fn part_after_its_deadline_is_not_sent() {
    let mut rig = Rig::new();
    let mut late = deliver("k", 1);
    late["deadline_ts"] = (START_MS + 1000).into();
    assert_eq!(rig.hear(late), ["> d-k not_sent"]);
    assert_eq!(reported(&rig)["proof"], "the deadline has passed");
}

#[test]
fn platform_without_an_answer_makes_the_outcome_unknown() {
    let mut rig = Rig::new();
    rig.order("k1", 1);
    let mut soon = deliver("k2", 1);
    soon["deadline_ts"] = (START_MS + 4000).into();
    rig.hear(soon);
    assert_eq!(rig.wait_alive(Duration::from_secs(3)), ["abandon send k2", "> d-k2 unknown"]);
    let lines = rig.wait_alive(limits::ATTEMPT_TIMEOUT);
    assert_eq!(lines, ["abandon send k1", "> d-k1 unknown"]);
    assert_eq!(rig.order("k1", 2), ["send k1"], "a slot is free again");
}

#[test]
fn order_that_waited_too_long_is_not_sent() {
    let mut rig = Rig::new();
    for key in ["k1", "k2", "k3"] {
        rig.order(key, 1);
    }
    assert_eq!(rig.wait_alive(limits::ORDER_WAIT), ["> d-k3 not_sent"]);
}

#[test]
fn receipt_of_a_lost_connection_is_reported_on_the_next_one() {
    let mut rig = Rig::new();
    rig.order("k1", 1);
    rig.order("k2", 1);
    rig.lose();
    assert_eq!(rig.send_part("k1"), Vec::<String>::new());
    assert_eq!(rig.finish("send k2", WorkResult::Panicked), Vec::<String>::new());
    rig.wait(Duration::from_secs(1));
    assert_eq!(rig.connect(), ["> hello", "> d-k1 sent", "standby"], "the gateway knows that the other is unknown");
    assert_eq!(rig.reconnect().iter().filter(|line| line.starts_with("> d-")).count(), 0, "reported once");
}

#[test]
fn outcome_is_reported_where_it_was_ordered_last() {
    let mut rig = Rig::new();
    rig.order("k", 1);
    rig.reconnect();
    assert_eq!(rig.order("k", 2), Vec::<String>::new(), "the first attempt still runs");
    assert_eq!(rig.finish("send k", WorkResult::Panicked), ["> d-k unknown"]);
}

#[test]
fn remembered_outcomes_are_limited() {
    let mut rig = Rig::new();
    for n in 0..=limits::OUTCOMES_MAX {
        let key = format!("k{n}");
        rig.order(&key, 1);
        rig.send_part(&key);
    }
    assert_eq!(rig.order("k1", 2), ["> d-k1 sent"], "remembered");
    assert_eq!(rig.order("k0", 2), ["send k0"], "forgotten");
}

#[test]
fn order_without_a_key_is_ignored() {
    let mut rig = Rig::new();
    let mut broken = deliver("k", 1);
    broken.as_object_mut().expect("an object").remove("key");
    assert_eq!(rig.hear(broken), Vec::<String>::new());
}
