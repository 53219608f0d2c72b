//! The upkeep of a node on the measured store: the machine of the product, driven by the clock.
use crate::ops::{changed_key, number_of};
use crate::store_client::{ABREAST, StoreClient};
use std::time::{Duration, Instant};
use turnway_bindings::upkeep::{BindingUpkeep, Input, SEARCH_INTERVAL_MIN};
use turnway_core::limits::DUE_BINDINGS_MAX;
use turnway_core::machine::Machine;
use turnway_core::rng::Rng;
use turnway_core::store::binding::BindingAction;
use turnway_core::store::{ConversationOp, ConversationReply, Op, Reply};
use turnway_core::time::{Millis, Mono, Now};

/// The upkeep of one node, and the ops that it has performed.
pub(crate) struct Upkeep {
    machine: BindingUpkeep,
    start: Instant,
    pub(crate) counts: UpkeepCounts,
}

/// Numbers of performed ops.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UpkeepCounts {
    /// Searches for rows that are due.
    pub(crate) searches: usize,
    /// Names of rows that the searches returned.
    pub(crate) found: usize,
    /// Rows that were examined because they were due.
    pub(crate) tended: usize,
    /// Entries for the logs of sessions.
    pub(crate) recorded: usize,
    /// Reports taken from rows.
    pub(crate) settled: usize,
}

impl Upkeep {
    pub(crate) fn new() -> Self {
        let machine = BindingUpkeep::new(Rng::from_number(1));
        Self { machine, start: Instant::now(), counts: UpkeepCounts::default() }
    }

    /// The machine uses the time of the store for nothing.
    fn now(&self) -> Now {
        Now { mono: Mono(self.start.elapsed()), store: Millis(0) }
    }

    /// Submits what the machine wants performed.
    fn submit_outputs(&mut self, store: &StoreClient) {
        while let Some(op) = self.machine.poll_output() {
            store.submit(op);
        }
    }

    fn count(&mut self, op: &Op, reply: &Reply) {
        match (op, reply) {
            (_, Reply::Conversation(ConversationReply::Due(keys))) => {
                self.counts.searches += 1;
                self.counts.found += keys.len();
            }
            (Op::Control { .. }, Reply::Accepted(_)) => self.counts.recorded += 1,
            (Op::Conversation { op: ConversationOp::Change { action: BindingAction::Tend, .. }, .. }, _) => {
                self.counts.tended += 1;
            }
            (Op::Conversation { op: ConversationOp::Change { action: BindingAction::Settle { .. }, .. }, .. }, _) => {
                self.counts.settled += 1;
            }
            unexpected => panic!("{unexpected:?}"),
        }
    }

    fn handle_reply(&mut self, store: &StoreClient, op: Op, reply: Reply) {
        self.count(&op, &reply);
        self.machine.handle_input(self.now(), Input::Stored { op, result: Ok(reply) });
        self.submit_outputs(store);
    }

    /// Searches for due rows and does what is due, until so many reports are settled.
    pub(crate) async fn run_until_settled(&mut self, store: &mut StoreClient, settled: usize) -> Duration {
        let start = Instant::now();
        while self.counts.settled < settled {
            let deadline = self.machine.poll_timeout().expect("the next search");
            match store.answer_before(self.start + deadline.at.0).await {
                Some((op, reply)) => self.handle_reply(store, op, reply),
                None => {
                    self.machine.handle_timeout(self.now());
                    self.submit_outputs(store);
                }
            }
        }
        start.elapsed()
    }

    /// Changes rows and has the log of each session record the change at once, as the node does that was asked for the
    /// change. `changed` is told the reply to each change.
    pub(crate) async fn change_and_record(
        &mut self,
        store: &mut StoreClient,
        mut ops: impl Iterator<Item = Op>,
        mut changed: impl FnMut(usize, &Reply),
    ) -> Duration {
        let start = Instant::now();
        let mut in_flight = 0;
        let mut is_over = false;
        loop {
            while !is_over && in_flight + self.machine.open_count() < ABREAST {
                match ops.next() {
                    Some(op) => store.submit(op),
                    None => is_over = true,
                }
                in_flight += usize::from(!is_over);
            }
            if is_over && in_flight + self.machine.open_count() == 0 {
                return start.elapsed();
            }
            let (op, reply) = store.answer().await;
            if !is_request(&op) {
                self.handle_reply(store, op, reply);
                continue;
            }
            in_flight -= 1;
            let key = changed_key(&op).clone();
            changed(number_of(&key), &reply);
            let Reply::Conversation(ConversationReply::Row { row: Some(row), .. }) = reply else { panic!("{reply:?}") };
            self.machine.handle_input(self.now(), Input::Changed { key, row });
            self.submit_outputs(store);
        }
    }
}

/// Returns whether an op is a request of a user, not of the upkeep.
fn is_request(op: &Op) -> bool {
    let Op::Conversation { op: ConversationOp::Change { action, .. }, .. } = op else { return false };
    matches!(action, BindingAction::Bind(_) | BindingAction::Unbind { .. })
}

/// Returns the maximum number of searches in a time, if every one of them finds more than it can name.
pub(crate) fn searches_max(took: Duration) -> usize {
    1 + usize::try_from(took.as_millis() / SEARCH_INTERVAL_MIN.as_millis()).expect("a number")
}

/// Names of rows that one search returns.
pub(crate) const SEARCH_NAMES: usize = DUE_BINDINGS_MAX as usize;
