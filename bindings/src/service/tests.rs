//! Requests about bindings against the model of the store, with answers that get lost.
use super::*;
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{AccountId, ChannelName, ConversationId, MessageId, RunId, SessionId, TenantId, UserId};
use turnway_core::protocol::binding::{BindingId, Generation, TargetKind};
use turnway_core::protocol::conversation::UncheckedConversationRef;
use turnway_core::protocol::input::{Content, Input as UserInput, Message, Role, Strategy};
use turnway_core::store::ModelStore;
use turnway_core::time::{Millis, Mono};
use turnway_wire::channel::binding::{BindingScope, ExpiryChange, FoundBinding};

fn session(name: &str) -> SessionId {
    SessionId::parse(name).expect("a name")
}

fn principal(user: &str, operator: bool) -> Principal {
    let user = UserId::parse(user).expect("a name");
    Principal { tenant: TenantId::default_tenant(), user, operator, writes: true }
}

fn conversation(id: &str, parent: Option<&str>) -> ConversationRef {
    let raw = UncheckedConversationRef {
        channel: "rooms".to_owned(),
        account_id: "a".to_owned(),
        conversation_id: id.to_owned(),
        parent_conversation_id: parent.map(str::to_owned),
    };
    ConversationRef::parse(&raw).expect("a reference")
}

fn scope() -> BindingScope {
    let account = AccountId::parse("a").expect("a name");
    BindingScope { channel: ChannelName::parse("rooms").expect("a name"), account }
}

fn bind(id: &str, name: &str) -> BindCommand {
    BindCommand {
        conversation: conversation(id, None),
        session: session(name),
        target_kind: TargetKind::Session,
        expected: None,
        expiry: ExpiryChange::default(),
        mirror: None,
        metadata: BTreeMap::new(),
        nonce: None,
    }
}

fn resolve(id: &str) -> BindingCommand {
    BindingCommand::Resolve { conversation: conversation(id, None), explain: false }
}

fn unbind_all(name: &str) -> BindingCommand {
    BindingCommand::Unbind {
        target: BindingTarget::Session(session(name)),
        reason: UnbindReason::Manual,
        farewell: false,
    }
}

/// Returns whether an op may change a row.
fn is_change(op: &Op) -> bool {
    matches!(op, Op::Conversation { op: ConversationOp::Change { action, .. }, .. } if *action != BindingAction::Resolve)
}

/// A service on a model of the store, with the sessions `s` and `t` of ann.
struct Bench {
    service: BindingService,
    store: ModelStore,
    now: Now,
    /// The time by which the store's clock is behind what the node takes it for, in milliseconds.
    lag: u64,
    /// The results of the next ops, instead of the store's; an unknown outcome is performed all the same.
    faults: VecDeque<StoreError>,
    /// Ops that are to be performed later.
    later: Vec<Op>,
    /// Changes of rows stay on their way to the store; reads do not.
    is_slow: bool,
    under_way: Vec<Op>,
    /// The rows that the upkeep was told of.
    changed: Vec<(ConversationKey, BindingRow)>,
    replies: VecDeque<Result<BindingReply, Refusal>>,
}

impl Bench {
    fn new() -> Self {
        let now = Now { mono: Mono(Duration::from_secs(1)), store: Millis(1_764_000_000_000) };
        let mut bench = Self {
            service: BindingService::new(Rng::from_number(1)),
            store: ModelStore::new(false),
            now,
            lag: 0,
            faults: VecDeque::new(),
            later: Vec::new(),
            is_slow: false,
            under_way: Vec::new(),
            changed: Vec::new(),
            replies: VecDeque::new(),
        };
        for name in ["s", "t"] {
            bench.create(name);
        }
        bench
    }

    fn create(&mut self, name: &str) {
        let key = SessionKey { tenant: TenantId::default_tenant(), session: session(name) };
        let principal = principal("ann", false);
        let message_id = MessageId::parse("m").expect("a name");
        let input = UserInput {
            run_id: RunId::derive(&key, &principal.user, &message_id),
            message_id,
            request_id: None,
            user: principal.user.clone(),
            agent_id: None,
            history: None,
            message: Message { role: Role::User, content: Content::Text("hi".to_owned()) },
            strategy: Strategy::Enqueue,
            replaces: None,
            metadata: None,
            origin: None,
            traceparent: None,
        };
        let hash = input.body_hash();
        let reply =
            self.store.apply(self.now, &Op::Accept { key, principal, input: Arc::new(input), hash, route: None });
        assert!(matches!(reply, Reply::Accepted(_)), "{reply:?}");
    }

    fn give(&mut self, input: Input) {
        self.service.handle_input(self.now, input);
        while let Some(output) = self.service.poll_output() {
            match output {
                Output::Store(op) if self.is_slow && is_change(&op) => self.under_way.push(op),
                Output::Store(op) => self.perform(op),
                Output::StoreLater(op) => self.later.push(op),
                Output::Changed { key, row } => self.changed.push((key, *row)),
                Output::Reply { reply, .. } => self.replies.push_back(reply),
            }
        }
    }

    fn perform(&mut self, op: Op) {
        let fault = self.faults.pop_front();
        let now = Now { store: Millis(self.now.store.0 - self.lag), ..self.now };
        let reply = if fault == Some(StoreError::Unavailable) { Reply::Done } else { self.store.apply(now, &op) };
        let Op::Conversation { op, ticket } = op else { panic!("{op:?}") };
        let ticket = ticket.expect("a ticket");
        self.give(Input::Stored { op, ticket, result: fault.map_or(Ok(reply), Err) });
    }

    /// Performs the ops that are to be performed later.
    fn retry(&mut self) {
        for op in std::mem::take(&mut self.later) {
            self.perform(op);
        }
    }

    fn ask(&mut self, command: BindingCommand) -> Result<BindingReply, Refusal> {
        self.send(command);
        assert_eq!(self.replies.len(), 1, "one answer");
        self.replies.pop_front().expect("an answer")
    }

    fn send(&mut self, command: BindingCommand) {
        let asker = BindingAsker {
            link: LinkId(1),
            request_id: None,
            principal: principal("boss", true),
            purpose: AskPurpose::Request,
        };
        self.give(Input::Command { asker, command });
    }

    fn bind(&mut self, bind: BindCommand) -> Binding {
        match self.ask(BindingCommand::Bind(Box::new(bind))) {
            Ok(BindingReply::Bound(binding)) => *binding,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the session that a conversation is bound to.
    fn session_of(&mut self, id: &str) -> Option<SessionId> {
        match self.ask(resolve(id)) {
            Ok(BindingReply::Resolved(found)) => found.binding.map(|binding| binding.session),
            other => panic!("{other:?}"),
        }
    }

    /// Changes a row beside the service, as another node does.
    fn change(&mut self, id: &str, action: BindingAction) {
        let key = conversation(id, None).key(&TenantId::default_tenant());
        let reply = self.store.apply(self.now, &ConversationOp::Change { key, action }.into());
        let is_applied =
            matches!(reply, Reply::Conversation(ConversationReply::Row { outcome: BindingOutcome::Applied, .. }));
        assert!(is_applied, "{reply:?}");
    }

    /// Gives a conversation another id, by every step of a move.
    fn rename(&mut self, from: &str, to: &str, binding: &Binding) {
        let generation = binding.generation;
        let id = |id: &str| ConversationId::parse(id).expect("an id");
        let moved = Binding { conversation: conversation(to, None), ..binding.clone() };
        self.change(from, BindingAction::StartMove { generation, to: id(to) });
        self.change(to, BindingAction::AcceptMove { binding: Box::new(moved), from: id(from) });
        self.change(from, BindingAction::FinishMove { generation, to: id(to) });
        self.change(to, BindingAction::Arrive { generation });
    }
}

/// Covers: BD-S1, BD-L9.
#[test]
fn conversation_is_bound_looked_up_listed_and_unbound() {
    let mut bench = Bench::new();
    assert_eq!(bench.session_of("7"), None);
    let binding = bench.bind(bind("7", "s"));
    assert_eq!(binding.expiry.idle_timeout, Some(86_400_000), "a day by default");
    let never = ExpiryChange { idle_timeout: Some(0), ..ExpiryChange::default() };
    let other = bench.bind(BindCommand { expiry: never, ..bind("8", "s") });
    assert_eq!(other.expiry.idle_timeout, None);
    assert_eq!(bench.session_of("7"), Some(session("s")));
    let listed = bench.ask(BindingCommand::List { session: session("s") });
    assert_eq!(listed, Ok(BindingReply::Listed(vec![binding.clone(), other])));
    let target = BindingTarget::Binding { scope: scope(), id: binding.id() };
    let unbind = BindingCommand::Unbind { target, reason: UnbindReason::ConversationArchived, farewell: false };
    for _ in 0..2 {
        let Ok(BindingReply::Unbound(ended)) = bench.ask(unbind.clone()) else { panic!("not unbound") };
        let ended: Vec<_> = ended.iter().map(|ended| (ended.binding.generation, ended.reason)).collect();
        assert_eq!(ended, [(binding.generation, UnbindReason::ConversationArchived)], "also when it is repeated");
    }
    assert_eq!(bench.session_of("7"), None);
    assert_eq!(bench.session_of("8"), Some(session("s")));
    assert!(bench.changed.iter().all(|(_, row)| !row.reports.is_empty()), "{:?}", bench.changed);
    assert_eq!(bench.service.waiting_count(), 0);
}

/// Covers: BR-32.
#[test]
fn refused_compare_and_set_names_the_present_binding() {
    let mut bench = Bench::new();
    let binding = bench.bind(bind("7", "s"));
    let current = Some(Box::new(binding.clone()));
    for expected in [None, Some(Generation(0)), Some(Generation(binding.generation.0 - 1))] {
        let reply = bench.ask(BindingCommand::Bind(Box::new(BindCommand { expected, ..bind("7", "t") })));
        assert_eq!(reply, Ok(BindingReply::NotApplied { current: current.clone() }), "{expected:?}");
    }
    let stale = BindingId { generation: Generation(1), ..binding.id() };
    for command in [
        BindingCommand::Touch { scope: scope(), id: stale.clone() },
        BindingCommand::Unbind {
            target: BindingTarget::Binding { scope: scope(), id: stale.clone() },
            reason: UnbindReason::Manual,
            farewell: false,
        },
        BindingCommand::SetExpiry {
            target: BindingTarget::Binding { scope: scope(), id: stale },
            change: ExpiryChange { max_age: Some(1), ..ExpiryChange::default() },
        },
    ] {
        assert_eq!(
            bench.ask(command.clone()),
            Ok(BindingReply::NotApplied { current: current.clone() }),
            "{command:?}"
        );
    }
    // The same id in another account is another conversation.
    let account = AccountId::parse("b").expect("a name");
    let elsewhere = BindingScope { account, ..scope() };
    let touch = BindingCommand::Touch { scope: elsewhere, id: binding.id() };
    assert_eq!(bench.ask(touch), Ok(BindingReply::NotApplied { current: None }));
    assert_eq!(bench.session_of("7"), Some(session("s")));
}

/// Another node binds the conversation to another session while a request waits for the store.
///
/// Covers: BD-B11, BR-32.
#[test]
fn request_that_another_node_overtakes_changes_nothing() {
    for number in 0..5 {
        let mut bench = Bench::new();
        let binding = bench.bind(bind("7", "s"));
        let expiry = ExpiryChange { idle_timeout: Some(1), ..ExpiryChange::default() };
        let target = BindingTarget::Binding { scope: scope(), id: binding.id() };
        let command = match number {
            0 => BindingCommand::Touch { scope: scope(), id: binding.id() },
            1 => BindingCommand::SetExpiry { target, change: expiry },
            2 => BindingCommand::Unbind { target, reason: UnbindReason::Manual, farewell: true },
            3 => BindingCommand::Bind(Box::new(bind("7", "s"))),
            _ => BindingCommand::SetExpiry { target: BindingTarget::Session(session("s")), change: expiry },
        };
        bench.is_slow = true;
        bench.send(command.clone());
        assert_eq!((bench.under_way.len(), bench.replies.len()), (1, 0), "{command:?}");
        bench.now.store = Millis(bench.now.store.0 + 5_000);
        let replacing = BindCommand { expected: Some(binding.generation), ..bind("7", "t") };
        let new = request::new_binding(principal("boss", true), replacing, 99);
        bench.change("7", BindingAction::Bind(Box::new(new)));
        let row = |bench: &Bench| bench.store.conversations().map(|(_, row)| row.clone()).collect::<Vec<_>>();
        let stored = row(&bench);
        for op in std::mem::take(&mut bench.under_way) {
            bench.perform(op);
        }
        assert_eq!(row(&bench), stored, "{command:?}");
        let current = stored[0].active().cloned().map(Box::new);
        let expected = match number {
            2 => Ok(BindingReply::Unbound(stored[0].last_ended.iter().map(|last| (**last).clone()).collect())),
            // None of the session's bindings is left.
            4 => Ok(BindingReply::Updated(Vec::new())),
            _ => Ok(BindingReply::NotApplied { current }),
        };
        assert_eq!(bench.replies.pop_front(), Some(expected), "{command:?}");
    }
}

/// Covers: BD-L8, BD-L17.
#[test]
fn rebind_keeps_what_the_caller_does_not_name() {
    let mut bench = Bench::new();
    let expiry = ExpiryChange { idle_timeout: Some(5_000), max_age: Some(0), expires_at: None };
    let metadata = BTreeMap::from([("persona".to_owned(), "Ada".to_owned())]);
    let first = bench.bind(BindCommand { expiry, metadata: metadata.clone(), ..bind("7", "s") });
    let again = bench.bind(bind("7", "s"));
    assert!(again.generation > first.generation);
    assert_eq!((again.expiry, &again.metadata), (first.expiry, &metadata));
    let named = ExpiryChange { max_age: Some(9_000), ..ExpiryChange::default() };
    let replaced = BindCommand { expected: Some(again.generation), expiry: named, ..bind("7", "t") };
    let other = bench.bind(replaced);
    assert_eq!((other.expiry.idle_timeout, other.expiry.max_age), (Some(5_000), Some(9_000)));
    assert!(other.metadata.is_empty(), "the persona of another session");
}

/// Covers: BD-L6, BD-L7.
#[test]
fn times_of_all_bindings_of_a_session_are_changed() {
    let mut bench = Bench::new();
    for id in ["7", "8"] {
        bench.bind(bind(id, "s"));
    }
    let other = bench.bind(bind("9", "t"));
    let change = ExpiryChange { idle_timeout: Some(1_000), max_age: Some(60_000), expires_at: None };
    let target = BindingTarget::Session(session("s"));
    let Ok(BindingReply::Updated(updated)) = bench.ask(BindingCommand::SetExpiry { target, change }) else {
        panic!("not updated")
    };
    assert_eq!(updated.len(), 2);
    assert!(updated.iter().all(|b| (b.expiry.idle_timeout, b.expiry.max_age) == (Some(1_000), Some(60_000))));
    let target = BindingTarget::Binding { scope: scope(), id: updated[0].id() };
    let change = ExpiryChange { idle_timeout: Some(0), ..ExpiryChange::default() };
    let Ok(BindingReply::Updated(updated)) = bench.ask(BindingCommand::SetExpiry { target, change }) else {
        panic!("not updated")
    };
    assert_eq!((updated[0].expiry.idle_timeout, updated[0].expiry.max_age), (None, Some(60_000)));
    assert_eq!(bench.ask(BindingCommand::List { session: session("t") }), Ok(BindingReply::Listed(vec![other])));
}

/// Covers: BR-33, BR-35.
#[test]
fn lookup_follows_aliases_and_explains_itself() {
    let mut bench = Bench::new();
    bench.bind(bind("9", "t"));
    let binding = bench.bind(bind("7", "s"));
    // The logs have what was changed before the move.
    bench.change("7", BindingAction::Settle { generation: binding.generation, is_end: false });
    bench.rename("7", "8", &binding);
    assert_eq!(bench.session_of("7"), Some(session("s")));
    let explain = BindingCommand::Resolve { conversation: conversation("7", Some("9")), explain: true };
    let Ok(BindingReply::Resolved(found)) = bench.ask(explain) else { panic!("not resolved") };
    let rows: Vec<_> = found.candidates.iter().flatten().collect();
    let rows: Vec<_> = rows.iter().map(|row| (row.conversation.conversation_id.as_str(), row.verdict)).collect();
    use CandidateVerdict::{Bound, Moved, Parent};
    assert_eq!(rows, [("7", Moved), ("8", Bound), ("9", Parent)]);
    assert_eq!(found.binding.map(|binding| binding.session), Some(session("s")));
    // A thread in a bound channel is not bound by it.
    let thread = BindingCommand::Resolve { conversation: conversation("10", Some("9")), explain: true };
    let Ok(BindingReply::Resolved(found)) = bench.ask(thread) else { panic!("not resolved") };
    assert_eq!(found.binding, None);
    // The old id is no place of its own: whoever binds it binds the conversation.
    let again = bench.bind(bind("7", "s"));
    assert_eq!(again.conversation.conversation_id.as_str(), "8");
}

/// Returns the conversations of an answer, each with the session that it is bound to.
fn sessions_of(reply: Result<BindingReply, Refusal>) -> Vec<(String, Option<SessionId>)> {
    let Ok(BindingReply::ResolvedAll(found)) = reply else { panic!("{reply:?}") };
    let session = |found: FoundBinding| found.binding.map(|binding| binding.session);
    found.into_iter().map(|it| (it.conversation.conversation_id.as_str().to_owned(), session(it))).collect()
}

fn resolve_all(ids: &[&str]) -> BindingCommand {
    BindingCommand::ResolveAll { conversations: ids.iter().map(|id| conversation(id, None)).collect() }
}

/// Covers: BD-B10, BR-33.
#[test]
fn several_conversations_are_looked_up_in_order() {
    let mut bench = Bench::new();
    bench.bind(bind("9", "t"));
    let binding = bench.bind(bind("7", "s"));
    bench.change("7", BindingAction::Settle { generation: binding.generation, is_end: false });
    bench.rename("7", "8", &binding);
    bench.changed.clear();
    // The present id of 7 is read at another moment, unless the request names it, too.
    for ids in [&["9", "7", "6", "9"][..], &["8", "9", "7", "6"]] {
        let bound = |id: &str| match id {
            "9" => Some(session("t")),
            "7" | "8" => Some(session("s")),
            _ => None,
        };
        let expected: Vec<_> = ids.iter().map(|id| ((*id).to_owned(), bound(id))).collect();
        assert_eq!(sessions_of(bench.ask(resolve_all(ids))), expected);
    }
    assert_eq!(bench.changed, [], "nothing is reported");
    assert_eq!(bench.service.waiting_count(), 0);
}

/// Covers: BD-B10, BD-L2.
#[test]
fn lookup_of_several_ends_no_binding() {
    let mut bench = Bench::new();
    let soon = ExpiryChange { max_age: Some(1_000), ..ExpiryChange::default() };
    bench.bind(BindCommand { expiry: soon, ..bind("7", "s") });
    bench.bind(bind("8", "s"));
    bench.now.store = Millis(bench.now.store.0 + 1_000);
    bench.changed.clear();
    let before = bench.store.clone();
    let expected = [("7".to_owned(), None), ("8".to_owned(), Some(session("s")))];
    assert_eq!(sessions_of(bench.ask(resolve_all(&["7", "8"]))), expected);
    assert_eq!(bench.changed, []);
    let key = conversation("7", None).key(&TenantId::default_tenant());
    let keys = vec![key, conversation("6", None).key(&TenantId::default_tenant())];
    let read = Op::from(ConversationOp::Read { keys });
    let mut untouched = before;
    assert_eq!(bench.store.apply(bench.now, &read), untouched.apply(bench.now, &read), "the rows are as they were");
}

/// Covers: BD-B10, BD-R6.
#[test]
fn arriving_conversation_refuses_a_lookup_of_several() {
    let mut bench = Bench::new();
    let binding = bench.bind(bind("7", "s"));
    let from = ConversationId::parse("7").expect("an id");
    let moved = Box::new(Binding { conversation: conversation("8", None), ..binding });
    bench.change("8", BindingAction::AcceptMove { binding: moved, from });
    let refusal = bench.ask(resolve_all(&["7", "8"])).expect_err("neither bound nor unbound");
    assert_eq!(refusal.code, Code::StoreUnavailable);
}

/// Covers: BD-L2, BD-L3.
#[test]
fn binding_whose_time_is_over_routes_nothing() {
    let mut bench = Bench::new();
    let soon = ExpiryChange { max_age: Some(1_000), ..ExpiryChange::default() };
    bench.bind(BindCommand { expiry: soon, ..bind("7", "s") });
    bench.now.store = Millis(bench.now.store.0 + 999);
    assert_eq!(bench.session_of("7"), Some(session("s")));
    bench.now.store = Millis(bench.now.store.0 + 1);
    bench.changed.clear();
    assert_eq!(bench.session_of("7"), None);
    let reports = bench.changed.last().map(|(_, row)| row.reports.len());
    assert_eq!(reports, Some(2), "its end is reported");
}

/// The clock of the store decides; a node whose estimate is ahead asks once and believes it.
#[test]
fn binding_lasts_by_the_clock_of_the_store() {
    let mut bench = Bench::new();
    let soon = ExpiryChange { max_age: Some(1_000), ..ExpiryChange::default() };
    bench.bind(BindCommand { expiry: soon, ..bind("7", "s") });
    bench.now.store = Millis(bench.now.store.0 + 1_050);
    bench.lag = 100;
    assert_eq!(bench.session_of("7"), Some(session("s")));
    bench.lag = 0;
    assert_eq!(bench.session_of("7"), None);
}

/// Covers: BD-R6.
#[test]
fn conversation_that_is_getting_another_id_cannot_be_looked_up() {
    let mut bench = Bench::new();
    let binding = bench.bind(bind("7", "s"));
    let from = ConversationId::parse("7").expect("an id");
    let moved = Box::new(Binding { conversation: conversation("8", None), ..binding });
    bench.change("8", BindingAction::AcceptMove { binding: moved, from });
    let refusal = bench.ask(resolve("8")).expect_err("neither bound nor unbound");
    assert_eq!(refusal.code, Code::StoreUnavailable);
    assert!(refusal.retry_after_ms.is_some());
}

/// Covers: BD-D7.
#[test]
fn closed_session_loses_its_bindings_whatever_the_store_does() {
    let mut bench = Bench::new();
    for id in ["7", "8"] {
        bench.bind(bind(id, "s"));
    }
    bench.bind(bind("9", "t"));
    let key = SessionKey { tenant: TenantId::default_tenant(), session: session("s") };
    // The list, and each of the changes, fail at first.
    bench.faults = [StoreError::Unavailable].into();
    bench.give(Input::SessionGone { session: key, reason: UnbindReason::SessionClosed });
    bench.faults = [StoreError::Unknown, StoreError::Unavailable, StoreError::Unknown].into();
    for _ in 0..10 {
        bench.now.mono = bench.now.mono + Duration::from_secs(60);
        bench.retry();
    }
    assert_eq!([bench.session_of("7"), bench.session_of("8")], [None, None]);
    assert_eq!(bench.session_of("9"), Some(session("t")));
    let (_, row) = bench.changed.iter().find(|(key, _)| key.conversation.as_str() == "8").expect("it was changed");
    assert_eq!(row.reports.len(), 1, "bound");
    let ended = bench.changed.iter().filter_map(|(_, row)| row.last_ended.as_ref());
    assert!(ended.clone().count() >= 2 && ended.clone().all(|last| last.reason == UnbindReason::SessionClosed));
    assert_eq!(bench.service.waiting_count(), 0);
}

/// Covers: BR-35.
#[test]
fn moving_binding_of_a_closed_session_ends_at_its_new_place() {
    let mut bench = Bench::new();
    let binding = bench.bind(bind("7", "s"));
    let generation = binding.generation;
    bench.change("7", BindingAction::Settle { generation, is_end: false });
    let to = ConversationId::parse("8").expect("an id");
    bench.change("7", BindingAction::StartMove { generation, to: to.clone() });
    let key = SessionKey { tenant: TenantId::default_tenant(), session: session("s") };
    bench.give(Input::SessionGone { session: key, reason: UnbindReason::SessionClosed });
    assert_eq!(bench.later.len(), 1, "nothing but the move changes the row");
    let refusal = bench.ask(unbind_all("s")).expect_err("a move is in progress");
    assert_eq!(refusal.code, Code::StoreUnavailable);
    let from = ConversationId::parse("7").expect("an id");
    let moved = Box::new(Binding { conversation: conversation("8", None), ..binding.clone() });
    bench.change("8", BindingAction::AcceptMove { binding: moved, from });
    bench.change("7", BindingAction::FinishMove { generation, to });
    bench.retry();
    assert_eq!(bench.later.len(), 1, "the new row is about to take it over");
    bench.change("8", BindingAction::Arrive { generation });
    bench.retry();
    assert_eq!([bench.session_of("7"), bench.session_of("8")], [None, None]);
    assert_eq!(bench.service.waiting_count(), 0);
    // The binding's old id reaches the present place.
    let again = bench.bind(bind("8", "t"));
    let id = BindingId { conversation: binding.id().conversation, ..again.id() };
    let target = BindingTarget::Binding { scope: scope(), id };
    let unbind = BindingCommand::Unbind { target, reason: UnbindReason::Manual, farewell: false };
    assert!(matches!(bench.ask(unbind), Ok(BindingReply::Unbound(ended)) if ended.len() == 1));
}

#[test]
fn unavailable_store_refuses_and_unknown_outcome_is_retried() {
    let mut bench = Bench::new();
    bench.faults = [StoreError::Unavailable].into();
    let refusal = bench.ask(BindingCommand::Bind(Box::new(bind("7", "s")))).expect_err("the store is away");
    assert_eq!(refusal.code, Code::StoreUnavailable);
    assert!(refusal.message.contains("nothing was changed"), "{refusal:?}");
    // The first try is performed, but its answer is lost: the second finds the same binding.
    bench.faults = [StoreError::Unknown].into();
    bench.send(BindingCommand::Bind(Box::new(bind("7", "s"))));
    assert!(bench.replies.is_empty());
    bench.retry();
    let Some(Ok(BindingReply::Bound(binding))) = bench.replies.pop_front() else { panic!("not bound") };
    assert_eq!(bench.ask(unbind_all("t")), Ok(BindingReply::Unbound(Vec::new())), "nothing to end");
    // A request waits for the outcome only for a while.
    bench.faults = [StoreError::Unknown, StoreError::Unknown].into();
    bench.send(unbind_all("s"));
    bench.now.mono = bench.now.mono + limits::STORE_OUTCOME_TIMEOUT;
    bench.retry();
    let Some(Err(refusal)) = bench.replies.pop_front() else { panic!("not refused") };
    assert!(refusal.message.contains("repeat it"), "{refusal:?}");
    assert_eq!(bench.service.waiting_count(), 0);
    assert_eq!(bench.session_of("7"), Some(binding.session));
}

#[test]
fn waiting_requests_of_a_link_are_limited() {
    let mut bench = Bench::new();
    bench.faults = vec![StoreError::Unknown; limits::LINK_REQUESTS_MAX].into();
    for _ in 0..limits::LINK_REQUESTS_MAX {
        bench.send(resolve("7"));
    }
    assert!(bench.replies.is_empty());
    let refusal = bench.ask(resolve("7")).expect_err("too many");
    assert_eq!(refusal.code, Code::RateLimited);
    bench.retry();
    assert_eq!(bench.replies.len(), limits::LINK_REQUESTS_MAX);
    bench.replies.clear();
    assert_eq!(bench.session_of("7"), None, "there is room again");
    assert!(bench.service.waiting.is_empty());
}

/// Covers: S-06.
#[test]
fn list_of_a_foreign_session_is_refused() {
    let mut bench = Bench::new();
    for (user, name) in [("bob", "s"), ("ann", "nobodys")] {
        let asker = BindingAsker {
            link: LinkId(1),
            request_id: None,
            principal: principal(user, false),
            purpose: AskPurpose::Request,
        };
        bench.give(Input::Command { asker, command: BindingCommand::List { session: session(name) } });
        assert_eq!(bench.replies.pop_front(), Some(Err(Refusal::not_found())), "{user} {name}");
    }
    let asker = BindingAsker {
        link: LinkId(1),
        request_id: None,
        principal: principal("ann", false),
        purpose: AskPurpose::Request,
    };
    bench.give(Input::Command { asker, command: BindingCommand::List { session: session("s") } });
    assert_eq!(bench.replies.pop_front(), Some(Ok(BindingReply::Listed(Vec::new()))));
}
