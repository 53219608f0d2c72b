//! Buttons below answers, on a real node: they are sent as the adapter has declared, and a press becomes a turn, once.
use super::agents::await_invocations;
use super::fleet::{directories, two_nodes_with};
use super::inbound_files::operator;
use super::{TestAdapter, await_recorded};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tempfile::{TempDir, tempdir};
use turnway_tests::real::agent::{Agents, Invocation, Reply};
use turnway_tests::real::node::Node;

/// Answers a message with a question and buttons, and the press of a button with its name.
fn answer(invocation: &Invocation) -> Reply {
    let decision = invocation.context["origin"]["decision"].clone();
    let is_poll = invocation.text == "poll";
    Reply::speak(move |stream| async move {
        if let Some(button) = decision["button_id"].as_str() {
            stream.delta(&format!("you chose {button}")).await?;
            return stream.done().await;
        }
        let buttons = json!([{"id": "yes", "label": "Yes, do it", "style": "primary"}, {"id": "no", "label": "No"}]);
        let args = json!({"buttons": buttons, "reusable": is_poll});
        stream.event("action", &json!({"tool": "message.buttons", "action_id": "b", "args": args})).await?;
        stream.delta("Shall I?").await?;
        stream.done().await
    })
}

async fn asking_node(dir: &TempDir, buttons: Value) -> (Agents, Node, TestAdapter) {
    let agents = Agents::start(|invocation| answer(&invocation)).await;
    let node = Node::start(dir.path(), &["--agent", &agents.flag("a"), "--default-agent", "a"]).await;
    let mut capabilities = json!({"key": 2});
    if !buttons.is_null() {
        capabilities["buttons"] = buttons;
    }
    let adapter = TestAdapter::active(&node, "main", capabilities).await;
    (agents, node, adapter)
}

impl TestAdapter {
    /// Brings the press of a button; returns the answer.
    async fn bring_press(&mut self, room: &str, sender: &str, message_id: &str, decision: Value) -> Value {
        let request_id = format!("press-{}", decision["press_id"].as_str().expect("an id"));
        self.bring(json!({
            "type": "inbound", "request_id": request_id, "event": "decision", "conversation": self.place(room),
            "sender": {"id": sender}, "message": {"message_id": message_id}, "decision": decision,
        }))
        .await
    }
}

fn outcome(answer: &Value) -> (&str, &str, bool) {
    let of = |name: &str| answer[name].as_str().unwrap_or_default();
    (of("disposition"), of("reason"), answer["duplicate"] == true)
}

/// Covers: BR-36, BD-I4, BR-26.
#[tokio::test]
async fn first_press_of_a_button_is_a_turn() {
    let dir = tempdir().expect("a directory");
    let (agents, mut node, mut adapter) = asking_node(&dir, json!(2)).await;
    let accepted = adapter.bring_message("lobby", "m1", "hello").await;
    let session = accepted["session_id"].as_str().expect("a session").to_owned();
    let part = adapter.next_part().await;
    let expected = json!([{"id": "yes", "label": "Yes, do it", "style": "primary"}, {"id": "no", "label": "No"}]);
    assert_eq!((&part["text"], &part["buttons"]), (&json!("Shall I?"), &expected), "{part}");
    adapter.confirm(&part, "x1").await;
    await_recorded(&node, &session, &["delivery.requested null", "delivery.sent 1"]).await;
    let unknown = adapter.bring_press("lobby", "ann", "x1", json!({"press_id": "p0", "button_id": "maybe"})).await;
    assert_eq!(unknown["code"], "not_found", "{unknown}");
    let press = json!({"press_id": "p1", "button_id": "no"});
    let first = adapter.bring_press("lobby", "bob", "x1", press.clone()).await;
    assert_eq!(outcome(&first), ("run", "", false), "{first}");
    assert_eq!(first["session_id"], session.as_str(), "{first}");
    let answer = adapter.next_part().await;
    assert_eq!((&answer["text"], &answer["reply_to"]), (&json!("you chose no"), &json!("x1")), "{answer}");
    adapter.confirm(&answer, "x2").await;
    let pressed = await_invocations(&agents, 2).await.remove(1);
    let origin = &pressed.context["origin"];
    let decision = json!({"delivery_id": part["delivery_id"], "button_id": "no"});
    assert_eq!((&origin["decision"], &origin["sender"]["id"]), (&decision, &json!("bob")), "{origin}");
    assert_eq!(pressed.text, "No");
    let by_id = json!({"press_id": "p2", "button_id": "yes", "delivery_id": part["delivery_id"]});
    let second = adapter.bring_press("lobby", "ann", "x1", by_id).await;
    assert_eq!(outcome(&second), ("ignored", "decided", false), "{second}");
    // The state, and the ids of presses, outlive the node.
    node.kill_and_restart().await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2, "buttons": 2})).await;
    let again = adapter.bring_press("lobby", "bob", "x1", press).await;
    assert_eq!((outcome(&again), &again["run_id"]), (("run", "", true), &first["run_id"]), "{again}");
    let third = adapter.bring_press("lobby", "ann", "x1", json!({"press_id": "p3", "button_id": "no"})).await;
    assert_eq!(outcome(&third), ("ignored", "decided", false), "{third}");
    assert_eq!(agents.journal().len(), 2);
}

/// Two people press at the same moment, before the first press has reached the session.
#[tokio::test]
async fn one_of_two_presses_at_a_time_counts() {
    let dir = tempdir().expect("a directory");
    let (agents, _node, mut adapter) = asking_node(&dir, json!(1)).await;
    adapter.bring_message("lobby", "m1", "hello").await;
    let part = adapter.next_part().await;
    // The platform shows the message before its receipt is recorded.
    for n in 0..8 {
        let decision = json!({"press_id": format!("p{n}"), "button_id": "yes", "delivery_id": part["delivery_id"]});
        let press = json!({
            "type": "inbound", "request_id": format!("r{n}"), "event": "decision", "conversation": adapter.place("lobby"),
            "sender": {"id": format!("u{n}")}, "message": {"message_id": "x1"}, "decision": decision,
        });
        adapter.client.say(press).await.expect("it is sent");
    }
    let mut answers = Vec::new();
    while answers.len() < 8 {
        let message = adapter.next().await;
        if message["type"] == "inbound_accepted" {
            answers.push(outcome(&message).0.to_owned());
        }
    }
    answers.sort_unstable();
    assert_eq!(answers, [vec!["ignored"; 7], vec!["run"]].concat());
    adapter.confirm(&part, "x1").await;
    adapter.next_part().await;
    assert_eq!(agents.journal().len(), 2);
}

#[tokio::test]
async fn reusable_buttons_are_pressed_again_and_again() {
    let dir = tempdir().expect("a directory");
    let (agents, _node, mut adapter) = asking_node(&dir, json!(2)).await;
    adapter.bring_message("lobby", "m1", "poll").await;
    let part = adapter.next_part().await;
    adapter.confirm(&part, "x1").await;
    for (press_id, button_id, duplicate) in [("p1", "yes", false), ("p2", "no", false), ("p1", "yes", true)] {
        let decision = json!({"press_id": press_id, "button_id": button_id, "delivery_id": part["delivery_id"]});
        let answer = adapter.bring_press("lobby", "ann", "x1", decision).await;
        assert_eq!(outcome(&answer), ("run", "", duplicate), "{answer}");
    }
    for expected in ["you chose yes", "you chose no"] {
        let part = adapter.next_part().await;
        assert_eq!(part["text"], expected, "{part}");
        adapter.confirm(&part, expected).await;
    }
    assert_eq!(agents.journal().len(), 3);
}

/// A press counts only where its delivery went, also if one session has both conversations.
///
/// Covers: BD-R8.
#[tokio::test]
async fn press_in_another_conversation_is_refused() {
    let dir = tempdir().expect("a directory");
    let (agents, node, mut adapter) = asking_node(&dir, json!(2)).await;
    let accepted = adapter.bring_message("lobby", "m1", "hello").await;
    let part = adapter.next_part().await;
    adapter.confirm(&part, "x1").await;
    let press = |id: &str| json!({"press_id": id, "button_id": "yes", "delivery_id": part["delivery_id"]});
    let stranger = adapter.bring_press("hall", "eve", "x1", press("p1")).await;
    assert_eq!((&stranger["type"], &stranger["code"]), (&json!("error"), &json!("not_found")), "{stranger}");
    let bind = json!({"type": "bind", "session_id": accepted["session_id"], "conversation": adapter.place("attic")});
    let bound = adapter.client.ask("b", bind).await.expect("an answer");
    assert_eq!(bound["type"], "bound", "{bound}");
    let forged = adapter.bring_press("attic", "eve", "x1", press("p2")).await;
    assert_eq!((&forged["type"], &forged["code"]), (&json!("error"), &json!("forbidden")), "{forged}");
    // Another account's conversation of the same name.
    let mut other = TestAdapter::active(&node, "other", json!({"key": 2, "buttons": 2})).await;
    let foreign = other.bring_press("lobby", "eve", "x1", press("p3")).await;
    assert_eq!(foreign["code"], "not_found", "{foreign}");
    let true_one = adapter.bring_press("lobby", "ann", "x1", press("p4")).await;
    assert_eq!(outcome(&true_one), ("run", "", false), "{true_one}");
    await_invocations(&agents, 2).await;
}

/// Has a message answered and the answer shown; returns the session and the part.
async fn asked(node: &Node, adapter: &mut TestAdapter, room: &str, id: &str) -> (String, Value) {
    let accepted = adapter.bring_message(room, id, "hello").await;
    let session = accepted["session_id"].as_str().expect("a session").to_owned();
    let part = adapter.next_part().await;
    adapter.confirm(&part, &format!("x-{id}")).await;
    await_recorded(node, &session, &["delivery.requested null", "delivery.sent 1"]).await;
    (session, part)
}

/// A press below an answer of a closed session is refused for good once the conversation has left the session: nothing
/// opens it again. The own session of an unbound conversation is opened, as by its next message.
///
/// Covers: BD-I4.
#[tokio::test]
async fn press_in_a_closed_session_that_was_left_is_refused() {
    let dir = tempdir().expect("a directory");
    let (agents, node, mut adapter) = asking_node(&dir, json!(2)).await;
    let (own, first) = asked(&node, &mut adapter, "lobby", "m1").await;
    let hall = adapter.bring_message("hall", "m0", "poll").await["session_id"].clone();
    let part = adapter.next_part().await;
    adapter.confirm(&part, "x0").await;
    let bind = json!({"type": "bind", "session_id": hall, "conversation": adapter.place("lobby")});
    let bound = adapter.client.ask("b", bind).await.expect("an answer");
    assert_eq!(bound["type"], "bound", "{bound}");
    let answered = adapter.bring_message("lobby", "m2", "hello").await;
    assert_eq!(answered["session_id"], hall, "{answered}");
    let second = adapter.next_part().await;
    adapter.confirm(&second, "x2").await;
    let press =
        |id: &str, part: &Value| json!({"press_id": id, "button_id": "yes", "delivery_id": part["delivery_id"]});
    let close = |session: &Value| json!({"type": "session_close", "session_id": session});
    let closed = adapter.client.ask("c", close(&json!(own))).await.expect("an answer");
    assert_eq!(closed["type"], "session_closed", "{closed}");
    let late = adapter.bring_press("lobby", "ann", "x1", press("p1", &first)).await;
    assert_eq!((&late["code"], &late["retryable"]), (&json!("session_closed"), &json!(false)), "{late}");
    let unbind = json!({"type": "unbind", "session_id": hall});
    let unbound = operator(&node).await.ask("u", unbind).await.expect("an answer");
    assert_eq!(unbound["type"], "unbound", "{unbound}");
    let closed = adapter.client.ask("c2", close(&hall)).await.expect("an answer");
    assert_eq!(closed["type"], "session_closed", "{closed}");
    let later = adapter.bring_press("lobby", "ann", "x2", press("p2", &second)).await;
    assert_eq!((&later["code"], &later["retryable"]), (&json!("session_closed"), &json!(false)), "{later}");
    assert_eq!(agents.journal().len(), 3, "no press has opened a session");
    let opened = adapter.bring_press("lobby", "ann", "x1", press("p3", &first)).await;
    assert_eq!((outcome(&opened), &opened["session_id"]), (("run", "", false), &json!(own)), "{opened}");
    await_invocations(&agents, 4).await;
}

/// Covers: BR-36.
#[tokio::test]
async fn buttons_of_a_conversation_follow_its_capability() {
    let dir = tempdir().expect("a directory");
    let (_agents, _node, mut adapter) = asking_node(&dir, Value::Null).await;
    let lines = "Shall I?\n\n1. Yes, do it\n2. No";
    let declared =
        [(None, lines, false), (Some(2), "Shall I?", true), (Some(0), lines, false), (Some(-1), "Shall I?", false)];
    for (n, (level, text, is_native)) in declared.into_iter().enumerate() {
        if let Some(level) = level {
            let change = json!({
                "type": "capabilities", "conversation": adapter.place("lobby"), "capabilities": {"buttons": level},
            });
            let set = adapter.client.ask("c", change).await.expect("an answer");
            assert_eq!(set["type"], "capabilities_set", "{set}");
        }
        adapter.bring_message("lobby", &format!("m{n}"), "hello").await;
        let part = adapter.next_part().await;
        assert_eq!((&part["text"], part["buttons"].is_array()), (&json!(text), is_native), "{level:?}: {part}");
        adapter.confirm(&part, &format!("x{n}")).await;
    }
}

/// Answers as [`answer`] does, but never to the first attempt at a press.
fn answer_press_later(invocation: &Invocation) -> Reply {
    let is_press = invocation.context["origin"]["decision"].is_object();
    if is_press && invocation.attempt == 1 { Reply::Silence } else { answer(invocation) }
}

/// Has a button pressed at one node while another one owns the session, and perhaps kills the owner while the agent works
/// on the press.
async fn press_at_another_node(owner_dies: bool) {
    let dirs = directories();
    let script = if owner_dies { answer_press_later } else { answer };
    let agents = Agents::start(move |invocation| script(&invocation)).await;
    let flag = format!("{},on_owner_loss=retry", agents.flag("a"));
    let (_redis, [mut owner, other]) = two_nodes_with(&dirs, &["--agent", &flag, "--default-agent", "a"]).await;
    let capabilities = json!({"key": 2, "buttons": 2});
    let mut adapter = TestAdapter::active(&other, "main", capabilities.clone()).await;
    let mut standby = TestAdapter::connect(&owner, "main", capabilities).await;
    standby.await_state("standby").await;
    let accepted = standby.bring_message("lobby", "m1", "hello").await;
    let session = accepted["session_id"].as_str().expect("a session").to_owned();
    let part = adapter.next_part().await;
    adapter.confirm(&part, "x1").await;
    let press = json!({"press_id": "p1", "button_id": "no"});
    let by_id = json!({"press_id": "p1", "button_id": "no", "delivery_id": part["delivery_id"]});
    let first = adapter.bring_press("lobby", "bob", "x1", by_id).await;
    assert_eq!((outcome(&first), &first["session_id"]), (("run", "", false), &json!(session)), "{first}");
    let asked = await_invocations(&agents, 2).await;
    assert_eq!(asked[0].epoch, asked[1].epoch, "the owner of the answer has the press, not the adapter's node");
    if owner_dies {
        owner.kill().await;
    }
    let answer = adapter.next_part().await;
    assert_eq!((&answer["text"], &answer["reply_to"]), (&json!("you chose no"), &json!("x1")), "{answer}");
    adapter.confirm(&answer, "x2").await;
    let sent = ["delivery.requested null", "delivery.sent 1"];
    await_recorded(&other, &session, &[sent, sent].concat()).await;
    // The present owner of the session knows the first press.
    let again = adapter.bring_press("lobby", "bob", "x1", press).await;
    assert_eq!((outcome(&again), &again["run_id"]), (("run", "", true), &first["run_id"]), "{again}");
    let later = adapter.bring_press("lobby", "ann", "x1", json!({"press_id": "p2", "button_id": "yes"})).await;
    assert_eq!(outcome(&later), ("ignored", "decided", false), "{later}");
    let pressed = agents.journal().into_iter().filter(|asked| asked.run_id == first["run_id"]);
    let attempts: Vec<u64> = pressed.map(|asked| asked.attempt).collect();
    assert_eq!(attempts, if owner_dies { vec![1, 2] } else { vec![1] }, "one turn");
    let runs: BTreeSet<String> = agents.journal().into_iter().map(|asked| asked.run_id).collect();
    assert_eq!(runs.len(), 2, "the message and the first press: {runs:?}");
}

/// Covers: BD-I4, BR-26.
#[tokio::test]
async fn press_at_another_node_is_one_turn_of_the_owner() {
    press_at_another_node(false).await;
}

/// Covers: BD-I4, BR-26, BD-Q1.
#[tokio::test]
async fn press_survives_the_owner_of_its_answer() {
    press_at_another_node(true).await;
}
