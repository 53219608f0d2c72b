//! Who may run tools.
use serde_json::{Value, json};
use tempfile::tempdir;
use turnway_tests::real::identity::{Key, guarded};
use turnway_tests::real::wire::{Gone, Wire};

fn hello(key: &Key) -> Value {
    json!({"type": "hello", "role": "tool_runner", "runner_id": "r1", "tools": ["t"], "api_key": key.text})
}

/// What a runner does it does for every agent of the node: so an operator's key has to say that it may.
///
/// Covers: S-01, S-06, S-07.
#[tokio::test]
async fn tools_are_run_by_whom_an_operator_has_let() {
    let dir = tempdir().expect("a directory");
    let node = guarded(&dir, &["--demo"]).await;
    let open = || async { Wire::open(node.http).await.expect("it connects") };
    for args in [
        &["--user", "ann"][..],
        &["--user", "ann", "--scopes", "read"],
        &["--user", "root", "--scopes", "read,operator"],
    ] {
        let key = Key::make(&node, args).await;
        let mut wire = open().await;
        wire.say(hello(&key)).await.expect("said");
        let error = wire.next().await.expect("an answer");
        assert_eq!(
            (&error["type"], &error["code"]),
            (&json!("error"), &json!("forbidden")),
            "{args:?}: {error}"
        );
        assert_eq!(wire.until(|_| false).await, Err(Gone::Closed(4403)), "{args:?}");
    }
    let nobody = json!({"type": "hello", "role": "tool_runner", "runner_id": "r1", "tools": ["t"]});
    assert_eq!(open().await.greet_with(nobody).await.err(), Some(Gone::Closed(4401)));
    let operator = Key::make(&node, &["--user", "root", "--scopes", "read,write,operator"]).await;
    let mut runner = open().await.greet_with(hello(&operator)).await.expect("welcome");
    // A key that is taken back ends the connection.
    operator.revoke(&node).await;
    assert_eq!(runner.until(|_| false).await, Err(Gone::Closed(4401)));
}
