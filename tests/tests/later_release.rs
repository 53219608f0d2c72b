//! Sessions with facts that a later release wrote: a node of this release keeps them and goes on.
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;
use turnway::store::Store;
use turnway::store::embedded::{EmbeddedOptions, EmbeddedStore};
use turnway_core::id::{Epoch, EventId, Holder, Nonce, SessionId, SessionKey, TenantId};
use turnway_core::protocol::entry::{Entry, Fact, UnknownFact};
use turnway_core::protocol::json::Json;
use turnway_core::store::{Append, Op, Reply};
use turnway_core::time::{Millis, Mono, Now};
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::WebSocketClient;

/// Appends a fact of an unknown type to session `s1` of a node that does not run.
fn append_unknown_fact(data: &Path) {
    let (sender, answers) = channel();
    let now = Arc::new(|| Now { mono: Mono(Duration::from_secs(1)), store: Millis(1_795_000_000_000) });
    let options = EmbeddedOptions::new(now, Arc::new(|fault| panic!("{fault}")));
    let sink = Arc::new(move |_, result| drop(sender.send(result)));
    let store = EmbeddedStore::open(data, options, sink).expect("a store");
    let ask = |op: Op| {
        store.submit(op);
        answers.recv().expect("an answer").expect("a reply")
    };
    let key = SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").expect("a name") };
    let Reply::View(view) = ask(Op::ReadView { key: key.clone() }) else { panic!("a view") };
    let holder = Holder::default();
    let claim = Op::Claim { key: key.clone(), holder, nonce: Nonce(1), expect: view.owner, floor: Epoch(0) };
    let Reply::Claimed(claimed) = ask(claim) else { panic!("it is free") };
    let data = Some(Json(json!({"colour": "blue", "size": 12})));
    let entry = Entry {
        id: EventId::new(Millis(1), 1),
        time: Millis(1_795_000_000_000),
        source: "turnway".into(),
        correlation_id: "later".into(),
        causation_id: None,
        traceparent: None,
        run_id: None,
        fact: Fact::Unknown(Box::new(UnknownFact { name: "session.painted".to_owned(), data })),
    };
    let append = Append {
        key: key.clone(),
        token: claimed.token,
        after: claimed.view.tail.seq,
        facts: vec![Arc::new(entry)],
        ends: Vec::new(),
        answers: Vec::new(),
        closed: None,
        annotations: Vec::new(),
        known_listeners: claimed.version,
    };
    assert!(matches!(ask(Op::Append(Box::new(append))), Reply::Appended { .. }));
    let tail = turnway_core::id::Seq(claimed.view.tail.seq.0 + 1);
    assert!(matches!(ask(Op::Release { key, token: claimed.token, tail, drain: false }), Reply::Released));
}

/// Covers: ST-1, EV-C1, EV-R1.
#[tokio::test]
async fn session_with_facts_of_a_later_release_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo", "--retention", "facts=10"]).await;
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    ann.turn("s1", "echo", "m1", "before").await.expect("a turn");
    drop(ann);
    assert_eq!(node.terminate().await, Some(0));
    append_unknown_fact(&dir.path().join("data"));

    node.restart().await;
    let resume = json!({"session_id": "s1", "after_seq": 0, "types": ["session.painted"]});
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![resume]).await.expect("welcome");
    let shown = ann.until(|message| message["name"] == "session.painted").await.expect("it is shown");
    // Nobody knows here whether users may see the data.
    assert_eq!(shown["data"], json!(null), "{shown}");
    let (text, done) = ann.turn("s1", "echo", "m2", "after").await.expect("a turn");
    assert_eq!((text.as_str(), &done["status"]), ("after", &json!("completed")));
    for (user, data) in [(Some("ann"), json!(null)), (None, json!({"colour": "blue", "size": 12}))] {
        let page = Web::new(node.http, user).json("/v1/sessions/s1/events?types=session.painted").await;
        let [fact] = &page["events"].as_array().expect("events")[..] else { panic!("one: {page}") };
        assert_eq!((&fact["seq"], &fact["data"]), (&shown["seq"], &data), "{user:?}");
    }

    // This node's state lacks what the fact means, so it is not kept instead of the facts: they are not trimmed.
    for turn in 3..8 {
        ann.turn("s1", "echo", &format!("m{turn}"), "more").await.expect("a turn");
    }
    // A client that does not ask for the fact gets all others.
    let resume = json!({"session_id": "s1", "after_seq": 0});
    let mut bob = WebSocketClient::hello(node.http, "ann", vec![resume]).await.expect("welcome");
    let mut ends = 0;
    while ends < 7 {
        let message = bob.next().await.expect("a message");
        assert_ne!(message["name"], "session.painted", "{message}");
        assert_ne!(message["reset"], true, "{message}");
        ends += usize::from(message["type"] == "done");
    }
}
