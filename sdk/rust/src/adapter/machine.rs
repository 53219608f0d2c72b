//! The adapter as a state machine without sockets, clock, or tasks: it keeps the connection, and hands messages to the
//! parts for orders, signals, events, updates and capabilities. Driven by the driver, and by tests.
mod attempts;
mod declarations;
mod event_queue;
mod feed;
mod plain_requests;
mod signals;
#[cfg(test)]
mod tests;

use crate::adapter::capabilities::ChannelCapabilities;
use crate::adapter::event::PlatformEvent;
use crate::adapter::order::AdapterOrder;
use crate::adapter::output::{AdapterEffects, AdapterOutput, AdapterStatus, Moment, WorkResult};
use crate::adapter::place::AccountPlace;
use crate::backoff::{Backoff, SplitMix};
use crate::error::ClientError;
use crate::frame::IncomingMessage;
use crate::keepalive::{Keepalive, KeepaliveAction};
use crate::limits;
use crate::output::Lost;
use attempts::Attempts;
use declarations::Declarations;
use event_queue::{EventAnswer, EventOrigin, EventQueue};
use feed::UpdateFeed;
use plain_requests::PlainRequests;
use serde_json::{Value, json};
use signals::SignalLanes;
use std::time::Duration;

/// Close codes outside 44xx after which another connection would end in the same way (docs/protocol.md, close codes).
const BROKEN_MESSAGE_CODES: [u16; 3] = [1002, 1003, 1007];

/// The fixed properties of an adapter.
#[derive(Clone)]
pub(crate) struct AdapterSetup {
    /// The `hello` message without capabilities.
    pub(crate) hello: Value,
    pub(crate) account: AccountPlace,
    pub(crate) backoff: Backoff,
    /// Number of gateway addresses, which are tried in turn.
    pub(crate) addresses: usize,
    pub(crate) orders_at_a_time: usize,
    /// True if the platform's updates are read.
    pub(crate) has_feed: bool,
}

// === impl AdapterSetup ===

impl AdapterSetup {
    /// Returns the first message of a connection.
    fn hello(&self, capabilities: &ChannelCapabilities) -> String {
        let mut hello = self.hello.clone();
        hello["capabilities"] = capabilities.to_wire();
        hello.to_string()
    }

    /// Checks capabilities, and that the gateway would accept a `hello` with them.
    pub(crate) fn check(&self, capabilities: &ChannelCapabilities) -> Result<(), ClientError> {
        capabilities.check()?;
        let bytes = self.hello(capabilities).len();
        let max = limits::HELLO_BYTES_MAX;
        if bytes > max { Err(ClientError::TooLarge { bytes, max }) } else { Ok(()) }
    }
}

/// The state machine of an adapter. Times never go back; drain [`AdapterMachine::poll_output`] after every call.
pub(crate) struct AdapterMachine {
    setup: AdapterSetup,
    phase: AdapterPhase,
    /// Number of the latest connection.
    connection: u64,
    next_address: usize,
    failures: u32,
    rng: SplitMix,
    keepalive: Keepalive,
    message_bytes_max: usize,
    /// The last `error` that answers no request: it says why the node closes the connection.
    last_error: Option<ConnectionError>,
    has_lease: bool,
    status: AdapterStatus,
    /// Time until which attempts may end, once the adapter is to stop.
    stopping: Option<Duration>,
    attempts: Attempts,
    signals: SignalLanes,
    events: EventQueue,
    feed: UpdateFeed,
    declarations: Declarations,
    requests: PlainRequests,
    fx: AdapterEffects,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AdapterPhase {
    Waiting { until: Duration },
    Dialing,
    Greeting { until: Duration },
    Ready { since: Duration, leave: Option<Duration> },
    Over,
}

struct ConnectionError {
    reason: String,
    retry_after: Duration,
}

// === impl AdapterMachine ===

impl AdapterMachine {
    /// Creates an adapter that connects at once. The random number also names the adapter's requests.
    pub(crate) fn new(setup: AdapterSetup, capabilities: ChannelCapabilities, random: u64) -> Self {
        let mut fx = AdapterEffects::new(random);
        fx.push(AdapterOutput::Dial { address: 0 });
        Self {
            phase: AdapterPhase::Dialing,
            connection: 0,
            next_address: 1,
            failures: 0,
            rng: SplitMix::from_seed(random),
            keepalive: Keepalive::for_adapter(),
            message_bytes_max: limits::MESSAGE_BYTES_MAX,
            last_error: None,
            has_lease: false,
            status: AdapterStatus::Disconnected,
            stopping: None,
            attempts: Attempts::new(setup.account.clone(), setup.orders_at_a_time),
            signals: SignalLanes::default(),
            events: EventQueue::new(setup.account.clone(), random.rotate_left(16)),
            feed: UpdateFeed::new(random.rotate_left(32)),
            declarations: Declarations::new(setup.account.clone(), capabilities),
            requests: PlainRequests::default(),
            fx,
            setup,
        }
    }

    /// Returns the next output; `None` until the next call.
    pub(crate) fn poll_output(&mut self) -> Option<AdapterOutput> {
        self.fx.pop()
    }

    /// Returns the time at which [`AdapterMachine::handle_timeout`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Duration> {
        let connection = match self.phase {
            AdapterPhase::Over => return None,
            AdapterPhase::Waiting { until } | AdapterPhase::Greeting { until } => Some(until),
            AdapterPhase::Dialing => None,
            AdapterPhase::Ready { leave, .. } => {
                let silence = self.keepalive.deadline(self.awaits_answer());
                leave.into_iter().chain([silence]).min()
            }
        };
        let is_active = self.is_active();
        let parts = [
            connection,
            self.stopping,
            self.attempts.deadline(),
            self.signals.deadline(),
            self.events.deadline(is_active),
            self.feed.deadline(),
            self.declarations.deadline(),
            self.requests.deadline(),
        ];
        parts.into_iter().flatten().min()
    }

    /// Returns whether the adapter has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.phase == AdapterPhase::Over
    }

    // --- handling events ---

    /// Handles an opened connection.
    pub(crate) fn handle_open(&mut self, now: Moment) {
        self.set_now(now);
        self.connection += 1;
        self.keepalive.begin(now.elapsed);
        self.last_error = None;
        self.phase = AdapterPhase::Greeting { until: now.elapsed + limits::WELCOME_TIMEOUT };
        self.declarations.begin();
        let hello = self.setup.hello(self.declarations.of_account());
        self.fx.push(AdapterOutput::Send(hello));
    }

    /// Handles received data of any kind.
    pub(crate) fn handle_bytes(&mut self, now: Moment) {
        self.set_now(now);
        self.keepalive.handle_bytes(now.elapsed);
    }

    /// Handles a text message. Messages outside the protocol are ignored.
    pub(crate) fn handle_text(&mut self, now: Moment, text: &str) {
        self.handle_bytes(now);
        let Some(frame) = IncomingMessage::parse(text) else { return };
        self.keepalive.handle_message(frame.kind() == "pong");
        match (frame.kind(), self.phase) {
            ("welcome", AdapterPhase::Greeting { .. }) => self.handle_welcome(&frame),
            ("error", _) if frame.text("request_id").is_none() => self.handle_error(&frame),
            (_, AdapterPhase::Ready { .. }) => self.handle_message(&frame),
            (_, AdapterPhase::Greeting { .. } | AdapterPhase::Waiting { .. }) => {}
            (_, AdapterPhase::Dialing | AdapterPhase::Over) => {}
        }
        self.proceed();
    }

    /// Handles a connection that was lost or could not be opened.
    pub(crate) fn handle_lost(&mut self, now: Moment, lost: &Lost) {
        self.set_now(now);
        self.end_connection();
        let error = self.last_error.take();
        let reason = error.as_ref().map_or(&lost.reason, |error| &error.reason).clone();
        if lost.is_final() || lost.code.is_some_and(|code| BROKEN_MESSAGE_CODES.contains(&code)) {
            tracing::error!(reason, code = lost.code, "the gateway refuses the adapter");
            return self.end(Some(reason));
        }
        let limited = if lost.code == Some(4429) { limits::BACKOFF_RATE_LIMITED } else { Duration::ZERO };
        let least = error.map_or(limited, |error| error.retry_after.max(limited));
        let wait = self.setup.backoff.delay(self.failures, &mut self.rng) + least;
        tracing::info!(reason, code = lost.code, again_ms = wait.as_millis(), "no connection to the gateway");
        self.failures = self.failures.saturating_add(1);
        self.phase = AdapterPhase::Waiting { until: now.elapsed + wait };
        self.proceed();
    }

    /// Handles the end of work.
    pub(crate) fn handle_finished(&mut self, now: Moment, task: u64, result: WorkResult) {
        self.set_now(now);
        let result = self.attempts.handle_finished(task, result, &mut self.fx);
        let result = result.and_then(|result| self.signals.handle_finished(task, result, &mut self.fx));
        if let Some(result) = result
            && self.feed.handle_finished(task, result, &mut self.fx)
        {
            self.events.withdraw_feed();
        }
        self.proceed();
    }

    /// Handles the passing of time. A call before the deadline has no effect.
    pub(crate) fn handle_timeout(&mut self, now: Moment) {
        self.set_now(now);
        let elapsed = now.elapsed;
        self.attempts.handle_timeout(&mut self.fx);
        self.signals.handle_timeout(&mut self.fx);
        self.events.handle_timeout(&self.fx);
        self.requests.handle_timeout(&mut self.fx);
        match self.phase {
            AdapterPhase::Waiting { until } if until <= elapsed => self.dial(),
            AdapterPhase::Greeting { until } if until <= elapsed => self.hang_up("the gateway sent no welcome in time"),
            AdapterPhase::Ready { leave: Some(leave), .. } if leave <= elapsed => self.leave_node(),
            AdapterPhase::Ready { .. } if self.declarations.deadline().is_some_and(|until| until <= elapsed) => {
                self.hang_up("the gateway does not answer declarations");
            }
            AdapterPhase::Ready { .. }
            | AdapterPhase::Waiting { .. }
            | AdapterPhase::Greeting { .. }
            | AdapterPhase::Dialing
            | AdapterPhase::Over => {}
        }
        self.proceed();
        // After what has been sent just now, because a silence counts sooner while an answer is awaited.
        if matches!(self.phase, AdapterPhase::Ready { .. }) {
            self.handle_silence();
        }
    }

    // --- requests of the author ---

    /// Brings an event; answered by [`AdapterOutput::Settled`] under the returned number.
    pub(crate) fn forward(&mut self, now: Moment, event: &PlatformEvent) -> Result<u64, ClientError> {
        self.set_now(now);
        self.check_open()?;
        event.check()?;
        let id = self.fx.next_id();
        self.events.push(id, event, EventOrigin::Caller, &self.fx);
        self.proceed();
        Ok(id)
    }

    /// Declares other capabilities from now on; answered by [`AdapterOutput::Answered`].
    pub(crate) fn declare(
        &mut self,
        now: Moment,
        conversation: Option<String>,
        capabilities: ChannelCapabilities,
    ) -> Result<u64, ClientError> {
        self.set_now(now);
        self.check_open()?;
        self.setup.check(&capabilities)?;
        if self.declarations.is_full() {
            return Err(ClientError::TooMany { what: "declarations", max: limits::DECLARATIONS_MAX });
        }
        let request = self.fx.next_id();
        if !self.declarations.declare(conversation, capabilities, request, &mut self.fx) {
            self.fx.push(AdapterOutput::Answered { request, answer: Ok(Value::Null) });
        }
        self.proceed();
        Ok(request)
    }

    /// Sends a request of another kind; answered by [`AdapterOutput::Answered`].
    pub(crate) fn request(&mut self, now: Moment, message: Value) -> Result<u64, ClientError> {
        self.set_now(now);
        self.check_open()?;
        let request = self.fx.next_id();
        self.requests.send(request, message, self.message_bytes_max, &mut self.fx)?;
        Ok(request)
    }

    /// Stops: no new work begins, and attempts that run have [`limits::STOP_TIMEOUT`] to end.
    pub(crate) fn stop(&mut self, now: Moment) {
        self.set_now(now);
        if self.stopping.is_none() {
            self.stopping = Some(now.elapsed + limits::STOP_TIMEOUT);
            self.attempts.stop(&mut self.fx);
        }
        self.proceed();
    }

    // --- the connection ---

    fn set_now(&mut self, now: Moment) {
        self.fx.now.elapsed = self.fx.now.elapsed.max(now.elapsed);
        // The wall clock may be set back; then deadlines are later.
        self.fx.now.unix_ms = now.unix_ms;
    }

    fn check_open(&self) -> Result<(), ClientError> {
        if self.is_over() || self.stopping.is_some() { Err(ClientError::Closed) } else { Ok(()) }
    }

    fn handle_welcome(&mut self, frame: &IncomingMessage) {
        self.phase = AdapterPhase::Ready { since: self.fx.now.elapsed, leave: None };
        self.fx.connection = Some(self.connection);
        let limit = frame.get("limits").and_then(|limits| limits.get("max_message_bytes")?.as_u64());
        if let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()) {
            self.message_bytes_max = limit;
        }
        self.attempts.handle_connected(&mut self.fx);
        self.declarations.send_due(&mut self.fx);
    }

    fn handle_error(&mut self, frame: &IncomingMessage) {
        let code = frame.text("code").unwrap_or_default();
        let message = frame.text("message").unwrap_or_default();
        tracing::warn!(code, message, "an error of the gateway");
        let retry_after = Duration::from_millis(frame.number("retry_after_ms").unwrap_or(0)).min(limits::RETRY_BUDGET);
        self.last_error = Some(ConnectionError { reason: format!("{code}: {message}"), retry_after });
    }

    fn handle_message(&mut self, frame: &IncomingMessage) {
        match frame.kind() {
            "adapter_state" => {
                self.has_lease = frame.text("state") == Some("active");
                let is_paused = frame.get("paused").is_some();
                tracing::info!(state = frame.text("state"), is_paused, "the state of the account");
            }
            "go_away" => self.handle_go_away(frame),
            "deliver" | "create_conversation" | "typing" | "delete_message" => match AdapterOrder::parse(frame) {
                Some(AdapterOrder::Reported(order)) => self.attempts.take(order, self.connection, &mut self.fx),
                Some(AdapterOrder::Signal(signal)) => self.signals.take(signal, &mut self.fx),
                None => tracing::warn!(kind = frame.kind(), "an order lacks a field"),
            },
            _ => self.handle_answer(frame),
        }
    }

    fn handle_answer(&mut self, frame: &IncomingMessage) {
        let Some(id) = frame.text("request_id").and_then(|id| self.fx.own_id(id)) else { return };
        if self.requests.handle_answer(id, frame, &mut self.fx) {
            return;
        }
        if self.declarations.has(id) {
            if frame.kind() == "error" {
                tracing::warn!(code = frame.text("code"), message = frame.text("message"), "capabilities were refused");
            }
            let settled = self.declarations.handle_answer(id, &mut self.fx);
            return self.answer_declarations(settled);
        }
        if matches!(frame.kind(), "inbound_accepted" | "error") {
            let answer = self.events.handle_answer(id, frame, &self.fx);
            self.settle(answer);
        }
    }

    fn answer_declarations(&mut self, requests: Vec<u64>) {
        for request in requests {
            self.fx.push(AdapterOutput::Answered { request, answer: Ok(Value::Null) });
        }
    }

    /// Hands the final answer to an event to its origin.
    fn settle(&mut self, answer: impl IntoIterator<Item = EventAnswer>) {
        for (event, origin, settled) in answer {
            match origin {
                EventOrigin::Caller => self.fx.push(AdapterOutput::Settled { event, settled }),
                EventOrigin::Feed => self.feed.handle_settled(event, &mut self.fx),
            }
        }
    }

    /// Handles a draining node: reconnects within the time it names, at a random moment so that adapters do not return
    /// together.
    fn handle_go_away(&mut self, frame: &IncomingMessage) {
        let span = |key| Duration::from_millis(frame.number(key).unwrap_or(0));
        let wait = self.rng.duration_below(span("jitter_ms").min(span("reconnect_within_ms")));
        if let AdapterPhase::Ready { leave, .. } = &mut self.phase
            && leave.is_none()
        {
            *leave = Some(self.fx.now.elapsed + wait);
        }
    }

    fn handle_silence(&mut self) {
        let waits = self.awaits_answer();
        match self.keepalive.take_due_action(self.fx.now.elapsed, waits) {
            KeepaliveAction::Nothing | KeepaliveAction::DialSpare => {}
            KeepaliveAction::Ping => self.fx.send(json!({ "type": "ping", "ts": 0 }).to_string()),
            KeepaliveAction::GiveUp => self.hang_up("the gateway does not answer pings"),
        }
    }

    fn awaits_answer(&self) -> bool {
        self.events.awaits_answer() || !self.requests.is_empty() || !self.declarations.is_complete()
    }

    fn dial(&mut self) {
        self.phase = AdapterPhase::Dialing;
        let address = self.next_address % self.setup.addresses;
        self.next_address = address + 1;
        self.fx.push(AdapterOutput::Dial { address });
    }

    fn leave_node(&mut self) {
        self.fx.push(AdapterOutput::Hangup);
        self.end_connection();
        self.dial();
    }

    fn hang_up(&mut self, reason: &str) {
        self.fx.push(AdapterOutput::Hangup);
        let lost = Lost { code: None, reason: reason.to_owned(), refused: false };
        self.handle_lost(self.fx.now, &lost);
    }

    fn end_connection(&mut self) {
        if let AdapterPhase::Ready { since, .. } = self.phase
            && since + limits::STABLE_AFTER <= self.fx.now.elapsed
        {
            self.failures = 0;
        }
        self.fx.connection = None;
        self.has_lease = false;
        self.events.handle_lost(self.fx.now.elapsed);
        self.requests.handle_lost(&mut self.fx);
        let settled = self.declarations.handle_lost();
        self.answer_declarations(settled);
    }

    fn end(&mut self, refusal: Option<String>) {
        self.phase = AdapterPhase::Over;
        self.feed.set_active(false, &mut self.fx);
        self.show_status(false);
        self.fx.push(AdapterOutput::Ended { refusal });
    }

    // --- progress of the parts ---

    /// Returns whether this adapter, and no other, brings the account's events.
    fn is_active(&self) -> bool {
        let is_ready = matches!(self.phase, AdapterPhase::Ready { .. });
        is_ready && self.has_lease && self.declarations.is_complete() && self.stopping.is_none()
    }

    /// Starts what has become possible: reading, sending, stopping.
    fn proceed(&mut self) {
        if self.is_over() {
            return;
        }
        let is_active = self.is_active();
        self.show_status(is_active);
        if self.setup.has_feed {
            self.feed.set_active(is_active, &mut self.fx);
            if !is_active {
                self.events.withdraw_feed();
            }
            self.feed.proceed(&mut self.fx);
        }
        if is_active {
            self.send_events();
        }
        if let Some(until) = self.stopping
            && (self.attempts.is_idle() || until <= self.fx.now.elapsed)
        {
            self.fx.push(AdapterOutput::Hangup);
            self.end_connection();
            self.end(None);
        }
    }

    fn send_events(&mut self) {
        loop {
            while let Some((id, event)) = self.feed.next_event(&mut self.fx) {
                match event.check() {
                    Ok(()) => self.events.push(id, &event, EventOrigin::Feed, &self.fx),
                    Err(error) => {
                        tracing::warn!(%error, "an event of the platform is left out");
                        self.feed.handle_settled(id, &mut self.fx);
                    }
                }
            }
            let refused = self.events.send_due(self.message_bytes_max, &mut self.fx);
            if refused.is_empty() {
                return;
            }
            // A refused event makes room for another one.
            self.settle(refused);
        }
    }

    fn show_status(&mut self, is_active: bool) {
        let status = match self.phase {
            AdapterPhase::Ready { .. } if is_active => AdapterStatus::Active,
            AdapterPhase::Ready { .. } => AdapterStatus::Standby,
            AdapterPhase::Waiting { .. } | AdapterPhase::Dialing | AdapterPhase::Greeting { .. } => {
                AdapterStatus::Disconnected
            }
            AdapterPhase::Over => AdapterStatus::Ended,
        };
        if self.status != status {
            self.status = status;
            self.fx.push(AdapterOutput::Status(status));
        }
    }
}
