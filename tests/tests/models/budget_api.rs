//! Budgets in the operators' API and in the commands.
use crate::budgets::{Budgets, answering, limit, must_refuse, now_ms, request, user};
use crate::route::Route;
use crate::stage::PRICES;
use crate::world::{open_node, with_gpt};
use serde_json::{Value, json};
use tempfile::tempdir;
use turnway_tests::real::command::{Ended, run};
use turnway_tests::real::identity::{Key, guarded};
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

async fn command(node: &Node, args: &[&str]) -> Ended {
    let admin = format!("http://{}", node.admin);
    run(&std::env::temp_dir(), &[&["budgets"][..], args, &["--admin", &admin]].concat(), &[]).await
}

/// Covers: PR-10.
#[tokio::test]
async fn periods_end_at_midnight_in_utc() {
    let dir = tempdir().expect("a directory");
    let node = open_node(&dir, &[]).await;
    let budgets = Budgets::at(&node);
    let begun = now_ms();
    for period in ["day", "month", "total"] {
        let budget = budgets.set(&format!("user:{period}"), json!({"tokens": 5, "period": period})).await;
        assert_eq!((&budget["period"], &budget), (&json!(period), &budgets.show(&format!("user:{period}")).await));
    }
    let end = async |period: &str| budgets.show(&format!("user:{period}")).await["period_ends_ts"].as_u64();
    let day = end("day").await.expect("an end");
    assert!(day % DAY_MS == 0 && day > begun && day <= now_ms() + DAY_MS, "{begun} {day}");
    let month = end("month").await.expect("an end");
    assert!(month % DAY_MS == 0 && month >= day && month <= now_ms() + 31 * DAY_MS, "{begun} {month}");
    assert_eq!(end("total").await, None);
    let table = command(&node, &["ls"]).await;
    let line = table.out.lines().find(|line| line.starts_with("user:month")).expect("a line");
    assert!(line.trim_end().ends_with("-01T00:00:00.000Z"), "{line}");
}

/// Covers: PR-10.
#[tokio::test]
async fn set_keeps_and_rm_forgets_what_was_used() {
    let upstream = answering().await;
    let dir = tempdir().expect("a directory");
    let (node, caller) = with_gpt(&dir, &upstream, PRICES).await;
    let budgets = Budgets::at(&node);
    let caller = user(&caller, "ann");
    let body = request(Route::Chat, "gpt", &limit(Route::Chat, 100), false);
    let call = async || caller.post(Route::Chat.path(), body.clone()).await;
    budgets.set_tokens("user:ann", 1000).await;
    assert_eq!(call().await.status, 200);
    budgets.until_settled("user:ann", 42, 183).await;
    let budget = budgets.set_tokens("user:ann", 2000).await;
    assert_eq!((&budget["used"]["tokens"], &budget["remaining_tokens"]), (&json!(42), &json!(1958)), "{budget}");
    let budget = budgets.set("user:ann", json!({"cost": 100, "period": "total"})).await;
    assert_eq!((&budget["used"]["cost"], &budget["remaining_cost"]), (&json!(183), &json!(0)), "{budget}");
    assert_eq!((budget.get("tokens"), budget.get("remaining_tokens")), (None, None), "{budget}");
    must_refuse(Route::Chat, &call().await);
    let removed = budgets.remove("user:ann").await;
    assert_eq!(removed.status, 200, "{}", removed.text);
    assert_eq!(budgets.find("user:ann").await, None);
    budgets.remove("user:ann").await.must_be(404, "not_found");
    assert_eq!(call().await.status, 200, "without a budget");
    let budget = budgets.set_tokens("user:ann", 0).await;
    assert_eq!((&budget["used"], &budget["open_calls"]), (&json!({"tokens": 0, "cost": 0}), &json!(0)), "{budget}");
    must_refuse(Route::Chat, &call().await);
}

/// Covers: PR-10.
#[tokio::test]
async fn commands_show_set_and_remove_budgets() {
    let upstream = answering().await;
    let dir = tempdir().expect("a directory");
    let (node, caller) = with_gpt(&dir, &upstream, PRICES).await;
    let set = command(&node, &["set", "user:ann", "--tokens", "1000", "--period", "total"]).await;
    assert_eq!(set.code, Some(0), "{set:?}");
    let set = command(&node, &["set", "tenant", "--cost", "5000000", "--json"]).await;
    assert_eq!((set.code, &set.json()["period"]), (Some(0), &json!("month")), "{set:?}");
    let set = command(&node, &["set", "agent:a:b", "--tokens", "1", "--cost", "2", "--period", "day"]).await;
    assert_eq!(set.code, Some(0), "{set:?}");
    let set = command(&node, &["set", "key:k1", "--tokens", "7", "--tenant", "acme"]).await;
    assert_eq!(set.code, Some(0), "{set:?}");
    let body = request(Route::Chat, "gpt", &limit(Route::Chat, 10), false);
    assert_eq!(user(&caller, "ann").post(Route::Chat.path(), body).await.status, 200);
    let budgets = Budgets::at(&node);
    budgets.until_settled("user:ann", 42, 183).await;
    budgets.until_settled("tenant", 42, 183).await;
    let listed = command(&node, &["ls", "--json"]).await;
    assert_eq!(listed.json()["budgets"], json!(budgets.list().await), "{listed:?}");
    let table = command(&node, &["ls"]).await;
    let row = |account: &str| {
        let line = table.out.lines().find(|line| line.starts_with(account)).unwrap_or_else(|| panic!("{table:?}"));
        line.split_whitespace().collect::<Vec<&str>>()
    };
    assert_eq!(row("ACCOUNT").last(), Some(&"ENDS"));
    assert_eq!(row("user:ann"), ["user:ann", "total", "42", "1000", "183", "-", "0", "0", "tokens,", "0", "cost"]);
    assert_eq!(row("tenant")[..6], ["tenant", "month", "42", "-", "183", "5000000"]);
    assert_eq!(row("agent:a:b")[..6], ["agent:a:b", "day", "0", "1", "0", "2"]);
    assert!(!table.out.contains("key:k1"), "{table:?}");
    let other = command(&node, &["ls", "--tenant", "acme"]).await;
    assert!(other.out.contains("key:k1") && !other.out.contains("user:ann"), "{other:?}");
    let removed = command(&node, &["rm", "user:ann"]).await;
    assert_eq!((removed.code, budgets.find("user:ann").await), (Some(0), None), "{removed:?}");
    let again = command(&node, &["rm", "user:ann"]).await;
    assert!(again.code.is_some_and(|code| code != 0) && again.err.contains("no budget"), "{again:?}");
}

/// Covers: PR-10.
#[tokio::test]
async fn commands_with_bad_arguments_exit_with_64() {
    let dir = tempdir().expect("a directory");
    let node = open_node(&dir, &[]).await;
    let bad: [&[&str]; 10] = [
        &["set", "ann", "--tokens", "1"],
        &["set", "user:", "--tokens", "1"],
        &["set", "group:x", "--tokens", "1"],
        &["set", "tenant:x", "--tokens", "1"],
        &["set", "user:ann"],
        &["set", "user:ann", "--tokens=-1"],
        &["set", "user:ann", "--tokens", "1", "--period", "week"],
        &["rm"],
        &["rm", "user"],
        &["ls", "user:ann"],
    ];
    for args in bad {
        let ended = command(&node, args).await;
        assert_eq!(ended.code, Some(64), "{args:?}: {ended:?}");
        assert!(!ended.err.is_empty() && ended.out.is_empty(), "{args:?}: {ended:?}");
    }
    assert_eq!(Budgets::at(&node).list().await, [Value::Null; 0]);
}

/// Covers: PR-10.
#[tokio::test]
async fn bad_bodies_of_the_api_are_refused() {
    let dir = tempdir().expect("a directory");
    let node = open_node(&dir, &[]).await;
    let budgets = Budgets::at(&node);
    let long = format!(r#"{{"kind":"user","name":"{}","tokens":1,"period":"day"}}"#, "x".repeat(257));
    let bad = [
        "",
        "[]",
        "{\"kind\":",
        r#"{"kind":"user","name":"a","period":"day"}"#,
        r#"{"kind":"user","name":"a","tokens":1}"#,
        r#"{"kind":"user","name":"a","tokens":1,"period":"week"}"#,
        r#"{"kind":"user","name":"a","tokens":-1,"period":"day"}"#,
        r#"{"kind":"user","name":"a","tokens":"1","period":"day"}"#,
        r#"{"kind":"user","name":"a","cost":1.5,"period":"day"}"#,
        r#"{"kind":"user","tokens":1,"period":"day"}"#,
        r#"{"kind":"user","name":"","tokens":1,"period":"day"}"#,
        r#"{"kind":"tenant","name":"a","tokens":1,"period":"day"}"#,
        r#"{"kind":"group","name":"a","tokens":1,"period":"day"}"#,
        r#"{"name":"a","tokens":1,"period":"day"}"#,
        r#"{"kind":"user","name":"a","tokens":1,"period":"day","more":1}"#,
        r#"{"tenant":"a/b","kind":"user","name":"a","tokens":1,"period":"day"}"#,
        &long,
    ];
    for body in bad {
        budgets.send("PUT", "/v1/budgets", body).await.must_be(400, "invalid_message");
    }
    for body in ["", r#"{"kind":"user"}"#, r#"{"kind":"group","name":"a"}"#, r#"{"kind":"user","name":"a","tokens":1}"#]
    {
        budgets.send("POST", "/v1/budgets:remove", body).await.must_be(400, "invalid_message");
    }
    for query in ["tenant=a&tenant=b", "tenant=a%2Fb", "kind=user"] {
        budgets.send("GET", &format!("/v1/budgets?{query}"), "").await.must_be(400, "invalid_message");
    }
    // A form of a web page has no such content type.
    let form = r#"{"kind":"user","name":"a","tokens":1,"period":"day"}"#;
    let reply = budgets.web.ask("PUT", "/v1/budgets", &[("content-type", "text/plain")], form).await;
    assert_eq!(reply.status, 415, "{}", reply.text);
    assert_eq!(budgets.list().await, [Value::Null; 0]);
}

/// Covers: PR-10: a tenant cannot raise its own limits.
#[tokio::test]
async fn public_listener_has_no_budgets() {
    let dir = tempdir().expect("a directory");
    let node = guarded(&dir, &[]).await;
    let operator = Key::make(&node, &["--scopes", "operator"]).await;
    let ann = Key::make(&node, &["--user", "ann", "--scopes", "read,write,models"]).await;
    let json = [("content-type", "application/json")];
    let body = r#"{"kind":"tenant","tokens":1,"period":"day"}"#;
    for key in [&operator, &ann] {
        let web = Web::new(node.http, None).key(key);
        for (method, path) in [("GET", "/v1/budgets"), ("PUT", "/v1/budgets"), ("POST", "/v1/budgets:remove")] {
            let reply = web.ask(method, path, &json, if method == "GET" { "" } else { body }).await;
            assert_eq!(reply.status, 404, "{method} {path}: {}", reply.text);
        }
    }
    assert_eq!(Budgets::at(&node).list().await, [Value::Null; 0]);
}
