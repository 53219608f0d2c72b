//! The table of commands: everything that is decided by the kind of a command alone. The parser, the handlers and the
//! rate limits take it from here.
use super::{CancelTarget, LinkCommand};
use crate::channel::account::AccountCommand;
use crate::channel::authority::ClientOperation;
use crate::channel::binding::BindingCommand;
#[cfg(doc)]
use crate::channel::notification::CommandReply;
use turnway_core::id::{EventId, RequestId, RunId, SessionId};
use turnway_core::protocol::delivery::AccountKey;
use turnway_core::protocol::input::ControlRequest;

/// The bucket that a message is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateClass {
    Work,
    /// Starts, continues or ends a subscription.
    Reading,
    /// Ends work. Each node counts it separately, because a cancel must not wait for what happens on other nodes.
    Stopping,
    /// Answered by the link alone: pings, and messages of unknown types.
    Control,
}

/// Kinds of requests of a connection that are answered in the order of arrival, session by session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderedKind {
    Open,
    Subscribe,
    Members,
    Invoke,
    /// Answered by a message of this type ([`CommandReply::Performed`]).
    Performed(&'static str),
    /// Has no answer.
    Unsubscribe,
}

/// The properties of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandKind {
    /// The operation that must be permitted.
    pub operation: ClientOperation,
    /// The bucket that the command is counted in.
    pub rate: RateClass,
    /// `None`: answered whenever the answer is ready.
    pub order: Option<OrderedKind>,
    /// The command counts towards a link's limit of requests in flight.
    pub counts_as_request: bool,
    /// The fact that the command leads to, if earlier releases do not know it: the command is refused while a live node
    /// announces a level of facts without it.
    pub leads_to: Option<&'static str>,
}

impl CommandKind {
    /// Creates the properties of a command that changes a session.
    const fn request(operation: ClientOperation) -> Self {
        Self { operation, rate: RateClass::Work, order: None, counts_as_request: true, leads_to: None }
    }

    /// Creates the properties of a command that reads.
    const fn read() -> Self {
        Self { counts_as_request: false, ..Self::request(ClientOperation::Read) }
    }

    /// Returns the properties of a command about bindings. They are not kept in order with other requests of the session,
    /// because no owner performs them.
    fn of_binding(command: &BindingCommand) -> Self {
        match command {
            BindingCommand::List { .. } => Self::read(),
            BindingCommand::Resolve { .. } | BindingCommand::ResolveAll { .. } => {
                Self { operation: ClientOperation::ReadBindings, ..Self::read() }
            }
            // The release that knows this fact also records who mirrors, and understands it.
            BindingCommand::Bind(bind) if bind.mirror == Some(true) => {
                Self::request(ClientOperation::Bind).leading_to("turn.gathered")
            }
            BindingCommand::Bind(_) => Self::request(ClientOperation::Bind).leading_to("binding.bound"),
            BindingCommand::Unbind { .. }
            | BindingCommand::Touch { .. }
            | BindingCommand::Move { .. }
            | BindingCommand::SetExpiry { .. } => Self::request(ClientOperation::Bind),
        }
    }

    /// Returns the properties of a request for a conversation. The release that knows this fact also knows deliveries that
    /// are about no run.
    const fn kind_of_creation() -> Self {
        Self::request(ClientOperation::Bind).leading_to("turn.gathered")
    }

    /// Returns the properties of a command about accounts.
    const fn of_account(command: &AccountCommand) -> Self {
        match command {
            AccountCommand::Pause(_) | AccountCommand::Resume(_) => {
                Self::request(ClientOperation::PauseAccount).leading_to("delivery.requested")
            }
            AccountCommand::ListPaused | AccountCommand::Show(_) => {
                Self { operation: ClientOperation::ReadAccounts, ..Self::read() }
            }
        }
    }

    const fn ordered(self, order: OrderedKind) -> Self {
        Self { order: Some(order), ..self }
    }

    const fn leading_to(self, fact: &'static str) -> Self {
        Self { leads_to: Some(fact), ..self }
    }

    const fn rated(self, rate: RateClass) -> Self {
        Self { rate, ..self }
    }
}

/// The session or run that a command names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandTarget<'a> {
    Session(&'a SessionId),
    Run(&'a RunId),
    /// A new session, or no session at all.
    None,
}

impl LinkCommand {
    /// Returns the command's row in the table of commands.
    pub fn kind(&self) -> CommandKind {
        match self {
            Self::Open { .. } => CommandKind::request(ClientOperation::Open).ordered(OrderedKind::Open),
            Self::Control { request, .. } => ControlKind::of(request).command,
            Self::Delete { .. } => CommandKind { operation: ClientOperation::Close, ..CommandKind::read() },
            Self::Subscribe(_) => CommandKind::read().ordered(OrderedKind::Subscribe).rated(RateClass::Reading),
            Self::Unsubscribe { .. } => CommandKind::read().ordered(OrderedKind::Unsubscribe).rated(RateClass::Reading),
            Self::Invoke(_) => CommandKind::request(ClientOperation::Invoke).ordered(OrderedKind::Invoke),
            Self::Cancel { .. } => CommandKind::request(ClientOperation::Cancel).rated(RateClass::Stopping),
            Self::Binding { command, .. } => CommandKind::of_binding(command),
            Self::Account { command, .. } => CommandKind::of_account(command),
            Self::Blob { action, .. } if action.is_read() => CommandKind::read(),
            Self::Blob { .. } => CommandKind::request(ClientOperation::Change),
            Self::BindChild(_) => CommandKind::kind_of_creation(),
            Self::Send(_) => Self::kind_of_send(),
            Self::Inbound(_) | Self::PrepareFiles(_) => {
                CommandKind::request(ClientOperation::Adapt).leading_to("delivery.requested")
            }
            // Not counted with inbound messages: a lost receipt means that nobody knows whether a part was sent.
            Self::Delivered(_) => {
                CommandKind { operation: ClientOperation::Adapt, ..CommandKind::read() }.rated(RateClass::Stopping)
            }
            Self::Capabilities(_) => CommandKind { operation: ClientOperation::Adapt, ..CommandKind::read() },
            Self::GetSnapshot { .. } | Self::ListDeliveries { .. } | Self::List { .. } | Self::FindRun { .. } => {
                CommandKind::read()
            }
        }
    }

    /// Returns the properties of a message to a conversation. The release that knows this fact also knows deliveries that
    /// are about no run.
    const fn kind_of_send() -> CommandKind {
        CommandKind::request(ClientOperation::Change).leading_to("turn.gathered")
    }

    /// Returns the request id that the answer echoes.
    pub fn request_id(&self) -> Option<&RequestId> {
        match self {
            Self::Open { request_id, .. }
            | Self::Control { request_id, .. }
            | Self::Unsubscribe { request_id, .. }
            | Self::GetSnapshot { request_id, .. }
            | Self::ListDeliveries { request_id, .. }
            | Self::Binding { request_id, .. }
            | Self::Account { request_id, .. }
            | Self::Cancel { request_id, .. } => request_id.as_ref(),
            Self::Subscribe(subscribe) => subscribe.request_id.as_ref(),
            Self::Invoke(invoke) => invoke.request_id.as_ref(),
            Self::Inbound(inbound) => inbound.request_id.as_ref(),
            Self::PrepareFiles(files) => files.request_id.as_ref(),
            Self::Send(send) => send.request_id.as_ref(),
            Self::BindChild(bind) => bind.request_id.as_ref(),
            Self::Capabilities(change) => change.request_id.as_ref(),
            Self::Delivered(_) | Self::List { .. } | Self::FindRun { .. } | Self::Delete { .. } | Self::Blob { .. } => {
                None
            }
        }
    }

    /// Returns the session that the command creates if it does not exist, if it names one.
    pub fn creates_session(&self) -> Option<&SessionId> {
        if let Self::Open { session, .. } = self {
            session.as_ref()
        } else if let Self::Invoke(invoke) = self {
            invoke.session.as_ref()
        } else {
            None
        }
    }

    /// Returns whether the command is about bindings of one account only, which the account's adapter may ask for.
    pub fn is_of_account(&self, account: &AccountKey) -> bool {
        if let Self::Binding { command, .. } = self {
            command.is_of_account(account)
        } else if let Self::BindChild(bind) = self {
            AccountKey::of(&account.tenant, &bind.parent) == *account
        } else {
            false
        }
    }

    /// Returns the session or run that the command names.
    pub fn target(&self) -> CommandTarget<'_> {
        match self {
            Self::Open { session, .. } => session.as_ref().map_or(CommandTarget::None, CommandTarget::Session),
            Self::Invoke(invoke) => invoke.session.as_ref().map_or(CommandTarget::None, CommandTarget::Session),
            Self::Subscribe(subscribe) => CommandTarget::Session(&subscribe.session),
            Self::Send(send) => CommandTarget::Session(&send.session),
            Self::BindChild(bind) => CommandTarget::Session(&bind.session),
            Self::Control { session, .. }
            | Self::Delete { session }
            | Self::Blob { session, .. }
            | Self::Unsubscribe { session, .. }
            | Self::GetSnapshot { session, .. }
            | Self::ListDeliveries { session, .. }
            | Self::Cancel { target: CancelTarget::Session(session), .. } => CommandTarget::Session(session),
            Self::Cancel { target: CancelTarget::Run(run_id), .. } | Self::FindRun { run_id } => {
                CommandTarget::Run(run_id)
            }
            Self::Binding { command, .. } => command.session().map_or(CommandTarget::None, CommandTarget::Session),
            Self::List { .. }
            | Self::Account { .. }
            | Self::Inbound(_)
            | Self::PrepareFiles(_)
            | Self::Delivered(_)
            | Self::Capabilities(_) => CommandTarget::None,
        }
    }
}

/// The answer to a request for a session's owner, once the owner has performed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlAnswer {
    /// `session_opened`, with the session's state.
    Opened,
    /// `members`, with the session's members.
    Members,
    /// `handover`, with the state of this handover.
    Handover(EventId),
    /// A message of this type ([`CommandReply::Performed`]).
    Performed(&'static str),
    /// The same; a subscriber gets a fact with the request's id instead.
    PerformedOrFact(&'static str),
    /// The id of the delivery, by [`CommandReply::MessageAccepted`].
    Message,
    /// The id of the delivery, by [`CommandReply::ChildRequested`].
    Creation,
    /// [`CommandReply::Stored`], as soon as the request is durable: nothing can prevent what it asks for.
    Stored,
    /// Facts only; [`CommandReply::CancelAccepted`] if the command asked for a receipt.
    Receipt,
}

/// The row of a request for a session's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlKind {
    pub command: CommandKind,
    pub answer: ControlAnswer,
}

// === impl ControlKind ===

impl ControlKind {
    /// Returns the row of a request.
    pub fn of(request: &ControlRequest) -> Self {
        match request {
            ControlRequest::Open { .. } => {
                let command = CommandKind::request(ClientOperation::Open).ordered(OrderedKind::Open);
                Self { command, answer: ControlAnswer::Opened }
            }
            ControlRequest::Close => {
                let kind = "session_closed";
                let command = CommandKind::request(ClientOperation::Close).ordered(OrderedKind::Performed(kind));
                let answer = ControlAnswer::PerformedOrFact(kind);
                Self { command: command.rated(RateClass::Stopping), answer }
            }
            ControlRequest::Switch { .. } | ControlRequest::Invite { .. } | ControlRequest::Remove { .. } => {
                let command = CommandKind::request(ClientOperation::Change).ordered(OrderedKind::Members);
                Self { command, answer: ControlAnswer::Members }
            }
            ControlRequest::Handover { handover_id, .. } => {
                let command = CommandKind::request(ClientOperation::Decide);
                Self { command, answer: ControlAnswer::Handover(*handover_id) }
            }
            ControlRequest::Label { .. } => {
                let kind = "session_labelled";
                let command = CommandKind::request(ClientOperation::Change).ordered(OrderedKind::Performed(kind));
                Self { command: command.leading_to("session.labelled"), answer: ControlAnswer::Performed(kind) }
            }
            ControlRequest::RecordBinding { .. } | ControlRequest::RecordBindingEnd { .. } => {
                let command = CommandKind::request(ClientOperation::Change).leading_to("binding.bound");
                Self { command, answer: ControlAnswer::Receipt }
            }
            ControlRequest::StartModelCall { .. } | ControlRequest::EndModelCall { .. } => {
                let command = CommandKind::request(ClientOperation::Change).leading_to("llm.call.started");
                Self { command, answer: ControlAnswer::Stored }
            }
            ControlRequest::SettleDelivery { .. } => {
                let kind = "delivery_settled";
                let command = CommandKind::request(ClientOperation::Change).ordered(OrderedKind::Performed(kind));
                Self { command: command.leading_to("delivery.requested"), answer: ControlAnswer::Performed(kind) }
            }
            ControlRequest::SendMessage { .. } => {
                Self { command: LinkCommand::kind_of_send(), answer: ControlAnswer::Message }
            }
            ControlRequest::CreateConversation { .. } => {
                Self { command: CommandKind::kind_of_creation(), answer: ControlAnswer::Creation }
            }
            ControlRequest::Cancel { .. } => {
                let command = CommandKind::request(ClientOperation::Cancel).rated(RateClass::Stopping);
                Self { command, answer: ControlAnswer::Receipt }
            }
        }
    }
}
