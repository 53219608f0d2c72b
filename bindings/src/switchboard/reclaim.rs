//! Sessions of this node whose lease ran out: what nobody else has taken meanwhile goes on.
use super::Switchboard;
use super::seat::{Ear, Seat};
use turnway_core::id::{Epoch, Nonce, Seen, SessionKey};
use turnway_core::store::{Claimed, Op, Reply};
use turnway_core::time::Now;

impl Switchboard {
    /// What was owned under a life that is over is anyone's. It is asked for again with the next life, and
    /// until then nothing is recorded, begun or ended.
    pub(super) fn lose_seats(&mut self) {
        let (holder, leaving) = (self.lease.holder, self.drain.is_some());
        let mut gone = Vec::new();
        for (key, seat) in &mut self.seats {
            let epoch = match seat {
                Seat::Claiming { .. } => None,
                Seat::Loading { claimed, .. } => Some(claimed.token.epoch),
                // Released, or taken with a life that is over too: which, is not known.
                Seat::Owned(owned) if owned.releasing || owned.reclaim.is_some() || leaving => None,
                Seat::Owned(owned) => {
                    owned.reclaim = Some(Nonce(self.rng.next_u128()));
                    self.owed.insert(key.clone(), Seen { holder: Some(holder), epoch: owned.epoch() });
                    continue;
                }
            };
            if let Some(epoch) = epoch {
                self.owed.insert(key.clone(), Seen { holder: Some(holder), epoch });
            }
            gone.push(key.clone());
        }
        for key in gone {
            self.drop_seat(&key);
        }
    }

    /// Asks for what this node owned before, unless somebody else has it.
    pub(super) fn reclaim(&mut self, now: Now, key: &SessionKey, mine: Seen) {
        let Some(nonce) = self.seats.get(key).and_then(Seat::owned).and_then(|owned| owned.reclaim) else {
            return self.claim(now, key, mine);
        };
        let (holder, floor) = (self.lease.holder, self.feeds.get(key).map_or(Epoch(0), |feed| feed.epoch));
        self.store(Op::Claim { key: key.clone(), holder, nonce, expect: mine, floor });
    }

    /// A claim was won for what this node owned before: if nobody has written since, everything goes on
    /// where it was. False where it does not.
    pub(super) fn keep_seat(&mut self, now: Now, key: &SessionKey, claimed: &Claimed) -> bool {
        let Some(owned) = self.seats.get_mut(key).and_then(Seat::owned_mut) else { return false };
        if owned.reclaim.is_none() {
            return false;
        }
        let (old, inbox) = (owned.token, &claimed.inbox);
        if inbox.tail < owned.head || inbox.control_tail < owned.control_head {
            return false;
        }
        if claimed.view.tail != owned.tail() {
            // The append under way has happened, or somebody else wrote.
            let facts = owned.in_flight.as_ref().map_or(0, |append| append.facts.len() as u64);
            let written =
                claimed.view.tail.epoch == old.epoch && claimed.view.tail.seq.0 == owned.tail().seq.0 + facts;
            if facts == 0 || !written {
                return false;
            }
            let (tail, version) = (claimed.view.tail.seq, owned.version);
            let (inbox_tail, control_tail) = owned.heads;
            let reply = Reply::Appended { tail, inbox_tail, control_tail, version, listeners: None };
            self.appended(now, key, old, reply);
        }
        let Some(owned) = self.owned(key, old) else { return false };
        (owned.token, owned.version, owned.reclaim) = (claimed.token, claimed.version, None);
        owned.runtime.go_on(claimed.token);
        owned.ears.retain(|node, _| claimed.listeners.contains_key(node));
        for (node, stamp) in &claimed.listeners {
            owned.ears.entry(*node).or_insert(Ear::new(*stamp)).stamp = *stamp;
        }
        // A read under the old token has no answer that counts; the claim brought what it would have.
        (owned.reading, owned.read_again) = (false, false);
        let again = owned.in_flight.as_mut().map(|append| {
            (append.token, append.known) = (claimed.token, claimed.version);
            append.clone()
        });
        self.stats.claims += 1;
        if let Some(append) = again {
            self.store(Op::Append(Box::new(append)));
        }
        self.watch(now, key, Seen { holder: Some(self.lease.holder), epoch: claimed.token.epoch });
        self.inputs(now, key, claimed.token, claimed.inbox.clone());
        true
    }
}
