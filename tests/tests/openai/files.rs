//! Calls that bring files: `data:` URLs and long histories become files of the session, and refused calls leave none.
use super::{CLIENT, Slow, base, send};
use bytes::Bytes;
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use tempfile::tempdir;
use turnway_core::id::BlobHash;
use turnway_core::limits::CHAT_CALL_BYTES_MAX;
use turnway_tests::real::agent::{AgentStream, Agents, Invocation, Reply};
use turnway_tests::real::files::{Download, random_bytes};
use turnway_tests::real::node::Node;
use turnway_tests::real::python::run;
use turnway_tests::real::web::{Reply as Answer, Web};
use turnway_tests::real::wire::WebSocketClient;

pub(crate) const MIB: usize = 1024 * 1024;

/// Returns a `data:` URL with these bytes.
pub(crate) fn data_url(media_type: &str, bytes: &[u8]) -> String {
    use base64::Engine;
    format!("data:{media_type};base64,{}", base64::engine::general_purpose::STANDARD.encode(bytes))
}

/// Returns a part with a picture.
fn picture(bytes: &[u8]) -> Value {
    json!({"type": "image_url", "image_url": {"url": data_url("image/png", bytes)}})
}

/// Returns the URLs of all parts, in order.
fn urls_of(value: &Value) -> Vec<String> {
    match value {
        Value::Array(items) => items.iter().flat_map(urls_of).collect(),
        Value::Object(fields) => {
            let own = fields.get("url").and_then(Value::as_str).map(str::to_owned);
            own.into_iter().chain(fields.values().flat_map(urls_of)).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

/// Reads a file as an agent does: by its whole URL, with the token of the run.
async fn read_url(invocation: &Invocation, url: &str) -> Download {
    let uri: http::Uri = url.parse().expect("a whole URL");
    let gateway = uri.authority().expect("the gateway").as_str().parse().expect("an address");
    Web::new(gateway, None).bearer(&invocation.token).download(uri.path()).await
}

/// Plays the agent that reads all files of a call, and answers with their hashes and the text of its earlier messages.
fn read_files(invocation: Invocation) -> Reply {
    Reply::speak(async move |stream: AgentStream| {
        let mut earlier = invocation.messages.clone();
        if let Some(url) = invocation.messages_url.as_str() {
            let file = read_url(&invocation, url).await;
            assert_eq!(file.status, 200, "{url}");
            assert_eq!(file.headers["content-type"], "application/json");
            earlier = serde_json::from_slice(&file.bytes).expect("an array");
        }
        let mut files = Vec::new();
        for url in urls_of(&json!([invocation.messages, invocation.content])) {
            let file = read_url(&invocation, &url).await;
            assert_eq!(file.status, 200, "{url}");
            files.push(BlobHash::of(&file.bytes).to_string());
        }
        let earlier = BlobHash::of(earlier.to_string().as_bytes()).to_string();
        let whole = json!({"files": files, "earlier": earlier, "inline": !invocation.messages.is_null()});
        stream.delta(&whole.to_string()).await?;
        stream.done().await
    })
}

/// Starts a node with these settings, and an agent `a` that reads all files.
pub(crate) async fn reading_node(dir: &Path, settings: &str) -> (Node, Agents) {
    let agents = Agents::start(read_files).await;
    let file = dir.join("turnway.toml");
    std::fs::write(&file, settings).expect("a file");
    let config = file.to_string_lossy();
    let node = Node::start(dir, &["--config", &*config, "--agent", &agents.flag("a")]).await;
    (node, agents)
}

pub(crate) async fn call(web: &Web, headers: &[(&str, &str)], messages: &Value) -> Answer {
    let body = json!({"model": "agent/a", "messages": messages}).to_string();
    let all = [&[("content-type", "application/json")][..], headers].concat();
    web.ask("POST", "/v1/chat/completions", &all, &body).await
}

fn ask_about(parts: &[Value]) -> Value {
    let text = json!({"type": "text", "text": "look"});
    let content = [std::slice::from_ref(&text), parts].concat();
    json!([{"role": "user", "content": content}])
}

/// Returns what the agent saw.
fn seen(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.text);
    let text = answer.json()["choices"][0]["message"]["content"].as_str().expect("a text").to_owned();
    serde_json::from_str(&text).expect("JSON")
}

fn must_be(answer: &Answer, status: u16, code: &str, param: &Value) {
    let error = answer.json()["error"].clone();
    assert_eq!((answer.status, &error["code"], &error["param"]), (status, &json!(code), param), "{}", answer.text);
}

async fn blobs(web: &Web, session: &str) -> BTreeSet<String> {
    let listed = web.json(&format!("/v1/sessions/{session}/blobs")).await;
    let blobs: Vec<Value> = listed["blobs"].as_array().expect("a list").clone();
    let bytes: u64 = blobs.iter().filter_map(|blob| blob["bytes"].as_u64()).sum();
    assert_eq!(listed["bytes"], bytes, "no room is kept: {listed}");
    blobs.iter().filter_map(|blob| blob["sha256"].as_str().map(str::to_owned)).collect()
}

async fn sessions(web: &Web) -> Vec<Value> {
    web.json("/v1/sessions").await["sessions"].as_array().expect("a list").clone()
}

fn hash(bytes: &[u8]) -> String {
    BlobHash::of(bytes).to_string()
}

/// Covers: PR-24, ST-37, ST-41, MP-G3.
#[tokio::test]
async fn pictures_of_the_official_client_reach_the_agent() {
    let dir = tempdir().expect("a directory");
    let (node, agents) = reading_node(dir.path(), "").await;
    let picture = b"turnway-".repeat(5 * MIB / 8);
    let pdf = b"%PDF-1.7";
    let answer = run(CLIENT, &[&base(&node), "pictures"]).await;
    let read: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!(read["files"], json!([hash(&picture), hash(&picture), hash(pdf)]), "{read}");
    assert_eq!(read["inline"], true);
    let journal = agents.journal();
    let [asked] = &*journal else { panic!("one call") };
    assert_eq!(asked.content[1]["image_url"]["detail"], "low");
    assert_eq!(
        (&asked.content[2]["file"]["filename"], &asked.content[2]["file"]["file_data"]),
        (&json!("a.pdf"), &Value::Null)
    );
    // The same bytes are one blob, and the log has its path.
    let ann = Web::new(node.http, Some("ann"));
    assert_eq!(blobs(&ann, &asked.session_id).await, BTreeSet::from([hash(&picture), hash(pdf)]));
    let facts = ann.facts(&asked.session_id).await;
    let path = format!("\"/v1/sessions/{}/blobs/{}\"", asked.session_id, hash(&picture));
    assert!(facts.iter().any(|fact| fact.to_string().contains(&path)));
}

/// Covers: PR-24, MP-G3, S-48.
#[tokio::test]
async fn long_history_reaches_the_agent_as_a_file() {
    let dir = tempdir().expect("a directory");
    let (node, agents) = reading_node(dir.path(), "").await;
    let ann = Web::new(node.http, Some("ann"));
    let image = random_bytes(1, 1000);
    let texts = ["a", "\u{e9}\n", "\u{1d11e}"].map(|text| text.repeat(4 * MIB / text.len()));
    let mut earlier: Vec<Value> = texts.iter().map(|text| json!({"role": "assistant", "content": text})).collect();
    earlier.push(json!({"role": "user", "content": [picture(&image)], "n": 1}));
    let messages = json!([&earlier[..], &[json!({"role": "user", "content": "and now?"})][..]].concat());
    let key = [("idempotency-key", "k1")];
    let answer = call(&ann, &key, &messages).await;
    let session = answer.headers["x-session-id"].to_str().expect("a name").to_owned();
    // A path in a file is relative to the file's own URL.
    earlier[3]["content"][0]["image_url"]["url"] = format!("/v1/sessions/{session}/blobs/{}", hash(&image)).into();
    let text = json!(earlier).to_string();
    assert_eq!(seen(&answer), json!({"files": [], "earlier": hash(text.as_bytes()), "inline": false}));
    assert_eq!(blobs(&ann, &session).await, BTreeSet::from([hash(text.as_bytes()), hash(&image)]));
    let facts = ann.facts(&session).await;
    let input = facts.iter().find(|fact| fact["type"] == "user.message").expect("the message");
    assert_eq!(input["data"]["history_sha256"], hash(text.as_bytes()));
    // The same call is the same turn, and a call with another history is another.
    assert_eq!(call(&ann, &key, &messages).await.json()["id"], answer.json()["id"]);
    let mut other = messages.clone();
    other[0]["content"] = "b".repeat(4 * MIB).into();
    let refused = call(&ann, &key, &other).await;
    must_be(&refused, 409, "idempotency_conflict", &Value::Null);
    assert_eq!(blobs(&ann, &session).await.len(), 2, "of the refused call nothing is left");
    assert_eq!(agents.journal().len(), 1);
}

/// Covers: PR-24, ST-35, G2.
#[tokio::test]
async fn repeated_call_has_the_same_turn_and_files() {
    let mut slow = Slow::start().await;
    let dir = tempdir().expect("a directory");
    let flag = format!("{},on_owner_loss=retry", slow.agents.flag("a"));
    let mut node = Node::start(dir.path(), &["--agent", &flag]).await;
    let image = random_bytes(1, MIB);
    let body = json!({"model": "agent/a", "messages": ask_about(&[picture(&image)])}).to_string();
    let headers = "x-user-id: ann\r\nidempotency-key: k1\r\n";
    let lost = send(&node, headers, &body).await;
    assert_eq!(slow.event().await, "begun");
    drop(lost);
    node.kill_and_restart().await;
    assert_eq!((slow.event().await, slow.event().await), ("closed", "begun"));
    let ann = Web::new(node.http, Some("ann"));
    let repeat = async {
        let json_ = [("content-type", "application/json"), ("idempotency-key", "k1")];
        ann.ask("POST", "/v1/chat/completions", &json_, &body).await
    };
    let (answer, ()) = tokio::join!(repeat, slow.let_go());
    assert!(answer.text.contains(r#""content":"begun and done""#), "{}", answer.text);
    let session = answer.headers["x-session-id"].to_str().expect("a name");
    assert_eq!(blobs(&ann, session).await, BTreeSet::from([hash(&image)]));
    assert_eq!(slow.agents.journal().len(), 2);
    assert_eq!(sessions(&ann).await.len(), 1);
}

/// Covers: PR-24, ST-41, S-48.
#[tokio::test]
async fn refused_call_leaves_no_file() {
    let dir = tempdir().expect("a directory");
    let settings = "[quota]\nuser = \"3MiB\"\n[blobs]\nmax = \"2MiB\"\ntypes = \"image/*\"\n";
    let (node, agents) = reading_node(dir.path(), settings).await;
    let ann = Web::new(node.http, Some("ann"));
    let [one, two] = [1, 2].map(|number| random_bytes(number, 2 * MIB));
    let param = |field: &str| json!(format!("messages[0].content[1].{field}"));
    let page = json!({"type": "file", "file": {"file_data": data_url("text/html", b"<p>")}});
    must_be(&call(&ann, &[], &ask_about(&[page])).await, 415, "invalid_message", &param("file.file_data"));
    let large = picture(&random_bytes(3, 2 * MIB + 1));
    must_be(&call(&ann, &[], &ask_about(&[large])).await, 400, "too_large", &param("image_url.url"));
    let bad = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}});
    must_be(&call(&ann, &[], &ask_about(&[bad])).await, 400, "invalid_message", &param("image_url.url"));
    let long = json!([{"role": "system", "content": "x".repeat(MIB)}, {"role": "user", "content": "hi"}]);
    must_be(&call(&ann, &[], &long).await, 400, "context_length_exceeded", &json!("messages"));
    // The first of these files is stored before the second one finds no room.
    let both = ask_about(&[picture(&one), picture(&two)]);
    let full = call(&ann, &[], &both).await;
    assert_eq!((full.status, &full.json()["error"]["code"]), (429, &json!("quota_exceeded")), "{}", full.text);
    assert!(
        full.json()["error"]["param"].as_str().is_some_and(|param| param.ends_with(".image_url.url")),
        "{}",
        full.text
    );
    assert_eq!(sessions(&ann).await, Vec::<Value>::new(), "nothing is left of calls without a name");
    // The session of a call with a name stays, empty, for its repetition.
    let key = [("idempotency-key", "k1")];
    assert_eq!(call(&ann, &key, &both).await.status, 429);
    let left = sessions(&ann).await;
    let [session] = &*left else { panic!("one session: {left:?}") };
    assert_eq!(session["state"], "open");
    let session = session["session_id"].as_str().expect("a name").to_owned();
    assert_eq!(blobs(&ann, &session).await, BTreeSet::new());
    assert!(agents.journal().is_empty());
    let fits = call(&ann, &key, &ask_about(&[picture(&one)])).await;
    assert_eq!(seen(&fits)["files"], json!([hash(&one)]));
    assert_eq!(fits.headers["x-session-id"], *session);
    // A file that a message names stays, whoever was refused with it afterwards.
    must_be(&call(&ann, &key, &both).await, 429, "quota_exceeded", &param_of(&[&one, &two], 1));
    let conflict = call(&ann, &key, &ask_about(&[picture(&one), picture(b"small")])).await;
    must_be(&conflict, 409, "idempotency_conflict", &Value::Null);
    assert_eq!(blobs(&ann, &session).await, BTreeSet::from([hash(&one)]));
}

/// Returns the field of one of these pictures.
fn param_of(pictures: &[&Bytes], n: usize) -> Value {
    assert!(n < pictures.len());
    json!(format!("messages[0].content[{}].image_url.url", n + 1))
}

/// Covers: PR-24, SR-H2.
#[tokio::test]
async fn files_join_the_session_that_a_call_names() {
    let dir = tempdir().expect("a directory");
    let (node, _agents) = reading_node(dir.path(), "").await;
    let ann = Web::new(node.http, Some("ann"));
    let bob = Web::new(node.http, Some("bob"));
    let header = [("x-session-id", "s1")];
    let image = random_bytes(1, 1000);
    let ignored = json!({"role": "user", "content": [picture(b"ignored")]});
    let mut messages = ask_about(&[picture(&image)]);
    messages.as_array_mut().expect("a list").insert(0, ignored);
    let answer = call(&ann, &header, &messages).await;
    assert_eq!((&seen(&answer)["files"], &seen(&answer)["inline"]), (&json!([hash(&image)]), &json!(false)));
    assert_eq!(blobs(&ann, "s1").await, BTreeSet::from([hash(&image)]));
    must_be(&call(&bob, &header, &ask_about(&[picture(b"foreign")])).await, 404, "not_found", &Value::Null);
    // Calls at a time with one picture.
    let again = ask_about(&[picture(&image)]);
    let answers = join_all((0..4).map(|_| call(&ann, &header, &again))).await;
    assert!(answers.iter().all(|answer| seen(answer)["files"] == json!([hash(&image)])));
    let mut wire = WebSocketClient::hello(node.http, "ann", Vec::new()).await.expect("let in");
    wire.ask("c", json!({"type": "session_close", "session_id": "s1"})).await.expect("an answer");
    for parts in [picture(&image), picture(b"another")] {
        let closed = call(&ann, &header, &ask_about(&[parts])).await;
        assert_eq!(
            (closed.status, &closed.json()["error"]["code"]),
            (409, &json!("session_closed")),
            "{}",
            closed.text
        );
    }
    assert_eq!(blobs(&ann, "s1").await, BTreeSet::from([hash(&image)]));
}

/// Covers: PR-24, S-11.
#[tokio::test]
async fn call_at_the_limit_is_answered_and_a_longer_one_refused() {
    let dir = tempdir().expect("a directory");
    let (node, _agents) = reading_node(dir.path(), "").await;
    let ann = Web::new(node.http, Some("ann"));
    let with = |count: usize| {
        let earlier = json!({"role": "user", "content": "x".repeat(count)});
        let messages = json!([earlier, {"role": "user", "content": "hi"}]);
        json!({"model": "agent/a", "messages": messages}).to_string()
    };
    let rest = with(0).len();
    let json_ = [("content-type", "application/json")];
    let most = ann.ask("POST", "/v1/chat/completions", &json_, &with(CHAT_CALL_BYTES_MAX - rest)).await;
    assert_eq!(seen(&most)["inline"], false);
    let longer = ann.ask("POST", "/v1/chat/completions", &json_, &with(CHAT_CALL_BYTES_MAX - rest + 1)).await;
    must_be(&longer, 400, "context_length_exceeded", &json!("messages"));
    assert_eq!(sessions(&ann).await.len(), 1);
}
