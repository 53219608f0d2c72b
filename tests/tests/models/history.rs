//! The agent setting `history`: earlier messages that real nodes send with an input to agents that keep no state.
use crate::caller::Caller;
use crate::route::Route;
use crate::stage::{DURABLE, StoreKind};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tempfile::{TempDir, tempdir};
use turnway_tests::real::agent::{AgentStream, Agents, Invocation, Reply};
use turnway_tests::real::command::run;
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::wire::{WebSocketClient, invoke};

/// The most earlier messages that are sent with an input.
const MESSAGES_MAX: usize = 1000;
/// The longest JSON array of earlier messages.
const BYTES_MAX: usize = 256 * 1024;
/// Length of a long input; one input has less than 64 KiB.
const LONG: usize = 40 * 1024;
/// Letters of an answer that are sent at a time.
const PIECE: usize = 8 * 1024;

/// A node, agents that answer by the rules of [`answer`], and a client.
struct World {
    node: Node,
    agents: Agents,
    client: WebSocketClient,
    /// Number of inputs so far, from which their request ids are made.
    inputs: usize,
    _redis: Option<Redis>,
    _dir: TempDir,
}

/// Returns the complete answer of an agent to an input.
fn said(agent: &str, text: &str) -> String {
    if text == "huge" { "x".repeat(BYTES_MAX + PIECE) } else { format!("{agent}: {text}") }
}

/// Plays the agents: some inputs fail, are answered without end, or only in the first attempt.
fn answer(asked: Invocation) -> Reply {
    Reply::speak(async move |stream: AgentStream| {
        let has_no_end = asked.text.starts_with("hold") || asked.text == "crash" && asked.attempt == 1;
        if has_no_end {
            stream.delta("half").await?;
            return stream.hung_up().await;
        }
        if asked.text == "fail" {
            stream.delta("half").await?;
            return stream.event("error", &json!({"code": "broke", "message": "it broke"})).await;
        }
        let letters: Vec<char> = said(&asked.agent, &asked.text).chars().collect();
        for piece in letters.chunks(PIECE) {
            stream.delta(&String::from_iter(piece)).await?;
        }
        stream.done().await
    })
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn assistant(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

/// Returns an input and its complete answer.
fn exchange(agent: &str, text: &str) -> [Value; 2] {
    [user(text), assistant(&said(agent, text))]
}

/// Returns the newest of these messages, at most this number, as far as they fit; null without any.
fn newest(conversation: &[Value], most: usize) -> Value {
    // Each message but the first has a comma before it, and the array has two brackets.
    let mut room = BYTES_MAX - 1;
    let mut kept = Vec::new();
    for message in conversation.iter().rev().take(most) {
        let bytes = message.to_string().len() + 1;
        if bytes > room {
            break;
        }
        room -= bytes;
        kept.push(message.clone());
    }
    kept.reverse();
    if kept.is_empty() { Value::Null } else { kept.into() }
}

/// Asserts that two lists of messages are equal, without printing long ones.
fn must_equal(sent: &Value, expected: &Value, case: &str) {
    let shortened = |list: &Value| -> Vec<String> {
        let messages = list.as_array().map(Vec::as_slice).unwrap_or_default();
        messages.iter().map(|message| format!("{:.60}", message.to_string())).collect()
    };
    assert!(sent == expected, "{case}: {:#?} and not {:#?}", shortened(sent), shortened(expected));
}

impl World {
    /// Starts a node with these agents, each with settings after a comma, and further arguments.
    async fn start(store: StoreKind, agents: &[(&str, &str)], args: &[&str]) -> Self {
        let dir = tempdir().expect("a directory");
        let scripted = Agents::start(answer).await;
        let flags: Vec<String> = agents.iter().map(|(id, settings)| scripted.flag(id) + settings).collect();
        let own = flags.iter().flat_map(|flag| ["--agent", flag.as_str()]);
        let all: Vec<&str> = own.chain(args.iter().copied()).collect();
        let redis = (store == StoreKind::Redis).then(|| Redis::start(&dir.path().join("redis"), &DURABLE));
        let node = match &redis {
            Some(redis) => Node::start_on(&redis.url(), dir.path(), &all).await,
            None => Node::start(dir.path(), &all).await,
        };
        let client = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
        Self { node, agents: scripted, client, inputs: 0, _redis: redis, _dir: dir }
    }

    /// Opens a session with these members.
    async fn open(&mut self, session: &str, members: &[&str]) {
        let open = json!({"type": "session_open", "session_id": session, "agents": members});
        let opened = self.client.ask(&format!("open {session}"), open).await.expect("an answer");
        assert_eq!(opened["type"], "session_opened", "{opened}");
    }

    fn next_id(&mut self) -> String {
        self.inputs += 1;
        format!("m{}", self.inputs)
    }

    /// Sends an input; returns its run.
    async fn begin(&mut self, session: &str, agent: &str, text: &str, strategy: &str) -> String {
        let id = self.next_id();
        let mut message = invoke(session, agent, text);
        message["strategy"] = strategy.into();
        let accepted = self.client.ask(&id, message).await.expect("an answer");
        accepted["run_id"].as_str().unwrap_or_else(|| panic!("{accepted}")).to_owned()
    }

    /// Sends an input whose answer has no end, and waits for its first text; returns its run.
    async fn begin_held(&mut self, session: &str, agent: &str, text: &str) -> String {
        let run = self.begin(session, agent, text, "enqueue").await;
        let is_text = |message: &Value| message["type"] == "delta" && message["run_id"] == *run;
        self.client.until(is_text).await.expect("a part of the answer");
        run
    }

    /// Runs a turn to its end, which must have this status; returns the messages that its agent got.
    async fn turn(&mut self, session: &str, agent: &str, text: &str, status: &str) -> Value {
        let id = self.next_id();
        let (_, done) = self.client.turn(session, agent, &id, text).await.expect("an end");
        assert_eq!(done["status"], status, "{done}");
        self.last_sent()
    }

    /// Returns the earlier messages of the last invocation.
    fn last_sent(&self) -> Value {
        let asked = self.agents.journal().pop().expect("an invocation");
        assert_eq!(asked.messages_url, Value::Null);
        asked.messages
    }

    /// Waits until these runs have ended; returns the status of the last end.
    async fn until_ended(&mut self, runs: &[&str]) -> Value {
        let mut open: BTreeSet<&str> = runs.iter().copied().collect();
        loop {
            let mut message = self.client.next().await.expect("a message");
            let is_end = message["type"] == "done";
            if is_end && open.remove(message["run_id"].as_str().expect("a run")) && open.is_empty() {
                return message["status"].take();
            }
        }
    }

    /// Kills the node and starts it again; the client follows these sessions from their beginnings.
    async fn kill_and_restart(&mut self, sessions: &[&str]) {
        self.node.kill_and_restart().await;
        let resume = sessions.iter().map(|session| json!({"session_id": session, "after_seq": 0})).collect();
        self.client = WebSocketClient::hello(self.node.http, "ann", resume).await.expect("welcome");
    }
}

// === the messages of a session ===

/// Covers: MP-G3.
#[tokio::test]
async fn agent_gets_as_many_earlier_messages_as_its_history() {
    let cases = [
        ("one", ",history=1", 1),
        ("three", ",history=3", 3),
        ("most", ",history=1000", MESSAGES_MAX),
        ("all", ",history=all", MESSAGES_MAX),
        ("off", ",history=off", 0),
        ("unset", "", 0),
    ];
    let settings = cases.map(|(agent, settings, _)| (agent, settings));
    for store in StoreKind::ALL {
        let mut world = World::start(store, &settings, &[]).await;
        for (agent, _, most) in cases {
            let session = format!("s-{agent}");
            world.open(&session, &[agent]).await;
            let mut conversation = Vec::new();
            for text in ["hi", "and?", "more", "gr\u{fc}\u{df} \"dich\"", "bye"] {
                let sent = world.turn(&session, agent, text, "completed").await;
                must_equal(&sent, &newest(&conversation, most), &format!("{store:?} {agent} {text}"));
                conversation.extend(exchange(agent, text));
            }
        }
    }
}

/// Inputs of failed and cancelled turns are sent without the answers; a rolled back turn is left out.
///
/// Covers: MP-G3.
#[tokio::test]
async fn earlier_messages_have_complete_answers_of_all_agents() {
    for store in StoreKind::ALL {
        let agents = [("a", ",history=all"), ("b", ",history=all"), ("c", ",history=2")];
        let mut world = World::start(store, &agents, &[]).await;
        world.open("s1", &["a", "b", "c"]).await;
        let first = world.turn("s1", "a", "one", "completed").await;
        must_equal(&first, &Value::Null, "one");
        let after_first = world.turn("s1", "b", "fail", "failed").await;
        must_equal(&after_first, &json!(exchange("a", "one")), "fail");
        let held = world.begin_held("s1", "a", "hold").await;
        world.client.say(json!({"type": "cancel_run", "run_id": held})).await.expect("sent");
        assert_eq!(world.until_ended(&[&held]).await, "cancelled");
        let mut conversation = exchange("a", "one").to_vec();
        conversation.extend([user("fail"), user("hold")]);
        let after_cancel = world.turn("s1", "b", "two", "completed").await;
        must_equal(&after_cancel, &json!(conversation), "two");
        conversation.extend(exchange("b", "two"));
        world.begin_held("s1", "a", "hold again").await;
        let instead = world.begin("s1", "a", "instead", "rollback").await;
        assert_eq!(world.until_ended(&[&instead]).await, "completed");
        must_equal(&world.last_sent(), &json!(conversation), "instead");
        conversation.extend(exchange("a", "instead"));
        for (agent, most) in [("b", MESSAGES_MAX), ("c", 2), ("a", MESSAGES_MAX)] {
            let sent = world.turn("s1", agent, "last", "completed").await;
            must_equal(&sent, &newest(&conversation, most), &format!("{store:?} last of {agent}"));
            conversation.extend(exchange(agent, "last"));
        }
    }
}

/// A call without a session brings the conversation itself; in a call that names one, only the last message counts.
///
/// Covers: MP-G3.
#[tokio::test]
async fn earlier_messages_of_the_client_take_precedence() {
    let cases = [("one", ",history=1", 1), ("all", ",history=all", MESSAGES_MAX), ("unset", "", 0)];
    let settings = cases.map(|(agent, settings, _)| (agent, settings));
    let world = World::start(StoreKind::Embedded, &settings, &[]).await;
    let caller = Caller::new(&world.node).with("x-user-id", "ann");
    let own = [
        json!({"role": "system", "content": "Be brief."}),
        json!({"role": "user", "name": "Tom", "content": "A"}),
        assistant("B"),
    ];
    for (agent, _, most) in cases {
        let call = |input: &str| {
            let messages = [&own[..], &[user(input)]].concat();
            json!({"model": format!("agent/{agent}"), "messages": messages}).to_string()
        };
        let answered = caller.post(Route::Chat.path(), call("C")).await;
        assert_eq!(answered.status, 200, "{agent}: {}", answered.text());
        must_equal(&world.last_sent(), &json!(own), agent);
        let mut conversation = exchange(agent, "C").to_vec();
        let in_session = caller.clone().with("x-session-id", answered.header("x-session-id"));
        for input in ["D", "E"] {
            let answered = in_session.post(Route::Chat.path(), call(input)).await;
            assert_eq!(answered.status, 200, "{agent}: {}", answered.text());
            must_equal(&world.last_sent(), &newest(&conversation, most), &format!("{agent} {input}"));
            conversation.extend(exchange(agent, input));
        }
    }
}

/// Covers: MP-G3.
#[tokio::test]
async fn attempt_after_a_kill_gets_the_same_earlier_messages() {
    let cases = [("three", ",history=3,on_owner_loss=retry", 3), ("all", ",history=all,on_owner_loss=retry", 1000)];
    let settings = cases.map(|(agent, settings, _)| (agent, settings));
    let mut world = World::start(StoreKind::Embedded, &settings, &[]).await;
    let mut runs = Vec::new();
    for (agent, _, _) in cases {
        world.open(agent, &[agent]).await;
        world.turn(agent, agent, "one", "completed").await;
        world.turn(agent, agent, "fail", "failed").await;
        world.turn(agent, agent, "two", "completed").await;
        runs.push(world.begin_held(agent, agent, "crash").await);
        // The turn of this input has not ended when the attempt is repeated.
        runs.push(world.begin(agent, agent, "later", "enqueue").await);
    }
    world.kill_and_restart(&["three", "all"]).await;
    let all: Vec<&str> = runs.iter().map(String::as_str).collect();
    assert_eq!(world.until_ended(&all).await, "completed");
    let journal = world.agents.journal();
    for (agent, _, most) in cases {
        let of = |text: &str| -> Vec<&Invocation> {
            journal.iter().filter(|asked| asked.agent == agent && asked.text == text).collect()
        };
        let attempts = of("crash");
        let [first, second] = attempts.as_slice() else { panic!("{attempts:?}") };
        assert_eq!((first.attempt, second.attempt), (1, 2), "{agent}");
        let mut conversation = exchange(agent, "one").to_vec();
        conversation.push(user("fail"));
        conversation.extend(exchange(agent, "two"));
        must_equal(&first.messages, &newest(&conversation, most), &format!("{agent}: first attempt"));
        must_equal(&second.messages, &first.messages, &format!("{agent}: second attempt"));
        conversation.extend(exchange(agent, "crash"));
        let later = of("later");
        let [later] = later.as_slice() else { panic!("{later:?}") };
        must_equal(&later.messages, &newest(&conversation, most), &format!("{agent}: next turn"));
    }
}

/// Covers: MP-G3.
#[tokio::test]
async fn dial_in_agent_gets_earlier_messages() {
    let long = ["x".repeat(LONG), "y".repeat(LONG), "z".repeat(LONG), "again".to_owned()];
    let short = ["one", "two", "three", "four"].map(str::to_owned);
    let cases = [(",history=2", 2, &short), (",history=all", MESSAGES_MAX, &long), ("", 0, &short)];
    for (settings, most, texts) in cases {
        let dir = tempdir().expect("a directory");
        let node = Node::start(dir.path(), &["--agent", &format!("a=dial-in:{settings}")]).await;
        let agent = WebSocketClient::open(node.http).await.expect("it connects");
        let hello = json!({"type": "hello", "role": "agent", "agent_id": "a", "capabilities": {}});
        let mut agent = agent.greet_with(hello).await.expect("welcome");
        let mut client = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
        let mut conversation = Vec::new();
        for (number, text) in texts.iter().enumerate() {
            let accepted = client.ask(&format!("m{number}"), invoke("s1", "a", text)).await.expect("an answer");
            let order = agent.next().await.expect("an order");
            assert_eq!((&order["type"], &order["run_id"]), (&json!("invoke"), &accepted["run_id"]));
            let expected = newest(&conversation, most);
            assert_eq!(order.get("messages").is_none(), expected.is_null(), "{settings} {number}");
            must_equal(&order["messages"], &expected, &format!("{settings} {number}"));
            let delta = json!({"type": "delta", "run_id": order["run_id"], "text": said("a", text)});
            agent.say(delta).await.expect("sent");
            agent.say(json!({"type": "done", "run_id": order["run_id"]})).await.expect("sent");
            let is_end = |message: &Value| message["type"] == "done" && message["run_id"] == order["run_id"];
            assert_eq!(client.until(is_end).await.expect("an end")["status"], "completed");
            conversation.extend(exchange("a", text));
        }
    }
}

// === bounds ===

/// Letters have one byte, two bytes, or one byte that is two in JSON. An answer that does not fit hides all messages before
/// it.
#[tokio::test]
async fn earlier_messages_stay_within_their_bytes() {
    let mut world = World::start(StoreKind::Embedded, &[("a", ",history=all")], &[]).await;
    let kinds = ["x".repeat(LONG), "\u{fc}".repeat(LONG / 2), "\"".repeat(LONG / 2)];
    let mut conversation = Vec::new();
    let mut was_shortened = false;
    for text in kinds.iter().cycle().take(2 * kinds.len()) {
        let sent = world.turn("s1", "a", text, "completed").await;
        let case = format!("after {} messages", conversation.len());
        must_equal(&sent, &newest(&conversation, MESSAGES_MAX), &case);
        assert!(sent.to_string().len() <= BYTES_MAX, "{case}");
        was_shortened |= sent.as_array().is_some_and(|sent| sent.len() < conversation.len());
        conversation.extend(exchange("a", text));
    }
    assert!(was_shortened, "the messages are longer than the limit");
    for text in ["huge", "one", "two", "three"] {
        let sent = world.turn("s1", "a", text, "completed").await;
        must_equal(&sent, &newest(&conversation, MESSAGES_MAX), text);
        conversation.extend(exchange("a", text));
    }
}

/// The node reads them from its disk after a kill.
#[tokio::test]
async fn at_most_a_thousand_earlier_messages_are_sent() {
    let args = ["--agent", "echo=builtin:echo"];
    let mut world = World::start(StoreKind::Embedded, &[("a", ",history=all"), ("b", ",history=999")], &args).await;
    world.open("s1", &["echo", "a", "b"]).await;
    let mut conversation = Vec::new();
    for number in 0..=MESSAGES_MAX / 2 {
        let text = number.to_string();
        let id = world.next_id();
        let (answer, _) = world.client.turn("s1", "echo", &id, &text).await.expect("an end");
        conversation.extend([user(&text), assistant(&answer)]);
    }
    world.kill_and_restart(&[]).await;
    for (agent, most) in [("a", MESSAGES_MAX), ("b", 999)] {
        let sent = world.turn("s1", agent, "last", "completed").await;
        assert_eq!(sent.as_array().map(Vec::len), Some(most), "{agent}");
        must_equal(&sent, &newest(&conversation, most), agent);
        conversation.extend(exchange(agent, "last"));
    }
}

// === settings ===

#[tokio::test]
async fn mistakes_about_history_are_reported_with_their_key() {
    let dir = tempdir().expect("a directory");
    let model = ["--model", "gpt=http://127.0.0.1:1/v1"];
    let check = async |agent: &str| {
        run(dir.path(), &[&["check-config", "--json", "--agent", agent][..], &model].concat(), &[]).await
    };
    for good in ["http://127.0.0.1:1/a", "dial-in:"] {
        for value in ["1", "1000", "all", "off"] {
            let checked = check(&format!("a={good},history={value}")).await;
            assert_eq!(checked.code, Some(0), "{good} {value}: {checked:?}");
        }
    }
    let mut bad: Vec<String> = Vec::new();
    for value in ["0", "1001", "-1", "1.5", "x", "ALL", "none"] {
        bad.extend(["http://127.0.0.1:1/a", "dial-in:"].map(|url| format!("a={url},history={value}")));
    }
    for url in ["builtin:echo", "builtin:counter", "model:gpt"] {
        bad.extend(["1", "all"].map(|value| format!("a={url},history={value}")));
    }
    bad.push("a=http://127.0.0.1:1/a,history=1,history=2".to_owned());
    for agent in &bad {
        let checked = check(agent).await;
        assert_eq!(checked.code, Some(64), "{agent}: {checked:?}");
        let report = checked.json();
        let mistakes = report["mistakes"].as_array().expect("mistakes");
        assert!(mistakes.iter().any(|mistake| mistake["key"] == "agents.a.history"), "{agent}: {report}");
    }
    let refused = run(dir.path(), &["serve", "--store", "memory:", "--agent", &bad[0]], &[]).await;
    assert_eq!(refused.code, Some(64), "{refused:?}");
    assert!(refused.err.contains("history"), "{refused:?}");
}

#[tokio::test]
async fn history_in_the_file_is_a_number_or_a_word() {
    let dir = tempdir().expect("a directory");
    let table = |value: &str| format!("[agents.a]\nurl = \"http://127.0.0.1:1/a\"\nhistory = {value}\n");
    for (value, is_good) in [
        ("20", true),
        ("\"20\"", true),
        ("\"all\"", true),
        ("\"off\"", true),
        ("0", false),
        ("1001", false),
        ("\"x\"", false),
    ] {
        std::fs::write(dir.path().join("turnway.toml"), table(value)).expect("a file");
        let checked = run(dir.path(), &["check-config", "--json", "--config", "turnway.toml"], &[]).await;
        assert_eq!(checked.code, Some(if is_good { 0 } else { 64 }), "{value}: {checked:?}");
        let places = if is_good { Vec::new() } else { vec![("turnway.toml:3:", "agents.a.history")] };
        let report = checked.json();
        let mistakes = report["mistakes"].as_array().map(Vec::as_slice).unwrap_or_default();
        assert_eq!(mistakes.len(), places.len(), "{value}: {report}");
        for (mistake, (place, key)) in mistakes.iter().zip(places) {
            assert!(mistake["place"].as_str().is_some_and(|found| found.starts_with(place)), "{value}: {report}");
            assert_eq!(mistake["key"], key, "{value}: {report}");
        }
    }
}
