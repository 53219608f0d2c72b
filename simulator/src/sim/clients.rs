//! Simulated clients: their connections, their knowledge, and their actions.
use super::fixtures;
use super::world::{LineId, ScheduledEvent, World};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use turnway_core::id::{Cursor, Epoch, EventId, Principal, RequestId, RunId, Seq, SessionKey};
use turnway_core::protocol::agent::TextKind;
use turnway_core::protocol::chunk::TextChunk;
use turnway_core::protocol::entry::Entry;
use turnway_core::protocol::input::ControlRequest;
use turnway_core::protocol::pattern::Pattern;
use turnway_core::protocol::refusal::Code;
use turnway_wire::channel::command::{CancelTarget, LinkCommand, SubscribeCommand, TextCursor};
use turnway_wire::channel::notification::{CommandReply, Notification, ResetReason, SessionStateSnapshot};

/// Role of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Sends messages, and always subscribes with its cursor.
    Talker,
    /// Sends messages, and is subscribed only by sending; uses odd cursors.
    Light,
    /// Only subscribes, and never sends a message.
    Watcher,
    /// Disconnects for good as soon as its message is accepted.
    Leaver,
    /// Sends requests that must be refused.
    Prober,
}

/// An action of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Connect, and subscribe if that is the client's role.
    Connect,
    /// Reconnect, if this is still the client's connection.
    Move {
        from: Option<LineId>,
    },
    /// Send a message, until its end was received.
    Speak(u64),
    /// Send another body under the same name.
    Twist(u64),
    /// Cancel a message's turn.
    Cancel(u64),
    /// Cancel the open run.
    CancelAll,
    /// Close the session.
    Close,
    /// Open the session.
    Open,
    /// Subscribe again, in one of several ways.
    Resubscribe(u64),
    /// Read from the beginning, if the end of this turn was not received.
    LookBack(RunId),
    Unsubscribe,
    /// Send a request that must be refused.
    Probe(u64),
    /// Change the members of the session.
    Members(u64),
    /// Confirm or reject a handover.
    Decide(EventId, bool),
    /// Disconnect without closing the connection; the node notices later.
    Vanish,
}

/// A client and its knowledge.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) kind: Kind,
    pub(crate) key: SessionKey,
    pub(crate) principal: Principal,
    pub(crate) line: Option<LineId>,
    /// Messages sent, by number.
    pub(crate) said: Vec<u64>,
    /// Facts received, except those that a reset has voided.
    pub(crate) facts: BTreeMap<Seq, (Epoch, Arc<Entry>)>,
    /// Text received, by turn and attempt.
    pub(crate) texts: BTreeMap<(RunId, u32), String>,
    pub(crate) accepted: BTreeSet<RunId>,
    pub(crate) ended: BTreeSet<RunId>,
    /// Messages that were refused for good.
    pub(crate) given_up: BTreeSet<u64>,
    /// Turns whose text the client has dropped.
    pub(crate) torn: BTreeSet<RunId>,
    /// Cursor: the last fact of an unbroken sequence.
    pub(crate) have: Cursor,
    /// True if the client's own subscription was answered on this connection.
    synced: bool,
    /// True if the client has requested the whole log on this connection; once is enough.
    pub(crate) looked: bool,
    sent: BTreeMap<RequestId, Act>,
}

fn everything() -> Pattern {
    Pattern::parse(">").expect("a pattern")
}

impl Client {
    /// Returns whether the client has no guarantees.
    pub(crate) fn leaves(&self) -> bool {
        matches!(self.kind, Kind::Leaver | Kind::Prober)
    }
    /// Returns whether the client always subscribes with its cursor, and therefore has every fact.
    pub(crate) fn watches(&self) -> bool {
        matches!(self.kind, Kind::Talker | Kind::Watcher)
    }
    /// Continues from a snapshot without earlier facts. Turns that have ended by then count as ended.
    fn begins_at(&mut self, snapshot: &SessionStateSnapshot, ended: impl Iterator<Item = RunId>) {
        self.ended.extend(ended.filter(|run_id| self.accepted.contains(run_id)));
        (self.have, self.synced) = (Cursor { seq: snapshot.seq, epoch: snapshot.epoch }, true);
        // A turn that the client learns of later may have ended before this point.
        self.looked = false;
        self.facts.clear();
        self.texts.clear();
    }
    pub(crate) fn text_cursors(&self) -> Vec<TextCursor> {
        let mut latest: BTreeMap<&RunId, (u32, u64)> = BTreeMap::new();
        for ((run_id, attempt), text) in self.texts.iter().filter(|((run, _), _)| !self.ended.contains(run)) {
            latest.insert(run_id, (*attempt, text.len() as u64));
        }
        let cursor =
            |(run_id, (attempt, offset)): (&RunId, (u32, u64))| TextCursor { run_id: run_id.clone(), attempt, offset };
        latest.into_iter().map(cursor).collect()
    }
}

impl World {
    /// Adds a client; returns its number.
    pub(crate) fn client(&mut self, kind: Kind, key: &SessionKey, principal: Principal) -> usize {
        self.clients.push(Client {
            kind,
            key: key.clone(),
            principal,
            line: None,
            said: Vec::new(),
            facts: BTreeMap::new(),
            texts: BTreeMap::new(),
            accepted: BTreeSet::new(),
            ended: BTreeSet::new(),
            given_up: BTreeSet::new(),
            torn: BTreeSet::new(),
            have: Cursor::default(),
            synced: false,
            looked: false,
            sent: BTreeMap::new(),
        });
        self.clients.len() - 1
    }

    pub(crate) fn request(&mut self, client: usize, act: Act) -> Option<RequestId> {
        self.requests += 1;
        let id = fixtures::request(self.requests);
        self.clients[client].sent.insert(id.clone(), act);
        Some(id)
    }

    /// Returns the client's connection, a new one if the client has none that works.
    pub(crate) fn line_of(&mut self, id: usize) -> LineId {
        if let Some(line) = self.clients[id].line.filter(|line| self.lines.contains_key(line)) {
            return line;
        }
        self.reconnect(id)
    }

    fn reconnect(&mut self, id: usize) -> LineId {
        self.desert(id, 3000);
        (self.clients[id].synced, self.clients[id].looked) = (false, false);
        self.clients[id].sent.clear();
        let at = self.somewhere();
        let line = self.accept_line(id, at);
        if self.clients[id].watches() {
            self.subscribe(id, line);
        }
        line
    }

    fn subscribe(&mut self, id: usize, line: LineId) {
        let request_id = self.request(id, Act::Connect);
        let client = &self.clients[id];
        let ask = SubscribeCommand {
            request_id,
            session: client.key.session.clone(),
            after_seq: Some(client.have.seq),
            after_epoch: Some(client.have.epoch).filter(|_| client.have.seq > Seq(0)),
            runs: client.text_cursors(),
            types: if id.is_multiple_of(2) { vec![everything()] } else { Vec::new() },
        };
        self.say_on(line, LinkCommand::Subscribe(ask));
    }

    /// Performs an action of a client.
    pub(crate) fn act(&mut self, id: usize, act: Act) {
        match act {
            Act::Connect => {
                let had = self.clients[id].line;
                let line = self.line_of(id);
                if had == Some(line) && self.clients[id].watches() {
                    self.subscribe(id, line);
                }
            }
            Act::Move { from } if self.clients[id].line == from => {
                if self.clients[id].leaves() {
                    self.desert(id, 1000);
                } else {
                    self.reconnect(id);
                }
            }
            Act::Move { .. } => {}
            Act::Speak(n) => self.speak(id, n),
            Act::Twist(n) if self.clients[id].accepted.contains(&self.sayings[&n].run_id) => {
                self.invoke_as(id, n, true)
            }
            Act::Twist(_) => {}
            Act::Cancel(n) => {
                let target = CancelTarget::Run(self.sayings[&n].run_id.clone());
                self.cancel(id, target, Act::Cancel(n));
            }
            Act::CancelAll => {
                let target = CancelTarget::Session(self.clients[id].key.session.clone());
                self.cancel(id, target, Act::CancelAll);
            }
            Act::Close | Act::Unsubscribe => {
                let line = self.line_of(id);
                let request_id = self.request(id, act.clone());
                let session = self.clients[id].key.session.clone();
                let close = act == Act::Close;
                self.clients[id].looked &= close;
                let command = if close {
                    LinkCommand::Control { request_id, session, request: ControlRequest::Close }
                } else {
                    LinkCommand::Unsubscribe { request_id, session }
                };
                self.say_on(line, command);
            }
            Act::Open => {
                let line = self.line_of(id);
                let request_id = self.request(id, Act::Open);
                let session = Some(self.clients[id].key.session.clone());
                let agents = fixtures::AGENTS.iter().map(|(name, _)| fixtures::agent(name)).collect();
                self.say_on(line, LinkCommand::Open { request_id, session, agents, active: None });
            }
            Act::Resubscribe(way) => self.resubscribe(id, way),
            Act::LookBack(run_id) if self.clients[id].ended.contains(&run_id) => {}
            Act::LookBack(_) => {
                if !std::mem::replace(&mut self.clients[id].looked, true) {
                    self.resubscribe(id, 1);
                }
            }
            Act::Probe(way) => self.probe(id, way),
            Act::Members(way) => self.change_members(id, way),
            Act::Decide(handover, confirm) => self.decide(id, handover, confirm),
            Act::Vanish => self.desert(id, 8000),
        }
    }

    fn cancel(&mut self, id: usize, target: CancelTarget, act: Act) {
        let line = self.line_of(id);
        let request_id = self.request(id, act);
        self.say_on(line, LinkCommand::Cancel { request_id, target, wants_receipt: false });
    }

    fn speak(&mut self, id: usize, n: u64) {
        let run_id = self.sayings[&n].run_id.clone();
        let client = &self.clients[id];
        if client.ended.contains(&run_id) || client.given_up.contains(&n) {
            return;
        }
        if client.kind == Kind::Leaver && client.accepted.contains(&run_id) {
            return self.desert(id, 50);
        }
        if self.rng.chance(self.faults.hangup) {
            self.reconnect(id);
        }
        self.invoke_as(id, n, false);
        self.later(3000, 6000, ScheduledEvent::Client { client: id, act: Act::Speak(n) });
    }

    fn invoke_as(&mut self, id: usize, n: u64, twisted: bool) {
        let line = self.line_of(id);
        let request_id = self.request(id, if twisted { Act::Twist(n) } else { Act::Speak(n) });
        let Some(request_id) = request_id else { return };
        let session = self.clients[id].key.session.clone();
        let invoke = self.sayings[&n].invoke(n, request_id, &session, twisted);
        self.say_on(line, LinkCommand::Invoke(Box::new(invoke)));
    }

    /// Handles a message that a client receives on its present connection.
    pub(crate) fn read(&mut self, id: usize, line: LineId, note: &Notification) {
        if self.clients[id].line == Some(line) {
            self.read_on(id, line, note);
        }
    }

    fn read_on(&mut self, id: usize, line: LineId, note: &Notification) {
        match note {
            Notification::Fact { session, seq, epoch, entry, .. } if *session == self.clients[id].key.session => {
                let client = &mut self.clients[id];
                client.facts.insert(*seq, (*epoch, Arc::clone(entry)));
                if client.synced {
                    client.have = Cursor { seq: *seq, epoch: *epoch };
                }
                if let Some(run_id) = entry.run_id.as_ref().filter(|_| entry.fact.is_terminal()) {
                    client.ended.insert(run_id.clone());
                }
                self.prompted(id, entry);
            }
            Notification::Chunk {
                chunk: TextChunk { run_id, attempt, offset, kind: TextKind::Text, text }, ..
            } => {
                let client = &mut self.clients[id];
                let all = client.texts.entry((run_id.clone(), *attempt)).or_default();
                // Text of a subscription that was just replaced may come before the first text of the new one.
                let at = usize::try_from(*offset).unwrap_or(usize::MAX);
                if at != all.len() {
                    client.torn.insert(run_id.clone());
                }
                all.truncate(all.floor_char_boundary(at));
                all.push_str(text.reveal());
            }
            Notification::Reply(CommandReply::TurnAccepted(accepted)) => {
                self.was_accepted(id, &accepted.run_id, accepted.request_id.as_ref());
                // A link that follows the session already gets no facts again: the end may lie before its position.
                if accepted.duplicate {
                    let act = Act::LookBack(accepted.run_id.clone());
                    self.later(1000, 4000, ScheduledEvent::Client { client: id, act });
                }
            }
            Notification::Reply(CommandReply::Subscribed { reset: None, .. }) => self.clients[id].synced = true,
            Notification::Reply(CommandReply::Subscribed {
                snapshot,
                reset: Some(ResetReason::Trimmed { .. }),
                ..
            }) => {
                self.begin_at(id, snapshot);
            }
            Notification::Reply(CommandReply::Subscribed { snapshot, reset: Some(ResetReason::Regressed), .. }) => {
                self.start_over(id, snapshot);
            }
            Notification::Reply(CommandReply::Refused { request_id: Some(request_id), refusal, .. }) => {
                self.was_refused(id, request_id, refusal.code)
            }
            Notification::GoAway { .. } => {
                self.later(100, 6000, ScheduledEvent::Client { client: id, act: Act::Move { from: Some(line) } });
            }
            Notification::Fact { .. }
            | Notification::Chunk { .. }
            | Notification::Reply(_)
            | Notification::Deliver(_)
            | Notification::Signal(_)
            | Notification::AdapterState(_)
            | Notification::LimitReached(_)
            | Notification::ProcessOutput { .. } => {}
        }
    }

    /// Drops what a client knows, because the store has lost acknowledged writes.
    fn start_over(&mut self, id: usize, snapshot: &SessionStateSnapshot) {
        let client = &mut self.clients[id];
        client.looked = false;
        client.facts.clear();
        client.texts.clear();
        client.have = Cursor { seq: snapshot.seq, epoch: snapshot.epoch };
        client.synced = !client.watches();
        if client.watches() {
            // The client's knowledge is void: it reads everything again.
            client.have = Cursor::default();
            self.later(50, 500, ScheduledEvent::Client { client: id, act: Act::Resubscribe(1) });
        }
    }

    /// Applies [`Client::begins_at`] with the log's ended turns.
    fn begin_at(&mut self, id: usize, snapshot: &SessionStateSnapshot) {
        let log = self.ledger.chronicles.get(&self.clients[id].key).map(|chronicle| &*chronicle.log);
        let upto = usize::try_from(snapshot.seq.0).unwrap_or(usize::MAX);
        let ends = log.into_iter().flatten().take(upto).filter(|(_, entry)| entry.fact.is_terminal());
        self.clients[id].begins_at(snapshot, ends.filter_map(|(_, entry)| entry.run_id.clone()));
    }

    fn was_accepted(&mut self, id: usize, run_id: &RunId, request_id: Option<&RequestId>) {
        let act = request_id.and_then(|request_id| self.clients[id].sent.remove(request_id));
        let twisted = matches!(act, Some(Act::Twist(_)));
        assert!(!twisted || self.rewinds, "G2: another body under the same name is refused: {run_id}");
        self.clients[id].accepted.insert(run_id.clone());
        if self.clients[id].kind == Kind::Leaver {
            self.desert(id, 50);
        }
    }

    fn was_refused(&mut self, id: usize, request_id: &RequestId, code: Code) {
        let Some(act) = self.clients[id].sent.remove(request_id) else { return };
        let passing = matches!(code, Code::StoreUnavailable | Code::Draining | Code::RateLimited | Code::NotFound);
        match act {
            Act::Connect if passing => {
                self.later(500, 2000, ScheduledEvent::Client { client: id, act: Act::Connect });
            }
            Act::Speak(n) if code == Code::Busy || code == Code::IdempotencyConflict && self.rewinds => {
                self.clients[id].given_up.insert(n);
            }
            Act::Speak(n) if code == Code::SessionClosed => {
                if self.rng.chance(40) {
                    self.clients[id].given_up.insert(n);
                } else {
                    self.later(1, 3000, ScheduledEvent::Client { client: id, act: Act::Open });
                }
            }
            Act::Speak(n) => {
                let fine = code == Code::TooManyPending || (passing && code != Code::NotFound) || self.rewinds;
                assert!(fine, "G9: what may be said is not refused: m{n} {code:?}");
            }
            Act::Twist(n) => {
                let fine = code == Code::IdempotencyConflict || passing || self.rewinds;
                assert!(fine, "G2: another body under the same name is a conflict: m{n} {code:?}");
            }
            Act::Resubscribe(_) => self.clients[id].looked = false,
            Act::Open if passing && code != Code::NotFound => {
                self.later(500, 2000, ScheduledEvent::Client { client: id, act: Act::Open });
            }
            Act::Connect
            | Act::Open
            | Act::Move { .. }
            | Act::Cancel(_)
            | Act::CancelAll
            | Act::Close
            | Act::LookBack(_)
            | Act::Unsubscribe
            | Act::Probe(_)
            | Act::Members(_)
            | Act::Decide(..)
            | Act::Vanish => {}
        }
    }
}
