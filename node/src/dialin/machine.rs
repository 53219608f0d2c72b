//! The state machine of the connection of an agent that has dialed in.
use super::{DialInConfig, Input, Output};
use crate::connection::{RefreshOutcome, TokenExpiry};
use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{Epoch, MessageId, RequestId, RunId, TenantId};
use turnway_core::limits::{self, MESSAGE_BYTES_MAX};
use turnway_core::machine::Machine;
use turnway_core::protocol::action::FactDelivery;
use turnway_core::protocol::agent::{Invoke, Order};
use turnway_core::protocol::pattern::Pattern;
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::protocol::steer::Steer;
use turnway_core::time::{Deadline, Mono, Now};
use turnway_wire::agent::render;
use turnway_wire::agent::surrogates::SurrogateJoiner;
use turnway_wire::channel::hello::DialInCapabilities;
use turnway_wire::channel::json::render as shown;
use turnway_wire::channel::notification::Notification;

mod inbound;

/// One connection of one agent.
///
/// Keeps each attempt that was ordered here until its agent ends it or the attempt is dropped. Every written text
/// must be flushed within [`limits::STALL_TIMEOUT`], or the connection closes. After `Close` the connection ignores
/// every input.
#[derive(Debug)]
pub struct DialIn {
    outputs: VecDeque<Output>,
    closed: bool,
    capabilities: DialInCapabilities,
    has_event_ids: bool,
    /// Time of the agent's last activity.
    last_activity: Mono,
    ping_at: Mono,
    /// Time of the driver's next wake-up to check for received bytes while an attempt runs.
    next_check: Mono,
    heartbeat: Duration,
    /// Time since which a text waits to be flushed.
    unflushed_since: Option<Mono>,
    /// Facts sent to the agent since then.
    unflushed_events: usize,
    /// The deadline of a token that was not refreshed.
    expires: Option<TokenExpiry>,
    runs: BTreeMap<RunId, DialInAttempt>,
    /// Runs that were dropped recently: the agent's late messages about them are ignored.
    recently_dropped: VecDeque<RunId>,
    /// Types of facts that the agent subscribes to.
    subscribed_types: Arc<[Pattern]>,
    /// Times of malformed messages within [`limits::BAD_MESSAGES_WINDOW`].
    malformed_times: Vec<Mono>,
}

/// An attempt that was ordered and has not ended.
#[derive(Debug)]
struct DialInAttempt {
    tenant: TenantId,
    attempt: u32,
    /// The ownership epoch of the order.
    epoch: Epoch,
    /// The attempt resumes after an earlier event.
    is_resumed: bool,
    /// A cancel was sent.
    cancelled: bool,
    acked: bool,
    /// Bytes of the agent's messages so far (S-48).
    bytes: usize,
    /// Message ids of steered inputs; at most as many as fit into one inbox.
    steers: Vec<MessageId>,
    joiner: SurrogateJoiner,
}

// === impl DialIn ===

impl DialIn {
    /// Creates the connection of an agent that was just authenticated, and sends `welcome`.
    pub fn new(now: Now, config: DialInConfig) -> Self {
        let permille = config.heartbeat_permille.clamp(500, 2000);
        let heartbeat = limits::HEARTBEAT * permille / 1000;
        let mut this = Self {
            outputs: VecDeque::new(),
            closed: false,
            capabilities: config.capabilities,
            has_event_ids: config.has_event_ids,
            last_activity: now.mono,
            ping_at: now.mono + heartbeat,
            next_check: now.mono + limits::DIALIN_SILENCE_CHECK,
            heartbeat,
            unflushed_since: None,
            unflushed_events: 0,
            expires: config.expires.map(|ends| TokenExpiry::new(now, ends)),
            runs: BTreeMap::new(),
            recently_dropped: VecDeque::new(),
            subscribed_types: Arc::default(),
            malformed_times: Vec::new(),
        };
        let id = &config.connection_id;
        this.write(now, shown::welcome(now.store, config.node, id, heartbeat, 0, config.expires));
        this
    }

    /// Returns whether an order is not older than the known attempt of the run. A previous owner that was suspended
    /// may still send an order after the next owner has continued; such an order must not be passed on.
    pub fn accepts(&self, invoke: &Invoke) -> bool {
        self.runs.get(&invoke.run_id).is_none_or(|run| run.epoch <= invoke.epoch)
    }

    pub fn capabilities(&self) -> DialInCapabilities {
        self.capabilities
    }
}

impl Machine for DialIn {
    type Input = Input;
    type Output = Output;

    fn handle_input(&mut self, now: Now, input: Input) {
        if self.closed {
            return;
        }
        match input {
            Input::Text(text) => self.handle_text(now, &text),
            Input::Binary => self.close(1003, "binary messages are not supported"),
            Input::TooLarge => self.too_large(now),
            Input::SignOfLife => self.last_activity = now.mono,
            Input::PartialMessage => self.handle_part(now),
            Input::Order(order) => self.handle_order(now, *order),
            Input::Draining => {
                let within = limits::GO_AWAY_WITHIN;
                let jitter = limits::GO_AWAY_JITTER;
                let note = Notification::GoAway { reason: "drain", within, jitter };
                let mut texts = Vec::new();
                shown::render(now.store, "", &note, &mut |text| texts.push(text));
                texts.into_iter().for_each(|text| self.write(now, text));
            }
            Input::Refreshed { request_id, renewal } => self.handle_refreshed(now, &request_id, renewal),
            Input::Flushed => (self.unflushed_since, self.unflushed_events) = (None, 0),
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        if self.poll_timeout().is_none_or(|deadline| deadline.at > now.mono) {
            return;
        }
        if self.expires.as_mut().is_some_and(|expiry| expiry.has_expired(now)) {
            return self.unauthorized(now, &None, "the token has expired");
        }
        if self.stall_deadline().is_some_and(|at| at <= now.mono) {
            return self.close(4508, "the agent did not read its messages in time");
        }
        if self.idle_deadline() <= now.mono {
            return self.close(1001, "idle");
        }
        self.next_check = now.mono + limits::DIALIN_SILENCE_CHECK;
        if self.ping_at <= now.mono {
            self.ping_at = now.mono + self.heartbeat;
            self.outputs.push_back(Output::Ping);
        }
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        if self.closed {
            return None;
        }
        let idle = Deadline { at: self.idle_deadline(), label: "idle" };
        let ping = Deadline { at: self.ping_at, label: "ping" };
        let look = (!self.runs.is_empty()).then_some(Deadline { at: self.next_check, label: "look" });
        let stall = self.stall_deadline().map(|at| Deadline { at, label: "stall" });
        let expiry = self.expires.map(|expiry| Deadline { at: expiry.deadline(), label: "expiry" });
        [Some(idle), Some(ping), look, stall, expiry].into_iter().flatten().min()
    }
}

// === orders ===

impl DialIn {
    /// Reports every acknowledged attempt as alive, because the attempt of an incomplete message is not known yet.
    fn handle_part(&mut self, now: Now) {
        self.last_activity = now.mono;
        let begun = self.runs.iter().filter(|(_, run)| run.acked && !run.cancelled);
        let alive = begun.map(|(run_id, run)| Output::AttemptAlive { run_id: run_id.clone(), attempt: run.attempt });
        self.outputs.extend(alive);
    }

    fn handle_order(&mut self, now: Now, order: Order) {
        match order {
            Order::Invoke(invoke) => self.send_invoke(now, &invoke),
            // The tenant is known from the run's own order.
            Order::Cancel { tenant: _, run_id, attempt, epoch: _ } => {
                if let Some(run) = self.runs.get_mut(&run_id).filter(|run| run.attempt == attempt)
                    && !std::mem::replace(&mut run.cancelled, true)
                {
                    let tenant = run.tenant.clone();
                    self.write(now, render::cancel(now.store, &tenant, &run_id, attempt));
                }
            }
            Order::Steer(steer) => self.send_steer(now, &steer),
            // A resumable attempt may be resumed by another owner over another connection, so it is not cancelled;
            // `Stop` cancels it if nobody will resume it.
            Order::Drop { run_id, attempt } => self.drop_attempt(now, &run_id, attempt, !self.has_event_ids),
            // The agent may still run the attempt, whichever connection received its order.
            Order::Stop { tenant, run_id, attempt, .. } => {
                self.write(now, render::cancel(now.store, &tenant, &run_id, attempt));
                self.remember_dropped(run_id);
            }
            Order::News(delivery) => self.send_event(now, &delivery),
            // Backpressure needs no credit here: if too much uncredited text is in flight, the driver stops
            // reading.
            Order::Credit { .. } => {}
        }
    }

    fn send_invoke(&mut self, now: Now, invoke: &Invoke) {
        let run = DialInAttempt {
            tenant: invoke.key.tenant.clone(),
            attempt: invoke.attempt,
            epoch: invoke.epoch,
            is_resumed: invoke.resume.is_some(),
            cancelled: false,
            acked: false,
            bytes: 0,
            steers: Vec::new(),
            joiner: SurrogateJoiner::default(),
        };
        self.recently_dropped.retain(|run_id| *run_id != invoke.run_id);
        self.runs.insert(invoke.run_id.clone(), run);
        self.write(now, render::invoke(now.store, invoke));
    }

    fn send_steer(&mut self, now: Now, steer: &Steer) {
        let Some(run) = self.runs.get_mut(&steer.run_id).filter(|run| run.attempt == steer.attempt) else {
            return;
        };
        if !run.steers.contains(&steer.message_id) {
            run.steers.push(steer.message_id.clone());
        }
        self.write(now, render::steer(now.store, steer));
    }

    /// Sends the result of an action or a subscribed fact. An agent that reads too slowly misses some of them; the
    /// context of its next input contains the state of its actions.
    fn send_event(&mut self, now: Now, delivery: &FactDelivery) {
        let runs = self.runs.get(&delivery.run_id);
        if self.unflushed_events < limits::FACT_DELIVERIES_MAX
            && runs.is_some_and(|run| run.attempt == delivery.attempt && !run.cancelled)
        {
            self.unflushed_events += 1;
            self.write(now, render::event(now.store, delivery));
        }
    }

    /// Drops an attempt without a listener; `is_notified` sends a cancel, unless one was sent or the attempt has ended.
    fn drop_attempt(&mut self, now: Now, run_id: &RunId, attempt: u32, is_notified: bool) {
        if self.runs.get(run_id).is_none_or(|run| run.attempt != attempt) {
            return;
        }
        let Some(run) = self.runs.remove(run_id) else { return };
        if is_notified && !run.cancelled {
            self.write(now, render::cancel(now.store, &run.tenant, run_id, attempt));
        }
        self.remember_dropped(run_id.clone());
    }

    fn remember_dropped(&mut self, run_id: RunId) {
        if self.recently_dropped.contains(&run_id) {
            return;
        }
        if self.recently_dropped.len() >= limits::DIALIN_STOPPED_RUNS_MAX {
            self.recently_dropped.pop_front();
        }
        self.recently_dropped.push_back(run_id);
    }

    fn handle_refreshed(&mut self, now: Now, request_id: &Option<RequestId>, renewal: RefreshOutcome) {
        match renewal {
            RefreshOutcome::Until(expires) => {
                self.expires = Some(TokenExpiry::new(now, expires));
                self.write(now, shown::refreshed(now.store, request_id, expires));
            }
            RefreshOutcome::NotRequired => {
                let why = "this connection's credential does not expire and cannot be refreshed";
                self.refuse(now, request_id, Refusal::new(Code::InvalidMessage, why));
            }
            RefreshOutcome::Denied => {
                self.unauthorized(now, request_id, "expected a valid token of the same user");
            }
            RefreshOutcome::RateLimited => {
                let refusal = Refusal::new(Code::RateLimited, "too many requests on this connection");
                self.refuse(now, request_id, refusal.retry_after(limits::STORE_RETRY_AFTER));
            }
        }
    }
}

// === helpers ===

impl DialIn {
    fn idle_deadline(&self) -> Mono {
        self.last_activity + limits::IDLE_TIMEOUT
    }
    fn stall_deadline(&self) -> Option<Mono> {
        self.unflushed_since.map(|since| since + limits::STALL_TIMEOUT)
    }
    fn write(&mut self, now: Now, text: String) {
        self.unflushed_since.get_or_insert(now.mono);
        self.outputs.push_back(Output::Write(text));
    }
    fn refuse(&mut self, now: Now, request_id: &Option<RequestId>, refusal: Refusal) {
        self.write(now, shown::render_error(now.store, request_id, &refusal));
    }
    fn unauthorized(&mut self, now: Now, request_id: &Option<RequestId>, why: &'static str) {
        self.refuse(now, request_id, Refusal::new(Code::Unauthorized, why));
        self.close(4401, "unauthorized");
    }
    fn too_large(&mut self, now: Now) {
        let why = format!("message exceeds the limit of {MESSAGE_BYTES_MAX} bytes");
        self.refuse(now, &None, Refusal::new(Code::TooLarge, why));
        self.close(4413, "message too large");
    }
    /// Closes the connection; the driver reports the loss to its runs.
    fn close(&mut self, code: u16, reason: &'static str) {
        self.closed = true;
        self.runs.clear();
        self.outputs.push_back(Output::Close { code, reason: Cow::Borrowed(reason) });
    }
}
