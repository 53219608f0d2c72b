//! Client commands after parsing; every field has been checked for form.
mod kind;

use crate::channel::account::AccountCommand;
use crate::channel::adapter::{CapabilitiesCommand, DeliveredCommand, InboundCommand, PrepareFilesCommand};
use crate::channel::binding::{BindChildCommand, BindingCommand};
pub use kind::{CommandKind, CommandTarget, ControlAnswer, ControlKind, OrderedKind, RateClass};
use turnway_core::id::{AgentId, Epoch, MessageId, RequestId, RunId, Seq, SessionId};
use turnway_core::private::Private;
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::history::History;
use turnway_core::protocol::input::{ControlRequest, Message, Strategy};
use turnway_core::protocol::json::Json;
use turnway_core::protocol::pattern::Pattern;
use turnway_core::store::CreationKey;
use turnway_core::store::blob::BlobAction;

/// A request of a link (protocol.md §1.2).
#[derive(Clone, Debug, PartialEq)]
pub enum LinkCommand {
    /// Creates a session, loads it, or reopens it after it was closed.
    Open {
        request_id: Option<RequestId>,
        /// The gateway generates an id if absent.
        session: Option<SessionId>,
        /// Members of a new session; empty: the default agent.
        agents: Vec<AgentId>,
        /// The active member; absent: the first of `agents`.
        active: Option<AgentId>,
    },
    /// A request for the session's owner, stored in the session's control lane. `Open` and `Cancel` have commands of their
    /// own, because they carry more than is stored.
    Control { request_id: Option<RequestId>, session: SessionId, request: ControlRequest },
    /// Attaches to a session's output, or moves the link's cursor.
    Subscribe(SubscribeCommand),
    /// Detaches from a session's output.
    Unsubscribe { request_id: Option<RequestId>, session: SessionId },
    /// Sends a user message.
    Invoke(Box<InvokeCommand>),
    /// Reads a session's present state without side effects.
    GetSnapshot { request_id: Option<RequestId>, session: SessionId },
    /// Lists the session's deliveries that are not sent. Answered by
    /// [`CommandReply::DeliveryList`](super::notification::CommandReply::DeliveryList).
    ListDeliveries { request_id: Option<RequestId>, session: SessionId },
    /// Lists the user's own sessions, newest first; an operator sees all sessions of the tenant. Answered by
    /// [`CommandReply::SessionList`](super::notification::CommandReply::SessionList).
    List {
        /// Only sessions created before this one.
        before: Option<CreationKey>,
        /// At most [`turnway_core::limits::LIST_SESSIONS_MAX`].
        limit: u32,
    },
    /// Locates a run's facts in the log. Answered by
    /// [`CommandReply::RunLocation`](super::notification::CommandReply::RunLocation).
    FindRun { run_id: RunId },
    /// Deletes a closed session permanently. Answered by
    /// [`CommandReply::Deleted`](super::notification::CommandReply::Deleted).
    Delete { session: SessionId },
    /// A request about the blobs of a session. Answered by
    /// [`CommandReply::Blobs`](super::notification::CommandReply::Blobs).
    Blob { session: SessionId, action: BlobAction },
    /// A request about the bindings of conversations. Answered by
    /// [`CommandReply::Binding`](super::notification::CommandReply::Binding).
    Binding { request_id: Option<RequestId>, command: BindingCommand },
    /// A request about the accounts that adapters serve. Answered by
    /// [`CommandReply::Account`](super::notification::CommandReply::Account).
    Account { request_id: Option<RequestId>, command: AccountCommand },
    /// Sends a text to a conversation of a session, without a turn. Answered by
    /// [`CommandReply::MessageAccepted`](super::notification::CommandReply::MessageAccepted).
    Send(Box<SendCommand>),
    /// Have the platform make a conversation, and bind it to a session. Answered by
    /// [`CommandReply::ChildRequested`](super::notification::CommandReply::ChildRequested).
    BindChild(Box<BindChildCommand>),
    /// Something happened in a conversation of the adapter's account.
    Inbound(Box<InboundCommand>),
    /// The adapter wants to add files to the session of a conversation. Answered by
    /// [`CommandReply::FilesPrepared`](super::notification::CommandReply::FilesPrepared).
    PrepareFiles(Box<PrepareFilesCommand>),
    /// The adapter's report about a part that it was to send.
    Delivered(Box<DeliveredCommand>),
    /// The adapter can do something else from now on.
    Capabilities(Box<CapabilitiesCommand>),
    /// Cancels a run, or every open run of a session.
    Cancel {
        request_id: Option<RequestId>,
        target: CancelTarget,
        /// Also acknowledges the cancel once the owner has accepted it, for a client that does not subscribe to the
        /// session.
        wants_receipt: bool,
    },
}

/// The run or session that a cancel names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CancelTarget {
    /// A run in any non-terminal state.
    Run(RunId),
    /// Every open run of the session.
    Session(SessionId),
}

/// A text to a conversation of a session, without a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendCommand {
    pub request_id: Option<RequestId>,
    pub session: SessionId,
    /// The client's name for the message; absent: the request id names it, and else nothing does.
    pub message_id: Option<MessageId>,
    /// The conversation; absent: the only one that is bound to the session.
    pub conversation: Option<ConversationRef>,
    pub text: Private<String>,
}

/// A user message with its addressee and options.
#[derive(Clone, Debug, PartialEq)]
pub struct InvokeCommand {
    /// Echoed in the answer; also the default of `message_id`.
    pub request_id: Option<RequestId>,
    /// Absent: a new session.
    pub session: Option<SessionId>,
    /// The addressee, by field, metadata or mention (LN-SR10).
    pub agent_id: Option<AgentId>,
    pub message: Message,
    /// Earlier messages; only from a client that keeps the conversation itself.
    pub history: Option<History>,
    /// The unit of de-duplication.
    pub message_id: Option<MessageId>,
    /// Admission mode of the input while a run is open; absent: the default.
    pub strategy: Option<Strategy>,
    /// The waiting run whose position in the queue the new input takes.
    pub replaces: Option<RunId>,
    /// Stored and delivered unchanged.
    pub metadata: Option<Json>,
    /// W3C trace context.
    pub traceparent: Option<String>,
}

/// A request to read a session's log from a cursor.
#[derive(Clone, Debug, PartialEq)]
pub struct SubscribeCommand {
    pub request_id: Option<RequestId>,
    pub session: SessionId,
    /// The last fact that the client has (0: no fact yet, so everything is sent); absent: only new facts are sent.
    pub after_seq: Option<Seq>,
    /// The epoch of that fact; absent: not checked.
    pub after_epoch: Option<Epoch>,
    /// Text positions of open runs.
    pub runs: Vec<TextCursor>,
    /// Additional fact types, shown as `event` messages.
    pub types: Vec<Pattern>,
}

/// The position up to which a link has a run's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextCursor {
    pub run_id: RunId,
    /// An offset of another attempt counts as 0.
    pub attempt: u32,
    /// Counted in UTF-8 bytes.
    pub offset: u64,
}
