//! Mirrors: conversations that get the answers of turns that came from plain clients.
use crate::script::check;

const BOUND: &str = "binding.bound answered";
const ANSWERED: &str = "session.opened user.message admitted(a,Run) run.started INVOKE(a,1) agent.invoke.started 0'hi' \
    stretch(0+2) agent.invoke.done done(2)";
const TURN: &str = "say m1; ack; text hi; done";

/// Returns the step in which the log is to record a binding of a conversation of `rooms`.
fn bind(generation: u64, id: &str, mirror: bool) -> String {
    let conversation = format!(r#"{{"channel":"rooms","account_id":"main","conversation_id":"{id}"}}"#);
    let bound = format!(
        r#"{{"binding_id":"{generation}.{id}","target_kind":"session","bound_at":1,"conversation":{conversation},"mirror":{mirror}}}"#
    );
    format!(r#"control {{"ask":"record_binding","bound":{bound}}}"#)
}

fn unbind(generation: u64, id: &str) -> String {
    let conversation = format!(r#"{{"channel":"rooms","account_id":"main","conversation_id":"{id}"}}"#);
    let ended =
        format!(r#"{{"binding_id":"{generation}.{id}","reason":"manual","ended_at":1,"conversation":{conversation}}}"#);
    format!(r#"control {{"ask":"record_binding_end","ended":{ended}}}"#)
}

#[test]
fn answer_of_a_client_goes_to_the_mirrors_only() {
    let [lobby, attic] = [bind(7, "lobby", true), bind(8, "attic", true)];
    let mirrored = format!("{BOUND} {ANSWERED} requested(1) STANDS(lobby,7)");
    check(&format!("{lobby}; {TURN}"), &mirrored);
    check(&format!("{lobby}; {TURN}; stands yes; delivery sent"), &format!("{mirrored} DELIVER(1/1,1 hi) sent(1/1)"));
    check(&format!("{}; {TURN}", bind(7, "lobby", false)), &format!("{BOUND} {ANSWERED}"));
    check(
        &format!("{lobby}; {attic}; {TURN}"),
        &format!("{BOUND} {BOUND} {ANSWERED} requested(1) requested(1) STANDS(lobby,7) STANDS(attic,8)"),
    );
}

/// The reply of a conversation's message goes to that conversation, once, and to no other.
#[test]
fn answer_of_a_conversation_is_not_mirrored() {
    let bound = [bind(7, "lobby", true), bind(8, "attic", true)].join("; ");
    let answered = format!("{BOUND} {BOUND} {ANSWERED} requested(1) DELIVER(1/1,1 hi)");
    check(&format!("{bound}; hears m1; ack; text hi; done"), &answered);
}

/// The mirrors are those at the end of the turn, and each binding still has to stand when the answer is sent.
///
/// Covers: BR-01.
#[test]
fn mirrors_are_frozen_at_the_end_of_the_turn() {
    let lobby = bind(7, "lobby", true);
    let end = unbind(7, "lobby");
    let ended = "binding.ended answered";
    check(
        &format!("{lobby}; say m1; ack; text hi; {end}; done"),
        &format!(
            "{BOUND} {} {ended} stretch(0+2) agent.invoke.done done(2)",
            ANSWERED.split(" stretch").next().unwrap_or("")
        ),
    );
    check(
        &format!("{lobby}; {TURN}; {end}"),
        &format!("{BOUND} {ANSWERED} requested(1) STANDS(lobby,7) binding.ended undelivered(1,rebound) answered"),
    );
    // A binding that is made again has its own word.
    let again = bind(9, "lobby", true);
    check(
        &format!("{lobby}; {end}; {again}; {TURN}"),
        &format!("{BOUND} {ended} {BOUND} {ANSWERED} requested(1) STANDS(lobby,9)"),
    );
}

#[test]
fn turn_without_an_answer_is_not_mirrored() {
    let lobby = bind(7, "lobby", true);
    let begun = "session.opened user.message admitted(a,Run) run.started INVOKE(a,1)";
    check(&format!("{lobby}; say m1; gone"), &format!("{BOUND} {begun} failed(agent_unavailable) DROP"));
    check(
        &format!("{lobby}; say m1; ack; done"),
        &format!("{BOUND} {begun} agent.invoke.started agent.invoke.done done(0)"),
    );
}

/// An owner that stops between the end of the turn and the request leaves the request to the next one, which makes it
/// once.
///
/// Covers: BR-01, BD-Q1.
#[test]
fn mirrored_answer_survives_its_owner() {
    let script = format!("{}; say m1; ack; text hi; hold; done; lose; crash; settle; wait 0", bind(7, "lobby", true));
    check(&script, &format!("{BOUND} {ANSWERED} requested(1) | requested(1) STANDS(lobby,7)"));
    let script = format!("{}; {TURN}; crash; wait 0; stands yes; delivery sent; crash", bind(7, "lobby", true));
    check(
        &script,
        &format!("{BOUND} {ANSWERED} requested(1) STANDS(lobby,7) | STANDS(lobby,7) DELIVER(1/1,1? hi) sent(1/1) |"),
    );
}
