//! Commands of links: checks them, and makes requests of them or hands them to the delivery. Replies come later, from
//! the router.
use super::queries;
use super::requests::{NewRequest, RequestKey, RequestPayload, RequestWaiter};
use super::{RequestRouter, RouterContext, new_control};
use crate::switchboard::adapters::changes::InboundCancel;
use crate::switchboard::adapters::files::FileSessionOpening;
use crate::switchboard::adapters::inbound::{InboundSession, InboundTurn};
use crate::switchboard::bindings::sends::{RoutedSend, given_name, random_name};
use crate::switchboard::delivery::snapshot_waiters::SnapshotPurpose;
use crate::switchboard::effect::{AdaptersCommand, BindingsCommand, DeliveryCommand};
use crate::switchboard::ownership::resources;
use crate::switchboard::sink::EffectSink;
use std::sync::Arc;
use turnway_bindings::service::{AskPurpose, planned_binding};
use turnway_core::id::{DeliveryId, EventId, LinkId, MessageId, Principal, RunId, SessionId, SessionKey};
use turnway_core::limits;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::planted::{self, Planted};
use turnway_core::private::Private;
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::delivery::ConversationCreation;
use turnway_core::protocol::input::{ControlRequest, Input, Strategy};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::store::Op;
use turnway_core::time::Now;
use turnway_wire::channel::authority;
use turnway_wire::channel::binding::BindChildCommand;
use turnway_wire::channel::command::{CancelTarget, InvokeCommand, LinkCommand};
use turnway_wire::channel::notification::{AcceptedTurn, CommandReply, Notification};

/// A fact of the level from which nodes read inputs whose earlier messages are a file.
const HISTORY_FILE_FACT: &str = "turn.gathered";

impl RequestRouter {
    /// Handles a command of a link.
    pub(in crate::switchboard) fn handle_command(
        &mut self,
        context: RouterContext<'_>,
        link: LinkId,
        command: LinkCommand,
        sink: &mut EffectSink,
    ) {
        let now = context.now;
        let Some(there) = sink.links.get(link) else { return };
        let principal = there.principal.clone();
        let busy = there.is_busy(&command);
        let within = |session: SessionId| SessionKey { tenant: principal.tenant.clone(), session };
        let is_of_account = there.adapter.as_deref().is_some_and(|account| command.is_of_account(account));
        if let Err(refusal) = authority::check_access(&principal, command.kind().operation)
            && !is_of_account
        {
            return sink.refuse(link, command.request_id().cloned(), None, None, refusal);
        }
        if busy && command.kind().counts_as_request {
            return sink.refuse_busy(link, command.request_id().cloned());
        }
        if command.creates_session().is_some_and(SessionId::is_reserved)
            && !principal.operator
            && !planted::planted(Planted::ConversationSessionOpen)
        {
            return sink.refuse(link, command.request_id().cloned(), None, None, Refusal::not_found());
        }
        if command.kind().leads_to.is_some_and(|fact| !self.is_known_to_all(fact)) {
            return sink.refuse(link, command.request_id().cloned(), None, None, upgrading_refusal());
        }
        match command {
            LinkCommand::Subscribe(command) => sink.push(DeliveryCommand::Subscribe { link, command }),
            LinkCommand::Unsubscribe { session, .. } => {
                sink.push(DeliveryCommand::Unsubscribe { key: within(session), link });
            }
            LinkCommand::GetSnapshot { request_id, session } => {
                queries::read_state(link, within(session), request_id, SnapshotPurpose::Get, sink)
            }
            LinkCommand::ListDeliveries { request_id, session } => {
                queries::read_state(link, within(session), request_id, SnapshotPurpose::Deliveries, sink)
            }
            LinkCommand::List { before, limit } => queries::list_sessions(link, principal, before, limit, sink),
            LinkCommand::Delete { session } => sink.store(Op::Delete { key: within(session), principal, link }),
            LinkCommand::Blob { session, action } => {
                sink.store(Op::Blob { key: within(session), principal, action, link });
            }
            LinkCommand::FindRun { run_id } => queries::find_run(link, principal, run_id, sink),
            LinkCommand::Binding { request_id, command } => {
                sink.push(BindingsCommand::Perform { link, request_id, command, purpose: AskPurpose::Request });
            }
            LinkCommand::Account { request_id, command } => {
                sink.push(AdaptersCommand::Account { link, request_id, command });
            }
            LinkCommand::Send(send) => sink.push(BindingsCommand::Send { link, send }),
            LinkCommand::BindChild(bind) => sink.push(AdaptersCommand::CheckPlacement { link, bind }),
            LinkCommand::Inbound(inbound) => sink.push(AdaptersCommand::Inbound { link, inbound }),
            LinkCommand::PrepareFiles(files) => sink.push(AdaptersCommand::PrepareFiles { link, files }),
            LinkCommand::Delivered(delivered) => {
                sink.push(AdaptersCommand::Delivered { link, delivered: *delivered });
            }
            LinkCommand::Capabilities(change) => sink.push(AdaptersCommand::SetCapabilities { link, change }),
            LinkCommand::Invoke(invoke) => self.handle_invoke(context, link, principal, *invoke, sink),
            LinkCommand::Open { request_id, session, agents, active } => {
                if agents.iter().chain(&active).any(|agent| self.is_unknown(agent)) {
                    return sink.refuse(link, request_id, session, None, Refusal::not_found());
                }
                let waiter =
                    RequestWaiter { repeatable: session.is_some(), ..RequestWaiter::new(now, link, request_id) };
                let session = session.unwrap_or_else(|| new_session(now, sink));
                let what = ControlRequest::Open { agents, active };
                self.put_control(context, within(session), principal, waiter, what, sink);
            }
            LinkCommand::Control { request_id, session, request } => {
                let waiter = RequestWaiter::new(now, link, request_id);
                self.put_control(context, within(session), principal, waiter, request, sink);
            }
            LinkCommand::Cancel { request_id, target, wants_receipt: receipt } => {
                let (session, run_id) = match target {
                    CancelTarget::Run(run_id) => (run_id.session(), Some(run_id)),
                    CancelTarget::Session(session) => (session, None),
                };
                let waiter = RequestWaiter { wants_receipt: receipt, ..RequestWaiter::new(now, link, request_id) };
                self.put_control(context, within(session), principal, waiter, ControlRequest::Cancel { run_id }, sink);
            }
        }
    }

    fn handle_invoke(
        &mut self,
        context: RouterContext<'_>,
        link: LinkId,
        principal: Principal,
        invoke: InvokeCommand,
        sink: &mut EffectSink,
    ) {
        let now = context.now;
        if invoke.agent_id.as_ref().is_some_and(|agent| self.is_unknown(agent)) {
            return sink.refuse(link, invoke.request_id, invoke.session, None, Refusal::not_found());
        }
        let is_in_file = invoke.history.as_ref().is_some_and(|history| history.file().is_some());
        if is_in_file && !self.is_known_to_all(HISTORY_FILE_FACT) {
            return sink.refuse(link, invoke.request_id, invoke.session, None, upgrading_refusal());
        }
        let is_placed = invoke.session.is_some();
        let session = invoke.session.unwrap_or_else(|| new_session(now, sink));
        let followed = sink.links.get(link).map_or(0, |there| there.subscription_count());
        let key = SessionKey { tenant: principal.tenant.clone(), session };
        let follows = sink.links.get(link).is_some_and(|there| there.is_subscribed(&key));
        if followed >= limits::LINK_SUBSCRIPTIONS_MAX && !follows {
            let refusal = Refusal::new(Code::RateLimited, "too many subscriptions on one connection");
            return sink.refuse(link, invoke.request_id, Some(key.session), None, refusal);
        }
        if let Some(over) = sink.links.exceeded_bound(link, &key) {
            let refusal = resources::over_share_refusal(over, "subscriptions");
            return sink.refuse(link, invoke.request_id, Some(key.session), None, refusal);
        }
        let named = invoke.message_id.or_else(|| MessageId::parse(invoke.request_id.as_ref()?.as_str()).ok());
        let repeatable = is_placed && named.is_some();
        let message_id = named.unwrap_or_else(|| {
            let id = EventId::new(now.store, sink.rng.next_u128()).to_string();
            MessageId::parse(&id).unwrap_or_else(|_| unreachable!("a UUID is a label"))
        });
        let input = Arc::new(Input {
            run_id: RunId::derive(&key, &principal.user, &message_id),
            message_id,
            request_id: invoke.request_id.clone(),
            user: principal.user.clone(),
            agent_id: invoke.agent_id,
            message: invoke.message,
            history: invoke.history,
            // Acts like `enqueue` if the running agent does not accept steering (RX-4).
            strategy: invoke.strategy.unwrap_or(Strategy::Steer),
            replaces: invoke.replaces,
            metadata: invoke.metadata,
            origin: None,
            traceparent: invoke.traceparent,
        });
        if input.fact_bytes() > limits::FACT_DATA_BYTES_MAX {
            let why = format!("message and metadata exceed the limit of {} bytes", limits::FACT_DATA_BYTES_MAX);
            let refusal = Refusal::new(Code::TooLarge, why);
            return sink.refuse(link, invoke.request_id, Some(key.session), None, refusal);
        }
        let hash = input.body_hash();
        let request_key = RequestKey::Input(input.run_id.clone(), hash);
        if planted(Mutant::AcceptEarly) {
            let run_id = input.run_id.clone();
            let message_id = input.message_id.clone();
            let session = key.session.clone();
            let request_id = invoke.request_id.clone();
            let early = AcceptedTurn { request_id, session, run_id, message_id, duplicate: false };
            sink.notify(link, Notification::Reply(CommandReply::TurnAccepted(Box::new(early))));
        }
        let waiter = RequestWaiter { repeatable, ..RequestWaiter::new(now, link, invoke.request_id) };
        let payload = RequestPayload::Input(input);
        self.put_request(context, NewRequest { request_key, key, principal, waiter, payload, route: None }, sink);
    }

    /// Submits what somebody wrote in a conversation; the adapter is answered once it is durable.
    pub(in crate::switchboard) fn submit_inbound(
        &mut self,
        context: RouterContext<'_>,
        turn: InboundTurn,
        sink: &mut EffectSink,
    ) {
        let InboundTurn { link, request_id, key, principal, input, session, route } = turn;
        if input.fact_bytes() > limits::FACT_DATA_BYTES_MAX {
            let why = format!("the message exceeds the limit of {} bytes", limits::FACT_DATA_BYTES_MAX);
            return sink.refuse(link, request_id, None, None, Refusal::new(Code::TooLarge, why));
        }
        let request_key = RequestKey::Input(input.run_id.clone(), input.body_hash());
        let waiter = RequestWaiter { inbound: Some(session), ..RequestWaiter::new(context.now, link, request_id) };
        let payload = RequestPayload::Input(input);
        self.put_request(context, NewRequest { request_key, key, principal, waiter, payload, route }, sink);
    }

    /// Opens the own session of a conversation, whose adapter is answered once it takes files.
    pub(in crate::switchboard) fn open_for_files(
        &mut self,
        context: RouterContext<'_>,
        opening: FileSessionOpening,
        sink: &mut EffectSink,
    ) {
        let FileSessionOpening { link, request_id, key, principal } = opening;
        if sink.links.get(link).is_none() {
            return;
        }
        let inbound = Some(InboundSession::Own);
        let waiter = RequestWaiter { inbound, ..RequestWaiter::new(context.now, link, request_id) };
        let what = ControlRequest::Open { agents: Vec::new(), active: None };
        self.put_control(context, key, principal, waiter, what, sink);
    }

    /// Submits the input of a task for a link of the node, which then follows the session.
    pub(in crate::switchboard) fn submit_task(
        &mut self,
        context: RouterContext<'_>,
        link: LinkId,
        (key, input): (SessionKey, Arc<Input>),
        sink: &mut EffectSink,
    ) {
        let Some(principal) = sink.links.get(link).map(|there| there.principal.clone()) else { return };
        let request_key = RequestKey::Input(input.run_id.clone(), input.body_hash());
        let waiter = RequestWaiter { repeatable: true, ..RequestWaiter::new(context.now, link, None) };
        let payload = RequestPayload::Input(input);
        self.put_request(context, NewRequest { request_key, key, principal, waiter, payload, route: None }, sink);
    }

    /// Cancels the turn of a message that was deleted in a conversation; the adapter is answered once it is durable.
    pub(in crate::switchboard) fn cancel_inbound(
        &mut self,
        context: RouterContext<'_>,
        cancel: InboundCancel,
        sink: &mut EffectSink,
    ) {
        let InboundCancel { link, request_id, key, principal, run_id, session } = cancel;
        let waiter = RequestWaiter { inbound: Some(session), ..RequestWaiter::new(context.now, link, request_id) };
        self.put_control(context, key, principal, waiter, ControlRequest::Cancel { run_id: Some(run_id) }, sink);
    }

    /// Hands a message to a conversation to the owner of its session; the link is answered once it is durable.
    pub(in crate::switchboard) fn submit_send(
        &mut self,
        context: RouterContext<'_>,
        routed: RoutedSend,
        sink: &mut EffectSink,
    ) {
        let RoutedSend { link, request_id, principal, key, send } = routed;
        if sink.links.get(link).is_none() {
            return;
        }
        let waiter = RequestWaiter { repeatable: true, ..RequestWaiter::new(context.now, link, request_id) };
        self.put_control(context, key, principal, waiter, ControlRequest::SendMessage { send: Box::new(send) }, sink);
    }

    /// Hands the request for a conversation to the owner of the session that it is to be bound to; the link is answered
    /// once the request is durable.
    pub(in crate::switchboard) fn create_conversation(
        &mut self,
        context: RouterContext<'_>,
        link: LinkId,
        bind: BindChildCommand,
        sink: &mut EffectSink,
    ) {
        let Some(principal) = sink.links.get(link).map(|link| link.principal.clone()) else { return };
        let request_id = bind.request_id.clone();
        let key = SessionKey { tenant: principal.tenant.clone(), session: bind.session.clone() };
        let given = given_name(bind.creation_id.as_ref(), bind.request_id.as_ref());
        let creation_id = given.unwrap_or_else(|| random_name(context.now, sink.rng.next_u128()));
        let creation = ConversationCreation {
            delivery_id: DeliveryId::of_creation(&key, &principal.user, &creation_id),
            creation_id,
            name: Private(ConversationRef::name_of(bind.title.reveal(), "conversation")),
            binding: Arc::new(planned_binding(&bind)),
            parent: bind.parent,
        };
        let waiter = RequestWaiter { repeatable: true, ..RequestWaiter::new(context.now, link, request_id) };
        let what = ControlRequest::CreateConversation { creation: Box::new(creation) };
        self.put_control(context, key, principal, waiter, what, sink);
    }

    fn put_control(
        &mut self,
        context: RouterContext<'_>,
        key: SessionKey,
        principal: Principal,
        waiter: RequestWaiter,
        what: ControlRequest,
        sink: &mut EffectSink,
    ) {
        let new = new_control(context.now, key, principal, waiter, what, sink);
        self.put_request(context, new, sink);
    }
}

/// Returns the id of a new session.
fn new_session(now: Now, sink: &mut EffectSink) -> SessionId {
    let id = EventId::new(now.store, sink.rng.next_u128()).to_string();
    SessionId::parse(&id).unwrap_or_else(|_| unreachable!("a UUID is a name"))
}

/// Returns the refusal of a request that a live node of an earlier release would not understand.
fn upgrading_refusal() -> Refusal {
    let why = "a node of an earlier release is running; try again after the upgrade";
    Refusal::new(Code::FleetUpgrading, why).retry_after(limits::UPGRADE_RETRY_AFTER)
}
