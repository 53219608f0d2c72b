//! Load for a node: one of each kind of request, and of each failure.
use serde_json::{Value, json};
use std::path::Path;
use tokio_tungstenite::tungstenite::Message;
use turnway_core::limits::{INBOX_INPUTS_MAX, MESSAGE_BYTES_MAX};
use turnway_tests::real::agent::{Agents, Invocation, Reply};
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::{ConnectionEnd, WebSocketClient, invoke};

/// A node with HTTP agents that answer, fail, hang up, or stay silent until they are cancelled.
pub(crate) struct Scene {
    pub(crate) node: Node,
    _agents: Agents,
}

/// Plays the HTTP agents, by name.
fn script(invocation: Invocation) -> Reply {
    match invocation.agent.as_str() {
        "refuses" => Reply::Status(500),
        "breaks" => Reply::speak(|stream| async move {
            stream.delta("as far as").await?;
            stream.raw("event: delta\ndata: {").await
        }),
        "errs" => Reply::speak(|stream| async move {
            stream.event("error", &json!({"code": "quota", "message": "come back"})).await
        }),
        "holds" => Reply::speak(|stream| async move {
            stream.delta("well").await?;
            stream.hung_up().await
        }),
        _ => Reply::speak(|stream| async move {
            stream.delta("here").await?;
            stream.delta(" you are").await?;
            stream.done().await
        }),
    }
}

impl Scene {
    /// Starts the node on a store, with the agents.
    pub(crate) async fn start(store: &str, dir: &Path) -> Self {
        let agents = Agents::start(script).await;
        let names = ["answers", "refuses", "breaks", "errs", "holds"].map(|name| agents.flag(name));
        let mut flags = vec!["--demo", "--agent", "dials=dial-in:", "--agent", "gone=http://127.0.0.1:9/gone"];
        flags.extend(names.iter().flat_map(|name| ["--agent", name]));
        let node = Node::start_on(store, dir, &flags).await;
        Self { node, _agents: agents }
    }

    /// Runs every kind of load in sessions of this round, and leaves no client connected.
    pub(crate) async fn play(&self, round: usize) {
        let name = |what: &str| format!("{what}-{round}");
        let [turns, failures, cancels, hang_ups] = ["turns", "failures", "cancels", "hangups"].map(name);
        let [refusals, subscriptions, dial_in, beyond] = ["refusals", "subscriptions", "dialin", "beyond"].map(name);
        tokio::join!(
            self.turns(&turns),
            self.failures(&failures),
            self.cancels(&cancels),
            self.hang_ups(&hang_ups),
            self.refusals(&refusals),
            self.subscriptions(&subscriptions),
            self.dial_in(&dial_in),
            self.beyond_limits(&beyond),
        );
    }

    async fn person(&self, user: &str) -> WebSocketClient {
        WebSocketClient::hello(self.node.http, user, vec![]).await.expect("welcome")
    }

    /// Turns that end well: over WebSocket and HTTP, one after the other, and many large ones in one session.
    async fn turns(&self, session: &str) {
        let mut ann = self.person("ann").await;
        for n in 0..5 {
            let (text, done) = ann.turn(session, "answers", &format!("m{n}"), "hi").await.expect("a turn");
            assert_eq!((text.as_str(), &done["status"]), ("here you are", &json!("completed")));
        }
        let web = Web::new(self.node.http, Some("ann"));
        for n in 0..3 {
            let mut turn = web.turn(session, "answers", &format!("w{n}"), "hello", None).await;
            assert_eq!(turn.rest().await.last().map(|event| event.data["status"].clone()), Some(json!("completed")));
        }
        // More bytes than one inbox may hold at a time.
        let large = "x".repeat(40_000);
        for n in 0..30 {
            let (_, done) =
                ann.turn(&format!("{session}-large"), "answers", &format!("l{n}"), &large).await.expect("a turn");
            assert_eq!(done["status"], "completed");
        }
    }

    /// Turns whose agents fail.
    async fn failures(&self, session: &str) {
        let mut ann = self.person("ann").await;
        for agent in ["refuses", "breaks", "errs", "gone", "nobody"] {
            let session = format!("{session}-{agent}");
            let accepted = ann.ask(agent, invoke(&session, agent, "hi")).await.expect("an answer");
            if accepted["type"] == "turn_accepted" {
                let done = ended(&mut ann, &accepted["run_id"]).await;
                assert_eq!(done["status"], "failed", "{agent}: {done}");
            }
        }
    }

    /// Turns that are cancelled: during the answer, while waiting in the inbox, and by closing their session.
    async fn cancels(&self, session: &str) {
        let mut ann = self.person("ann").await;
        let running = ann.ask("r", invoke(session, "holds", "hi")).await.expect("accepted")["run_id"].clone();
        ann.until(|message| message["type"] == "delta").await.expect("it speaks");
        let waiting = ann.ask("w", invoke(session, "holds", "hi")).await.expect("accepted")["run_id"].clone();
        for run in [&waiting, &running] {
            ann.say(json!({"type": "cancel_run", "run_id": run})).await.expect("said");
            assert_eq!(ended(&mut ann, run).await["status"], "cancelled");
        }
        let other = format!("{session}-closed");
        let run = ann.ask("c", invoke(&other, "holds", "hi")).await.expect("accepted")["run_id"].clone();
        ann.say(json!({"type": "session_close", "session_id": other})).await.expect("said");
        ended(&mut ann, &run).await;
    }

    /// Clients that disconnect in the middle of an answer; the answer runs to its end.
    async fn hang_ups(&self, session: &str) {
        for n in 0..5 {
            let mut ann = self.person("ann").await;
            let counting = invoke(&format!("{session}-{n}"), "counter", "count to 20 every 20ms");
            ann.ask("r", counting).await.expect("accepted");
            ann.until(|message| message["type"] == "delta").await.expect("it counts");
        }
        let web = Web::new(self.node.http, Some("ann"));
        for n in 0..5 {
            let session = format!("{session}-web-{n}");
            let mut turn = web.turn(&session, "counter", "m", "count to 20 every 20ms", None).await;
            turn.until(|event| event.data["type"] == "delta").await;
        }
    }

    /// Requests that are rejected, and connections that are refused.
    async fn refusals(&self, session: &str) {
        let mut ann = self.person("ann").await;
        for message in [
            json!({"type": "cancel_run", "run_id": "nothing.of.mine"}),
            json!({"type": "subscribe", "session_id": format!("{session}-unknown")}),
            json!({"type": "no_such_type"}),
            json!({"type": "agent_invoke", "session_id": session}),
        ] {
            ann.say(message).await.expect("said");
            ann.until(|answer| answer["type"] == "error").await.expect("it is refused");
        }
        let web = Web::new(self.node.http, Some("ann"));
        assert_eq!(web.get(&format!("/v1/sessions/{session}-unknown")).await.status, 404);
        assert_eq!(web.get("/nothing").await.status, 404);
        // A client whose first message is no hello, or that sends nothing, is disconnected.
        let mut rude = WebSocketClient::open(self.node.http).await.expect("it connects");
        rude.say(json!({"type": "agent_invoke"})).await.expect("said");
        while rude.next().await.is_ok() {}
        drop(WebSocketClient::open(self.node.http).await.expect("it connects"));
        drop(tokio::net::TcpStream::connect(self.node.http).await.expect("it connects"));
    }

    /// Subscriptions that end by `unsubscribe` and with their connection.
    async fn subscriptions(&self, session: &str) {
        let mut other = self.person("ann").await;
        let mut ann = self.person("ann").await;
        for n in 0..10 {
            let session = format!("{session}-{n}");
            ann.turn(&session, "echo", &format!("m{n}"), "hi").await.expect("a turn");
            let subscribe = json!({"type": "subscribe", "session_id": session, "after_seq": 0});
            let answer = other.ask(&format!("s{n}"), subscribe).await.expect("answered");
            assert_eq!(answer["type"], "subscribed", "{answer}");
            if n % 2 == 0 {
                other.say(json!({"type": "unsubscribe", "session_id": session})).await.expect("said");
                other.ask(&format!("p{n}"), json!({"type": "ping"})).await.expect("answered");
            }
        }
    }

    /// A dial-in agent that answers, calls a tool, and disconnects in the middle of a turn; and the tool's runner.
    async fn dial_in(&self, session: &str) {
        let greet = async |hello: Value| {
            WebSocketClient::open(self.node.http).await.expect("it connects").greet_with(hello).await.expect("welcome")
        };
        let mut runner =
            greet(json!({"type": "hello", "role": "tool_runner", "runner_id": "r1", "tools": ["t"]})).await;
        let mut agent = greet(json!({"type": "hello", "role": "agent", "agent_id": "dials"})).await;
        let mut ann = self.person("ann").await;
        for text in ["well", "lost"] {
            let accepted = ann.ask(text, invoke(session, "dials", text)).await.expect("accepted");
            let order = agent.until(|message| message["type"] == "invoke").await.expect("an order");
            let run = &order["run_id"];
            if text == "lost" {
                drop(agent);
                assert_eq!(ended(&mut ann, &accepted["run_id"]).await["status"], "failed");
                break;
            }
            let action = json!({"type": "action", "run_id": run, "action_id": "a1", "tool": "t", "args": {}});
            agent.say(action).await.expect("said");
            let execute = runner.until(|message| message["type"] == "execute").await.expect("it is asked");
            for mut told in [json!({"type": "invoked"}), json!({"type": "result", "ok": true, "result": 1})] {
                told["action_id"] = execute["action_id"].clone();
                runner.say(told).await.expect("said");
            }
            let is_result = |message: &Value| message["name"] == "tool.result";
            agent.until(is_result).await.expect("it is told");
            agent.say(json!({"type": "delta", "run_id": run, "text": "done"})).await.expect("said");
            agent.say(json!({"type": "done", "run_id": run})).await.expect("said");
            assert_eq!(ended(&mut ann, &accepted["run_id"]).await["status"], "completed");
        }
    }

    /// Requests over the limits: waiting inputs, and bytes of a message.
    async fn beyond_limits(&self, session: &str) {
        let mut ann = self.person("ann").await;
        let mut runs = Vec::new();
        let mut refused = 0;
        for n in 0..INBOX_INPUTS_MAX + 3 {
            let answer = ann.ask(&format!("m{n}"), invoke(session, "holds", "hi")).await.expect("an answer");
            match answer["type"].as_str() {
                Some("turn_accepted") => runs.push(answer["run_id"].clone()),
                _ => {
                    assert_eq!(answer["code"], "too_many_pending", "{answer}");
                    refused += 1;
                }
            }
        }
        assert_eq!((runs.len(), refused), (INBOX_INPUTS_MAX, 3));
        // In reverse order, so that no waiting turn begins.
        for run in runs.iter().rev() {
            ann.say(json!({"type": "cancel_run", "run_id": run})).await.expect("said");
            assert_eq!(ended(&mut ann, run).await["status"], "cancelled");
        }
        let mut loud = self.person("ann").await;
        // The node may close the connection before all of the message is sent.
        drop(loud.frame(Message::text("x".repeat(MESSAGE_BYTES_MAX + 1))).await);
        let gone = loud.until(|_| false).await.expect_err("it is closed");
        assert!(matches!(gone, ConnectionEnd::Closed(_) | ConnectionEnd::Broken(_)), "{gone:?}");
    }
}

/// Reads to the end of a run.
async fn ended(wire: &mut WebSocketClient, run: &Value) -> Value {
    wire.until(|message| message["type"] == "done" && message["run_id"] == *run).await.expect("it ends")
}
