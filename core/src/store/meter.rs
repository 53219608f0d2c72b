//! Stored bytes in the model store: the size of each session, computed from its contents after each op. The model
//! store calls it, unless it is created without quotas.
use crate::id::{Place, Seq, SessionKey, UserId};
use crate::limits;
use crate::store::quota::{Measure, Quotas, Usage, fact_bytes, state_bytes, waiting_bytes};
use crate::store::{Refused, Slot};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Weight of a control entry in bytes: a few names.
const CONTROL_WEIGHT: u64 = 256;

/// Stored bytes of users, and their bounds.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    measure: Measure,
    quotas: Quotas,
    /// Bytes that the store may hold in all; `None`: unbounded.
    room: Option<u64>,
    usage: Usage,
}

/// Bytes of the records of one session, kept in its slot. All zero if bytes are not counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Sizes {
    /// Facts up to this position were deleted.
    floor: Seq,
    log: VecDeque<u64>,
    facts: u64,
    inbox: BTreeMap<Place, u64>,
    control: BTreeMap<Place, u64>,
    /// Position and bytes of the stored state.
    state: Option<(Seq, u64)>,
    total: u64,
    /// The part of `total` that is counted for the session's user.
    counted: u64,
}

// === impl Meter ===

impl Meter {
    /// Creates the meter of an empty store that may hold `room` bytes.
    pub(super) fn new(measure: Measure, quotas: Quotas, room: Option<u64>) -> Self {
        Self { measure, quotas, room, usage: Usage::default() }
    }

    /// Returns the reason if there is no room for an input of a session that is, or will be, the user's.
    pub(super) fn refuses(
        &self,
        key: &SessionKey,
        sizes: &Sizes,
        user: &UserId,
        weight: u64,
    ) -> Option<Refused> {
        let free = self.room.map(|room| room.saturating_sub(self.usage.total()));
        if free.is_some_and(|free| free < weight) {
            return Some(Refused::Full);
        }
        if self.quotas == Quotas::OFF {
            return None;
        }
        let account = Usage::account(key, user);
        let gain = sizes.uncounted().saturating_add_unsigned(weight);
        self.usage.over(self.quotas, &account, gain, free).map(|_| Refused::Quota)
    }

    /// Counts the change in a session's size since the last call. Only sessions that belong to a user count.
    pub(super) fn follow(&mut self, key: &SessionKey, slot: &mut Slot) {
        let mut sizes = std::mem::take(&mut slot.sizes);
        sizes.follow(self.measure, key, slot);
        slot.sizes = sizes;
        let most = if self.measure == Measure::Deferred && slot.holder.is_some() {
            limits::UNCOUNTED_BYTES_MAX
        } else {
            1
        };
        if slot.sizes.uncounted().unsigned_abs() >= most {
            self.settle(key, slot);
        }
    }

    /// Counts the remaining difference of a session that its owner has released.
    pub(super) fn settle(&mut self, key: &SessionKey, slot: &mut Slot) {
        let gain = slot.sizes.uncounted();
        slot.sizes.counted = slot.sizes.total;
        if let Some(user) = slot.user.as_ref().filter(|_| gain != 0) {
            self.usage.count(&Usage::account(key, user), gain);
        }
    }

    /// Returns the bytes of all users.
    pub(super) fn total(&self) -> u64 {
        self.usage.total()
    }
}

// === impl Sizes ===

impl Sizes {
    fn uncounted(&self) -> i64 {
        self.total.wrapping_sub(self.counted).cast_signed()
    }

    fn follow(&mut self, measure: Measure, key: &SessionKey, slot: &Slot) {
        // A deleted session starts from zero.
        if slot.floor < self.floor || slot.log.is_empty() {
            self.log = VecDeque::new();
            (self.facts, self.floor) = (0, slot.floor);
        }
        let gone = usize::try_from(slot.floor.0 - self.floor.0).unwrap_or(usize::MAX);
        self.facts -= self.log.drain(..gone.min(self.log.len())).sum::<u64>();
        self.floor = slot.floor;
        let mut seq = Seq(self.floor.0 + self.log.len() as u64);
        for (token, fact) in slot.log.iter().skip(self.log.len()) {
            seq = Seq(seq.0 + 1);
            let bytes = match measure {
                Measure::Text | Measure::Deferred => fact_bytes(fact.to_json(key, seq, token.epoch).len()),
                Measure::Weight => fact.weight() as u64,
            };
            self.log.push_back(bytes);
            self.facts += bytes;
        }
        lane(&mut self.inbox, &slot.inbox, |input| match measure {
            Measure::Text | Measure::Deferred => json_bytes(input),
            Measure::Weight => input.weight() as u64,
        });
        lane(&mut self.control, &slot.control, |control| match measure {
            Measure::Text | Measure::Deferred => json_bytes(control),
            Measure::Weight => CONTROL_WEIGHT,
        });
        let kept = slot.snapshot.as_ref().map(|kept| (kept.at.seq, state_bytes(kept.state.len())));
        self.state = kept;
        let lanes = self.inbox.values().chain(self.control.values());
        let state = self.state.map_or(0, |(_, bytes)| bytes);
        self.total = self.facts + lanes.sum::<u64>() + state;
    }
}

fn lane<T>(sizes: &mut BTreeMap<Place, u64>, there: &BTreeMap<Place, Arc<T>>, bytes: impl Fn(&T) -> u64) {
    sizes.retain(|place, _| there.contains_key(place));
    for (place, waits) in there {
        sizes.entry(*place).or_insert_with(|| bytes(waits));
    }
}

/// Waiting entries have string keys and finite numbers only, so they always serialise.
fn json_bytes(waits: &impl Serialize) -> u64 {
    waiting_bytes(serde_json::to_vec(waits).map_or(0, |json| json.len()))
}
