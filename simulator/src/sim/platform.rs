//! A simulated chat platform with adapters: what people write in rooms becomes turns, and the answers come back to the
//! rooms. Adapters vanish, lose replies, answer with every outcome, and put parts into the wrong room now and then.
use super::behaviour::AgentBehaviour;
use super::buttons::ButtonPush;
use super::check::{BindingRecord, PressRecord, RequestTime};
use super::clients::Kind;
use super::fixtures::{self, CHANNEL, PlannedMessage, channel};
use super::operators::Operators;
use super::world::{LineId, ScheduledEvent, World};
use std::collections::{BTreeMap, BTreeSet};
use turnway_core::id::{
    AccountId, ConversationId, DeliveryId, LinkId, MessageId, NodeId, Principal, RequestId, RunId, SessionKey,
    TenantId, UserId,
};
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::delivery::{DeliveryErrorClass, DeliveryKind, DeliveryOrder, Sender, TextUnit};
use turnway_core::protocol::entry::FACT_LEVEL;
use turnway_core::protocol::input::Strategy;
use turnway_core::time::Mono;
use turnway_node::switchboard::Input;
use turnway_wire::channel::account::NamedAccount;
use turnway_wire::channel::adapter::{
    AdapterCapabilities, AdapterHello, AdapterOutcome, Capability, DeliverMessage, DeliveredCommand, InboundCommand,
    InboundDisposition, InboundEvent, InboundReceipt, PrepareFilesCommand, PreparedFiles,
};
use turnway_wire::channel::command::LinkCommand;
use turnway_wire::channel::notification::{CommandReply, Notification};

/// The accounts, and whether the platform recognises a message that is sent again with the same key.
pub(crate) const ACCOUNTS: [(&str, bool); 2] = [("keyed", true), ("plain", false)];
/// Adapters of each account: one sends, the other stands by.
const ADAPTERS_PER_ACCOUNT: usize = 2;
const ROOMS: [&str; 2] = ["lobby", "attic"];
/// The rooms, threads included, in which somebody writes once the faults have ended.
const ROOMS_AT_LAST: usize = ACCOUNTS.len() * ROOMS.len() + 1;
/// The ids of threads begin with this.
pub(crate) const THREAD: &str = "thread";
/// The room into which the platform puts a part that it misplaces.
const WRONG_ROOM: &str = "elsewhere";
/// Milliseconds between messages that somebody writes in quick succession.
const GAP_MS: u64 = 2 * fixtures::DEBOUNCE.as_millis() as u64;
/// The people who write in rooms.
const PEOPLE: [&str; 3] = ["ann", "ann", "bob"];
/// Numbers of messages of rooms begin here.
pub(crate) const FIRST_NUMBER: u64 = 20_001;
/// Characters of one message of the platform: some answers need several parts.
const TEXT_MAX: u32 = 200;

/// An event around the platform.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// An adapter connects to a node, unless it is connected.
    Connect { adapter: usize },
    /// An adapter notices that its connection is gone, or gives it up; the node notices later.
    Leave { adapter: usize, line: LineId },
    /// A node notices that an adapter is gone.
    HangUp { line: LineId },
    /// An adapter loses its connection, wherever it is.
    Vanish { adapter: usize },
    /// A message of a room is brought to the gateway, until it is accepted.
    Bring { n: u64 },
    /// An adapter sends a part to the platform.
    Post { adapter: usize, line: LineId, message: DeliverMessage },
    /// An adapter reports what became of a part.
    Report { adapter: usize, line: LineId, delivered: DeliveredCommand },
    /// A node learns that an adapter or an operator has read notifications of this weight.
    Written { line: LineId, weight: usize },
    /// An event of a room is brought to the gateway, until it is accepted.
    BringEvent { n: usize },
    /// A press of a button is brought to the gateway, until it is answered.
    BringPress { n: usize },
    /// An operator opens a session.
    OpenOffice { n: usize },
    /// An operator resumes an account that its adapter says is paused, until the adapter says that it is not.
    Resume { account: usize },
    /// An operator does something about the bindings of rooms, or something happens to a room.
    Operate,
}

/// The platform, and the processes that connect it.
#[derive(Debug, Default)]
pub(crate) struct Platform {
    adapters: Vec<Adapter>,
    /// Accounts that are paused, as their adapters were told last.
    paused: BTreeSet<usize>,
    pub(crate) messages: BTreeMap<u64, RoomMessage>,
    /// Rooms, by their present ids.
    pub(crate) rooms: Vec<Room>,
    /// All ids that rooms have had.
    pub(crate) places: Vec<ConversationRef>,
    pub(crate) events: Vec<RoomEvent>,
    pub(crate) operators: Operators,
    pub(crate) bindings: BindingRecord,
    asked: BTreeMap<RequestId, Brought>,
    /// The time at which each node was brought a message first.
    pub(crate) brought: BTreeMap<(NodeId, u64), RequestTime>,
    pub(crate) posts: Vec<Post>,
    pub(crate) presses: Vec<ButtonPush>,
    pub(crate) pressed: PressRecord,
    /// Adapters and the platform misbehave.
    pub(crate) troubled: bool,
    /// The store's clock has gone back: no node can tell the order of a request and of an adapter's arrival by it.
    pub(crate) clock_fell: bool,
}

#[derive(Debug)]
struct Adapter {
    account: usize,
    line: Option<LineId>,
    /// The node has told this connection that the account is paused.
    is_paused: bool,
}

/// A room of an account.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) account: usize,
    /// The client whose key is the room's first own session.
    client: usize,
    pub(crate) place: ConversationRef,
}

/// A message that somebody wrote.
#[derive(Debug)]
pub(crate) struct RoomMessage {
    room: usize,
    pub(crate) account: usize,
    /// The room by its id when the message was written.
    pub(crate) place: ConversationRef,
    /// The time at which the message was brought first; from then on, its id and its place stay as they are.
    pub(crate) brought_at: Option<Mono>,
    /// The turn, once the gateway has accepted the message. Two requests that are on their way at the same time, while the
    /// binding changes, may each find the message in no session and lead to two.
    pub(crate) turns: BTreeSet<RunId>,
}

/// Something that happened to a room.
#[derive(Debug)]
pub(crate) struct RoomEvent {
    pub(crate) account: usize,
    pub(crate) place: ConversationRef,
    pub(crate) event: InboundEvent,
    pub(crate) is_accepted: bool,
}

/// A request of an adapter that was not answered.
#[derive(Debug)]
pub(super) enum Brought {
    /// A message, and whether it had been accepted before.
    Message {
        n: u64,
        is_repeat: bool,
    },
    Event(usize),
    /// A press of a button.
    Press(usize),
    /// A message has files, which are to be added to the session of its conversation first.
    Files(ConversationRef),
}

/// A part of an answer that stands in a room.
#[derive(Clone, Debug)]
pub(crate) struct Post {
    pub(crate) delivery_id: DeliveryId,
    pub(crate) kind: DeliveryKind,
    pub(crate) part: u32,
    pub(crate) account: usize,
    /// The room of the message, or the thread that was made.
    pub(crate) place: ConversationRef,
    pub(crate) text: String,
    key: String,
    pub(super) external_id: MessageId,
    /// The platform has put it into another room than the adapter named.
    pub(crate) is_misplaced: bool,
}

/// The behaviour of an adapter with a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Sends,
    /// The part stands in the room, and the platform's reply is lost with the adapter's connection.
    SendsAndVanishes,
    /// The part stands in the room, and the adapter does not know.
    SendsUnsure,
    Misplaces,
    DoesNotSend,
    FailsUnsure,
    Vanishes,
    Refuses(DeliveryErrorClass),
}

pub(crate) fn tenant() -> TenantId {
    TenantId::default_tenant()
}

fn account_id(account: usize) -> AccountId {
    AccountId::parse(ACCOUNTS[account].0).expect("an account's name")
}

/// Returns a room of an account.
fn room(account: usize, name: &str) -> ConversationRef {
    ConversationRef::without_parent(CHANNEL, ACCOUNTS[account].0, name).expect("a reference")
}

impl Platform {
    /// Takes a press that was brought with this request.
    pub(super) fn take_press(&mut self, request_id: &RequestId) -> Option<Brought> {
        let is_press = matches!(self.asked.get(request_id), Some(Brought::Press(_)));
        self.asked.remove(request_id).filter(|_| is_press)
    }

    fn adapter_on(&self, line: LineId) -> Option<usize> {
        self.adapters.iter().position(|adapter| adapter.line == Some(line))
    }

    /// Puts a part into a room; a repeated key is recognised where the platform has keys.
    fn post(
        &mut self,
        account: usize,
        message: &DeliverMessage,
        is_misplaced: bool,
        rewinds: bool,
    ) -> (MessageId, ConversationRef) {
        let order = &message.order;
        let key = order.dedupe_key();
        let is_keyed = ACCOUNTS[account].1;
        if let Some(known) = self.posts.iter().find(|post| is_keyed && post.account == account && post.key == key) {
            assert!(rewinds || known.text == order.text.reveal(), "same key, same bytes: {order:?} {known:?}");
            return (known.external_id.clone(), known.place.clone());
        }
        let is_thread = order.kind == DeliveryKind::Conversation;
        let place = if is_misplaced {
            room(account, WRONG_ROOM)
        } else if is_thread {
            self.make_thread(order)
        } else {
            order.conversation.clone()
        };
        let name = if is_thread && !is_misplaced {
            place.conversation_id.to_string()
        } else {
            format!("x{}", self.posts.len())
        };
        let external_id = MessageId::parse(&name).expect("a name");
        self.posts.push(Post {
            delivery_id: order.delivery_id.clone(),
            kind: order.kind,
            part: order.part,
            account,
            place: place.clone(),
            text: order.text.reveal().to_owned(),
            key,
            external_id: external_id.clone(),
            is_misplaced,
        });
        (external_id, place)
    }

    /// Returns whether a room has had both ids, the second one at the same time as the first or later.
    pub(crate) fn has_become(&self, from: &ConversationRef, to: &ConversationRef) -> bool {
        let mut place = from.clone();
        for _ in 0..=self.events.len() {
            if place.is_same_place(to) {
                return true;
            }
            let mut moves = self.events.iter().filter(|it| it.place.is_same_place(&place));
            let next = moves.find_map(|it| if let InboundEvent::Moved(to) = &it.event { Some(to) } else { None });
            let Some(next) = next else { return false };
            place.conversation_id = next.clone();
        }
        false
    }

    /// Makes a thread in a room.
    fn make_thread(&mut self, order: &DeliveryOrder) -> ConversationRef {
        let parent = &order.conversation;
        let id = format!("{THREAD}{}", self.posts.len());
        let place = ConversationRef {
            conversation_id: ConversationId::parse(&id).expect("a name"),
            parent_conversation_id: Some(parent.conversation_id.clone()),
            ..parent.clone()
        };
        self.places.push(place.clone());
        place
    }
}

impl World {
    /// Tells a new node that every node knows the facts of deliveries.
    pub(crate) fn announce_level(&mut self, at: usize) {
        if self.channels {
            self.give(at, Input::FactLevel(FACT_LEVEL));
        }
    }

    /// Creates the adapters, and schedules what people write.
    pub(crate) fn open_rooms(&mut self, trouble_ms: u64) {
        if !self.channels {
            return;
        }
        self.platform.troubled = true;
        for account in (0..ACCOUNTS.len()).flat_map(|account| [account; ADAPTERS_PER_ACCOUNT]) {
            let adapter = self.platform.adapters.len();
            self.platform.adapters.push(Adapter { account, line: None, is_paused: false });
            self.later(0, 2000, ScheduledEvent::Platform(Box::new(Step::Connect { adapter })));
            for _ in 0..self.rng.below(4) {
                let at = self.rng.below(trouble_ms);
                self.later(at, at, ScheduledEvent::Platform(Box::new(Step::Vanish { adapter })));
            }
        }
        for (account, name) in (0..ACCOUNTS.len()).flat_map(|account| ROOMS.map(|room| (account, room))) {
            let place = room(account, name);
            let key = SessionKey { tenant: tenant(), session: place.own_session(&tenant()) };
            // Nobody subscribes as the account; odd requests of others aim at its sessions too.
            let client = self.client(Kind::Leaver, &key, principal(account));
            self.platform.places.push(place.clone());
            self.platform.rooms.push(Room { account, client, place });
            let room = self.platform.rooms.len() - 1;
            let mut at = self.rng.below(trouble_ms);
            for _ in 0..2 + self.rng.below(4) {
                self.write_in(room, at);
                // People write several messages at a time if these are gathered.
                let is_next = self.debounce && self.rng.chance(60);
                at = if is_next { at + self.rng.below(GAP_MS) } else { self.rng.below(trouble_ms) };
            }
        }
        self.open_offices(trouble_ms);
    }

    /// Lets somebody write a message in every room.
    pub(crate) fn last_lines(&mut self) {
        for room in 0..self.platform.rooms.len().min(ROOMS_AT_LAST) {
            self.write_in(room, 500);
        }
    }

    /// Schedules a message in a room.
    pub(crate) fn write_in(&mut self, room: usize, at: u64) {
        let Room { account, client, place } = &self.platform.rooms[room];
        let account = *account;
        let client = *client;
        let place = place.clone();
        // Numbers that are divisible by 4 are those of messages with earlier messages.
        let n = FIRST_NUMBER + self.platform.messages.len() as u64 * 4 / 3;
        let n = if n.is_multiple_of(4) || self.platform.messages.contains_key(&n) { n + 1 } else { n };
        let roll = self.rng.below(100);
        let manner = if self.platform.troubled { AgentBehaviour::of(n, roll) } else { AgentBehaviour::Plain };
        let key = &self.clients[client].key;
        let user = UserId::of_account(&channel(), &account_id(account));
        let run_id = RunId::derive(key, &user, &place.inbox_message_id(&fixtures::message_id(n)));
        let strategy = Strategy::Enqueue;
        self.sayings.insert(n, PlannedMessage { client, run_id, manner, strategy, replaces: None, agent_id: None });
        let message = RoomMessage { room, account, place, brought_at: None, turns: BTreeSet::new() };
        self.platform.messages.insert(n, message);
        self.later(at, at, ScheduledEvent::Platform(Box::new(Step::Bring { n })));
    }

    /// Handles an event around the platform.
    pub(crate) fn platform_step(&mut self, step: Step) {
        match step {
            Step::Connect { adapter } => self.connect_adapter(adapter),
            Step::Leave { adapter, line } if self.platform.adapters[adapter].line == Some(line) => {
                self.leave_line(adapter, line);
            }
            Step::Leave { .. } => {}
            Step::HangUp { line } => self.give_to(line.0, Input::Disconnect { link: line.1 }),
            Step::Vanish { adapter } => {
                if let Some(line) = self.platform.adapters[adapter].line {
                    self.leave_line(adapter, line);
                }
            }
            Step::Bring { n } => self.bring(n),
            Step::Post { adapter, line, message } => self.post(adapter, line, &message),
            Step::Report { adapter, line, delivered } => self.report_part(adapter, line, delivered),
            Step::Written { line, weight } => self.give_to(line.0, Input::Written { link: line.1, weight }),
            Step::BringEvent { n } => self.bring_event(n),
            Step::BringPress { n } => self.bring_press(n),
            Step::OpenOffice { n } => self.open_office(n),
            Step::Resume { account } => self.resume_account(account),
            Step::Operate => self.operate(),
        }
    }

    fn connect_adapter(&mut self, adapter: usize) {
        let Adapter { account, line: None, .. } = self.platform.adapters[adapter] else { return };
        let at = self.somewhere();
        let node = &mut self.nodes[at];
        node.links += 1;
        let line = (node.node_id, LinkId(node.links));
        self.platform.adapters[adapter].line = Some(line);
        let level = |level| Capability { level, max: None, unit: None };
        let text = Capability { level: 2, max: Some(TEXT_MAX), unit: Some(TextUnit::Utf16) };
        let key = level(if ACCOUNTS[account].1 { 2 } else { 0 });
        let creates = level(if self.tasks { 2 } else { 0 });
        let buttons = level(if self.buttons { 2 } else { 0 });
        let capabilities = [("text", text), ("key", key), ("create_conversation", creates), ("buttons", buttons)];
        let capabilities = AdapterCapabilities(capabilities.map(|(name, level)| (name.to_owned(), level)).into());
        let instance_id = RequestId::parse(&format!("adapter-{adapter}")).ok();
        let account = account_id(account);
        let platform_bot_id = RequestId::parse(&format!("bot-{account}")).ok();
        let hello = AdapterHello { channel: channel(), account, platform_bot_id, instance_id, capabilities };
        let principal = principal(self.platform.adapters[adapter].account);
        self.give(at, Input::Connect { link: line.1, principal });
        self.give_to(line.0, Input::ServeAccount { link: line.1, adapter: Box::new(hello) });
    }

    /// Ends the connection of an adapter, which connects again.
    fn leave_line(&mut self, adapter: usize, line: LineId) {
        self.platform.adapters[adapter].line = None;
        self.later(1, 3000, ScheduledEvent::Platform(Box::new(Step::HangUp { line })));
        self.later(100, 4000, ScheduledEvent::Platform(Box::new(Step::Connect { adapter })));
    }

    /// Lets the adapters of a node notice that the node is gone or stuck.
    pub(crate) fn orphan_adapters(&mut self, at: usize, ms_min: u64, ms_max: u64) {
        let node_id = self.nodes[at].node_id;
        for adapter in 0..self.platform.adapters.len() {
            if let Some(line) = self.platform.adapters[adapter].line.filter(|line| line.0 == node_id) {
                self.later(ms_min, ms_max, ScheduledEvent::Platform(Box::new(Step::Leave { adapter, line })));
            }
        }
    }

    /// Brings a message on any connection of its account. It is brought again until it was accepted, and sometimes after.
    fn bring(&mut self, n: u64) {
        let Some(message) = self.platform.messages.get_mut(&n) else { return };
        if message.brought_at.is_none() {
            message.brought_at = Some(self.now);
            message.place = self.platform.rooms[message.room].place.clone();
        }
        // A store that loses writes may need the message again at any time.
        let is_repeat = !message.turns.is_empty();
        let account = message.account;
        let conversation = message.place.clone();
        if is_repeat && !self.rewinds && !self.rng.chance(20) {
            return;
        }
        self.later(3000, 6000, ScheduledEvent::Platform(Box::new(Step::Bring { n })));
        let Some(line) = self.line_of_account(account) else { return };
        let time = self.request_time(line);
        self.platform.brought.entry((line.0, n)).or_insert(time);
        if n % 3 == 1 {
            self.prepare_files(line, conversation.clone());
        }
        let event = InboundEvent::Message(fixtures::say(n, false).content);
        self.give_inbound(line, Brought::Message { n, is_repeat }, fixtures::message_id(n), conversation, event);
    }

    /// Asks for the session to which the files of a message are to be added.
    fn prepare_files(&mut self, line: LineId, conversation: ConversationRef) {
        self.requests += 1;
        let request_id = fixtures::request(self.requests);
        self.platform.asked.insert(request_id.clone(), Brought::Files(conversation.clone()));
        let command = PrepareFilesCommand { request_id: Some(request_id), conversation };
        let command = LinkCommand::PrepareFiles(Box::new(command));
        self.give_to(line.0, Input::Command { link: line.1, command });
    }

    /// Checks the session to which files are to be added: a conversation's own one is no other conversation's.
    fn files_were_prepared(&mut self, files: &PreparedFiles) {
        let asked = files.request_id.as_ref().and_then(|id| self.platform.asked.remove(id));
        let Some(Brought::Files(place)) = asked else { panic!("nobody has asked: {files:?}") };
        let tenant = &files.key.tenant;
        assert_eq!(*tenant, self::tenant(), "{files:?}");
        let user = UserId::of_account(&place.channel, &place.account_id);
        assert_eq!(files.user, user, "an adapter adds files as its account: {files:?}");
        let earlier = |known: &&ConversationRef| self.platform.has_become(known, &place);
        let mut own = self.platform.places.iter().filter(earlier).map(|known| known.own_session(tenant));
        let session = &files.key.session;
        assert!(
            !session.is_of_conversation() || *session == place.own_session(tenant) || own.any(|own| own == *session),
            "files of {place:?} go to another conversation: {files:?}"
        );
    }

    /// Brings an event of a room on any connection of its account, until it was accepted.
    fn bring_event(&mut self, n: usize) {
        let RoomEvent { account, place, event, is_accepted: false } = &self.platform.events[n] else { return };
        let account = *account;
        let conversation = place.clone();
        let event = event.clone();
        self.later(2000, 6000, ScheduledEvent::Platform(Box::new(Step::BringEvent { n })));
        let Some(line) = self.line_of_account(account) else { return };
        let message_id = MessageId::parse(&format!("e{n}")).expect("a name");
        self.give_inbound(line, Brought::Event(n), message_id, conversation, event);
    }

    /// Returns a connection of an adapter of the account.
    pub(super) fn line_of_account(&mut self, account: usize) -> Option<LineId> {
        let adapters = self.platform.adapters.iter().filter(|adapter| adapter.account == account);
        let lines: Vec<LineId> = adapters.filter_map(|adapter| adapter.line).collect();
        (!lines.is_empty()).then(|| lines[self.rng.below(lines.len() as u64) as usize])
    }

    pub(super) fn give_inbound(
        &mut self,
        line: LineId,
        brought: Brought,
        message_id: MessageId,
        conversation: ConversationRef,
        event: InboundEvent,
    ) {
        self.requests += 1;
        let request_id = fixtures::request(self.requests);
        let sender = match &brought {
            Brought::Message { n, .. } => PEOPLE[(n / 5 % 3) as usize],
            Brought::Event(_) | Brought::Press(_) | Brought::Files(_) => PEOPLE[0],
        };
        self.platform.asked.insert(request_id.clone(), brought);
        let inbound = InboundCommand {
            request_id: Some(request_id),
            conversation,
            sender: Sender { id: sender.to_owned(), name: None, is_bot: false },
            message_id,
            platform_time: None,
            event,
        };
        let command = LinkCommand::Inbound(Box::new(inbound));
        self.give_to(line.0, Input::Command { link: line.1, command });
    }

    /// Handles a notification to an adapter; returns whether the connection is one of an adapter.
    pub(crate) fn show_adapter(&mut self, line: LineId, note: &Notification) -> bool {
        let Some(adapter) = self.platform.adapter_on(line) else { return false };
        self.later(0, 5, ScheduledEvent::Platform(Box::new(Step::Written { line, weight: note.weight() })));
        if let Notification::Deliver(message) = note {
            let is_paused = self.platform.adapters[adapter].is_paused;
            assert!(!is_paused, "BR-11: nothing is sent for a paused account: {message:?}");
            self.check_order(message);
            let message = DeliverMessage::clone(message);
            self.later(1, 400, ScheduledEvent::Platform(Box::new(Step::Post { adapter, line, message })));
        } else if let Notification::AdapterState(state) = note {
            self.platform.adapters[adapter].is_paused = state.pause.is_some();
            self.see_pause(self.platform.adapters[adapter].account, state.pause.is_some());
        } else if let Notification::GoAway { .. } = note {
            self.later(100, 6000, ScheduledEvent::Platform(Box::new(Step::Leave { adapter, line })));
        } else if let Notification::Reply(CommandReply::InboundAccepted(receipt)) = note {
            self.was_brought(receipt);
        } else if let Notification::Reply(CommandReply::FilesPrepared(files)) = note {
            self.files_were_prepared(files);
        } else if let Notification::Reply(CommandReply::Refused { request_id: Some(id), refusal, .. }) = note {
            self.press_was_refused(id, refusal);
        }
        true
    }

    /// Has an operator resume an account once its adapters are told that it is paused.
    fn see_pause(&mut self, account: usize, is_paused: bool) {
        if !is_paused {
            self.platform.paused.remove(&account);
        } else if self.platform.paused.insert(account) {
            self.later(200, 6000, ScheduledEvent::Platform(Box::new(Step::Resume { account })));
        }
    }

    /// Resumes an account as an operator, and again if it stays paused: the request may be lost with its node.
    fn resume_account(&mut self, account: usize) {
        if self.platform.paused.contains(&account) {
            self.resume_as_operator(NamedAccount { channel: channel(), account: account_id(account) });
            self.later(2000, 5000, ScheduledEvent::Platform(Box::new(Step::Resume { account })));
        }
    }

    /// Handles the receipt of what an adapter has brought.
    fn was_brought(&mut self, receipt: &InboundReceipt) {
        match receipt.request_id.as_ref().and_then(|id| self.platform.asked.remove(id)) {
            Some(Brought::Message { n, is_repeat }) => {
                assert_eq!(
                    receipt.disposition,
                    InboundDisposition::Run,
                    "a message of an open session runs: {receipt:?}"
                );
                let run_id = receipt.run_id.clone().expect("a turn");
                let Some(message) = self.platform.messages.get(&n) else { return };
                if is_repeat && !message.turns.contains(&run_id) && !self.rewinds {
                    self.check_repeat(message, receipt);
                }
                if let Some(message) = self.platform.messages.get_mut(&n) {
                    message.turns.insert(run_id);
                }
            }
            Some(Brought::Event(n)) => {
                assert_ne!(receipt.disposition, InboundDisposition::Run, "an event is no message: {receipt:?}");
                self.platform.events[n].is_accepted = true;
            }
            Some(Brought::Press(n)) => self.was_pressed(n, receipt),
            Some(Brought::Files(place)) => panic!("{place:?} was asked about, and nothing was brought: {receipt:?}"),
            None => {}
        }
    }

    /// Chooses what becomes of a part.
    fn manner_of_post(&mut self) -> Manner {
        let roll = if self.platform.troubled { self.rng.below(100) } else { 0 };
        match roll {
            0..52 => Manner::Sends,
            52..62 => Manner::SendsAndVanishes,
            62..68 => Manner::SendsUnsure,
            68..73 => Manner::FailsUnsure,
            73..81 => Manner::DoesNotSend,
            81..86 => Manner::Refuses(DeliveryErrorClass::Transient),
            86..90 => Manner::Refuses(DeliveryErrorClass::RateLimit),
            90..92 => Manner::Refuses(DeliveryErrorClass::Gone),
            92..95 => Manner::Misplaces,
            _ => Manner::Vanishes,
        }
    }

    /// Lets an adapter send a part, even if its connection has been lost since it was given the part.
    fn post(&mut self, adapter: usize, line: LineId, message: &DeliverMessage) {
        if message.order.deadline <= self.store_clock() {
            return;
        }
        let account = self.platform.adapters[adapter].account;
        let manner = self.manner_of_post();
        self.say(format_args!("adapter {adapter} {manner:?}: {:?}", message.order));
        let sent = match manner {
            Manner::Sends | Manner::SendsAndVanishes | Manner::SendsUnsure | Manner::Misplaces => {
                Some(self.put_into_room(account, message, manner == Manner::Misplaces))
            }
            Manner::DoesNotSend | Manner::FailsUnsure | Manner::Vanishes | Manner::Refuses(_) => None,
        };
        let outcome = match (manner, sent) {
            (Manner::SendsAndVanishes | Manner::Vanishes, _) => {
                return self.platform_step(Step::Leave { adapter, line });
            }
            (Manner::SendsUnsure | Manner::FailsUnsure, _) => AdapterOutcome::Unknown,
            (Manner::Refuses(class), _) => {
                let retry_after_ms = (class == DeliveryErrorClass::RateLimit).then_some(700);
                AdapterOutcome::Rejected { class, retry_after_ms }
            }
            (Manner::Sends | Manner::Misplaces, Some((external_id, place))) => {
                AdapterOutcome::Sent { external_id, place }
            }
            (Manner::Sends | Manner::Misplaces | Manner::DoesNotSend, _) => AdapterOutcome::NotSent,
        };
        let order = &message.order;
        let delivered = DeliveredCommand { delivery_id: order.delivery_id.clone(), part: order.part, outcome };
        self.later(1, 200, ScheduledEvent::Platform(Box::new(Step::Report { adapter, line, delivered })));
    }

    /// Puts a part into a room, where people press its buttons.
    fn put_into_room(
        &mut self,
        account: usize,
        message: &DeliverMessage,
        is_misplaced: bool,
    ) -> (MessageId, ConversationRef) {
        let before = self.platform.posts.len();
        let sent = self.platform.post(account, message, is_misplaced, self.rewinds);
        let has_buttons = message.order.buttons.is_some() && !is_misplaced;
        if let Some(post) = self.platform.posts.get(before).filter(|_| has_buttons).cloned() {
            self.press_buttons(&post);
        }
        if message.order.kind == DeliveryKind::Conversation && self.platform.posts.len() > before && !is_misplaced {
            self.open_thread(account, &message.order.conversation, sent.1.clone());
        }
        sent
    }

    /// Adds a thread to the rooms. Some people write there, perhaps before the gateway has bound it.
    fn open_thread(&mut self, account: usize, parent: &ConversationRef, place: ConversationRef) {
        let of_account = |room: &&Room| room.account == account;
        let known = self.platform.rooms.iter().filter(of_account);
        let room = known.clone().find(|room| room.place.is_same_place(parent)).or(known.clone().next());
        let Some(client) = room.map(|room| room.client) else { return };
        self.platform.rooms.push(Room { account, client, place });
        let room = self.platform.rooms.len() - 1;
        if self.platform.troubled && self.rng.chance(40) {
            let at = self.rng.below(8000);
            self.write_in(room, at);
        }
    }

    /// Reports on a part. Over a lost connection nothing is reported; a receipt may follow on the next one.
    fn report_part(&mut self, adapter: usize, line: LineId, delivered: DeliveredCommand) {
        let present = self.platform.adapters[adapter].line;
        let is_receipt = matches!(delivered.outcome, AdapterOutcome::Sent { .. });
        let Some(to) = present.filter(|present| *present == line || is_receipt) else { return };
        let command = LinkCommand::Delivered(Box::new(delivered));
        self.give_to(to.0, Input::Command { link: to.1, command });
    }
}

fn principal(account: usize) -> Principal {
    let user = UserId::of_account(&channel(), &account_id(account));
    Principal { tenant: tenant(), user, operator: false, writes: true }
}
