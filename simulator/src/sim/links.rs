//! Simulated connections: messages in flight, reading speed, and the checks of the messages shown.
use super::check::{LinkHistory, View, privacy};
use super::world::{LineId, ScheduledEvent, World};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use turnway_core::id::{LinkId, Principal, RequestId, SessionId, SessionKey};
use turnway_core::limits;
use turnway_core::time::Mono;
use turnway_node::switchboard::Input;
use turnway_wire::channel::command::LinkCommand;
use turnway_wire::channel::notification::{CommandReply, Notification};

/// Bytes of answers that may be buffered besides the text and facts of a full link.
const ANSWERS_BYTES: usize = 160 * 1024;
/// Bytes of a fact that is sent together with the text that it records.
const STRETCH_BYTES: usize = limits::CHECKPOINT_BYTES + 1024;

/// One accepted connection of a client.
pub(crate) struct Connection {
    pub(crate) client: usize,
    pub(crate) principal: Principal,
    /// Requests without an answer.
    pub(crate) asks: BTreeMap<RequestId, LinkCommand>,
    /// Those of `asks` that were sent before the session existed.
    early: BTreeSet<RequestId>,
    /// Requests that the node has received; a paused node receives none.
    pub(crate) noticed: BTreeSet<RequestId>,
    /// Link histories, by session.
    pub(crate) follows: BTreeMap<SessionId, LinkHistory>,
    /// True once the client has left; the node notices later.
    pub(crate) deserted: bool,
    /// Bytes read per tick; 0 reads everything at once.
    pace: usize,
    stalled_until: Mono,
    queue: VecDeque<Notification>,
    flushing: bool,
    /// Bytes that the node does not know to be written.
    unwritten: usize,
    /// Bytes read and not reported.
    read: usize,
    reporting: bool,
}

/// Returns the session that a message is about.
pub(crate) fn told_of(note: &Notification) -> Option<&SessionId> {
    match note {
        Notification::Fact { session, .. }
        | Notification::Chunk { session, .. }
        | Notification::Reply(CommandReply::Performed { session, .. } | CommandReply::CancelAccepted { session, .. })
        | Notification::ProcessOutput { session, .. } => Some(session),
        Notification::Reply(CommandReply::TurnAccepted(accepted)) => Some(&accepted.session),
        Notification::Reply(CommandReply::MessageAccepted(accepted)) => Some(&accepted.session),
        Notification::Reply(CommandReply::ChildRequested(child)) => Some(&child.session),
        Notification::Reply(CommandReply::Members(members)) => Some(&members.session),
        Notification::Reply(CommandReply::Handover(decided)) => Some(&decided.session),
        Notification::Reply(CommandReply::Subscribed { snapshot, .. } | CommandReply::Opened { snapshot, .. }) => {
            Some(&snapshot.session)
        }
        Notification::Reply(_)
        | Notification::Deliver(_)
        | Notification::Signal(_)
        | Notification::AdapterState(_)
        | Notification::LimitReached(_)
        | Notification::GoAway { .. } => None,
    }
}

impl World {
    /// Connects a client to a node.
    pub(crate) fn accept_line(&mut self, client: usize, at: usize) -> LineId {
        let node = &mut self.nodes[at];
        node.links += 1;
        let line = (node.node_id, LinkId(node.links));
        let principal = self.clients[client].principal.clone();
        let lazy = self.rng.chance(self.faults.lazy);
        let stall = Duration::from_millis(if lazy { self.rng.below(15_000) } else { 0 });
        let fresh = Connection {
            client,
            principal: principal.clone(),
            asks: BTreeMap::new(),
            early: BTreeSet::new(),
            noticed: BTreeSet::new(),
            follows: BTreeMap::new(),
            deserted: false,
            pace: if lazy { 500 + self.rng.below(20_000) as usize } else { 0 },
            stalled_until: self.now + stall,
            queue: VecDeque::new(),
            flushing: false,
            unwritten: 0,
            read: 0,
            reporting: false,
        };
        self.lines.insert(line, fresh);
        self.clients[client].line = Some(line);
        self.give(at, Input::Connect { link: line.1, principal });
        line
    }

    /// Sends a command on a client's connection.
    pub(crate) fn say_on(&mut self, line: LineId, command: LinkCommand) {
        let Some(open) = self.lines.get_mut(&line) else { return };
        if let Some(id) = command.request_id() {
            let key = &self.clients[open.client].key;
            if self.model.session(key).is_none_or(|slot| slot.user.is_none()) {
                open.early.insert(id.clone());
            }
            open.asks.insert(id.clone(), command.clone());
        }
        self.give_to(line.0, Input::Command { link: line.1, command });
    }

    /// Checks a message to a link, and delivers it.
    pub(crate) fn show(&mut self, line: LineId, note: Notification) {
        if self.show_adapter(line, &note) || self.show_operator(line, &note) {
            return;
        }
        let Some(open) = self.lines.get_mut(&line) else { return };
        self.tally.client_messages += 1;
        let weight = note.weight();
        let flow = matches!(note, Notification::Fact { .. } | Notification::Chunk { .. });
        let most = limits::LINK_UNWRITTEN_BYTES_MAX + if flow { STRETCH_BYTES } else { ANSWERS_BYTES };
        assert!(
            open.unwritten <= most,
            "G8: a link that does not read is sent no more: {} bytes unwritten on {line:?}",
            open.unwritten
        );
        open.unwritten += weight;
        if let Some(session) = told_of(&note) {
            let key = SessionKey { tenant: open.principal.tenant.clone(), session: session.clone() };
            privacy(&open.principal, &key, &self.model, self.rewinds);
            let follow = open.follows.entry(session.clone()).or_default();
            let ledger = &self.ledger;
            let sayings = &self.sayings;
            let rewinds = self.rewinds;
            let asks = &open.asks;
            let noticed = &open.noticed;
            follow.shown(&note, &View { line, key: &key, asks, noticed, ledger, model: &self.model, sayings, rewinds });
        }
        if let Notification::Reply(CommandReply::Refused { request_id, .. }) = &note {
            let ask = request_id.as_ref().and_then(|id| open.asks.get(id));
            let early = request_id.as_ref().is_some_and(|id| open.early.contains(id));
            super::check::refused(&open.principal, ask, &note, (&self.model, self.rewinds, early));
        }
        open.answered(&note);
        let lazy = open.pace > 0;
        let client = open.client;
        let deserted = open.deserted;
        if deserted {
            return;
        }
        if lazy {
            open.queue.push_back(note);
            if !std::mem::replace(&mut open.flushing, true) {
                self.later(1, 100, ScheduledEvent::Flush { line });
            }
        } else {
            self.read(client, line, &note);
            self.written(line, weight);
        }
    }

    /// Lets a slow link read more.
    pub(crate) fn flush(&mut self, line: LineId) {
        let now = self.now;
        let Some(open) = self.lines.get_mut(&line).filter(|open| !open.deserted) else { return };
        if open.stalled_until > now {
            let wait = u64::try_from((open.stalled_until - now).as_millis()).unwrap_or(0);
            return self.later(wait + 1, wait + 100, ScheduledEvent::Flush { line });
        }
        let mut notes = Vec::new();
        let mut room = open.pace;
        while let Some(note) = open.queue.pop_front() {
            let weight = note.weight();
            notes.push(note);
            room = room.saturating_sub(weight);
            if room == 0 {
                break;
            }
        }
        open.flushing = !open.queue.is_empty();
        let more = open.flushing;
        let client = open.client;
        for note in notes {
            self.read(client, line, &note);
            self.written(line, note.weight());
        }
        if more {
            self.later(10, 300, ScheduledEvent::Flush { line });
        }
    }

    fn written(&mut self, line: LineId, weight: usize) {
        let Some(open) = self.lines.get_mut(&line) else { return };
        open.read += weight;
        if open.read * 4 >= limits::LINK_REPORT_BYTES * 3 && !std::mem::replace(&mut open.reporting, true) {
            self.later(0, 2, ScheduledEvent::Report { line });
        }
    }

    /// Reports the written bytes of a link to its node.
    pub(crate) fn report(&mut self, line: LineId) {
        let Some(open) = self.lines.get_mut(&line) else { return };
        let weight = std::mem::take(&mut open.read);
        open.reporting = false;
        open.unwritten -= weight;
        self.give_to(line.0, Input::Written { link: line.1, weight });
    }

    /// Lets a node notice that a link is gone.
    pub(crate) fn hang_up(&mut self, line: LineId) {
        if self.lines.remove(&line).is_some() {
            self.give_to(line.0, Input::Disconnect { link: line.1 });
        }
    }

    /// Disconnects a client; the node notices later.
    pub(crate) fn desert(&mut self, client: usize, ms_max: u64) {
        let Some(line) = self.clients[client].line.take() else { return };
        if let Some(open) = self.lines.get_mut(&line) {
            open.deserted = true;
            self.later(1, ms_max, ScheduledEvent::HangUp { line });
        }
    }
}

impl Connection {
    fn answered(&mut self, note: &Notification) {
        let id = match note {
            Notification::Reply(CommandReply::TurnAccepted(accepted)) => accepted.request_id.as_ref(),
            Notification::Reply(CommandReply::MessageAccepted(accepted)) => accepted.request_id.as_ref(),
            Notification::Reply(CommandReply::ChildRequested(child)) => child.request_id.as_ref(),
            Notification::Reply(CommandReply::Members(members)) => members.request_id.as_ref(),
            Notification::Reply(CommandReply::Handover(decided)) => decided.request_id.as_ref(),
            Notification::Reply(
                CommandReply::Subscribed { request_id, .. }
                | CommandReply::Opened { request_id, .. }
                | CommandReply::Performed { request_id, .. }
                | CommandReply::Binding { request_id, .. }
                | CommandReply::Account { request_id, .. }
                | CommandReply::CancelAccepted { request_id, .. }
                | CommandReply::Refused { request_id, .. },
            ) => request_id.as_ref(),
            Notification::Fact { entry, .. } => fact_answers(&entry.fact),
            Notification::Chunk { .. }
            | Notification::ProcessOutput { .. }
            | Notification::GoAway { .. }
            | Notification::Deliver(_)
            | Notification::Signal(_)
            | Notification::AdapterState(_)
            | Notification::LimitReached(_)
            | Notification::Reply(_) => None,
        };
        if let Some(id) = id {
            self.asks.remove(id);
        }
    }
}

/// Returns the request that a fact answers, for requests that are answered by facts alone.
fn fact_answers(fact: &turnway_core::protocol::entry::Fact) -> Option<&RequestId> {
    use turnway_core::protocol::entry::{Fact, RunFact, SessionFact};
    match fact {
        Fact::Session(SessionFact::Closed { request_id } | SessionFact::Notice { request_id, .. })
        | Fact::Run(RunFact::Cancelling { request_id, .. }) => request_id.as_ref(),
        Fact::Session(_)
        | Fact::Member(_)
        | Fact::Handover(_)
        | Fact::Action(_)
        | Fact::Binding(_)
        | Fact::Delivery(_)
        | Fact::Model(_)
        | Fact::Input(_)
        | Fact::Run(_)
        | Fact::Unknown(_) => None,
    }
}
