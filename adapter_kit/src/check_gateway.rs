//! The gateway's side of the kit: accepts adapters on a free port, answers as the checks have planned, and records every
//! message. It takes no decisions of a gateway and keeps files only; each message is parsed as a node parses it.
mod listener;

use crate::check_files::{CheckFiles, FileOwner, PrepareAnswer};
use crate::limits::RECORDS_MAX;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use turnway_core::limits::{HELLO_BYTES_MAX, MESSAGE_BYTES_MAX};
use turnway_core::rng::Rng;
use turnway_wire::channel::hello::ConnectionRole;
use turnway_wire::channel::json::parse::{ClientMessage, parse};

const PROTOCOL: &str = "turnway.v1";
const NODE_ID: &str = "00000000000000000000000000000001";

/// A listening gateway. It stops with this value.
#[derive(Debug)]
pub(crate) struct CheckGateway {
    /// Address for adapters.
    pub(crate) url: String,
    state: Arc<SharedGateway>,
    accepting: AbortHandle,
}

#[derive(Debug)]
struct SharedGateway {
    state: Mutex<GatewayState>,
    /// Changes whenever the state may have changed.
    changed: watch::Sender<u64>,
}

/// The connections and messages so far, and the planned answers.
#[derive(Debug)]
pub(crate) struct GatewayState {
    pub(crate) connections: Vec<ConnectionRecord>,
    /// Times at which connections were refused.
    pub(crate) refused: Vec<Instant>,
    pub(crate) records: Vec<ExchangedMessage>,
    /// Messages that the protocol does not allow, with the reason.
    pub(crate) violations: Vec<String>,
    /// Number of further connections that are closed at once.
    pub(crate) refusals_left: usize,
    /// True while the account's lease is somebody else's.
    pub(crate) is_standby: bool,
    /// The answers to the next inbound events, by conversation.
    plans: BTreeMap<String, VecDeque<InboundPlan>>,
    /// Answers that wait for `release`, with the connection that they are for.
    held: Vec<(usize, Value)>,
    /// Accepted events: conversation, kind and message id.
    accepted: BTreeSet<(String, String, String)>,
    /// Chooses the answers that nothing is planned for, in a chaos script.
    chaos: Option<Rng>,
    /// The files of the conversations' sessions.
    pub(crate) files: CheckFiles,
}

/// A connection of the adapter.
#[derive(Debug)]
pub(crate) struct ConnectionRecord {
    pub(crate) opened: Instant,
    pub(crate) closed: Option<Instant>,
    /// The offered subprotocols.
    pub(crate) protocols: Option<String>,
    /// The bearer token of the handshake.
    pub(crate) bearer: Option<String>,
    pub(crate) hello: Option<Value>,
    outgoing: mpsc::Sender<Outgoing>,
}

/// A recorded message.
#[derive(Clone, Debug)]
pub(crate) struct ExchangedMessage {
    pub(crate) at: Instant,
    pub(crate) is_from_adapter: bool,
    pub(crate) message: Value,
}

/// The way in which an inbound event is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InboundPlan {
    Accept,
    /// Not answered; the connection stays.
    Ignore,
    /// Not answered, and the connection is cut.
    Cut,
    /// Answered by `release`.
    Hold,
    /// Answered with a retryable error, which names this wait.
    Retry(u64),
    /// Answered with an error that is not retryable.
    Refuse,
}

#[derive(Debug)]
enum Outgoing {
    Text(Value),
    Cut,
}

/// Returns the time in Unix milliseconds.
pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

// === impl CheckGateway ===

impl CheckGateway {
    /// Listens on a free port of this machine.
    pub(crate) async fn listen() -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let url = format!("ws://{}/v1/connect", listener.local_addr()?);
        let state = Mutex::new(GatewayState::new());
        let state = Arc::new(SharedGateway { state, changed: watch::Sender::new(0) });
        let accepting = tokio::spawn(listener::accept(listener, Arc::clone(&state))).abort_handle();
        Ok(Self { url, state, accepting })
    }

    /// Returns the state. Must not be held across an await.
    pub(crate) fn state(&self) -> MutexGuard<'_, GatewayState> {
        self.state.lock()
    }

    /// Waits until a condition gives a value; returns `None` if the time ends before.
    pub(crate) async fn wait<T>(
        &self,
        longest: Duration,
        mut find: impl FnMut(&GatewayState) -> Option<T>,
    ) -> Option<T> {
        let mut changes = self.state.changed.subscribe();
        let found = tokio::time::timeout(longest, async {
            loop {
                if let Some(found) = find(&self.state()) {
                    return found;
                }
                // The sender lives as long as this gateway.
                let _ = changes.changed().await;
            }
        });
        found.await.ok()
    }

    /// Sends a message on the present connection; returns false if there is none.
    pub(crate) fn send(&self, message: Value) -> bool {
        let mut state = self.state();
        let Some(connection) = state.present() else { return false };
        state.send(connection, message);
        true
    }

    /// Takes the lease away from the adapter, or gives it back.
    pub(crate) fn set_standby(&self, is_standby: bool) {
        let mut state = self.state();
        state.is_standby = is_standby;
        let message = state.lease_message();
        if let Some(connection) = state.present() {
            state.send(connection, message);
        }
    }

    /// Cuts every connection, without a closing handshake.
    pub(crate) fn cut(&self) {
        let state = self.state();
        for connection in state.connections.iter().filter(|connection| connection.closed.is_none()) {
            // A full queue belongs to a connection whose writer is stuck; the adapter is killed with the check then.
            let _ = connection.outgoing.try_send(Outgoing::Cut);
        }
    }

    /// Sends the answers that were held, the last one first.
    pub(crate) fn release_in_reverse(&self) {
        let mut state = self.state();
        let held: Vec<(usize, Value)> = state.held.drain(..).rev().collect();
        for (connection, answer) in held {
            state.send(connection, answer);
        }
    }

    /// Has the answers without a plan chosen at random from now on, or accepted again.
    pub(crate) fn set_chaos(&self, rng: Option<Rng>) {
        self.state().chaos = rng;
    }
}

impl Drop for CheckGateway {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

// === impl SharedGateway ===

impl SharedGateway {
    fn lock(&self) -> MutexGuard<'_, GatewayState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut GatewayState)) {
        change(&mut self.lock());
        self.changed.send_modify(|version| *version += 1);
    }
}

// === impl GatewayState ===

impl GatewayState {
    fn new() -> Self {
        Self {
            connections: Vec::new(),
            refused: Vec::new(),
            records: Vec::new(),
            violations: Vec::new(),
            refusals_left: 0,
            is_standby: false,
            plans: BTreeMap::new(),
            held: Vec::new(),
            accepted: BTreeSet::new(),
            chaos: None,
            files: CheckFiles::default(),
        }
    }

    /// Returns the index of the open connection that has said `hello`, the newest of several.
    pub(crate) fn present(&self) -> Option<usize> {
        let is_open = |connection: &ConnectionRecord| connection.closed.is_none() && connection.hello.is_some();
        self.connections.iter().rposition(is_open)
    }

    /// Returns the newest `hello`.
    pub(crate) fn hello(&self) -> Option<&Value> {
        self.connections.iter().rev().find_map(|connection| connection.hello.as_ref())
    }

    /// Plans the answers to the next inbound events of a conversation.
    pub(crate) fn plan(&mut self, conversation: &str, answers: impl IntoIterator<Item = InboundPlan>) {
        self.plans.entry(conversation.to_owned()).or_default().extend(answers);
    }

    /// Returns the inbound events of a conversation, in order of arrival.
    pub(crate) fn inbound(&self, conversation: &str) -> Vec<&ExchangedMessage> {
        let of = |record: &&ExchangedMessage| {
            record.is_from_adapter
                && record.message["type"] == "inbound"
                && record.message["conversation"]["conversation_id"] == conversation
        };
        self.records.iter().filter(of).collect()
    }

    /// Returns the reports about a part, in order of arrival.
    pub(crate) fn reports(&self, delivery_id: &str, part: u64) -> Vec<&ExchangedMessage> {
        let of = |record: &&ExchangedMessage| {
            let message = &record.message;
            record.is_from_adapter
                && message["delivery_id"] == delivery_id
                && (message["type"] == "conversation_created" || message["part"] == part)
        };
        self.records.iter().filter(of).collect()
    }

    fn lease_message(&self) -> Value {
        let state = if self.is_standby { "standby" } else { "active" };
        json!({ "type": "adapter_state", "state": state, "holder_node_id": NODE_ID, "since": now_ms() })
    }

    fn send(&mut self, connection: usize, mut message: Value) {
        message["ts"] = now_ms().into();
        self.record(false, message.clone());
        let sent = self.connections.get(connection).map(|to| to.outgoing.try_send(Outgoing::Text(message)));
        if let Some(Err(mpsc::error::TrySendError::Full(_))) = sent {
            self.violations.push("the adapter does not read its connection".to_owned());
        }
    }

    fn record(&mut self, is_from_adapter: bool, message: Value) {
        if self.records.len() < RECORDS_MAX {
            self.records.push(ExchangedMessage { at: Instant::now(), is_from_adapter, message });
        } else if self.violations.last().is_none_or(|last| !last.starts_with("more than")) {
            self.violations.push(format!("more than {RECORDS_MAX} messages"));
        }
    }

    fn open(&mut self, protocols: Option<String>, bearer: Option<String>, outgoing: mpsc::Sender<Outgoing>) -> usize {
        let opened = Instant::now();
        self.connections.push(ConnectionRecord { opened, closed: None, protocols, bearer, hello: None, outgoing });
        self.connections.len() - 1
    }

    /// Handles a text of the adapter; returns false if the connection ends.
    fn receive(&mut self, connection: usize, text: &str) -> bool {
        let message: Value = serde_json::from_str(text).unwrap_or(Value::Null);
        self.record(true, message.clone());
        let is_first = self.connections[connection].hello.is_none();
        let bytes_max = if is_first { HELLO_BYTES_MAX } else { MESSAGE_BYTES_MAX };
        if text.len() > bytes_max {
            self.violations.push(format!("a message of {} bytes, at most {bytes_max}", text.len()));
            return false;
        }
        match parse(text) {
            Err(why) => {
                self.refuse(connection, &message, &why.reason.to_string());
                return !is_first;
            }
            Ok(ClientMessage::Hello { hello, .. }) if is_first => {
                if hello.role != ConnectionRole::Adapter {
                    self.violations.push("hello without role: adapter".to_owned());
                    return false;
                }
                self.welcome(connection, message);
            }
            Ok(_) if is_first => {
                self.violations.push("the first message is no hello".to_owned());
                return false;
            }
            Ok(ClientMessage::Ping { .. }) => self.answer(connection, &message, json!({ "type": "pong" })),
            Ok(
                ClientMessage::Hello { .. }
                | ClientMessage::Command(_)
                | ClientMessage::Refresh { .. }
                | ClientMessage::Unsupported { .. },
            ) => return self.handle(connection, &message),
        }
        true
    }

    fn handle(&mut self, connection: usize, message: &Value) -> bool {
        match message["type"].as_str() {
            Some("inbound") => return self.handle_inbound(connection, message),
            Some("prepare_files") => self.handle_prepare(connection, message),
            Some("delivered" | "conversation_created") => {}
            Some("capabilities") => self.answer(connection, message, json!({ "type": "capabilities_set" })),
            Some(_) | None => self.refuse(connection, message, "the kit does not serve this type"),
        }
        true
    }

    /// Answers with the session that the conversation leads to, and a token to upload its files with.
    fn handle_prepare(&mut self, connection: usize, message: &Value) {
        let conversation = message["conversation"]["conversation_id"].as_str().unwrap_or_default();
        let answer = match self.files.prepare(conversation, now_ms()) {
            PrepareAnswer::Prepared { session, token, expires_ts } => {
                json!({ "type": "files_prepared", "session_id": session, "file_token": token, "expires_ts": expires_ts })
            }
            PrepareAnswer::Retry(wait) => {
                let mut answer = planned_error("store_unavailable", true);
                answer["retry_after_ms"] = wait.into();
                answer
            }
        };
        self.answer(connection, message, answer);
    }

    /// Refuses an event whose files are not in the session that its conversation leads to; returns whether it did.
    fn refuses_files(&mut self, connection: usize, message: &Value, conversation: &str) -> bool {
        let mut is_earlier = false;
        for path in file_paths(&message["message"]["content"]) {
            match self.files.owner(conversation, &path) {
                FileOwner::Present => {}
                FileOwner::Earlier => is_earlier = true,
                FileOwner::Nobody => {
                    self.violations.push(format!("`inbound` names a file that the session does not have: {path}"));
                }
            }
        }
        if is_earlier {
            self.answer(connection, message, planned_error("busy", true));
        }
        is_earlier
    }

    fn handle_inbound(&mut self, connection: usize, message: &Value) -> bool {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let conversation = text(&message["conversation"]["conversation_id"]);
        if self.refuses_files(connection, message, &conversation) {
            return true;
        }
        let kind = message["event"].as_str().unwrap_or("message").to_owned();
        let key = (conversation.clone(), kind, text(&message["message"]["message_id"]));
        let planned = self.plans.get_mut(&conversation).and_then(VecDeque::pop_front);
        let plan = planned.or_else(|| self.chaos.as_mut().map(random_plan)).unwrap_or(InboundPlan::Accept);
        match plan {
            InboundPlan::Ignore => {}
            InboundPlan::Cut => return false,
            InboundPlan::Retry(wait) => {
                let mut answer = planned_error("store_unavailable", true);
                answer["retry_after_ms"] = wait.into();
                self.answer(connection, message, answer);
            }
            InboundPlan::Refuse => self.answer(connection, message, planned_error("not_found", false)),
            InboundPlan::Accept | InboundPlan::Hold => {
                let session = self.files.session_of(&conversation);
                let mut answer = json!({ "type": "inbound_accepted", "disposition": "run",
                    "session_id": session, "duplicate": !self.accepted.insert(key) });
                if plan == InboundPlan::Hold {
                    answer["request_id"] = message["request_id"].clone();
                    self.held.push((connection, answer));
                } else {
                    self.answer(connection, message, answer);
                }
            }
        }
        true
    }

    /// Returns the conversations and message ids of the accepted messages.
    pub(crate) fn accepted_messages(&self) -> BTreeSet<(String, String)> {
        self.accepted.iter().map(|(conversation, _, id)| (conversation.clone(), id.clone())).collect()
    }

    fn welcome(&mut self, connection: usize, hello: Value) {
        self.connections[connection].hello = Some(hello);
        let limits = json!({ "max_message_bytes": MESSAGE_BYTES_MAX, "max_json_depth": 64, "max_json_values": 10_000,
            "max_subscriptions": 64, "max_requests": 64, "max_waiting_inputs": 20 });
        self.send(
            connection,
            json!({ "type": "welcome", "connection_id": connection.to_string(), "node_id": NODE_ID,
                "protocol": PROTOCOL, "heartbeat_ms": 25_000, "resume_window_ms": 0, "limits": limits }),
        );
        let lease = self.lease_message();
        self.send(connection, lease);
    }

    fn answer(&mut self, connection: usize, message: &Value, mut answer: Value) {
        if !message["request_id"].is_null() {
            answer["request_id"] = message["request_id"].clone();
        }
        self.send(connection, answer);
    }

    fn refuse(&mut self, connection: usize, message: &Value, why: &str) {
        self.violations.push(format!("{why}: {}", without_secrets(message)));
        let error = json!({ "type": "error", "code": "invalid_message", "message": why, "retryable": false });
        self.answer(connection, message, error);
    }
}

/// Returns a message as reports show it: without keys and tokens.
pub(crate) fn without_secrets(message: &Value) -> Value {
    let mut message = message.clone();
    if let Value::Object(fields) = &mut message {
        fields.retain(|name, _| name != "api_key" && name != "token" && name != "file_token");
    }
    message
}

fn planned_error(code: &str, retryable: bool) -> Value {
    json!({ "type": "error", "code": code, "message": "a planned fault", "retryable": retryable })
}

/// Returns the paths of files that the parts of a content name.
pub(crate) fn file_paths(content: &Value) -> Vec<String> {
    let parts = content.as_array().into_iter().flatten();
    let urls = parts.filter_map(|part| part["file"]["url"].as_str().or_else(|| part["image_url"]["url"].as_str()));
    urls.map(str::to_owned).collect()
}

/// Chooses an answer for a chaos script: most events are accepted.
fn random_plan(rng: &mut Rng) -> InboundPlan {
    match rng.below(100) {
        0..4 => InboundPlan::Cut,
        4..20 => InboundPlan::Retry(rng.below(300)),
        20.. => InboundPlan::Accept,
    }
}
