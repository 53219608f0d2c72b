//! Clients that connect through HAProxy with the project's configuration.
use crate::view::View;
use crate::{Fleet, answer};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::interval;
use turnway_tests::real::haproxy::Haproxy;
use turnway_tests::real::web::{Event, Stream, Web, text_of};
use turnway_tests::real::wire::{ConnectionEnd, WebSocketClient};
use turnway_tests::real::{figure, quantile, size};

/// Pause before a client reconnects.
const AGAIN: Duration = Duration::from_millis(20);

/// Times of one client after its node's death.
#[derive(Default)]
struct Outage {
    /// From the break to the welcome of another node.
    reconnected: Vec<Duration>,
    /// From the break to the next event of its turn.
    next_event: Vec<Duration>,
}

/// Follows a client's turn to its end, across any number of nodes.
async fn follow(mut view: View, front: SocketAddr, run: String) -> (View, String, Outage) {
    let mut lost = Outage::default();
    let mut since = None;
    let mut again = interval(AGAIN);
    while view.end(&run).is_none() {
        match (view.next().await, since) {
            (Ok(message), Some(broke)) if message["run_id"] == run => {
                lost.next_event.push(Instant::now() - broke);
                since = None;
            }
            (Ok(_), _) => {}
            (Err(_), _) => {
                let broke = Instant::now();
                while view.move_to(front).await.is_err() {
                    again.tick().await;
                }
                lost.reconnected.push(broke.elapsed());
                since = Some(broke);
            }
        }
    }
    (view, run, lost)
}

/// Repeats a turn's HTTP request after the last event until a node answers it.
async fn again(web: &Web, text: &str, last: Option<&str>) -> Stream {
    let mut pace = interval(AGAIN);
    loop {
        pace.tick().await;
        let stream = web.turn("http", "steady", "k1", text, last).await;
        if stream.status == 200 {
            return stream;
        }
    }
}

/// Collects the clients' times, and asserts that each turn completed with its whole text.
async fn all_told(mut tasks: JoinSet<(View, String, Outage)>) -> Outage {
    let mut lost = Outage::default();
    while let Some(followed) = tasks.join_next().await {
        let (view, run, of) = followed.unwrap_or_else(|why| panic!("a client: {why}"));
        // A view fails on gaps or repeats of text or facts, and when a run ends twice.
        assert_eq!(view.end(&run).expect("it has ended")["status"], "completed");
        let said = view.answer(&run).to_owned();
        assert!(said.starts_with("paced ") && said == answer(said.split('·').next().unwrap_or_default()), "{said}");
        lost.reconnected.extend(of.reconnected);
        lost.next_event.extend(of.next_event);
    }
    lost
}

/// Covers: G2, G3, G5, G6, G9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_node_loses_no_text_for_clients_behind_haproxy() {
    let mut fleet = Fleet::start(3).await;
    let front = Haproxy::start(fleet.dir.path(), &fleet.nodes).await;
    fleet.settle().await;
    let clients = size("FLEET_FRONT_CLIENTS", 9);
    let mut following = Vec::new();
    for n in 0..clients {
        let session = format!("front-{n}");
        let mut asker = View::open(front.at, "ann", &session).await;
        let run = asker.start_turn(&format!("r{n}"), &format!("paced {n}")).await;
        following.push((asker, run, session));
    }
    let part = f64::from(u32::try_from(clients / 3).expect("few"));
    let links = "turnway_link_connections{transport=\"websocket\"}";
    for n in 0..3 {
        // Each open session has one link; the nodes of the remaining links are not known.
        assert!(fleet.counted(n, links).await >= part, "the front gives each its part");
    }
    let web = Web::new(front.at, Some("bob"));
    let text = "paced by http";
    let mut stream = web.turn("http", "steady", "k1", text, None).await;
    let mut events = Vec::new();
    while !events.last().is_some_and(|event: &Event| event.data["type"] == "delta" && event.data["offset"] != 0) {
        events.push(stream.next().await.expect("it goes on"));
    }
    for (asker, run, _) in &mut following {
        asker.until_text(run, 1, 1).await;
    }
    // Some watchers connect to the owner of their session, some to other nodes.
    let mut watching = Vec::new();
    for (_, run, session) in &following {
        watching.push((View::open(front.at, "ann", session).await, run.clone()));
    }

    let owner = fleet.owner("http");
    let index = fleet.nodes.iter().position(|node| node.id == owner).expect("one of them");
    let mut tasks = JoinSet::new();
    let all = following.into_iter().map(|(view, run, _)| (view, run)).chain(watching);
    for (view, run) in all {
        tasks.spawn(follow(view, front.at, run));
    }
    fleet.nodes[index].kill().await;
    let killed = Instant::now();
    events.extend(stream.until_broken().await);
    let last = events.iter().rev().find_map(|event| event.id.clone());
    let mut stream = again(&web, text, last.as_deref()).await;
    let back = killed.elapsed();
    events.extend(stream.rest().await);
    assert_eq!(text_of(&events, ""), answer(text));
    let done = &events.last().expect("an end").data;
    assert_eq!((&done["type"], &done["status"]), (&json!("done"), &json!("completed")), "{done}");
    figure("over HTTP, from kill -9 to an answer through HAProxy", format!("{back:?}"));

    let mut lost = all_told(tasks).await;
    assert!(
        lost.reconnected.len() >= 2 * clients / 3 - 2,
        "a third of the clients was there: {}",
        lost.reconnected.len()
    );
    for (what, times) in [("welcome elsewhere", &mut lost.reconnected), ("more of its turn", &mut lost.next_event)] {
        let half = quantile(times, 0.5);
        let most = quantile(times, 1.0);
        figure(&format!("through HAProxy, from the break to {what}, p50 / max of {}", times.len()), {
            format!("{half:?} / {most:?}")
        });
    }
}

/// Connects through HAProxy and returns the id of the node that welcomed the client.
async fn welcome(front: SocketAddr) -> Result<String, ConnectionEnd> {
    let mut wire = WebSocketClient::open(front).await?;
    wire.say(json!({"type": "hello", "user_id": "ann"})).await?;
    let welcome = wire.next().await?;
    assert_eq!(welcome["type"], "welcome", "{welcome}");
    Ok(welcome["node_id"].as_str().expect("a name").to_owned())
}

/// Covers: G-14.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draining_node_gets_no_new_clients_and_ends_its_turns() {
    let mut fleet = Fleet::start(3).await;
    let front = Haproxy::start(fleet.dir.path(), &fleet.nodes).await;
    let mut view = View::open(front.at, "ann", "s1").await;
    let run = view.start_turn("r1", "first").await;
    fleet.pace.add_permits(3);
    view.until_text(&run, 1, 1).await;
    let owner = fleet.owner("s1");
    let index = fleet.nodes.iter().position(|node| node.id == owner).expect("one of them");
    fleet.nodes[index].signal("-TERM").await;
    view.until(|message| message["type"] == "go_away").await;
    let mut refused = 0;
    for _ in 0..30 {
        match welcome(front.at).await {
            Ok(node) => assert_ne!(node, owner, "it leaves"),
            Err(_) => refused += 1,
        }
    }
    figure("of 30 connections by HAProxy while a node leaves, refused", refused);
    assert!(refused <= 1, "{refused} of 30");
    fleet.pace.add_permits(1000);
    let done = view.until_done(&run).await;
    assert_eq!((&done["status"], &done["attempt"]), (&"completed".into(), &Value::from(1)), "{done}");
    assert_eq!(view.answer(&run), answer("first"));
    assert_eq!(fleet.nodes[index].exit().await, Some(0));

    fleet.nodes[index].restart().await;
    let id = fleet.nodes[index].id.clone();
    let found = async { while welcome(front.at).await.ok().as_ref() != Some(&id) {} };
    tokio::time::timeout(Duration::from_secs(10), found).await.expect("it is sent clients again");
}
