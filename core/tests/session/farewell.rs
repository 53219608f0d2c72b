//! Farewells: the last word to a conversation whose binding has ended.
use crate::script::{Script, check};
use turnway_core::protocol::agent::OnOwnerLoss;
use turnway_core::protocol::entry::{DeliveryFact, Fact};

const ANSWERED: &str = "session.opened user.message admitted(a,Run) run.started INVOKE(a,1) agent.invoke.started 0'hi' \
    stretch(0+2) agent.invoke.done done(2) requested(1) DELIVER(1/1,1 hi)";
const SAID: &str = "requested(1) binding.ended answered DELIVER(1/1,1 bye)";

/// Returns the step in which the log is to record the end of a binding.
fn end(generation: u64, room: &str, farewell: bool) -> String {
    let (channel, id) = room.split_once('/').unwrap_or(("rooms", room));
    let conversation = format!(r#"{{"channel":"{channel}","account_id":"main","conversation_id":"{id}"}}"#);
    let ended = format!(
        r#"{{"binding_id":"{generation}.{id}","reason":"idle_expired","ended_at":1,"conversation":{conversation}}}"#
    );
    format!(r#"control {{"ask":"record_binding_end","ended":{ended},"farewell":{farewell}}}"#)
}

/// Covers: BD-L2.
#[test]
fn conversation_gets_one_farewell_where_its_channel_has_one() {
    check(&end(7, "lobby", true), SAID);
    check(&format!("{}; delivery sent", end(7, "lobby", true)), &format!("{SAID} sent(1/1)"));
    check(&end(7, "lobby", false), "binding.ended answered");
    check(&end(7, "quiet/x", true), "binding.ended answered");
    // Another binding of the conversation has a farewell of its own.
    let twice = format!("{}; delivery sent; {}", end(7, "lobby", true), end(8, "lobby", true));
    check(&twice, &format!("{SAID} sent(1/1) {SAID}"));
}

/// Nothing is sent before both facts are durable, and an owner that stops between them has said nothing.
///
/// Covers: BD-L2, BR-01.
#[test]
fn farewell_is_neither_lost_nor_said_twice_by_a_crash() {
    let ended = end(7, "lobby", true);
    check(&format!("hold; {ended}"), "requested(1) binding.ended");
    check(
        &format!("hold; {ended}; lose; crash; settle"),
        "requested(1) binding.ended | binding.ended answered DELIVER(1/1,1? bye)",
    );
    check(&format!("{ended}; crash; wait 0; delivery sent"), &format!("{SAID} | DELIVER(1/1,1? bye) sent(1/1)"));
}

/// Covers: BR-21.
#[test]
fn farewell_follows_what_the_conversation_is_owed() {
    let asked = format!("hears m1; ack; text hi; done; {}", end(7, "lobby", true));
    check(&asked, &format!("{ANSWERED} requested(1) binding.ended answered"));
    check(
        &format!("{asked}; delivery sent"),
        &format!("{ANSWERED} requested(1) binding.ended answered sent(1/1) DELIVER(1/1,1 bye)"),
    );
}

/// Covers: BR-18.
#[test]
fn suppressed_place_gets_no_farewell() {
    let script = format!("hears m1; ack; text hi; done; delivery gone; {}", end(7, "lobby", true));
    check(&script, &format!("{ANSWERED} undelivered(1,gone) binding.ended answered"));
}

/// Covers: BR-05.
#[test]
fn farewell_is_about_no_run_and_named_after_its_binding() {
    let mut script = Script::new(OnOwnerLoss::Retry);
    for generation in [7, 8] {
        script.step(&end(generation, "lobby", true));
        script.step("delivery sent");
    }
    let requested = script.log.iter().filter_map(|(_, entry)| {
        let Fact::Delivery(DeliveryFact::Requested(requested)) = &entry.fact else { return None };
        Some(requested)
    });
    let requested: Vec<_> = requested.collect();
    assert_eq!(requested.len(), 2);
    assert!(requested.iter().all(|it| it.about_run.is_none() && it.kind.as_str() == "farewell"), "{requested:?}");
    assert_ne!(requested[0].delivery_id, requested[1].delivery_id);
}

/// A node of an earlier release could not read the fact.
#[test]
fn fleet_with_an_earlier_release_says_no_farewell() {
    let mut script = Script::new(OnOwnerLoss::Retry);
    script.runtime.set_fact_level(3);
    script.step(&end(7, "lobby", true));
    assert_eq!(script.record, ["binding.ended", "answered"]);
}
