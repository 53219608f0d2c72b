//! The machine of a connection by which an agent has dialed in.
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
/// It knows of each attempt that was ordered here until its agent has said the end of it, or it was dropped. Every
/// text it writes is to be flushed within [`limits::STALL_TIMEOUT`], or it closes. After `Close` it is inert.
#[derive(Debug)]
pub struct DialIn {
    outputs: VecDeque<Output>,
    closed: bool,
    capabilities: Capabilities,
    named: bool,
    /// When the agent last gave a sign of life.
    heard: Mono,
    ping_at: Mono,
    /// When the driver is woken next to see whether bytes have come, while an attempt is under way.
    look_at: Mono,
    heartbeat: Duration,
    /// Since when a text waits to be flushed.
    unflushed_since: Option<Mono>,
    /// Facts that it was told of since then.
    unflushed_news: usize,
    /// When it is closed, its token having ended without another.
    expires: Option<Expiry>,
    runs: BTreeMap<RunId, Run>,
    /// Runs that were taken from it: what it still says of them was under way.
    forgiven: VecDeque<RunId>,
    /// What its agent wants to be told of.
    types: Arc<[Pattern]>,
    /// When bad messages arrived, within [`limits::BAD_MESSAGES_WINDOW`].
    bad: Vec<Mono>,
}

/// An attempt that its agent was ordered and has not ended.
#[derive(Debug)]
struct Run {
    tenant: TenantId,
    attempt: u32,
    /// By which ownership it was ordered.
    epoch: Epoch,
    /// It was asked for what follows an event.
    goes_on: bool,
    /// It was told to stop.
    cancelled: bool,
    acked: bool,
    /// Bytes of its messages so far (S-48).
    bytes: usize,
    /// What it was handed on the way: no more than lie in one inbox.
    steers: Vec<MessageId>,
    joiner: Joiner,
}

// === impl DialIn ===

impl DialIn {
    /// A connection whose agent was just admitted: it is welcomed.
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

    /// Whether an order is not older than what it knows of the run: an owner that slept may still give one, and another
    /// has gone on by then. What is older is not to be given to it.
    pub fn takes(&self, invoke: &Invoke) -> bool {
        self.runs.get(&invoke.run_id).is_none_or(|run| run.epoch <= invoke.epoch)
    }

    /// What its agent said that it can do.
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
            Input::Binary => self.close(1003, "binary messages are not spoken here"),
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
            return self.unauthorized(now, &None, "the token has ended");
        }
        if self.stalled_at().is_some_and(|at| at <= now.mono) {
            return self.close(4508, "messages were not read");
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

// === what it is told ===

impl DialIn {
    /// Of which attempt the message is going to tell is not known before its end: all that their agent has begun live.
    fn handle_part(&mut self, now: Now) {
        self.heard = now.mono;
        let begun = self.runs.iter().filter(|(_, run)| run.acked && !run.cancelled);
        let alive = begun.map(|(run_id, run)| Output::Alive { run_id: run_id.clone(), attempt: run.attempt });
        self.outputs.extend(alive);
    }

    fn handle_order(&mut self, now: Now, order: Order) {
        match order {
            Order::Invoke(invoke) => self.invoke(now, &invoke),
            // Of which tenant the run is its own order has told.
            Order::Cancel { tenant: _, run_id, attempt, epoch: _ } => {
                if let Some(run) = self.runs.get_mut(&run_id).filter(|run| run.attempt == attempt)
                    && !std::mem::replace(&mut run.cancelled, true)
                {
                    let tenant = run.tenant.clone();
                    self.write(now, render::cancel(now.store, &tenant, &run_id, attempt));
                }
            }
            Order::Steer(steer) => self.steer(now, &steer),
            // One that can be asked for the rest may be, by another owner and over another connection; if nobody is
            // going to, it is told by `Stop`.
            Order::Drop { run_id, attempt } => self.let_go(now, &run_id, attempt, !self.named),
            // It may be under way in what the agent keeps, whichever connection it was ordered by.
            Order::Stop { tenant, run_id, attempt, .. } => {
                self.write(now, render::cancel(now.store, &tenant, &run_id, attempt));
                self.forgive(run_id);
            }
            Order::News(news) => self.news(now, &news),
            // Of what is not credited too much waits on the way, and nothing more is read.
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

    /// What has become of something that it asked for, or has happened that it wants to know. To one that is too slow for
    /// it some of it is not said; of its actions its next input tells.
    fn news(&mut self, now: Now, news: &News) {
        let runs = self.runs.get(&news.run_id);
        if self.unflushed_news < limits::NEWS_MAX
            && runs.is_some_and(|run| run.attempt == news.attempt && !run.cancelled)
        {
            self.unflushed_news += 1;
            self.write(now, render::news(now.store, news));
        }
    }

    /// Nobody listens to the attempt any more; `told`: its agent is told to stop unless it has been, or has ended it.
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
                let why = "what this connection has shown does not end by itself";
                self.refuse(now, request_id, Refusal::new(Code::InvalidMessage, why));
            }
            Renewal::Denied => {
                self.unauthorized(now, request_id, "expected a good token of the same user");
            }
            Renewal::Late => {
                let refusal = Refusal::new(Code::RateLimited, "too many requests on this connection");
                self.refuse(now, request_id, refusal.retry_after(limits::STORE_RETRY_AFTER));
            }
        }
    }
}

// === what it leans on ===

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
        let why = format!("a message may have {MESSAGE_BYTES_MAX} bytes here");
        self.refuse(now, &None, Refusal::new(Code::TooLarge, why));
        self.close(4413, "message too large");
    }
    /// Ends it. Its runs have lost their connection, which its driver tells them.
    fn close(&mut self, code: u16, reason: &'static str) {
        self.closed = true;
        self.runs.clear();
        self.outputs.push_back(Output::Close { code, reason: Cow::Borrowed(reason) });
    }
}
