//! One client's view of one session: every fact, and the text of every attempt.
use crate::{LASTING, ONCE, STEADY};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use turnway_tests::real::wire::{ConnectionEnd, WebSocketClient, invoke};

/// A connection that follows a session from its first fact, and fails on gaps and repeats.
pub(crate) struct View {
    pub(crate) wire: WebSocketClient,
    session: String,
    user: String,
    facts: Vec<Value>,
    /// Texts by run and attempt.
    texts: BTreeMap<(String, u64), String>,
    ends: BTreeMap<String, Value>,
    accepted: BTreeMap<String, String>,
    /// Error codes of refused requests, by request id.
    refused: BTreeMap<String, String>,
}

impl View {
    /// Opens or finds the session and subscribes to it.
    pub(crate) async fn open(at: SocketAddr, user: &str, session: &str) -> Self {
        let mut wire = WebSocketClient::hello(at, user, vec![]).await.expect("it connects");
        let open = json!({"type": "session_open", "session_id": session, "agents": [STEADY, ONCE, LASTING]});
        let opened = wire.ask("open", open).await;
        let opened = opened.expect("an answer");
        assert_eq!(opened["type"], "session_opened", "{opened}");
        let mut view = Self {
            wire,
            session: session.to_owned(),
            user: user.to_owned(),
            facts: Vec::new(),
            texts: BTreeMap::new(),
            ends: BTreeMap::new(),
            accepted: BTreeMap::new(),
            refused: BTreeMap::new(),
        };
        let mut follow = view.cursor();
        follow["type"] = "subscribe".into();
        view.wire.say(follow).await.expect("it is said");
        view.until(|message| message["type"] == "subscribed").await;
        view
    }

    /// Reconnects at another node and resumes from the cursor.
    pub(crate) async fn move_to(&mut self, at: SocketAddr) -> Result<(), ConnectionEnd> {
        self.wire = WebSocketClient::hello(at, &self.user, vec![self.cursor()]).await?;
        Ok(())
    }

    /// Returns the resume cursor as a client sends it.
    fn cursor(&self) -> Value {
        let mut cursor = json!({"session_id": self.session, "types": [">"], "after_seq": 0, "runs": {}});
        if let Some(last) = self.facts.last() {
            cursor["after_seq"] = last["seq"].clone();
            cursor["after_epoch"] = last["epoch"].clone();
        }
        for ((run, attempt), text) in self.texts.iter().filter(|((run, _), _)| !self.ends.contains_key(run)) {
            // The last attempt of each run comes last.
            cursor["runs"][run] = json!({"attempt": attempt, "offset": text.len()});
        }
        cursor
    }

    /// Sends an input and returns its run's id without waiting for the end.
    pub(crate) async fn start_turn(&mut self, id: &str, text: &str) -> String {
        self.start_turn_of(STEADY, id, text).await
    }

    /// Sends an input to this agent and returns its run's id.
    pub(crate) async fn start_turn_of(&mut self, agent: &str, id: &str, text: &str) -> String {
        let mut ask = invoke(&self.session, agent, text);
        ask["request_id"] = id.into();
        self.wire.say(ask).await.expect("it is said");
        self.until_accepted(id).await
    }

    pub(crate) async fn until_accepted(&mut self, id: &str) -> String {
        while !self.accepted.contains_key(id) {
            self.next().await.expect("it goes on");
            assert!(!self.refused.contains_key(id), "refused: {}", self.refused[id]);
        }
        self.accepted[id].clone()
    }

    /// Returns the run of a request, once it is accepted.
    pub(crate) fn run(&self, id: &str) -> Option<String> {
        self.accepted.get(id).cloned()
    }

    /// Returns a run's `done`, once it has arrived.
    pub(crate) fn end(&self, run: &str) -> Option<&Value> {
        self.ends.get(run)
    }

    /// Reads until a message satisfies `fits`.
    pub(crate) async fn until(&mut self, fits: impl Fn(&Value) -> bool) -> Value {
        loop {
            let message = self.next().await.expect("it goes on");
            if fits(&message) {
                return message;
            }
        }
    }

    /// Reads until this many bytes of an attempt's text have arrived.
    pub(crate) async fn until_text(&mut self, run: &str, attempt: u64, bytes: usize) {
        while self.text_of(run, attempt).len() < bytes {
            self.next().await.expect("it goes on");
        }
    }

    /// Reads to a run's end and returns its `done`.
    pub(crate) async fn until_done(&mut self, run: &str) -> Value {
        while !self.ends.contains_key(run) {
            self.next().await.expect("it goes on");
        }
        self.ends[run].clone()
    }

    /// Returns the text of an attempt that has arrived.
    pub(crate) fn text_of(&self, run: &str, attempt: u64) -> &str {
        self.texts.get(&(run.to_owned(), attempt)).map_or("", String::as_str)
    }

    /// Returns the number of facts with this name.
    pub(crate) fn events(&self, name: &str) -> usize {
        self.facts.iter().filter(|fact| fact["name"] == name).count()
    }

    /// Returns the answer of a run that has ended.
    pub(crate) fn answer(&self, run: &str) -> &str {
        let done = &self.ends[run];
        let attempt = done["attempt"].as_u64();
        let bytes = done["text_bytes"].as_u64();
        let text = self.text_of(run, attempt.expect("an attempt"));
        &text[..usize::try_from(bytes.expect("a number")).expect("small")]
    }

    /// Returns all facts without the times at which they were delivered.
    pub(crate) fn facts(&self) -> Vec<Value> {
        let bare = |fact: &Value| {
            let mut fact = fact.clone();
            fact["ts"] = Value::Null;
            fact
        };
        self.facts.iter().map(bare).collect()
    }

    /// Reads the next message and applies it.
    pub(crate) async fn next(&mut self) -> Result<Value, ConnectionEnd> {
        let message = self.wire.next().await?;
        self.take(&message);
        Ok(message)
    }

    fn take(&mut self, message: &Value) {
        let text = |name: &str| message[name].as_str().unwrap_or_default().to_owned();
        let number = |name: &str| message[name].as_u64().unwrap_or_default();
        match message["type"].as_str().unwrap_or_default() {
            "subscribed" => return assert!(message["reset"] != json!(true), "a reset: {message}"),
            "turn_accepted" => drop(self.accepted.insert(text("request_id"), text("run_id"))),
            "error" if message.get("terminal").is_none() => {
                self.refused.insert(text("request_id"), text("code"));
            }
            "delta" => {
                let said = self.texts.entry((text("run_id"), number("attempt"))).or_default();
                assert_eq!(number("offset"), said.len() as u64, "a gap or a repeat in the text: {message}");
                said.push_str(&text("text"));
            }
            "done" => {
                let before = self.ends.insert(text("run_id"), message.clone());
                assert!(before.is_none(), "it ended twice: {message}");
            }
            _ => {}
        }
        if message.get("seq").is_some() && message.get("snapshot").is_none() {
            let seq = number("seq");
            let epoch = number("epoch");
            assert_eq!(seq, self.facts.len() as u64 + 1, "a gap or a repeat in the facts: {message}");
            let last = self.facts.last().and_then(|fact| fact["epoch"].as_u64()).unwrap_or_default();
            assert!(epoch >= last, "epochs went back: {message}");
            self.facts.push(message.clone());
        }
    }
}
