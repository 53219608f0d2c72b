//! One client with a session and a history file of its own, connected to any node that accepts it.
use crate::faults::Shared;
use crate::{LASTING, STEADY};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{Interval, interval, timeout};
use turnway_core::rng::Rng;
use turnway_tests::real::wire::{ConnectionEnd, WebSocketClient, invoke};

/// Maximum silence of a node during an open turn before the client reconnects elsewhere, as real clients do.
const SILENCE: Duration = Duration::from_secs(3);
/// Pause between connection attempts, and before a refused input is resent.
const AGAIN: Duration = Duration::from_millis(50);

pub(crate) struct Client {
    stage: Arc<Shared>,
    rng: Rng,
    again: Interval,
    agent: &'static str,
    user: String,
    session: String,
    history: BufWriter<File>,
    last: (u64, u64),
    /// True once a turn was accepted; before that the session does not exist.
    is_known: bool,
    /// Attempt and text of each unfinished run.
    open: BTreeMap<String, (u64, String)>,
    over: BTreeSet<String>,
    /// Error codes of failed runs whose end has not arrived yet.
    failed: BTreeMap<String, String>,
    /// Number of messages after which the client reconnects without a reason.
    leaves_in: Option<u64>,
}

impl Client {
    /// Returns the user and session of client `n`.
    pub(crate) fn names(n: usize) -> (String, String) {
        (format!("user-{n}"), format!("chaos-{n}"))
    }

    pub(crate) fn new(stage: Arc<Shared>, n: usize, seed: u64, history: &Path) -> Self {
        let (user, session) = Self::names(n);
        Self {
            stage,
            rng: Rng::from_number(seed * 1_000 + n as u64),
            again: interval(AGAIN),
            agent: if n.is_multiple_of(2) { STEADY } else { LASTING },
            user,
            session,
            history: BufWriter::new(File::create(history).expect("a history file")),
            last: (0, 0),
            is_known: false,
            open: BTreeMap::new(),
            over: BTreeSet::new(),
            failed: BTreeMap::new(),
            leaves_in: None,
        }
    }

    pub(crate) async fn run(mut self) {
        let mut wire = self.connect().await;
        let mut n = 0;
        while !self.stage.is_over() {
            self.leaves_in = (self.rng.below(5) == 0).then(|| self.rng.below(20));
            self.turn(&mut wire, n).await;
            self.stage.ended();
            n += 1;
        }
        self.history.flush().expect("the history is written");
    }

    fn note(&mut self, what: &Value) {
        writeln!(self.history, "{what}").expect("the history is written");
    }

    fn cursor(&self) -> Vec<Value> {
        if !self.is_known {
            return Vec::new();
        }
        let mut cursor = json!({"session_id": self.session, "after_seq": self.last.0, "runs": {}});
        if self.last.1 > 0 {
            cursor["after_epoch"] = self.last.1.into();
        }
        for (run, (attempt, text)) in &self.open {
            cursor["runs"][run] = json!({"attempt": attempt, "offset": text.len()});
        }
        vec![cursor]
    }

    /// Connects to any node, as often as needed, and resumes from the last cursor.
    async fn connect(&mut self) -> WebSocketClient {
        loop {
            self.again.tick().await;
            let Some(at) = self.stage.any(&mut self.rng) else { continue };
            // A suspended node accepts connections too, so the welcome has a deadline.
            if let Ok(Ok(wire)) = timeout(SILENCE, WebSocketClient::hello(at, &self.user, self.cursor())).await {
                return wire;
            }
        }
    }

    /// Runs one turn, across all faults.
    async fn turn(&mut self, wire: &mut WebSocketClient, n: usize) {
        let id = format!("{}-m{n}", self.session);
        let begun = Instant::now();
        let mut run = None;
        while self.turn_on(wire, &id, &mut run).await.is_err() {
            if begun.elapsed() >= self.stage.patience {
                self.stage.end();
                panic!("{id} has no end ({run:?})");
            }
            *wire = self.connect().await;
        }
    }

    async fn turn_on(
        &mut self,
        wire: &mut WebSocketClient,
        id: &str,
        run: &mut Option<String>,
    ) -> Result<(), ConnectionEnd> {
        let mut ask = invoke(&self.session, self.agent, id);
        ask["request_id"] = id.into();
        if run.is_none() {
            wire.say(ask.clone()).await?;
        }
        loop {
            if run.as_ref().is_some_and(|run| self.over.contains(run)) {
                return Ok(());
            }
            let silent = || ConnectionEnd::Broken("it said nothing for too long".to_owned());
            let message = timeout(SILENCE, wire.next()).await.map_err(|_| silent())??;
            self.stage.heard();
            if message["request_id"] == id && message["type"] == "turn_accepted" {
                *run = message["run_id"].as_str().map(str::to_owned);
                self.is_known = true;
                self.note(&json!({"accepted": run, "message": id}));
            }
            if message["request_id"] == id && message["type"] == "error" {
                assert!(message["retry_after_ms"].is_u64(), "refused for good: {message}");
                // The message keeps its id, so that it may be resent any number of times.
                self.again.tick().await;
                wire.say(ask.clone()).await?;
            }
            self.take(&message);
            match &mut self.leaves_in {
                Some(0) => {
                    self.leaves_in = None;
                    return Err(ConnectionEnd::Broken("it goes elsewhere".to_owned()));
                }
                Some(left) => *left -= 1,
                None => {}
            }
        }
    }

    /// Records a message and applies it.
    fn take(&mut self, message: &Value) {
        if message["type"] == "subscribed" {
            if message["reset"] == true {
                self.note(&json!({"reset": message["reason"], "at": self.last.0}));
            }
            return;
        }
        if let Some(seq) = message["seq"].as_u64() {
            self.note(message);
            self.last = (seq, message["epoch"].as_u64().expect("an epoch"));
        }
        let number = |name: &str| message[name].as_u64().expect("a number");
        let Some(run) = message["run_id"].as_str() else { return };
        match message["type"].as_str() {
            Some("delta") => {
                let (attempt, text) = self.open.entry(run.to_owned()).or_default();
                assert!(number("attempt") >= *attempt, "attempt {attempt} goes back: {message}");
                if number("attempt") != *attempt {
                    (*attempt, *text) = (number("attempt"), String::new());
                }
                let at = usize::try_from(number("offset")).expect("small");
                // Text is provisional: a node that died may not have recorded it, so it may come again,
                // except in a resumed answer.
                let fits = if self.agent == LASTING { at == text.len() } else { at <= text.len() };
                assert!(fits, "a gap or a repeat in the text at {}: {message}", text.len());
                text.truncate(at);
                text.push_str(message["text"].as_str().expect("text"));
            }
            Some("done") => {
                let (_, mut text) = self.open.remove(run).unwrap_or_default();
                text.truncate(usize::try_from(number("text_bytes")).expect("small"));
                self.over.insert(run.to_owned());
                let status = &message["status"];
                let attempt = &message["attempt"];
                let code = self.failed.remove(run);
                let ended = json!({"ended": run, "status": status, "attempt": attempt, "text": text, "code": code});
                self.note(&ended);
            }
            Some("error") if message["terminal"] == true => {
                let code = message["code"].as_str().unwrap_or_default().to_owned();
                self.failed.insert(run.to_owned(), code);
            }
            _ => {}
        }
    }
}
