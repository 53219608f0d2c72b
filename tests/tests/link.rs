//! The state machine of one client connection, driven by scripts.
//!
//! Covers: S-04, S-11, S-13, S-38, MP-A6, MP-C1, MP-C2, MP-C14, LN-MP2, LN-MP4, LN-MP5, ST-40.
#[path = "link/order.rs"]
mod order;
#[path = "link/random_scripts.rs"]
mod random_scripts;
#[path = "link/script.rs"]
mod script;

use script::{Fixture, admitted, check, check_open, config, hello, text_note};
use serde_json::json;
use turnway_core::machine::Machine;
use turnway_core::time::Now;
use turnway_node::link::{Input, Link, LinkConfig};

/// Covers: S-04, MP-C2.
#[test]
fn missing_hello_times_out() {
    check("+4999", "");
    check("+5000", "CLOSE 4408");
    check("alive; +3000; alive; +2000; hello", "CLOSE 4408");
    check("+4999; hello; +1000; admit", "asks the door; welcome");
    check("hello; +59999", "asks the door");
    check("hello; +60000", "asks the door; CLOSE 1001");
}

/// Covers: S-04, LN-MP2.
#[test]
fn message_before_hello_closes_the_link() {
    for first in ["ping", "invoke", "type tool_result", "type launch", "say hi", "say {}", "say "] {
        let mut stage = Fixture::new();
        stage.play(first);
        assert_eq!(stage.outputs.last().map(String::as_str), Some("CLOSE 4401"), "{first}");
        assert!(stage.outputs[0].starts_with("error unauthorized") && stage.outputs.len() == 2, "{first}");
    }
    check(r#"say {"type":"hello","user_id":7}; hello"#, "error unauthorized; CLOSE 4401");
    check("binary", "CLOSE 1003");
    check("too-large", "error too_large; CLOSE 4413");
    check("big-hello", "error too_large; CLOSE 4413");
    check("admit; deny; flush; refused", "");
}

/// Covers: S-04, LN-MP2, S-07.
#[test]
fn authentication_decides_on_admission() {
    check("hello; deny; ping; +600000", "asks the door; error unauthorized; CLOSE 4401");
    check("hello; admit; admit; deny", "asks the door; welcome");
    // Roles that do not name themselves and their capabilities.
    check("hello-as adapter; admit", "error unauthorized; CLOSE 4401");
    check("hello-as tool_runner; admit", "error unauthorized; CLOSE 4401");
    check("hello-as user; admit", "asks the door; welcome");
    check("hello-as agent; forbid; ping", "asks the door; error forbidden; CLOSE 4403");
    check("hello-as king", "error unauthorized; CLOSE 4401");
}

/// Keeps messages that arrive before `welcome`, within limits.
#[test]
fn messages_before_welcome_are_handled_after_it() {
    check("hello; invoke; ping; say x", "asks the door");
    check(
        "hello-resuming 2; invoke; ping; say x; admit",
        "asks the door; welcome; subscribe; waits; invoke; pong r1; error invalid_message",
    );
    check("hello; ping *16; deny", "asks the door; error unauthorized; CLOSE 4401");
    check("hello; ping *17; admit", "asks the door; error rate_limited; CLOSE 4429");
    check("hello; padded 40000; padded 30000; admit", "asks the door; error rate_limited; CLOSE 4429");
    check("hello; padded 40000; admit", "asks the door; welcome; pong");
}

/// Covers: LN-MP2, MP-C4, MP-C5, S-13.
#[test]
fn bad_message_gets_an_error_and_ten_close_the_link() {
    check_open("say nonsense; invoke", "error invalid_message; invoke");
    check_open("hello; invoke", "error invalid_message; invoke");
    check_open("type session_close", "error invalid_message r1");
    let nine = ["error invalid_message"; 9].join("; ");
    check_open("say x *9; flush", &nine);
    check_open("say x *11", &format!("{nine}; error invalid_message; CLOSE 4400"));
    check_open("say x *9; flush; alive; +60000; say x", &format!("{nine}; PING; PING; CLOSE 1001"));
    check_open(
        "say x *9; flush; +40000; alive; +20000; say x; invoke",
        &format!("{nine}; PING; PING; error invalid_message; invoke"),
    );
    // Unknown types, and types of other roles, do not count as bad messages.
    check_open("type launch *12; invoke", &format!("{}; invoke", ["error invalid_message r1"; 12].join("; ")));
    check_open("type register_tools *12; invoke", &format!("{}; invoke", ["error invalid_message r1"; 12].join("; ")));
}

/// Covers: S-11.
#[test]
fn oversized_or_binary_message_closes_the_link() {
    check_open("too-large; invoke", "error too_large; CLOSE 4413");
    check_open("padded 65510", "pong");
    check_open("padded 65536; invoke", "error too_large; CLOSE 4413");
    check_open("binary; invoke", "CLOSE 1003");
}

/// Covers: S-03.
#[test]
fn expired_token_closes_the_link_unless_refreshed() {
    check("hello; admit-for 10000; flush; +24999", "asks the door; welcome");
    check(
        "hello; admit-for 10000; flush; +35000; +600000",
        "asks the door; welcome; PING; error unauthorized; CLOSE 4401",
    );
    // A token that has expired already still has its grace period.
    check("hello; admit-for 0; flush; +25000", "asks the door; welcome; error unauthorized; CLOSE 4401");
    let told = "asks the door; welcome; PING; asks again; refreshed r1; PING";
    check("hello; admit-for 10000; flush; +30000; refresh; refreshed-for 50000; flush; +44999", told);
    check(
        "hello; admit-for 10000; flush; +30000; refresh; refreshed-for 50000; flush; +45000",
        &format!("{told}; error unauthorized; CLOSE 4401"),
    );
    // A refused refresh closes the link at once, and a needless one is an error.
    check(
        "hello; admit-for 10000; flush; refresh; not-refreshed; refreshed-for 10000; invoke",
        "asks the door; welcome; asks again; error unauthorized r1; CLOSE 4401",
    );
    check_open("refresh; nothing-to-refresh; invoke", "asks again; error invalid_message r1; invoke");
    check_open("type refresh", "error invalid_message r1");
    check("refresh", "error unauthorized; CLOSE 4401");
}

/// Covers: LN-MP5, ST-40.
#[test]
fn silent_peer_is_pinged_then_closed() {
    check_open("+24999", "");
    check_open("+59999", "PING; PING");
    check_open("+60000; +600000", "PING; PING; CLOSE 1001");
    check_open("+50000; alive; +59999", "PING; PING; PING; PING");
    check_open("+50000; ping; flush; +59999", "PING; PING; pong r1; PING; PING");
    // A message to the peer is no sign of life of the peer.
    check_open("+50000; refused; flush; +10000", "PING; PING; error not_found r1; CLOSE 1001");
}

/// Covers: LN-MP4, S-15.
#[test]
fn peer_that_does_not_read_is_closed() {
    check_open("refused; +20000; alive; +9999", "error not_found r1; PING");
    check_open("refused; +20000; alive; +10000", "error not_found r1; PING; CLOSE 4508");
    // Further messages do not extend the deadline; a flush does.
    check_open("refused; +20000; refused; +10000", "error not_found r1; error not_found r1; PING; CLOSE 4508");
    check_open("refused; +20000; flush; refused; alive; +29999", "error not_found r1; error not_found r1; PING");
    check_open("silent 10; +29999; alive; +30000", "PING; PING");
}

/// Covers: G8: the sender learns what arrived, and never waits for what shows as nothing.
#[test]
fn written_bytes_are_reported_in_batches() {
    check_open("text 1000; flush", "delta");
    check_open("text 65279; flush", "delta");
    check_open("text 65280; flush; flush", "delta; written 65536");
    check_open("text 40000; flush; text 40000; text 1; flush", "delta; delta; delta; written 80769");
    check_open("text 40000; text 40000", "delta; delta");
    check_open("silent 16384 *4", "written 67584");
    check_open("text 1; silent 65536; flush", "delta; written 66305");
    check_open("ping *300; flush", &["pong r1"; 300].join("; "));
}

/// Covers: G8, S-15: text beside the others waits for its streams, and counts once they have it.
#[test]
fn side_stream_bytes_are_counted_when_written() {
    check_open("flows 40000; flows 30000; flows 10", "written 70000");
    check_open("text 40000; flush; creeps 30000", "delta; written 70256");
    // While much text waits in the streams, all written bytes are reported at once.
    check_open("flows 40; fills; fills 10; text 5; flush; flows 10", "written 40; written 10; delta; written 261");
    check_open("stands; +29999; alive; +30000; alive", "PING; CLOSE 4508");
    check_open("stands; +20000; stands; alive; +10000; alive", "PING; CLOSE 4508");
    // Slow progress extends the deadline once, and sufficient progress extends it without end.
    check_open("stands; +20000; creeps 1; alive; +29999; alive", "written 1; PING");
    check_open("stands; +20000; creeps 1; alive; +30000; alive", "written 1; PING; CLOSE 4508");
    check_open("stands; +20000; flows; alive; +40000; alive; +40000", "PING; PING; PING; PING");
    // Other messages that are written do not prove that the streams are read.
    check_open("stands; +20000; refused; flush; alive; +10000", "error not_found r1; written 512; PING; CLOSE 4508");
    let mut stage = Fixture::new();
    stage.link = Link::new(stage.now, LinkConfig { side_streams: true, ..config() });
    stage.play("hello; admit; flush; text 65280; flush");
    assert!(stage.outputs.last().is_some_and(|told| told.starts_with("aside 1 ")), "{:?}", stage.outputs);
    stage.outputs.clear();
    stage.play("flows 65536");
    assert_eq!(stage.outputs, ["written 65536"]);
}

#[test]
fn go_away_precedes_the_close() {
    check_open("go-away; flush; +9999; invoke", "go_away; invoke");
    check_open("go-away; flush; +5000; go-away; flush; +5000; invoke", "go_away; go_away; CLOSE 4503");
}

/// Covers: S-38.
#[test]
fn debug_output_contains_no_content() {
    let mut link = Link::new(Now::default(), config());
    let first = hello(json!({}));
    let mut printed = format!("{first:?}");
    for input in [first, admitted(None), text_note(3), Input::Text("canary-text".to_owned())] {
        printed += &format!("{input:?}");
        link.handle_input(Now::default(), input);
        printed += &format!("{link:?}");
        while let Some(output) = link.poll_output() {
            printed += &format!("{output:?}");
        }
    }
    assert!(!printed.contains("canary") && !printed.contains("xxx"), "{printed}");
}
