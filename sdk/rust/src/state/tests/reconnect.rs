//! Tests of lost connections and of the messages sent on the next one.
use super::*;

fn accepted(id: &str, run: &str) -> Value {
    json!({"type": "turn_accepted", "run_id": run, "message_id": id, "request_id": id})
}

#[test]
fn unfinished_inputs_are_resent_in_order() {
    let mut rig = Rig::new();
    assert_eq!(rig.invoke("a"), ["> invoke a"]);
    assert_eq!(rig.invoke("b"), Vec::<String>::new(), "not before a is accepted");
    assert_eq!(rig.s(accepted("a", "s.r")), ["accepted a", "> invoke b"]);
    // Nothing was seen, so there is no cursor to resume from: the repeat of `a` subscribes from before its turn.
    assert_eq!(rig.reconnect(), ["> hello []", "connected", "> invoke a", "> invoke b"]);
    assert_eq!(rig.s(accepted("a", "s.r")), Vec::<String>::new(), "told before");
    rig.s(started(1));
    assert_eq!(rig.reconnect(), ["> hello [subscribe after 1.1 s.r@1+0]", "connected"]);
    let lines = rig.subscribed(2, json!({}));
    assert_eq!(lines, ["subscribed", "> invoke a", "> invoke b"]);
    assert_eq!(rig.s(done(2, 0)), ["done completed ", "caught up 2"]);
    rig.reconnect();
    assert_eq!(rig.subscribed(2, json!({})), ["subscribed", "caught up 2", "> invoke b"]);
}

/// The answer is lost, and the turn ends before the next connection.
#[test]
fn input_is_finished_by_a_resumed_run_end() {
    let mut rig = Rig::new();
    rig.subscribe(Start::Now);
    rig.subscribed(4, json!({}));
    rig.invoke("a");
    rig.reconnect();
    assert_eq!(rig.subscribed(7, json!({})), ["subscribed", "> invoke a"]);
    let message = json!({"type": "message", "content": "hi", "message_id": "a", "run_id": "s.r", "seq": 5});
    assert_eq!(rig.s(message), ["accepted a", "message hi"]);
    assert_eq!(rig.s(done(7, 0)), ["done completed ", "caught up 7"]);
    assert_eq!(rig.s(accepted("a", "s.r")), Vec::<String>::new());
    rig.reconnect();
    assert_eq!(rig.subscribed(7, json!({})), ["subscribed", "caught up 7"], "nothing to repeat");
}

#[test]
fn reset_continues_from_the_snapshot() {
    let mut rig = Rig::new();
    rig.subscribe(Start::Beginning);
    rig.subscribed(9, json!({}));
    rig.s(started(8));
    rig.hear(delta(0, "void"));
    rig.reconnect();
    let runs = json!([{"run_id": "s.r", "agent_id": "echo", "state": "RUNNING", "attempt": 1}]);
    let reset = json!({"reset": true, "reason": "regressed",
        "snapshot": {"session_id": "s", "runs": runs, "seq": 3, "epoch": 2}});
    assert_eq!(rig.subscribed(3, reset), ["reset regressed"]);
    assert_eq!(rig.hear(delta(0, "new")), ["text new"]);
    assert_eq!(rig.s(done(4, 3)), ["done completed new"], "a place that was there before");
    assert_eq!(rig.reconnect()[0], "> hello [subscribe after 4.1]");
}

/// An unfinished turn may lie before the snapshot, so the client unsubscribes and lets the repeated input subscribe.
#[test]
fn reset_with_unfinished_inputs_resubscribes() {
    let mut rig = Rig::new();
    rig.subscribe(Start::Beginning);
    rig.subscribed(9, json!({}));
    rig.s(started(8));
    rig.invoke("a");
    rig.reconnect();
    let lines = rig.subscribed(3, json!({"reset": true, "reason": "trimmed"}));
    assert_eq!(lines, ["> unsubscribe", "reset trimmed", "> invoke a"]);
    assert_eq!(rig.s(started(8)), Vec::<String>::new(), "of the old subscription");
    // After another loss there is still no valid cursor.
    assert_eq!(rig.reconnect(), ["> hello []", "connected", "> invoke a"]);
    assert_eq!(rig.s(accepted("a", "s.r")), ["accepted a"]);
    assert_eq!(rig.s(started(2)), ["started s.r@1"]);
    assert_eq!(rig.s(done(3, 0)), ["done completed "]);
}

/// The store can lose facts under an active subscription.
#[test]
fn unsolicited_reset_is_applied() {
    let mut rig = Rig::new();
    rig.subscribe(Start::Now);
    rig.subscribed(9, json!({}));
    let reset = json!({"type": "subscribed", "reset": true, "reason": "regressed", "seq": 2, "epoch": 3,
        "snapshot": {"seq": 2, "epoch": 3}});
    assert_eq!(rig.s(reset), ["reset regressed"]);
    assert_eq!(rig.s(started(3)), ["started s.r@1"]);
}

#[test]
fn missing_session_is_recreated_by_the_next_input() {
    let mut rig = Rig::new();
    rig.subscribe(Start::Now);
    rig.subscribed(9, json!({}));
    rig.invoke("a");
    rig.reconnect();
    let id = rig.last_subscribe()["request_id"].clone();
    let lines = rig.hear(json!({"type": "error", "request_id": id, "code": "not_found"}));
    assert_eq!(lines, ["reset not_found", "> invoke a"]);
    rig.s(accepted("a", "s.r"));
    assert_eq!(rig.s(started(1)), ["started s.r@1"]);
}

#[test]
fn close_codes_decide_between_retry_and_failure() {
    let cases = [
        (Some(4401), "final"),
        (Some(4403), "final"),
        (Some(4409), "final"),
        (Some(4413), "final"),
        (Some(4400), "final"),
        (Some(4408), "retry"),
        (Some(4429), "retry"),
        (Some(4503), "retry"),
        (Some(4508), "retry"),
        (Some(1000), "retry"),
        (None, "retry"),
    ];
    for (code, outcome) in cases {
        let mut rig = Rig::new();
        rig.state.handle_lost(rig.now, Lost { code, ..Lost::default() });
        assert_eq!(rig.drain(), [format!("disconnected {} {outcome}", code.unwrap_or(0))]);
        let next = rig.state.poll_timeout();
        let wait = next.map(|at| at - rig.now);
        match code {
            Some(4429) => assert!(wait >= Some(limits::BACKOFF_RATE_LIMITED)),
            _ if outcome == "final" => assert_eq!((wait, rig.state.is_over()), (None, true)),
            _ => assert!(wait <= Some(limits::BACKOFF_BASE) && wait.is_some()),
        }
        let refused = rig.state.invoke(rig.now, "s", UserInput::text("x"));
        assert_eq!(refused.is_err(), outcome == "final");
    }
}

/// Covers: S-03.
#[test]
fn refreshed_token_is_used_on_this_and_later_connections() {
    let mut rig = Rig::new();
    let shown = |rig: &Rig| rig.sent.last().expect("something was said")["token"].clone();
    let refresh = |rig: &mut Rig, token: &str| {
        rig.state.refresh(rig.now, token.to_owned()).expect("taken");
        rig.drain()
    };
    assert_eq!((refresh(&mut rig, "canary-2"), shown(&rig)), (vec!["> refresh".to_owned()], json!("canary-2")));
    assert_eq!(rig.hear(json!({"type": "refreshed", "expires_ts": 9})), Vec::<String>::new());
    rig.lose();
    assert_eq!(refresh(&mut rig, "canary-3"), Vec::<String>::new(), "there is nobody to tell");
    rig.wait(Duration::from_secs(60));
    rig.state.handle_open(rig.now);
    assert_eq!((rig.drain(), shown(&rig)), (vec!["> hello []".to_owned()], json!("canary-3")));
    // `hello` was sent with the previous token, and nothing may be sent before `welcome`.
    assert_eq!(refresh(&mut rig, "canary-4"), Vec::<String>::new());
    let lines = rig.hear(json!({"type": "welcome", "connection_id": "c", "node_id": "n"}));
    assert_eq!((lines, shown(&rig)), (vec!["connected".to_owned(), "> refresh".to_owned()], json!("canary-4")));
    assert!(!format!("{:?}", rig.state).contains("canary"), "a token is printed");
    rig.state.handle_lost(rig.now, Lost { code: Some(4401), ..Lost::default() });
    assert!(rig.state.refresh(rig.now, "late".to_owned()).is_err());
}

#[test]
fn backoff_grows_and_resets_after_a_good_connection() {
    let mut rig = Rig::new();
    for _ in 0..12 {
        rig.lose();
        rig.wait(Duration::from_secs(31));
        rig.state.handle_open(rig.now);
        rig.drain();
    }
    rig.lose();
    let wait = rig.state.poll_timeout().map(|at| at - rig.now);
    assert!(wait >= Some(limits::BACKOFF_MAX / 2), "{wait:?}");
    rig.wait(limits::BACKOFF_MAX);
    rig.connect();
    rig.wait(limits::STABLE_AFTER);
    rig.lose();
    assert!(rig.state.poll_timeout().map(|at| at - rig.now) <= Some(limits::BACKOFF_BASE));
}

#[test]
fn client_without_retry_fails_permanently() {
    let mut state = ClientState::new(&Options::new("ws://test"), 1, true);
    assert_eq!(state.poll_output(), Some(Output::Dial));
    state.handle_lost(Duration::ZERO, Lost { reason: "refused".to_owned(), ..Lost::default() });
    assert!(state.is_over() && matches!(state.poll_output(), Some(Output::Event(Event::Disconnected { .. }))));
}

#[test]
fn go_away_reconnects_within_its_deadline() {
    let mut rig = Rig::new();
    rig.subscribe(Start::Now);
    rig.subscribed(1, json!({}));
    rig.hear(json!({"type": "go_away", "reason": "drain", "reconnect_within_ms": 2000, "jitter_ms": 9000}));
    assert_eq!(rig.s(started(2)), ["started s.r@1"], "until then all goes on");
    assert_eq!(rig.wait(Duration::from_secs(2)), ["hangup", "disconnected 0 retry", "dial"]);
    assert_eq!(rig.connect()[0], "> hello [subscribe after 2.1 s.r@1+0]");
}

/// The clients of a draining node do not reconnect at the same moment.
#[test]
fn go_away_reconnects_are_spread_over_the_deadline() {
    let mut rig = Rig::new();
    let mut wait_once = || {
        rig.hear(json!({"type": "go_away", "reason": "drain", "reconnect_within_ms": 2000, "jitter_ms": 2000}));
        let wait = rig.state.poll_timeout().expect("it leaves") - rig.now;
        rig.wait(Duration::from_secs(2));
        rig.connect();
        wait
    };
    let mut waits: Vec<_> = (0..16).map(|_| wait_once()).collect();
    waits.sort();
    assert!(waits[15] - waits[0] > Duration::from_secs(1), "{waits:?}");
}

/// The gateway accepts no long `hello` before authentication.
#[test]
fn subscriptions_beyond_the_hello_limit_follow_later() {
    let mut rig = Rig::new();
    for n in 0..limits::SESSIONS_MAX {
        let cursor = LogCursor { seq: 1 << 50, epoch: Some(1 << 52) };
        let session = format!("{n:0>64}");
        let request = Subscribe::from(Start::After(cursor));
        rig.state.subscribe(rig.now, &session, request).expect("taken");
    }
    let full = rig.state.subscribe(rig.now, "one-more", Subscribe::default());
    assert!(matches!(full, Err(ClientError::TooMany { what: "sessions", .. })));
    rig.drain();
    rig.sent.clear();
    rig.reconnect();
    let hello = &rig.sent[0];
    assert!(hello.to_string().len() <= limits::HELLO_BYTES_MAX);
    let resumed = hello["resume"].as_array().map_or(0, Vec::len);
    assert!(resumed > 10, "{resumed}");
    assert_eq!(resumed + rig.sent.len() - 1, limits::SESSIONS_MAX);
}
