//! The running turn: the events that its agent reports, its text, and its timers (scenarios A and G).
use crate::id::{RunId, SaidId, Seq};
use crate::limits;
use crate::mutant::{Mutant, planted};
use crate::private::Private;
use crate::protocol::agent::{AgentEvent, AgentFailure, AgentPolicy, Mark, OnOwnerLoss, Order, TextKind};
use crate::protocol::entry::{Fact, Scope};
use crate::protocol::json::Json;
use crate::protocol::pattern::Pattern;
use crate::protocol::refusal::Code;
use crate::session::ending::Ending;
use crate::session::outbox::Output;
use crate::session::runtime::{About, SessionRuntime};
use crate::session::state::{Run, RunPhase};
use crate::session::steer::Steers;
use crate::session::takeover::Lost;
use crate::session::text::Text;
use crate::time::{Deadline, Mono, Now};
use std::sync::Arc;
use std::time::Duration;

/// The attempt that this owner has in progress.
#[derive(Debug, Default)]
pub(super) enum Attempt {
    #[default]
    None,
    /// A turn that lost its owner or its agent's connection, and is tried again at a time.
    Delayed {
        at: Mono,
        lost: Lost,
    },
    /// An attempt whose order was sent, or waits for its fact.
    Live(Box<Live>),
}

/// One attempt of one turn.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) run_id: RunId,
    pub(super) attempt: u32,
    pub(super) text: Text,
    /// Text is shown only once the fact at this position is durable.
    gate: Seq,
    /// True if the first text must be recorded before it is shown, because the agent may be asked again only if no
    /// text was shown (`retry_if_silent`).
    careful: bool,
    /// For an attempt resumed from another owner: recorded bytes of text that the agent still has to repeat. `None`:
    /// the attempt was started here.
    pub(super) again: Option<u64>,
    /// The last event that was handled completely here, if events have ids.
    pub(super) mark: Option<Mark>,
    pub(super) states: u32,
    /// The fact after which the order is sent; `ordered` tells whether the order was sent.
    pub(super) begun: Seq,
    pub(super) ordered: bool,
    input_ack: Duration,
    /// Deadline of INPUT_ACK, or of the next sign of life.
    sign_at: Mono,
    silence: Duration,
    /// True while the gateway has work of this run in progress; until that has ended, silence is not the agent's
    /// fault.
    is_awaiting: bool,
    run_at: Mono,
    pub(super) cancel_at: Option<Mono>,
    /// Inputs that were handed to the agent during the attempt.
    pub(super) steers: Steers,
    /// Types of facts that the agent is always sent, and those that the agent has subscribed to.
    events: Arc<[Pattern]>,
    subscribed: Arc<[Pattern]>,
}

impl Live {
    /// Creates an attempt that the fact at `seq` records, and that ends at `run_at` at the latest.
    pub(super) fn new(run_id: &RunId, attempt: u32, seq: Seq, policy: &AgentPolicy, run_at: Mono) -> Self {
        Self {
            run_id: run_id.clone(),
            attempt,
            text: Text::default(),
            gate: seq,
            careful: matches!(policy.on_owner_loss, OnOwnerLoss::RetryIfSilent | OnOwnerLoss::Resume),
            again: None,
            mark: None,
            states: 0,
            begun: seq,
            ordered: false,
            input_ack: policy.input_ack,
            sign_at: run_at,
            silence: policy.silence,
            is_awaiting: false,
            run_at,
            cancel_at: None,
            steers: Steers::default(),
            events: Arc::clone(&policy.events),
            subscribed: Arc::default(),
        }
    }

    /// Returns the time at which the agent has been silent for too long; the run's own end while silence is not the
    /// agent's fault.
    fn silent_at(&self) -> Mono {
        if self.is_awaiting { self.run_at } else { self.sign_at }
    }

    /// Restarts the silence timeout from a time; a later deadline stays.
    pub(super) fn restart_silence(&mut self, from: Mono) {
        self.sign_at = self.sign_at.max(from + self.silence);
    }

    /// Returns whether the agent subscribes to facts of this type, whatever they are about.
    pub(super) fn wants(&self, name: &str) -> bool {
        self.events.iter().chain(&*self.subscribed).any(|pattern| pattern.matches(name))
    }

    /// Records that an event was handled completely.
    pub(super) fn reach(&mut self, id: Option<SaidId>) {
        let Some(event_id) = id else { return };
        let text_bytes = self.text.len() - self.again.unwrap_or(0);
        self.mark = Some(Mark { event_id, text_bytes });
    }

    /// Returns the new part of a piece: the agent of a resumed attempt repeats what lies after its mark. `None`: the
    /// repeated text differs from the earlier text.
    fn new_part<'a>(&mut self, piece: &'a str) -> Option<&'a str> {
        let Some(again) = self.again.as_mut().filter(|_| !planted(Mutant::ResumeRepeats)) else {
            return Some(piece);
        };
        let known = usize::try_from(*again).unwrap_or(usize::MAX).min(piece.len());
        *again -= known as u64;
        piece.get(known..)
    }
}

/// Returns the failure for an agent whose repeated text differs from what it sent to the previous owner.
fn otherwise() -> Ending {
    Ending::from(AgentFailure::Broken("the agent was asked to resume and did not repeat its earlier events".to_owned()))
}

impl Attempt {
    pub(super) fn poll_timeout(&self) -> Option<Deadline> {
        match self {
            Self::None => None,
            Self::Delayed { at, .. } => Some(Deadline { at: *at, why: "attempt" }),
            Self::Live(live) => {
                let text = [live.text.show_at(), live.text.save_at].into_iter().flatten();
                let text = text.map(|at| Deadline { at, why: "text" });
                let waits = match (live.cancel_at, live.steers.due()) {
                    (Some(at), _) => [Deadline { at, why: "cancel_ack" }; 2],
                    (None, Some(at)) => [Deadline { at, why: "steer_ack" }; 2],
                    (None, None) => [
                        Deadline { at: live.silent_at(), why: "agent" },
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
            live.steers.stop();
        }
    }
}

impl SessionRuntime {
    /// Starts the wait for INPUT_ACK once the order was sent.
    pub(super) fn ordered(&mut self, now: Now, durable: Seq) {
        let Attempt::Live(live) = &mut self.attempt else { return };
        if !live.ordered && live.begun <= durable {
            live.ordered = true;
            live.sign_at = now.mono + live.input_ack;
        }
    }

    /// Returns the attempt that a report belongs to, if it is the current one; every other report is late.
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
        if live.steers.is_ending() && !matches!(event, AgentEvent::Steered { .. } | AgentEvent::Alive) {
            self.counts.late_reports += 1;
            return;
        }
        (live.sign_at, live.steers.heard) = (now.mono + live.silence, true);
        if event.data_bytes() > limits::FACT_DATA_BYTES_MAX {
            return self.end(now, run_id, Ending::from(AgentFailure::TooLarge));
        }
        let again = live.again;
        match event {
            AgentEvent::Acked => self.acked(now, run_id),
            AgentEvent::Delta { kind: TextKind::Text, text, id } => self.spoke(now, run_id, &text, id),
            AgentEvent::Delta { kind: TextKind::Reasoning, text, id } => self.reasoned(&text, id),
            AgentEvent::State { .. } if live.states >= limits::AGENT_STATES_MAX => {
                self.counts.late_reports += 1
            }
            AgentEvent::State { state, detail, id } => self.told(now, run_id, state, detail, id),
            AgentEvent::Done { .. } if again.is_some_and(|bytes| bytes > 0) => {
                self.end(now, run_id, otherwise())
            }
            AgentEvent::Done { stop, usage } => self.finished(now, run_id, stop, usage),
            AgentEvent::Steered { message_id, outcome } => {
                self.steer_answered(now, run_id, &message_id, outcome)
            }
            AgentEvent::Handover { wish, id } => self.handover_wished(now, run_id, *wish, id),
            AgentEvent::Action { wish, id } => self.action_wished(now, run_id, *wish, id),
            AgentEvent::Subscribed(events) => live.subscribed = events,
            AgentEvent::Alive => {}
            AgentEvent::CancelAcked => self.counts.late_reports += 1,
            AgentEvent::Failed(AgentFailure::NotKnown) if again.is_some() => self.forgotten(now, run_id),
            AgentEvent::Failed(AgentFailure::Lost(why)) => self.disconnected(now, run_id, why),
            AgentEvent::Failed(AgentFailure::Answered(answer)) => self.turned_away(now, run_id, answer),
            AgentEvent::Failed(failure) => self.end(now, run_id, Ending::from(failure)),
        }
    }

    /// Handles a report while a cancel is in progress. Only CANCEL_ACK counts, or the end of the stream, which
    /// implies it (SR-C7); a completion that crosses the cancel is too late (ST-12).
    fn agent_cancelling(&mut self, now: Now, run_id: &RunId, event: &AgentEvent) {
        match event {
            AgentEvent::CancelAcked | AgentEvent::Done { .. } | AgentEvent::Failed(_) => {
                self.cancel_orphan(now, run_id)
            }
            AgentEvent::Steered { message_id, outcome } => {
                self.steer_answered(now, run_id, message_id, *outcome)
            }
            AgentEvent::Alive => {}
            AgentEvent::Acked
            | AgentEvent::Delta { .. }
            | AgentEvent::State { .. }
            | AgentEvent::Handover { .. }
            | AgentEvent::Subscribed(_)
            | AgentEvent::Action { .. } => self.counts.late_reports += 1,
        }
    }

    fn routing(&self, run_id: &RunId) -> Option<&Run> {
        self.state.runs.get(run_id).map(Box::as_ref).filter(|run| run.phase == RunPhase::Routing)
    }

    fn acked(&mut self, now: Now, run_id: &RunId) {
        let Some(run) = self.routing(run_id) else { return };
        let (Some(agent_id), attempt) = (run.agent.clone(), run.attempt) else { return };
        self.record(now, Fact::AgentInvokeStarted { agent_id, attempt }, About::agent(run_id));
    }

    /// Records a state of the agent. If events have ids, the text before it is recorded first, so that the log has
    /// the events in their order.
    fn told(&mut self, now: Now, run_id: &RunId, state: String, detail: Option<Json>, id: Option<SaidId>) {
        if id.is_some() {
            self.save(now, run_id);
        }
        let Attempt::Live(live) = &mut self.attempt else { return };
        if live.again.is_some_and(|bytes| bytes > 0) {
            // A state before text that is already recorded: the previous owner left the state out, too.
            return;
        }
        live.states += 1;
        live.reach(id);
        let mark = live.mark.clone().filter(|_| !planted(Mutant::StateUnmarked));
        let fact = Fact::RunState { scope: Scope::Agent, state, detail, mark };
        self.record(now, fact, About::agent(run_id));
    }

    fn spoke(&mut self, now: Now, run_id: &RunId, piece: &Private<String>, id: Option<SaidId>) {
        let Attempt::Live(live) = &mut self.attempt else { return };
        let Some(piece) = live.new_part(piece.reveal()) else { return self.end(now, run_id, otherwise()) };
        if piece.is_empty() {
            return live.reach(id);
        }
        if self.routing(run_id).is_some() {
            // A first piece of text implies the start, though INPUT_ACK is still expected (SR-G5).
            let (scope, state) = (Scope::Run, "RUNNING".to_owned());
            let fact = Fact::RunState { scope, state, detail: None, mark: None };
            self.record(now, fact, About::agent(run_id));
        }
        let Attempt::Live(live) = &mut self.attempt else { return };
        if live.text.len() + piece.len() as u64 > limits::TURN_TEXT_BYTES_MAX as u64 {
            return self.end(now, run_id, Ending::from(AgentFailure::TooLarge));
        }
        let show = live.text.push(now, piece);
        live.reach(id);
        let first = live.careful && live.text.len() == piece.len() as u64;
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

    fn reasoned(&mut self, piece: &Private<String>, id: Option<SaidId>) {
        let Attempt::Live(live) = &mut self.attempt else { return };
        live.reach(id);
        let (offset, gate) = (live.text.reasoning, live.gate);
        live.text.reasoning += piece.reveal().len() as u64;
        let (run_id, attempt, kind) = (live.run_id.clone(), live.attempt, TextKind::Reasoning);
        let text = Private(Arc::from(piece.reveal()));
        self.outbox.after(gate, Output::Chunk { run_id, attempt, offset, kind, text });
    }

    /// Shows the collected text.
    pub(super) fn show(&mut self, now: Now) {
        let Attempt::Live(live) = &mut self.attempt else { return };
        let Some((offset, text)) = live.text.show(now) else { return };
        let (run_id, attempt, kind) = (live.run_id.clone(), live.attempt, TextKind::Text);
        self.outbox.after(live.gate, Output::Chunk { run_id, attempt, offset, kind, text });
    }

    /// Records all text that is not recorded yet.
    pub(super) fn save(&mut self, now: Now, run_id: &RunId) {
        loop {
            let Attempt::Live(live) = &self.attempt else { return };
            let Some((offset, text)) = live.text.unsaved() else { return };
            let (attempt, bytes) = (live.attempt, text.len() as u64);
            // The mark goes with the last part, since its event may end anywhere in the text.
            let mark = live.mark.clone().filter(|_| offset + bytes == live.text.len());
            let fact = Fact::AgentStreamDelta { attempt, offset, text: Private(text), mark };
            let seq = self.record(now, fact, About::agent(run_id));
            let Attempt::Live(live) = &mut self.attempt else { return };
            live.text.saved(now, seq, bytes);
        }
    }

    /// Lets the agent be read further once recorded text is durable.
    pub(super) fn credit(&mut self, durable: Seq) {
        let Attempt::Live(live) = &mut self.attempt else { return };
        if let Some(upto) = live.text.settle(durable) {
            let (run_id, attempt) = (live.run_id.clone(), live.attempt);
            self.outbox.now(Output::Order(Order::Credit { run_id, attempt, upto }));
        }
    }

    /// Returns the running text from an offset on, for a reader that has less: only text that is not durable yet,
    /// since the rest is in the log.
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
            Attempt::Delayed { at, .. } if *at > now.mono => {}
            Attempt::Delayed { lost, .. } => {
                let lost = *lost;
                self.attempt = Attempt::None;
                if let Some(run_id) = self.state.running.clone() {
                    self.go_on_with(now, &run_id, lost);
                }
            }
            Attempt::Live(live) => {
                let run_id = live.run_id.clone();
                let (show, save) = (live.text.show_at(), live.text.save_at);
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

    /// Pauses the silence timeout of the running attempt while the gateway has work of its run in progress: an
    /// action, a handover that waits for a decision, or text that is not durable yet. The timeout starts again when
    /// the last of these has ended. Actions and handovers have deadlines of their own, and so has the run.
    pub(super) fn settle_silence(&mut self, now: Now) {
        let Attempt::Live(live) = &self.attempt else { return };
        // The wait for INPUT_ACK is separate: no work of this attempt is in progress yet.
        let is_awaiting = self.routing(&live.run_id).is_none() && self.is_awaited_by(&live.run_id);
        let Attempt::Live(live) = &mut self.attempt else { return };
        if live.is_awaiting && !is_awaiting {
            live.restart_silence(now.mono);
        }
        live.is_awaiting = is_awaiting;
    }

    /// Returns whether the run waits for work that the gateway has in progress.
    fn is_awaited_by(&self, run_id: &RunId) -> bool {
        let Attempt::Live(live) = &self.attempt else { return false };
        let handover = self.state.handovers.open.as_ref().is_some_and(|open| open.run_id == *run_id);
        let action = self.state.actions.open.values().any(|action| action.run_id == *run_id);
        handover || action || live.text.is_unsettled()
    }

    /// Ends the run if a timeout of the running attempt has expired.
    fn waited(&mut self, now: Now, run_id: &RunId) {
        let Attempt::Live(live) = &self.attempt else { return };
        let failed = |code, why: &str| Ending::failed(code, why);
        let ending = match live.cancel_at {
            None if live.steers.is_ending() => return,
            Some(at) if at > now.mono => return,
            Some(_) => {
                let phase = self.state.runs.get(run_id).map(|run| run.phase.clone());
                let Some(RunPhase::Cancelling { reason, .. }) = phase else { return };
                Ending::Cancelled { reason, forced: true, answers: None }
            }
            None if live.run_at <= now.mono => failed(Code::AgentTimeout, "the run exceeded its time limit"),
            None if live.silent_at() > now.mono => return,
            None if self.routing(run_id).is_some() => {
                failed(Code::RouteTimeout, "the agent did not acknowledge the input in time")
            }
            None => failed(Code::AgentTimeout, "the agent timed out: no event within its silence limit"),
        };
        self.end(now, run_id, ending);
    }
}
