//! Tests of signals: typing and previews are in order, never repeated, and dropped rather than queued without bound.
use super::*;

fn preview(room: &str, key: &str, text: &str) -> Value {
    let mut preview = deliver(key, 1);
    preview["kind"] = "preview".into();
    preview["text"] = text.into();
    preview["conversation"] = place(room);
    preview
}

fn delete(room: &str, key: &str) -> Value {
    json!({ "type": "delete_message", "conversation": place(room), "key": key })
}

fn typing(state: &str) -> Value {
    json!({ "type": "typing", "conversation": place("lobby"), "state": state })
}

fn shown() -> WorkResult {
    WorkResult::Shown(Ok(()))
}

/// Covers: BD-T4.
#[test]
fn removal_of_a_preview_never_comes_before_it() {
    let mut rig = Rig::new();
    assert_eq!(rig.hear(preview("lobby", "p", "a")), ["preview p a"]);
    assert_eq!(rig.hear(preview("lobby", "p", "ab")), Vec::<String>::new());
    assert_eq!(rig.hear(delete("lobby", "p")), Vec::<String>::new());
    assert_eq!(rig.finish("preview p a", shown()), ["delete preview p"], "the newer preview is dropped");
    assert_eq!(rig.finish("delete preview p", shown()), Vec::<String>::new());
    assert!(!rig.sent.iter().any(|message| message["type"] == "delivered"), "signals are not reported");
}

/// Covers: BD-T4.
#[test]
fn newer_signal_replaces_the_waiting_one() {
    let mut rig = Rig::new();
    rig.hear(preview("lobby", "p", "a"));
    rig.hear(typing("on"));
    rig.hear(preview("lobby", "p", "ab"));
    rig.hear(typing("off"));
    rig.hear(preview("lobby", "p", "abc"));
    assert_eq!(rig.finish("preview p a", shown()), ["typing lobby false"]);
    let failure = WorkResult::Shown(Err(PlatformFailure::unknown("timeout")));
    assert_eq!(rig.finish("typing lobby false", failure), ["preview p abc"]);
}

#[test]
fn conversations_do_not_wait_for_each_other() {
    let mut rig = Rig::new();
    assert_eq!(rig.hear(preview("lobby", "p", "a")), ["preview p a"]);
    assert_eq!(rig.hear(preview("attic", "q", "b")), ["preview q b"]);
    assert_eq!(rig.order("k", 1), ["send k"], "nor do messages");
}

#[test]
fn signal_without_an_end_is_given_up() {
    let mut rig = Rig::new();
    rig.hear(preview("lobby", "p", "a"));
    rig.hear(delete("lobby", "p"));
    assert_eq!(rig.wait_alive(limits::SIGNAL_TIMEOUT), ["abandon preview p a", "delete preview p"]);
}

#[test]
fn waiting_signals_are_limited_and_room_comes_back() {
    let mut rig = Rig::new();
    rig.hear(preview("lobby", "first", "a"));
    for n in 0..=limits::SIGNALS_MAX {
        rig.hear(preview("lobby", &format!("p{n}"), "a"));
    }
    assert_eq!(rig.finish("preview first a", shown()), ["preview p1 a"], "the oldest was dropped");
    for n in 0..limits::SIGNAL_LANES_MAX - 1 {
        assert_eq!(rig.hear(preview(&format!("room {n}"), &format!("r{n}"), "a")).len(), 1, "{n}");
    }
    assert_eq!(rig.hear(preview("one more", "x", "a")), Vec::<String>::new());
    rig.finish("preview r0 a", shown());
    assert_eq!(rig.hear(preview("one more", "x", "a")), ["preview x a"]);
}
