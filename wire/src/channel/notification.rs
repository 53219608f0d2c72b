//! Notifications to a link: facts, text, and replies to commands.
use crate::channel::account::AccountReply;
use crate::channel::adapter::{AdapterState, DeliverMessage, InboundReceipt, PreparedFiles};
use crate::channel::binding::BindingReply;
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{
    AgentId, Cursor, DeliveryId, Epoch, EventId, MessageId, RequestId, RunId, Seq, SessionId, UserId,
};
use turnway_core::protocol::action::ProcessOutput;
use turnway_core::protocol::annotation::Annotations;
use turnway_core::protocol::chunk::TextChunk;
use turnway_core::protocol::entry::Entry;
use turnway_core::protocol::refusal::Refusal;
use turnway_core::protocol::signal::ConversationSignal;
use turnway_core::session::{Handover, HandoverStatus, OpenDelivery};
use turnway_core::store::CreationKey;
use turnway_core::store::blob::BlobReply;

/// The pattern that a link's `types` must match to receive process output.
pub const PROCESS_OUTPUT_TYPE: &str = "process.output";

/// One notification to a link (protocol.md §1.3, §4); the link's channel renders it.
#[derive(Clone, Debug, PartialEq)]
pub enum Notification {
    /// A durable fact.
    Fact {
        session: SessionId,
        seq: Seq,
        /// The ownership epoch that wrote the fact.
        epoch: Epoch,
        entry: Arc<Entry>,
        /// The link's `types` match the fact; a fact without messages is then sent as `event`.
        requested: bool,
    },
    /// A piece of an answer; provisional until `done`.
    Chunk { session: SessionId, chunk: TextChunk },
    /// A piece of the output of a process ([`PROCESS_OUTPUT_TYPE`]).
    ProcessOutput {
        session: SessionId,
        /// The run that started the process.
        run_id: RunId,
        output: Box<ProcessOutput>,
    },
    /// A part of a delivery that the adapter is to send.
    Deliver(Box<DeliverMessage>),
    /// A signal that the adapter is to show.
    Signal(Arc<ConversationSignal>),
    /// The state of the adapter's connection.
    AdapterState(AdapterState),
    /// The connection may not serve its account, because a limit is reached or another account acts as its bot id. The error
    /// is its last message.
    LimitReached(Box<Refusal>),
    /// The answer to a command.
    Reply(CommandReply),
    /// This node is leaving; the client should reconnect to another node.
    GoAway {
        /// `drain`.
        reason: &'static str,
        /// Time within which to reconnect.
        within: Duration,
        /// Random spread of the reconnects.
        jitter: Duration,
    },
}

/// The answer to a command, sent only to the link that sent the command.
#[derive(Clone, Debug, PartialEq)]
pub enum CommandReply {
    /// The input is durable and will end in one terminal fact. Sent only to the link that sent the input.
    TurnAccepted(Box<AcceptedTurn>),
    /// The answer to `subscribe`.
    Subscribed {
        request_id: Option<RequestId>,
        /// The session's present state, at `snapshot.seq`.
        snapshot: Box<SessionStateSnapshot>,
        /// The reason for rejecting the link's cursor, if it was rejected.
        reset: Option<ResetReason>,
    },
    /// The answer to `session_open`, and to [`LinkCommand::GetSnapshot`](super::command::LinkCommand::GetSnapshot).
    Opened { request_id: Option<RequestId>, snapshot: Box<SessionStateSnapshot> },
    /// The answer to a member request, once the change is done or undone.
    Members(Box<MembersReply>),
    /// The answer to a decision on a handover: the handover's state.
    Handover(Box<HandoverReply>),
    /// The answer to a request that the session's owner has performed, without data, such as `session_closed` for a link
    /// that is not subscribed.
    Performed {
        /// The `type` of the message.
        kind: &'static str,
        request_id: Option<RequestId>,
        session: SessionId,
    },
    /// The owner has accepted a cancel and cancels the named runs. Sent only if the command requested it;
    /// subscribers see facts instead.
    CancelAccepted {
        request_id: Option<RequestId>,
        session: SessionId,
        /// The run, if the request named one.
        run_id: Option<RunId>,
    },
    /// A report of the node itself is durable, and will be recorded.
    Stored,
    /// A message to a conversation is durably requested.
    MessageAccepted(Box<AcceptedSend>),
    /// A conversation is durably requested. The log of the session gets `binding.bound` once the platform has made it, or
    /// `delivery.failed`.
    ChildRequested(Box<RequestedChild>),
    /// The answer to a session list, in the requested order.
    SessionList {
        sessions: Vec<SessionListEntry>,
        /// More sessions follow.
        more: bool,
    },
    /// The answer to a request for the deliveries of a session.
    DeliveryList(Box<DeliveryListReply>),
    /// The answer to a request about bindings.
    Binding { request_id: Option<RequestId>, reply: BindingReply },
    /// The answer to a request about accounts.
    Account { request_id: Option<RequestId>, reply: AccountReply },
    /// The answer to an inbound event.
    InboundAccepted(Box<InboundReceipt>),
    /// The answer to an adapter that wants to add files.
    FilesPrepared(Box<PreparedFiles>),
    /// The answer to a change of an adapter's capabilities.
    CapabilitiesSet { request_id: Option<RequestId> },
    /// The answer to a deletion.
    Deleted { session: SessionId },
    /// The blobs of a session after an action on them.
    Blobs(Box<BlobReply>),
    /// The position of a run's facts in the log.
    RunLocation {
        run_id: RunId,
        /// Every fact of the run is after this position.
        after: Cursor,
        /// Every fact of the run is up to this position, if the run has ended.
        ended: Option<Seq>,
    },
    /// A command was refused or failed.
    Refused {
        request_id: Option<RequestId>,
        /// The session, if the request named one.
        session: Option<SessionId>,
        /// The run, if the request named one.
        run_id: Option<RunId>,
        refusal: Refusal,
    },
}

/// The deliveries of a session that are not sent; see [`CommandReply::DeliveryList`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryListReply {
    pub request_id: Option<RequestId>,
    pub session: SessionId,
    /// In the order in which they were requested.
    pub deliveries: Vec<DeliveryListEntry>,
}

/// A delivery in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryListEntry {
    pub delivery_id: DeliveryId,
    pub delivery: Box<OpenDelivery>,
}

/// A conversation that is being made for a binding; see [`CommandReply::ChildRequested`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedChild {
    pub request_id: Option<RequestId>,
    pub session: SessionId,
    /// The client's name for it.
    pub creation_id: MessageId,
    pub delivery_id: DeliveryId,
}

/// The acceptance of a message to a conversation; see [`CommandReply::MessageAccepted`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedSend {
    pub request_id: Option<RequestId>,
    pub session: SessionId,
    pub message_id: MessageId,
    pub delivery_id: DeliveryId,
}

/// The acceptance of a turn; see [`CommandReply::TurnAccepted`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedTurn {
    pub request_id: Option<RequestId>,
    pub session: SessionId,
    /// The turn; its root run has the same id.
    pub run_id: RunId,
    pub message_id: MessageId,
    /// The message had been accepted before.
    pub duplicate: bool,
}

/// The reason that a link must start over from a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetReason {
    /// The facts after the link's cursor have been trimmed.
    Trimmed {
        /// Facts up to this position are trimmed.
        floor: Seq,
    },
    /// The log does not contain the fact at the cursor: the store lost acknowledged writes.
    Regressed,
}

/// A session in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionListEntry {
    /// The time of creation and the session's id.
    pub birth: CreationKey,
    pub user: UserId,
    pub closed: bool,
    /// The last fact of the log.
    pub seq: Seq,
    /// Number of inputs that have not ended.
    pub pending: u32,
    /// Short texts about the session.
    pub annotations: Annotations,
}

/// A session's present state as links see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionStateSnapshot {
    pub session: SessionId,
    /// `open`, `closing` or `closed`.
    pub state: &'static str,
    /// The agent that answers messages without an addressee.
    pub active_agent: Option<AgentId>,
    pub agents: Vec<AgentId>,
    /// Turns that have not ended, the running one first.
    pub runs: Vec<RunSnapshot>,
    /// The handover that awaits a person's decision.
    pub handover: Option<Box<Handover>>,
    /// The last fact that the snapshot contains.
    pub seq: Seq,
    /// The epoch of that fact.
    pub epoch: Epoch,
}

/// A turn that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSnapshot {
    pub run_id: RunId,
    pub agent_id: AgentId,
    /// The sender of the message; clients do not get it.
    pub user: UserId,
    /// `QUEUED`, `ROUTING`, `RUNNING` or `CANCELLING`.
    pub state: &'static str,
    /// 0 until it starts.
    pub attempt: u32,
    /// Recorded bytes of the run's text.
    pub text_bytes: u64,
}

/// The members of a session after a member request.
#[derive(Clone, Debug, PartialEq)]
pub struct MembersReply {
    pub request_id: Option<RequestId>,
    pub session: SessionId,
    /// In order of joining.
    pub agents: Vec<AgentId>,
    /// The agent that answers messages without an addressee.
    pub active_agent: Option<AgentId>,
}

/// The state of a handover after a decision; see [`CommandReply::Handover`].
#[derive(Clone, Debug, PartialEq)]
pub struct HandoverReply {
    pub request_id: Option<RequestId>,
    pub session: SessionId,
    pub handover_id: EventId,
    pub standing: HandoverStatus,
}

impl SessionStateSnapshot {
    /// Returns an estimate of the snapshot's size on the wire in bytes.
    pub fn weight(&self) -> usize {
        let texts = |handover: &Handover| handover.reason.reveal().len() + handover.summary.reveal().len();
        512 + 256 * self.runs.len() + self.handover.as_deref().map_or(0, |handover| 512 + texts(handover))
    }
}

impl Notification {
    /// Returns an estimate of the notification's size on the wire in bytes. Both ends compute the same value.
    pub fn weight(&self) -> usize {
        match self {
            Self::Fact { entry, .. } => entry.weight(),
            Self::Chunk { chunk, .. } => 256 + chunk.text.reveal().len(),
            Self::ProcessOutput { output: printed, .. } => 320 + printed.data.reveal().len(),
            Self::Reply(reply) => reply.weight(),
            Self::Deliver(message) => 512 + message.order.text.reveal().len(),
            Self::Signal(signal) => signal.weight(),
            Self::GoAway { .. } | Self::AdapterState(_) | Self::LimitReached(_) => 512,
        }
    }
}

impl DeliveryListReply {
    /// Returns an estimate of the list's size on the wire in bytes.
    pub fn weight(&self) -> usize {
        let texts: usize = self.deliveries.iter().map(|entry| entry.delivery.next_text().len()).sum();
        256 + 512 * self.deliveries.len() + texts
    }
}

impl CommandReply {
    fn weight(&self) -> usize {
        match self {
            Self::Subscribed { snapshot, .. } | Self::Opened { snapshot, .. } => snapshot.weight(),
            Self::SessionList { sessions, .. } => 512 + 512 * sessions.len(),
            Self::Binding { reply, .. } => reply.weight(),
            Self::Account { reply, .. } => reply.weight(),
            Self::DeliveryList(reply) => reply.weight(),
            Self::Blobs(reply) => 512 + 256 * (reply.table.blobs.len() + reply.table.uploads.len()),
            Self::TurnAccepted(_)
            | Self::MessageAccepted(_)
            | Self::ChildRequested(_)
            | Self::Members(_)
            | Self::Handover(_)
            | Self::Performed { .. }
            | Self::CancelAccepted { .. }
            | Self::Stored
            | Self::RunLocation { .. }
            | Self::Deleted { .. }
            | Self::InboundAccepted(_)
            | Self::FilesPrepared(_)
            | Self::CapabilitiesSet { .. }
            | Self::Refused { .. } => 512,
        }
    }
}
