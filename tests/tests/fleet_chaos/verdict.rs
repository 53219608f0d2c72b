//! The verdict: clients' histories, the agents' journal and the final log, compared.
use crate::answer;
use crate::faults::Fleet;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use turnway_tests::real::wire::WebSocketClient;

/// Contents of one client's history file.
#[derive(Default)]
pub(crate) struct History {
    /// Messages of the accepted inputs, by run.
    accepted: BTreeMap<String, String>,
    ended: BTreeMap<String, End>,
    twice: Vec<String>,
    facts: Vec<Value>,
    resets: Vec<String>,
}

struct End {
    status: String,
    attempt: u64,
    text: String,
    /// Error code of a failed run.
    code: String,
}

/// Contents of the agents' journal: the serial numbers of each attempt of each run.
#[derive(Default)]
pub(crate) struct Journal {
    asked: BTreeMap<(String, u64), Vec<u64>>,
}

/// Counts and violations; violations are collected, so that a bad run reports all of them.
#[derive(Default)]
pub(crate) struct Verdict {
    pub(crate) accepted: usize,
    pub(crate) completed: usize,
    pub(crate) otherwise: BTreeMap<String, usize>,
    pub(crate) restarted: usize,
    pub(crate) resumed: usize,
    pub(crate) facts: usize,
    pub(crate) epochs: usize,
    pub(crate) lost: Vec<String>,
    pub(crate) twice: Vec<String>,
    pub(crate) stale: Vec<String>,
    pub(crate) texts: Vec<String>,
    pub(crate) views: Vec<String>,
    pub(crate) resets: Vec<String>,
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("a file");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of it")).collect()
}

fn text(of: &Value, name: &str) -> String {
    of[name].as_str().unwrap_or_default().to_owned()
}

pub(crate) fn read_history(path: &Path) -> History {
    let mut history = History::default();
    for line in lines(path) {
        if line.get("accepted").is_some() {
            history.accepted.insert(text(&line, "accepted"), text(&line, "message"));
        } else if line.get("reset").is_some() {
            history.resets.push(line.to_string());
        } else if line.get("ended").is_some() {
            let run = text(&line, "ended");
            let attempt = line["attempt"].as_u64().unwrap_or_default();
            let status = text(&line, "status");
            let code = text(&line, "code");
            let end = End { status, attempt, text: text(&line, "text"), code };
            if history.ended.insert(run.clone(), end).is_some() {
                history.twice.push(format!("{run}: its client saw two ends"));
            }
        } else {
            history.facts.push(line);
        }
    }
    history
}

impl Journal {
    pub(crate) fn read(path: &Path) -> Self {
        let mut journal = Self::default();
        for line in lines(path) {
            let number = |name: &str| line[name].as_u64().expect("a number");
            let attempt = (text(&line, "run"), number("attempt"));
            journal.asked.entry(attempt).or_default().push(number("serial"));
        }
        journal
    }

    pub(crate) fn count(&self) -> usize {
        self.asked.values().map(Vec::len).sum()
    }

    /// Returns the number of invocations beyond the first of each run.
    pub(crate) fn repeats(&self) -> usize {
        let runs: BTreeSet<&String> = self.asked.keys().map(|(run, _)| run).collect();
        self.count() - runs.len()
    }

    /// Returns whether the agent gave this answer to that attempt, or (`part`) an answer that starts with
    /// this text.
    fn has(&self, run: &str, attempt: u64, message: &str, text: &str, part: bool) -> bool {
        let serials = self.asked.get(&(run.to_owned(), attempt));
        serials.into_iter().flatten().any(|serial| {
            let said = answer(message, *serial);
            if part { said.starts_with(text) } else { said == text }
        })
    }
}

/// Returns a fact without its display time.
fn bare(fact: &Value) -> Value {
    let mut fact = fact.clone();
    fact["ts"] = Value::Null;
    fact
}

/// Returns the session's whole log as a new client receives it: every fact with `types`, otherwise the facts
/// visible to all.
async fn read_log(at: SocketAddr, user: &str, session: &str, types: Value, last: Option<u64>) -> Vec<Value> {
    let resume = vec![json!({"session_id": session, "after_seq": 0, "types": types})];
    let mut wire = WebSocketClient::hello(at, user, resume).await.expect("it connects");
    let subscribed = wire.until(|m| m["type"] == "subscribed").await.expect("subscribed");
    let tail = last.unwrap_or_else(|| subscribed["snapshot"]["seq"].as_u64().expect("the log's end"));
    let mut facts: Vec<Value> = Vec::new();
    while facts.last().is_none_or(|fact| fact["seq"].as_u64() < Some(tail)) {
        let message = wire.next().await.expect("the log");
        if message.get("seq").is_some() {
            facts.push(message);
        }
    }
    facts
}

impl Verdict {
    /// Compares one client's history with the log, as the node at this address serves it, and the agents' journal.
    pub(crate) async fn judge(
        &mut self,
        fleet: &Fleet,
        at: SocketAddr,
        (user, session): &(String, String),
        history: &History,
        journal: &Journal,
    ) {
        self.resets.extend(history.resets.iter().map(|reset| format!("{session}: {reset}")));
        self.twice.extend(history.twice.iter().cloned());
        if history.accepted.is_empty() {
            return;
        }
        let log = read_log(at, user, session, json!([">"]), None).await;
        self.check_stored_log(fleet, session, Some(&log));
        let ends = self.run_ends(session, &log);
        let messages: BTreeSet<&String> = history.accepted.values().collect();
        if messages.len() != history.accepted.len() {
            self.twice.push(format!("{session}: a message opened two turns"));
        }
        for (run, message) in &history.accepted {
            self.turn(run, message, &ends, history, journal);
        }
        let last = history.facts.last().and_then(|fact| fact["seq"].as_u64());
        let mut shown = read_log(at, user, session, json!([]), last).await;
        shown.retain(|fact| fact["seq"].as_u64() >= history.facts[0]["seq"].as_u64());
        let seen: Vec<Value> = history.facts.iter().map(bare).collect();
        let shown: Vec<Value> = shown.iter().map(bare).collect();
        if let Some(n) = (0..seen.len().max(shown.len())).find(|&n| seen.get(n) != shown.get(n)) {
            self.views.push(format!("{session}: {:?} instead of {:?}", seen.get(n), shown.get(n)));
        }
    }

    /// Checks the log as stored: positions without gaps, epochs that never decrease, and equality with the
    /// log as served, if given.
    pub(crate) fn check_stored_log(&mut self, fleet: &Fleet, session: &str, log: Option<&[Value]>) {
        let key = format!("log:{{default/{session}}}");
        let entries: Vec<(String, Vec<String>)> = fleet.redis.command(&["XRANGE", &key, "-", "+"]);
        let mut before = 0;
        for (n, (id, fields)) in entries.iter().enumerate() {
            let field = fields.chunks(2).find(|pair| pair[0] == "e").map(|pair| &pair[1]);
            let epoch: u64 = field.and_then(|epoch| epoch.parse().ok()).expect("an epoch");
            if *id != format!("{}-0", n + 1) || epoch < before {
                self.stale.push(format!("{session}: {id} of epoch {epoch} after one of {before}"));
            }
            self.epochs += usize::from(epoch != before);
            before = epoch;
            let Some(log) = log else { continue };
            if log.get(n).and_then(|fact| fact["epoch"].as_u64()) != Some(epoch) {
                self.views.push(format!("{session}: {id} is shown as {:?}", log.get(n)));
            }
        }
    }

    /// Returns each run's end according to the served log.
    fn run_ends(&mut self, session: &str, log: &[Value]) -> BTreeMap<String, String> {
        let mut ends = BTreeMap::new();
        for (n, fact) in log.iter().enumerate() {
            if fact["seq"] != n + 1 {
                self.views.push(format!("{session}: a hole before {fact}"));
            }
            if fact["type"] == "done" && ends.insert(text(fact, "run_id"), text(fact, "status")).is_some() {
                self.twice.push(format!("{session}: {fact}"));
            }
            self.restarted += usize::from(fact["name"] == "RUN_RESTARTED");
            self.resumed += usize::from(fact["name"] == "RUN_RESUMED");
        }
        self.facts += log.len();
        ends
    }

    fn turn(
        &mut self,
        run: &str,
        message: &str,
        ends: &BTreeMap<String, String>,
        history: &History,
        journal: &Journal,
    ) {
        self.accepted += 1;
        let Some(status) = ends.get(run) else {
            return self.lost.push(format!("{run} was accepted and has no end"));
        };
        let Some(end) = history.ended.get(run) else {
            return self.views.push(format!("{run}: its client saw no end"));
        };
        if end.status != *status {
            self.views.push(format!("{run} ended {status}, and its client was told {}", end.status));
        }
        let completed = status == "completed";
        if completed {
            self.completed += 1;
        } else {
            *self.otherwise.entry(format!("{status} {}", end.code)).or_default() += 1;
        }
        let silent = end.text.is_empty() && !completed;
        if !silent && !journal.has(run, end.attempt, message, &end.text, !completed) {
            self.texts.push(format!("{run}, attempt {}: {}", end.attempt, end.text));
        }
    }

    /// Fails the test with all violations.
    pub(crate) fn must_be_clean(&self) {
        let found = [
            ("lost", &self.lost),
            ("ended twice", &self.twice),
            ("stale", &self.stale),
            ("texts", &self.texts),
            ("views", &self.views),
            ("resets", &self.resets),
        ];
        let found: Vec<String> = found
            .into_iter()
            .filter(|(_, breaches)| !breaches.is_empty())
            .map(|(what, breaches)| {
                let first: Vec<String> = breaches.iter().take(5).map(|text| format!("{text:.600}")).collect();
                format!("{} {what}:\n  {}", breaches.len(), first.join("\n  "))
            })
            .collect();
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
}
