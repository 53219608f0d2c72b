//! Tests of a silent gateway.
use super::*;

#[test]
fn silence_triggers_a_ping_and_then_disconnects() {
    let mut rig = Rig::new();
    assert_eq!(rig.wait(limits::PING_AFTER), ["> ping"]);
    rig.hear(json!({"type": "pong"}));
    assert_eq!(rig.wait(limits::PING_AFTER), ["> ping"]);
    let lines = rig.wait(limits::IDLE_TIMEOUT - limits::PING_AFTER);
    assert_eq!(lines, ["hangup", "disconnected 0 retry"]);
    assert_eq!(rig.wait(Duration::from_secs(1)), ["dial"]);
    rig.state.handle_open(rig.now);
    rig.drain();
    assert_eq!(rig.wait(limits::WELCOME_TIMEOUT), ["hangup", "disconnected 0 retry"], "no welcome");
}

/// A client that awaits an answer detects a dead gateway sooner.
#[test]
fn silence_while_waiting_triggers_an_earlier_ping() {
    let mut rig = Rig::new();
    rig.subscribe(Start::Now);
    rig.subscribed(1, json!({}));
    rig.s(started(2));
    assert_eq!(rig.wait(limits::WAITING_PING_AFTER), ["> ping"]);
    rig.hear(json!({"type": "pong"}));
    assert_eq!(rig.wait(limits::WAITING_PING_AFTER), ["> ping"], "an agent may think for long");
    let lines = rig.wait(limits::WAITING_TIMEOUT - limits::WAITING_PING_AFTER);
    assert_eq!(lines, ["hangup", "disconnected 0 retry"]);
}

/// Time in which nothing was awaited does not count as a late answer.
#[test]
fn ping_after_a_long_idle_time_gets_its_full_timeout() {
    let mut rig = Rig::new();
    rig.wait(Duration::from_secs(30));
    rig.invoke("m");
    assert_eq!(rig.wait(Duration::from_secs(1)), ["> ping"]);
    rig.hear(json!({"type": "pong"}));
    rig.s(started(2));
    assert_eq!(rig.wait(limits::WAITING_TIMEOUT - Duration::from_secs(1)), ["> ping"]);
}

/// Returns a client in the middle of an answer over QUIC.
fn listening() -> Rig {
    let mut rig = Rig::to("quic://test");
    rig.connect();
    rig.subscribe(Start::Now);
    rig.subscribed(1, json!({}));
    rig.s(started(2));
    rig.hear(delta(0, "ab"));
    rig
}

fn is_spare(lines: &[String]) -> bool {
    matches!(lines, [line] if line.starts_with("spare {") && line.contains("\"hello\""))
}

/// Covers: S-24.
#[test]
fn silent_quic_connection_gets_a_spare_connection() {
    let mut rig = listening();
    assert_eq!(rig.wait(limits::QUIC_PING_AFTER), ["> ping"]);
    let lines = rig.wait(limits::QUIC_SPARE_AFTER);
    assert!(is_spare(&lines), "{lines:?}");
    // Requests still go over the silent connection.
    assert_eq!(rig.invoke("m"), ["> invoke m"]);
    assert!(rig.state.handle_spare(rig.now, &json!({"type": "welcome", "node_id": "other"}).to_string()));
    let shown = rig.drain();
    assert_eq!(shown, ["disconnected 0 retry", "connected", "> subscribe after 2.1 s.r@1+2"]);
    assert_eq!(rig.subscribed(2, json!({})), ["subscribed", "caught up 2", "> invoke m"]);
    assert_eq!(rig.hear(delta(2, "cd")), ["text cd"]);
    // The second connection is an ordinary one.
    assert_eq!(rig.wait(limits::QUIC_PING_AFTER), ["> ping"]);
}

/// Covers: S-24.
#[test]
fn first_connection_with_a_message_is_kept() {
    let mut rig = listening();
    rig.wait(limits::QUIC_PING_AFTER + limits::QUIC_SPARE_AFTER);
    assert_eq!(rig.hear(delta(2, "cd")), ["drop spare", "text cd"]);
    let welcome = json!({"type": "welcome", "node_id": "other"}).to_string();
    assert!(!rig.state.handle_spare(rig.now, &welcome), "too late");
    rig.wait(limits::QUIC_PING_AFTER);
    // The last pong took that long, so the next one is given twice that time.
    let lines = rig.wait(2 * limits::QUIC_SPARE_AFTER);
    assert!(is_spare(&lines), "the next silence gets another: {lines:?}");
}

#[test]
fn refused_spare_connection_changes_nothing() {
    let mut rig = listening();
    rig.wait(limits::QUIC_PING_AFTER + limits::QUIC_SPARE_AFTER);
    assert!(!rig.state.handle_spare(rig.now, &json!({"type": "error", "code": "unauthorized"}).to_string()));
    assert_eq!(rig.hear(delta(2, "cd")), ["drop spare", "text cd"]);
    assert_eq!(rig.wait(limits::QUIC_PING_AFTER), ["> ping"]);
    let end = rig.wait(limits::WAITING_TIMEOUT - limits::WAITING_PING_AFTER);
    assert_eq!(end[1..], ["hangup", "disconnected 0 retry"], "nobody is there");
    assert_eq!(rig.wait(Duration::from_secs(1)), ["dial"]);
}

/// A network with a round trip of 600 ms: each pong is late, without further consequences.
#[test]
fn slow_network_gets_no_spare_connection() {
    let mut rig = listening();
    let round = Duration::from_millis(600);
    for n in 0..20 {
        let question = rig.state.poll_timeout().expect("a question") - rig.now;
        assert_eq!(rig.wait(question), ["> ping"], "{n}");
        assert_eq!(rig.wait(round), Vec::<String>::new(), "{n}");
        assert_eq!(rig.hear(json!({"type": "pong"})), Vec::<String>::new(), "{n}");
    }
    // Once the round trip is known, one pong may be lost and repeated.
    rig.wait(limits::QUIC_PING_AFTER_MAX);
    assert_eq!(rig.wait(Duration::from_millis(1100)), Vec::<String>::new());
}

/// While an agent thinks the pings become rarer, but a silence never lasts for 2 s.
#[test]
fn pings_become_rarer_while_no_other_message_comes() {
    let mut rig = listening();
    let mut gaps = Vec::new();
    for _ in 0..5 {
        let before = rig.now;
        let at = rig.state.poll_timeout().expect("a question");
        gaps.push((at - before).as_millis());
        assert_eq!(rig.wait(at - before), ["> ping"]);
        rig.hear(json!({"type": "pong"}));
    }
    assert_eq!(gaps, [400, 800, 1000, 1000, 1000]);
    assert!(limits::QUIC_PING_AFTER_MAX + limits::QUIC_SPARE_AFTER < Duration::from_secs(2));
    rig.hear(delta(2, "cd"));
    assert_eq!(rig.wait(limits::QUIC_PING_AFTER), ["> ping"], "in mid-answer at once");
}

/// The second connection was sent the previous token and gets the new one when it is welcomed.
#[test]
fn refreshed_token_is_sent_on_the_spare_connection() {
    let mut rig = Rig::to("quic://test");
    let options = Options::new("quic://test").token("one");
    rig.state = ClientState::new(&options, 7, false);
    rig.drain();
    rig.connect();
    rig.invoke("m");
    rig.wait(limits::QUIC_PING_AFTER + limits::QUIC_SPARE_AFTER);
    rig.state.refresh(rig.now, "two".to_owned()).expect("taken");
    assert_eq!(rig.drain(), ["> refresh"]);
    assert!(rig.state.handle_spare(rig.now, &json!({"type": "welcome"}).to_string()));
    assert!(rig.drain().contains(&"> refresh".to_owned()));
}
