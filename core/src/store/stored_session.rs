//! A stored session of the model store, with the atomic steps on it.
use crate::id::{
    ControlId, Cursor, Epoch, FenceToken, Holder, InboxPosition, ListenStamp, ListenersVersion, NodeId, Nonce,
    OwnershipSnapshot, Principal, RunId, Seq, UserId,
};
use crate::limits;
use crate::mutant::{Mutant, planted};
use crate::protocol::annotation::{Annotations, apply_annotations};
use crate::protocol::entry::Entry;
use crate::protocol::input::{BodyHash, ControlEntry, Input, Strategy};
use crate::shrink::Shrink;
use crate::store::blob::{BlobAction, BlobTable, change_blobs};
use crate::store::meter::RecordSizes;
use crate::store::{
    Acceptance, Append, Claimed, CreationKey, FactPage, InboxContents, Reply, RouteVersion, RunLocation,
    SessionSummary, SessionView, Snapshot, SnapshotWrite, StoreRefusal,
};
use crate::time::Millis;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A session as the model store holds it. Fields are public for the simulator's checkers.
#[derive(Clone, Debug, Default)]
pub struct StoredSession {
    /// The fencing token of the current ownership.
    pub token: FenceToken,
    /// The owner, if any.
    pub holder: Option<Holder>,
    /// The user that the session belongs to.
    pub user: Option<UserId>,
    /// Time at which the session was created.
    pub created_at: Millis,
    pub closed: bool,
    /// Short texts that lists show.
    pub annotations: Annotations,
    /// True after deletion: only the user, the epoch and the last positions are left.
    pub deleted: bool,
    /// Facts after `floor`, each with the token under which it was written.
    pub log: Vec<(FenceToken, Arc<Entry>)>,
    /// Facts up to this position are deleted.
    pub floor: Seq,
    /// Inputs that have not ended.
    pub inbox: BTreeMap<InboxPosition, Arc<Input>>,
    /// Control entries that are not answered.
    pub control: BTreeMap<InboxPosition, Arc<ControlEntry>>,
    /// Every message ever accepted, by the run that it opens.
    pub accepted_messages: BTreeMap<RunId, AcceptedMessage>,
    /// The latest version by which a conversation that led here has led elsewhere, and the time of that record.
    pub(super) fences: BTreeMap<RunId, (u64, Millis)>,
    /// Every control entry ever accepted: its position and the position before.
    pub accepted_controls: BTreeMap<ControlId, (InboxPosition, InboxPosition)>,
    /// Listening nodes, with the stamps of their requests.
    pub listeners: BTreeMap<NodeId, ListenStamp>,
    /// Version of the set of listeners.
    pub version: ListenersVersion,
    /// The latest stored state.
    pub snapshot: Option<Snapshot>,
    /// Blobs and uploads.
    pub blobs: BlobTable,
    /// Bytes of the session's records, if they are counted.
    pub(super) sizes: RecordSizes,
    last_epoch: Epoch,
    inbox_tail: InboxPosition,
    control_tail: InboxPosition,
}

/// An accepted message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedMessage {
    /// Its position in the inbox.
    pub position: InboxPosition,
    prev: InboxPosition,
    hash: BodyHash,
    log_tail: Cursor,
    accepted_at: Millis,
    /// End of the append with its terminal fact.
    pub ended: Option<Seq>,
}

impl StoredSession {
    /// Returns the ownership as a claimer sees it.
    pub fn ownership(&self) -> OwnershipSnapshot {
        OwnershipSnapshot { holder: self.holder, epoch: self.token.epoch }
    }
    /// Returns the end of the log.
    pub fn log_tail(&self) -> Cursor {
        Cursor { seq: Seq(self.floor.0 + self.log.len() as u64), epoch: self.last_epoch }
    }

    /// Assigns the session to the first user of a free id.
    fn assign_user(&mut self, now: Millis, principal: &Principal) {
        if self.user.is_none() {
            (self.user, self.created_at) = (Some(principal.user.clone()), now);
        }
    }

    fn belongs_to_other(&self, principal: &Principal) -> bool {
        !principal.operator && self.user.as_ref().is_some_and(|user| *user != principal.user)
    }

    /// Returns the reason why a principal may not bind a conversation to the session.
    pub(super) fn bind_refusal(&self, principal: &Principal) -> Option<StoreRefusal> {
        if self.is_hidden_from(principal) {
            return Some(StoreRefusal::NotFound);
        }
        self.closed.then_some(StoreRefusal::Closed)
    }

    /// Returns whether the session is not there, or not the principal's.
    pub(super) fn is_hidden_from(&self, principal: &Principal) -> bool {
        self.user.is_none() || self.deleted || self.belongs_to_other(principal)
    }

    /// Performs an action on the session's blobs; `refuses` as for [`Self::accept`].
    pub(super) fn act_on_blobs(
        &mut self,
        now: Millis,
        principal: &Principal,
        action: &BlobAction,
        refuses: impl FnOnce(&RecordSizes, &UserId, u64) -> Option<StoreRefusal>,
    ) -> Reply {
        let user = self.user.as_ref().filter(|_| !self.deleted);
        let Some(user) = user.filter(|_| !self.belongs_to_other(principal)) else {
            return Reply::Refused(StoreRefusal::NotFound);
        };
        if action.adds() && self.closed {
            return Reply::Refused(StoreRefusal::Closed);
        }
        let reply = change_blobs(self.blobs.clone(), now, action);
        let gain = reply.table.bytes().saturating_sub(self.blobs.bytes());
        if gain > 0
            && let Some(refused) = refuses(&self.sizes, user, gain)
        {
            return Reply::Refused(refused);
        }
        self.blobs = reply.table.clone();
        Reply::Blobs(Box::new(reply))
    }

    /// Accepts an input; `refuses` returns the reason if the store has no room for that many bytes of a user.
    pub(super) fn accept(
        &mut self,
        now: Millis,
        principal: &Principal,
        (input, hash, route): (Arc<Input>, BodyHash, Option<&RouteVersion>),
        refuses: impl FnOnce(&RecordSizes, &UserId, u64) -> Option<StoreRefusal>,
    ) -> Reply {
        if self.deleted || self.belongs_to_other(principal) {
            return Reply::Refused(StoreRefusal::NotFound);
        }
        let owner = self.ownership();
        if let Some(accepted) = self.accepted_messages.get(&input.run_id)
            && !planted(Mutant::NoDedupe)
        {
            if accepted.hash != hash {
                return Reply::Refused(StoreRefusal::Conflict);
            }
            let position = accepted.position;
            let prev = accepted.prev;
            let tail = accepted.log_tail;
            let ended = accepted.ended.is_some();
            return Reply::Accepted(Acceptance::first(position, prev, owner, tail).again(ended));
        }
        let bytes: usize = self.inbox.values().map(|input| input.weight()).sum();
        let is_fenced =
            |route: &RouteVersion| self.fences.get(&route.place).is_some_and(|fence| fence.0 > route.version);
        if route.is_some_and(is_fenced) {
            return Reply::Refused(StoreRefusal::Busy);
        }
        if self.closed {
            return Reply::Refused(StoreRefusal::Closed);
        }
        if input.strategy == Strategy::Reject && !self.inbox.is_empty() {
            return Reply::Refused(StoreRefusal::Busy);
        }
        if self.inbox.len() >= limits::INBOX_INPUTS_MAX || bytes + input.weight() > limits::INBOX_BYTES_MAX {
            return Reply::Refused(StoreRefusal::TooMany);
        }
        let user = self.user.as_ref().unwrap_or(&principal.user);
        if let Some(refused) = refuses(&self.sizes, user, input.weight() as u64) {
            return Reply::Refused(refused);
        }
        let prev = self.inbox_tail;
        let tail = self.log_tail();
        let position = InboxPosition(now.0.max(prev.0 + 1));
        self.inbox_tail = position;
        self.assign_user(now, principal);
        let accepted = AcceptedMessage { position, prev, hash, log_tail: tail, accepted_at: now, ended: None };
        self.accepted_messages.insert(input.run_id.clone(), accepted);
        self.inbox.insert(position, input);
        Reply::Accepted(Acceptance::first(position, prev, owner, tail))
    }

    pub(super) fn control(
        &mut self,
        now: Millis,
        principal: &Principal,
        control: Arc<ControlEntry>,
        create: bool,
    ) -> Reply {
        if self.deleted || self.belongs_to_other(principal) || (self.user.is_none() && !create) {
            return Reply::Refused(StoreRefusal::NotFound);
        }
        let owner = self.ownership();
        let tail = self.log_tail();
        if let Some(&(position, prev)) = self.accepted_controls.get(&control.id) {
            let ended = !self.control.contains_key(&position);
            return Reply::Accepted(Acceptance::first(position, prev, owner, tail).again(ended));
        }
        if let Some(run_id) = control.what.cancelled_run()
            && !self.accepted_messages.contains_key(run_id)
        {
            return Reply::Refused(StoreRefusal::NotFound);
        }
        if self.control.len() >= limits::CONTROL_ENTRIES_MAX {
            return Reply::Refused(StoreRefusal::TooMany);
        }
        let prev = self.control_tail;
        let position = InboxPosition(now.0.max(prev.0 + 1));
        self.control_tail = position;
        self.assign_user(now, principal);
        self.accepted_controls.insert(control.id.clone(), (position, prev));
        self.control.insert(position, control);
        Reply::Accepted(Acceptance::first(position, prev, owner, tail))
    }

    pub(super) fn find(&self, principal: &Principal, run_id: &RunId) -> Reply {
        match self.accepted_messages.get(run_id).filter(|_| !self.belongs_to_other(principal)) {
            Some(accepted) => Reply::Found(RunLocation { after: accepted.log_tail, ended: accepted.ended }),
            None => Reply::Refused(StoreRefusal::NotFound),
        }
    }

    pub(super) fn find_control(&self, principal: &Principal, id: &ControlId) -> Reply {
        let is_hidden = self.deleted || self.belongs_to_other(principal);
        match self.accepted_controls.get(id).filter(|_| !is_hidden) {
            Some((position, _)) => Reply::ControlFound { ended: !self.control.contains_key(position) },
            None => Reply::Refused(StoreRefusal::NotFound),
        }
    }

    /// Finds a run; if it was not accepted, inputs that an older version of a binding led here are not accepted any more.
    pub(super) fn find_or_fence(
        &mut self,
        now: Millis,
        principal: &Principal,
        run_id: &RunId,
        fence: &RouteVersion,
    ) -> Reply {
        let reply = self.find(principal, run_id);
        let is_absent = matches!(reply, Reply::Refused(_)) && !self.deleted && !self.belongs_to_other(principal);
        let is_later = self.fences.get(&fence.place).is_none_or(|known| known.0 < fence.version);
        if is_absent && is_later {
            self.fences.insert(fence.place.clone(), (fence.version, now));
        }
        reply
    }

    /// Deletes everything except that the session existed. Epochs and positions continue from their last values.
    pub(super) fn delete(&mut self, principal: &Principal) -> Reply {
        if self.user.is_none() || self.belongs_to_other(principal) {
            return Reply::Refused(StoreRefusal::NotFound);
        }
        if self.deleted {
            return Reply::Done;
        }
        if !self.closed || !self.inbox.is_empty() || !self.control.is_empty() {
            return Reply::Refused(StoreRefusal::Busy);
        }
        self.clear_contents();
        Reply::Done
    }

    /// Deletes a session that was not used since a time.
    pub(super) fn delete_if_idle(&mut self, before: Millis) -> Reply {
        if self.user.is_none() || self.deleted {
            return Reply::Refused(StoreRefusal::NotFound);
        }
        let last = self.log.last().map_or(0, |(_, fact)| fact.time.0);
        if !self.is_idle(before) || last / 1000 >= before.0 / 1000 {
            return Reply::Refused(StoreRefusal::Busy);
        }
        self.clear_contents();
        Reply::Done
    }

    /// Returns whether the session has no owner and no waiting entries, and was neither written to nor claimed by its
    /// last writer since a time.
    pub(super) fn is_idle(&self, before: Millis) -> bool {
        let is_used = self.user.is_some() && !self.deleted;
        let is_quiet = self.holder.is_none() && self.inbox.is_empty() && self.control.is_empty();
        let last = self.inbox_tail.0.max(self.control_tail.0).max(self.last_epoch.0);
        is_used && is_quiet && last < before.0
    }

    fn clear_contents(&mut self) {
        let was = std::mem::take(self);
        *self = Self {
            token: FenceToken { epoch: Epoch(was.token.epoch.0 + 1), nonce: Nonce::default() },
            user: was.user,
            created_at: was.created_at,
            closed: true,
            deleted: true,
            listeners: was.listeners,
            version: was.version,
            sizes: was.sizes,
            inbox_tail: was.inbox_tail,
            control_tail: was.control_tail,
            ..Self::default()
        };
    }

    pub(super) fn summary(&self, birth: &CreationKey) -> Option<SessionSummary> {
        if self.deleted {
            return None;
        }
        Some(SessionSummary {
            birth: birth.clone(),
            user: self.user.clone()?,
            closed: self.closed,
            tail: self.log_tail().seq,
            pending: u32::try_from(self.inbox.len()).unwrap_or(u32::MAX),
            annotations: self.annotations.clone(),
        })
    }

    pub(super) fn claim(
        &mut self,
        now: Millis,
        holder: Holder,
        nonce: Nonce,
        expect: OwnershipSnapshot,
        floor: Epoch,
    ) -> Reply {
        if self.token.nonce != nonce || self.holder != Some(holder) {
            let seen = self.ownership();
            if seen.holder != expect.holder || (seen.epoch != expect.epoch && !planted(Mutant::ClaimIgnoresEpoch)) {
                return Reply::OwnershipConflict { owner: seen };
            }
            let clock = if planted(Mutant::EpochCounts) { 0 } else { now.0.max(floor.0 + 1) };
            self.token = FenceToken { epoch: Epoch(clock.max(self.token.epoch.0 + 1)), nonce };
            self.holder = Some(holder);
        }
        let inbox = self.inbox_after(InboxPosition(0), InboxPosition(0));
        let token = self.token;
        let version = self.version;
        let listeners = self.listeners.clone();
        Reply::Claimed(Box::new(Claimed { token, view: self.view(), inbox, listeners, version }))
    }

    pub(super) fn inbox_after(&self, after: InboxPosition, control_after: InboxPosition) -> InboxContents {
        let inputs = self.inbox.range(InboxPosition(after.0 + 1)..).map(|(at, input)| (*at, Arc::clone(input)));
        let controls =
            self.control.range(InboxPosition(control_after.0 + 1)..).map(|(at, control)| (*at, Arc::clone(control)));
        let inputs = inputs.collect();
        let controls = controls.collect();
        InboxContents { inputs, tail: self.inbox_tail, controls, control_tail: self.control_tail }
    }

    fn is_fenced(&self, token: FenceToken) -> bool {
        let lax = planted(Mutant::NoFence) || (planted(Mutant::FenceByOrder) && token.epoch >= self.token.epoch);
        !lax && (token != self.token || self.holder.is_none())
    }

    pub(super) fn append(&mut self, append: &Append) -> Reply {
        let Append { token, after, facts, ends, answers, closed, known_listeners: known, .. } = append;
        if self.is_fenced(*token) {
            return Reply::Fenced;
        }
        let written = |n: usize| after.0.checked_sub(self.floor.0).and_then(|from| self.log.get(from as usize + n));
        let repeat = !facts.is_empty()
            && facts
                .iter()
                .enumerate()
                .all(|(n, fact)| written(n).is_some_and(|(by, there)| by == token && there == fact));
        if !repeat {
            if *after != self.log_tail().seq {
                return Reply::OutOfOrder;
            }
            if let Some((position, _)) = ends.iter().find(|(position, _)| !self.inbox.contains_key(position)) {
                return Reply::InputMissing { position: *position };
            }
            self.log.extend(facts.iter().map(|fact| (*token, Arc::clone(fact))));
            if !facts.is_empty() {
                self.last_epoch = token.epoch;
            }
            let last = self.log_tail().seq;
            for (position, run_id) in ends {
                if !planted(Mutant::ConsumeApart) {
                    self.inbox.remove(position);
                    self.inbox.shrink_if_empty();
                }
                if let Some(accepted) = self.accepted_messages.get_mut(run_id) {
                    accepted.ended = Some(last);
                }
            }
            for position in answers {
                self.control.remove(position);
                self.control.shrink_if_empty();
            }
            self.closed = closed.unwrap_or(self.closed);
            apply_annotations(&mut self.annotations, &append.annotations);
        }
        let listeners = (*known != self.version).then(|| self.listeners.clone());
        let inbox_tail = self.inbox_tail;
        let control_tail = self.control_tail;
        let version = self.version;
        Reply::Appended { tail: self.log_tail().seq, inbox_tail, control_tail, version, listeners }
    }

    pub(super) fn release(&mut self, token: FenceToken, tail: Seq, drain: bool) -> Reply {
        if token != self.token || self.holder.is_none() {
            return Reply::Fenced;
        }
        let left = !self.inbox.is_empty() || !self.control.is_empty();
        if tail != self.log_tail().seq || (!drain && left) {
            return Reply::NotReleased;
        }
        self.holder = None;
        Reply::Released
    }

    pub(super) fn transfer(&mut self, now: Millis, token: FenceToken, tail: Seq, to: Holder, nonce: Nonce) -> Reply {
        if self.token.nonce == nonce && self.holder == Some(to) {
            return Reply::Transferred { token: self.token };
        }
        if token != self.token || self.holder.is_none() {
            return Reply::Fenced;
        }
        if tail != self.log_tail().seq {
            return Reply::OutOfOrder;
        }
        let next = Epoch(now.0.max(token.epoch.0 + 1));
        let epoch = if planted(Mutant::TransferKeepsEpoch) { token.epoch } else { next };
        self.token = FenceToken { epoch, nonce };
        self.holder = Some(to);
        Reply::Transferred { token: self.token }
    }

    pub(super) fn listen(&mut self, node: NodeId, stamp: ListenStamp, leased: impl Fn(NodeId) -> bool) -> Reply {
        let full = |slot: &Self| !slot.listeners.contains_key(&node) && slot.listeners.len() >= limits::LISTENERS_MAX;
        if full(self) {
            // Dead nodes do not unlisten.
            self.listeners.retain(|node, _| leased(*node));
        }
        if full(self) {
            return Reply::Refused(StoreRefusal::TooMany);
        }
        let known = self.listeners.get(&node).copied();
        if known.is_none_or(|known| known < stamp) {
            self.listeners.insert(node, stamp);
            self.version.0 += 1;
        }
        Reply::Listening { owner: self.ownership(), tail: self.log_tail() }
    }

    pub(super) fn unlisten(&mut self, node: NodeId, stamp: ListenStamp) {
        let unstamped = planted(Mutant::ListenUnstamped);
        if self.listeners.get(&node).is_some_and(|known| unstamped || *known <= stamp) {
            self.listeners.remove(&node);
            self.version.0 += 1;
        }
    }

    fn facts_after(&self, after: Seq) -> impl Iterator<Item = (Epoch, Arc<Entry>)> {
        let skip = after.0.saturating_sub(self.floor.0) as usize;
        self.log.iter().skip(skip).map(|(token, fact)| (token.epoch, Arc::clone(fact)))
    }

    pub(super) fn view(&self) -> SessionView {
        let after = self.snapshot.as_ref().map_or(Seq(0), |snapshot| snapshot.at.seq);
        SessionView {
            owner: self.ownership(),
            user: self.user.clone().filter(|_| !self.deleted),
            closed: self.closed,
            snapshot: self.snapshot.clone(),
            facts: self.facts_after(after).collect(),
            tail: self.log_tail(),
            floor: self.floor,
        }
    }

    pub(super) fn read(&self, after: Seq, limit: u32) -> Reply {
        let after = after.max(self.floor);
        let mut facts = Vec::new();
        let mut bytes = 0;
        for (epoch, fact) in self.facts_after(after).take(limit as usize) {
            bytes += fact.weight();
            if bytes > limits::READ_BYTES_MAX && !facts.is_empty() {
                break;
            }
            facts.push((epoch, fact));
        }
        Reply::Facts(FactPage { after, facts, tail: self.log_tail(), floor: self.floor })
    }

    pub(super) fn write_snapshot(&mut self, keep: &SnapshotWrite) -> Reply {
        if self.is_fenced(keep.token) {
            return Reply::Fenced;
        }
        if keep.at.seq <= self.log_tail().seq && self.snapshot.as_ref().is_none_or(|kept| kept.at.seq < keep.at.seq) {
            self.snapshot = Some(Snapshot { at: keep.at, state: Arc::clone(&keep.state) });
        }
        Reply::Done
    }

    pub(super) fn trim(&mut self, token: FenceToken, upto: Seq) -> Reply {
        if self.is_fenced(token) {
            return Reply::Fenced;
        }
        let kept = self.snapshot.as_ref().map_or(Seq(0), |snapshot| snapshot.at.seq);
        let upto = upto.min(kept).max(self.floor);
        self.log.drain(..(upto.0 - self.floor.0) as usize);
        self.floor = upto;
        Reply::Done
    }

    pub(super) fn expire(&mut self, before: Millis) {
        let floor = self.floor;
        self.accepted_messages.retain(|_, accepted| {
            !(accepted.accepted_at < before && accepted.ended.is_some_and(|ended| ended <= floor))
        });
        self.fences.retain(|_, (_, since)| *since >= before);
    }
}

#[cfg(test)]
mod tests;
