//! Tests tenants with equal session, user, message and action ids on a real node with an HTTP agent, a dial-in
//! agent and a real tool runner: no data of one tenant reaches another, and clients see bare ids only.
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tempfile::TempDir;
use turnway_core::rng::Rng;
use turnway_tests::real::agent::{Agents, Invocation, Reply};
use turnway_tests::real::identity::{Key, guarded};
use turnway_tests::real::node::Node;
use turnway_tests::real::scripted_gateway::{Runner, processes_of};
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::WebSocketClient;

const SESSION: &str = "support-42";
const TENANTS: [&str; 3] = ["default", "acme", "evil"];
const SEEDS: u64 = 3;
const STEPS: usize = 24;

/// A client of one tenant: user `ann`, whose session and messages have the same names in all tenants.
struct Client {
    tenant: &'static str,
    wire: WebSocketClient,
    key: Key,
    /// All messages that the client has received.
    seen: Vec<String>,
    turns: usize,
    /// Texts sent to the HTTP agent.
    said: Vec<String>,
    /// Running processes of the client's session.
    running: Vec<String>,
    /// Qualified names that the user has sent.
    named: Vec<String>,
}

/// Conversations that the agents keep, by the session id that they receive.
#[derive(Debug, Default)]
struct Memory {
    by_session: Mutex<BTreeMap<String, Vec<String>>>,
}

struct World {
    node: Node,
    agents: Agents,
    dialed: WebSocketClient,
    clients: Vec<Client>,
    rng: Rng,
    runner: Runner,
    _dir: TempDir,
}

/// Plays an agent that keeps the conversation by `session_id`, as the documentation advises. A text that begins
/// with `!` is an action to request.
fn script(memory: &Arc<Memory>) -> impl Fn(Invocation) -> Reply + Send + Sync + 'static {
    let memory = Arc::clone(memory);
    move |asked: Invocation| {
        let memory = Arc::clone(&memory);
        Reply::speak(move |stream| async move {
            if let Some(action) = asked.text.strip_prefix('!') {
                stream.event("action", &serde_json::from_str(action).expect("JSON")).await?;
            } else {
                let past = {
                    let mut all = memory.by_session.lock().unwrap_or_else(PoisonError::into_inner);
                    let past = all.entry(asked.session_id).or_default();
                    past.push(asked.text);
                    past.join(";")
                };
                stream.delta(&past).await?;
            }
            stream.done().await
        })
    }
}

impl World {
    async fn new(seed: u64) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let agents = Agents::start(script(&Arc::default())).await;
        let flags =
            ["--agent", &agents.flag("h"), "--agent", "d=dial-in:,served_by=bot", "--tools-served-by", "op", "--demo"];
        let node = guarded(&dir, &flags).await;
        let bot = Key::make(&node, &["--user", "bot"]).await;
        let hello = json!({"type": "hello", "role": "agent", "agent_id": "d", "api_key": bot.text});
        let dialed = WebSocketClient::open(node.http).await.expect("it connects").greet_with(hello).await;
        let list = "[programs.sleep]\nrun = [\"/bin/sleep\", \"1000\"]\nparallel = 64\n";
        let operator = Key::make(&node, &["--user", "op"]).await;
        let env = [("TURNWAY_API_KEY", &*operator.text)];
        let mut runner = Runner::launch_with(dir.path(), node.http, list, &[], &env);
        runner.ready().await;
        let mut clients = Vec::new();
        for tenant in TENANTS {
            let key = Key::make(&node, &["--user", "ann", "--tenant", tenant]).await;
            let mut wire = key.hello(node.http, None).await.expect("welcome");
            let subscribe = json!({"type": "subscribe", "session_id": SESSION, "after_seq": 0});
            wire.say(json!({"type": "session_open", "request_id": "o", "session_id": SESSION, "agents": ["h", "d"]}))
                .await
                .expect("said");
            wire.until(|message| message["request_id"] == "o").await.expect("opened");
            wire.ask("s", subscribe).await.expect("subscribed");
            let (seen, said, running, named) = Default::default();
            clients.push(Client { tenant, wire, key, seen, turns: 0, said, running, named });
        }
        let rng = Rng::from_number(seed);
        Self { node, agents, dialed: dialed.expect("welcome"), clients, rng, runner, _dir: dir }
    }

    async fn step(&mut self) {
        let at = self.rng.below(self.clients.len() as u64) as usize;
        let strangers: Vec<String> = self
            .clients
            .iter()
            .filter(|other| other.tenant != self.clients[at].tenant)
            .flat_map(|it| it.running.clone())
            .collect();
        let stranger = strangers.get(self.rng.below(strangers.len() as u64) as usize).cloned();
        let choice = self.rng.below(6);
        let client = &mut self.clients[at];
        match (choice, client.running.first().cloned(), stranger) {
            (0, ..) => client.remembers().await,
            (1, ..) => self.dialed_in(at).await,
            (2, ..) => {
                let spawned = client.act("process.spawn", json!({"program": "sleep"}), "tool.invoke").await;
                client.running.push(spawned["action_id"].as_str().expect("an id").to_owned());
            }
            (3, Some(own), _) => {
                let ended = client.act("process.kill", json!({"process_id": own}), "tool.result").await;
                assert_eq!((&ended["ok"], &ended["result"]["process_id"]), (&json!(true), &json!(own)));
                client.event("tool.result", |data| data["action_id"] == own.as_str()).await;
                assert_eq!(processes_of(&own), 0);
                client.running.remove(0);
            }
            (4, _, Some(other)) => {
                let named = [other.clone(), format!("acme~{SESSION}.{other}")][self.rng.below(2) as usize].clone();
                client.named.push(format!("acme~{SESSION}.{other}"));
                let ended = client.act("process.kill", json!({"process_id": named}), "tool.result").await;
                assert_eq!(ended["error"]["code"], "unknown_process", "{ended}");
                assert_eq!(processes_of(&other), 1, "it is another tenant's");
            }
            _ => client.lists().await,
        }
    }

    /// Runs a turn with the dial-in agent, which may name the run in either form.
    async fn dialed_in(&mut self, at: usize) {
        let client = &mut self.clients[at];
        let (id, run) = client.ask("d", "hello").await;
        let asked = self.dialed.until(|message| message["type"] == "invoke").await.expect("an invoke");
        let prefix = prefix(client.tenant);
        assert_eq!(asked["session_id"], format!("{prefix}{SESSION}"));
        assert_eq!(asked["run_id"], format!("{prefix}{run}"));
        assert_eq!(asked["context"]["tenant"], client.tenant);
        let named = if self.rng.chance(50) { asked["run_id"].clone() } else { json!(run) };
        let delta = json!({"type": "delta", "run_id": named, "text": client.tenant});
        self.dialed.say(delta).await.expect("said");
        self.dialed.say(json!({"type": "done", "run_id": named})).await.expect("said");
        client.until(|message| message["type"] == "done" && message["run_id"] == run).await;
        assert!(client.seen.iter().any(|text| text.contains(&format!("\"text\":\"{}\"", client.tenant))), "{id}");
    }

    /// Requests to the HTTP agent name the tenant.
    fn check_journal(&self) {
        for asked in self.agents.journal() {
            let tenant = asked.context["tenant"].as_str().expect("a tenant");
            assert_eq!(asked.session_id, format!("{}{SESSION}", prefix(tenant)));
            assert!(asked.run_id.starts_with(&format!("{}.", asked.session_id)), "{asked:?}");
        }
        assert!(!self.agents.journal().is_empty());
    }
}

/// Returns the prefix of a tenant's qualified names.
fn prefix(tenant: &str) -> String {
    if tenant == "default" { String::new() } else { format!("{tenant}~") }
}

impl Client {
    /// Sends a message to an agent; returns its request id and its run. The ids are the same in all tenants.
    async fn ask(&mut self, agent: &str, text: &str) -> (String, String) {
        self.turns += 1;
        let id = format!("m{}", self.turns);
        let body = json!({"type": "agent_invoke", "request_id": id, "message_id": id, "session_id": SESSION,
            "agent_id": agent, "message": {"role": "user", "content": text}});
        self.wire.say(body).await.expect("said");
        let accepted = self.until(|message| message["request_id"] == id.as_str()).await;
        assert_eq!(accepted["type"], "turn_accepted", "{accepted}");
        let run = accepted["run_id"].as_str().expect("a run").to_owned();
        assert!(run.starts_with(&format!("{SESSION}.")), "{run}");
        (id, run)
    }

    async fn until(&mut self, fits: impl Fn(&Value) -> bool) -> Value {
        loop {
            let message = self.wire.next().await.expect("a message");
            self.seen.push(message.to_string());
            if fits(&message) {
                return message;
            }
        }
    }

    /// Returns the data of the next fact of this name that fits.
    async fn event(&mut self, name: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let fact = self.until(|message| message["name"] == name && fits(&message["data"])).await;
        fact["data"].clone()
    }

    /// The agent that keeps the conversation by `session_id` returns this tenant's conversation and nothing of
    /// other tenants.
    async fn remembers(&mut self) {
        let text = format!("{}-{}", self.tenant, self.turns);
        self.said.push(text.clone());
        let (_, run) = self.ask("h", &text).await;
        let delta = self.until(|message| message["type"] == "delta" && message["run_id"] == run).await;
        assert_eq!(delta["text"], self.said.join(";"));
        self.until(|message| message["type"] == "done" && message["run_id"] == run).await;
    }

    /// Makes the agent request an action; returns the data of the first fact of this name about the action.
    async fn act(&mut self, tool: &str, args: Value, name: &str) -> Value {
        let action = json!({"tool": tool, "args": args, "action_id": "a1"});
        let (_, run) = self.ask("h", &format!("!{action}")).await;
        let fact = self.until(|message| message["name"] == name && message["run_id"] == run).await;
        fact["data"].clone()
    }

    async fn lists(&mut self) {
        let ended = self.act("process.status", json!({}), "tool.result").await;
        let mut told: Vec<&str> = ended["result"]["running"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|process| process["process_id"].as_str().expect("an id"))
            .collect();
        told.sort_unstable();
        let mut own = self.running.clone();
        own.sort_unstable();
        assert_eq!(told, own, "{}", self.tenant);
    }

    /// All received messages and all readable pages have bare ids.
    async fn check(&self, node: &Node) {
        let web = Web::new(node.http, None).key(&self.key);
        for path in ["/v1/sessions", &format!("/v1/sessions/{SESSION}/events?limit=500")] {
            let reply = web.ask("GET", path, &[], "").await;
            assert_eq!(reply.status, 200, "{path}: {}", reply.text);
            let mut others = TENANTS.iter().filter(|tenant| **tenant != self.tenant);
            assert!(others.all(|other| !reply.text.contains(&format!("\"{other}-"))), "{}", reply.text);
            assert!(!self.names_tenant(&reply.text), "{path}: {}", reply.text);
        }
        for text in &self.seen {
            assert!(!self.names_tenant(text), "{text}");
        }
    }

    /// Returns whether a text contains a qualified name that the user has not sent.
    fn names_tenant(&self, text: &str) -> bool {
        let text = self.named.iter().fold(text.to_owned(), |text, named| text.replace(named, ""));
        TENANTS.iter().any(|tenant| text.contains(&format!("{tenant}~")))
    }
}

/// Covers: S-04, S-07, LN-EV9.
#[tokio::test]
async fn tenants_with_equal_ids_are_isolated() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed).await;
        for _ in 0..STEPS {
            world.step().await;
        }
        world.check_journal();
        for client in &world.clients {
            client.check(&world.node).await;
        }
        world.runner.terminate().await;
    }
}

/// Another user cannot create in advance the session of a call with an idempotency key: the session's name differs
/// between stores and is stable within one store.
///
/// Covers: ST-35.
#[tokio::test]
async fn idempotent_call_gets_an_unguessable_stable_session() {
    let mut names = Vec::new();
    for _ in 0..2 {
        let dir = tempfile::tempdir().expect("a directory");
        let mut node = Node::start(dir.path(), &["--demo"]).await;
        let before = named_call(&node).await;
        node.kill_and_restart().await;
        assert_eq!(named_call(&node).await, before);
        names.push(before);
        let dir = tempfile::tempdir().expect("a directory");
        let node = guarded(&dir, &["--demo"]).await;
        let key = Key::make(&node, &["--user", "ann"]).await;
        let reply = call(&Web::new(node.http, None).key(&key)).await;
        names.push(reply);
    }
    // Two nodes with the same pepper derive the same name; a store without a pepper has a secret of its own.
    assert_eq!(names[1], names[3]);
    assert!(names[0] != names[2] && names[0] != names[1] && names[2] != names[1], "{names:?}");
}

async fn named_call(node: &Node) -> String {
    call(&Web::new(node.http, Some("ann"))).await
}

/// Returns the session of a call with this idempotency key.
async fn call(web: &Web) -> String {
    let body = json!({"model": "agent/echo", "messages": [{"role": "user", "content": "hi"}]}).to_string();
    let headers = [("content-type", "application/json"), ("idempotency-key", "k1")];
    let reply = web.ask("POST", "/v1/chat/completions", &headers, &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.headers["x-session-id"].to_str().expect("a text").to_owned()
}
