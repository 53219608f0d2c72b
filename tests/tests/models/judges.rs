//! The official clients of OpenAI (Python and JavaScript) and Anthropic as judges: they read the answers of the route as they read those
//! of the providers.
use crate::caller::sha256;
use crate::route::Route;
use crate::world::{flag, model_args, until_quiet};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tempfile::tempdir;
use tokio::process::Command;
use tokio::time::timeout;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::identity::{Key, guarded};
use turnway_tests::real::python::run;
use turnway_tests::real::upstream::{Answer, ScriptedUpstream, UpstreamRequest};

const CLIENTS: &str = "model_clients.py";

/// Number of scenarios of the script that make a request to a model.
const SCENARIOS: usize = 13;

/// Answers the scenarios: the first input word selects a failure.
fn answer(request: &UpstreamRequest) -> Answer {
    let route = Route::of(&request.path);
    let asked = request.json();
    let stream = asked["stream"] == true;
    let text = asked.to_string();
    let has = |word: &str| text.contains(word);
    if has("please-refuse") {
        return Answer::json(
            400,
            "{\"error\":{\"message\":\"bad words\",\"type\":\"invalid_request_error\",\
            \"param\":null,\"code\":\"bad_words\"},\"type\":\"error\"}",
        );
    }
    if has("please-cut") {
        let sent = route.events()[..2].concat();
        return Answer::stream().piece(sent.as_bytes()).cut();
    }
    if has("please-unauthorized") {
        let key = request.header("authorization").or_else(|| request.header("x-api-key")).unwrap_or("none");
        return Answer::json(401, format!("{{\"error\":{{\"message\":\"wrong key {key}\"}}}}"));
    }
    route.script(stream)
}

/// Covers: PR-2, PR-5, PR-14, MP-A8.
#[tokio::test]
async fn official_clients_pass_all_their_checks() {
    let upstream = ScriptedUpstream::start(answer).await;
    let dir = tempdir().expect("a directory");
    let models = [flag("gpt", &upstream, ""), flag("other", &upstream, "name=org/claude,upstream_model=claude")];
    let node = guarded(&dir, &[&model_args(&models)[..], &["--demo"]].concat()).await;
    let key = Key::make(&node, &["--user", "ann", "--scopes", "read,write,models"]).await;
    let output = run(CLIENTS, &[&format!("http://{}", node.http), &key.text]).await;
    let held = output.lines().filter(|line| line.starts_with("holds: ")).count();
    assert_eq!(held, SCENARIOS, "{output}");
    // The script prints the hash of each body that its client wrote, in the order of the requests; the bodies to
    // `org/claude` change by the name of the model.
    let sent: Vec<Value> = output
        .lines()
        .filter_map(|line| line.strip_prefix("body: "))
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let requests = upstream.requests();
    assert_eq!(sent.len(), requests.len(), "{output}");
    let mut equal = 0;
    for (sent, request) in sent.iter().zip(&requests) {
        let hash: String = sha256(&request.body).iter().map(|byte| format!("{byte:02x}")).collect();
        let changed = sent["model"] == "org/claude" || sent["usage_is_added"] == true;
        if !changed {
            assert_eq!(sent["sha256"], json!(hash), "{}: {:?}", sent["path"], String::from_utf8_lossy(&request.body));
            equal += 1;
        }
        assert_eq!(sent["path"], request.path.as_str());
        assert!(!format!("{request:?}").contains(&key.text), "the caller's key reached the upstream");
    }
    assert!(equal >= 6, "{equal} of {}", sent.len());
    until_quiet(&node).await;
    assert!(!node.log().contains(&key.text));
}

/// Number of scenarios of the JavaScript client.
const JAVASCRIPT_SCENARIOS: usize = 10;

/// Returns where `./test` installs the JavaScript clients.
fn javascript_libraries() -> PathBuf {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/node-clients/node_modules");
    assert!(installed.join("openai").exists(), "no openai in {}: `./test` brings it", installed.display());
    installed
}

/// Covers: PR-2, PR-5, PR-14, MP-A8.
#[tokio::test]
async fn official_javascript_client_passes_all_its_checks() {
    let upstream = ScriptedUpstream::start(answer).await;
    let dir = tempdir().expect("a directory");
    let node = guarded(&dir, &[&model_args(&[flag("gpt", &upstream, "")])[..], &["--demo"]].concat()).await;
    let key = Key::make(&node, &["--user", "ann", "--scopes", "read,write,models"]).await;
    let mut client = Command::new("node");
    client
        .args(["model_client.js", &format!("http://{}", node.http), &key.text])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("javascript"))
        .env("NODE_PATH", javascript_libraries())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = timeout(PATIENCE, client.output()).await.expect("it ends").expect("node runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(said.lines().filter(|line| line.starts_with("holds: ")).count(), JAVASCRIPT_SCENARIOS, "{said}");
    until_quiet(&node).await;
}
