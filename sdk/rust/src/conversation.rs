//! The client's state of one session: its cursor, the text of open runs, and the requests to repeat after a
//! reconnect. Used by the client's state machine.
use crate::error::ClientError;
use crate::event::{Bookmark, LogCursor, RunMark};
use crate::invoke::{Start, Subscribe, UserInput};
use crate::limits;
use crate::output::Outbound;
use crate::planted::{Planted, planted};
use crate::requests::{PendingInvoke, RetrySchedule, SessionRequest, SessionRequestKind};
use crate::text::RunText;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The state of the subscription to the session's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SubscriptionState {
    /// Not subscribed and no subscription requested; the first accepted input subscribes.
    Unsubscribed,
    /// Like `Unsubscribed`, after a reset: the oldest unfinished input subscribes from before its turn, so that the
    /// turn's end is seen even if it lies before the snapshot.
    SubscribeByInput,
    /// A subscription has to be requested at this time.
    Due(Duration),
    /// Requested with this request id. Messages before the answer belong to the previous subscription.
    Requested(String),
    Subscribed,
}

/// The client's state of one session.
#[derive(Clone, Debug)]
pub(crate) struct SessionTracker {
    pub(crate) id: String,
    pub(crate) cursor: Option<LogCursor>,
    /// Start position, while there is no cursor.
    pub(crate) start: Option<Start>,
    pub(crate) types: Vec<String>,
    /// True if facts are also delivered unparsed.
    pub(crate) facts: bool,
    pub(crate) subscription: SubscriptionState,
    /// End of the log when the subscription was answered, until the cursor reaches it.
    pub(crate) catch_up_to: Option<u64>,
    pub(crate) runs: BTreeMap<String, RunText>,
    pub(crate) ended: VecDeque<String>,
    /// Inputs not known to have ended, oldest first.
    pub(crate) inputs: VecDeque<PendingInvoke>,
    pub(crate) requests: Vec<SessionRequest>,
    /// Repairs since the last progress.
    pub(crate) repairs: u32,
    /// Schedule of a subscription that was refused temporarily.
    pub(crate) retry: RetrySchedule,
}

impl SessionTracker {
    pub(crate) fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            cursor: None,
            start: None,
            types: Vec::new(),
            facts: false,
            subscription: SubscriptionState::Unsubscribed,
            catch_up_to: None,
            runs: BTreeMap::new(),
            ended: VecDeque::new(),
            inputs: VecDeque::new(),
            requests: Vec::new(),
            repairs: 0,
            retry: RetrySchedule::default(),
        }
    }

    /// Returns whether an answer of the gateway is outstanding.
    pub(crate) fn awaits_answer(&self) -> bool {
        !self.inputs.is_empty() || !self.requests.is_empty() || !self.runs.is_empty()
    }

    // --- requests of the application ---

    pub(crate) fn subscribe(&mut self, request: Subscribe, now: Duration) {
        self.cursor = match request.start {
            Start::After(cursor) => Some(cursor),
            Start::Beginning | Start::Now => None,
        };
        self.start = Some(request.start);
        self.types = request.types;
        self.facts = request.facts;
        self.runs.clear();
        self.ended.clear();
        self.subscription = SubscriptionState::Due(now);
    }

    pub(crate) fn invoke(&mut self, invoke: UserInput, bytes_max: usize) -> Result<(), ClientError> {
        if !is_message_id(&invoke.message_id) {
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
        self.inputs.push_back(PendingInvoke::new(invoke, wire));
        Ok(())
    }

    pub(crate) fn request(&mut self, kind: SessionRequestKind, fx: &mut Outbound) -> Result<(), ClientError> {
        if self.requests.iter().any(|ask| ask.kind == kind) {
            return Ok(());
        }
        if self.requests.len() >= limits::REQUESTS_MAX {
            return Err(ClientError::TooMany { what: "requests", max: limits::REQUESTS_MAX });
        }
        self.requests.push(SessionRequest {
            kind,
            request_id: fx.request_id(),
            sent: false,
            retry: RetrySchedule::default(),
        });
        Ok(())
    }

    pub(crate) fn bookmark(&self) -> Bookmark {
        let zero = LogCursor { seq: 0, epoch: None };
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
        for run in mark.runs {
            let Some(text) = self.open_run(&run.run_id) else { break };
            text.restart(run.attempt);
            text.agent = run.agent_id;
            text.text = run.text;
        }
        for invoke in mark.inputs.into_iter().take(limits::INPUTS_MAX) {
            let wire = invoke.to_wire(&self.id);
            self.inputs.push_back(PendingInvoke::new(invoke, wire));
        }
        self.cursor = mark.cursor;
        self.types = mark.types;
        if self.cursor.is_some() {
            self.subscription = SubscriptionState::Due(Duration::ZERO);
        }
    }

    /// Returns the text of a run, and opens the run if it is new. Returns none for a new run while
    /// [`limits::RUNS_MAX`] runs are open. No other function adds a run.
    pub(crate) fn open_run(&mut self, id: &str) -> Option<&mut RunText> {
        if !self.can_open_run(id) {
            return None;
        }
        Some(self.runs.entry(id.to_owned()).or_default())
    }

    /// Returns whether a run is open, or may be opened.
    pub(crate) fn can_open_run(&self, id: &str) -> bool {
        self.runs.len() < limits::RUNS_MAX || self.runs.contains_key(id)
    }

    // --- the connection ---

    /// Handles a lost connection: everything unanswered has to be sent again.
    pub(crate) fn handle_lost(&mut self) {
        let known = self.cursor.is_some() || self.start.is_some();
        self.subscription = match self.subscription {
            SubscriptionState::SubscribeByInput if !self.inputs.is_empty() => SubscriptionState::SubscribeByInput,
            SubscriptionState::Unsubscribed if !known => SubscriptionState::Unsubscribed,
            SubscriptionState::Subscribed if !known => SubscriptionState::Unsubscribed,
            SubscriptionState::Unsubscribed
            | SubscriptionState::SubscribeByInput
            | SubscriptionState::Due(_)
            | SubscriptionState::Requested(_)
            | SubscriptionState::Subscribed => SubscriptionState::Due(Duration::ZERO),
        };
        self.catch_up_to = None;
        self.runs.values_mut().for_each(RunText::forget_end);
        self.retry = RetrySchedule::default();
        for input in &mut self.inputs {
            input.sent = false;
            input.retry = RetrySchedule::default();
        }
        // A cancellation without a run id might hit the next turn if repeated, so it is dropped once sent.
        if !planted(Planted::SdkCancelRepeated) {
            self.requests.retain(|ask| !(ask.sent && ask.kind == SessionRequestKind::Cancel { run: None }));
        }
        for ask in &mut self.requests {
            ask.sent = false;
            ask.retry = RetrySchedule::default();
        }
    }

    /// Returns whether the subscription belongs in `hello.resume`.
    pub(crate) fn wants_resume(&self) -> bool {
        matches!(self.subscription, SubscriptionState::Due(_)) && !self.is_opening()
    }

    /// Returns the body of a `subscribe` message.
    pub(crate) fn subscribe_body(&self, request_id: &str) -> Value {
        let mut body = json!({ "type": "subscribe", "ts": 0, "request_id": request_id, "session_id": self.id });
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
        let texts = self.runs.iter().filter(|(_, run)| run.attempt > 0);
        let runs: Map<String, Value> =
            texts.map(|(id, run)| (id.clone(), json!({ "attempt": run.attempt, "offset": run.text.len() }))).collect();
        if !runs.is_empty() {
            body["runs"] = runs.into();
        }
        if !self.types.is_empty() {
            body["types"] = self.types.clone().into();
        }
        body
    }

    /// Sends the messages that are due.
    pub(crate) fn send_due(&mut self, fx: &mut Outbound) {
        if self.subscription == SubscriptionState::SubscribeByInput && self.inputs.is_empty() {
            self.subscription = SubscriptionState::Due(fx.now);
        }
        if let SubscriptionState::Due(at) = self.subscription
            && at <= fx.now
            && !self.is_opening()
        {
            let request_id = fx.request_id();
            fx.send(self.subscribe_body(&request_id).to_string());
            self.subscription = SubscriptionState::Requested(request_id);
        }
        let attached = matches!(
            self.subscription,
            SubscriptionState::Subscribed | SubscriptionState::Unsubscribed | SubscriptionState::SubscribeByInput
        );
        if attached && !self.is_opening() {
            self.send_due_inputs(fx);
        }
        let all_said = self.inputs.iter().all(|input| input.sent);
        for ask in &mut self.requests {
            let held = ask.kind == SessionRequestKind::Close && !all_said;
            if !ask.sent && !held && ask.retry.is_due(fx.now) {
                ask.sent = true;
                fx.send(ask.to_wire(&self.id));
            }
        }
    }

    /// New inputs go one at a time, so that a later input never overtakes a refused one; inputs that the gateway has
    /// accepted go together.
    fn send_due_inputs(&mut self, fx: &mut Outbound) {
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

    /// Returns the time of the next call of [`SessionTracker::send_due`].
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let due = match self.subscription {
            SubscriptionState::Due(at) if !self.is_opening() => Some(at),
            SubscriptionState::Due(_)
            | SubscriptionState::Unsubscribed
            | SubscriptionState::SubscribeByInput
            | SubscriptionState::Requested(_)
            | SubscriptionState::Subscribed => None,
        };
        let attached = matches!(
            self.subscription,
            SubscriptionState::Subscribed | SubscriptionState::Unsubscribed | SubscriptionState::SubscribeByInput
        );
        // Only the first unaccepted input can be sent next.
        let input = self.inputs.iter().find(|input| !input.sent || input.run.is_none());
        let input = input.filter(|input| !input.sent && attached && !self.is_opening());
        let all_said = self.inputs.iter().all(|input| input.sent);
        let asks = self.requests.iter().filter(|ask| !ask.sent && (all_said || ask.kind != SessionRequestKind::Close));
        asks.map(|ask| ask.retry.due).chain(input.map(|input| input.retry.due)).chain(due).min()
    }

    pub(crate) fn is_opening(&self) -> bool {
        self.requests.iter().any(|ask| matches!(ask.kind, SessionRequestKind::Open(_)))
    }
}

/// Returns whether the text is a session id, `[A-Za-z0-9_-]{1,64}`. An invalid id would invalidate a whole `hello`.
pub(crate) fn is_session_id(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// Returns whether the text is a message id: 1 to 256 bytes of printable text.
fn is_message_id(text: &str) -> bool {
    (1..=256).contains(&text.len()) && !text.chars().any(char::is_control)
}
