//! Durable requests: offered to their owner until it accepts them, and answered at their end.
use super::ask::{Ask, AskKey, Asker, RING, What};
use super::{Purpose, Switchboard, Timer, Waiting};
use crate::channel::note::Note;
use crate::peer::{Item, Words};
use std::collections::BTreeSet;
use std::sync::Arc;
use turnway_core::id::{ControlId, Epoch, LinkId, NodeId, Principal, RunId, Seen, SessionKey};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::entry::{Entry, Fact};
use turnway_core::protocol::history::History;
use turnway_core::protocol::input::{Ask as Asked, Input};
use turnway_core::protocol::refusal::Refusal;
use turnway_core::shrink::Shrink;
use turnway_core::time::Now;

/// Number of offers after which the store is asked for the owner again.
const RINGS_PER_LOOK: u32 = 4;

impl Switchboard {
    /// Offers a request to its owner; after several offers, asks the store again for the owner.
    pub(super) fn ring(&mut self, now: Now, ask_key: &AskKey) {
        let wait = self.jitter(RING);
        let Some(ask) = self.asks.get_mut(ask_key) else { return };
        ask.rings += 1;
        let (Some((place, prev)), Some(holder)) = (ask.place, ask.owner.holder) else {
            return self.look(now, ask_key);
        };
        if ask.rings.is_multiple_of(RINGS_PER_LOOK) {
            return self.look(now, ask_key);
        }
        let item = match &ask.what {
            What::Input(input) => Item::Input { place, prev, input: Arc::clone(input) },
            What::Control { control, .. } => Item::Control { place, prev, control: Arc::clone(control) },
        };
        let (key, owner) = (ask.key.clone(), ask.owner);
        self.timers.set(Timer::Ring(ask_key.clone()), now.mono + wait * ask.rings.min(20));
        if holder.node != self.me {
            self.timers.set_earlier(Timer::Knock, now.mono + limits::KNOCK);
        }
        self.tell(now, holder.node, Words::Bell { key, owner, item });
    }

    /// Records that the store itself notified the owner when it accepted the request; the answer is awaited as
    /// after any offer.
    pub(super) fn was_rung(&mut self, now: Now, ask_key: &AskKey, node: NodeId, heard: u32) {
        let wait = self.jitter(RING);
        let Some(ask) = self.asks.get_mut(ask_key) else { return };
        ask.rings += 1;
        self.timers.set(Timer::Ring(ask_key.clone()), now.mono + wait * ask.rings.min(20));
        self.timers.set_earlier(Timer::Knock, now.mono + limits::KNOCK);
        if heard == 0 {
            self.unheard(now, node);
        }
    }

    /// Sets the owner of every request of a session, and offers the requests to it.
    pub(super) fn ring_all(&mut self, now: Now, key: &SessionKey, owner: Seen) {
        for ask_key in self.asks_of.get(key).cloned().unwrap_or_default() {
            if let Some(ask) = self.asks.get_mut(&ask_key).filter(|ask| ask.place.is_some()) {
                ask.owner = owner;
                self.ring(now, &ask_key);
            }
        }
    }

    /// Handles a lost claim: another node is the owner, or was until it died.
    pub(super) fn held(&mut self, now: Now, key: &SessionKey, owner: Seen) {
        if let Some(feed) = self.feeds.get_mut(key).filter(|feed| feed.owner.epoch <= owner.epoch) {
            feed.owner = owner;
        }
        // If the store lost a claim, a late copy of an older one may have won; then no other node would look after
        // a session whose named owner is alive. If this node is named, it claims the session; otherwise it tells
        // the named node.
        let Some(holder) = owner.holder.filter(|holder| holder.node != self.me) else {
            return self.claim(now, key, owner);
        };
        self.takeover.joined_by(holder.node);
        self.ring_all(now, key, owner);
        self.tell(now, holder.node, Words::Adopt { key: key.clone(), free: owner });
    }

    /// Handles the message of a supposed owner that does not own the session: the session is free.
    pub(super) fn not_mine(&mut self, now: Now, key: &SessionKey, owner: Seen) {
        let mut asks =
            self.asks_of.get(key).into_iter().flatten().filter_map(|ask_key| self.asks.get(ask_key));
        if asks.any(|ask| ask.owner == owner) {
            self.claim(now, key, owner);
        }
    }

    /// Handles a dead node: claims its sessions with requests or open turns here.
    pub(super) fn died(&mut self, now: Now, node: NodeId) {
        let of = |owner: Seen| owner.holder.is_some_and(|holder| holder.node == node);
        let asked = self.asks.values().filter(|ask| of(ask.owner)).map(|ask| (ask.key.clone(), ask.owner));
        let shown = self.feeds.iter().filter(|(_, feed)| feed.state.has_open_turn() && of(feed.owner));
        let shown = shown.map(|(key, feed)| (key.clone(), feed.owner));
        for (key, owner) in asked.chain(shown).collect::<Vec<_>>() {
            self.claim(now, &key, owner);
        }
    }

    pub(super) fn remove_ask(&mut self, ask_key: &AskKey) -> Option<Ask> {
        let ask = self.asks.remove(ask_key)?;
        self.timers.clear(&Timer::Ring(ask_key.clone()));
        for asker in &ask.askers {
            if let Some(there) = self.links.get_mut(asker.link) {
                if !planted(Planted::AsksKept) {
                    there.asks.remove(ask_key);
                }
                there.asks.shrink_if_empty();
            }
        }
        if let Some(asks) = self.asks_of.get_mut(&ask.key) {
            asks.remove(ask_key);
            if asks.is_empty() {
                self.asks_of.remove(&ask.key);
            }
        }
        Some(ask)
    }

    pub(super) fn drop_ask(&mut self, ask_key: &AskKey, refusal: Refusal) {
        let Some(ask) = self.remove_ask(ask_key) else { return };
        let run_id = match &ask.what {
            What::Input(_) => None,
            What::Control { control, .. } => match &control.what {
                Asked::Cancel { run_id } => run_id.clone(),
                Asked::Open { .. }
                | Asked::Close
                | Asked::Switch { .. }
                | Asked::Invite { .. }
                | Asked::Remove { .. }
                | Asked::Handover { .. } => None,
            },
        };
        for asker in ask.askers.into_iter().filter(|asker| !asker.told) {
            let session = Some(ask.key.session.clone());
            self.refuse(asker.link, asker.request_id, session, run_id.clone(), refusal.clone());
        }
    }

    /// Handles the owner's confirmation of an input.
    pub(super) fn taken(&mut self, run_id: &RunId) {
        for ask_key in self.asks_of(run_id) {
            let Some(ask) = self.asks.get_mut(&ask_key) else { continue };
            if ask.askers.iter().all(|asker| asker.told) {
                self.remove_ask(&ask_key);
            } else {
                ask.in_hand = true;
            }
        }
    }

    fn asks_of(&self, run_id: &RunId) -> Vec<AskKey> {
        let all = AskKey::Input(run_id.clone(), [0; 32])..=AskKey::Input(run_id.clone(), [255; 32]);
        self.asks.range(all).map(|(ask_key, _)| ask_key.clone()).collect()
    }

    /// Handles the durable answer to a control entry.
    pub(super) fn answered(&mut self, control: &ControlId, shown: bool) {
        let named = |ask_key: &AskKey| matches!(ask_key, AskKey::Control(id, _) if id == control);
        let first = AskKey::Control(control.clone(), Principal::first());
        let asked = self.asks.range(first..).map(|(ask_key, _)| ask_key).take_while(|ask_key| named(ask_key));
        for ask_key in asked.cloned().collect::<Vec<_>>() {
            self.finish(&ask_key, shown);
        }
    }

    /// Completes a request and answers its clients. `shown`: a fact reports the result to the session's
    /// subscribers.
    pub(super) fn finish(&mut self, ask_key: &AskKey, shown: bool) {
        let Some(ask) = self.remove_ask(ask_key) else { return };
        let What::Control { control, .. } = &ask.what else { return };
        for asker in ask.askers {
            match &control.what {
                Asked::Open { .. } => self.show(&ask.key, asker, Purpose::Open),
                Asked::Switch { .. } | Asked::Invite { .. } | Asked::Remove { .. } => {
                    self.show(&ask.key, asker, Purpose::Members);
                }
                Asked::Handover { handover_id, .. } => {
                    self.show(&ask.key, asker, Purpose::Handover(*handover_id));
                }
                Asked::Close => {
                    let follows = self.links.get(asker.link).is_some_and(|link| link.follows(&ask.key));
                    if !(shown && follows) {
                        let (request_id, session) = (asker.request_id, ask.key.session.clone());
                        self.note(asker.link, Note::Closed { request_id, session });
                    }
                }
                Asked::Cancel { .. } if !asker.receipt => {}
                Asked::Cancel { run_id } => {
                    let (request_id, session) = (asker.request_id, ask.key.session.clone());
                    let run_id = run_id.clone();
                    self.note(asker.link, Note::CancelTaken { request_id, session, run_id });
                }
            }
        }
    }

    /// Answers a client with the session's state after its request.
    fn show(&mut self, key: &SessionKey, asker: Asker, purpose: Purpose) {
        let asked = self.view_number(key);
        let waiting = Waiting { link: asker.link, request_id: asker.request_id, asked, purpose };
        self.views.entry(key.clone()).or_default().push(waiting);
        self.view(key);
    }

    pub(super) fn forget_askers(&mut self, link: LinkId, asks: BTreeSet<AskKey>) {
        // A request is dropped with its last client; a stored one is found by its owner or by a sweep.
        for ask_key in asks {
            let Some(ask) = self.asks.get_mut(&ask_key) else { continue };
            ask.askers.retain(|asker| asker.link != link);
            if ask.askers.is_empty() {
                self.remove_ask(&ask_key);
            }
        }
    }

    /// Releases the acceptance of turns whose first facts arrive, which proves their durability, so that no link
    /// sees a part of a turn before `turn_accepted` (protocol.md §1.3).
    pub(super) fn release_asks(&mut self, now: Now, facts: &[(Epoch, Arc<Entry>)]) {
        for (_, entry) in facts {
            let Some(run_id) = entry.run_id.as_ref().filter(|_| !self.asks.is_empty()) else { continue };
            if let Fact::UserMessage { .. } = &entry.fact {
                for ask_key in self.asks_of(run_id) {
                    self.release_ask(now, &ask_key, &entry.fact);
                }
            }
            if matches!(entry.fact, Fact::RunStarted { .. }) || entry.fact.is_terminal() {
                self.taken(run_id);
            }
        }
    }

    fn release_ask(&mut self, now: Now, ask_key: &AskKey, said: &Fact) {
        let Some(ask) = self.asks.get_mut(ask_key) else { return };
        let What::Input(input) = ask.what.clone() else { return };
        if !is_said(&input, said) {
            return;
        }
        let key = ask.key.clone();
        let links = &self.links;
        let follows = |link: LinkId| links.get(link).is_some_and(|there| there.follows(&key));
        let mut told = Vec::new();
        for asker in ask.askers.iter_mut().filter(|asker| !asker.told && follows(asker.link)) {
            asker.told = true;
            self.stats.accepting.add(now.mono - asker.since);
            told.push((asker.link, asker.request_id.clone()));
        }
        for (link, request_id) in told {
            self.note_accepted(link, &key, &input, request_id, false);
        }
    }
}

/// Returns whether the fact records this input, and not another body with the same id.
fn is_said(input: &Input, said: &Fact) -> bool {
    let Fact::UserMessage { message, history_sha256, agent_id, strategy, metadata, .. } = said else {
        return false;
    };
    input.message == *message
        && input.history.as_ref().map(History::sha256) == *history_sha256
        && input.agent_id == *agent_id
        && input.strategy == *strategy
        && input.metadata == *metadata
}
