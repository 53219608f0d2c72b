//! Agents in a chat: members, the active agent, and invitations.
use crate::pipe::{chat, node, printed_lines, session};
use serde_json::json;
use tempfile::TempDir;
use turnway_client::{Client, Event, MemberChange, Members, Open, Options, UserInput};
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::{WebSocketClient, invoke};

const QUESTION: &str = "[ada is not a member of this session. Invite it? (y/n)]";

fn dir() -> TempDir {
    TempDir::new().expect("a directory")
}

/// Makes the agents of `--demo` members of every new session; an explicit list of members replaces them.
#[tokio::test]
async fn new_demo_session_has_all_demo_agents() {
    let dir = dir();
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    let opened = wire.ask("o1", json!({"type": "session_open", "session_id": "s1"})).await.expect("opened");
    assert_eq!(opened["agents"], json!(["echo", "assistant", "counter"]), "{opened}");
    let (said, _) = wire.turn("s1", "counter", "m1", "count to 2").await.expect("a turn");
    assert_eq!(said, "1\n2\n");
    // The session is created by its first input.
    wire.ask("m2", invoke("s2", "counter", "count to 1")).await.expect("accepted");
    wire.until(|message| message["type"] == "done").await.expect("its end");
    let (said, _) = wire.turn("s2", "echo", "m3", "hello").await.expect("a turn");
    assert_eq!(said, "hello");
    let open = json!({"type": "session_open", "session_id": "s3", "active_agent": "counter"});
    let opened = wire.ask("o3", open).await.expect("opened");
    let members = json!(["counter", "assistant", "echo"]);
    assert_eq!((&opened["agents"], &opened["active_agent"]), (&members, &json!("counter")));
    let open = json!({"type": "session_open", "session_id": "s4", "agents": ["echo"]});
    let opened = wire.ask("o4", open).await.expect("opened");
    assert_eq!(opened["agents"], json!(["echo"]), "{opened}");
}

#[tokio::test]
async fn agents_command_lists_members_and_health() {
    let dir = dir();
    let node = node(dir.path()).await;
    let ended = chat(&node, &[], "/agents\n/switch counter\n/agents\n").await;
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), "[counter is now the active agent]\n"));
    let rows: Vec<Vec<&str>> = printed_lines(&ended).iter().map(|row| row.split_whitespace().collect()).collect();
    let header = vec!["AGENT", "MEMBER", "HEALTH"];
    let ada = vec!["ada", "healthy"];
    let echo = "echo";
    let counter = "counter";
    let before = [header, ada, vec![echo, "answers", "healthy"], vec![counter, "yes", "healthy"]];
    assert_eq!(rows[..4], before);
    assert_eq!(rows[7..9], [[echo, "yes", "healthy"], [counter, "answers", "healthy"]]);
}

/// Covers: SR-S5.
#[tokio::test]
async fn switch_command_changes_the_answering_agent() {
    let dir = dir();
    let node = node(dir.path()).await;
    let ended = chat(&node, &["--user", "ann"], "hello\n/switch counter\ncount to 2\n").await;
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), "[counter is now the active agent]\n"));
    assert_eq!(printed_lines(&ended), ["ann: hello", "echo: hello", "ann: count to 2", "counter: 1", "2"]);
    let wrong = chat(&node, &[], "/switch conter\nhello\n").await;
    assert_eq!(wrong.err, "[there is no agent conter; did you mean counter? /agents lists them]\n");
    assert_eq!((wrong.code, printed_lines(&wrong).last()), (Some(1), Some(&"echo: hello")));
}

/// Covers: SR-S5, SR-E6.
#[tokio::test]
async fn switch_to_a_non_member_offers_an_invitation() {
    let dir = dir();
    let node = node(dir.path()).await;
    let ended = chat(&node, &["--user", "ann"], "/switch ada\ny\nhello\n").await;
    assert_eq!((ended.code, ended.err), (Some(0), format!("{QUESTION}\n[ada is now the active agent]\n")));
    let told: Vec<&str> = ended.out.lines().skip(2).collect();
    assert_eq!(told, ["ann: hello", "ada: hello"]);

    let refused = chat(&node, &["--user", "ann"], "/switch ada\nwhat?\nn\nhello\n").await;
    let told = format!("{QUESTION}\n[please answer y or n: invite ada?]\n[ada was not invited]\n");
    assert_eq!((refused.code, refused.err.as_str()), (Some(1), told.as_str()));
    assert_eq!(printed_lines(&refused), ["ann: hello", "echo: hello"], "what is no answer is said to nobody");

    let unanswered = chat(&node, &[], "/switch ada\n").await;
    assert_eq!((unanswered.code, unanswered.err), (Some(1), format!("{QUESTION}\n[ada was not invited]\n")));
}

/// Covers: SR-S4.
#[tokio::test]
async fn at_prefix_addresses_an_agent_for_one_turn() {
    let dir = dir();
    let node = node(dir.path()).await;
    let lines = "@counter count to 2\nhello\n@counter count to 1\n@counter count to 1\nagain\n@ada hi\ny\nlast\n";
    let ended = chat(&node, &["--user", "ann"], lines).await;
    assert_eq!((ended.code, ended.err), (Some(0), format!("{QUESTION}\n")));
    let answers: Vec<&str> = ended.out.lines().skip(2).filter(|line| !line.starts_with("ann: ")).collect();
    let expected =
        ["counter: 1", "2", "echo: hello", "counter: 1", "counter: 1", "echo: again", "ada: hi", "echo: last"];
    assert_eq!(answers, expected);
    assert!(ended.out.contains("\nann: count to 2\n"), "the agent is told the text alone: {}", ended.out);
    let nobody = chat(&node, &[], "@nobody hello\n").await;
    assert_eq!((nobody.code, printed_lines(&nobody).len()), (Some(1), 0), "{nobody:?}");
    assert_eq!(nobody.err, "[there is no agent nobody; /agents lists them]\n");
}

/// Applies `--agent` to a running session as to a new one.
#[tokio::test]
async fn agent_option_switches_the_agent_of_a_running_session() {
    let dir = dir();
    let node = node(dir.path()).await;
    let first = chat(&node, &["--user", "ann"], "hello\n").await;
    let on = ["--user", "ann", "--session", session(&first)];
    let later = chat(&node, &[&on[..], &["--agent", "counter"]].concat(), "count to 1\n").await;
    assert_eq!((later.code, later.err.as_str()), (Some(0), "[counter is now the active agent]\n"));
    assert_eq!(printed_lines(&later), ["ann: hello", "echo: hello", "ann: count to 1", "counter: 1"]);
    // The switch is durable, and the user may invite an agent that is no member.
    let stays = chat(&node, &on, "count to 2\n").await;
    assert_eq!(printed_lines(&stays)[4..], ["ann: count to 2", "counter: 1", "2"]);
    let invited = chat(&node, &[&on[..], &["--agent", "ada"]].concat(), "y\nhi\n").await;
    assert_eq!((invited.code, invited.err), (Some(0), format!("{QUESTION}\n[ada is now the active agent]\n")));
    assert_eq!(invited.out.lines().last(), Some("ada: hi"));
    for args in [&on[..], &["--user", "ann"], &["--session", "a-free-name"]] {
        let wrong = chat(&node, &[args, &["--agent", "nobody"]].concat(), "is anybody there?\n").await;
        assert_eq!(wrong.code, Some(1), "{wrong:?}");
        assert!(wrong.err.contains("[there is no agent nobody; "), "{wrong:?}");
        assert!(!wrong.out.contains("is anybody there?"), "said to nobody else: {wrong:?}");
    }
}

#[tokio::test]
async fn agent_option_sets_the_agent_of_a_new_session() {
    let dir = dir();
    let node = node(dir.path()).await;
    for args in [&["--user", "ann"][..], &["--user", "ann", "--session", "fresh"]] {
        let ended = chat(&node, &[args, &["--agent", "ada"]].concat(), "hi\n/switch counter\ncount to 1\n").await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(!ended.err.contains("(y/n)"), "nobody is to be invited: {ended:?}");
        assert_eq!(printed_lines(&ended), ["ann: hi", "ada: hi", "ann: count to 1", "counter: 1"]);
    }
}

/// Requests changes of members with the Rust client and checks the answers.
///
/// Covers: SR-S5, SR-E6.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rust_client_changes_members() {
    let dir = dir();
    let node = node(dir.path()).await;
    let options = Options::new(format!("ws://{}", node.http)).user("ann");
    let mut client = Client::connect(options).await.expect("it connects");
    let session = client.session("s1");
    session.open(Open::default()).await.expect("asked");
    let told = |agents: &[&str], active: &str| {
        let agents = agents.iter().map(|agent| (*agent).to_owned()).collect();
        Members { session: "s1".to_owned(), agents, active_agent: Some(active.to_owned()) }
    };
    for (change, expected) in [
        (MemberChange::switch("counter"), Ok(told(&["echo", "assistant", "counter"], "counter"))),
        (MemberChange::invite("ada").active(), Ok(told(&["echo", "assistant", "counter", "ada"], "ada"))),
        (MemberChange::remove("counter").reason("enough"), Ok(told(&["echo", "assistant", "ada"], "ada"))),
        (MemberChange::switch("counter"), Err(("switch_agent", "agent_not_in_session"))),
        (MemberChange::remove("counter"), Err(("remove_agent", "REMOVE_AGENT_FAILED"))),
        (MemberChange::invite("nobody"), Err(("invite_agent", "ADD_AGENT_FAILED"))),
    ] {
        session.change_members(change.clone()).await.expect("asked");
        let came = loop {
            let event = client.next_event().await.expect("an event");
            if let Event::Members(members) = event {
                break Ok(members);
            } else if let Event::Error(failure) = event {
                break Err((failure.request_type, failure.code));
            }
        };
        let came = came.as_ref().map_err(|(asked, code)| (asked.as_str(), code.as_str()));
        assert_eq!(came, expected.as_ref().map_err(|what| *what), "{change:?}");
    }
    // The refusals were answered above and are not reported again.
    session.invoke(UserInput::text("hi")).await.expect("said");
    loop {
        let event = client.next_event().await.expect("an event");
        assert!(!matches!(event, Event::Members(_) | Event::Error(_)), "{event:?}");
        if let Event::Done(done) = event {
            break assert_eq!(done.text, "hi");
        }
    }
}
