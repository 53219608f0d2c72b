//! Tests of the adapter's connection: reconnects, refusals, silence, draining nodes, and the end.
use super::*;

/// Covers: BR-36.
#[test]
fn hello_declares_the_account() {
    let mut rig = Rig::with(false);
    assert_eq!(rig.activate(), ["> hello", "standby", "active"]);
    let expected = json!({ "text": { "level": 2, "max": 2000, "unit": "utf16" }, "key": 2 });
    assert_eq!(rig.sent[0]["capabilities"], expected);
}

#[test]
fn lost_connection_leads_to_the_next_address() {
    let mut rig = Rig::new();
    assert_eq!(rig.lose(), ["disconnected"]);
    assert_eq!(rig.wait(Duration::from_millis(100)), Vec::<String>::new(), "not at once");
    assert_eq!(rig.wait(Duration::from_millis(200)), ["dial 1"]);
    assert_eq!(rig.lose(), Vec::<String>::new());
    assert_eq!(rig.wait(Duration::from_millis(500)), ["dial 0"]);
    assert_eq!(rig.activate(), ["> hello", "standby", "active"]);
}

#[test]
fn reconnect_delay_grows_until_a_stable_connection() {
    let mut rig = Rig::with(false);
    let delay = |rig: &mut Rig| {
        rig.lose();
        let delay = rig.machine.poll_timeout().expect("an attempt") - rig.now;
        rig.wait(delay);
        delay
    };
    for _ in 0..8 {
        delay(&mut rig);
    }
    assert!(delay(&mut rig) >= limits::BACKOFF_MAX / 2);
    rig.activate();
    assert!(delay(&mut rig) >= limits::BACKOFF_MAX / 2, "a connection that ends at once is no good one");
    rig.activate();
    rig.wait(limits::ADAPTER_PING_AFTER);
    rig.hear(json!({ "type": "pong" }));
    assert!(delay(&mut rig) <= limits::BACKOFF_BASE);
}

#[test]
fn final_close_code_ends_the_adapter_with_the_reason() {
    for code in [4400, 4401, 4403, 4409, 4413, 1002, 1003, 1007] {
        let mut rig = Rig::with(false);
        rig.machine.handle_open(rig.moment());
        rig.hear(json!({ "type": "error", "code": "unauthorized", "message": "no such key" }));
        assert_eq!(rig.lose_with(Some(code)).last().expect("an end"), "ended unauthorized: no such key", "{code}");
        assert!(rig.machine.is_over());
        assert_eq!(rig.machine.poll_timeout(), None);
    }
    for code in [1001, 1006, 1011, 4408, 4429, 4503, 4508] {
        let mut rig = Rig::new();
        assert_eq!(rig.lose_with(Some(code)), ["disconnected"], "{code}");
    }
}

#[test]
fn rate_limited_adapter_waits_as_long_as_the_gateway_asks() {
    let mut rig = Rig::new();
    rig.lose_with(Some(4429));
    assert!(rig.machine.poll_timeout().expect("an attempt") >= rig.now + limits::BACKOFF_RATE_LIMITED);
    let mut rig = Rig::new();
    rig.hear(json!({ "type": "error", "code": "rate_limited", "message": "full", "retry_after_ms": 20_000 }));
    rig.lose_with(Some(4429));
    assert!(rig.machine.poll_timeout().expect("an attempt") >= rig.now + Duration::from_secs(20));
}

#[test]
fn silent_node_is_left_within_seconds() {
    let mut rig = Rig::new();
    assert_eq!(rig.wait(limits::ADAPTER_PING_AFTER), ["> ping"]);
    rig.hear(json!({ "type": "pong" }));
    assert_eq!(rig.wait(limits::ADAPTER_PING_AFTER), ["> ping"]);
    let lines = rig.wait(limits::ADAPTER_IDLE_TIMEOUT - limits::ADAPTER_PING_AFTER);
    assert_eq!(lines[..2], ["hangup", "disconnected"]);
    let mut rig = Rig::new();
    rig.forward("lobby", "m1");
    assert_eq!(rig.wait(limits::WAITING_PING_AFTER), ["> ping"], "an answer is awaited");
    assert_eq!(rig.wait(limits::WAITING_TIMEOUT - limits::WAITING_PING_AFTER)[..2], ["hangup", "disconnected"]);
}

#[test]
fn gateway_without_a_welcome_is_left() {
    let mut rig = Rig::with(false);
    rig.machine.handle_open(rig.moment());
    assert_eq!(rig.drain(), ["> hello"]);
    assert_eq!(rig.wait(limits::WELCOME_TIMEOUT), ["hangup"]);
}

#[test]
fn draining_node_is_left_within_the_named_time() {
    let mut rig = Rig::new();
    let go_away = json!({ "type": "go_away", "reconnect_within_ms": 5000, "jitter_ms": 3000 });
    assert_eq!(rig.hear(go_away), Vec::<String>::new());
    let leave = rig.machine.poll_timeout().expect("a time") - rig.now;
    assert!(leave < Duration::from_secs(3), "{leave:?}");
    assert_eq!(rig.wait(leave), ["hangup", "dial 1", "disconnected"]);
}

#[test]
fn stopped_adapter_ends_open_orders_and_refuses_new_ones() {
    let mut rig = Rig::new();
    for key in ["k1", "k2", "k3"] {
        rig.order(key, 1);
    }
    rig.machine.stop(rig.moment());
    assert_eq!(rig.drain(), ["> d-k3 not_sent", "standby"], "what waits is refused");
    assert_eq!(rig.order("k4", 1), ["> d-k4 not_sent"]);
    assert_eq!(rig.send_part("k1"), ["> d-k1 sent"]);
    assert_eq!(rig.send_part("k2"), ["> d-k2 sent", "hangup", "ended", "ended"]);
    assert_eq!(rig.machine.forward(rig.moment(), &event("lobby", "m1")), Err(ClientError::Closed));
}

#[test]
fn stopped_adapter_does_not_wait_for_long() {
    let mut rig = Rig::new();
    rig.order("k1", 1);
    rig.machine.stop(rig.moment());
    rig.drain();
    let lines = rig.wait(limits::STOP_TIMEOUT);
    assert_eq!(lines.last().expect("an end"), "ended", "{lines:?}");
    assert!(rig.machine.is_over());
}
