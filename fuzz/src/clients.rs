//! Fuzz targets for input from clients: messages, request bodies, cursors and queries.
use http::Uri;
use serde_json::Value;
use std::time::Duration;
use turnway::http::query::HttpQuery;
use turnway_core::id::{BlobHash, EventId, NodeId, Principal, SessionId, TenantId, UserId};
use turnway_core::machine::Machine;
use turnway_core::time::{Millis, Mono, Now};
use turnway_node::connection::RefreshOutcome;
use turnway_node::link::{Input, Link, LinkConfig, LinkEvent, Output};
use turnway_wire::channel::json::parse::{parse, parse_turn};
use turnway_wire::channel::openai::{ChatCall, ChatCallIds};
use turnway_wire::channel::sse::{TurnCursor, log};

/// Maximum length of a refusal, which must not repeat the input.
const REFUSAL_BYTES_MAX: usize = 300;
/// Maximum outputs of a link for one message: a `hello` with all its subscriptions, and an answer.
const OUTPUTS_MAX: usize = 128;

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// Feeds each line as a client's message to the parser, to a link after `hello` and to a link before it.
pub fn message(bytes: &[u8]) -> usize {
    let Some(text) = text(bytes) else { return 0 };
    let mut stranger = link();
    let mut friend = link();
    feed(&mut friend, r#"{"type":"hello","user_id":"ann"}"#);
    let mut good = 0;
    for line in text.lines() {
        match parse(line) {
            Ok(_) => good += 1,
            Err(malformed) => {
                let why = malformed.reason.to_string();
                assert!(!why.is_empty() && why.len() < REFUSAL_BYTES_MAX, "{why}");
            }
        }
        feed(&mut stranger, line);
        feed(&mut friend, line);
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
        side_streams: false,
    };
    Link::new(now(), config)
}

/// Feeds a link a message and answers its requests. Asserts that everything it writes is JSON.
fn feed(link: &mut Link, text: &str) {
    link.handle_input(now(), Input::Text(text.to_owned()));
    let mut outputs = 0;
    while let Some(output) = link.poll_output() {
        outputs += 1;
        assert!(outputs <= OUTPUTS_MAX, "a link answers without an end");
        match output {
            Output::Event(LinkEvent::Hello(hello)) => {
                let user = hello.user.unwrap_or_else(UserId::local);
                let principal = Principal { tenant: TenantId::default_tenant(), user, operator: false, writes: true };
                let expires = Some(now().store.after(Duration::from_secs(60)));
                link.handle_input(now(), Input::Admitted { principal, expires });
            }
            Output::Refresh { request_id, token } => {
                let renewals =
                    [RefreshOutcome::Until(now().store), RefreshOutcome::NotRequired, RefreshOutcome::Denied];
                let renewal = renewals[token.0.len() % renewals.len()];
                link.handle_input(now(), Input::Refreshed { request_id, renewal });
            }
            Output::Write(text) => {
                let said: Value = serde_json::from_str(&text).expect("a link writes JSON");
                assert!(said["type"].is_string() && said["ts"].is_u64(), "{said}");
            }
            Output::Event(LinkEvent::WriteSideStream(_) | LinkEvent::EndSideStreams { .. }) => {
                panic!("nobody said that it takes them")
            }
            Output::Event(LinkEvent::Command(_) | LinkEvent::CommandDeferred | LinkEvent::Written(_))
            | Output::Ping
            | Output::Close { .. } => {}
        }
    }
}

/// Parses the body of a turn over HTTP.
pub fn turn(bytes: &[u8]) -> usize {
    let (Some(text), Ok(session)) = (text(bytes), SessionId::parse("s1")) else { return 0 };
    match parse_turn(text, &session) {
        Ok(invoke) => {
            assert_eq!(invoke.session, Some(session));
            1
        }
        Err(malformed) => {
            assert!(malformed.reason.to_string().len() < REFUSAL_BYTES_MAX);
            0
        }
    }
}

/// Parses the body of a call of an OpenAI client.
pub fn openai(bytes: &[u8]) -> usize {
    let (Some(text), Ok(session)) = (text(bytes), SessionId::parse("s1")) else { return 0 };
    let tenant = TenantId::default_tenant();
    let principal = Principal { tenant, user: UserId::local(), operator: false, writes: true };
    let name = ChatCallIds::without_session(&principal, None, EventId::new(Millis(1), 1), |_| session);
    match ChatCall::parse(text, &name) {
        Ok(call) => {
            for (hash, file) in &call.files {
                assert_eq!(*hash, BlobHash::of(&file.bytes));
                assert!(file.bytes.len() <= text.len() && file.media_type.len() <= text.len() + 16);
            }
            1
        }
        Err(trouble) => {
            let told: Value = serde_json::from_str(&trouble.to_json()).expect("an error is JSON");
            assert!(told["error"].is_object(), "{told}");
            0
        }
    }
}

/// Parses `Last-Event-ID` of both kinds, and asserts that a cursor is written as it was read.
pub fn cursors(bytes: &[u8]) -> usize {
    let Some(text) = text(bytes) else { return 0 };
    let cursor = TurnCursor::parse(text);
    let place = log::parse_event_id(text);
    if let Ok(cursor) = &cursor {
        assert_eq!(cursor.to_string(), text);
    }
    if let Ok(place) = &place {
        assert_eq!(format!("{}-{}", place.seq.0, place.epoch.0), text);
    }
    usize::from(cursor.is_ok()) + usize::from(place.is_ok())
}

/// Parses a request's target with its query.
pub fn query(bytes: &[u8]) -> usize {
    let Ok(uri) = Uri::try_from(bytes) else { return 0 };
    let Ok(query) = HttpQuery::parse(&uri) else { return 0 };
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
