//! The running turn: the events that its agent reports, its text, and its timers (scenarios A and G).
use crate::id::{AgentEventId, RunId, Seq};
use crate::limits;
use crate::mutant::{Mutant, planted};
use crate::private::Private;
use crate::protocol::agent::{AgentEvent, AgentFailure, AgentPolicy, EventMark, OnOwnerLoss, Order, TextKind};
use crate::protocol::chunk::TextChunk;
use crate::protocol::entry::{Fact, RunFact, Scope};
use crate::protocol::json::Json;
use crate::protocol::pattern::Pattern;
use crate::protocol::refusal::Code;
use crate::session::ending::Ending;
use crate::session::input_steer::PendingSteers;
use crate::session::outbox::Output;
use crate::session::run_decide::LossCause;
use crate::session::runtime::{RecordContext, SessionRuntime};
use crate::session::state::{Run, RunPhase};
use crate::session::text::AttemptText;
use crate::time::{Deadline, Mono, Now};
use std::sync::Arc;
use std::time::Duration;

/// The attempt that this owner has in progress.
#[derive(Debug, Default)]
pub(super) enum Attempt {
    #[default]
    None,
    /// A turn that lost its owner or its agent's connection, and is tried again at a time.
    Delayed { at: Mono, cause: LossCause },
    /// An attempt whose order was sent, or waits for its fact.
    Live(Box<LiveAttempt>),
}

/// One attempt of one turn.
#[derive(Debug)]
pub(super) struct LiveAttempt {
    pub(super) run_id: RunId,
    pub(super) attempt: u32,
    pub(super) text: AttemptText,
    /// Text is shown only once the fact at this position is durable.
    show_after: Seq,
    /// True if the first text must be recorded before it is shown, because the agent may be asked again only if no
    /// text was shown (`retry_if_silent`).
    record_before_show: bool,
    /// For an attempt resumed from another owner: recorded bytes of text that the agent still has to repeat. `None`:
    /// the attempt was started here.
    pub(super) repeat_bytes: Option<u64>,
    /// The last event that was handled completely here, if events have ids.
    pub(super) mark: Option<EventMark>,
    pub(super) states: u32,
    /// The fact after which the order is sent; `is_ordered` tells whether the order was sent.
    pub(super) start_seq: Seq,
    pub(super) is_ordered: bool,
    input_ack: Duration,
    /// Deadline of INPUT_ACK, or of the next sign of life.
    sign_due: Mono,
    silence: Duration,
    /// True while the gateway has work of this run in progress; until that has ended, silence is not the agent's
    /// fault.
    is_silence_paused: bool,
    run_due: Mono,
    pub(super) cancel_due: Option<Mono>,
    /// Inputs that were handed to the agent during the attempt.
    pub(super) steers: PendingSteers,
    /// Types of facts that the agent is always sent, and those that the agent has subscribed to.
    events: Arc<[Pattern]>,
    subscribed: Arc<[Pattern]>,
}

impl LiveAttempt {
    /// Creates an attempt that the fact at `seq` records, and that ends at `run_due` at the latest.
    pub(super) fn new(run_id: &RunId, attempt: u32, seq: Seq, policy: &AgentPolicy, run_due: Mono) -> Self {
        Self {
            run_id: run_id.clone(),
            attempt,
            text: AttemptText::default(),
            show_after: seq,
            record_before_show: matches!(policy.on_owner_loss, OnOwnerLoss::RetryIfSilent | OnOwnerLoss::Resume),
            repeat_bytes: None,
            mark: None,
            states: 0,
            start_seq: seq,
            is_ordered: false,
            input_ack: policy.input_ack,
            sign_due: run_due,
            silence: policy.silence,
            is_silence_paused: false,
            run_due,
            cancel_due: None,
            steers: PendingSteers::default(),
            events: Arc::clone(&policy.events),
            subscribed: Arc::default(),
        }
    }

    /// Returns the time at which the agent has been silent for too long; the run's own end while silence is not the
    /// agent's fault.
    fn silence_due(&self) -> Mono {
        if self.is_silence_paused { self.run_due } else { self.sign_due }
    }

    /// Restarts the silence timeout from a time; a later deadline stays.
    pub(super) fn restart_silence(&mut self, from: Mono) {
        self.sign_due = self.sign_due.max(from + self.silence);
    }

    /// Returns whether the agent subscribes to facts of this type, whatever they are about.
    pub(super) fn is_subscribed_to(&self, name: &str) -> bool {
        self.events.iter().chain(&*self.subscribed).any(|pattern| pattern.matches(name))
    }

    /// Records that an event was handled completely.
    pub(super) fn advance_mark(&mut self, id: Option<AgentEventId>) {
        let Some(event_id) = id else { return };
        let text_bytes = self.text.len() - self.repeat_bytes.unwrap_or(0);
        self.mark = Some(EventMark { event_id, text_bytes });
    }

    /// Returns the new part of a piece: the agent of a resumed attempt repeats what lies after its mark. `None`: the
    /// repeated text differs from the earlier text.
    fn skip_repeated<'a>(&mut self, piece: &'a str) -> Option<&'a str> {
        let Some(again) = self.repeat_bytes.as_mut().filter(|_| !planted(Mutant::ResumeRepeats)) else {
            return Some(piece);
        };
        let known = usize::try_from(*again).unwrap_or(usize::MAX).min(piece.len());
        *again -= known as u64;
        piece.get(known..)
    }
}

/// Returns the failure for an agent whose repeated text differs from what it sent to the previous owner.
fn mismatched_resume() -> Ending {
    let why = "the agent was asked to resume and did not repeat its earlier events";
    Ending::from(AgentFailure::Broken(why.to_owned()))
}

impl Attempt {
    pub(super) fn poll_timeout(&self) -> Option<Deadline> {
        match self {
            Self::None => None,
            Self::Delayed { at, .. } => Some(Deadline { at: *at, label: "attempt" }),
            Self::Live(live) => {
                let text = [live.text.show_due(), live.text.save_at].into_iter().flatten();
                let text = text.map(|at| Deadline { at, label: "text" });
                let waits = match (live.cancel_due, live.steers.deadline()) {
                    (Some(at), _) => [Deadline { at, label: "cancel_ack" }; 2],
                    (None, Some(at)) => [Deadline { at, label: "steer_ack" }; 2],
                    (None, None) => [
                        Deadline { at: live.silence_due(), label: "agent" },
                        Deadline { at: live.run_due, label: "run" },
                    ],
                };
                text.chain(waits).min()
            }
        }
    }

    pub(super) fn start_cancel(&mut self, now: Now, wait: Duration) {
        if let Self::Live(live) = self {
            let wait = if planted(Mutant::CancelNeverForced) { Duration::from_secs(1 << 30) } else { wait };
            live.cancel_due = Some(now.mono + wait);
            live.steers.stop();
        }
    }
}

impl SessionRuntime {
    /// Starts the wait for INPUT_ACK once the order was sent.
    pub(super) fn mark_ordered(&mut self, now: Now, durable: Seq) {
        let Attempt::Live(live) = &mut self.attempt else { return };
        if !live.is_ordered && live.start_seq <= durable {
            live.is_ordered = true;
            live.sign_due = now.mono + live.input_ack;
        }
    }

    /// Returns the attempt that a report belongs to, if it is the current one; every other report is late.
    fn live_attempt(&mut self, run_id: &RunId, attempt: u32) -> Option<&mut LiveAttempt> {
        match &mut self.attempt {
            Attempt::Live(live) if live.run_id == *run_id => {
                (live.attempt == attempt || planted(Mutant::AttemptsMixed)).then_some(live)
            }
            Attempt::Live(_) | Attempt::Delayed { .. } | Attempt::None => None,
        }
    }

    pub(super) fn handle_agent_event(&mut self, now: Now, run_id: &RunId, attempt: u32, event: AgentEvent) {
        let Some(live) = self.live_attempt(run_id, attempt) else {
            self.counts.late_reports += 1;
            return;
        };
        let run_id = &run_id.clone();
        if live.cancel_due.is_some() && !planted(Mutant::LateOutputWins) {
            return self.handle_agent_event_cancelling(now, run_id, &event);
        }
        if live.steers.is_finishing() && !matches!(event, AgentEvent::Steered { .. } | AgentEvent::Alive) {
            self.counts.late_reports += 1;
            return;
        }
        (live.sign_due, live.steers.agent_reported) = (now.mono + live.silence, true);
        if event.data_bytes() > limits::FACT_DATA_BYTES_MAX {
            return self.end_turn(now, run_id, Ending::from(AgentFailure::TooLarge));
        }
        let again = live.repeat_bytes;
        match event {
            AgentEvent::Acked => self.handle_ack(now, run_id),
            AgentEvent::Delta { kind: TextKind::Text, text, id } => self.handle_text(now, run_id, &text, id),
            AgentEvent::Delta { kind: TextKind::Reasoning, text, id } => self.handle_reasoning(&text, id),
            AgentEvent::State { .. } if live.states >= limits::AGENT_STATES_MAX => self.counts.late_reports += 1,
            AgentEvent::State { state, detail, id } => self.handle_state(now, run_id, state, detail, id),
            AgentEvent::Done { .. } if again.is_some_and(|bytes| bytes > 0) => {
                self.end_turn(now, run_id, mismatched_resume())
            }
            AgentEvent::Done { stop, usage } => self.handle_done(now, run_id, stop, usage),
            AgentEvent::Steered { message_id, outcome } => self.handle_steer_ack(now, run_id, &message_id, outcome),
            AgentEvent::Handover { request, id } => self.handle_handover_request(now, run_id, *request, id),
            AgentEvent::Action { request, id } => self.handle_action_request(now, run_id, *request, id),
            AgentEvent::Subscribed(events) => live.subscribed = events,
            AgentEvent::Alive => {}
            AgentEvent::CancelAcked => self.counts.late_reports += 1,
            AgentEvent::Failed(AgentFailure::NotKnown) if again.is_some() => self.handle_unknown_attempt(now, run_id),
            AgentEvent::Failed(AgentFailure::Lost(why)) => self.handle_agent_lost(now, run_id, why),
            AgentEvent::Failed(AgentFailure::Answered(answer)) => self.handle_error_response(now, run_id, answer),
            AgentEvent::Failed(failure) => self.end_turn(now, run_id, Ending::from(failure)),
        }
    }

    /// Handles a report while a cancel is in progress. Only CANCEL_ACK counts, or the end of the stream, which
    /// implies it (SR-C7); a completion that crosses the cancel is too late (ST-12).
    fn handle_agent_event_cancelling(&mut self, now: Now, run_id: &RunId, event: &AgentEvent) {
        match event {
            AgentEvent::CancelAcked | AgentEvent::Done { .. } | AgentEvent::Failed(_) => {
                self.cancel_orphan(now, run_id)
            }
            AgentEvent::Steered { message_id, outcome } => self.handle_steer_ack(now, run_id, message_id, *outcome),
            AgentEvent::Alive => {}
            AgentEvent::Acked
            | AgentEvent::Delta { .. }
            | AgentEvent::State { .. }
            | AgentEvent::Handover { .. }
            | AgentEvent::Subscribed(_)
            | AgentEvent::Action { .. } => self.counts.late_reports += 1,
        }
    }

    fn routing_run(&self, run_id: &RunId) -> Option<&Run> {
        self.state.runs.get(run_id).map(Box::as_ref).filter(|run| run.phase == RunPhase::Routing)
    }

    fn handle_ack(&mut self, now: Now, run_id: &RunId) {
        let Some(run) = self.routing_run(run_id) else { return };
        let (Some(agent_id), attempt) = (run.agent.clone(), run.attempt) else { return };
        self.record(now, Fact::Run(RunFact::AgentStarted { agent_id, attempt }), RecordContext::agent(run_id));
    }

    /// Records a state of the agent. If events have ids, the text before it is recorded first, so that the log has
    /// the events in their order.
    fn handle_state(
        &mut self,
        now: Now,
        run_id: &RunId,
        state: String,
        detail: Option<Json>,
        id: Option<AgentEventId>,
    ) {
        if id.is_some() {
            self.checkpoint_text(now, run_id);
        }
        let Attempt::Live(live) = &mut self.attempt else { return };
        if live.repeat_bytes.is_some_and(|bytes| bytes > 0) {
            // A state before text that is already recorded: the previous owner left the state out, too.
            return;
        }
        live.states += 1;
        live.advance_mark(id);
        let mark = live.mark.clone().filter(|_| !planted(Mutant::StateUnmarked));
        let fact = Fact::Run(RunFact::State { scope: Scope::Agent, state, detail, mark });
        self.record(now, fact, RecordContext::agent(run_id));
    }

    fn handle_text(&mut self, now: Now, run_id: &RunId, piece: &Private<String>, id: Option<AgentEventId>) {
        let Attempt::Live(live) = &mut self.attempt else { return };
        let Some(piece) = live.skip_repeated(piece.reveal()) else {
            return self.end_turn(now, run_id, mismatched_resume());
        };
        if piece.is_empty() {
            return live.advance_mark(id);
        }
        if self.routing_run(run_id).is_some() {
            // A first piece of text implies the start, though INPUT_ACK is still expected (SR-G5).
            let scope = Scope::Run;
            let state = "RUNNING".to_owned();
            let fact = Fact::Run(RunFact::State { scope, state, detail: None, mark: None });
            self.record(now, fact, RecordContext::agent(run_id));
        }
        let Attempt::Live(live) = &mut self.attempt else { return };
        if live.text.len() + piece.len() as u64 > limits::TURN_TEXT_BYTES_MAX as u64 {
            return self.end_turn(now, run_id, Ending::from(AgentFailure::TooLarge));
        }
        let show = live.text.push(now, piece);
        live.advance_mark(id);
        let first = live.record_before_show && live.text.len() == piece.len() as u64;
        if first || live.text.is_save_due() {
            self.checkpoint_text(now, run_id);
        }
        if let Attempt::Live(live) = &mut self.attempt {
            live.show_after = if first { self.state.tail.seq } else { live.show_after };
        }
        if show {
            self.flush_text(now);
        }
    }

    fn handle_reasoning(&mut self, piece: &Private<String>, id: Option<AgentEventId>) {
        let Attempt::Live(live) = &mut self.attempt else { return };
        live.advance_mark(id);
        let offset = live.text.reasoning;
        let gate = live.show_after;
        live.text.reasoning += piece.reveal().len() as u64;
        let run_id = live.run_id.clone();
        let attempt = live.attempt;
        let kind = TextKind::Reasoning;
        let text = Private(Arc::from(piece.reveal()));
        self.outbox.push_after(gate, Output::Chunk(TextChunk { run_id, attempt, offset, kind, text }));
    }

    /// Shows the collected text.
    pub(super) fn flush_text(&mut self, now: Now) {
        let Attempt::Live(live) = &mut self.attempt else { return };
        let Some((offset, text)) = live.text.take_unshown(now) else { return };
        let run_id = live.run_id.clone();
        let attempt = live.attempt;
        let kind = TextKind::Text;
        self.outbox.push_after(live.show_after, Output::Chunk(TextChunk { run_id, attempt, offset, kind, text }));
    }

    /// Records all text that is not recorded yet.
    pub(super) fn checkpoint_text(&mut self, now: Now, run_id: &RunId) {
        loop {
            let Attempt::Live(live) = &self.attempt else { return };
            let Some((offset, text)) = live.text.next_unsaved() else { return };
            let attempt = live.attempt;
            let bytes = text.len() as u64;
            // The mark goes with the last part, since its event may end anywhere in the text.
            let mark = live.mark.clone().filter(|_| offset + bytes == live.text.len());
            let fact = Fact::Run(RunFact::TextDelta { attempt, offset, text: Private(text), mark });
            let seq = self.record(now, fact, RecordContext::agent(run_id));
            let Attempt::Live(live) = &mut self.attempt else { return };
            live.text.mark_saved(now, seq, bytes);
        }
    }

    /// Lets the agent be read further once recorded text is durable.
    pub(super) fn grant_credit(&mut self, durable: Seq) {
        let Attempt::Live(live) = &mut self.attempt else { return };
        if let Some(upto) = live.text.mark_durable(durable) {
            let run_id = live.run_id.clone();
            let attempt = live.attempt;
            self.outbox.push(Output::Order(Order::Credit { run_id, attempt, upto }));
        }
    }

    /// Returns the running text from an offset on, for a reader that has less: only text that is not durable yet,
    /// since the rest is in the log.
    pub fn text_since(&self, run_id: &RunId, attempt: u32, offset: u64) -> Option<(u64, Private<Arc<str>>)> {
        match &self.attempt {
            Attempt::Live(live) if live.run_id == *run_id && live.attempt == attempt => {
                self.outbox.is_durable(live.show_after).then(|| live.text.since(offset))
            }
            Attempt::Live(_) | Attempt::Delayed { .. } | Attempt::None => None,
        }
    }

    pub(super) fn attempt_timeout(&mut self, now: Now) {
        match &mut self.attempt {
            Attempt::None => {}
            Attempt::Delayed { at, .. } if *at > now.mono => {}
            Attempt::Delayed { cause: lost, .. } => {
                let lost = *lost;
                self.attempt = Attempt::None;
                if let Some(run_id) = self.state.running.clone() {
                    self.resume_or_restart(now, &run_id, lost);
                }
            }
            Attempt::Live(live) => {
                let run_id = live.run_id.clone();
                let show = live.text.show_due();
                let save = live.text.save_at;
                if show.is_some_and(|at| at <= now.mono) {
                    self.flush_text(now);
                }
                if save.is_some_and(|at| at <= now.mono) {
                    self.checkpoint_text(now, &run_id);
                }
                self.check_timeouts(now, &run_id);
            }
        }
    }

    /// Pauses the silence timeout of the running attempt while the gateway has work of its run in progress: an
    /// action, a handover that waits for a decision, or text that is not durable yet. The timeout starts again when
    /// the last of these has ended. Actions and handovers have deadlines of their own, and so has the run.
    pub(super) fn settle_silence(&mut self, now: Now) {
        let Attempt::Live(live) = &self.attempt else { return };
        // The wait for INPUT_ACK is separate: no work of this attempt is in progress yet.
        let is_awaiting = self.routing_run(&live.run_id).is_none() && self.has_work_for(&live.run_id);
        let Attempt::Live(live) = &mut self.attempt else { return };
        if live.is_silence_paused && !is_awaiting {
            live.restart_silence(now.mono);
        }
        live.is_silence_paused = is_awaiting;
    }

    /// Returns whether the run waits for work that the gateway has in progress.
    fn has_work_for(&self, run_id: &RunId) -> bool {
        let Attempt::Live(live) = &self.attempt else { return false };
        let handover = self.state.handovers.open.as_ref().is_some_and(|open| open.run_id == *run_id);
        let action = self.state.actions.open.values().any(|action| action.run_id == *run_id);
        handover || action || live.text.has_pending()
    }

    /// Ends the run if a timeout of the running attempt has expired.
    fn check_timeouts(&mut self, now: Now, run_id: &RunId) {
        let Attempt::Live(live) = &self.attempt else { return };
        let failed = |code, why: &str| Ending::failed(code, why);
        let ending = match live.cancel_due {
            None if live.steers.is_finishing() => return,
            Some(at) if at > now.mono => return,
            Some(_) => {
                let phase = self.state.runs.get(run_id).map(|run| run.phase.clone());
                let Some(RunPhase::Cancelling { reason, .. }) = phase else { return };
                Ending::Cancelled { reason, forced: true, answers: None }
            }
            None if live.run_due <= now.mono => failed(Code::AgentTimeout, "the run exceeded its time limit"),
            None if live.silence_due() > now.mono => return,
            None if self.routing_run(run_id).is_some() => {
                failed(Code::RouteTimeout, "the agent did not acknowledge the input in time")
            }
            None => failed(Code::AgentTimeout, "the agent timed out: no event within its silence limit"),
        };
        self.end_turn(now, run_id, ending);
    }
}
