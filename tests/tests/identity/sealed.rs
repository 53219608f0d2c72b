//! Grants of a key are authenticated with the nodes' secret: changes of the stored record give no access.
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};
use tokio::time::timeout;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::command::{Ended, run};
use turnway_tests::real::identity::{Key, pepper};
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::ConnectionEnd;

/// A node on a Redis whose records the test can change.
struct Fixture {
    redis: Redis,
    node: Node,
    _dir: TempDir,
}

impl Fixture {
    async fn start() -> Self {
        let dir = tempdir().expect("a directory");
        let redis = Redis::start(&dir.path().join("redis"), &["--appendonly", "yes", "--appendfsync", "always"]);
        let pepper = pepper(dir.path());
        let flags = ["--demo", "--auth", "keys", "--auth-pepper", pepper.to_str().expect("UTF-8")];
        let node = Node::start_on(&redis.url(), dir.path(), &flags).await;
        Self { redis, node, _dir: dir }
    }

    /// Changes a key's record, as an attacker with access to the store but without the nodes' secret could,
    /// and increments the version that makes nodes read it.
    fn change(&self, key: &Key, change: impl Fn(&mut Value)) {
        let register = |name: &str| format!("val:{}", URL_SAFE_NO_PAD.encode(name));
        let page = register(&format!("keys/{}", &key.id[..1]));
        let text: String = self.redis.command(&["HGET", &page, "d"]);
        let mut records: Vec<Value> = serde_json::from_str(&text).expect("a page of keys");
        let record = records.iter_mut().find(|record| record["id"] == key.id.as_str()).expect("the key's record");
        change(record);
        let text = serde_json::to_string(&records).expect("JSON");
        let _: i64 = self.redis.command(&["HSET", &page, "d", &text]);
        let _: i64 = self.redis.command(&["HINCRBY", &register("keys"), "v", "1"]);
    }

    /// Waits until the node accepts or refuses a key.
    async fn until_accepted(&self, key: &Key, is_good: bool) {
        let answered = async {
            loop {
                let hello = key.hello(self.node.http, None).await;
                if is_good == hello.is_ok() {
                    return hello.err();
                }
            }
        };
        let gone = timeout(PATIENCE, answered).await.expect("it is noticed");
        assert_eq!(gone, (!is_good).then_some(ConnectionEnd::Closed(4401)));
    }

    async fn key(&self, args: &[&str]) -> Ended {
        let admin = format!("http://{}", self.node.admin);
        run(&std::env::temp_dir(), &[&["key"], args, &["--admin", &admin]].concat(), &[]).await
    }
}

/// Covers: S-01, S-07.
#[tokio::test]
async fn key_with_a_changed_record_is_refused() {
    let world = Fixture::start().await;
    for (what, change) in [
        ("tenant", json!({"tenant": "acme"})),
        ("user", json!({"user": "bob"})),
        ("scopes", json!({"scopes": ["read", "write", "operator"]})),
        ("expires", json!({"expires": 4_000_000_000_000_u64})),
        ("serves", json!({"serves": ["agent:helper"]})),
        ("seal", json!({"seal": "00".repeat(32)})),
        ("hash", json!({"hash": "00".repeat(32)})),
    ] {
        let key = Key::make(&world.node, &["--user", "ann", "--lasts", "1h"]).await;
        let mut wire = key.hello(world.node.http, None).await.expect("let in");
        world.change(&key, |record| {
            let changes = change.as_object().expect("fields").clone();
            record.as_object_mut().expect("a record").extend(changes);
        });
        // The key's open connections are closed, and new ones refused.
        assert_eq!(wire.until(|_| false).await, Err(ConnectionEnd::Closed(4401)), "{what}");
        world.until_accepted(&key, false).await;
        let reply = Web::new(world.node.http, None).key(&key).get("/v1/sessions").await;
        assert_eq!(reply.status, 401, "{what}");
        // Neither a revocation nor a migration seals the changed record.
        let body = json!({ "key_ids": [key.id] }).to_string();
        let headers = [("content-type", "application/json")];
        let reply = Web::new(world.node.admin, None).ask("POST", "/v1/keys:migrate", &headers, &body).await;
        assert_eq!(reply.status, 409, "{what}: {}", reply.text);
        key.revoke(&world.node).await;
        world.until_accepted(&key, false).await;
    }
    assert!(world.node.log().contains("changed in the store"), "operators are told");
}

/// Covers: S-01.
#[tokio::test]
async fn key_with_its_revocation_removed_is_refused() {
    let mut world = Fixture::start().await;
    let key = Key::make(&world.node, &["--user", "ann"]).await;
    key.revoke(&world.node).await;
    world.change(&key, |record| drop(record.as_object_mut().expect("a record").remove("revoked")));
    // This also holds for a node that has not seen the revocation.
    world.node.kill_and_restart().await;
    world.until_accepted(&key, false).await;
}

/// Covers: S-01.
#[tokio::test]
async fn unsealed_keys_are_accepted_after_migration() {
    let world = Fixture::start().await;
    let old = Key::make(&world.node, &["--user", "ann", "--label", "the shop"]).await;
    let new = Key::make(&world.node, &["--user", "bob"]).await;
    assert_eq!(world.key(&["migrate"]).await.out, "every key is sealed\n");
    // An earlier release wrote no seal.
    world.change(&old, |record| drop(record.as_object_mut().expect("a record").remove("seal")));
    world.until_accepted(&old, false).await;
    world.until_accepted(&new, true).await;
    let listed = world.key(&["list"]).await.out;
    let row = listed.lines().find(|row| row.starts_with(&old.id)).expect("a row");
    assert!(row.contains("unsealed") && row.contains("the shop"), "{row}");
    // The first call lists the keys and their grants, the second one seals them.
    let asked = world.key(&["migrate"]).await;
    assert_eq!(asked.code, Some(1));
    assert!(asked.out.contains(&old.id) && !asked.out.contains(&new.id) && asked.out.contains("--yes"), "{asked:?}");
    world.until_accepted(&old, false).await;
    let done = world.key(&["migrate", "--yes"]).await;
    assert!(done.code == Some(0) && done.out.contains(&old.id), "{done:?}");
    world.until_accepted(&old, true).await;
    assert_eq!(world.key(&["migrate", "--yes"]).await.out, "every key is sealed\n");
}
