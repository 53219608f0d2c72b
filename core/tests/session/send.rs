//! Texts that clients send to conversations without a turn.
use crate::script::check;

/// Returns the step in which a client's text, whose place the router has chosen, reaches the owner.
fn send(id: char, route: &str, text: &str) -> String {
    let conversation = r#"{"channel":"rooms","account_id":"main","conversation_id":"lobby"}"#;
    let delivery_id = id.to_string().repeat(26);
    format!(
        r#"control {{"ask":"send_message","send":{{"delivery_id":"{delivery_id}","message_id":"m","conversation":{conversation},"route":{route},"text":"{text}"}}}}"#
    )
}

const BOUND: &str = r#"{"mode":"bound","reason":"only_binding_on_account","generation":7}"#;
const FALLBACK: &str = r#"{"mode":"fallback","reason":"no_active_binding"}"#;
const ENDED: &str = r#"control {"ask":"record_binding_end","ended":{"binding_id":"7.lobby","reason":"manual","ended_at":1,"conversation":{"channel":"rooms","account_id":"main","conversation_id":"lobby"}}}"#;

/// Covers: BD-S8, BD-S9.
#[test]
fn text_of_a_client_is_sent_while_its_binding_stands() {
    let asked = "requested(1) answered STANDS(lobby,7)";
    check(&send('a', BOUND, "hello"), asked);
    check(
        &format!("{}; stands yes; delivery sent", send('a', BOUND, "hello")),
        &format!("{asked} DELIVER(1/1,1 hello) sent(1/1)"),
    );
    check(&format!("{}; stands no", send('a', BOUND, "hello")), &format!("{asked} undelivered(1,rebound)"));
    check(
        &format!("{}; {ENDED}", send('a', BOUND, "hello")),
        &format!("{asked} binding.ended undelivered(1,rebound) answered"),
    );
    check(&send('a', FALLBACK, "hello"), "requested(1) answered DELIVER(1/1,1 hello)");
}

/// Covers: BR-21, BD-I1.
#[test]
fn texts_are_sent_in_order_and_only_when_durable() {
    let both = [send('a', FALLBACK, "one"), send('b', FALLBACK, "two")].join("; ");
    check(&both, "requested(1) answered DELIVER(1/1,1 one) requested(1) answered");
    check(
        &format!("{both}; delivery sent"),
        "requested(1) answered DELIVER(1/1,1 one) requested(1) answered sent(1/1) DELIVER(1/1,1 two)",
    );
    check(&format!("hold; {}", send('a', FALLBACK, "one")), "requested(1)");
    // The next owner finds the entry, or the request.
    check(
        &format!("hold; {}; lose; crash; settle", send('a', FALLBACK, "one")),
        "requested(1) | requested(1) answered DELIVER(1/1,1 one)",
    );
    check(
        &format!("{}; crash; wait 0", send('a', FALLBACK, "one")),
        "requested(1) answered DELIVER(1/1,1 one) | DELIVER(1/1,1? one)",
    );
}
