//! The running turn: beginning it, what its agent reports, and its clocks (scenarios A and G).
use crate::id::{RunId, Seq};
use crate::limits;
use crate::mutant::{Mutant, planted};
use crate::private::Private;
use crate::protocol::agent::{AgentEvent, AgentFailure, Invoke, OnOwnerLoss, Order, TextKind};
use crate::protocol::entry::{Fact, Scope};
use crate::protocol::refusal::Code;
use crate::session::ending::Ending;
use crate::session::outbox::Output;
use crate::session::runtime::{About, SessionRuntime};
use crate::session::state::{Run, RunPhase};
use crate::session::text::Text;
use crate::time::{Deadline, Mono, Now};
use std::sync::Arc;
use std::time::Duration;

/// What this owner has under way.
#[derive(Debug, Default)]
pub(super) enum Attempt {
    /// Nothing.
    #[default]
    None,
    /// A lost owner's turn that is tried again at a time.
    Delayed {
        /// When.
        at: Mono,
    },
    /// An order went out, or waits for its fact.
    Live(Box<Live>),
}

/// One attempt at one turn.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) run_id: RunId,
    pub(super) attempt: u32,
    pub(super) text: Text,
    /// Text is shown only once this is durable.
    gate: Seq,
    /// The first text must be recorded before it is shown: the agent may be asked again only if it
    /// was silent (`retry_if_silent`).
    careful: bool,
    states: u32,
    /// The fact after which the order goes out, and whether it has.
    pub(super) begun: Seq,
    pub(super) ordered: bool,
    input_ack: Duration,
    /// INPUT_ACK, or the next sign of life.
    sign_at: Mono,
    silence: Duration,
    run_at: Mono,
    cancel_at: Option<Mono>,
}

impl Attempt {
    pub(super) fn poll_timeout(&self) -> Option<Deadline> {
        match self {
            Self::None => None,
            Self::Delayed { at } => Some(Deadline { at: *at, why: "attempt" }),
            Self::Live(live) => {
                let text = [live.text.show_at, live.text.save_at].into_iter().flatten();
                let text = text.map(|at| Deadline { at, why: "text" });
                let waits = match live.cancel_at {
                    Some(at) => [Deadline { at, why: "cancel_ack" }; 2],
                    None => [
                        Deadline { at: live.sign_at, why: "agent" },
                        Deadline { at: live.run_at, why: "run" },
                    ],
                };
                text.chain(waits).min()
            }
        }
    }

    pub(super) fn cancelling(&mut self, now: Now, wait: Duration) {
        if let Self::Live(live) = self {
            let wait = if planted(Mutant::CancelNeverForced) { Duration::from_secs(1 << 30) } else { wait };
            live.cancel_at = Some(now.mono + wait);
        }
    }
}

impl SessionRuntime {
    /// Begins the next turn, or what a lost owner left of one.
    pub(super) fn begin(&mut self, now: Now) {
        if self.held || !matches!(self.attempt, Attempt::None) {
            return;
        }
        if let Some(run_id) = self.state.running.clone() {
            self.take_over(now, &run_id);
        } else if self.is_open()
            && let Some(run_id) = self.state.waiting.first().cloned()
            && self.inputs.contains_key(&run_id)
        {
            self.start(now, &run_id);
        }
    }

    /// What becomes of a turn that another owner, or an earlier one here, had begun (§2.5, §2.6).
    fn take_over(&mut self, now: Now, run_id: &RunId) {
        let Some(run) = self.state.runs.get(run_id).filter(|_| self.inputs.contains_key(run_id)) else {
            return;
        };
        if matches!(run.phase, RunPhase::Cancelling { .. }) {
            return self.cancel_orphan(now, run_id);
        }
        let counted = run.attempt.saturating_sub(run.excused);
        let policy = run.agent.as_ref().map(|agent| self.directory.policy(agent)).unwrap_or_default();
        let lost = match policy.on_owner_loss {
            OnOwnerLoss::Retry => false,
            OnOwnerLoss::RetryIfSilent => run.spoke,
            OnOwnerLoss::Fail => true,
        };
        let failed = if lost && !planted(Mutant::AlwaysRetry) {
            Some((Code::OwnerLost, "the node that ran this turn was lost"))
        } else if counted >= limits::TURN_ATTEMPTS_MAX && !planted(Mutant::NoPoison) {
            Some((Code::PoisonTurn, "every node that ran this turn was lost"))
        } else if run.deadline <= now.store {
            Some((Code::AgentTimeout, "the run took too long"))
        } else {
            None
        };
        if let Some((code, why)) = failed {
            return self.end(now, run_id, Ending::Failed { code, message: why.to_owned(), agent_code: None });
        }
        if counted < 2 {
            self.start(now, run_id);
        } else {
            self.attempt = Attempt::Delayed { at: now.mono + limits::TURN_ATTEMPT_WAIT };
        }
    }

    /// Records the attempt, then orders it: a turn that kills its process is counted all the same.
    fn start(&mut self, now: Now, run_id: &RunId) {
        let (Some(run), Some(taken)) = (self.state.runs.get(run_id), self.inputs.get(run_id)) else { return };
        let input = Arc::clone(&taken.input);
        let Some(agent_id) = run.agent.clone() else { return };
        let (attempt, request_id) = (run.attempt + 1, run.request_id.clone());
        let policy = self.directory.policy(&agent_id);
        let fact = if run.attempt == 0 {
            let deadline_ms = now.store.after(policy.run);
            Fact::RunStarted { agent_id: agent_id.clone(), attempt, request_id, deadline_ms }
        } else {
            self.counts.restarts += 1;
            Fact::RunRestarted { agent_id: agent_id.clone(), attempt, reason: "owner_lost".to_owned() }
        };
        let seq = self.record(now, fact, About::run(run_id));
        let run_at = self.state.runs.get(run_id).map_or(now.mono, |run| now.mono_at(run.deadline));
        let live = Live {
            run_id: run_id.clone(),
            attempt,
            text: Text::default(),
            gate: seq,
            careful: policy.on_owner_loss == OnOwnerLoss::RetryIfSilent,
            states: 0,
            begun: seq,
            ordered: false,
            input_ack: policy.input_ack,
            sign_at: run_at,
            silence: policy.silence,
            run_at,
            cancel_at: None,
        };
        self.attempt = Attempt::Live(Box::new(live));
        let invoke = Invoke {
            key: self.key.clone(),
            run_id: run_id.clone(),
            attempt,
            epoch: self.token.epoch,
            agent_id,
            user: input.user.clone(),
            message: input.message.clone(),
            history: input.history.clone(),
            traceparent: input.traceparent.clone(),
        };
        if planted(Mutant::OrderEarly) {
            self.outbox.now(Output::Order(Order::Invoke(invoke)));
        } else {
            self.outbox.after(seq, Output::Order(Order::Invoke(invoke)));
        }
    }

    /// The order has gone out: only now is its acknowledgement waited for.
    pub(super) fn ordered(&mut self, now: Now, durable: Seq) {
        let Attempt::Live(live) = &mut self.attempt else { return };
        if !live.ordered && live.begun <= durable {
            live.ordered = true;
            live.sign_at = now.mono + live.input_ack;
        }
    }

    /// The attempt a report belongs to, if it is the one under way; everything else is late.
    fn live(&mut self, run_id: &RunId, attempt: u32) -> Option<&mut Live> {
        match &mut self.attempt {
            Attempt::Live(live) if live.run_id == *run_id => {
                (live.attempt == attempt || planted(Mutant::AttemptsMixed)).then_some(live)
            }
            Attempt::Live(_) | Attempt::Delayed { .. } | Attempt::None => None,
        }
    }

    pub(super) fn agent(&mut self, now: Now, run_id: &RunId, attempt: u32, event: AgentEvent) {
        let Some(live) = self.live(run_id, attempt) else {
            self.counts.late_reports += 1;
            return;
        };
        let run_id = &run_id.clone();
        if live.cancel_at.is_some() && !planted(Mutant::LateOutputWins) {
            return self.agent_cancelling(now, run_id, &event);
        }
        live.sign_at = now.mono + live.silence;
        if event.data_bytes() > limits::FACT_DATA_BYTES_MAX {
            return self.end(now, run_id, Ending::from(AgentFailure::TooLarge));
        }
        match event {
            AgentEvent::Acked => self.acked(now, run_id),
            AgentEvent::Delta { kind: TextKind::Text, text } => self.spoke(now, run_id, &text),
            AgentEvent::Delta { kind: TextKind::Reasoning, text } => self.reasoned(&text),
            AgentEvent::State { .. } if live.states >= limits::AGENT_STATES_MAX => {
                self.counts.late_reports += 1
            }
            AgentEvent::State { state, detail } => {
                live.states += 1;
                self.record(now, Fact::RunState { scope: Scope::Agent, state, detail }, About::agent(run_id));
            }
            AgentEvent::Done { stop, usage } => self.end(now, run_id, Ending::Completed { stop, usage }),
            AgentEvent::CancelAcked => self.counts.late_reports += 1,
            AgentEvent::Failed(failure) => self.end(now, run_id, Ending::from(failure)),
        }
    }

    /// Once CANCEL has gone out only its acknowledgement counts, or the end of the stream, which is
    /// one (SR-C7); a completion that crosses it has come too late (ST-12).
    fn agent_cancelling(&mut self, now: Now, run_id: &RunId, event: &AgentEvent) {
        match event {
            AgentEvent::CancelAcked | AgentEvent::Done { .. } | AgentEvent::Failed(_) => {
                self.cancel_orphan(now, run_id)
            }
            AgentEvent::Acked | AgentEvent::Delta { .. } | AgentEvent::State { .. } => {
                self.counts.late_reports += 1
            }
        }
    }

    fn routing(&self, run_id: &RunId) -> Option<&Run> {
        self.state.runs.get(run_id).filter(|run| run.phase == RunPhase::Routing)
    }

    fn acked(&mut self, now: Now, run_id: &RunId) {
        let Some(run) = self.routing(run_id) else { return };
        let (Some(agent_id), attempt) = (run.agent.clone(), run.attempt) else { return };
        self.record(now, Fact::AgentInvokeStarted { agent_id, attempt }, About::agent(run_id));
    }

    fn spoke(&mut self, now: Now, run_id: &RunId, piece: &Private<String>) {
        if piece.reveal().is_empty() {
            return;
        }
        if self.routing(run_id).is_some() {
            // A first chunk implies the start, though the ACK is still expected (SR-G5).
            let (scope, state) = (Scope::Run, "RUNNING".to_owned());
            self.record(now, Fact::RunState { scope, state, detail: None }, About::agent(run_id));
        }
        let Attempt::Live(live) = &mut self.attempt else { return };
        if live.text.len() + piece.reveal().len() as u64 > limits::TURN_TEXT_BYTES_MAX as u64 {
            return self.end(now, run_id, Ending::from(AgentFailure::TooLarge));
        }
        let show = live.text.push(now, piece.reveal());
        let first = live.careful && live.text.len() == piece.reveal().len() as u64;
        if first || live.text.is_save_due() {
            self.save(now, run_id);
        }
        if let Attempt::Live(live) = &mut self.attempt {
            live.gate = if first { self.state.tail.seq } else { live.gate };
        }
        if show {
            self.show(now);
        }
    }

    fn reasoned(&mut self, piece: &Private<String>) {
        let Attempt::Live(live) = &mut self.attempt else { return };
        let (offset, gate) = (live.text.reasoning, live.gate);
        live.text.reasoning += piece.reveal().len() as u64;
        let (run_id, attempt, kind) = (live.run_id.clone(), live.attempt, TextKind::Reasoning);
        let text = Private(Arc::from(piece.reveal()));
        self.outbox.after(gate, Output::Chunk { run_id, attempt, offset, kind, text });
    }

    /// Shows what was gathered.
    pub(super) fn show(&mut self, now: Now) {
        let Attempt::Live(live) = &mut self.attempt else { return };
        let Some((offset, text)) = live.text.show(now) else { return };
        let (run_id, attempt, kind) = (live.run_id.clone(), live.attempt, TextKind::Text);
        self.outbox.after(live.gate, Output::Chunk { run_id, attempt, offset, kind, text });
    }

    /// Records what is not recorded yet.
    pub(super) fn save(&mut self, now: Now, run_id: &RunId) {
        loop {
            let Attempt::Live(live) = &self.attempt else { return };
            let Some((offset, text)) = live.text.unsaved() else { return };
            let (attempt, bytes) = (live.attempt, text.len() as u64);
            let fact = Fact::AgentStreamDelta { attempt, offset, text: Private(text) };
            let seq = self.record(now, fact, About::agent(run_id));
            let Attempt::Live(live) = &mut self.attempt else { return };
            live.text.saved(now, seq, bytes);
        }
    }

    /// Recorded text is durable: its agent may be read further.
    pub(super) fn credit(&mut self, durable: Seq) {
        let Attempt::Live(live) = &mut self.attempt else { return };
        if let Some(upto) = live.text.settle(durable) {
            let (run_id, attempt) = (live.run_id.clone(), live.attempt);
            self.outbox.now(Output::Order(Order::Credit { run_id, attempt, upto }));
        }
    }

    /// The running text from an offset on, for a reader that has less: what is not yet durable
    /// (the rest stands in the log).
    pub fn text_since(&self, run_id: &RunId, attempt: u32, offset: u64) -> Option<(u64, Private<Arc<str>>)> {
        match &self.attempt {
            Attempt::Live(live) if live.run_id == *run_id && live.attempt == attempt => {
                self.outbox.is_durable(live.gate).then(|| live.text.since(offset))
            }
            Attempt::Live(_) | Attempt::Delayed { .. } | Attempt::None => None,
        }
    }

    pub(super) fn attempt_timeout(&mut self, now: Now) {
        match &mut self.attempt {
            Attempt::None => {}
            Attempt::Delayed { at } if *at > now.mono => {}
            Attempt::Delayed { .. } => {
                self.attempt = Attempt::None;
                if let Some(run_id) = self.state.running.clone() {
                    self.start(now, &run_id);
                }
            }
            Attempt::Live(live) => {
                let run_id = live.run_id.clone();
                let (show, save) = (live.text.show_at, live.text.save_at);
                if show.is_some_and(|at| at <= now.mono) {
                    self.show(now);
                }
                if save.is_some_and(|at| at <= now.mono) {
                    self.save(now, &run_id);
                }
                self.waited(now, &run_id);
            }
        }
    }

    /// A wait of the running attempt is over.
    fn waited(&mut self, now: Now, run_id: &RunId) {
        let Attempt::Live(live) = &self.attempt else { return };
        let failed = |code, why: &str| Ending::Failed { code, message: why.to_owned(), agent_code: None };
        let ending = match live.cancel_at {
            Some(at) if at > now.mono => return,
            Some(_) => {
                let phase = self.state.runs.get(run_id).map(|run| run.phase.clone());
                let Some(RunPhase::Cancelling { reason, .. }) = phase else { return };
                Ending::Cancelled { reason, forced: true, answers: None }
            }
            None if live.run_at <= now.mono => failed(Code::AgentTimeout, "the run took too long"),
            None if live.sign_at > now.mono => return,
            None if self.routing(run_id).is_some() => {
                failed(Code::RouteTimeout, "the agent did not acknowledge the input in time")
            }
            None => failed(Code::AgentTimeout, "the agent fell silent"),
        };
        self.end(now, run_id, ending);
    }

    pub(super) fn hold(&mut self) {
        self.held = true;
        if matches!(self.attempt, Attempt::Delayed { .. }) {
            self.attempt = Attempt::None;
        }
    }

    pub(super) fn suspend(&mut self, now: Now) {
        self.held = true;
        let Attempt::Live(live) = &self.attempt else { return };
        let (run_id, attempt) = (live.run_id.clone(), live.attempt);
        let (begun, ordered) = (live.begun, live.ordered);
        self.show(now);
        self.save(now, &run_id);
        self.record(now, Fact::RunSuspended { attempt, reason: "drain".to_owned() }, About::run(&run_id));
        let drop = Output::Order(Order::Drop { run_id, attempt });
        if ordered {
            self.outbox.now(drop);
        } else {
            self.outbox.after(begun, drop);
        }
        self.attempt = Attempt::None;
    }
}
