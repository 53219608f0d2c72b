//! Conversations that clients have made within others, and that are then bound to the session.
use crate::script::check;

/// A client's request for a conversation in the lobby reaches the owner.
macro_rules! asked {
    ($delivery_id:literal, $creation_id:literal) => {
        concat!(
            r#"control {"ask":"create_conversation","creation":{"delivery_id":""#,
            $delivery_id,
            r#"","creation_id":""#,
            $creation_id,
            r#"","parent":{"channel":"rooms","account_id":"main","conversation_id":"lobby"},"name":"plan","#,
            r#""binding":{"target_kind":"session","idle_timeout_ms":60000}}}"#,
        )
    };
}

/// One conversation is made and not bound, another one is not made.
pub(crate) const TWO_CREATIONS: &str = concat!(
    asked!("aaaaaaaaaaaaaaaaaaaaaaaaaa", "c"),
    "; delivery created; ",
    asked!("bbbbbbbbbbbbbbbbbbbbbbbbbb", "d")
);
const ASKED: &str = asked!("aaaaaaaaaaaaaaaaaaaaaaaaaa", "c");
const OTHER: &str = asked!("bbbbbbbbbbbbbbbbbbbbbbbbbb", "d");
const BOUND: &str = r#"control {"ask":"record_binding","bound":{"binding_id":"7.t1","target_kind":"session","bound_at":1,"conversation":{"channel":"rooms","account_id":"main","conversation_id":"t1","parent_conversation_id":"lobby"}}}"#;
const REQUESTED: &str = "requested(1) answered DELIVER(1/1,1 plan)";
const MADE: &str = "requested(1) answered DELIVER(1/1,1 plan) sent(1/1) BIND(t1 in lobby)";

/// Covers: BD-B2, BD-B3, BR-31.
#[test]
fn made_conversation_is_bound_once_its_receipt_is_durable() {
    check(ASKED, REQUESTED);
    check(&format!("{ASKED}; delivery created"), MADE);
    check(&format!("{ASKED}; hold; delivery created"), &format!("{REQUESTED} sent(1/1)"));
    // The log says that it is bound; the receipt that comes again changes nothing.
    check(
        &format!("{ASKED}; delivery created; bound yes; {BOUND}; delivery created; wait 60000"),
        &format!("{MADE} binding.bound answered"),
    );
}

/// Covers: BD-B3, BD-Q7.
#[test]
fn next_owner_binds_what_an_earlier_one_had_made() {
    check(&format!("{ASKED}; delivery created; crash; wait 0"), &format!("{MADE} | BIND(t1 in lobby)"));
    check(
        &format!("{ASKED}; delivery created; {BOUND}; crash; wait 60000"),
        &format!("{MADE} binding.bound answered |"),
    );
    // The platform may have made it although the receipt is lost, so the next owner asks and makes no other.
    check(&format!("{ASKED}; crash; wait 0"), &format!("{REQUESTED} | DELIVER(1/1,1? plan)"));
}

/// Covers: BD-B3, BR-30.
#[test]
fn conversation_that_cannot_be_bound_has_a_visible_reason() {
    let asked = format!("{ASKED}; delivery created");
    check(&format!("{asked}; bound no"), &format!("{MADE} undelivered(1,not_bound)"));
    // An operator has it bound again, and not made again.
    check(
        &format!("{asked}; bound no; operator retry; bound yes; {BOUND}"),
        &format!("{MADE} undelivered(1,not_bound) redriven answered BIND(t1 in lobby) binding.bound answered"),
    );
    check(
        &format!("{asked}; bound no; operator drop"),
        &format!("{MADE} undelivered(1,not_bound) undelivered(1,dropped) answered"),
    );
    // The store does not answer, or the answer is lost.
    check(&format!("{asked}; bound unknown; wait 5000"), &format!("{MADE} BIND(t1 in lobby)"));
    check(&format!("{asked}; wait 10000"), &format!("{MADE} BIND(t1 in lobby)"));
}

/// Covers: BD-B3.
#[test]
fn conversation_that_the_platform_refuses_has_a_visible_reason() {
    for class in ["permission", "gone", "invalid", "conflict"] {
        check(&format!("{ASKED}; delivery {class}"), &format!("{REQUESTED} undelivered(1,{class})"));
    }
    check(&format!("{ASKED}; delivery unsupported"), &format!("{REQUESTED} undelivered(1,not_supported)"));
    // Nothing is suppressed in the lobby by that.
    check(
        &format!("{ASKED}; delivery permission; {OTHER}"),
        &format!("{REQUESTED} undelivered(1,permission) {REQUESTED}"),
    );
}
