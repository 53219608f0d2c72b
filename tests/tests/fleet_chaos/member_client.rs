//! One client of a session with many agents, which sends requests of all kinds to any node that accepts it.
use crate::faults::Shared;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{Interval, interval, timeout};
use turnway_core::rng::Rng;
use turnway_tests::real::wire::{ConnectionEnd, WebSocketClient};

/// Maximum silence of a node while a request is unanswered before the client reconnects elsewhere, as real
/// clients do.
const SILENCE: Duration = Duration::from_secs(3);
/// Pause between connection attempts, and before a refused request is resent.
const AGAIN: Duration = Duration::from_millis(50);
/// Agents of a session.
pub(crate) const AGENTS: [&str; 4] = ["ada", "bob", "cleo", "dora"];
const STRANGER: &str = "nobody";

pub(crate) struct MemberClient {
    stage: Arc<Shared>,
    rng: Rng,
    again: Interval,
    pub(crate) user: String,
    pub(crate) session: String,
    last: (u64, u64),
    asked: usize,
    /// Runs of the accepted inputs.
    pub(crate) accepted: BTreeSet<String>,
    /// Runs whose end has arrived.
    over: BTreeSet<String>,
    /// Handovers that this client may decide.
    prompts: Vec<String>,
    /// Handovers without a decision.
    open: BTreeSet<String>,
    /// Messages that violate the protocol's promises.
    pub(crate) violations: Vec<String>,
}

impl MemberClient {
    pub(crate) fn new(stage: Arc<Shared>, n: usize, seed: u64) -> Self {
        Self {
            stage,
            rng: Rng::from_number(seed * 100_000 + n as u64),
            again: interval(AGAIN),
            user: format!("guest-{n}"),
            session: format!("table-{n}"),
            last: (0, 0),
            asked: 0,
            accepted: BTreeSet::new(),
            over: BTreeSet::new(),
            prompts: Vec::new(),
            open: BTreeSet::new(),
            violations: Vec::new(),
        }
    }

    /// Runs until the test is over, waits until everything has ended, and sends one more input, which must be
    /// answered.
    pub(crate) async fn run(mut self) -> Self {
        let mut wire = self.connect().await;
        let open = json!({"type": "session_open", "agents": AGENTS[..3]});
        self.until_answered(&mut wire, open, "session_opened").await;
        while !self.stage.is_over() {
            let (request, answer) = self.next_request();
            self.until_answered(&mut wire, request, answer).await;
        }
        self.settle(&mut wire).await;
        let last = json!({"type": "agent_invoke", "strategy": "enqueue", "message": {"content": "say the last"}});
        self.until_answered(&mut wire, last, "turn_accepted").await;
        self.settle(&mut wire).await;
        self
    }

    /// Returns a random request and the type of its answer.
    fn next_request(&mut self) -> (Value, &'static str) {
        let agent = self.agent();
        match self.rng.below(20) {
            0..=8 => {
                let text = match self.rng.below(10) {
                    0..=5 => "say something".to_owned(),
                    6..=7 => "long is the story".to_owned(),
                    _ => format!("ask {agent}"),
                };
                let strategy = ["steer", "steer", "enqueue", "interrupt", "rollback"];
                let at = usize::try_from(self.rng.below(strategy.len() as u64)).expect("small");
                let mut say = json!({"type": "agent_invoke", "strategy": strategy[at], "message": {"content": text}});
                if self.rng.chance(30) {
                    say["mentioned_agent_id"] = AGENTS[usize::try_from(self.rng.below(4)).expect("small")].into();
                }
                (say, "turn_accepted")
            }
            9..=10 => (json!({"type": "cancel_run"}), ""),
            11..=13 => (json!({"type": "invite_agent", "agent_id": agent, "active": self.rng.chance(30)}), "members"),
            14..=15 => (json!({"type": "remove_agent", "agent_id": agent, "reason": "chaos"}), "members"),
            16..=17 => (json!({"type": "switch_agent", "agent_id": agent}), "members"),
            _ => match self.prompts.pop() {
                Some(id) => {
                    let decision = if self.rng.chance(60) { "confirm" } else { "reject" };
                    (json!({"type": "handover_decision", "handover_id": id, "decision": decision}), "handover")
                }
                None => (json!({"type": "cancel_run"}), ""),
            },
        }
    }

    fn agent(&mut self) -> &'static str {
        let n = usize::try_from(self.rng.below(AGENTS.len() as u64 * 8)).expect("small");
        // An agent that does not exist is chosen occasionally.
        if n == 0 { STRANGER } else { AGENTS[n % AGENTS.len()] }
    }

    async fn connect(&mut self) -> WebSocketClient {
        loop {
            self.again.tick().await;
            let Some(at) = self.stage.any(&mut self.rng) else { continue };
            let mut cursor = json!({"session_id": self.session, "after_seq": self.last.0});
            if self.last.1 > 0 {
                cursor["after_epoch"] = self.last.1.into();
            }
            // The session does not exist before it is opened.
            let resume = if self.last.0 == 0 && self.accepted.is_empty() { vec![] } else { vec![cursor] };
            if let Ok(Ok(wire)) = timeout(SILENCE, WebSocketClient::hello(at, &self.user, resume)).await {
                return wire;
            }
        }
    }

    /// Repeats a request until it is answered; a request without an answer is sent once.
    async fn until_answered(&mut self, wire: &mut WebSocketClient, mut request: Value, answer: &str) {
        self.asked += 1;
        let id = format!("{}-r{}", self.session, self.asked);
        (request["session_id"], request["request_id"]) = (self.session.clone().into(), id.clone().into());
        let begun = Instant::now();
        while self.try_request(wire, &request, &id, answer).await.is_err() {
            if begun.elapsed() >= self.stage.patience {
                self.stage.end();
                panic!("{request} has no answer");
            }
            *wire = self.connect().await;
        }
        if answer == "session_opened" {
            self.follow(wire).await;
        }
    }

    async fn follow(&mut self, wire: &mut WebSocketClient) {
        let follow = json!({"type": "subscribe", "session_id": self.session, "after_seq": self.last.0});
        // A lost subscription is repeated in the next hello.
        let _ = wire.say(follow).await;
    }

    async fn try_request(
        &mut self,
        wire: &mut WebSocketClient,
        request: &Value,
        id: &str,
        answer: &str,
    ) -> Result<(), ConnectionEnd> {
        wire.say(request.clone()).await?;
        while !answer.is_empty() {
            let message = self.next(wire).await?;
            if message["request_id"] != id {
                continue;
            }
            if message["type"] == answer {
                if let ("turn_accepted", Some(run)) = (answer, message["run_id"].as_str()) {
                    self.accepted.insert(run.to_owned());
                }
                return Ok(());
            }
            // A fact caused by the request has its request id too; a refusal either gives a time to retry or
            // is final.
            if message["type"] == "error" && message.get("seq").is_none() {
                if message["retry_after_ms"].is_u64() {
                    self.again.tick().await;
                    wire.say(request.clone()).await?;
                } else if answer != "members" {
                    let is_known = answer == "handover" && message["code"] == "not_found";
                    if !is_known {
                        self.violations.push(format!("{request}: {message}"));
                    }
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    async fn next(&mut self, wire: &mut WebSocketClient) -> Result<Value, ConnectionEnd> {
        let silent = || ConnectionEnd::Broken("it said nothing for too long".to_owned());
        let message = timeout(SILENCE, wire.next()).await.map_err(|_| silent())??;
        self.stage.heard();
        if message["reset"] == true {
            self.violations.push(message.to_string());
        }
        if let Some(seq) = message["seq"].as_u64().filter(|_| message["type"] != "subscribed") {
            if self.last.0 > 0 && seq <= self.last.0 {
                self.violations.push(format!("shown again after {}: {message}", self.last.0));
            }
            self.last = (seq, message["epoch"].as_u64().expect("an epoch"));
        }
        let handover = || message["handover_id"].as_str().unwrap_or_default().to_owned();
        match message["type"].as_str() {
            Some("handover_prompt") => {
                self.prompts.push(handover());
                self.open.insert(handover());
            }
            Some("event") => _ = self.open.remove(&handover()),
            Some("done") => {
                let run = message["run_id"].as_str().expect("a run").to_owned();
                if !self.over.insert(run.clone()) {
                    self.violations.push(format!("{run} has ended twice: {message}"));
                }
                self.stage.ended();
            }
            _ => {}
        }
        Ok(message)
    }

    /// Waits until everything that was accepted has ended.
    async fn settle(&mut self, wire: &mut WebSocketClient) {
        let begun = Instant::now();
        while !self.accepted.is_subset(&self.over) || !self.open.is_empty() {
            if self.next(wire).await.is_err() {
                let open: Vec<_> = self.accepted.difference(&self.over).take(3).collect();
                assert!(begun.elapsed() < self.stage.patience, "{}: no end of {open:?} {:?}", self.session, self.open);
                *wire = self.connect().await;
            }
        }
    }
}
