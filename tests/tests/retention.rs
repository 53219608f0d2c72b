//! An operator who keeps only so much history: who resumes from before it is told so, and never left
//! with a silent hole; what is kept still works, across a restart too.
//!
//! Covers: ST-3, I7, G5.
use serde_json::json;
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::Wire;

#[tokio::test]
async fn a_trimmed_history_answers_with_a_reset() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo", "--retention", "facts=10"]).await;
    let mut wire = Wire::hello(node.http, "ann", vec![]).await.expect("a link");
    for turn in 0..20 {
        let text = format!("turn {turn}");
        let (said, _) = wire.turn("s1", "echo", &format!("m{turn}"), &text).await.expect("a turn");
        assert_eq!(said, text);
    }
    for restarted in [false, true] {
        if restarted {
            node.kill_and_restart().await;
        }
        let mut late = Wire::hello(node.http, "ann", vec![]).await.expect("a link");
        let subscribe = json!({"type": "subscribe", "session_id": "s1", "after_seq": 1});
        let answer = late.ask("from-1", subscribe).await.expect("an answer");
        assert_eq!((&answer["type"], &answer["reset"]), (&json!("subscribed"), &json!(true)), "{answer}");
        assert_eq!(answer["reason"], "trimmed");
        let snapshot = &answer["snapshot"];
        assert_eq!((&snapshot["state"], &snapshot["active_agent"]), (&json!("open"), &json!("echo")));
        let tail = answer["seq"].as_u64().expect("a place");
        // A cursor within what is kept gets what follows it, once and in order.
        let after = tail - 5;
        let subscribe = json!({"type": "subscribe", "session_id": "s1", "after_seq": after});
        let answer = late.ask("from-recent", subscribe).await.expect("an answer");
        assert_eq!((&answer["type"], &answer["reset"]), (&json!("subscribed"), &json!(null)), "{answer}");
        let mut last = after;
        while last < tail {
            let message = late.next().await.expect("a fact");
            if let Some(seq) = message["seq"].as_u64() {
                assert!(seq > last, "{message}");
                last = seq;
            }
        }
        // A message whose facts are forgotten is still known: it opens no second turn.
        let again = late.ask("m0", turnway_tests::real::wire::invoke("s1", "echo", "turn 0")).await;
        let again = again.expect("an answer");
        assert_eq!((&again["type"], &again["duplicate"]), (&json!("turn_accepted"), &json!(true)), "{again}");
    }
}
