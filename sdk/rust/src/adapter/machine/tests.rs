//! Scripted tests of the adapter: inputs and expected outputs, without a socket and without a clock.
use super::*;
use crate::adapter::capabilities::LengthUnit;
use crate::adapter::event::{Disposition, PlatformUpdate};
use crate::adapter::order::{ReportedOrder, SignalOrder};
use crate::adapter::outcome::{PlatformFailure, SentPart};
use crate::adapter::output::AdapterWork;
use std::collections::BTreeMap;

mod connection;
mod declared;
mod events;
mod orders;
mod shown;
mod updates;

/// Unix time at the start of each test, in milliseconds.
const START_MS: u64 = 1_764_000_000_000;

/// An adapter whose outputs are converted to short lines.
struct Rig {
    machine: AdapterMachine,
    now: Duration,
    /// Messages sent, all of them.
    sent: Vec<Value>,
    /// Work that was started, by the line that stands for it.
    tasks: BTreeMap<String, u64>,
    /// Answers to calls of `forward`, by number.
    settled: BTreeMap<u64, Disposition>,
    answered: BTreeMap<u64, Result<Value, ClientError>>,
}

impl Rig {
    /// Creates an active adapter without a feed.
    fn new() -> Self {
        let mut rig = Self::with(false);
        rig.activate();
        rig
    }

    /// Creates an active adapter with a feed.
    fn with_feed() -> Self {
        let mut rig = Self::with(true);
        rig.activate();
        rig
    }

    fn with(has_feed: bool) -> Self {
        let account = AccountPlace { channel: "rooms".to_owned(), account_id: "main".to_owned() };
        let setup = AdapterSetup {
            hello: json!({ "type": "hello", "role": "adapter" }),
            account,
            backoff: Backoff::default(),
            addresses: 2,
            orders_at_a_time: 2,
            has_feed,
        };
        let capabilities = ChannelCapabilities::default().text(2000, LengthUnit::Utf16).key();
        let machine = AdapterMachine::new(setup, capabilities, 7);
        let mut rig = Self {
            machine,
            now: Duration::from_secs(1),
            sent: Vec::new(),
            tasks: BTreeMap::new(),
            settled: BTreeMap::new(),
            answered: BTreeMap::new(),
        };
        rig.drain();
        rig
    }

    fn moment(&self) -> Moment {
        Moment { elapsed: self.now, unix_ms: START_MS + u64::try_from(self.now.as_millis()).expect("short") }
    }

    fn drain(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(output) = self.machine.poll_output() {
            lines.push(match output {
                AdapterOutput::Dial { address } => format!("dial {address}"),
                AdapterOutput::Send(text) => {
                    let message: Value = serde_json::from_str(&text).expect("we send JSON");
                    let line = format!("> {}", wire(&message));
                    self.sent.push(message);
                    line
                }
                AdapterOutput::Hangup => "hangup".to_owned(),
                AdapterOutput::Start { task, work } => {
                    let line = started(&work);
                    self.tasks.insert(line.clone(), task);
                    line
                }
                AdapterOutput::Abandon { task } => {
                    let of_task = |(line, other): (&String, &u64)| (*other == task).then(|| line.clone());
                    let line = self.tasks.iter().find_map(of_task).expect("work that was started");
                    self.tasks.remove(&line);
                    format!("abandon {line}")
                }
                AdapterOutput::Settled { event, settled } => {
                    self.settled.insert(event, settled.disposition().clone());
                    format!("settled {event}")
                }
                AdapterOutput::Answered { request, answer } => {
                    self.answered.insert(request, answer);
                    format!("answered {request}")
                }
                AdapterOutput::Status(status) => format!("{status:?}").to_lowercase(),
                AdapterOutput::Ended { refusal } => format!("ended {}", refusal.unwrap_or_default()).trim().to_owned(),
            });
        }
        lines
    }

    /// Opens a connection and receives `welcome`.
    fn connect(&mut self) -> Vec<String> {
        self.machine.handle_open(self.moment());
        let mut lines = self.drain();
        lines.extend(self.hear(json!({ "type": "welcome" })));
        lines
    }

    /// Connects and gets the lease.
    fn activate(&mut self) -> Vec<String> {
        let mut lines = self.connect();
        lines.extend(self.lease());
        lines
    }

    fn lose(&mut self) -> Vec<String> {
        self.lose_with(None)
    }

    fn lose_with(&mut self, code: Option<u16>) -> Vec<String> {
        self.machine.handle_lost(self.moment(), &Lost { code, reason: "cut".to_owned(), refused: false });
        self.drain()
    }

    /// Loses the connection, and opens the next one as soon as it is dialled.
    fn reconnect(&mut self) -> Vec<String> {
        let mut lines = self.lose();
        while !lines.iter().any(|line| line.starts_with("dial")) {
            lines.extend(self.wait(limits::BACKOFF_BASE));
        }
        lines.extend(self.activate());
        lines
    }

    /// Advances time from deadline to deadline.
    fn wait(&mut self, time: Duration) -> Vec<String> {
        let end = self.now + time;
        let mut lines = Vec::new();
        while let Some(at) = self.machine.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.machine.handle_timeout(self.moment());
            lines.extend(self.drain());
            let next = self.machine.poll_timeout();
            assert!(next.is_none_or(|next| next > self.now), "no progress: {next:?} at {:?}", self.now);
        }
        self.now = end;
        lines
    }

    /// Advances time while the gateway answers pings; returns what happens besides.
    fn wait_alive(&mut self, time: Duration) -> Vec<String> {
        let end = self.now + time;
        let mut lines = Vec::new();
        while self.now < end {
            lines.extend(self.wait((end - self.now).min(Duration::from_secs(1))));
            lines.extend(self.hear(json!({ "type": "pong" })));
        }
        lines.retain(|line| line != "> ping");
        lines
    }

    fn hear(&mut self, message: Value) -> Vec<String> {
        self.machine.handle_text(self.moment(), &message.to_string());
        self.drain()
    }

    /// Gives the lease.
    fn lease(&mut self) -> Vec<String> {
        self.hear(json!({ "type": "adapter_state", "state": "active" }))
    }

    /// Takes the lease away.
    fn stand_by(&mut self) -> Vec<String> {
        self.hear(json!({ "type": "adapter_state", "state": "standby" }))
    }

    /// Answers the last message that this line stands for.
    fn answer(&mut self, kind: &str, answer: Value) -> Vec<String> {
        let sent = self.sent.iter().rev().find(|message| wire(message) == kind).expect("it was sent");
        let request_id = sent["request_id"].clone();
        let mut answer = answer;
        answer["request_id"] = request_id;
        self.hear(answer)
    }

    fn accept(&mut self, event: &str) -> Vec<String> {
        let answer = json!({ "type": "inbound_accepted", "disposition": "run", "duplicate": false });
        self.answer(&format!("inbound {event}"), answer)
    }

    fn refuse(&mut self, event: &str, retryable: bool) -> Vec<String> {
        let answer = json!({ "type": "error", "code": "busy", "message": "no", "retryable": retryable });
        self.answer(&format!("inbound {event}"), answer)
    }

    /// Orders a part with this key.
    fn order(&mut self, key: &str, attempt: u64) -> Vec<String> {
        self.hear(deliver(key, attempt))
    }

    /// Ends work that was started.
    fn finish(&mut self, line: &str, result: WorkResult) -> Vec<String> {
        let task = self.tasks.remove(line).expect("work that was started");
        self.machine.handle_finished(self.moment(), task, result);
        self.drain()
    }

    fn send_part(&mut self, key: &str) -> Vec<String> {
        self.finish(&format!("send {key}"), WorkResult::Sent(Ok(SentPart::new(format!("x-{key}"), "lobby"))))
    }

    fn forward(&mut self, room: &str, id: &str) -> (u64, Vec<String>) {
        let number = self.machine.forward(self.moment(), &event(room, id)).expect("taken");
        (number, self.drain())
    }
}

fn event(room: &str, id: &str) -> PlatformEvent {
    PlatformEvent::message(room, id, "ann", format!("text of {id}"))
}

fn place(room: &str) -> Value {
    json!({ "channel": "rooms", "account_id": "main", "conversation_id": room })
}

/// Returns the order to send a part to the lobby.
fn deliver(key: &str, attempt: u64) -> Value {
    json!({
        "type": "deliver", "delivery_id": format!("d-{key}"), "attempt": attempt, "part": 1, "parts": 1,
        "conversation": place("lobby"), "kind": "final", "text": "hello", "key": key,
        "deadline_ts": START_MS + 3_600_000,
    })
}

/// Returns a message of the adapter as a short line.
fn wire(message: &Value) -> String {
    let text = |key: &str| message[key].as_str().unwrap_or_default().to_owned();
    match text("type").as_str() {
        "inbound" => format!("inbound {}", message["message"]["message_id"].as_str().unwrap_or_default()),
        "delivered" | "conversation_created" => format!("{} {}", text("delivery_id"), text("outcome")),
        "capabilities" => {
            let room = message["conversation"]["conversation_id"].as_str().unwrap_or("account");
            format!("capabilities {room}")
        }
        kind => kind.to_owned(),
    }
}

/// Returns work as a short line.
fn started(work: &AdapterWork) -> String {
    match work {
        AdapterWork::Order(ReportedOrder::Part(part)) => format!("send {}", part.key),
        AdapterWork::Order(ReportedOrder::Change(kind, change)) => {
            format!("{kind:?} {} {}{}", change.target_id, change.text, change.emoji).trim().to_lowercase()
        }
        AdapterWork::Order(ReportedOrder::Conversation(order)) => format!("create {}", order.name),
        AdapterWork::Signal(SignalOrder::Typing { conversation_id, is_on }) => {
            format!("typing {conversation_id} {is_on}")
        }
        AdapterWork::Signal(SignalOrder::Preview(preview)) => format!("preview {} {}", preview.key, preview.text),
        AdapterWork::Signal(SignalOrder::DeletePreview { key, .. }) => format!("delete preview {key}"),
        AdapterWork::ReadOffset => "read offset".to_owned(),
        AdapterWork::SaveOffset(offset) => format!("save {offset}"),
        AdapterWork::ReadUpdates { after } => format!("read after {}", after.as_deref().unwrap_or("nothing")),
    }
}

/// Returns updates with events of these rooms; the message ids are the offsets.
fn updates(of: &[(u64, &str)]) -> WorkResult {
    WorkResult::Updates(Ok(of
        .iter()
        .map(|(at, room)| PlatformUpdate::new(at, event(room, &format!("m{at}"))))
        .collect()))
}
