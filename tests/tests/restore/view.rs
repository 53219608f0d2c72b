//! A client's view of one session, built from the messages of a connection or from the facts of the log.
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Final status of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Completed,
    Failed,
    Cancelled,
}

/// One turn in the view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Turn {
    index: usize,
    asked: String,
    agent: String,
    attempt: u64,
    text: String,
    status: String,
    /// Error code of a failed turn.
    code: Option<String>,
}

/// Visible state of the session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Screen {
    members: Vec<String>,
    active: String,
    state: String,
    turns: BTreeMap<String, Turn>,
}

/// A visible state, and the cursor up to which it is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    screen: Screen,
    seq: u64,
    epoch: u64,
    /// True once the log has been read to its end, page by page.
    is_read: bool,
}

fn text(of: &Value, field: &str) -> String {
    of[field].as_str().unwrap_or_default().to_owned()
}

fn texts(of: &Value) -> Vec<String> {
    serde_json::from_value(of.clone()).expect("a list of names")
}

fn number(of: &Value, field: &str) -> u64 {
    of[field].as_u64().unwrap_or_else(|| panic!("no {field}: {of}"))
}

impl Turn {
    fn is_open(&self) -> bool {
        !["completed", "failed", "cancelled"].contains(&self.status.as_str())
    }

    fn starts(&mut self, attempt: u64) {
        (self.attempt, self.status) = (attempt, "running".to_owned());
        self.text.clear();
    }

    /// Adds text at an offset of this attempt.
    fn says(&mut self, at: u64, more: &str) {
        let at = usize::try_from(at).expect("small");
        assert!(at <= self.text.len(), "a gap at {} of {at}", self.text.len());
        self.text.truncate(at);
        self.text.push_str(more);
    }

    fn ends(&mut self, status: &str, bytes: u64) {
        self.status = status.to_owned();
        let bytes = usize::try_from(bytes).expect("small");
        assert!(bytes <= self.text.len(), "its end says {bytes} bytes: {self:?}");
        self.text.truncate(bytes);
    }
}

impl Screen {
    /// Applies a change of the members or of the session's state; connection messages and log facts use the same
    /// fields.
    fn changes(&mut self, fact: &str, data: &Value) {
        match fact {
            "session.opened" => {
                (self.members, self.active) = (texts(&data["agents"]), text(data, "active_agent"));
                self.state = "open".to_owned();
            }
            "session.closing" => self.state = "closing".to_owned(),
            "session.closed" => self.state = "closed".to_owned(),
            // An agent that is a member already may be added again; the list does not change.
            "agent.added" if self.members.contains(&text(data, "agent_id")) => {}
            "agent.added" => self.members.push(text(data, "agent_id")),
            "agent.removed" => self.members.retain(|agent| *agent != text(data, "agent_id")),
            "agent.switched" => self.active = text(data, "to"),
            _ => {}
        }
    }

    /// Applies a fact of a turn.
    fn goes_on(&mut self, run: &str, fact: &str, data: &Value) {
        let index = self.turns.len();
        if fact == "user.message" {
            let asked = text(&data["message"], "content");
            let turn = Turn { index, asked, status: "accepted".to_owned(), ..Turn::default() };
            assert!(self.turns.insert(run.to_owned(), turn).is_none(), "said twice: {data}");
            return;
        }
        let turn = self.turns.get_mut(run).unwrap_or_else(|| panic!("nobody has asked: {fact} {data}"));
        match fact {
            "turn.admitted" => {
                turn.agent = text(data, "agent_id");
                turn.status = text(data, "strategy");
            }
            "run.started" => {
                turn.agent = text(data, "agent_id");
                turn.starts(number(data, "attempt"));
            }
            "run.restarted" => turn.starts(number(data, "attempt")),
            "run.cancelling" => turn.status = "cancelling".to_owned(),
            "run.done" => turn.ends("completed", number(data, "text_bytes")),
            "run.failed" => turn.ends("failed", number(data, "text_bytes")),
            "run.cancelled" => turn.ends("cancelled", number(data, "text_bytes")),
            _ => {}
        }
    }
}

impl View {
    /// Returns the `subscribe` that continues from this view.
    pub(crate) fn cursor(&self) -> Value {
        let mut cursor = json!({"session_id": "s1", "after_seq": self.seq, "runs": {}});
        if self.epoch > 0 {
            cursor["after_epoch"] = self.epoch.into();
        }
        for (run, turn) in self.screen.turns.iter().filter(|(_, turn)| turn.is_open()) {
            cursor["runs"][run] = json!({"attempt": turn.attempt, "offset": turn.text.len()});
        }
        cursor
    }

    /// Applies a message of a connection.
    pub(crate) fn take(&mut self, message: &Value) {
        assert_ne!(message["reset"], true, "the log is all there: {message}");
        let run = message["run_id"].as_str().unwrap_or_default();
        let kind = message["type"].as_str().expect("a type");
        if kind == "delta" && message["kind"].is_null() {
            let turn = self.screen.turns.get_mut(run).expect("a turn that was asked for");
            assert!(number(message, "attempt") >= turn.attempt, "an attempt that is over: {message}");
            if number(message, "attempt") == turn.attempt {
                turn.says(number(message, "offset"), &text(message, "text"));
            }
            return;
        }
        if kind == "error" && message["terminal"] == true {
            let turn = self.screen.turns.get_mut(run).expect("a turn that was asked for");
            turn.code = Some(text(message, "code"));
        }
        // A message with a snapshot answers a request and is no fact of the session.
        if message.get("snapshot").is_some() {
            return;
        }
        // If one fact is sent as two messages, only the last has its sequence number.
        let Some(seq) = message["seq"].as_u64() else { return };
        assert!(seq > self.seq, "told again after {}: {message}", self.seq);
        (self.seq, self.epoch) = (seq, number(message, "epoch"));
        let fact = match (kind, message["name"].as_str(), message["status"].as_str()) {
            ("session_opened", _, _) => "session.opened",
            ("session_closed", _, _) => "session.closed",
            ("event", Some("SESSION_CLOSING"), _) => "session.closing",
            ("event", Some("AGENT_ADDED"), _) => "agent.added",
            ("event", Some("AGENT_REMOVED"), _) => "agent.removed",
            ("event", Some("ACTIVE_AGENT_CHANGED"), _) => "agent.switched",
            ("message", _, _) => "user.message",
            ("run_started", _, _) => "run.started",
            ("event", Some("TURN_ADMITTED"), _) => "turn.admitted",
            ("event", Some("RUN_RESTARTED"), _) => "run.restarted",
            ("event", Some("CANCEL_SENT"), _) => "run.cancelling",
            ("done", _, Some("completed")) => "run.done",
            ("done", _, Some("failed")) => "run.failed",
            ("done", _, Some("cancelled")) => "run.cancelled",
            (_, _, _) => return,
        };
        self.learns(run, fact, message);
    }

    /// Applies a fact of the log.
    pub(crate) fn fold(&mut self, envelope: &Value) {
        assert_eq!(number(envelope, "seq"), self.seq + 1, "every fact, in order: {envelope}");
        (self.seq, self.epoch) = (number(envelope, "seq"), number(envelope, "epoch"));
        let fact = text(envelope, "type");
        let data = &envelope["data"];
        let run = envelope["run_id"].as_str().unwrap_or_default();
        if fact == "agent.stream.delta" {
            let turn = self.screen.turns.get_mut(run).expect("a turn that was asked for");
            turn.says(number(data, "offset"), &text(data, "text"));
            return;
        }
        if let ("run.failed" | "run.cancelled", Some(code)) = (fact.as_str(), data["code"].as_str()) {
            self.screen.turns.get_mut(run).expect("a turn").code = Some(code.to_owned());
        }
        self.learns(run, &fact, data);
    }

    fn learns(&mut self, run: &str, fact: &str, data: &Value) {
        match run {
            "" => self.screen.changes(fact, data),
            run => self.screen.goes_on(run, fact, data),
        }
    }

    /// Returns the sequence number after which the next page of the log begins; `None` at the end.
    pub(crate) fn reads_on(&self) -> Option<u64> {
        (!self.is_read).then_some(self.seq)
    }

    pub(crate) fn page_ends(&mut self, next: Option<u64>) {
        self.is_read = next.is_none();
        assert!(next.is_none_or(|next| next == self.seq), "the next page begins elsewhere: {next:?}");
    }

    /// Returns whether this view has caught up with another one that changes no more.
    pub(crate) fn is_up_to(&self, other: &Self) -> bool {
        let bytes = |view: &Self| -> usize { view.screen.turns.values().map(|turn| turn.text.len()).sum() };
        self.seq >= other.seq && bytes(self) == bytes(other)
    }

    /// Asserts that both views are equal.
    pub(crate) fn assert_equals(&self, other: &Self) {
        assert_eq!(self.screen, other.screen);
    }

    /// Asserts that the log gives the same view; of an open turn, the log may have only the recorded part of the
    /// text.
    pub(crate) fn assert_matches_log(&self, log: &Self) {
        let mut log = log.screen.clone();
        for (run, turn) in log.turns.iter_mut().filter(|(_, turn)| turn.is_open()) {
            let shown = &self.screen.turns[run];
            assert!(shown.text.starts_with(&turn.text), "recorded was {:?} of {shown:?}", turn.text);
            turn.text.clone_from(&shown.text);
        }
        assert_eq!(self.screen, log);
    }

    pub(crate) fn members(&self) -> &[String] {
        &self.screen.members
    }

    pub(crate) fn turns(&self) -> usize {
        self.screen.turns.len()
    }

    pub(crate) fn knows(&self, run: &str) -> bool {
        self.screen.turns.contains_key(run)
    }

    pub(crate) fn status(&self, run: &str) -> &str {
        &self.screen.turns[run].status
    }

    pub(crate) fn attempt(&self, run: &str) -> u64 {
        self.screen.turns[run].attempt
    }

    pub(crate) fn agent(&self, run: &str) -> &str {
        &self.screen.turns[run].agent
    }

    pub(crate) fn text(&self, run: &str) -> &str {
        &self.screen.turns[run].text
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.screen.turns.values().all(|turn| !turn.is_open())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.screen.state == "closed"
    }

    pub(crate) fn ends(&self) -> Vec<End> {
        let ends = [("completed", End::Completed), ("failed", End::Failed), ("cancelled", End::Cancelled)];
        let of = |turn: &Turn| ends.iter().find(|(status, _)| *status == turn.status).map(|(_, end)| *end);
        self.screen.turns.values().filter_map(of).collect()
    }
}
