//! Callers' rights: credentials, scopes, revoked keys, and calls at a draining node.
use crate::caller::Caller;
use crate::cancel::must_be_closed_soon;
use crate::route::Route;
use crate::world::{flag, model_args, until_quiet, with_gpt};
use std::time::{Duration, Instant};
use tempfile::tempdir;
use tokio::sync::watch;
use tokio::time::{interval, timeout};
use turnway_tests::real::PATIENCE;
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::identity::{Key, guarded};
use turnway_tests::real::node::Node;
use turnway_tests::real::upstream::{Answer, ScriptedUpstream};
use turnway_tests::real::wire::{WebSocketClient, invoke};

/// Maximum time until a revoked key is refused everywhere (S-01).
const REVOKED_WITHIN: Duration = Duration::from_secs(5);

/// Covers: PR-1, PR-9, S-01.
#[tokio::test]
async fn models_need_a_key_with_their_scope() {
    let upstream =
        ScriptedUpstream::start(|request| Route::of(&request.path).script(request.json()["stream"] == true)).await;
    let dir = tempdir().expect("a directory");
    let models = [flag("gpt", &upstream, "")];
    let node = guarded(&dir, &model_args(&models)).await;
    let allowed = Key::make(&node, &["--user", "ann", "--scopes", "models"]).await;
    let others = Key::make(&node, &["--user", "bob", "--scopes", "read,write"]).await;
    let operator = Key::make(&node, &["--scopes", "operator"]).await;
    let caller = Caller::new(&node);
    for (route, stream) in Route::modes() {
        let body = || route.request("gpt", stream);
        let answer = caller.post(route.path(), body()).await;
        route.must_be(&answer, 401, "unauthorized");
        let answer = caller.clone().bearer("sk-unknown").post(route.path(), body()).await;
        route.must_be(&answer, 401, "unauthorized");
        for key in [&others, &operator] {
            let answer = caller.clone().bearer(&key.text).post(route.path(), body()).await;
            route.must_be(&answer, 403, "forbidden");
        }
        assert_eq!(upstream.calls(), 0, "{route:?}");
    }
    for (n, (route, stream)) in Route::modes().into_iter().enumerate() {
        let answer = caller.clone().bearer(&allowed.text).post(route.path(), route.request("gpt", stream)).await;
        assert_eq!((answer.status, answer.body), (200, route.script_bytes(stream)), "{route:?}");
        assert_eq!(upstream.calls(), n + 1);
        let request = upstream.next().await.request.clone();
        assert!(!format!("{request:?}").contains(&allowed.text), "the caller's key reached the upstream");
    }
    assert!(!node.log().contains(&allowed.text));
    until_quiet(&node).await;
}

/// Covers: PR-9: Anthropic's clients send their key in a header of its own.
#[tokio::test]
async fn x_api_key_is_a_credential_for_messages_only() {
    let upstream = ScriptedUpstream::start(|request| Route::of(&request.path).script(false)).await;
    let dir = tempdir().expect("a directory");
    let models = [flag("gpt", &upstream, "")];
    let node = guarded(&dir, &model_args(&models)).await;
    let key = Key::make(&node, &["--user", "ann", "--scopes", "models"]).await;
    let caller = Caller::new(&node).with("x-api-key", &key.text);
    for route in Route::ALL {
        let answer = caller.post(route.path(), route.request("gpt", false)).await;
        if route == Route::Messages {
            assert_eq!(answer.status, 200, "{}", answer.text());
            let request = upstream.only_request();
            assert!(!format!("{request:?}").contains(&key.text), "{request:?}");
        } else {
            route.must_be(&answer, 401, "unauthorized");
        }
    }
    let wrong = Caller::new(&node).with("x-api-key", "sk-ant-unknown");
    Route::Messages.must_be(
        &wrong.post(Route::Messages.path(), Route::Messages.request("gpt", false)).await,
        401,
        "unauthorized",
    );
}

/// Covers: PR-14.
#[tokio::test]
async fn list_has_models_for_callers_with_the_right_only() {
    let upstream = ScriptedUpstream::always(Answer::json(200, "{}")).await;
    let dir = tempdir().expect("a directory");
    let models =
        [flag("gpt", &upstream, ""), flag("a", &upstream, "name=org/shared"), flag("b", &upstream, "name=org/shared")];
    let node = guarded(&dir, &[&model_args(&models)[..], &["--demo"]].concat()).await;
    let allowed = Key::make(&node, &["--user", "ann", "--scopes", "models"]).await;
    let both = Key::make(&node, &["--user", "ann", "--scopes", "read,write,models"]).await;
    let others = Key::make(&node, &["--user", "bob"]).await;
    let listed = async |key: &Key| {
        let list = Caller::new(&node).bearer(&key.text).get("/v1/models").await;
        assert_eq!(list.status, 200, "{}", list.text());
        let list = list.json();
        assert_eq!(list["object"], "list");
        let data = list["data"].as_array().expect("data").clone();
        assert!(data.iter().all(|model| model["object"] == "model" && model["owned_by"].is_string()), "{list}");
        let mut ids: Vec<String> = data.iter().map(|model| model["id"].as_str().expect("an id").to_owned()).collect();
        ids.retain(|id| !id.starts_with("agent/") && id != "demo");
        ids.sort();
        ids
    };
    assert_eq!(listed(&allowed).await, ["gpt", "org/shared"]);
    assert_eq!(listed(&both).await, ["gpt", "org/shared"]);
    assert_eq!(listed(&others).await, [""; 0]);
    assert_eq!(Caller::new(&node).get("/v1/models").await.status, 401);
    assert_eq!(upstream.calls(), 0);
}

/// Covers: PR-8, S-01.
#[tokio::test]
async fn revoked_key_closes_its_streams() {
    let upstream = ScriptedUpstream::start(|request| {
        Answer::stream().piece(Route::of(&request.path).events()[0].as_bytes()).gate().end()
    })
    .await;
    let dir = tempdir().expect("a directory");
    let models = [flag("gpt", &upstream, "")];
    let node = guarded(&dir, &model_args(&models)).await;
    for route in Route::STREAMED {
        let key = Key::make(&node, &["--user", "ann", "--scopes", "models"]).await;
        let caller = Caller::new(&node).bearer(&key.text);
        let mut open = caller.open("POST", route.path(), route.request("gpt", true)).await;
        let exchange = upstream.next().await;
        let sent = route.events()[0].as_bytes();
        open.until_exactly(sent).await;
        let revoked = Instant::now();
        key.revoke(&node).await;
        let answer = open.rest().await;
        assert!(revoked.elapsed() < REVOKED_WITHIN, "{:?}", revoked.elapsed());
        route.must_be_error_event(&answer.body[sent.len()..], "revoked");
        must_be_closed_soon(&exchange, Instant::now(), "a revoked key").await;
        let again = caller.post(route.path(), route.request("gpt", true)).await;
        route.must_be(&again, 401, "unauthorized");
    }
    until_quiet(&node).await;
}

/// Covers: PR-1.
#[tokio::test]
async fn node_without_authentication_lets_everybody_call() {
    let upstream = ScriptedUpstream::start(|request| Route::of(&request.path).script(false)).await;
    let dir = tempdir().expect("a directory");
    let (_node, caller) = with_gpt(&dir, &upstream, "").await;
    let callers = [caller.clone(), caller.clone().bearer("none"), caller.with("x-user-id", "ann")];
    for caller in callers {
        for route in Route::ALL {
            assert_eq!(caller.post(route.path(), route.request("gpt", false)).await.status, 200);
        }
    }
}

/// Covers: PR-8: calls under way end, new ones are refused.
#[tokio::test]
async fn draining_node_ends_its_calls_and_takes_no_more() {
    let [first, rest @ ..] = Route::Chat.events() else { panic!("there are events") };
    let answer = Answer::stream().piece(first.as_bytes()).gate().piece(rest.concat().as_bytes()).end();
    let upstream = ScriptedUpstream::always(answer).await;
    // A turn under way keeps the node until the test has seen enough.
    let (end, ended) = watch::channel(false);
    let agents = Agents::start(move |_| {
        let mut ended = ended.clone();
        Reply::speak(|stream| async move {
            // The test may have ended.
            drop(ended.wait_for(|ended| *ended).await);
            stream.done().await
        })
    })
    .await;
    let dir = tempdir().expect("a directory");
    let args = ["--agent", &agents.flag("a"), "--model", &flag("gpt", &upstream, "")];
    let mut node = Node::start(dir.path(), &args).await;
    let caller = Caller::new(&node);
    let mut client = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("let in");
    let accepted = client.ask("a1", invoke("s1", "a", "hi")).await.expect("an answer");
    assert_eq!(accepted["type"], "turn_accepted", "{accepted}");
    let mut open = caller.open("POST", Route::Chat.path(), Route::Chat.request("gpt", true)).await;
    let exchange = upstream.next().await;
    open.until_exactly(first.as_bytes()).await;
    node.signal("-TERM").await;
    let mut looks = interval(Duration::from_millis(20));
    let draining = timeout(PATIENCE, async {
        loop {
            looks.tick().await;
            let (status, text) =
                turnway_tests::real::http::get(node.admin, "/readyz").await.expect("the operators' listener");
            if status == 503 && text.contains("draining") {
                return;
            }
        }
    });
    draining.await.expect("it drains");
    let refused = tokio::net::TcpStream::connect(node.http).await;
    assert!(refused.is_err(), "other nodes take new connections");
    assert_eq!(upstream.calls(), 1);
    exchange.release();
    assert_eq!(open.rest().await.body, Route::Chat.stream_bytes());
    end.send(true).expect("the agent waits");
    assert_eq!(node.exit().await, Some(0));
}
