//! The OpenAPI document against the running server: whatever it allows is answered as it says, and
//! whatever it does not allow is refused.
use serde_json::Value;
use std::path::Path;
use tokio::time::timeout;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::node::Node;
use turnway_tests::real::python;
use turnway_tests::real::web::Web;

/// Requests of one operation and phase: all of it takes some seconds.
const EXAMPLES: &str = "100";

/// schemathesis on the node's own document, configured like this, with these further arguments.
async fn examine(node: &Node, dir: &Path, config: &str, more: &[&str]) -> String {
    let (file, cases) = (dir.join("schemathesis.toml"), dir.join("cases"));
    std::fs::write(&file, config).expect("written");
    let (file, cases) = (file.display().to_string(), cases.display().to_string());
    let url = format!("http://{}/openapi.json", node.http);
    let run = ["--no-color", "--config-file", &file, "run", &url, "--report-dir", &cases];
    // The same cases each time: a red run means a change.
    let fixed = ["--seed", "7", "--max-examples", EXAMPLES, "--request-timeout", "30"];
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/python/examine.py");
    // Where it is run it leaves its memory.
    let mut command = python::script(script, &[&run, &fixed[..], more].concat());
    let output = timeout(4 * PATIENCE, command.current_dir(dir).output()).await.expect("it ends in time");
    let output = output.expect("Python starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// Covers: MP-C14, LN-MP7.
#[tokio::test]
async fn the_server_does_what_its_document_says() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let ann = Web::new(node.http, Some("ann"));
    let mut run_id = String::new();
    for n in 0..5 {
        let events = ann.turn("s1", "echo", &format!("m{n}"), "hi", None).await.rest().await;
        run_id = events[0].data["run_id"].as_str().expect("a run").to_owned();
    }
    let said = examine(&node, dir.path(), "", &["--phases", "examples,coverage,fuzzing"]).await;
    assert!(said.contains("11 selected / 11 total"), "{said}");
    // Most of those are about sessions that nobody has; these are about one that somebody has.
    let parameters =
        format!("[parameters]\nsession_id = \"s1\"\nrun_id = \"{run_id}\"\n\"header.x-user-id\" = \"ann\"\n");
    let said =
        // Without the one that would delete it.
        examine(
            &node,
            dir.path(),
            &parameters,
            &["--phases", "coverage,fuzzing", "--mode", "positive", "--exclude-operation-id", "delete_session"],
        )
        .await;
    assert!(said.contains("10 selected / 11 total"), "{said}");
    node.must_run();
    let log = node.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let errors: Vec<Value> = lines.filter(|line| line["level"] == "ERROR").collect();
    assert!(errors.is_empty(), "{errors:#?}");
}
