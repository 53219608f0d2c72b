//! Simulated agents: the orders that they get, and the events that they report, well-behaved or not.
use super::behaviour::{AgentBehaviour, STATES, pieces};
use super::fixtures;
use super::handovers;
use super::resumable;
use super::tasks;
use super::tool_runner;
use super::world::{ScheduledEvent, World};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use turnway_core::id::{Epoch, NodeId, RunId, SessionKey};
use turnway_core::limits;
use turnway_core::private::Private;
use turnway_core::protocol::agent::{
    AgentEvent, AgentFailure, ErrorResponse, Invoke, OnOwnerLoss, Order, StopReason, TextKind,
};
use turnway_core::protocol::steer::SteerOutcome;
use turnway_core::time::Mono;
use turnway_node::switchboard::Input;

/// One attempt as the agent sees it: a request of one node, answered to that node alone.
#[derive(Debug)]
pub(crate) struct Stream {
    node: NodeId,
    key: SessionKey,
    run_id: RunId,
    attempt: u32,
    /// Epoch of the owner that sent the request.
    epoch: Epoch,
    manner: AgentBehaviour,
    /// Events still to be sent, last first.
    rest: Vec<AgentEvent>,
    said: u64,
    /// Text credit in bytes: text up to this offset may be sent.
    limit: u64,
    blocked: bool,
    /// The agent has given a task and waits for its end, for a while.
    pub(super) awaits_task: bool,
    cancelled: bool,
    /// True after a final event; a misbehaving agent may send more.
    over: bool,
}

impl Stream {
    /// Returns the next event, unless the gateway has given no credit for it.
    fn next(&mut self) -> Option<AgentEvent> {
        if self.awaits_task {
            return None;
        }
        if let AgentEvent::Delta { kind: TextKind::Text, text, .. } = self.rest.last()? {
            if self.said + text.0.len() as u64 > self.limit {
                self.blocked = true;
                return None;
            }
            self.said += text.0.len() as u64;
        }
        let event = self.rest.pop()?;
        self.awaits_task = tasks::is_task(&event);
        Some(event)
    }
}

/// Returns the delay of `Retry-After`, if an unreachable agent reports that it is busy.
fn busy_for(n: u64) -> Option<u64> {
    (!n.is_multiple_of(3)).then_some(300 + 500 * (n % 4))
}

/// Returns the behaviour in an attempt: some busy agents accept the next attempt.
fn manner_of(manner: AgentBehaviour, n: u64, attempt: u32) -> AgentBehaviour {
    let has_time = manner == AgentBehaviour::Away && busy_for(n).is_some() && attempt > 1 && n.is_multiple_of(2);
    if has_time { AgentBehaviour::Plain } else { manner }
}

/// Returns the failure of an agent that cannot be reached.
fn away(n: u64) -> AgentFailure {
    let Some(wait) = busy_for(n) else { return AgentFailure::Unavailable("refused".to_owned()) };
    let why = "status 503".to_owned();
    let is_away = true;
    let is_busy = true;
    let body = None;
    AgentFailure::Answered(Box::new(ErrorResponse { why, is_away, is_busy, retry_after_ms: Some(wait), body }))
}

/// Every open stream.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    pub(super) open: BTreeMap<u64, Stream>,
    made: u64,
    /// Attempts that an agent can resume although their requests may have ended.
    known: BTreeSet<(RunId, u32)>,
    /// Earliest time of the next attempt at a busy agent, by the requesting node's clock.
    busy: BTreeMap<(NodeId, RunId, Epoch, u32), Mono>,
    /// Outcome of each steering message, by input, run and attempt.
    pub(super) steer_outcomes: BTreeMap<(RunId, RunId, u32), SteerOutcome>,
}

impl Streams {
    /// Closes the streams of a process that has ended.
    pub(crate) fn cut_off(&mut self, node_id: NodeId) {
        self.open.retain(|_, stream| stream.node != node_id);
    }
    /// Returns whether an attempt has events left and was not cancelled.
    pub(super) fn speaks(&self, node: NodeId, run_id: &RunId, attempt: u32) -> bool {
        let stream = self.find(node, run_id, attempt).and_then(|id| self.open.get(&id));
        stream.is_some_and(|stream| !stream.rest.is_empty() && !stream.cancelled && !stream.over)
    }
    /// Returns any stream that is still open.
    pub(crate) fn left(&self) -> Option<&Stream> {
        self.open.values().next()
    }
    pub(super) fn find(&self, node: NodeId, run_id: &RunId, attempt: u32) -> Option<u64> {
        let same = |s: &Stream| s.node == node && s.run_id == *run_id && s.attempt == attempt;
        // The newest one: after the store lost data, an attempt may be ordered again under another ownership.
        self.open.iter().rfind(|(_, stream)| same(stream)).map(|(id, _)| *id)
    }
}

/// Returns all events of an attempt, first to last.
fn all_events(n: u64, attempt: u32, manner: AgentBehaviour) -> Vec<AgentEvent> {
    let delta = |text: String| AgentEvent::Delta { kind: TextKind::Text, text: Private(text), id: None };
    let done = |stop| AgentEvent::Done { stop, usage: None };
    let mut says: Vec<AgentEvent> = pieces(n, attempt, manner).into_iter().map(delta).collect();
    match manner {
        AgentBehaviour::Plain
        | AgentBehaviour::Slow
        | AgentBehaviour::Flood
        | AgentBehaviour::TooMuch
        | AgentBehaviour::Stubborn
        | AgentBehaviour::Late => {
            says.insert(0, AgentEvent::Acked);
            says.push(done(StopReason::EndTurn));
        }
        AgentBehaviour::Silent | AgentBehaviour::Poison => says.clear(),
        AgentBehaviour::Mute => says = vec![AgentEvent::Acked],
        AgentBehaviour::Eager => says.push(done(StopReason::MaxTokens)),
        AgentBehaviour::Dies => {
            says.insert(0, AgentEvent::Acked);
            says.truncate(1 + says.len() / 2);
            says.push(AgentEvent::Failed(AgentFailure::Broken("the stream ended".to_owned())));
        }
        AgentBehaviour::Errs => {
            says.truncate(2);
            let message = Private("no".to_owned());
            says.push(AgentEvent::Failed(AgentFailure::Reported { code: "nope".to_owned(), message }));
        }
        AgentBehaviour::Away => says = vec![AgentEvent::Failed(away(n))],
        AgentBehaviour::TwoEnds => {
            says.insert(0, AgentEvent::Acked);
            says.push(done(StopReason::EndTurn));
            says.push(delta("and another thing".to_owned()));
            says.push(AgentEvent::Failed(AgentFailure::TooLarge));
            says.push(done(StopReason::Refusal));
        }
        AgentBehaviour::Thinker => {
            let state = |at: usize| AgentEvent::State { state: STATES[at].to_owned(), detail: None, id: None };
            let think = AgentEvent::Delta { kind: TextKind::Reasoning, text: Private("hm, ".to_owned()), id: None };
            says.insert(0, AgentEvent::Acked);
            says.insert(1, state(0));
            says.insert(2, think.clone());
            says.insert(3, think);
            says.push(state(1));
            says.push(done(StopReason::EndTurn));
        }
    }
    says
}

impl World {
    /// Handles an order that leaves a node.
    pub(crate) fn order(&mut self, at: usize, order: Order) {
        let node = self.nodes[at].node_id;
        let restarted = self.restarted_at.is_some_and(|at| self.now - at <= limits::LEASE);
        self.ledger.ordered(node, &order, &mut self.model, self.now, (self.rewinds, restarted));
        match order {
            Order::Invoke(invoke) => self.invoke(node, invoke),
            Order::Steer(steer) => self.steer(node, *steer),
            Order::Stop { run_id, attempt, .. } => drop(self.streams.known.remove(&(run_id, attempt))),
            Order::Cancel { run_id, attempt, .. } => {
                self.streams.known.remove(&(run_id.clone(), attempt));
                if let Some(id) = self.streams.find(node, &run_id, attempt) {
                    self.cancel_stream(id);
                }
            }
            Order::Drop { run_id, attempt } => {
                let Some(id) = self.streams.find(node, &run_id, attempt) else { return };
                self.close_stream(id);
            }
            // Facts for the agent are checked where they leave the node.
            Order::News(delivery) => self.hear_of_task(node, &delivery),
            Order::Credit { run_id, attempt, upto } => {
                let Some(id) = self.streams.find(node, &run_id, attempt) else { return };
                let Some(stream) = self.streams.open.get_mut(&id) else { return };
                stream.limit = stream.limit.max(upto + limits::UNSAVED_TEXT_BYTES_MAX as u64);
                if std::mem::take(&mut stream.blocked) {
                    self.later(0, 5, ScheduledEvent::Agent { stream: id });
                }
            }
        }
    }

    fn invoke(&mut self, node: NodeId, invoke: Invoke) {
        self.ledger.told(&invoke);
        self.check_prompt(&invoke);
        let says = self.says(&invoke);
        let Invoke { key, run_id, attempt, epoch, message, history, resume, .. } = invoke;
        let n = fixtures::number(&message);
        let told = history == fixtures::history(n, false);
        assert!(told || self.rewinds, "MP-G3: every attempt is told what was said before: {run_id}");
        let Some(saying) = self.sayings.get(&n) else { return };
        let manner = manner_of(saying.manner, n, attempt);
        let asked = self.streams.busy.remove(&(node, run_id.clone(), epoch, attempt.saturating_sub(1)));
        assert!(
            asked.is_none_or(|until| self.mono_of(node) >= until),
            "G3: an agent that is busy is asked again when it has said: {run_id}.{attempt}"
        );
        if manner == AgentBehaviour::Poison {
            return self.later(1, 300, ScheduledEvent::Crash { node_id: node });
        }
        if self.rewinds {
            // An attempt that the store lost may be ordered again: the newer request replaces the older.
            if let Some(older) = self.streams.find(node, &run_id, attempt) {
                self.close_stream(older);
            }
        }
        self.streams.made += 1;
        let stream = self.streams.made;
        let (said, saved) = resume.map_or((0, 0), |resume| (resume.text_offset(), resume.saved));
        let limit = saved + limits::UNSAVED_TEXT_BYTES_MAX as u64;
        self.ledger.answer(n, attempt, manner);
        // An agent that does not know the run ends its answer with this.
        let manner = if says == [AgentEvent::Failed(AgentFailure::NotKnown)] { AgentBehaviour::Plain } else { manner };
        let rest = says.into_iter().rev().collect();
        let open = Stream {
            node,
            key,
            run_id,
            attempt,
            epoch,
            manner,
            rest,
            said,
            limit,
            blocked: false,
            awaits_task: false,
            cancelled: false,
            over: false,
        };
        self.streams.open.insert(stream, open);
        self.later(5, 200, ScheduledEvent::Agent { stream });
    }

    /// Returns the events with which an agent answers an invocation, first to last.
    fn says(&mut self, invoke: &Invoke) -> Vec<AgentEvent> {
        let Invoke { key, run_id, attempt, message, .. } = invoke;
        let n = fixtures::number(message);
        let Some(saying) = self.sayings.get(&n) else { return Vec::new() };
        let manner = manner_of(saying.manner, n, *attempt);
        // Some agents have dialed in: their events are complete, and their connection is lost in the middle.
        let hangs_up = manner == AgentBehaviour::Dies && n.is_multiple_of(2);
        let says = all_events(n, *attempt, if hangs_up { AgentBehaviour::Plain } else { manner });
        let says = if self.handovers { handovers::asks(n, says) } else { says };
        let says = if self.actions { tool_runner::asks(n, says) } else { says };
        let says = if self.tasks { self.with_task(n, says) } else { says };
        let mut says = if self.buttons { self.with_buttons(n, says) } else { says };
        if n % 5 == 2 && says.first() == Some(&AgentEvent::Acked) {
            // Some agents subscribe to more than their operator has configured.
            says.insert(1, AgentEvent::Subscribed(fixtures::patterns(&["user.*", "agent.>"])));
            self.ledger.subscribed.insert(run_id.clone());
        }
        // Some of these keep the next connection.
        let comes_back = n.is_multiple_of(4) && (*attempt > 1 || invoke.resume.is_some());
        if hangs_up && !comes_back {
            says.truncate(1 + says.len() / 2);
            says.push(AgentEvent::Failed(AgentFailure::Lost("it hung up".to_owned())));
        }
        if self.ledger.policy(&invoke.agent_id).on_owner_loss != OnOwnerLoss::Resume {
            assert!(invoke.resume.is_none(), "G3: only who outlives its owner is asked to go on: {run_id}");
            return says;
        }
        let says = resumable::named(says);
        let name = (run_id.clone(), *attempt);
        let Some(resume) = &invoke.resume else {
            self.streams.known.insert(name);
            return says;
        };
        // Some agents have been restarted meanwhile, and know no runs.
        if n % 8 == 3 || !self.streams.known.contains(&name) {
            self.ledger.record_forgotten_attempt(key, run_id, *attempt);
            return vec![AgentEvent::Failed(AgentFailure::NotKnown)];
        }
        let rest = resumable::rest(says, resume.after.as_ref().map(|mark| &mark.event_id));
        if self.rng.chance(30) { resumable::joined(rest) } else { rest }
    }

    /// Closes a request; one event may still be in flight.
    fn close_stream(&mut self, id: u64) {
        let late = self.rng.chance(30);
        // An agent that waits sends nothing now, so that nothing of it is in flight.
        let sends = |stream: &Stream| {
            let waits = stream.blocked || stream.awaits_task;
            !stream.rest.is_empty() && !waits && stream.manner != AgentBehaviour::TooMuch
        };
        match self.streams.open.get_mut(&id) {
            Some(stream) if late && sends(stream) => {
                stream.rest.drain(..stream.rest.len() - 1);
                stream.manner = AgentBehaviour::Plain;
            }
            _ => drop(self.streams.open.remove(&id)),
        }
    }

    fn cancel_stream(&mut self, id: u64) {
        let Some(stream) = self.streams.open.get_mut(&id) else { return };
        if std::mem::replace(&mut stream.cancelled, true) {
            return;
        }
        match stream.manner {
            // The agent never ends by itself.
            AgentBehaviour::Stubborn => drop(stream.rest.drain(..stream.rest.len().min(1))),
            AgentBehaviour::Late => {
                // Some more text, an end, and only then the acknowledgement of the cancel.
                let until = stream.rest.len().saturating_sub(2).max(1);
                stream.rest.drain(1..until);
                stream.rest.insert(0, AgentEvent::CancelAcked);
            }
            AgentBehaviour::Plain
            | AgentBehaviour::Slow
            | AgentBehaviour::Silent
            | AgentBehaviour::Mute
            | AgentBehaviour::Eager
            | AgentBehaviour::Dies
            | AgentBehaviour::Errs
            | AgentBehaviour::Away
            | AgentBehaviour::TwoEnds
            | AgentBehaviour::Flood
            | AgentBehaviour::TooMuch
            | AgentBehaviour::Thinker
            | AgentBehaviour::Poison => {
                stream.rest = vec![AgentEvent::CancelAcked];
                let still = matches!(stream.manner, AgentBehaviour::Silent | AgentBehaviour::Mute);
                let waits = std::mem::take(&mut stream.awaits_task);
                if std::mem::take(&mut stream.blocked) || waits || still {
                    self.later(1, 400, ScheduledEvent::Agent { stream: id });
                }
            }
        }
    }

    /// Sends the next event of a stream.
    pub(crate) fn send_next_event(&mut self, id: u64) {
        let Some(mono) = self.streams.open.get(&id).map(|stream| self.mono_of(stream.node)) else { return };
        let Some(stream) = self.streams.open.get_mut(&id) else { return };
        stream.awaits_task = false;
        // Events of one packet are delivered together.
        let at_once = if stream.manner == AgentBehaviour::Eager { 3 } else { 1 };
        let events: Vec<AgentEvent> = std::iter::from_fn(|| stream.next()).take(at_once).collect();
        if events.is_empty() {
            return;
        }
        stream.over |= events
            .iter()
            .any(|event| matches!(event, AgentEvent::Done { .. } | AgentEvent::Failed(_) | AgentEvent::CancelAcked));
        let node = stream.node;
        let key = stream.key.clone();
        let run_id = stream.run_id.clone();
        let attempt = stream.attempt;
        let epoch = stream.epoch;
        let slowest = match stream.manner {
            AgentBehaviour::Slow | AgentBehaviour::Stubborn | AgentBehaviour::Late => 1500,
            AgentBehaviour::Flood => 60,
            AgentBehaviour::TooMuch => 15,
            AgentBehaviour::Plain
            | AgentBehaviour::Silent
            | AgentBehaviour::Mute
            | AgentBehaviour::Eager
            | AgentBehaviour::Dies
            | AgentBehaviour::Errs
            | AgentBehaviour::Away
            | AgentBehaviour::TwoEnds
            | AgentBehaviour::Thinker
            | AgentBehaviour::Poison => 300,
        };
        if let Some(AgentEvent::Failed(AgentFailure::Answered(answer))) = events.last()
            && let Some(wait) = answer.retry_after_ms
        {
            let asked = (node, run_id.clone(), epoch, attempt);
            let until = mono + Duration::from_millis(wait);
            self.streams.busy.insert(asked, until);
        }
        let stays =
            stream.manner == AgentBehaviour::Mute || (stream.manner == AgentBehaviour::Stubborn && stream.cancelled);
        if stream.rest.is_empty() && !stays {
            self.streams.open.remove(&id);
        } else if stream.awaits_task {
            let (least, most) = tasks::PATIENCE_MS;
            self.later(least, most, ScheduledEvent::Agent { stream: id });
        } else if !stream.blocked {
            self.later(1, slowest, ScheduledEvent::Agent { stream: id });
        }
        self.give_to(node, Input::Agent { key, run_id, attempt, epoch, events });
    }
}
