//! Stored bytes in the model store: the size of each session, computed from its contents after each op. The model
//! store calls it, unless it is created without quotas.
use crate::id::{InboxPosition, Seq, SessionKey, UserId};
use crate::limits;
use crate::store::quota::{ByteMeasure, Quotas, Usage, fact_bytes, state_bytes, waiting_bytes};
use crate::store::{StoreRefusal, StoredSession};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Weight of a control entry in bytes: a few names.
const CONTROL_WEIGHT: u64 = 256;

/// Stored bytes of users, and their bounds.
#[derive(Clone, Debug)]
pub(super) struct ModelUsageMeter {
    measure: ByteMeasure,
    quotas: Quotas,
    /// Bytes that the store may hold in all; `None`: unbounded.
    capacity: Option<u64>,
    usage: Usage,
}

/// Bytes of the records of one session, kept in its slot. All zero if bytes are not counted.
#[derive(Clone, Debug, Default)]
pub(super) struct RecordSizes {
    /// Facts up to this position were deleted.
    floor: Seq,
    log: VecDeque<u64>,
    facts: u64,
    inbox: BTreeMap<InboxPosition, u64>,
    control: BTreeMap<InboxPosition, u64>,
    /// Position and bytes of the stored state.
    state: Option<(Seq, u64)>,
    /// Bytes of blobs, and of the room that is kept for uploads.
    blobs: u64,
    total: u64,
    /// The part of `total` that is counted for the session's user.
    counted: u64,
}

// === impl ModelUsageMeter ===

impl ModelUsageMeter {
    /// Creates the meter of an empty store that may hold `capacity` bytes.
    pub(super) fn new(measure: ByteMeasure, quotas: Quotas, capacity: Option<u64>) -> Self {
        Self { measure, quotas, capacity, usage: Usage::default() }
    }

    /// Returns the reason if there is no room for an input of a session that is, or will be, the user's.
    pub(super) fn check_room(
        &self,
        key: &SessionKey,
        sizes: &RecordSizes,
        user: &UserId,
        weight: u64,
    ) -> Option<StoreRefusal> {
        let free = self.capacity.map(|capacity| capacity.saturating_sub(self.usage.total()));
        if free.is_some_and(|free| free < weight) {
            return Some(StoreRefusal::Full);
        }
        if self.quotas == Quotas::OFF {
            return None;
        }
        let account = Usage::account(key, user);
        let gain = sizes.uncounted().saturating_add_unsigned(weight);
        self.usage.exceeded_quota(self.quotas, &account, gain, free).map(|_| StoreRefusal::Quota)
    }

    /// Counts the change in a session's size since the last call. Only sessions that belong to a user count.
    pub(super) fn update(&mut self, key: &SessionKey, slot: &mut StoredSession) {
        let mut sizes = std::mem::take(&mut slot.sizes);
        sizes.update(self.measure, key, slot);
        slot.sizes = sizes;
        let most = if self.measure == ByteMeasure::Deferred && slot.holder.is_some() {
            limits::UNCOUNTED_BYTES_MAX
        } else {
            1
        };
        if slot.sizes.uncounted().unsigned_abs() >= most {
            self.flush(key, slot);
        }
    }

    /// Counts the remaining difference of a session that its owner has released.
    pub(super) fn flush(&mut self, key: &SessionKey, slot: &mut StoredSession) {
        let gain = slot.sizes.uncounted();
        slot.sizes.counted = slot.sizes.total;
        if let Some(user) = slot.user.as_ref().filter(|_| gain != 0) {
            self.usage.record_unmarked(&Usage::account(key, user), gain);
        }
    }

    /// Returns the bytes of all users.
    pub(super) fn total(&self) -> u64 {
        self.usage.total()
    }
}

// === impl RecordSizes ===

impl RecordSizes {
    fn uncounted(&self) -> i64 {
        self.total.wrapping_sub(self.counted).cast_signed()
    }

    fn update(&mut self, measure: ByteMeasure, key: &SessionKey, slot: &StoredSession) {
        // A deleted session starts from zero, with an empty log.
        if slot.log.is_empty() {
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
                ByteMeasure::Text | ByteMeasure::Deferred => fact_bytes(fact.to_json(key, seq, token.epoch).len()),
                ByteMeasure::Weight => fact.weight() as u64,
            };
            self.log.push_back(bytes);
            self.facts += bytes;
        }
        update_lane(&mut self.inbox, &slot.inbox, |input| match measure {
            ByteMeasure::Text | ByteMeasure::Deferred => json_bytes(input),
            ByteMeasure::Weight => input.weight() as u64,
        });
        update_lane(&mut self.control, &slot.control, |control| match measure {
            ByteMeasure::Text | ByteMeasure::Deferred => json_bytes(control),
            ByteMeasure::Weight => CONTROL_WEIGHT,
        });
        let kept = slot.snapshot.as_ref().map(|kept| (kept.at.seq, state_bytes(kept.state.len())));
        self.state = kept;
        self.blobs = slot.blobs.bytes();
        let lanes = self.inbox.values().chain(self.control.values());
        let state = self.state.map_or(0, |(_, bytes)| bytes);
        self.total = self.facts + lanes.sum::<u64>() + state + self.blobs;
    }
}

fn update_lane<T>(
    sizes: &mut BTreeMap<InboxPosition, u64>,
    there: &BTreeMap<InboxPosition, Arc<T>>,
    bytes: impl Fn(&T) -> u64,
) {
    sizes.retain(|position, _| there.contains_key(position));
    for (position, waits) in there {
        sizes.entry(*position).or_insert_with(|| bytes(waits));
    }
}

/// Waiting entries have string keys and finite numbers only, so they always serialise.
fn json_bytes(waits: &impl Serialize) -> u64 {
    waiting_bytes(serde_json::to_vec(waits).map_or(0, |json| json.len()))
}
