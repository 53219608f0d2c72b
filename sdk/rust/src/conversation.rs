//! The client's state of one session: its cursor, the text of open runs, and the requests to repeat after a
//! reconnect. Used by the client's state machine.
use crate::ask::{Ask, AskKind, Pending, Retry};
use crate::error::ClientError;
use crate::event::{Bookmark, Cursor, RunMark};
use crate::fx::Fx;
use crate::invoke::{Invoke, Start, Subscribe};
use crate::limits;
use crate::planted::{Planted, planted};
use crate::text::RunText;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The state of the subscription to the session's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Attach {
    /// Not subscribed and no subscription requested; the first accepted input subscribes.
    Off,
    /// Like `Off`, after a reset: the oldest unfinished input subscribes from before its turn, so that the turn's end
    /// is seen even if it lies before the snapshot.
    Back,
    /// A subscription has to be requested at this time.
    Due(Duration),
    /// Requested with this request id. Messages before the answer belong to the previous subscription.
    Asking(String),
    On,
}

/// The client's state of one session.
#[derive(Clone, Debug)]
pub(crate) struct Conversation {
    pub(crate) id: String,
    pub(crate) cursor: Option<Cursor>,
    /// Start position, while there is no cursor.
    pub(crate) start: Option<Start>,
    pub(crate) types: Vec<String>,
    /// Whether facts are also delivered unparsed.
    pub(crate) facts: bool,
    pub(crate) attach: Attach,
    /// End of the log when the subscription was answered, until the cursor reaches it.
    pub(crate) goal: Option<u64>,
    pub(crate) runs: BTreeMap<String, RunText>,
    pub(crate) ended: VecDeque<String>,
    /// Inputs not known to have ended, oldest first.
    pub(crate) inputs: VecDeque<Pending>,
    pub(crate) asks: Vec<Ask>,
    /// Repairs since the last progress.
    pub(crate) repairs: u32,
    /// Schedule of a subscription that was refused temporarily.
    pub(crate) retry: Retry,
}

impl Conversation {
    pub(crate) fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            cursor: None,
            start: None,
            types: Vec::new(),
            facts: false,
            attach: Attach::Off,
            goal: None,
            runs: BTreeMap::new(),
            ended: VecDeque::new(),
            inputs: VecDeque::new(),
            asks: Vec::new(),
            repairs: 0,
            retry: Retry::default(),
        }
    }

    /// Returns whether an answer of the gateway is outstanding.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.inputs.is_empty() || !self.asks.is_empty() || !self.runs.is_empty()
    }

    // --- requests of the application ---

    pub(crate) fn subscribe(&mut self, wish: Subscribe, now: Duration) {
        self.cursor = match wish.start {
            Start::After(cursor) => Some(cursor),
            Start::Beginning | Start::Now => None,
        };
        self.start = Some(wish.start);
        self.types = wish.types;
        self.facts = wish.facts;
        self.runs.clear();
        self.ended.clear();
        self.attach = Attach::Due(now);
    }

    pub(crate) fn invoke(&mut self, invoke: Invoke, bytes_max: usize) -> Result<(), ClientError> {
        if !is_label(&invoke.message_id) {
            return Err(ClientError::BadName { what: "message id" });
        }
        if self.inputs.iter().any(|input| input.invoke.message_id == invoke.message_id) {
            // The input was given twice before it ended: the first one counts.
            return Ok(());
        }
        if self.inputs.len() >= limits::INPUTS_MAX && !planted(Planted::SdkInputsUnbounded) {
            return Err(ClientError::TooMany { what: "unfinished inputs", max: limits::INPUTS_MAX });
        }
        let wire = invoke.to_wire(&self.id);
        if wire.len() > bytes_max {
            return Err(ClientError::TooLarge { bytes: wire.len(), max: bytes_max });
        }
        self.inputs.push_back(Pending::new(invoke, wire));
        Ok(())
    }

    pub(crate) fn ask(&mut self, kind: AskKind, fx: &mut Fx) -> Result<(), ClientError> {
        if self.asks.iter().any(|ask| ask.kind == kind) {
            return Ok(());
        }
        if self.asks.len() >= limits::ASKS_MAX {
            return Err(ClientError::TooMany { what: "requests", max: limits::ASKS_MAX });
        }
        self.asks.push(Ask { kind, request_id: fx.request_id(), sent: false, retry: Retry::default() });
        Ok(())
    }

    pub(crate) fn bookmark(&self) -> Bookmark {
        let zero = Cursor { seq: 0, epoch: None };
        let mark = |(run_id, run): (&String, &RunText)| RunMark {
            run_id: run_id.clone(),
            agent_id: run.agent.clone(),
            attempt: run.attempt,
            text: run.text.clone(),
        };
        Bookmark {
            session_id: self.id.clone(),
            cursor: self.cursor.or_else(|| (self.start == Some(Start::Beginning)).then_some(zero)),
            runs: self.runs.iter().map(mark).collect(),
            inputs: self
                .inputs
                .iter()
                .filter(|_| !planted(Planted::SdkBookmarkForgetsInputs))
                .map(|input| input.invoke.clone())
                .collect(),
            types: self.types.clone(),
        }
    }

    pub(crate) fn restore(&mut self, mark: Bookmark) {
        for run in mark.runs.into_iter().take(limits::RUNS_MAX) {
            let mut text = RunText { agent: run.agent_id, ..RunText::default() };
            text.restart(run.attempt);
            text.text = run.text;
            self.runs.insert(run.run_id, text);
        }
        for invoke in mark.inputs.into_iter().take(limits::INPUTS_MAX) {
            let wire = invoke.to_wire(&self.id);
            self.inputs.push_back(Pending::new(invoke, wire));
        }
        self.cursor = mark.cursor;
        self.types = mark.types;
        if self.cursor.is_some() {
            self.attach = Attach::Due(Duration::ZERO);
        }
    }

    // --- the connection ---

    /// Handles a lost connection: everything unanswered has to be sent again.
    pub(crate) fn lost(&mut self) {
        let known = self.cursor.is_some() || self.start.is_some();
        self.attach = match self.attach {
            Attach::Back if !self.inputs.is_empty() => Attach::Back,
            Attach::Off if !known => Attach::Off,
            Attach::On if !known => Attach::Off,
            Attach::Off | Attach::Back | Attach::Due(_) | Attach::Asking(_) | Attach::On => {
                Attach::Due(Duration::ZERO)
            }
        };
        self.goal = None;
        self.runs.values_mut().for_each(RunText::forget_end);
        self.retry = Retry::default();
        for input in &mut self.inputs {
            input.sent = false;
            input.retry = Retry::default();
        }
        // A cancellation without a run id might hit the next turn if repeated, so it is dropped once sent.
        if !planted(Planted::SdkCancelRepeated) {
            self.asks.retain(|ask| !(ask.sent && ask.kind == AskKind::Cancel { run: None }));
        }
        for ask in &mut self.asks {
            ask.sent = false;
            ask.retry = Retry::default();
        }
    }

    /// Returns whether the subscription belongs in `hello.resume`.
    pub(crate) fn wants_resume(&self) -> bool {
        matches!(self.attach, Attach::Due(_)) && !self.is_opening()
    }

    /// Returns the body of a `subscribe` message.
    pub(crate) fn subscribe_body(&self, request_id: &str) -> Value {
        let mut body =
            json!({ "type": "subscribe", "ts": 0, "request_id": request_id, "session_id": self.id });
        match (self.cursor, self.start) {
            (Some(cursor), _) => {
                body["after_seq"] = cursor.seq.into();
                if let Some(epoch) = cursor.epoch.filter(|_| !planted(Planted::SdkResumesWithoutEpoch)) {
                    body["after_epoch"] = epoch.into();
                }
            }
            (None, Some(Start::Beginning)) => body["after_seq"] = 0.into(),
            (None, Some(Start::Now | Start::After(_)) | None) => {}
        }
        let texts = self.runs.iter().filter(|(_, run)| run.attempt > 0).take(limits::RUNS_MAX);
        let runs: Map<String, Value> = texts
            .map(|(id, run)| (id.clone(), json!({ "attempt": run.attempt, "offset": run.text.len() })))
            .collect();
        if !runs.is_empty() {
            body["runs"] = runs.into();
        }
        if !self.types.is_empty() {
            body["types"] = self.types.clone().into();
        }
        body
    }

    /// Sends the messages that are due.
    pub(crate) fn pump(&mut self, fx: &mut Fx) {
        if self.attach == Attach::Back && self.inputs.is_empty() {
            self.attach = Attach::Due(fx.now);
        }
        if let Attach::Due(at) = self.attach
            && at <= fx.now
            && !self.is_opening()
        {
            let request_id = fx.request_id();
            fx.send(self.subscribe_body(&request_id).to_string());
            self.attach = Attach::Asking(request_id);
        }
        let attached = matches!(self.attach, Attach::On | Attach::Off | Attach::Back);
        if attached && !self.is_opening() {
            self.pump_inputs(fx);
        }
        let all_said = self.inputs.iter().all(|input| input.sent);
        for ask in &mut self.asks {
            let held = ask.kind == AskKind::Close && !all_said;
            if !ask.sent && !held && ask.retry.is_due(fx.now) {
                ask.sent = true;
                fx.send(ask.to_wire(&self.id));
            }
        }
    }

    /// New inputs go one at a time, so that a later input never overtakes a refused one; inputs that the gateway has
    /// accepted go together.
    fn pump_inputs(&mut self, fx: &mut Fx) {
        for input in &mut self.inputs {
            if !input.sent {
                if !input.retry.is_due(fx.now) {
                    return;
                }
                input.sent = true;
                fx.send(input.wire.clone());
            }
            if input.run.is_none() {
                return;
            }
        }
    }

    /// Returns the time of the next call of [`Conversation::pump`].
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let due = match self.attach {
            Attach::Due(at) if !self.is_opening() => Some(at),
            Attach::Due(_) | Attach::Off | Attach::Back | Attach::Asking(_) | Attach::On => None,
        };
        let attached = matches!(self.attach, Attach::On | Attach::Off | Attach::Back);
        // Only the first unaccepted input can be sent next.
        let input = self.inputs.iter().find(|input| !input.sent || input.run.is_none());
        let input = input.filter(|input| !input.sent && attached && !self.is_opening());
        let all_said = self.inputs.iter().all(|input| input.sent);
        let asks = self.asks.iter().filter(|ask| !ask.sent && (all_said || ask.kind != AskKind::Close));
        asks.map(|ask| ask.retry.due).chain(input.map(|input| input.retry.due)).chain(due).min()
    }

    pub(crate) fn is_opening(&self) -> bool {
        self.asks.iter().any(|ask| matches!(ask.kind, AskKind::Open(_)))
    }
}

/// Returns whether the text is a session id, `[A-Za-z0-9_-]{1,64}`. An invalid id would invalidate a whole `hello`.
pub(crate) fn is_session_id(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// Returns whether the text is a message id: 1 to 256 bytes of printable text.
fn is_label(text: &str) -> bool {
    (1..=256).contains(&text.len()) && !text.chars().any(char::is_control)
}
