//! Messages of conversations, in simulated time: sessions that are closed or gone, and ids of messages.
use crate::fixture::{Fixture, connected, key, say, session, user};
use std::collections::BTreeMap;
use std::time::Duration;
use turnway_core::id::{AccountId, ChannelName, LinkId, MessageId, Principal, RequestId, RunId, SessionKey, TenantId};
use turnway_core::limits;
use turnway_core::protocol::binding::{TargetKind, UnbindReason};
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::delivery::Sender;
use turnway_core::protocol::input::{Content, ControlRequest};
use turnway_core::store::{ModelStore, Op, Reply, StoreError};
use turnway_core::time::{Millis, Mono, Now};
use turnway_node::switchboard::Input;
use turnway_wire::channel::adapter::{AdapterCapabilities, AdapterHello, InboundCommand, InboundEvent};
use turnway_wire::channel::binding::{BindCommand, BindingCommand, BindingTarget, ExpiryChange};
use turnway_wire::channel::command::LinkCommand;

/// The link of the adapter.
pub(crate) const ADAPTER: LinkId = LinkId(1);
const HOUR: Duration = Duration::from_secs(60 * 60);

pub(crate) fn lobby() -> ConversationRef {
    ConversationRef::without_parent("rooms", "main", "lobby").expect("a conversation")
}

/// Returns the session that the conversation has while nobody has bound it.
pub(crate) fn own_session() -> SessionKey {
    let tenant = TenantId::default_tenant();
    SessionKey { session: lobby().own_session(&tenant), tenant }
}

/// Connects an adapter of the account `main`.
fn serve(bench: &mut Fixture) {
    serve_with(bench, AdapterCapabilities::default());
}

/// Connects an adapter of the account `main` with these capabilities.
pub(crate) fn serve_with(bench: &mut Fixture, capabilities: AdapterCapabilities) {
    connect_with(bench, ADAPTER.0, "main", capabilities);
}

/// Connects an adapter of an account; returns what it is told.
fn connect_adapter(bench: &mut Fixture, link: u64, account: &str) -> Vec<String> {
    connect_with(bench, link, account, AdapterCapabilities::default())
}

fn connect_with(bench: &mut Fixture, link: u64, account: &str, capabilities: AdapterCapabilities) -> Vec<String> {
    connected(bench, link, &format!("channel:rooms/{account}"));
    let adapter = Box::new(AdapterHello {
        channel: ChannelName::parse("rooms").expect("a name"),
        account: AccountId::parse(account).expect("a name"),
        platform_bot_id: None,
        instance_id: None,
        capabilities,
    });
    bench.give(Input::ServeAccount { link: LinkId(link), adapter });
    bench.take_shown(link)
}

/// Brings a message; returns what the adapter is told at once.
fn bring(bench: &mut Fixture, id: &str) -> Vec<String> {
    send_message(bench, id);
    receipts(bench)
}

/// Sends a message of a person.
pub(crate) fn send_message(bench: &mut Fixture, id: &str) {
    let inbound = InboundCommand {
        request_id: RequestId::parse(id).ok(),
        conversation: lobby(),
        sender: Sender { id: "u7".to_owned(), name: None, is_bot: false },
        message_id: MessageId::parse(id).expect("a name"),
        platform_time: None,
        event: InboundEvent::Message(Content::Text("hi".to_owned())),
    };
    bench.give(Input::Command { link: ADAPTER, command: LinkCommand::Inbound(Box::new(inbound)) });
    bench.run(Duration::from_millis(100));
}

/// Returns the answers to inbound events since the last look.
fn receipts(bench: &mut Fixture) -> Vec<String> {
    let mut shown = bench.take_shown(ADAPTER.0);
    shown.retain(|line| line.starts_with("inbound") || line.starts_with("refused"));
    shown
}

/// Brings a message that is new, and answers its turn.
fn talk(bench: &mut Fixture, id: &str) {
    let before = invoked(bench).len();
    assert_eq!(bring(bench, id), ["inbound Run false"], "{id}");
    bench.run(Duration::from_millis(200));
    assert_eq!(invoked(bench).len(), before + 1, "{id} runs once");
    // An answer without text is sent nowhere.
    bench.answer(&[]);
    bench.run(Duration::from_millis(200));
}

/// Returns the turns whose agent was asked, in order.
fn invoked(bench: &Fixture) -> Vec<RunId> {
    bench.invokes().map(|invoke| invoke.run_id.clone()).collect()
}

/// Has the account close the session of the conversation.
fn close(bench: &mut Fixture) {
    let command =
        LinkCommand::Control { request_id: None, session: own_session().session, request: ControlRequest::Close };
    bench.give(Input::Command { link: ADAPTER, command });
    bench.run(Duration::from_millis(200));
    assert!(bench.model.session(&own_session()).is_some_and(|session| session.closed));
    bench.take_shown(ADAPTER.0);
}

/// Covers: BD-I4, BR-26.
#[test]
fn closed_session_is_opened_by_the_next_message() {
    let mut bench = Fixture::new();
    serve(&mut bench);
    talk(&mut bench, "m1");
    close(&mut bench);
    assert_eq!(bring(&mut bench, "m1"), ["inbound Run true"], "it was accepted before the close");
    assert!(bench.model.session(&own_session()).is_some_and(|session| session.closed), "a repeat opens nothing");
    talk(&mut bench, "m2");
    assert!(bench.model.session(&own_session()).is_some_and(|session| !session.closed));
    assert_eq!(bring(&mut bench, "m2"), ["inbound Run true"]);
    assert_eq!(invoked(&bench).len(), 2);
}

/// A node that is started later opens the session from the store.
///
/// Covers: BD-I4, BR-26.
#[test]
fn closed_session_is_opened_by_another_node() {
    let mut bench = Fixture::new();
    serve(&mut bench);
    talk(&mut bench, "m1");
    close(&mut bench);
    bench.run(Duration::from_secs(5));
    let mut other = Fixture::with(8, bench.model, bench.now);
    other.run(Duration::from_secs(1));
    serve(&mut other);
    talk(&mut other, "m2");
}

/// Covers: BD-I4, BR-26.
#[test]
fn message_is_refused_while_its_session_cannot_be_opened() {
    let mut bench = Fixture::new();
    serve(&mut bench);
    talk(&mut bench, "m1");
    close(&mut bench);
    for trouble in [StoreError::Unavailable, StoreError::Unknown] {
        bench.control_trouble = Some(trouble);
        let mut told = bring(&mut bench, "m2");
        bench.run(Duration::from_secs(3));
        told.extend(receipts(&mut bench));
        assert_eq!(told, ["refused store_unavailable"], "{trouble:?}");
    }
    bench.control_trouble = None;
    talk(&mut bench, "m2");
}

/// Covers: BD-I4, BR-26.
#[test]
fn message_to_a_deleted_session_is_refused() {
    let mut bench = Fixture::new();
    serve(&mut bench);
    talk(&mut bench, "m1");
    bench.run(Duration::from_secs(5));
    let before = bench.now.store.after(HOUR);
    assert_eq!(bench.model.apply(bench.now, &Op::DeleteIdle { key: own_session(), before }), Reply::Done);
    let open =
        LinkCommand::Open { request_id: None, session: Some(own_session().session), agents: Vec::new(), active: None };
    bench.give(Input::Command { link: ADAPTER, command: open });
    assert_eq!(receipts(&mut bench), ["refused not_found"]);
    assert_eq!(bring(&mut bench, "m2"), ["refused not_found"]);
}

/// Covers: BD-I4, BD-S1, BR-26.
#[test]
fn conversation_leaves_a_bound_session_that_is_gone() {
    let mut bench = Fixture::new();
    serve(&mut bench);
    bench.give(Input::Connect { link: LinkId(2), principal: Principal { operator: true, ..user("root") } });
    bench.give(Input::Command { link: LinkId(2), command: say("m0", "hi") });
    bench.answer(&[]);
    let bind = BindingCommand::Bind(Box::new(BindCommand {
        conversation: lobby(),
        session: session(),
        target_kind: TargetKind::Session,
        expected: None,
        expiry: ExpiryChange::default(),
        mirror: None,
        metadata: BTreeMap::new(),
        nonce: None,
    }));
    bench.give(Input::Command { link: LinkId(2), command: LinkCommand::Binding { request_id: None, command: bind } });
    bench.give(Input::Disconnect { link: LinkId(2) });
    bench.run(Duration::from_secs(10));
    let before = bench.now.store.after(HOUR);
    assert_eq!(bench.model.apply(bench.now, &Op::DeleteIdle { key: key(), before }), Reply::Done);
    let row = |bench: &Fixture| bench.model.conversations().next().map(|(_, row)| row.active().is_some());
    assert_eq!(row(&bench), Some(true));
    assert_eq!(bring(&mut bench, "m1"), ["refused busy"], "the adapter sends it again");
    bench.run(Duration::from_secs(1));
    assert_eq!(row(&bench), Some(false));
    talk(&mut bench, "m1");
    assert!(bench.model.session(&own_session()).is_some());
}

/// Performs a request of an operator about the conversation's binding.
fn change_binding(bench: &mut Fixture, command: BindingCommand) {
    bench.give(Input::Connect { link: LinkId(2), principal: Principal { operator: true, ..user("root") } });
    bench.give(Input::Command { link: LinkId(2), command: LinkCommand::Binding { request_id: None, command } });
    bench.run(Duration::from_millis(100));
    let shown = bench.take_shown(2);
    assert!(shown.iter().any(|line| line.starts_with("binding")), "{shown:?}");
    bench.give(Input::Disconnect { link: LinkId(2) });
}

fn bind_lobby(bench: &mut Fixture) {
    let command = BindingCommand::Bind(Box::new(BindCommand {
        conversation: lobby(),
        session: session(),
        target_kind: TargetKind::Session,
        expected: None,
        expiry: ExpiryChange::default(),
        mirror: None,
        metadata: BTreeMap::new(),
        nonce: None,
    }));
    change_binding(bench, command);
}

fn unbind_lobby(bench: &mut Fixture) {
    let target = BindingTarget::Session(session());
    change_binding(bench, BindingCommand::Unbind { target, reason: UnbindReason::Manual, farewell: false });
}

/// Has the copies of a message reach the store that were held back.
fn release_held(bench: &mut Fixture) -> Vec<String> {
    bench.holds_inputs = false;
    for op in std::mem::take(&mut bench.held) {
        let result = Ok(bench.model.apply(bench.now, &op));
        bench.give(Input::Stored { op, result });
    }
    bench.run(Duration::from_millis(200));
    receipts(bench)
}

/// Brings a message twice. The first copy is on its way to the session that the conversation had before `change`, and
/// reaches it when the second one was accepted by another session.
fn bring_around(bench: &mut Fixture, id: &str, change: impl FnOnce(&mut Fixture)) {
    let before = invoked(bench).len();
    bench.holds_inputs = true;
    assert_eq!(bring(bench, id), Vec::<String>::new());
    bench.holds_inputs = false;
    change(bench);
    assert_eq!(bring(bench, id), ["inbound Run false"], "{id}");
    assert_eq!(release_held(bench), ["refused busy"], "the first copy of {id} comes too late");
    assert_eq!(bring(bench, id), ["inbound Run true"], "{id}");
    assert_eq!(invoked(bench).len(), before + 1, "{id} runs once");
    bench.answer(&[]);
    bench.run(Duration::from_millis(200));
}

/// Covers: BR-03, BR-24.
#[test]
fn copies_around_a_change_of_the_binding_run_once() {
    let mut bench = Fixture::new();
    serve(&mut bench);
    bench.give(Input::Connect { link: LinkId(2), principal: Principal { operator: true, ..user("root") } });
    bench.give(Input::Command { link: LinkId(2), command: say("m0", "hi") });
    bench.answer(&[]);
    bench.run(Duration::from_secs(1));
    // The conversation's own session is not there yet.
    bring_around(&mut bench, "m1", bind_lobby);
    bring_around(&mut bench, "m2", unbind_lobby);
    bring_around(&mut bench, "m3", bind_lobby);
    // A session that the conversation comes back to takes its messages again.
    talk(&mut bench, "m4");
    unbind_lobby(&mut bench);
    talk(&mut bench, "m5");
}

/// Covers: BD-I4, BR-03.
#[test]
fn message_ids_are_kept_for_three_days() {
    let start = Now { mono: Mono(Duration::from_secs(1)), store: Millis(1_764_000_000_000) };
    let mut bench = Fixture::trimming(7, ModelStore::new(false), start);
    bench.run(Duration::from_millis(1));
    serve(&mut bench);
    for n in 1..4 {
        talk(&mut bench, &format!("m{n}"));
    }
    let first = invoked(&bench)[0].clone();
    for (node, hours, is_known) in [(8, 71, true), (9, 2, false)] {
        bench.run(Duration::from_secs(5));
        let now = Now { mono: bench.now.mono + hours * HOUR, store: bench.now.store.after(hours * HOUR) };
        bench = Fixture::trimming(node, bench.model, now);
        bench.run(Duration::from_secs(1));
        serve(&mut bench);
        for n in 0..4 {
            talk(&mut bench, &format!("m{node}{n}"));
        }
        let session = bench.model.session(&own_session()).expect("a session");
        let end = session.log.iter().find(|(_, fact)| fact.run_id.as_ref() == Some(&first));
        assert!(end.is_none(), "the facts of the first turn are deleted");
        assert_eq!(session.accepted_messages.contains_key(&first), is_known, "after {hours} h more");
        if is_known {
            let turns = invoked(&bench).len();
            assert_eq!(bring(&mut bench, "m1"), ["inbound Run true"]);
            bench.run(Duration::from_secs(1));
            assert_eq!(invoked(&bench).len(), turns, "it does not run twice");
        }
    }
}

/// Covers: BD-B5, S-07.
#[test]
fn adapters_over_the_limits_of_a_node_are_closed() {
    let mut bench = Fixture::new();
    let accounts = limits::ADAPTER_ACCOUNTS_MAX as u64;
    for n in 0..accounts {
        let told = connect_adapter(&mut bench, n, &format!("a{n}"));
        assert!(!told.contains(&"closed rate_limited".to_owned()), "{n}: {told:?}");
    }
    assert_eq!(connect_adapter(&mut bench, accounts, "another"), ["closed rate_limited"]);
    for n in 1..limits::ADAPTER_LINKS_MAX as u64 {
        let told = connect_adapter(&mut bench, accounts + n, "a0");
        assert!(!told.contains(&"closed rate_limited".to_owned()), "{n}: {told:?}");
    }
    let surplus = accounts + limits::ADAPTER_LINKS_MAX as u64;
    assert_eq!(connect_adapter(&mut bench, surplus, "a0"), ["closed rate_limited"]);
    bench.give(Input::Disconnect { link: LinkId(0) });
    assert_ne!(connect_adapter(&mut bench, surplus + 1, "a0"), ["closed rate_limited"], "a place was left");
}
