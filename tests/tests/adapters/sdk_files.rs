//! The example adapter on the Python SDK, with files: a picture of a person reaches the agent, and the agent's answer with
//! another picture reaches the room.
use super::rooms::{post, program, start_rooms};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::time::Duration;
use tempfile::tempdir;
use tokio::time::{interval, timeout};
use turnway_core::id::BlobHash;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::files::random_bytes;
use turnway_tests::real::node::Node;
use turnway_tests::real::python::{Running, script};
use turnway_tests::real::web::Web;

/// Bytes of each picture: the example platform takes 256 KiB.
const PICTURE_BYTES: usize = 200_000;

/// Starts an agent that answers a picture with another one, whose name is the digest of what it got.
async fn painter() -> Agents {
    Agents::start(|invocation| {
        Reply::speak(move |stream| async move {
            let parts = invocation.content.as_array().cloned().unwrap_or_default();
            let url = parts.iter().find_map(|part| part["image_url"]["url"].as_str()).expect("a picture");
            let uri: http::Uri = url.parse().expect("a whole URL");
            let gateway = uri.authority().expect("the gateway").as_str().parse().expect("an address");
            let web = Web::new(gateway, None).bearer(&invocation.token);
            let got = BlobHash::of(&web.download(uri.path()).await.bytes);
            let path = web.must_upload(&invocation.session_id, "image/png", &random_bytes(2, PICTURE_BYTES)).await;
            stream.delta(&format!("Here is another one:\n\n![{got}]({path})")).await?;
            stream.done().await
        })
    })
    .await
}

/// Waits for the bot's line in a room that has files.
async fn answer_with_files(platform: &Web, room: &str) -> Value {
    let mut looks = interval(Duration::from_millis(50));
    let found = timeout(4 * PATIENCE, async {
        loop {
            looks.tick().await;
            let lines = platform.json(&format!("/rooms/{room}")).await["lines"].as_array().cloned().unwrap_or_default();
            // The person's line has files, too.
            if let Some(line) = lines.into_iter().skip(1).find(|line| line["files"].is_array()) {
                return line;
            }
        }
    });
    found.await.expect("an answer in time")
}

/// Covers: PR-24, BD-I1.
#[tokio::test]
async fn example_adapter_brings_and_sends_files() {
    let agents = painter().await;
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--agent", &agents.flag("a"), "--default-agent", "a"]).await;
    let (_rooms, url, platform) = start_rooms().await;
    let gateway = format!("ws://{}", node.http);
    let state = dir.path().join("offset");
    let args = ["--turnway", &gateway, "--rooms", &url, "--state", state.to_str().expect("UTF-8")];
    let mut command = script(&program("adapter_sdk.py"), &args);
    command.env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk/python/src"));
    let _adapter = Running::start(command);
    let picture = random_bytes(1, PICTURE_BYTES);
    let file = json!({"name": "cat.png", "media_type": "image/png", "data": STANDARD.encode(&picture)});
    post(&platform, "/rooms/lobby", &json!({"sender": "ann", "text": "look", "files": [file]})).await;
    let answer = answer_with_files(&platform, "lobby").await;
    assert_eq!(answer["text"], "Here is another one:", "{answer}");
    let files = answer["files"].as_array().expect("files");
    assert_eq!((files.len(), &files[0]["inline"]), (1, &json!(true)), "{answer}");
    assert_eq!(files[0]["sha256"], BlobHash::of(&random_bytes(2, PICTURE_BYTES)).to_string(), "{answer}");
    assert_eq!(
        files[0]["name"],
        BlobHash::of(&picture).to_string(),
        "the agent has got the bytes of the picture: {answer}"
    );
}
