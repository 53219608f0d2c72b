//! The effects of the parts: outputs of the node, and commands to other parts. Only [`super::Switchboard::step`] hands
//! them over; a part never calls another part.
use super::adapters::changes::InboundCancel;
use super::adapters::files::FileSessionOpening;
use super::adapters::inbound::InboundTurn;
use super::adapters::inbound::PlaceBindings;
use super::adapters::signals::TurnEvent;
use super::bindings::repeats::PossibleRepeat;
use super::bindings::sends::RoutedSend;
use super::delivery::snapshot_waiters::SnapshotPurpose;
use super::delivery::state_reads::ReadTicket;
use super::io::Output;
use std::sync::Arc;
use std::time::Duration;
use turnway_bindings::service::AskPurpose;
use turnway_core::id::{
    Cursor, DeliveryId, Epoch, FenceToken, LinkId, ListenStamp, NodeId, Nonce, OwnershipSnapshot, Principal, RequestId,
    RunId, Seq, SessionKey,
};
use turnway_core::protocol::action::ProcessOutput;
use turnway_core::protocol::binding::UnbindReason;
use turnway_core::protocol::chunk::TextChunk;
use turnway_core::protocol::delivery::DeliveryOrder;
use turnway_core::protocol::entry::Entry;
use turnway_core::protocol::input::Input;
use turnway_core::protocol::refusal::Refusal;
use turnway_core::protocol::route::RouteQuestion;
use turnway_core::protocol::task::TaskOrder;
use turnway_core::session::{Input as RuntimeInput, RecentDelivery, SessionPhase, State};
use turnway_core::store::{FactPage, SessionView};
use turnway_core::time::Mono;
use turnway_wire::channel::account::AccountCommand;
use turnway_wire::channel::adapter::{CapabilitiesCommand, DeliveredCommand, InboundCommand, PrepareFilesCommand};
use turnway_wire::channel::binding::{BindChildCommand, BindingCommand};
use turnway_wire::channel::command::{LinkCommand, SendCommand, SubscribeCommand};
use turnway_wire::channel::notification::Notification;
use turnway_wire::peer::PeerMessage;

/// An effect of a part.
#[derive(Debug)]
pub(super) enum PartEffect {
    Output(Output),
    /// A message of this node to itself.
    Peer(PeerMessage),
    Router(RouterCommand),
    Bindings(BindingsCommand),
    Adapters(AdaptersCommand),
    Delivery(DeliveryCommand),
    Ownership(OwnershipCommand),
    Membership(MembershipCommand),
    /// Submit what somebody wrote in a conversation; the router needs more than its own state for that.
    SubmitInbound(Box<InboundTurn>),
    /// Open the own session of a conversation for files.
    OpenForFiles(Box<FileSessionOpening>),
    Tasks(TasksCommand),
    /// Perform a command of one of the node's own links.
    NodeCommand {
        link: LinkId,
        command: LinkCommand,
    },
    /// Submit the input of a task.
    SubmitTask {
        link: LinkId,
        key: SessionKey,
        input: Arc<Input>,
    },
    /// Remove one of the node's own links.
    DropLink(LinkId),
    /// Submit a message to a conversation, whose place is chosen.
    SubmitSend(Box<RoutedSend>),
    /// Submit a request for a conversation, which the adapter of its account makes.
    SubmitCreation {
        link: LinkId,
        bind: Box<BindChildCommand>,
    },
    /// Cancel the turn of a message that was deleted in a conversation.
    CancelInbound(Box<InboundCancel>),
    /// Exit if nothing is left to hand over.
    ExitIfDrained,
    /// Exit although sessions are left.
    Exit,
    /// A node is dead: its sessions with requests or open turns here are claimed.
    NodeDied(NodeId),
    /// An accepted request found no owner: this node claims the session, or suggests it to another node.
    FreeSession {
        key: SessionKey,
        owner: OwnershipSnapshot,
    },
    /// A session's present state was read: the ownership compares its epoch, then delivery uses the state.
    PresentState(Box<PresentState>),
    /// Facts became durable: the router releases acceptances, then delivery shows the facts.
    Facts(DurableFacts),
    /// A page of the log has facts for a feed; the order is that of durable facts.
    UsablePage(UsablePage),
}

/// A command to the router.
#[derive(Debug)]
pub(super) enum RouterCommand {
    /// The owner has accepted an input.
    AcceptInput(RunId),
    /// Offer every request of a session to its owner.
    OfferAll { key: SessionKey, owner: OwnershipSnapshot },
}

/// A command to the part for bindings.
#[derive(Debug)]
pub(super) enum BindingsCommand {
    /// Perform the request of a link.
    Perform {
        link: LinkId,
        request_id: Option<RequestId>,
        command: BindingCommand,
        /// The use of the answer.
        purpose: AskPurpose,
    },
    /// Ask for the place of a message that a link sends to a conversation of a session.
    Send { link: LinkId, send: Box<SendCommand> },
    /// Refuse a request, unless it repeats an accepted one.
    RefuseUnlessRepeated(Box<PossibleRepeat>),
    /// A session is closed or deleted: its bindings end.
    EndAll { session: SessionKey, reason: UnbindReason },
}

/// A command to the part for adapters.
#[derive(Debug)]
pub(super) enum AdaptersCommand {
    /// Something happened in a conversation.
    Inbound { link: LinkId, inbound: Box<InboundCommand> },
    /// An adapter's report about a part.
    Delivered { link: LinkId, delivered: DeliveredCommand },
    /// An adapter can do something else from now on.
    SetCapabilities { link: LinkId, change: Box<CapabilitiesCommand> },
    /// An adapter wants to add files to the session of a conversation.
    PrepareFiles { link: LinkId, files: Box<PrepareFilesCommand> },
    /// The binding of a conversation was looked up for files.
    UseFilesBinding { link: LinkId, number: u64, result: Result<PlaceBindings, Refusal> },
    /// The phase of a session was read for files.
    UsePhase { number: u64, phase: Result<SessionPhase, Refusal> },
    /// Perform an operator's request about accounts.
    Account { link: LinkId, request_id: Option<RequestId>, command: AccountCommand },
    /// Check a request for a conversation before it is submitted.
    CheckPlacement { link: LinkId, bind: Box<BindChildCommand> },
    /// The binding of an event's conversation was looked up.
    UseBinding { number: u64, result: Result<PlaceBindings, Refusal> },
    /// The latest answers with buttons of a session were read for a press.
    UseAnswers { number: u64, answers: Result<Vec<RecentDelivery>, Refusal> },
    /// Have a part of a session of this node sent.
    Send(Arc<DeliveryOrder>),
    /// A delivery has ended without the order that was given for it.
    Withdraw { key: SessionKey, delivery_id: DeliveryId },
    /// An event of a turn that came from a conversation; the turn is named by its session and its preview.
    Turn { turn: (SessionKey, DeliveryId), event: TurnEvent },
    /// This node does not own the session any more.
    ForgetSession(SessionKey),
}

/// A command to the part for tasks.
#[derive(Debug)]
pub(super) enum TasksCommand {
    /// Begin or cancel a task of a session of this node.
    Order(TaskOrder),
    /// Answer a session's question about its bindings.
    Ask { key: SessionKey, question: RouteQuestion },
    /// A notification to one of the node's own links.
    Notice { link: LinkId, notification: Box<Notification> },
    /// This node does not own the session any more.
    ForgetSession(SessionKey),
}

/// A command to the delivery.
#[derive(Debug)]
pub(super) enum DeliveryCommand {
    Subscribe {
        link: LinkId,
        command: SubscribeCommand,
    },
    /// Subscribe the sender of a message to its session, from directly before the first fact of its turn.
    SubscribeSender {
        key: SessionKey,
        link: LinkId,
        run_id: RunId,
        tail: Cursor,
    },
    Unsubscribe {
        key: SessionKey,
        link: LinkId,
    },
    ResumeLink {
        key: SessionKey,
        link: LinkId,
    },
    /// Answer a link with the session's state, read from now on.
    AwaitState {
        key: SessionKey,
        link: LinkId,
        request_id: Option<RequestId>,
        purpose: SnapshotPurpose,
    },
    ReadState(SessionKey),
    RebuildForOwner {
        key: SessionKey,
        token: FenceToken,
        view: Box<SessionView>,
    },
    UseState(Box<PresentState>),
    /// Start links after the facts of a present state were handled.
    StartAfterState {
        key: SessionKey,
        fresh: (Cursor, u64),
        owner: OwnershipSnapshot,
    },
    UseRegistration {
        key: SessionKey,
        stamp: ListenStamp,
        owner: OwnershipSnapshot,
    },
    /// Use a page for the feed that has read it; the rebuilds have seen the page.
    EndRead {
        key: SessionKey,
        after: Seq,
        page: FactPage,
    },
    ShowChunk {
        key: SessionKey,
        epoch: Epoch,
        chunk: TextChunk,
    },
    ShowProcessOutput {
        key: SessionKey,
        epoch: Epoch,
        run_id: RunId,
        printed: Box<ProcessOutput>,
    },
    WatchOwner {
        key: SessionKey,
        owner: OwnershipSnapshot,
    },
    /// Record the owner of a session that this node has given up.
    SetOwner {
        key: SessionKey,
        owner: OwnershipSnapshot,
    },
    /// Record the owner that a claim lost to, unless a newer one is known.
    SetNewerOwner {
        key: SessionKey,
        owner: OwnershipSnapshot,
    },
    RegisterAllAgain,
}

/// A command to the ownership.
#[derive(Debug)]
pub(super) enum OwnershipCommand {
    /// Count a request that was refused because its user owns too many sessions here.
    CountRefusedSession(Principal),
    Claim {
        key: SessionKey,
        expect: OwnershipSnapshot,
    },
    /// Claim a session of a page by a claim that the takeover has named.
    ClaimAs {
        key: SessionKey,
        expect: OwnershipSnapshot,
        nonce: Nonce,
    },
    /// Drop an owned session and claim it again.
    Reload {
        key: SessionKey,
        token: FenceToken,
    },
    /// Perform the outputs of a session's runtime.
    Drive(SessionKey),
    /// Wake a session's runtime at its deadline.
    Wake(SessionKey),
    /// End the wait for a reservation, of the owner or of the reserving node.
    EndReserveWait(SessionKey),
    /// Send the ends of logs to the subscriber nodes that lack facts.
    SendTailDigests,
    DriveAll,
    /// Hand an input to every runtime.
    Broadcast(RuntimeInput),
    /// Record the position that a subscriber node has.
    Acknowledge {
        key: SessionKey,
        from: NodeId,
        at: Cursor,
    },
    /// Read a node's lease, because its subscriptions are in doubt.
    CheckLease(NodeId),
    /// Remove a node that had no lease when it was checked.
    RemoveSubscriber {
        node: NodeId,
        sent: Mono,
    },
    /// Compare every owned session with the store, which may have lost writes.
    VerifyAll,
    LoseLease,
    /// Claim the sessions of an earlier lease.
    ReclaimAll,
    /// Give up a session if an epoch proves a newer claim.
    CompareEpoch {
        key: SessionKey,
        epoch: Epoch,
    },
    StartOwning {
        key: SessionKey,
        token: FenceToken,
        state: Box<State>,
    },
    Drop(SessionKey),
    /// Hand a session what became of a part of its delivery, of its task or of its question.
    Report {
        key: SessionKey,
        input: RuntimeInput,
    },
}

/// A command to the membership.
#[derive(Debug)]
pub(super) enum MembershipCommand {
    /// A message did not reach a node.
    SuspectNode(NodeId),
    /// Another node takes over sessions of the same pages and was faster.
    AddFasterNode(NodeId),
    /// Look for the sessions of a dead node, whose lease lasts for this time.
    ScheduleSweep(Option<Duration>),
    /// Suggest to another node that it take over a free session.
    OfferHandOff { key: SessionKey, free: OwnershipSnapshot },
}

/// Durable facts of a session, and the position that they follow.
#[derive(Debug)]
pub(super) struct DurableFacts {
    pub(super) key: SessionKey,
    pub(super) after: Cursor,
    pub(super) facts: Vec<(Epoch, Arc<Entry>)>,
    /// The owner that wrote the facts; `None` for facts that were read from the store.
    pub(super) owner: Option<OwnershipSnapshot>,
}

/// A page of the log that a feed may use.
#[derive(Debug)]
pub(super) struct UsablePage {
    pub(super) key: SessionKey,
    /// The position that the read named; the page starts later if the facts there have been trimmed.
    pub(super) after: Seq,
    pub(super) page: FactPage,
    /// The known end of the log when the read started.
    pub(super) since: Seq,
}

/// A session's present state, as read from the store or rebuilt from its log.
#[derive(Debug)]
pub(super) struct PresentState {
    pub(super) key: SessionKey,
    pub(super) view: SessionView,
    pub(super) state: State,
    pub(super) ticket: ReadTicket,
}

impl From<RouterCommand> for PartEffect {
    fn from(command: RouterCommand) -> Self {
        Self::Router(command)
    }
}

impl From<BindingsCommand> for PartEffect {
    fn from(command: BindingsCommand) -> Self {
        Self::Bindings(command)
    }
}

impl From<AdaptersCommand> for PartEffect {
    fn from(command: AdaptersCommand) -> Self {
        Self::Adapters(command)
    }
}

impl From<TasksCommand> for PartEffect {
    fn from(command: TasksCommand) -> Self {
        Self::Tasks(command)
    }
}

impl From<DeliveryCommand> for PartEffect {
    fn from(command: DeliveryCommand) -> Self {
        Self::Delivery(command)
    }
}

impl From<MembershipCommand> for PartEffect {
    fn from(command: MembershipCommand) -> Self {
        Self::Membership(command)
    }
}

impl From<OwnershipCommand> for PartEffect {
    fn from(command: OwnershipCommand) -> Self {
        Self::Ownership(command)
    }
}
