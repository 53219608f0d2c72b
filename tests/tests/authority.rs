//! Every operation answers a foreign session or run exactly as an unknown one.
//!
//! Covers: G7, S-06, S-07, RX-23.
use serde_json::json;
use std::collections::BTreeSet;
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::node::Node;
use turnway_tests::real::operations::{NAME_NO_SESSION, bare, refused_as, requests};
use turnway_tests::real::wire::{WebSocketClient, invoke};
use turnway_wire::channel::authority::ClientOperation;
use turnway_wire::schema::MessageGroup;

/// Covers: MP-E2, S-55, LN-MP29, S-06, S-56, ST-13, RX-11.
#[tokio::test]
async fn foreign_and_unknown_sessions_get_the_same_answer() {
    let agents = Agents::start(|_| Reply::speak(|stream| async move { stream.hung_up().await })).await;
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--agent", &agents.flag("held")]).await;
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("ann connects");
    let accepted = ann.ask("a1", invoke("anns", "held", "secret")).await.expect("an answer");
    assert_eq!(accepted["type"], "turn_accepted", "{accepted}");
    let run = accepted["run_id"].as_str().expect("a run").to_owned();
    ann.until(|message| message["name"] == "AGENT_STARTED").await.expect("it runs");

    // A well-formed run id of a session that does not exist.
    let unknown_run = run.replacen("anns", "nobodys", 1);
    let mut tried = BTreeSet::new();
    let mut rows = 0;
    for action in ClientOperation::ALL {
        // These actions create an unknown session; on a foreign session they must answer like a read of an
        // unknown one.
        let reference = if action.creates() { ClientOperation::Read } else { action };
        let unknown = requests(reference, "nobodys", &unknown_run);
        for (n, foreign) in requests(action, "anns", &run).into_iter().enumerate() {
            let mut mallory = WebSocketClient::hello(node.http, "mallory", vec![]).await.expect("mallory connects");
            let like = if action.creates() { &unknown[0] } else { &unknown[n] };
            let got = mallory.ask("q", foreign.clone()).await.expect("an answer");
            let want = mallory.ask("q", like.clone()).await.expect("an answer");
            let allowed = refused_as(action, like);
            assert!(allowed.iter().any(|code| want["code"] == *code), "{like}: {want}");
            assert_eq!(bare(got, ["anns", &run]), bare(want, ["nobodys", &unknown_run]), "{foreign}");
            tried.insert(foreign["type"].as_str().expect("a type").to_owned());
            rows += 1;
        }
    }
    assert!(rows >= 18, "{rows}");
    let answered_by_the_link = ["hello", "ping", "refresh", "unsubscribe"];
    let messages = MessageGroup::FromClient.messages().into_iter().map(|row| row.kind.to_owned());
    assert!(tried.iter().all(|kind| !answered_by_the_link.contains(&kind.as_str())), "{tried:?}");
    tried.extend(answered_by_the_link.into_iter().chain(NAME_NO_SESSION).map(str::to_owned));
    assert_eq!(tried, messages.collect(), "every request of every action was tried");

    // A foreign run named in the caller's own session is unknown too.
    let mut mallory = WebSocketClient::hello(node.http, "mallory", vec![]).await.expect("mallory connects");
    let opened = mallory.ask("o", json!({"type": "session_open", "session_id": "mallorys"})).await.expect("an answer");
    assert_eq!(opened["type"], "session_opened", "{opened}");
    let stray = run.replacen("anns", "mallorys", 1);
    let got = mallory.ask("c", json!({"type": "cancel_run", "run_id": stray})).await.expect("an answer");
    assert_eq!(got["code"], "not_found", "{got}");

    // The requests have not affected ann's run, and ann can still cancel it.
    let done = ann.ask("a2", json!({"type": "cancel_run", "run_id": run})).await;
    drop(done);
    let done = WebSocketClient::hello(node.http, "ann", vec![json!({"session_id": "anns", "after_seq": 0})]).await;
    let done = done.expect("ann is back").until(|m| m["type"] == "done").await.expect("an end");
    assert_eq!((done["status"].as_str(), done["run_id"].as_str()), (Some("cancelled"), Some(run.as_str())), "{done}");
    assert_eq!(agents.journal().len(), 1, "no stranger reached the agent");
}

/// Covers: S-07.
#[tokio::test]
async fn identity_claims_in_messages_are_ignored() {
    let agents = Agents::start(|_| Reply::speak(|stream| async move { stream.done().await })).await;
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--agent", &agents.flag("quick")]).await;
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("ann connects");
    ann.turn("anns", "quick", "a1", "hi").await.expect("a turn");
    let mut mallory = WebSocketClient::hello(node.http, "mallory", vec![]).await.expect("mallory connects");
    for claim in [
        json!({"user_id": "ann"}),
        json!({"principal": {"user": "ann", "operator": true}}),
        json!({"tenant": "default", "role": "operator", "scopes": ["admin"]}),
    ] {
        let mut request = json!({"type": "subscribe", "session_id": "anns", "after_seq": 0});
        for (name, value) in claim.as_object().expect("an object") {
            request[name] = value.clone();
        }
        let got = mallory.ask("q", request).await.expect("an answer");
        assert_eq!(got["code"], "not_found", "{claim}: {got}");
    }
    // A second hello does not change the user of a connection.
    mallory.say(json!({"type": "hello", "user_id": "ann"})).await.expect("sent");
    let got = mallory.ask("q", json!({"type": "subscribe", "session_id": "anns", "after_seq": 0})).await;
    match got {
        Ok(answer) => assert_eq!(answer["code"], "not_found", "{answer}"),
        Err(gone) => drop(gone),
    }
}
