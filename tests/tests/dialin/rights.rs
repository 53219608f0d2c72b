//! Who may serve which agent.
use crate::life::forbidden;
use crate::{hello, order};
use serde_json::json;
use tempfile::tempdir;
use turnway_tests::real::identity::{Key, guarded};
use turnway_tests::real::wire::{Gone, Wire, invoke};

/// Covers: S-01, S-04, S-07.
#[tokio::test]
async fn an_agent_is_served_by_whom_the_operator_names() {
    let dir = tempdir().expect("a directory");
    let agents = ["--agent", "a=dial-in:,served_by=bot|acme/bot", "--agent", "b=dial-in:", "--demo"];
    let node = guarded(&dir, &agents).await;
    let bot = Key::make(&node, &["--user", "bot"]).await;
    let ann = Key::make(&node, &["--user", "ann"]).await;
    let reader = Key::make(&node, &["--user", "bot", "--scopes", "read"]).await;
    let other = Key::make(&node, &["--user", "bot", "--tenant", "other"]).await;
    let operator = Key::make(&node, &["--user", "root", "--scopes", "read,write,operator"]).await;
    let open = || async { Wire::open(node.http).await.expect("it connects") };
    for (key, agent) in
        [(&ann, "a"), (&reader, "a"), (&other, "a"), (&operator, "a"), (&bot, "b"), (&bot, "echo")]
    {
        let said = json!({"api_key": key.text, "agent_id": agent});
        assert_eq!(forbidden(open().await, said).await, Gone::Closed(4403), "{agent}");
    }
    for more in [json!({"agent_id": "nobody"}), json!({"agent_id": null})] {
        let mut said = more;
        said["api_key"] = bot.text.clone().into();
        assert_eq!(forbidden(open().await, said).await, Gone::Closed(4403));
    }
    let wrong = json!({"api_key": "twk_aaaaaaaaaa_aaaaaaaaaaaaaaaaaaaaaaaaaa"});
    assert_eq!(open().await.greet_with(hello(&wrong)).await.err(), Some(Gone::Closed(4401)));
    assert_eq!(open().await.greet_with(hello(&json!({}))).await.err(), Some(Gone::Closed(4401)));

    let mut serving = open().await.greet_with(hello(&json!({"api_key": bot.text}))).await.expect("welcome");
    let said = json!({"api_key": operator.text, "agent_id": "b"});
    open().await.greet_with(hello(&said)).await.expect("welcome");
    let mut person = ann.hello(node.http, None).await.expect("welcome");
    let accepted = person.ask("r1", invoke("s1", "a", "hello")).await.expect("an answer");
    assert_eq!(order(&mut serving, "invoke").await["run_id"], accepted["run_id"]);
    // A credential that is taken back ends the connection, and what runs over it.
    bot.revoke(&node).await;
    assert_eq!(serving.until(|_| false).await.expect_err("it is closed"), Gone::Closed(4401));
    let error = person.until(|message| message["type"] == "error").await.expect("it comes");
    assert_eq!(error["code"], "agent_unavailable");
}
