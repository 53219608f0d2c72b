//! What clients send: messages, bodies of requests, cursors, queries.
use http::Uri;
use serde_json::Value;
use std::time::Duration;
use turnway::http::query::Query;
use turnway_bindings::channel::json::parse::{parse, parse_turn};
use turnway_bindings::channel::openai::Call;
use turnway_bindings::channel::sse::{Cursor, log};
use turnway_bindings::link::{Input, Link, LinkConfig, Output, Renewal};
use turnway_core::id::{NodeId, Principal, SessionId, TenantId, UserId};
use turnway_core::machine::Machine;
use turnway_core::time::{Millis, Mono, Now};

/// What a refusal may tell at the most: it never repeats what was sent.
const REFUSAL_BYTES_MAX: usize = 300;
/// Outputs of a link for one message, at the most: a `hello` with all its subscriptions, and an answer.
const OUTPUTS_MAX: usize = 128;

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// Messages of a client, a line each: to the parser, and to a link that has been greeted and one that has not.
pub fn message(bytes: &[u8]) -> usize {
    let Some(text) = text(bytes) else { return 0 };
    let (mut stranger, mut friend) = (link(), link());
    hear(&mut friend, r#"{"type":"hello","user_id":"ann"}"#);
    let mut good = 0;
    for line in text.lines() {
        match parse(line) {
            Ok(_) => good += 1,
            Err(malformed) => {
                let why = malformed.flaw.to_string();
                assert!(!why.is_empty() && why.len() < REFUSAL_BYTES_MAX, "{why}");
            }
        }
        hear(&mut stranger, line);
        hear(&mut friend, line);
    }
    good
}

fn now() -> Now {
    Now { mono: Mono(Duration::from_secs(1)), store: Millis(1_764_000_000_000) }
}

fn link() -> Link {
    let config = LinkConfig {
        node: NodeId(7),
        connection_id: "c1".to_owned(),
        resume_window_ms: 0,
        durability: "fsync",
        heartbeat_permille: 1000,
        asides: false,
    };
    Link::new(now(), config)
}

/// Tells a link, and lets it have what it asks for. All it writes is JSON.
fn hear(link: &mut Link, text: &str) {
    link.handle_input(now(), Input::Text(text.to_owned()));
    let mut outputs = 0;
    while let Some(output) = link.poll_output() {
        outputs += 1;
        assert!(outputs <= OUTPUTS_MAX, "a link answers without an end");
        match output {
            Output::Hello(hello) => {
                let user = hello.user.unwrap_or_else(UserId::local);
                let principal =
                    Principal { tenant: TenantId::default_tenant(), user, operator: false, writes: true };
                let expires = Some(now().store.after(Duration::from_secs(60)));
                link.handle_input(now(), Input::Admitted { principal, expires });
            }
            Output::Refresh { request_id, token } => {
                let renewals = [Renewal::Until(now().store), Renewal::Needless, Renewal::Denied];
                let renewal = renewals[token.0.len() % renewals.len()];
                link.handle_input(now(), Input::Refreshed { request_id, renewal });
            }
            Output::Write(text) => {
                let said: Value = serde_json::from_str(&text).expect("a link writes JSON");
                assert!(said["type"].is_string() && said["ts"].is_u64(), "{said}");
            }
            Output::Aside(_) | Output::NoMoreAside { .. } => panic!("nobody said that it takes them"),
            Output::Command(_) | Output::Waits | Output::Ping | Output::Written(_) | Output::Close { .. } => {
            }
        }
    }
}

/// The body of a turn over HTTP.
pub fn turn(bytes: &[u8]) -> usize {
    let (Some(text), Ok(session)) = (text(bytes), SessionId::parse("s1")) else { return 0 };
    match parse_turn(text, &session) {
        Ok(invoke) => {
            assert_eq!(invoke.session, Some(session));
            1
        }
        Err(malformed) => {
            assert!(malformed.flaw.to_string().len() < REFUSAL_BYTES_MAX);
            0
        }
    }
}

/// The body of a call of an OpenAI client.
pub fn openai(bytes: &[u8]) -> usize {
    let Some(text) = text(bytes) else { return 0 };
    match Call::parse(text) {
        Ok(_) => 1,
        Err(trouble) => {
            let told: Value = serde_json::from_str(&trouble.json()).expect("an error is JSON");
            assert!(told["error"].is_object(), "{told}");
            0
        }
    }
}

/// `Last-Event-ID` of both kinds: what is read is written the same.
pub fn cursors(bytes: &[u8]) -> usize {
    let Some(text) = text(bytes) else { return 0 };
    let (cursor, place) = (Cursor::parse(text), log::place(text));
    if let Ok(cursor) = &cursor {
        assert_eq!(cursor.to_string(), text);
    }
    if let Ok(place) = &place {
        assert_eq!(format!("{}-{}", place.seq.0, place.epoch.0), text);
    }
    usize::from(cursor.is_ok()) + usize::from(place.is_ok())
}

/// A request's target with its query.
pub fn query(bytes: &[u8]) -> usize {
    let Ok(uri) = Uri::try_from(bytes) else { return 0 };
    let Ok(query) = Query::of(&uri) else { return 0 };
    let limit = query.limit();
    if let Ok(limit) = limit {
        assert!(limit <= turnway::http::query::LIMIT_MAX, "{limit}");
    }
    let after = query.number("after_seq").is_ok_and(|number| number.is_some());
    usize::from(limit.is_ok())
        + usize::from(after)
        + usize::from(query.types().is_ok())
        + usize::from(query.text("before").is_some())
}
