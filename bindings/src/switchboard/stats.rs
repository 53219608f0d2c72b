//! What a node counts. Plain numbers: the shell makes metrics of them.
use super::Switchboard;
use super::holdings::Held;
use super::seat::Seat;
use super::spread::Spread;
use crate::channel::note::Reset;
use std::time::Duration;
use turnway_core::id::Seq;
use turnway_core::protocol::entry::Fact;
use turnway_core::protocol::input::Strategy;
use turnway_core::protocol::refusal::Code;
use turnway_core::time::Now;

/// Totals since start, and what there is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Now: links.
    pub links: u64,
    /// Now: sessions listened to.
    pub feeds: u64,
    /// Now: sessions owned, or about to be.
    pub seats: u64,
    /// Now: attempts, content bytes of running inputs, owned sessions and subscriptions.
    pub held: Tally<{ Held::NAMES.len() }>,
    /// The same: as much as may be held.
    pub held_max: Tally<{ Held::NAMES.len() }>,
    /// Times that a request or a turn met a bound of these.
    pub over_share: Tally<{ Held::NAMES.len() }>,
    /// Now: turns that wait for a place among the attempts.
    pub permits_waiting: u64,
    /// Now: requests on their way.
    pub asks: u64,
    /// Now: timers set.
    pub timers: u64,
    /// Now: turns of owned sessions that have not ended.
    pub open_turns: u64,
    /// Now: since when the oldest of them has been with this owner.
    pub oldest_turn: Duration,
    /// Now: turns of owned sessions that have not begun.
    pub waiting_turns: u64,
    /// Now: the most of them in one session.
    pub waiting_turns_max: u64,
    /// Inputs accepted for links here.
    pub accepted: u64,
    /// Of these, repeats.
    pub duplicates: u64,
    /// From taking an input from its link to telling the link that it is durable.
    pub accepting: Spread,
    /// Requests refused, by code.
    pub refused: Tally<{ Code::ALL.len() }>,
    /// Turns ended here, durably, by outcome and then by strategy.
    pub ended: Tally<{ Outcome::ALL.len() * Strategy::ALL.len() }>,
    /// Of these the failed ones, by code.
    pub failed: Tally<{ Code::ALL.len() }>,
    /// From a turn's coming to its owner to the first piece of an answer, or of reasoning.
    pub first_delta: Spread,
    /// From a turn's coming to its owner to its durable end, by outcome.
    pub whole_turn: [Spread; Outcome::ALL.len()],
    /// Attempts after the first.
    pub restarts: u64,
    /// Attempts that went on here after another owner was lost.
    pub resumed: u64,
    /// Reports of agents that came too late: dropped.
    pub late_reports: u64,
    /// Facts written here.
    pub facts: u64,
    /// From asking the store for a write to a log, to its answer that it is durable; however often it
    /// had to be asked.
    pub appending: Spread,
    /// Claims that won.
    pub claims: u64,
    /// Of these, over a holder that was gone.
    pub takeovers: u64,
    /// Claims that lost.
    pub claims_held: u64,
    /// From asking for a session to owning it, loaded.
    pub taking_up: Spread,
    /// Writes the fence refused: this node had been replaced.
    pub fenced: u64,
    /// Seats given up because store and memory did not agree.
    pub abandoned: u64,
    /// Seats released.
    pub released: u64,
    /// Seats handed to a node of one's choice.
    pub transferred: u64,
    /// Sessions deleted because of their age.
    pub expired: u64,
    /// Leases lost.
    pub leases_lost: u64,
    /// Ops asked again.
    pub store_retries: u64,
    /// Facts shown to links.
    pub facts_shown: u64,
    /// Pieces of text shown to links.
    pub deltas_shown: u64,
    /// Subscriptions answered, and links told to start over, by how.
    pub subscribed: Tally<{ Start::NAMES.len() }>,
    /// Snapshots this release could not read; their states were rebuilt from the log.
    pub snapshots_unreadable: u64,
    /// Times a link was too slow and its cursor stood still.
    pub slow_links: u64,
    /// Times this node noticed that it lacked facts.
    pub gaps: u64,
    /// Times it noticed that the log was not what it had shown, and looked at all of it again.
    pub resyncs: u64,
}

/// Counts of a few kinds, by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally<const N: usize>(pub [u64; N]);

/// How turns end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The agent said all it wanted.
    Completed,
    /// It did not work out.
    Failed,
    /// Somebody wanted it to stop.
    Cancelled,
}

/// Where a subscription begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At the present: it named no cursor.
    Present,
    /// At its cursor, and there was nothing after it.
    Level,
    /// At its cursor, and what came after it is shown.
    Behind,
    /// At the present, since what followed its cursor is forgotten.
    Trimmed {
        /// Facts up to this are.
        floor: Seq,
    },
    /// At the present, since the log holds no such fact.
    Regressed,
}

impl<const N: usize> Default for Tally<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> Tally<N> {
    /// One more of this number.
    pub(super) fn add(&mut self, number: usize) {
        if let Some(count) = self.0.get_mut(number) {
            *count += 1;
        }
    }
}

impl Outcome {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Completed, Self::Failed, Self::Cancelled];

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl Start {
    /// Their names, by number.
    pub const NAMES: [&str; 5] = ["present", "level", "behind", "trimmed", "regressed"];

    pub(super) fn number(self) -> usize {
        match self {
            Self::Present => 0,
            Self::Level => 1,
            Self::Behind => 2,
            Self::Trimmed { .. } => 3,
            Self::Regressed => 4,
        }
    }

    /// What the link is told of it.
    pub(super) fn reset(self) -> Option<Reset> {
        match self {
            Self::Present | Self::Level | Self::Behind => None,
            Self::Trimmed { floor } => Some(Reset::Trimmed { floor }),
            Self::Regressed => Some(Reset::Regressed),
        }
    }
}

impl Stats {
    /// A turn that came this way and has been here for so long has ended, durably, with this fact.
    pub(super) fn turn_ended(&mut self, fact: &Fact, strategy: Strategy, took: Duration) {
        let outcome = if let Fact::RunFailed { code, .. } = fact {
            self.failed.add(*code as usize);
            Outcome::Failed
        } else if matches!(fact, Fact::RunDone { .. }) {
            Outcome::Completed
        } else {
            Outcome::Cancelled
        };
        self.ended.add(outcome as usize * Strategy::ALL.len() + strategy as usize);
        self.whole_turn[outcome as usize].add(took);
    }
}

impl Switchboard {
    /// What it has counted. Costs a look at every session it owns.
    pub fn stats(&self, now: Now) -> Stats {
        let (mut open, mut waiting, mut most, mut oldest) = (0, 0, 0, now.mono);
        for runtime in self.seats.values().filter_map(Seat::owned).map(|owned| &owned.runtime) {
            let (runs, waits) = (runtime.state().runs.len() as u64, runtime.state().waiting.len() as u64);
            (open, waiting, most) = (open + runs, waiting + waits, waits.max(most));
            oldest = runtime.oldest().map_or(oldest, |at| at.min(oldest));
        }
        let (held, permits_waiting) = self.held_amounts();
        let tally = |of: fn(&Held) -> u64| Tally(held.map(|held| of(&held)));
        Stats {
            links: self.links.len() as u64,
            feeds: self.feeds.len() as u64,
            seats: self.seats.len() as u64,
            held: tally(|held| held.now),
            held_max: tally(|held| held.capacity),
            over_share: tally(|held| held.refused),
            permits_waiting,
            asks: self.asks.len() as u64,
            timers: self.timers.len() as u64,
            open_turns: open,
            oldest_turn: now.mono - oldest,
            waiting_turns: waiting,
            waiting_turns_max: most,
            ..self.stats
        }
    }
}
