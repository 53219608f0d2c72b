//! The state machine of the connection of an agent that has dialed in.
use super::joiner::Joiner;
use super::{DialInConfig, Input, Output, render};
use crate::channel::hello::Capabilities;
use crate::channel::json::render as shown;
use crate::channel::note::Note;
use crate::link::{Expiry, Renewal};
use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{Epoch, MessageId, RequestId, RunId, TenantId};
use turnway_core::limits::{self, MESSAGE_BYTES_MAX};
use turnway_core::machine::Machine;
use turnway_core::protocol::action::News;
use turnway_core::protocol::agent::{Invoke, Order};
use turnway_core::protocol::pattern::Pattern;
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::protocol::steer::Steer;
use turnway_core::time::{Deadline, Mono, Now};

mod hear;

/// One connection of one agent.
///
/// Keeps each attempt that was ordered here until its agent ends it or the attempt is dropped. Every written text
/// must be flushed within [`limits::STALL_TIMEOUT`], or the connection closes. After `Close` the connection ignores
/// every input.
#[derive(Debug)]
pub struct DialIn {
    outputs: VecDeque<Output>,
    closed: bool,
    capabilities: Capabilities,
    named: bool,
    /// Time of the agent's last activity.
    heard: Mono,
    ping_at: Mono,
    /// Time of the driver's next wake-up to check for received bytes while an attempt runs.
    look_at: Mono,
    heartbeat: Duration,
    /// Time since which a text waits to be flushed.
    unflushed_since: Option<Mono>,
    /// Facts sent to the agent since then.
    unflushed_news: usize,
    /// The deadline of a token that was not refreshed.
    expires: Option<Expiry>,
    runs: BTreeMap<RunId, Run>,
    /// Runs that were dropped recently: the agent's late messages about them are ignored.
    forgiven: VecDeque<RunId>,
    /// Types of facts that the agent subscribes to.
    types: Arc<[Pattern]>,
    /// Times of malformed messages within [`limits::BAD_MESSAGES_WINDOW`].
    bad: Vec<Mono>,
}

/// An attempt that was ordered and has not ended.
#[derive(Debug)]
struct Run {
    tenant: TenantId,
    attempt: u32,
    /// The ownership epoch of the order.
    epoch: Epoch,
    /// The attempt resumes after an earlier event.
    goes_on: bool,
    /// A cancel was sent.
    cancelled: bool,
    acked: bool,
    /// Bytes of the agent's messages so far (S-48).
    bytes: usize,
    /// Message ids of steered inputs; at most as many as fit into one inbox.
    steers: Vec<MessageId>,
    joiner: Joiner,
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
            named: config.named,
            heard: now.mono,
            ping_at: now.mono + heartbeat,
            look_at: now.mono + limits::DIALIN_LOOK,
            heartbeat,
            unflushed_since: None,
            unflushed_news: 0,
            expires: config.expires.map(|ends| Expiry::new(now, ends)),
            runs: BTreeMap::new(),
            forgiven: VecDeque::new(),
            types: Arc::default(),
            bad: Vec::new(),
        };
        let id = &config.connection_id;
        this.write(now, shown::welcome(now.store, config.node, id, heartbeat, 0, config.expires));
        this
    }

    /// Returns whether an order is not older than the known attempt of the run. A previous owner that was suspended
    /// may still send an order after the next owner has continued; such an order must not be passed on.
    pub fn takes(&self, invoke: &Invoke) -> bool {
        self.runs.get(&invoke.run_id).is_none_or(|run| run.epoch <= invoke.epoch)
    }

    pub fn capabilities(&self) -> Capabilities {
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
            Input::Alive => self.heard = now.mono,
            Input::Part => self.handle_part(now),
            Input::Order(order) => self.handle_order(now, *order),
            Input::Leaving => {
                let (within, jitter) = (limits::GO_AWAY_WITHIN, limits::GO_AWAY_JITTER);
                let note = Note::GoAway { reason: "drain", within, jitter };
                let mut texts = Vec::new();
                shown::render(now.store, "", &note, &mut |text| texts.push(text));
                texts.into_iter().for_each(|text| self.write(now, text));
            }
            Input::Refreshed { request_id, renewal } => self.handle_refreshed(now, &request_id, renewal),
            Input::Flushed => (self.unflushed_since, self.unflushed_news) = (None, 0),
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        if self.poll_timeout().is_none_or(|deadline| deadline.at > now.mono) {
            return;
        }
        if self.expires.as_mut().is_some_and(|expiry| expiry.is_over(now)) {
            return self.unauthorized(now, &None, "the token has expired");
        }
        if self.stalled_at().is_some_and(|at| at <= now.mono) {
            return self.close(4508, "the agent did not read its messages in time");
        }
        if self.idle_at() <= now.mono {
            return self.close(1001, "idle");
        }
        self.look_at = now.mono + limits::DIALIN_LOOK;
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
        let idle = Deadline { at: self.idle_at(), why: "idle" };
        let ping = Deadline { at: self.ping_at, why: "ping" };
        let look = (!self.runs.is_empty()).then_some(Deadline { at: self.look_at, why: "look" });
        let stall = self.stalled_at().map(|at| Deadline { at, why: "stall" });
        let expiry = self.expires.map(|expiry| Deadline { at: expiry.at(), why: "expiry" });
        [Some(idle), Some(ping), look, stall, expiry].into_iter().flatten().min()
    }
}

// === orders ===

impl DialIn {
    /// Reports every acknowledged attempt as alive, because the attempt of an incomplete message is not known yet.
    fn handle_part(&mut self, now: Now) {
        self.heard = now.mono;
        let begun = self.runs.iter().filter(|(_, run)| run.acked && !run.cancelled);
        let alive = begun.map(|(run_id, run)| Output::Alive { run_id: run_id.clone(), attempt: run.attempt });
        self.outputs.extend(alive);
    }

    fn handle_order(&mut self, now: Now, order: Order) {
        match order {
            Order::Invoke(invoke) => self.invoke(now, &invoke),
            // The tenant is known from the run's own order.
            Order::Cancel { tenant: _, run_id, attempt, epoch: _ } => {
                if let Some(run) = self.runs.get_mut(&run_id).filter(|run| run.attempt == attempt)
                    && !std::mem::replace(&mut run.cancelled, true)
                {
                    let tenant = run.tenant.clone();
                    self.write(now, render::cancel(now.store, &tenant, &run_id, attempt));
                }
            }
            Order::Steer(steer) => self.steer(now, &steer),
            // A resumable attempt may be resumed by another owner over another connection, so it is not cancelled;
            // `Stop` cancels it if nobody will resume it.
            Order::Drop { run_id, attempt } => self.let_go(now, &run_id, attempt, !self.named),
            // The agent may still run the attempt, whichever connection received its order.
            Order::Stop { tenant, run_id, attempt, .. } => {
                self.write(now, render::cancel(now.store, &tenant, &run_id, attempt));
                self.forgive(run_id);
            }
            Order::News(news) => self.news(now, &news),
            // Backpressure needs no credit here: if too much uncredited text is in flight, the driver stops
            // reading.
            Order::Credit { .. } => {}
        }
    }

    fn invoke(&mut self, now: Now, invoke: &Invoke) {
        let run = Run {
            tenant: invoke.key.tenant.clone(),
            attempt: invoke.attempt,
            epoch: invoke.epoch,
            goes_on: invoke.resume.is_some(),
            cancelled: false,
            acked: false,
            bytes: 0,
            steers: Vec::new(),
            joiner: Joiner::default(),
        };
        self.forgiven.retain(|run_id| *run_id != invoke.run_id);
        self.runs.insert(invoke.run_id.clone(), run);
        self.write(now, render::invoke(now.store, invoke));
    }

    fn steer(&mut self, now: Now, steer: &Steer) {
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
    fn news(&mut self, now: Now, news: &News) {
        let runs = self.runs.get(&news.run_id);
        if self.unflushed_news < limits::NEWS_MAX
            && runs.is_some_and(|run| run.attempt == news.attempt && !run.cancelled)
        {
            self.unflushed_news += 1;
            self.write(now, render::news(now.store, news));
        }
    }

    /// Drops an attempt without a listener; `told` sends a cancel, unless one was sent or the attempt has ended.
    fn let_go(&mut self, now: Now, run_id: &RunId, attempt: u32, told: bool) {
        if self.runs.get(run_id).is_none_or(|run| run.attempt != attempt) {
            return;
        }
        let Some(run) = self.runs.remove(run_id) else { return };
        if told && !run.cancelled {
            self.write(now, render::cancel(now.store, &run.tenant, run_id, attempt));
        }
        self.forgive(run_id.clone());
    }

    fn forgive(&mut self, run_id: RunId) {
        if self.forgiven.contains(&run_id) {
            return;
        }
        if self.forgiven.len() >= limits::DIALIN_FORGIVEN_MAX {
            self.forgiven.pop_front();
        }
        self.forgiven.push_back(run_id);
    }

    fn handle_refreshed(&mut self, now: Now, request_id: &Option<RequestId>, renewal: Renewal) {
        match renewal {
            Renewal::Until(expires) => {
                self.expires = Some(Expiry::new(now, expires));
                self.write(now, shown::refreshed(now.store, request_id, expires));
            }
            Renewal::Needless => {
                let why = "this connection's credential does not expire and cannot be refreshed";
                self.refuse(now, request_id, Refusal::new(Code::InvalidMessage, why));
            }
            Renewal::Denied => {
                self.unauthorized(now, request_id, "expected a valid token of the same user");
            }
            Renewal::Late => {
                let refusal = Refusal::new(Code::RateLimited, "too many requests on this connection");
                self.refuse(now, request_id, refusal.retry_after(limits::STORE_RETRY_AFTER));
            }
        }
    }
}

// === helpers ===

impl DialIn {
    fn idle_at(&self) -> Mono {
        self.heard + limits::IDLE_TIMEOUT
    }
    fn stalled_at(&self) -> Option<Mono> {
        self.unflushed_since.map(|since| since + limits::STALL_TIMEOUT)
    }
    fn write(&mut self, now: Now, text: String) {
        self.unflushed_since.get_or_insert(now.mono);
        self.outputs.push_back(Output::Write(text));
    }
    fn refuse(&mut self, now: Now, request_id: &Option<RequestId>, refusal: Refusal) {
        self.write(now, shown::refused(now.store, request_id, &refusal));
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
