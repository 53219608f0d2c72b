//! The built-in agents of a node: `echo` and `counter`.
use crate::world::{World, agents, done, order};
use serde_json::json;
use tokio::sync::mpsc;
use turnway::agent::directory::{AgentSpec, BadAgent, parse_agent};
use turnway_core::id::AgentId;
use turnway_core::limits::UNSAVED_TEXT_BYTES_MAX;
use turnway_core::protocol::agent::{AgentEvent, AgentFailure, OnOwnerLoss};
use turnway_core::protocol::json::Json;

fn world() -> World {
    let (_, calls) = mpsc::unbounded_channel();
    World::with("b=builtin:echo", calls, 64)
}

#[tokio::test]
async fn echo_streams_the_input_word_by_word() {
    let mut world = world();
    for (said, words) in [("", 0), ("hi", 1), ("the  quick\n世界 fox ", 5), (&"word ".repeat(500), 500)] {
        let ask = order("echo", &words.to_string(), said);
        world.invoke(ask.clone());
        world.expect(&ask, AgentEvent::Acked).await;
        let mut pieces = Vec::new();
        let end = loop {
            let event = world.event(&ask).await;
            let AgentEvent::Delta { text, .. } = event else { break event };
            pieces.push(text.0);
        };
        assert_eq!((pieces.concat().as_str(), pieces.len(), end), (said, words, done()));
    }
    world.until_idle().await;
}

/// Covers: SR-K2, S-48.
#[tokio::test]
async fn echo_obeys_credit_and_cancel() {
    let mut world = world();
    let ask = order("echo", "m1", &"x".repeat(3 * 1024 * 1024));
    world.invoke(ask.clone());
    world.expect(&ask, AgentEvent::Acked).await;
    let mut heard = 0;
    while heard < UNSAVED_TEXT_BYTES_MAX {
        let AgentEvent::Delta { text, .. } = world.event(&ask).await else { panic!("text was to come") };
        heard += text.reveal().len();
    }
    assert_eq!(heard, UNSAVED_TEXT_BYTES_MAX);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(world.reports.try_recv().is_err());
    world.credit(&ask, 16 * 1024);
    let AgentEvent::Delta { text, .. } = world.event(&ask).await else { panic!("text was to come") };
    assert_eq!(text.reveal().len(), 16 * 1024);
    world.cancel(&ask);
    world.expect(&ask, AgentEvent::CancelAcked).await;

    let slow = order("echo", "m2", "/slow one two three");
    world.invoke(slow.clone());
    world.expect(&slow, AgentEvent::Acked).await;
    let AgentEvent::Delta { text, .. } = world.event(&slow).await else { panic!("text was to come") };
    assert_eq!(text.reveal(), "one ");
    world.cancel(&slow);
    world.expect(&slow, AgentEvent::CancelAcked).await;
    world.until_idle().await;
}

/// Covers: SR-K1, MP-G5.
#[tokio::test]
async fn counter_reports_numbers_and_progress() {
    let mut world = world();
    let ask = order("counter", "m1", "count to 20 every 1ms");
    world.invoke(ask.clone());
    world.expect(&ask, AgentEvent::Acked).await;
    let mut text = String::new();
    let mut states = Vec::new();
    let end = loop {
        let event = world.event(&ask).await;
        if let AgentEvent::Delta { text: piece, .. } = event {
            text.push_str(piece.reveal());
        } else if let AgentEvent::State { state, detail, .. } = event {
            states.push((state, detail));
        } else {
            break event;
        }
    };
    let wanted: String = (1..=20).map(|number| format!("{number}\n")).collect();
    assert_eq!((text, end, states.len()), (wanted, done(), 10));
    let last = Some(Json(json!({ "at": 20, "of": 20 })));
    assert_eq!(states.last(), Some(&("counting".to_owned(), last)));
}

/// Covers: SR-K2.
#[tokio::test]
async fn counter_stops_when_cancelled_or_dropped() {
    let mut world = world();
    let ask = order("counter", "m1", "10000 every 60s");
    world.invoke(ask.clone());
    world.expect(&ask, AgentEvent::Acked).await;
    world.cancel(&ask);
    let (_, end) = world.text(&ask).await;
    assert_eq!(end, AgentEvent::CancelAcked);
    let ask = order("counter", "m2", "10000 every 60s");
    world.invoke(ask.clone());
    world.expect(&ask, AgentEvent::Acked).await;
    world.drop_attempt(&ask);
    world.until_idle().await;
}

/// Covers: SR-P8.
#[tokio::test]
async fn unconfigured_agent_is_unavailable() {
    let mut world = world();
    let ask = order("nobody", "m1", "hi");
    world.invoke(ask.clone());
    let failure = AgentFailure::Unavailable("the agent is not configured on this node".to_owned());
    world.expect(&ask, AgentEvent::Failed(failure)).await;
    assert!(
        !world.agents.is_healthy(&ask.agent_id, &ask.key.tenant)
            && world.agents.is_healthy(&order("echo", "m", "").agent_id, &ask.key.tenant)
    );
}

#[tokio::test]
async fn directory_lists_configured_agents_and_default() {
    let name = |text: &str| AgentId::parse(text).expect("a name");
    let (sender, _reports) = mpsc::channel(1);
    let build = |specs: Vec<AgentSpec>, default: Option<&str>| agents(specs, default.map(name), sender.clone());
    let demo = || AgentSpec::demo().expect("good agents");
    let directory = build(demo(), None).expect("agents").directory();
    assert_eq!(directory.default, Some(name("echo")));
    assert!(directory.agents.values().all(|policy| policy.on_owner_loss == OnOwnerLoss::Retry));
    let directory = build(demo(), Some("counter")).expect("agents").directory();
    assert_eq!(directory.default, Some(name("counter")));
    assert_eq!(build(Vec::new(), None).expect("agents").directory().default, None);
    assert_eq!(build(demo(), Some("x")).err(), Some(BadAgent::Default(name("x"))));
    let twice = vec![parse_agent("a=http://h").expect("good"), parse_agent("a=builtin:echo").expect("good")];
    assert_eq!(build(twice, None).err(), Some(BadAgent::Duplicate(name("a"))));
}
