//! Configuration: its sources, the report of its mistakes, and the generated documents.
use serde_json::{Value, json};
use std::path::Path;
use turnway_tests::real::command::run;
use turnway_tests::real::node::Node;

/// A file with several mistakes, used beside environment variables and flags that have mistakes too.
const FILE: &str = "\
lgo = \"json\"
default_agent = \"nobody\"
[listen]
http = \"0.0.0.0:1\"
htpp = \"x\"
[stroe]
[store]
reserve = \"64 megabytes\"
[agents.helper]
url = \"ftp://h\"
silence = \"long\"
";

fn mistakes(of: &Value) -> Vec<(String, Value)> {
    let list = of["mistakes"].as_array().unwrap_or_else(|| panic!("no list: {of}"));
    list.iter().map(|one| (one["place"].as_str().expect("a place").to_owned(), one["key"].clone())).collect()
}

#[tokio::test]
async fn mistakes_of_all_sources_are_reported_with_places() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("turnway.toml"), FILE).expect("a file");
    let env = [("TURNWAY_LISTEN_ADMN", "x"), ("TURNWAY_LOG", "loud"), ("TURNWAY_PORT", "tcp://10.0.0.1:8080")];
    let args = ["--durability", "forever", "--log", "json", "--log", "pretty", "--agent", "a=http://u:canary@h,x=1"];
    let expected = [
        ("turnway.toml:1:1", json!("lgo")),
        ("turnway.toml:2:17", json!("default_agent")),
        ("turnway.toml:4:8", json!("listen.http")),
        ("turnway.toml:5:1", json!("listen.htpp")),
        ("turnway.toml:6:2", json!("stroe")),
        ("turnway.toml:8:11", json!("store.reserve")),
        ("turnway.toml:10:7", json!("agents.helper.url")),
        ("turnway.toml:11:11", json!("agents.helper.silence")),
        ("environment TURNWAY_LISTEN_ADMN", Value::Null),
        ("environment TURNWAY_LOG", json!("log")),
        ("flag --agent", json!("agents.a.url")),
        ("flag --agent", json!("agents.a.x")),
        ("flag --durability", json!("store.durability")),
        ("flag --log", json!("log")),
    ];
    let expected = expected.map(|(location, key)| (location.to_owned(), key));
    let check = run(dir.path(), &[&["check-config", "--json"][..], &args].concat(), &env).await;
    assert_eq!((check.code, check.err.as_str()), (Some(64), ""));
    assert_eq!(check.json()["ok"], false);
    assert_eq!(mistakes(&check.json()), expected);
    let serve = run(dir.path(), &[&["serve", "--json"][..], &args].concat(), &env).await;
    assert_eq!((serve.code, serve.out.as_str()), (Some(64), ""));
    assert_eq!(serve.error()["code"], "configuration");
    assert_eq!(mistakes(&serve.error()), expected);
    for command in ["check-config", "serve"] {
        let output = run(dir.path(), &[&[command][..], &args].concat(), &env).await;
        assert_eq!((output.code, output.out.as_str()), (Some(64), ""));
        assert_eq!(output.err.lines().count(), expected.len(), "{}", output.err);
        for (line, (location, _)) in output.err.lines().zip(&expected) {
            assert!(line.starts_with(&format!("turnway: {location}: ")), "{line}");
        }
        for meant in ["did you mean \"log\"?", "\"listen.http\"?", "\"store\"?", "\"TURNWAY_LISTEN_ADMIN\"?"] {
            assert!(output.err.contains(meant), "{meant} is not in {}", output.err);
        }
        assert!(!output.err.contains("canary"), "{}", output.err);
    }
}

#[tokio::test]
async fn unreadable_file_does_not_hide_other_mistakes() {
    let dir = tempfile::tempdir().expect("a directory");
    let args = ["check-config", "--json", "--config", "none.toml", "--admin", "x"];
    let check = run(dir.path(), &args, &[("TURNWAY_LISTEN_HTPP", "red")]).await;
    let locations: Vec<_> = mistakes(&check.json()).into_iter().map(|(location, _)| location).collect();
    assert_eq!(locations, ["none.toml:1:1", "environment TURNWAY_LISTEN_HTPP", "flag --admin"]);
}

#[tokio::test]
async fn flag_overrides_the_configuration_file() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("turnway.toml"), "demo = true\n[node]\nname = \"file\"\n").expect("a file");
    // The harness passes flags for listeners and store; all other settings come from the file.
    let mut node = Node::start(dir.path(), &["--node-name", "flag"]).await;
    // Only a node with the demo agents, which the file asks for, prints such a line.
    while !node.line().await.expect("a line to try").contains("turnway chat") {}
    let output = run(dir.path(), &["nodes", "--json", "--admin", &format!("http://{}", node.admin)], &[]).await;
    assert_eq!(output.json()["nodes"][0]["name"], "flag", "{output:?}");
    node.terminate().await;
    assert!(node.log().contains("flag") && !node.log().contains("\"file\""), "{}", node.log());
}

#[tokio::test]
async fn default_config_is_accepted_without_warnings() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = run(dir.path(), &["default-config"], &[]).await;
    assert_eq!((file.code, file.err.as_str()), (Some(0), ""));
    std::fs::write(dir.path().join("turnway.toml"), &file.out).expect("a file");
    let check = run(dir.path(), &["check-config"], &[]).await;
    assert_eq!((check.code, check.out.as_str()), (Some(0), "ok\n"), "{}", check.err);
    let check = run(dir.path(), &["check-config", "--json"], &[]).await;
    assert_eq!(check.json(), json!({"ok": true, "mistakes": [], "warnings": []}));
    let text = run(dir.path(), &["default-config", "--json"], &[]).await.json();
    assert_eq!(text, json!(file.out));
}

#[tokio::test]
async fn configuration_page_matches_the_binary() {
    let dir = tempfile::tempdir().expect("a directory");
    let page = run(dir.path(), &["config-doc"], &[]).await;
    assert_eq!((page.code, page.err.as_str()), (Some(0), ""));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &page.out).expect("the page can be written");
    }
    let written = std::fs::read_to_string(&path).expect("docs/configuration.md");
    assert!(written == page.out, "docs/configuration.md is stale: `./test bless` writes it");
}
