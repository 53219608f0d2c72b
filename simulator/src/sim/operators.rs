//! Operators of the simulated world: they bind rooms to sessions, change and end bindings by right and wrong
//! generations, and close and delete sessions. The platform closes rooms, and gives them new ids.
use super::check::RequestTime;
use super::fixtures;
use super::platform::{self, RoomEvent};
use super::world::{LineId, ScheduledEvent, World};
use std::collections::{BTreeMap, BTreeSet};
use turnway_core::id::{ConversationId, LinkId, RequestId, SessionId, SessionKey};
use turnway_core::protocol::binding::{Binding, BindingId, Generation, TargetKind, UnbindReason};
use turnway_core::protocol::conversation::{ConversationKey, ConversationRef};
use turnway_core::protocol::input::ControlRequest;
use turnway_node::switchboard::Input;
use turnway_wire::channel::account::{AccountCommand, NamedAccount};
use turnway_wire::channel::adapter::InboundEvent;
use turnway_wire::channel::binding::{
    BindCommand, BindingCommand, BindingReply, BindingScope, BindingTarget, ExpiryChange,
};
use turnway_wire::channel::command::LinkCommand;
use turnway_wire::channel::notification::{CommandReply, Notification};

/// Sessions of the operators, which are also closed and deleted.
const OWN_SESSIONS: [&str; 3] = ["b0", "b1", "b2"];
/// Sessions of users to which rooms are bound, too.
const SESSIONS_OF_USERS: [&str; 2] = ["s1", "s2"];

/// The operators and their requests.
#[derive(Debug, Default)]
pub(crate) struct Operators {
    line: Option<LineId>,
    /// Every connection that they have had.
    lines: BTreeSet<LineId>,
    asks: BTreeMap<RequestId, BindingAsk>,
}

/// A request about bindings that was not answered.
#[derive(Debug)]
struct BindingAsk {
    command: BindingCommand,
    sent: RequestTime,
}

impl World {
    /// Schedules what the operators and the platform do with rooms.
    pub(crate) fn open_offices(&mut self, trouble_ms: u64) {
        for (n, _) in OWN_SESSIONS.iter().enumerate() {
            let at = 500 * n as u64;
            self.later(at, at + 3000, ScheduledEvent::Platform(Box::new(platform::Step::OpenOffice { n })));
        }
        for _ in 0..8 + self.rng.below(16) {
            let at = 2000 + self.rng.below(trouble_ms - 2000);
            self.later(at, at, ScheduledEvent::Platform(Box::new(platform::Step::Operate)));
        }
    }

    /// Opens a session of the operators.
    pub(crate) fn open_office(&mut self, n: usize) {
        let session = Some(fixtures::key("default", OWN_SESSIONS[n % OWN_SESSIONS.len()]).session);
        let agents = fixtures::AGENTS.iter().map(|(name, _)| fixtures::agent(name)).collect();
        let request_id = self.request_of_operator();
        self.command_as_operator(LinkCommand::Open { request_id, session, agents, active: None });
    }

    /// Performs a random action of an operator, or an event of the platform.
    pub(crate) fn operate(&mut self) {
        match self.rng.below(100) {
            0..42 => self.bind_room(),
            42..52 => {
                let target = self.random_target();
                let reason = UnbindReason::Manual;
                self.ask_as_operator(BindingCommand::Unbind { target, reason, farewell: false });
            }
            52..60 => {
                let target = self.random_target();
                let change = self.random_expiry();
                self.ask_as_operator(BindingCommand::SetExpiry { target, change });
            }
            60..66 => {
                let (scope, id) = self.random_binding();
                self.ask_as_operator(BindingCommand::Touch { scope, id });
            }
            66..74 => {
                let conversation = self.random_place();
                let explain = self.rng.chance(50);
                self.ask_as_operator(BindingCommand::Resolve { conversation, explain });
            }
            74..77 => {
                let session = self.random_session();
                self.ask_as_operator(BindingCommand::List { session });
            }
            77..82 => {
                let n = self.rng.below(8) as usize;
                self.open_office(n);
            }
            82..89 => self.close_session(),
            89..91 => {
                let session = fixtures::key("default", OWN_SESSIONS[self.rng.below(2) as usize]).session;
                self.command_as_operator(LinkCommand::Delete { session });
            }
            91..95 => {
                let room = self.rng.below(self.platform.rooms.len() as u64) as usize;
                self.happen_in_room(room, InboundEvent::Closed);
            }
            _ => self.move_room(),
        }
    }

    /// Gives a room another id. Now and then an operator binds the new id before the gateway knows that.
    fn move_room(&mut self) {
        let room = self.rng.below(self.platform.rooms.len() as u64) as usize;
        let number = self.platform.places.len();
        let to = ConversationId::parse(&format!("room{number}")).expect("a name");
        self.happen_in_room(room, InboundEvent::Moved(to.clone()));
        let place = &mut self.platform.rooms[room].place;
        place.conversation_id = to;
        let place = place.clone();
        self.platform.places.push(place.clone());
        if self.rng.chance(30) {
            let bind = self.bind_of(place, None);
            self.ask_as_operator(BindingCommand::Bind(Box::new(bind)));
        }
    }

    /// Has the adapters of a room's account bring an event.
    fn happen_in_room(&mut self, room: usize, event: InboundEvent) {
        let room = &self.platform.rooms[room];
        let event = RoomEvent { account: room.account, place: room.place.clone(), event, is_accepted: false };
        self.platform.events.push(event);
        let n = self.platform.events.len() - 1;
        self.later(0, 2000, ScheduledEvent::Platform(Box::new(platform::Step::BringEvent { n })));
    }

    /// Closes a session that rooms are bound to, or the own session of a room.
    fn close_session(&mut self) {
        let session = if self.rng.chance(30) {
            self.random_place().own_session(&platform::tenant())
        } else {
            let n = self.rng.below(OWN_SESSIONS.len() as u64) as usize;
            fixtures::key("default", OWN_SESSIONS[n]).session
        };
        let request_id = self.request_of_operator();
        self.command_as_operator(LinkCommand::Control { request_id, session, request: ControlRequest::Close });
    }

    // === random requests ===

    fn random_session(&mut self) -> SessionId {
        let names: Vec<&str> = OWN_SESSIONS.into_iter().chain(SESSIONS_OF_USERS).collect();
        fixtures::key("default", names[self.rng.below(names.len() as u64) as usize]).session
    }

    /// Returns a room by its present id, or by one that it has left.
    fn random_place(&mut self) -> ConversationRef {
        if self.rng.chance(20) {
            let n = self.rng.below(self.platform.places.len() as u64) as usize;
            return self.platform.places[n].clone();
        }
        let n = self.rng.below(self.platform.rooms.len() as u64) as usize;
        self.platform.rooms[n].place.clone()
    }

    /// Returns the present generation of a conversation, an earlier one, or one that it never had.
    fn random_generation(&mut self, key: &ConversationKey) -> Generation {
        let known = self.platform.bindings.generations(key);
        let present = self.platform.bindings.active(key).map(|binding| binding.generation);
        match self.rng.below(10) {
            0..6 => present.unwrap_or_default(),
            6..8 if !known.is_empty() => known[self.rng.below(known.len() as u64) as usize],
            8 => Generation(present.unwrap_or_default().0 + 1),
            _ => Generation::default(),
        }
    }

    fn random_binding(&mut self) -> (BindingScope, BindingId) {
        let place = self.random_place();
        let generation = self.random_generation(&place.key(&platform::tenant()));
        let scope = BindingScope { channel: place.channel, account: place.account_id };
        (scope, BindingId { generation, conversation: place.conversation_id })
    }

    fn random_target(&mut self) -> BindingTarget {
        if self.rng.chance(20) {
            return BindingTarget::Session(self.random_session());
        }
        let (scope, id) = self.random_binding();
        BindingTarget::Binding { scope, id }
    }

    /// Returns times of expiry, most of which are over within the world.
    fn random_expiry(&mut self) -> ExpiryChange {
        let mut time = |rare: u64, least: u64, more: u64| match self.rng.below(100) {
            n if n < rare => Some(0),
            n if n < 60 => Some(least + self.rng.below(more)),
            _ => None,
        };
        let idle_timeout = time(5, 2000, 12_000);
        let max_age = time(10, 3000, 20_000);
        let wait = time(40, 3000, 20_000);
        let expires_at = wait.map(|wait| turnway_core::time::Millis(self.store_clock().0 + wait));
        ExpiryChange { idle_timeout, max_age, expires_at: expires_at.filter(|_| self.rng.chance(30)) }
    }

    fn bind_of(&mut self, conversation: ConversationRef, expected: Option<Generation>) -> BindCommand {
        let session = self.random_session();
        let expiry = self.random_expiry();
        let metadata = BTreeMap::new();
        BindCommand {
            conversation,
            session,
            target_kind: TargetKind::Session,
            expected,
            expiry,
            mirror: None,
            metadata,
            nonce: None,
        }
    }

    /// Binds a room, and lets somebody write there about the time at which the binding expires.
    fn bind_room(&mut self) {
        let place = self.random_place();
        let key = place.key(&platform::tenant());
        let expected = if self.rng.chance(65) { Some(self.random_generation(&key)) } else { None };
        let bind = self.bind_of(place, expected);
        let age = [bind.expiry.max_age, bind.expiry.idle_timeout].into_iter().flatten().filter(|age| *age > 0).min();
        if let Some(age) = age.filter(|_| self.rng.chance(60)) {
            let room = self.platform.rooms.iter().position(|room| room.place.is_same_place(&bind.conversation));
            let at = age + self.rng.below(2500);
            room.into_iter().for_each(|room| self.write_in(room, at));
        }
        self.ask_as_operator(BindingCommand::Bind(Box::new(bind)));
    }

    // === connections ===

    fn request_of_operator(&mut self) -> Option<RequestId> {
        self.requests += 1;
        Some(fixtures::request(self.requests))
    }

    /// Sends a request about bindings, whose answer is checked.
    fn ask_as_operator(&mut self, command: BindingCommand) {
        let Some(request_id) = self.request_of_operator() else { return };
        let line = self.operator_line();
        let sent = self.request_time(line);
        self.platform.operators.asks.insert(request_id.clone(), BindingAsk { command: command.clone(), sent });
        self.command_as_operator(LinkCommand::Binding { request_id: Some(request_id), command });
    }

    /// Resumes an account.
    pub(crate) fn resume_as_operator(&mut self, account: NamedAccount) {
        let request_id = self.request_of_operator();
        self.command_as_operator(LinkCommand::Account { request_id, command: AccountCommand::Resume(account) });
    }

    fn command_as_operator(&mut self, command: LinkCommand) {
        let line = self.operator_line();
        self.give_to(line.0, Input::Command { link: line.1, command });
    }

    /// Returns the time of a request that is sent now, by the clock that is behind.
    pub(crate) fn request_time(&mut self, line: LineId) -> RequestTime {
        let store = self.store_clock();
        let node = self.at(line.0).map_or(store, |at| self.clock_of(at).store);
        RequestTime { since: self.now, clock: store.min(node) }
    }

    fn operator_line(&mut self) -> LineId {
        if let Some(line) = self.platform.operators.line {
            return line;
        }
        let line = self.connect_operator();
        self.platform.operators.line = Some(line);
        line
    }

    /// Connects an operator to some node.
    pub(crate) fn connect_operator(&mut self) -> LineId {
        let at = self.somewhere();
        let node = &mut self.nodes[at];
        node.links += 1;
        let line = (node.node_id, LinkId(node.links));
        self.platform.operators.lines.insert(line);
        self.give(at, Input::Connect { link: line.1, principal: fixtures::user("office", "default", true) });
        line
    }

    /// Lets the operators notice that a node is gone or stuck.
    pub(crate) fn orphan_operators(&mut self, at: usize) {
        let node_id = self.nodes[at].node_id;
        if let Some(line) = self.platform.operators.line.take_if(|line| line.0 == node_id) {
            self.later(1, 3000, ScheduledEvent::Platform(Box::new(platform::Step::HangUp { line })));
        }
    }

    /// Handles a notification to an operator; returns whether the connection is one of an operator.
    pub(crate) fn show_operator(&mut self, line: LineId, note: &Notification) -> bool {
        if !self.platform.operators.lines.contains(&line) {
            return false;
        }
        let weight = note.weight();
        self.later(0, 5, ScheduledEvent::Platform(Box::new(platform::Step::Written { line, weight })));
        if let Notification::GoAway { .. } = note {
            self.platform.operators.line.take_if(|present| *present == line);
            self.later(1, 3000, ScheduledEvent::Platform(Box::new(platform::Step::HangUp { line })));
        } else if let Notification::Reply(CommandReply::Binding { request_id: Some(request_id), reply }) = note {
            let ask = self.platform.operators.asks.remove(request_id);
            ask.into_iter().filter(|_| !self.rewinds).for_each(|ask| self.check_binding_reply(&ask, reply));
        }
        true
    }

    /// Checks the answer to a request about bindings.
    fn check_binding_reply(&self, ask: &BindingAsk, reply: &BindingReply) {
        let record = &self.platform.bindings;
        let tenant = platform::tenant();
        let key = conversation_of(&ask.command);
        match (reply, &ask.command) {
            (BindingReply::NotApplied { current }, _) => {
                let key = key.unwrap_or_else(|| panic!("a request for one binding was refused: {ask:?}"));
                let is_current = record.was_current(&key, current.as_deref(), ask.sent.since);
                assert!(is_current, "BR-32: a refused change names the present binding: {ask:?} {current:?}");
            }
            (BindingReply::Bound(binding), BindingCommand::Bind(bind)) => {
                assert_eq!(binding.session, bind.session, "a bind binds to the session that it names: {ask:?}");
                let is_given = record.was_given(&bind.conversation.key(&tenant), binding);
                assert!(is_given, "a bind that is confirmed was made: {ask:?} {binding:?}");
            }
            (BindingReply::Resolved(found), BindingCommand::Resolve { conversation, .. }) => {
                let own = conversation.own_session(&tenant);
                let session = found.binding.as_ref().map_or(&own, |binding| &binding.session);
                let key = conversation.key(&tenant);
                let leads = record.leads_to(&key, (&own, session), self.lenient(ask.sent));
                assert!(leads, "a lookup finds the binding of its time: {ask:?} {found:?}");
            }
            (BindingReply::Listed(bindings), BindingCommand::List { session }) => {
                let session = SessionKey { tenant: tenant.clone(), session: session.clone() };
                let is_its = |binding: &Binding| binding.session == session.session;
                assert!(bindings.iter().all(is_its), "a list has the session's bindings: {session} {bindings:?}");
            }
            (
                BindingReply::Bound(_)
                | BindingReply::Unbound(_)
                | BindingReply::Updated(_)
                | BindingReply::Listed(_)
                | BindingReply::Resolved(_)
                | BindingReply::ResolvedAll(_),
                _,
            ) => {}
        }
    }

    /// Returns the time of a request by the earliest clock: the store's may have gone back since.
    pub(crate) fn lenient(&self, sent: RequestTime) -> RequestTime {
        let clock = sent.clock.min(self.store_clock());
        let fallen = turnway_core::time::Millis(clock.0.saturating_sub(20_000));
        RequestTime { clock: if self.platform.clock_fell { fallen } else { clock }, ..sent }
    }
}

/// Returns the conversation that a request names.
fn conversation_of(command: &BindingCommand) -> Option<ConversationKey> {
    let tenant = platform::tenant();
    match command {
        BindingCommand::Bind(bind) => Some(bind.conversation.key(&tenant)),
        BindingCommand::Resolve { conversation, .. } => Some(conversation.key(&tenant)),
        BindingCommand::Touch { scope, id }
        | BindingCommand::Move { scope, id, .. }
        | BindingCommand::Unbind { target: BindingTarget::Binding { scope, id }, .. }
        | BindingCommand::SetExpiry { target: BindingTarget::Binding { scope, id }, .. } => {
            Some(scope.key_of(&tenant, id))
        }
        BindingCommand::Unbind { target: BindingTarget::Session(_), .. }
        | BindingCommand::SetExpiry { target: BindingTarget::Session(_), .. }
        | BindingCommand::ResolveAll { .. }
        | BindingCommand::List { .. } => None,
    }
}
