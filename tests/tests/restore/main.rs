//! Tests that a client which joins late rebuilds the same view of a session, from its facts and text, as a client
//! that was connected all the time. Real node, killed and restarted; real agents.
//!
//! Covers: EV-A3, EV-C6, EV-R4, ST-2.
mod view;

use crate::view::{End, View};
use serde_json::{Value, json};
use std::net::SocketAddr;
use tempfile::TempDir;
use turnway_core::limits::TURN_ATTEMPTS_MAX;
use turnway_core::rng::Rng;
use turnway_tests::real::agent::{AgentStream, Agents, HungUp, Invocation, Reply};
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::{WebSocketClient, invoke};
use turnway_tests::real::{figure, http, size};

const AGENTS: [&str; 3] = ["ada", "bob", "cyd"];

/// Sends this many pieces, and then completes, fails, or stays silent until the request is closed.
async fn speak(stream: AgentStream, invocation: Invocation) -> Result<(), HungUp> {
    let mut words = invocation.text.split(' ');
    let how = words.next().expect("a word");
    for n in 0..words.next().and_then(|count| count.parse().ok()).expect("a number") {
        stream.delta(&format!("{n}·")).await?;
    }
    match how {
        "say" => stream.done().await,
        "fail" => stream.event("error", &json!({"code": "broke", "message": "it broke"})).await,
        _ => stream.hung_up().await,
    }
}

/// Returns the text of this many pieces.
fn said(pieces: u64) -> String {
    (0..pieces).map(|n| format!("{n}·")).collect()
}

/// A client that keeps its view across restarts of its node.
struct Watcher {
    wire: WebSocketClient,
    view: View,
    asked: usize,
}

impl Watcher {
    async fn open(at: SocketAddr, view: View) -> Self {
        let wire = WebSocketClient::hello(at, "ann", vec![view.cursor()]).await.expect("it connects");
        Self { wire, view, asked: 0 }
    }

    /// Reads until the view fits.
    async fn until(&mut self, what: &str, fits: impl Fn(&View) -> bool) {
        let mut last = Vec::new();
        while !fits(&self.view) {
            let Ok(message) = self.wire.next().await else { panic!("the connection ends before {what}") };
            self.view.take(&message);
            last.push(message);
            assert!(last.len() < 5_000, "never {what}: {:?}\n{:?}", self.view, last.pop());
        }
    }

    /// Sends a request, and applies the messages before its answer to the view.
    async fn ask(&mut self, mut request: Value) -> Value {
        self.asked += 1;
        let id = format!("q{}", self.asked);
        request["request_id"] = id.as_str().into();
        self.wire.say(request).await.expect("it is said");
        loop {
            let message = self.wire.next().await.expect("an answer");
            self.view.take(&message);
            // A subscriber gets no separate answer to its own `session_close`; the fact is the answer.
            let is_fact = message.get("seq").is_some() && message.get("snapshot").is_none();
            let is_answer = !is_fact || message["type"] == "error" || message["type"] == "session_closed";
            if message["request_id"] == id && is_answer {
                return message;
            }
        }
    }

    /// Starts a turn and waits until it is accepted; returns its run id.
    async fn turn(&mut self, agent: &str, text: &str, strategy: &str) -> String {
        let mut request = invoke("s1", agent, text);
        request["strategy"] = strategy.into();
        request["message"]["message_id"] = format!("m{}", self.view.turns()).into();
        let accepted = self.ask(request).await;
        assert_eq!(accepted["type"], "turn_accepted", "{accepted}");
        let run = accepted["run_id"].as_str().expect("a turn").to_owned();
        self.until("the message", |view| view.knows(&run)).await;
        run
    }
}

/// One session and a user that performs random actions.
struct Story {
    node: Node,
    client: Watcher,
    rng: Rng,
    /// Run whose agent stays silent, and the number of pieces sent before.
    held: Option<(String, u64)>,
    compared: usize,
}

impl Story {
    fn below(&mut self, end: u64) -> u64 {
        self.rng.below(end)
    }

    fn member(&mut self) -> String {
        let members = self.client.view.members();
        members[usize::try_from(self.rng.below(members.len() as u64)).expect("small")].clone()
    }

    /// Performs one random action, and waits until nothing changes by itself.
    async fn step(&mut self) {
        match (self.below(9), self.held.is_some()) {
            (0 | 1, false) => self.hold().await,
            (0 | 1, true) => {
                let agent = self.member();
                let run = self.client.turn(&agent, "say 2", "enqueue").await;
                self.client.until("it waits", |view| view.status(&run) == "queued").await;
            }
            (2 | 3, false) => {
                let agent = self.member();
                let text = ["say 3", "fail 2"][usize::from(self.below(2) == 0)];
                self.client.turn(&agent, text, "enqueue").await;
                self.settle("a turn's end").await;
            }
            (2, true) => {
                let (run, _) = self.held.take().expect("a turn");
                self.client.wire.say(json!({"type": "cancel_run", "run_id": run})).await.expect("it is said");
                self.settle("its cancel").await;
            }
            (3, true) => {
                self.held = None;
                let agent = self.member();
                self.client.turn(&agent, "say 4", "interrupt").await;
                self.settle("what interrupts").await;
            }
            (4, _) => {
                let agent = self.member();
                self.members("switch_agent", &agent).await;
            }
            (5, _) => {
                let agent = AGENTS[usize::try_from(self.below(3)).expect("small")];
                self.members("invite_agent", agent).await;
            }
            (6, _) => self.remove().await,
            (7, _) => self.kill().await,
            (_, _) => self.close_and_open().await,
        }
        self.compare().await;
    }

    /// Starts a turn whose agent sends some pieces and then stays silent.
    async fn hold(&mut self) {
        let agent = self.member();
        let pieces = self.below(40);
        let run = self.client.turn(&agent, &format!("hold {pieces}"), "enqueue").await;
        self.held = Some((run, pieces));
        self.until_held(1).await;
    }

    async fn until_held(&mut self, attempt: u64) {
        let Some((run, pieces)) = &self.held else { return };
        let text = said(*pieces);
        let fits =
            |view: &View| view.attempt(run) >= attempt && view.status(run) == "running" && view.text(run) == text;
        self.client.until("what it says before it holds its tongue", fits).await;
    }

    /// Waits until no turn is open.
    async fn settle(&mut self, what: &str) {
        self.held = None;
        self.client.until(what, View::is_idle).await;
    }

    async fn members(&mut self, kind: &str, agent: &str) {
        let request = json!({"type": kind, "session_id": "s1", "agent_id": agent});
        let answer = self.client.ask(request).await;
        assert_eq!(answer["type"], "members", "{answer}");
        assert_eq!(answer["agents"], json!(self.client.view.members()), "{:?}", self.client.view);
    }

    /// Removes an agent, unless it is the last one; the agent's open turn is cancelled first.
    async fn remove(&mut self) {
        if self.client.view.members().len() < 2 {
            return;
        }
        let agent = self.member();
        let speaks = self.held.as_ref().is_some_and(|(run, _)| self.client.view.agent(run) == agent);
        self.members("remove_agent", &agent).await;
        if speaks {
            self.settle("the end of who spoke and of what waited").await;
        }
    }

    /// Kills and restarts the node; the client reconnects with its cursors.
    async fn kill(&mut self) {
        let attempt = self.held.as_ref().map_or(0, |(run, _)| self.client.view.attempt(run));
        // One more kill would exceed the attempts of a turn.
        if attempt >= u64::from(TURN_ATTEMPTS_MAX) {
            return;
        }
        self.node.kill_and_restart().await;
        let view = std::mem::take(&mut self.client.view);
        let asked = self.client.asked;
        self.client = Watcher::open(self.node.http, view).await;
        self.client.asked = asked;
        self.until_held(attempt + 1).await;
    }

    async fn close_and_open(&mut self) {
        let closed = self.client.ask(json!({"type": "session_close", "session_id": "s1"})).await;
        assert_eq!(closed["type"], "session_closed", "{closed}");
        self.held = None;
        self.client.until("the end of the session", |view| view.is_idle() && view.is_closed()).await;
        self.compare().await;
        let opened = self.client.ask(json!({"type": "session_open", "session_id": "s1"})).await;
        assert_eq!(opened["type"], "session_opened", "{opened}");
        self.client.until("the session's return", |view| !view.is_closed()).await;
    }

    /// Compares the view with the views of two new readers: one over a connection and one over the HTTP log.
    async fn compare(&mut self) {
        self.compared += 1;
        let mut late = Watcher::open(self.node.http, View::default()).await;
        let live = &self.client.view;
        late.until("all of it", |view| view.is_up_to(live)).await;
        late.view.assert_equals(live);
        let mut read = View::default();
        while let Some(after) = read.reads_on() {
            let path = format!("/v1/sessions/s1/events?after_seq={after}&limit=20");
            let (status, body) = http::get(self.node.http, &path).await.expect("an answer");
            assert_eq!(status, 200, "{body}");
            let page: Value = serde_json::from_str(&body).expect("JSON");
            for envelope in page["events"].as_array().expect("a list") {
                read.fold(envelope);
            }
            read.page_ends(page["next"].as_u64());
        }
        live.assert_matches_log(&read);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn view_rebuilt_from_facts_and_text_equals_the_live_view() {
    let sessions = size("RESTORE_STORIES", 3);
    let steps = size("RESTORE_STEPS", 25);
    let agents = Agents::start(|asked| Reply::speak(|stream| speak(stream, asked))).await;
    let flags = AGENTS.map(|agent| agents.flag(agent) + ",on_owner_loss=retry");
    let args: Vec<&str> = flags.iter().flat_map(|flag| ["--agent", flag]).collect();
    let mut compared = 0;
    let mut ends = Vec::new();
    for story in 0..sessions {
        let dir = TempDir::new().expect("a directory");
        let store = format!("embedded:{}", dir.path().join("data").display());
        let node = Node::start_on(&store, dir.path(), &args).await;
        let mut opens = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("it connects");
        let open = json!({"type": "session_open", "session_id": "s1", "agents": ["ada", "bob"]});
        assert_eq!(opens.ask("o", open).await.expect("an answer")["type"], "session_opened");
        let mut client = Watcher::open(node.http, View::default()).await;
        client.until("the first fact", |view| view.members().len() == 2).await;
        let rng = Rng::from_number(size("RESTORE_NUMBER", 1) as u64 * 1_000 + story as u64);
        let mut story = Story { node, client, rng, held: None, compared: 0 };
        for _ in 0..steps {
            story.step().await;
        }
        compared += story.compared;
        ends.extend(story.client.view.ends());
    }
    for end in [End::Completed, End::Failed, End::Cancelled] {
        let count = ends.iter().filter(|known| **known == end).count();
        figure(&format!("turns that ended {end:?}"), count);
        assert!(count > 0, "no turn ended so: {end:?}");
    }
    figure("views that were compared", compared);
}
