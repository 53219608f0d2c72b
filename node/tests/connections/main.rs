//! The duties that the connections of agents and tool runners share, played by one script on both machines, and the
//! heartbeat of every role under a clock that steps.
use serde_json::Value;
use std::fmt::Debug;
use std::time::Duration;
use turnway_core::id::{EventId, NodeId, Principal, RequestId, SessionId, SessionKey, TenantId, UserId};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::time::{Millis, Mono, Now};
use turnway_node::connection::{ConnectionConfig, Input, Output, RefreshOutcome};
use turnway_node::dialin::{DialIn, DialInConfig};
use turnway_node::link::{self, Link, LinkConfig};
use turnway_node::runner::connection::RunnerConnection;
use turnway_wire::runner::ToRunner;

const START: Now = Now { mono: Mono(Duration::from_secs(1000)), store: Millis(1_000_000) };

fn config(expires: Option<Millis>) -> ConnectionConfig {
    ConnectionConfig { node: NodeId(1), connection_id: "c1".to_owned(), expires, heartbeat_permille: 1000 }
}

fn agent(expires: Option<Millis>) -> DialIn {
    DialIn::new(START, &DialInConfig { connection: config(expires), has_event_ids: false })
}

fn runner(expires: Option<Millis>) -> RunnerConnection {
    RunnerConnection::new(START, &config(expires))
}

/// Returns an admitted link.
fn client(expires: Option<Millis>) -> Link {
    let mut link = Link::new(
        START,
        LinkConfig {
            node: NodeId(1),
            connection_id: "c1".to_owned(),
            resume_window_ms: 0,
            durability: "fsync",
            heartbeat_permille: 1000,
            side_streams: false,
        },
    );
    link.handle_input(START, link::Input::Text(r#"{"type":"hello","user_id":"ann"}"#.to_owned()));
    let principal =
        Principal { tenant: TenantId::default_tenant(), user: UserId::local(), operator: false, writes: true };
    link.handle_input(START, link::Input::Admitted { principal, expires });
    link
}

/// Returns the input for one step of a script; other words are texts of the peer.
fn input<C>(words: &str) -> Input<C> {
    let refreshed = |renewal| Input::Refreshed { request_id: RequestId::parse("r1").ok(), renewal };
    match words.split_once(' ').unwrap_or((words, "")) {
        ("FLUSH", _) => Input::Flushed,
        ("ALIVE", _) => Input::SignOfLife,
        ("BINARY", _) => Input::Binary,
        ("TOO-LARGE", _) => Input::TooLarge,
        ("LEAVE", _) => Input::Draining,
        ("UNTIL", at) => refreshed(RefreshOutcome::Until(START.store.after(millis(at)))),
        ("NEEDLESS", _) => refreshed(RefreshOutcome::NotRequired),
        ("DENIED", _) => refreshed(RefreshOutcome::Denied),
        ("BUSY", _) => refreshed(RefreshOutcome::RateLimited),
        _ => Input::Text(words.to_owned()),
    }
}

fn millis(text: &str) -> Duration {
    Duration::from_millis(text.parse().expect("milliseconds"))
}

fn describe<E: Debug>(output: Output<E>) -> String {
    match output {
        Output::Write(text) => {
            let message: Value = serde_json::from_str(&text).expect("JSON");
            ["type", "code", "request_id"]
                .iter()
                .filter_map(|name| message[name].as_str())
                .collect::<Vec<_>>()
                .join(" ")
        }
        Output::Refresh { request_id, .. } => {
            format!("REFRESH {}", request_id.map(|id| id.to_string()).unwrap_or_default())
        }
        Output::Ping => "PING".to_owned(),
        Output::Close { code, reason } => format!("CLOSE {code} {reason}"),
        Output::Event(event) => format!("{event:?}"),
    }
}

/// Plays a script and returns the outputs; `+N` lets N ms pass and handles timeouts when they are due.
fn play<E: Debug, C>(mut machine: impl Machine<Input = Input<C>, Output = Output<E>>, script: &str) -> String {
    let mut now = START;
    let mut lines = Vec::new();
    for words in script.split("; ") {
        match words.strip_prefix('+') {
            Some(ms) => {
                let end = now.mono + millis(ms);
                while let Some(due) = machine.poll_timeout().filter(|due| due.at <= end) {
                    now = Now { mono: due.at, store: now.store.after(due.at - now.mono) };
                    machine.handle_timeout(now);
                    lines.extend(std::iter::from_fn(|| machine.poll_output()).map(describe));
                }
                now = Now { mono: end, store: now.store.after(end - now.mono) };
            }
            None => machine.handle_input(now, input(words)),
        }
        lines.extend(std::iter::from_fn(|| machine.poll_output()).map(describe));
    }
    lines.join("; ")
}

/// Plays a script on both roles; NAME in `expected` stands for the role's name.
#[track_caller]
fn check(expires: Option<Millis>, script: &str, expected: &str) {
    assert_eq!(play(agent(expires), script), expected.replace("NAME", "agent"), "{script}");
    assert_eq!(play(runner(expires), script), expected.replace("NAME", "runner"), "{script}");
}

const PING: &str = r#"{"type":"ping","request_id":"r1"}"#;
const REFRESH: &str = r#"{"type":"refresh","request_id":"r2","token":"canary"}"#;

/// Covers: S-11, S-13.
#[test]
fn unreadable_messages_are_refused_and_close_in_every_role() {
    check(None, PING, "welcome; pong r1");
    for wrong in ["x", "[]", "{}", r#"{"type":1}"#] {
        check(None, wrong, "welcome; error invalid_message");
    }
    check(None, r#"{"type":"refresh","request_id":"r3"}"#, "welcome; error invalid_message r3");
    // A message type of a later release does not count as malformed.
    let later = [r#"{"type":"later","request_id":"r4"}"#; limits::BAD_MESSAGES_MAX + 1].join("; ");
    let refused = ["error invalid_message r4"; limits::BAD_MESSAGES_MAX + 1].join("; ");
    check(None, &later, &format!("welcome; {refused}"));
    let ten = ["x"; limits::BAD_MESSAGES_MAX].join("; ");
    let errors = ["error invalid_message"; limits::BAD_MESSAGES_MAX].join("; ");
    check(None, &format!("{ten}; {PING}"), &format!("welcome; {errors}; CLOSE 4400 too many malformed messages"));
    check(None, &format!("BINARY; {PING}"), "welcome; CLOSE 1003 binary messages are not supported");
    check(None, &format!("TOO-LARGE; {PING}"), "welcome; error too_large; CLOSE 4413 message too large");
    let long = "y".repeat(limits::MESSAGE_BYTES_MAX + 1);
    check(None, &long, "welcome; error too_large; CLOSE 4413 message too large");
}

/// Covers: S-03.
#[test]
fn refresh_is_answered_alike_in_every_role() {
    check(None, &format!("{REFRESH}; NEEDLESS"), "welcome; REFRESH r2; error invalid_message r1");
    check(None, &format!("{REFRESH}; BUSY"), "welcome; REFRESH r2; error rate_limited r1");
    check(None, "DENIED; ALIVE", "welcome; error unauthorized r1; CLOSE 4401 unauthorized");
    let soon = Some(START.store.after(Duration::from_secs(1)));
    check(soon, "FLUSH; +25999", "welcome; PING");
    check(soon, "FLUSH; +26000", "welcome; PING; error unauthorized; CLOSE 4401 unauthorized");
    check(soon, "FLUSH; UNTIL 20000; FLUSH; +44999", "welcome; refreshed r1; PING");
}

/// Covers: S-15.
#[test]
fn silent_or_stalled_peer_is_closed_in_every_role() {
    check(None, "FLUSH; +24999", "welcome");
    check(None, "FLUSH; +59999", "welcome; PING; PING");
    check(None, "FLUSH; +60000; +600000", "welcome; PING; PING; CLOSE 1001 idle");
    check(None, "FLUSH; +50000; ALIVE; +59999", "welcome; PING; PING; PING; PING");
    check(None, "+29999; FLUSH; +20000", "welcome; PING");
    check(None, "+30000", "welcome; PING; CLOSE 4508 the NAME did not read its messages in time");
    check(None, "FLUSH; LEAVE; +29999", "welcome; go_away; PING");
    check(
        None,
        "FLUSH; LEAVE; +30000",
        "welcome; go_away; PING; CLOSE 4508 the NAME did not read its messages in time",
    );
}

#[test]
fn messages_of_a_runner_become_events_and_commands_become_texts() {
    let id = "0190f4a0-0000-7000-8000-000000000001";
    let invoked = format!(r#"{{"type":"invoked","action_id":"{id}","pid":4}}"#);
    let outputs = play(runner(None), &invoked);
    assert!(outputs.starts_with("welcome; Invoked {") && outputs.contains(id), "{outputs}");
    let unnamed = r#"{"type":"invoked","request_id":"r5"}"#;
    assert_eq!(play(runner(None), unnamed), "welcome; error invalid_message r5");
    // The runner is not told that `hello` was received, as agents are, and the message does not count as malformed.
    let hellos = [r#"{"type":"hello"}"#; limits::BAD_MESSAGES_MAX].join("; ");
    let errors = ["error invalid_message"; limits::BAD_MESSAGES_MAX].join("; ");
    assert_eq!(play(runner(None), &hellos), format!("welcome; {errors}"));
    assert_eq!(play(agent(None), &hellos), format!("welcome; {errors}; CLOSE 4400 too many malformed messages"));
    let key = SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").expect("a name") };
    let signal = ToRunner::Signal { key, action_id: EventId::parse(id).expect("an id"), signal: "KILL" };
    let mut machine = runner(None);
    machine.handle_input(START, Input::Command(Box::new(signal)));
    let lines: Vec<String> = std::iter::from_fn(|| machine.poll_output()).map(describe).collect();
    assert_eq!(lines, ["welcome", "signal"]);
}

/// Sets the clock back before a token's deadline, so that the deadline moves instead of closing the connection. Returns
/// the times of the heartbeats within the first 55 seconds.
fn heartbeats_after_clock_step<E, M: Machine<Output = Output<E>>>(mut machine: M, flushed: M::Input) -> Vec<u64> {
    machine.handle_input(START, flushed);
    while machine.poll_output().is_some() {}
    let mut heartbeats = Vec::new();
    while let Some(due) = machine.poll_timeout().filter(|due| due.at < START.mono + Duration::from_secs(55)) {
        let passed = due.at - START.mono;
        let store = if passed < Duration::from_secs(30) { START.store.after(passed) } else { START.store };
        machine.handle_timeout(Now { mono: due.at, store });
        while let Some(output) = machine.poll_output() {
            assert!(matches!(output, Output::Ping), "only heartbeats");
            heartbeats.push(passed.as_secs());
        }
    }
    heartbeats
}

/// A token's deadline that moves is not the time of a heartbeat.
#[test]
fn clock_step_causes_no_early_heartbeat() {
    let expires = Some(START.store.after(Duration::from_secs(10)));
    assert_eq!(heartbeats_after_clock_step(agent(expires), Input::Flushed), [25, 50]);
    assert_eq!(heartbeats_after_clock_step(runner(expires), Input::Flushed), [25, 50]);
    assert_eq!(heartbeats_after_clock_step(client(expires), link::Input::Flushed), [25, 50]);
}

/// Returns the outputs for a `ping` at a time, with no timer handled before it.
fn outputs_at<E: Debug, M: Machine<Output = Output<E>>>(mut machine: M, ping: M::Input, passed: Duration) -> String {
    while machine.poll_output().is_some() {}
    machine.handle_input(Now { mono: START.mono + passed, store: START.store.after(passed) }, ping);
    std::iter::from_fn(|| machine.poll_output()).map(describe).collect::<Vec<_>>().join("; ")
}

/// Covers: S-03: what arrives beside the due timer, such as text of a run, is not written either.
#[test]
fn nothing_is_written_after_the_end_of_a_token() {
    let end = Some(START.store);
    let ping = || PING.to_owned();
    let last = limits::TOKEN_GRACE - Duration::from_millis(1);
    for (passed, expected) in [(last, "pong r1"), (limits::TOKEN_GRACE, "error unauthorized; CLOSE 4401 unauthorized")]
    {
        assert_eq!(outputs_at(agent(end), Input::Text(ping()), passed), expected);
        assert_eq!(outputs_at(runner(end), Input::Text(ping()), passed), expected);
        assert_eq!(outputs_at(client(end), link::Input::Text(ping()), passed), expected);
    }
}
