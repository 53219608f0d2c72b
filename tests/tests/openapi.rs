//! Tests the OpenAPI document against a running node with schemathesis: every allowed request is answered as
//! documented, and every other request is rejected.
use serde_json::Value;
use std::path::Path;
use tokio::time::timeout;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::node::Node;
use turnway_tests::real::python;
use turnway_tests::real::web::Web;

/// Examples per operation and phase; the whole run takes a minute.
const EXAMPLES: &str = "60";

/// Runs schemathesis on the node's own document with this configuration and these further arguments.
async fn examine(node: &Node, dir: &Path, config: &str, more: &[&str]) -> String {
    let file = dir.join("schemathesis.toml");
    let cases = dir.join("cases");
    std::fs::write(&file, config).expect("written");
    let file = file.display().to_string();
    let cases = cases.display().to_string();
    let url = format!("http://{}/openapi.json", node.http);
    let run = ["--no-color", "--config-file", &file, "run", &url, "--report-dir", &cases];
    // A fixed seed gives the same cases on each run, so that a failure means a change.
    let fixed = ["--seed", "7", "--max-examples", EXAMPLES, "--request-timeout", "30"];
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/python/examine.py");
    // schemathesis writes its example database into the working directory.
    let mut command = python::script(script, &[&run, &fixed[..], more].concat());
    let output = timeout(12 * PATIENCE, command.current_dir(dir).output()).await.expect("it ends in time");
    let output = output.expect("Python starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// Covers: MP-C14, LN-MP7.
#[tokio::test]
async fn server_conforms_to_its_openapi_document() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let ann = Web::new(node.http, Some("ann"));
    let mut run_id = String::new();
    for n in 0..5 {
        let events = ann.turn("s1", "echo", &format!("m{n}"), "hi", None).await.rest().await;
        run_id = events[0].data["run_id"].as_str().expect("a run").to_owned();
    }
    let said = examine(&node, dir.path(), "", &["--phases", "examples,coverage,fuzzing"]).await;
    assert!(said.contains("32 selected / 32 total"), "{said}");
    // Most of the cases above use sessions that do not exist; the following ones use a session that exists.
    let parameters =
        format!("[parameters]\nsession_id = \"s1\"\nrun_id = \"{run_id}\"\n\"header.x-user-id\" = \"ann\"\n");
    let said =
        // `delete_session` is excluded because it would delete the session under test.
        examine(
            &node,
            dir.path(),
            &parameters,
            &["--phases", "coverage,fuzzing", "--mode", "positive", "--exclude-operation-id", "delete_session"],
        )
        .await;
    assert!(said.contains("31 selected / 32 total"), "{said}");
    node.must_run();
    let log = node.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let errors: Vec<Value> = lines.filter(|line| line["level"] == "ERROR").collect();
    assert!(errors.is_empty(), "{errors:#?}");
}
