//! Counters and gauges of a node as plain numbers; the shell exports them as metrics.
use super::histogram::DurationHistogram;
use super::ownership::resources::ResourceGauges;
use std::time::Duration;
use turnway_core::id::Seq;
use turnway_core::protocol::binding::UnbindReason;
use turnway_core::protocol::delivery::DeliveryFailure;
use turnway_core::protocol::entry::{DeliveryFact, Fact, RunFact};
use turnway_core::protocol::input::Strategy;
use turnway_core::protocol::refusal::Code;
use turnway_core::protocol::route::{RouteAnswer, RouteMode, RouteReason};
use turnway_wire::channel::notification::ResetReason;

/// Counters since the start, and present gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchboardStats {
    pub links: u64,
    /// Gauge: subscribed sessions.
    pub feeds: u64,
    /// Gauge: sessions owned or being claimed.
    pub owned_sessions: u64,
    /// Gauge: attempts, content bytes of running inputs, owned sessions and subscriptions.
    pub held: CounterArray<{ ResourceGauges::NAMES.len() }>,
    /// The maxima of the same resources.
    pub held_max: CounterArray<{ ResourceGauges::NAMES.len() }>,
    /// Refusals at the bounds of the same resources.
    pub over_share: CounterArray<{ ResourceGauges::NAMES.len() }>,
    /// Gauge: turns that wait for a permit.
    pub permits_waiting: u64,
    /// Gauge: requests in progress.
    pub requests: u64,
    /// Gauge: pending timers.
    pub timers: u64,
    /// Gauge: unfinished turns of owned sessions.
    pub open_turns: u64,
    /// Gauge: time since the oldest of these turns came to this owner.
    pub oldest_turn: Duration,
    /// Gauge: turns of owned sessions that have not started.
    pub waiting_turns: u64,
    /// Gauge: the maximum number of these turns in one session.
    pub waiting_turns_max: u64,
    /// Inputs accepted for links of this node.
    pub accepted: u64,
    /// Accepted inputs that were repetitions.
    pub duplicates: u64,
    /// Time from receiving an input to reporting its durability to the link.
    pub accept_durations: DurationHistogram,
    /// Refused requests, by code.
    pub refused: CounterArray<{ Code::ALL.len() }>,
    /// Turns ended durably by this node, by outcome and then by strategy.
    pub ended: CounterArray<{ TurnResult::ALL.len() * Strategy::ALL.len() }>,
    /// Failed turns, by code.
    pub failed: CounterArray<{ Code::ALL.len() }>,
    /// Time from a turn's arrival at its owner to the first piece of an answer or of reasoning.
    pub first_delta_durations: DurationHistogram,
    /// Time from a turn's arrival at its owner to its durable end, by outcome.
    pub turn_durations: [DurationHistogram; TurnResult::ALL.len()],
    /// Attempts after the first of a run.
    pub restarts: u64,
    /// Attempts that were resumed here after the loss of another owner.
    pub resumed: u64,
    /// Reports of agents that came too late and were dropped.
    pub late_reports: u64,
    /// Facts written by this node.
    pub facts: u64,
    /// Time from the first request to append until the store's confirmation, including repetitions.
    pub append_durations: DurationHistogram,
    /// Claims that won.
    pub claims: u64,
    /// Claims that won over a holder that was gone.
    pub takeovers: u64,
    /// Claims that lost.
    pub claims_held: u64,
    /// Time from claiming a session until it is loaded and owned.
    pub claim_durations: DurationHistogram,
    /// Writes that the store's fence refused because this node had been replaced.
    pub fenced: u64,
    /// Owned sessions given up because store and memory disagreed.
    pub abandoned: u64,
    /// Owned sessions released.
    pub released: u64,
    /// Owned sessions transferred to a chosen node.
    pub transferred: u64,
    /// Sessions deleted because of their age.
    pub expired: u64,
    /// Bindings of conversations that this node reported to the logs of their sessions.
    pub bindings_bound: u64,
    /// Ends of bindings that this node reported, by reason.
    pub bindings_ended: CounterArray<{ UnbindReason::ALL.len() }>,
    /// Gauge: requests about bindings and rows of conversations in work.
    pub bindings_open: u64,
    /// Orders, parts and messages of conversations that are on their way.
    pub deliveries_open: u64,
    /// Gauge: tasks and questions about bindings in work.
    pub tasks_open: u64,
    /// Places of completions and of proactive sends that the router chose or refused, by mode and then by reason.
    pub routes: CounterArray<{ RouteMode::ALL.len() * RouteReason::ALL.len() }>,
    /// Connections of adapters.
    pub adapters: u64,
    /// Gauge: accounts with adapters here that are paused.
    pub accounts_paused: u64,
    /// Messages of conversations that started no turn because they were too old.
    pub stale_messages: u64,
    /// Parts that were given to adapters.
    pub parts_sent: u64,
    /// Signals that were given to adapters, by kind.
    pub signals_sent: CounterArray<{ SwitchboardStats::SIGNALS.len() }>,
    pub leases_lost: u64,
    /// Changes of deliveries that this node recorded, by change.
    pub deliveries: CounterArray<{ DeliveryChange::NAMES.len() }>,
    /// Deliveries that failed, by reason.
    pub deliveries_failed: CounterArray<{ DeliveryFailure::ALL.len() }>,
    /// Store ops that were repeated.
    pub store_retries: u64,
    /// Facts sent to links.
    pub facts_shown: u64,
    /// Pieces of text sent to links.
    pub deltas_shown: u64,
    /// Subscriptions answered and links reset, by kind of start.
    pub subscribed: CounterArray<{ SubscriptionStart::NAMES.len() }>,
    /// Snapshots that this release could not read; their states were rebuilt from the log.
    pub snapshots_unreadable: u64,
    /// Times that a link was too slow and its cursor was paused.
    pub slow_links: u64,
    /// Times that this node noticed missing facts.
    pub gaps: u64,
    /// Times that this node noticed a log other than the one it had shown, and checked every link again.
    pub resyncs: u64,
}

/// Counters for a fixed set of kinds, indexed by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterArray<const N: usize>(pub [u64; N]);

/// The outcome of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnResult {
    Completed,
    Failed,
    Cancelled,
}

/// A change of a delivery, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryChange {
    Requested,
    /// The platform has all parts.
    Sent,
    Held,
    Failed,
    Redriven,
    /// The router chose no place.
    Refused,
}

/// The position at which a subscription starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscriptionStart {
    /// At the present: no cursor was given.
    Present,
    /// At the cursor, with no fact after it.
    UpToDate,
    /// At the cursor, with facts after it.
    Behind,
    /// At the present, because the facts after the cursor have been trimmed.
    Trimmed {
        /// Facts up to this position are trimmed.
        floor: Seq,
    },
    /// At the present, because the log does not contain the fact at the cursor.
    Regressed,
}

impl<const N: usize> Default for CounterArray<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> CounterArray<N> {
    /// Counts one more of kind `number`.
    pub(super) fn add(&mut self, number: usize) {
        if let Some(count) = self.0.get_mut(number) {
            *count += 1;
        }
    }
}

impl TurnResult {
    /// Every outcome, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Completed, Self::Failed, Self::Cancelled];

    /// Returns the outcome's metric label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl DeliveryChange {
    /// Metric labels, by number.
    pub const NAMES: [&str; 6] = ["requested", "sent", "held", "failed", "redriven", "refused"];
}

impl SubscriptionStart {
    /// Metric labels, by number.
    pub const NAMES: [&str; 5] = ["present", "level", "behind", "trimmed", "regressed"];

    pub(super) fn number(self) -> usize {
        match self {
            Self::Present => 0,
            Self::UpToDate => 1,
            Self::Behind => 2,
            Self::Trimmed { .. } => 3,
            Self::Regressed => 4,
        }
    }

    /// Returns the reset that the link must be told of, if any.
    pub(super) fn reset_reason(self) -> Option<ResetReason> {
        match self {
            Self::Present | Self::UpToDate | Self::Behind => None,
            Self::Trimmed { floor } => Some(ResetReason::Trimmed { floor }),
            Self::Regressed => Some(ResetReason::Regressed),
        }
    }
}

impl SwitchboardStats {
    /// Metric labels of the kinds of signals, by number.
    pub const SIGNALS: [&str; 3] = ["typing", "preview", "delete_message"];

    /// Counts a durable fact of a delivery.
    pub(super) fn delivery_changed(&mut self, fact: &DeliveryFact) {
        let change = match fact {
            DeliveryFact::Requested(_) => DeliveryChange::Requested,
            DeliveryFact::Sent(sent) if sent.part == sent.parts => DeliveryChange::Sent,
            DeliveryFact::Attempted(_) | DeliveryFact::Sent(_) => return,
            DeliveryFact::Held(_) => DeliveryChange::Held,
            DeliveryFact::Failed(failed) => {
                self.deliveries_failed.add(failed.reason as usize);
                DeliveryChange::Failed
            }
            DeliveryFact::Redriven(_) => DeliveryChange::Redriven,
            DeliveryFact::Refused(_) => DeliveryChange::Refused,
        };
        self.deliveries.add(change as usize);
    }

    /// Counts an answer of the router.
    pub(super) fn count_route(&mut self, answer: &RouteAnswer) {
        if let RouteAnswer::Completion { route, .. } = answer {
            self.count_destination(route.mode, route.reason);
        }
    }

    /// Counts a place that the router chose, or a refusal.
    pub(super) fn count_destination(&mut self, mode: RouteMode, reason: RouteReason) {
        self.routes.add(mode as usize * RouteReason::ALL.len() + reason as usize);
    }

    /// Records the durable end of a turn that took `took` since its arrival.
    pub(super) fn turn_ended(&mut self, fact: &Fact, strategy: Strategy, took: Duration) {
        let outcome = if let Fact::Run(RunFact::Failed { code, .. }) = fact {
            self.failed.add(*code as usize);
            TurnResult::Failed
        } else if matches!(fact, Fact::Run(RunFact::Done { .. })) {
            TurnResult::Completed
        } else {
            TurnResult::Cancelled
        };
        self.ended.add(outcome as usize * Strategy::ALL.len() + strategy as usize);
        self.turn_durations[outcome as usize].record(took);
    }
}
