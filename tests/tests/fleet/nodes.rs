//! `turnway nodes`: each node's list of all nodes.
use crate::Fleet;
use crate::view::View;
use serde_json::Value;
use tokio::time::timeout;
use turnway_tests::real::command::run;
use turnway_tests::real::{PATIENCE, http};

impl Fleet {
    /// Returns one node's list of nodes in the order of [`Fleet::nodes`], with null for a node that is not
    /// listed.
    async fn list(&self, asked: usize) -> Vec<Value> {
        let (status, text) = http::get(self.nodes[asked].admin, "/v1/nodes").await.expect("it answers");
        assert_eq!(status, 200, "{text}");
        let told: Value = serde_json::from_str(&text).expect("JSON");
        let told = told["nodes"].as_array().expect("a list");
        assert_eq!(told[0]["node_id"], self.nodes[asked].id, "who is asked comes first");
        let of = |id: &str| told.iter().find(|node| node["node_id"] == id).cloned().unwrap_or_default();
        self.nodes.iter().map(|node| of(&node.id)).collect()
    }

    /// Waits until the list satisfies `fits`.
    async fn until_listed(&self, asked: usize, fits: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let mut last = Vec::new();
        let listed = async {
            loop {
                last = self.list(asked).await;
                if fits(&last) {
                    return;
                }
            }
        };
        let in_time = timeout(PATIENCE, listed).await.is_ok();
        assert!(in_time, "{last:?}");
        last
    }
}

fn phases(listed: &[Value]) -> Vec<&str> {
    listed.iter().map(|node| node["phase"].as_str().unwrap_or("absent")).collect()
}

/// Covers: G-14.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_lists_all_nodes() {
    let mut fleet = Fleet::start(3).await;
    let [a, b] = [0, 1].map(|n| fleet.nodes[n].http);
    let mut owner = View::open(b, "ann", "s1").await;
    let run_id = owner.start_turn("r1", "first").await;
    fleet.pace.add_permits(1);
    owner.until_text(&run_id, 1, 1).await;
    let _watcher = View::open(a, "ann", "s1").await;

    // A node reports its own load at once, and the others report it within seconds.
    for asked in [1, 0, 2] {
        let told =
            fleet.until_listed(asked, |all| all[1]["load"]["sessions_owned"] == 1 && all[1]["load"]["open_turns"] == 1);
        let told = told.await;
        assert_eq!(phases(&told), ["serving"; 3]);
        for (index, (told, node)) in told.iter().zip(&fleet.nodes).enumerate() {
            assert_eq!(told["name"], format!("n{index}"));
            assert_eq!(told["address"], node.http.to_string());
            assert_eq!(told["answering"], asked == index);
            assert_eq!(told["release"], env!("CARGO_PKG_VERSION"));
            assert!(told["frames"].as_u64() >= Some(1) && told["seen_ms"].is_u64(), "{told}");
            assert!(told["seen_ago_ms"].as_u64() < Some(30_000), "{told}");
        }
    }
    let own = fleet.until_listed(0, |all| all[0]["load"]["bus_lag_us"].is_u64()).await.swap_remove(0);
    let load = &own["load"];
    assert_eq!(
        (&load["sessions_owned"], &load["sessions_followed"], &load["links"]),
        (&0.into(), &1.into(), &1.into())
    );
    assert!(load["bus_lag_us"].as_u64() < Some(5_000_000), "{load}");

    // A killed node is `gone` once its lease has expired; a leaving node is `draining` and then no longer
    // listed.
    fleet.nodes[2].kill().await;
    fleet.until_listed(0, |all| all[2]["phase"] == "gone").await;
    fleet.nodes[1].signal("-TERM").await;
    let told = fleet.until_listed(0, |all| all[1]["phase"] == "draining").await;
    assert_eq!(phases(&told), ["serving", "draining", "gone"]);
    fleet.pace.add_permits(1000);
    assert_eq!(fleet.nodes[1].exit().await, Some(0));
    assert_eq!(phases(&fleet.list(0).await), ["serving", "absent", "gone"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_command_reports_an_unavailable_store() {
    let mut fleet = Fleet::start(2).await;
    let admin = format!("http://{}", fleet.nodes[1].admin);
    let dir = tempfile::tempdir().expect("a directory");
    let seen = run(dir.path(), &["nodes", "--admin", &admin], &[]).await;
    let lines: Vec<&str> = seen.out.lines().collect();
    assert_eq!((seen.code, lines.len()), (Some(0), 3), "{seen:?}");
    assert!(lines[1].starts_with("n1 ") && lines[1].contains(" answers "), "{seen:?}");
    assert!(lines[2].starts_with("n0 ") && lines[2].ends_with(&fleet.nodes[0].id), "{seen:?}");

    fleet.redis.kill();
    let away = run(dir.path(), &["nodes", "--json", "--admin", &admin], &[]).await;
    assert_eq!((away.code, away.error()["code"].as_str()), (Some(1), Some("store_unavailable")), "{away:?}");
    fleet.redis.restart();
    let again = async { while run(dir.path(), &["nodes", "--admin", &admin], &[]).await.code != Some(0) {} };
    timeout(PATIENCE, again).await.expect("as soon as Redis is back");
    fleet.until_listed(1, |all| phases(all) == ["serving"; 2]).await;
}
