//! The attempt that this owner has in progress, which is not in the log. The families of runs and inputs share it.
use crate::id::{AgentEventId, RunId, Seq};
use crate::mutant::{Mutant, planted};
use crate::private::Private;
use crate::protocol::agent::{AgentPolicy, EventMark, OnOwnerLoss, StopReason, TextKind};
use crate::protocol::chunk::TextChunk;
use crate::protocol::entry::{Fact, RunFact};
use crate::protocol::json::Json;
use crate::protocol::pattern::Pattern;
use crate::session::context::SessionContext;
use crate::session::outbox::Output;
use crate::session::plan::{Plan, RecordContext};
use crate::session::text::AttemptText;
use crate::time::{Deadline, Mono, Now};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The loss that a turn suffered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LossCause {
    /// The node that owned the session.
    Owner,
    /// The connection to the turn's agent, which had dialed in.
    Agent,
    /// An attempt that the agent refused because it was busy.
    Turn,
}

// === impl LossCause ===

impl LossCause {
    /// Returns the reason as recorded in facts.
    pub(super) fn reason(self) -> String {
        match self {
            Self::Owner => "owner_lost",
            Self::Agent => "agent_lost",
            Self::Turn => "agent_busy",
        }
        .to_owned()
    }
}

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
    pub(super) show_after: Seq,
    /// True if the first text must be recorded before it is shown, because the agent may be asked again only if no
    /// text was shown (`retry_if_silent`).
    pub(super) record_before_show: bool,
    /// For an attempt resumed from another owner: recorded bytes of text that the agent still has to repeat. `None`:
    /// the attempt was started here.
    pub(super) repeat_bytes: Option<u64>,
    /// The last event that was handled completely here, if events have ids.
    pub(super) mark: Option<EventMark>,
    pub(super) states: u32,
    /// The fact after which the order is sent; `is_ordered` tells whether the order was sent.
    pub(super) start_seq: Seq,
    pub(super) is_ordered: bool,
    pub(super) input_ack: Duration,
    /// Deadline of INPUT_ACK, or of the next sign of life.
    pub(super) sign_due: Mono,
    pub(super) silence: Duration,
    /// True while the gateway has work of this run in progress; until that has ended, silence is not the agent's
    /// fault.
    pub(super) is_silence_paused: bool,
    /// End of the whole run; its time stands still while a call of a model is open.
    pub(super) run_due: Mono,
    /// True while a call of a model of this run is open.
    pub(super) is_run_paused: bool,
    pub(super) cancel_due: Option<Mono>,
    /// Inputs that were handed to the agent during the attempt.
    pub(super) steers: PendingSteers,
    /// Types of facts that the agent is always sent, and those that the agent has subscribed to.
    events: Arc<[Pattern]>,
    pub(super) subscribed: Arc<[Pattern]>,
}

/// This owner's part of the inputs that were handed to the current attempt, which is not in the log.
#[derive(Debug, Default)]
pub(super) struct PendingSteers {
    /// True once the agent has reported something, and so knows of the run.
    pub(super) agent_reported: bool,
    /// Inputs sent to the agent, with the time until which the answer is awaited.
    pub(super) sent: BTreeMap<RunId, Mono>,
    /// Set once the agent has finished while its answers to sent inputs are awaited.
    pub(super) outcome: Option<(StopReason, Option<Json>)>,
}

// === impl PendingSteers ===

impl PendingSteers {
    pub(super) fn is_finishing(&self) -> bool {
        self.outcome.is_some()
    }

    /// Stops waiting for answers, because the run is cancelled.
    pub(super) fn stop(&mut self) {
        self.outcome = None;
    }

    /// Returns the deadline of the last awaited answer, if any is awaited.
    pub(super) fn deadline(&self) -> Option<Mono> {
        self.outcome.as_ref().and_then(|_| self.sent.values().max().copied())
    }
}

// === impl LiveAttempt ===

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
            is_run_paused: false,
            cancel_due: None,
            steers: PendingSteers::default(),
            events: Arc::clone(&policy.events),
            subscribed: Arc::default(),
        }
    }

    /// Returns the time at which the agent has been silent for too long; none while silence is not the agent's fault.
    pub(super) fn silence_due(&self) -> Option<Mono> {
        (!self.is_silence_paused).then_some(self.sign_due)
    }

    /// Returns the end of the whole run; none while the run's time stands still.
    pub(super) fn run_end(&self) -> Option<Mono> {
        (!self.is_run_paused).then_some(self.run_due)
    }

    /// Restarts the wait for the next sign of life from a time; a later deadline stays.
    pub(super) fn restart_silence(&mut self, from: Mono, wait: Duration) {
        self.sign_due = self.sign_due.max(from + wait);
    }

    /// Returns whether the agent subscribes to facts of this type, whatever they are about.
    pub(super) fn is_subscribed_to(&self, name: &str) -> bool {
        self.events.iter().chain(&*self.subscribed).any(|pattern| pattern.matches(name))
    }

    /// Shows the collected text.
    pub(super) fn show_text(&mut self, now: Now, plan: &mut Plan) {
        let Some((offset, text)) = self.text.take_unshown(now) else { return };
        let run_id = self.run_id.clone();
        let attempt = self.attempt;
        let kind = TextKind::Text;
        plan.send_at(self.show_after, Output::Chunk(TextChunk { run_id, attempt, offset, kind, text }));
    }

    /// Records all text that is not recorded yet.
    pub(super) fn save_text(&mut self, context: &SessionContext, plan: &mut Plan) {
        while let Some((offset, text)) = self.text.next_unsaved() {
            let attempt = self.attempt;
            let bytes = text.len() as u64;
            // The mark goes with the last part, since its event may end anywhere in the text.
            let mark = self.mark.clone().filter(|_| offset + bytes == self.text.len());
            let fact = Fact::Run(RunFact::TextDelta { attempt, offset, text: Private(text), mark });
            let seq = plan.record(context, fact, RecordContext::agent(&self.run_id));
            self.text.mark_saved(context.now, seq, bytes);
        }
    }

    /// Handles the end of an event that requests something: the text before it is recorded first, so that the log has
    /// the agent's events in their order. Returns the mark of the event; `None`: the event repeats an earlier one.
    pub(super) fn finish_request(
        &mut self,
        context: &SessionContext,
        id: Option<AgentEventId>,
        plan: &mut Plan,
    ) -> Option<Option<EventMark>> {
        if id.is_some() {
            self.save_text(context, plan);
        }
        if self.repeat_bytes.is_some_and(|bytes| bytes > 0) {
            return None;
        }
        self.advance_mark(id);
        Some(self.mark.clone())
    }

    /// Records that an event was handled completely.
    pub(super) fn advance_mark(&mut self, id: Option<AgentEventId>) {
        let Some(event_id) = id else { return };
        let text_bytes = self.text.len() - self.repeat_bytes.unwrap_or(0);
        self.mark = Some(EventMark { event_id, text_bytes });
    }

    /// Returns the new part of a piece: the agent of a resumed attempt repeats what lies after its mark. `None`: the
    /// repeated text differs from the earlier text.
    pub(super) fn skip_repeated<'a>(&mut self, piece: &'a str) -> Option<&'a str> {
        let Some(again) = self.repeat_bytes.as_mut().filter(|_| !planted(Mutant::ResumeRepeats)) else {
            return Some(piece);
        };
        let known = usize::try_from(*again).unwrap_or(usize::MAX).min(piece.len());
        *again -= known as u64;
        piece.get(known..)
    }
}

// === impl Attempt ===

impl Attempt {
    pub(super) fn poll_timeout(&self) -> Option<Deadline> {
        match self {
            Self::None => None,
            Self::Delayed { at, .. } => Some(Deadline { at: *at, label: "attempt" }),
            Self::Live(live) => {
                let text = [live.text.show_due(), live.text.save_at].into_iter().flatten();
                let text = text.map(|at| Deadline { at, label: "text" });
                let waits = match (live.cancel_due, live.steers.deadline()) {
                    (Some(at), _) => [Some(Deadline { at, label: "cancel_ack" }), None],
                    (None, Some(at)) => [Some(Deadline { at, label: "steer_ack" }), None],
                    (None, None) => [
                        live.silence_due().map(|at| Deadline { at, label: "agent" }),
                        live.run_end().map(|at| Deadline { at, label: "run" }),
                    ],
                };
                text.chain(waits.into_iter().flatten()).min()
            }
        }
    }

    /// Returns the attempt in progress.
    pub(super) fn live(&self) -> Option<&LiveAttempt> {
        match self {
            Self::Live(live) => Some(live),
            Self::Delayed { .. } | Self::None => None,
        }
    }

    /// Returns the attempt in progress, to change it.
    pub(super) fn live_mut(&mut self) -> Option<&mut LiveAttempt> {
        match self {
            Self::Live(live) => Some(live),
            Self::Delayed { .. } | Self::None => None,
        }
    }

    /// Returns the attempt of a run, if the run is the one in progress.
    pub(super) fn live_run(&self, run_id: &RunId) -> Option<&LiveAttempt> {
        self.live().filter(|live| live.run_id == *run_id)
    }

    /// Starts the wait for INPUT_ACK once the order was sent.
    pub(super) fn mark_ordered(&mut self, now: Now, durable: Seq) {
        let Some(live) = self.live_mut() else { return };
        if !live.is_ordered && live.start_seq <= durable {
            live.is_ordered = true;
            live.sign_due = now.mono + live.input_ack;
        }
    }

    /// Gives up an attempt that has not begun.
    pub(super) fn drop_delayed(&mut self) {
        if matches!(self, Self::Delayed { .. }) {
            *self = Self::None;
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
