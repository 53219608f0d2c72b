//! Tests of member changes: requests, answers, refusals, and repeats.
use super::*;
use crate::members::MemberChange;

fn members(id: &Value, agents: &[&str]) -> Value {
    json!({"type": "members", "request_id": id, "agents": agents, "active_agent": agents.last()})
}

impl Rig {
    fn change(&mut self, change: MemberChange) -> Value {
        self.state.change_members(self.now, "s", change).expect("taken");
        self.drain();
        self.sent.last().expect("a message").clone()
    }
}

#[test]
fn member_changes_are_encoded_as_documented() {
    let mut rig = Rig::new();
    for (change, fields) in [
        (MemberChange::switch("ada"), json!({"type": "switch_agent", "agent_id": "ada"})),
        (MemberChange::invite("bob"), json!({"type": "invite_agent", "agent_id": "bob"})),
        (
            MemberChange::invite("bob").active().reason("he knows"),
            json!({"type": "invite_agent", "agent_id": "bob", "active": true, "reason": "he knows"}),
        ),
        (
            MemberChange::remove("bob").active().reason("done"),
            json!({"type": "remove_agent", "agent_id": "bob", "reason": "done"}),
        ),
    ] {
        let sent = rig.change(change);
        let id = sent["request_id"].clone();
        let mut expected = fields;
        (expected["ts"], expected["session_id"], expected["request_id"]) = (0.into(), "s".into(), id.clone());
        assert_eq!(sent, expected);
        assert_eq!(rig.s(members(&id, &["ada", "bob"])), ["members ada,bob active bob"]);
        assert_eq!(rig.s(members(&id, &["ada", "bob"])), Vec::<String>::new(), "told once");
    }
}

#[test]
fn unanswered_member_change_is_resent() {
    let mut rig = Rig::new();
    let id = rig.change(MemberChange::switch("ada"))["request_id"].clone();
    assert_eq!(rig.reconnect(), ["> hello []", "connected", "> switch_agent"]);
    assert_eq!(rig.sent.last().map(|again| again["request_id"].clone()), Some(id.clone()));
    assert_eq!(rig.s(members(&id, &["ada"])), ["members ada active ada"]);
    assert_eq!(rig.reconnect(), ["> hello []", "connected"]);
}

#[test]
fn refused_member_change_is_an_error() {
    let mut rig = Rig::new();
    let id = rig.change(MemberChange::invite("nobody"))["request_id"].clone();
    let refused = json!({"type": "error", "request_id": id, "code": "not_found", "message": "no"});
    assert_eq!(rig.hear(refused), ["error invite_agent not_found"]);
    assert_eq!(rig.reconnect(), ["> hello []", "connected"], "not said again");
}

/// A failed change is a fact that precedes the answer: the client's own is an error and moves the cursor.
#[test]
fn failed_member_change_is_reported_once_and_moves_the_cursor() {
    let mut rig = Rig::new();
    rig.subscribe(Start::Beginning);
    rig.subscribed(1, json!({}));
    let id = rig.change(MemberChange::switch("ada"))["request_id"].clone();
    let fact = json!({"type": "error", "code": "agent_not_in_session",
        "message": "the session could not carry out the request",
        "request_id": id, "seq": 1, "epoch": 1});
    assert_eq!(rig.s(fact.clone()), ["error switch_agent agent_not_in_session", "caught up 1"]);
    assert_eq!(rig.s(fact), Vec::<String>::new());
    assert_eq!(rig.s(members(&id, &["echo"])), Vec::<String>::new(), "answered already");
}
