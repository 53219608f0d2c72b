//! Messages in frames of version 1. The order of fields and variants is their order in the bytes; facts, inputs, control
//! entries and orders are JSON texts. Apart from a further last variant, a change here is a new version.
mod json;
mod remote;

use crate::peer::{OfferedEntry, PeerMessage};
use remote::RemoteMessageVersion1;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::Arc;
use turnway_core::id::{
    ControlId, Cursor, DeliveryId, Epoch, EventId, Holder, InboxPosition, LeaseId, ListenStamp, NodeId, Nonce,
    OwnershipSnapshot, RunId, Seq, SessionId, SessionKey, TenantId,
};
use turnway_core::private::Private;
use turnway_core::protocol::action::{OutputEncoding, OutputStream, ProcessOutput};
use turnway_core::protocol::agent::TextKind;
use turnway_core::protocol::chunk::TextChunk;
use turnway_core::protocol::delivery::{AccountKey, DeliveryOrder, DeliveryReport};
use turnway_core::protocol::entry::Entry;
use turnway_core::protocol::input::{ControlEntry, Input};
use turnway_core::protocol::signal::ConversationSignal;
use turnway_core::protocol::versioned::{FormList, VersionedForm};

/// The form of a [`PeerMessage`].
#[derive(Serialize, Deserialize)]
pub(super) enum MessageVersion1<'a> {
    Offer {
        key: KeyVersion1<'a>,
        owner: OwnershipVersion1,
        item: OfferedEntryVersion1<'a>,
    },
    InputAccepted {
        key: KeyVersion1<'a>,
        run_id: Cow<'a, RunId>,
    },
    ControlAnswered {
        key: KeyVersion1<'a>,
        control: Cow<'a, ControlId>,
        shown: bool,
    },
    NotOwner {
        key: KeyVersion1<'a>,
        owner: OwnershipVersion1,
    },
    Subscribed {
        key: KeyVersion1<'a>,
        stamp: ListenStamp,
    },
    Facts {
        key: KeyVersion1<'a>,
        owner: OwnershipVersion1,
        after: CursorVersion1,
        #[serde(with = "json::facts")]
        facts: Cow<'a, [(Epoch, Arc<Entry>)]>,
    },
    Chunk {
        key: KeyVersion1<'a>,
        epoch: Epoch,
        chunk: TextChunkVersion1<'a>,
    },
    FetchText {
        key: KeyVersion1<'a>,
        run_id: Cow<'a, RunId>,
        attempt: u32,
        offset: u64,
    },
    TailDigest {
        logs: LogsVersion1<'a>,
    },
    Ack {
        logs: LogsVersion1<'a>,
    },
    HandOff {
        key: KeyVersion1<'a>,
        released: OwnershipVersion1,
    },
    Probe,
    ProcessOutput {
        key: KeyVersion1<'a>,
        epoch: Epoch,
        run_id: Cow<'a, RunId>,
        printed: ProcessOutputVersion1<'a>,
    },
    RemoteAttempt(RemoteMessageVersion1<'a>),
    Reserve {
        key: KeyVersion1<'a>,
        epoch: Epoch,
    },
    Reserved {
        key: KeyVersion1<'a>,
        epoch: Epoch,
        holder: HolderVersion1,
        nonce: Nonce,
    },
    // Sent only while every node announces the level of the fact `delivery.requested`.
    Deliver {
        #[serde(with = "json")]
        order: Cow<'a, Arc<DeliveryOrder>>,
    },
    DeliveryReport {
        key: KeyVersion1<'a>,
        #[serde(with = "json")]
        report: Cow<'a, Arc<DeliveryReport>>,
    },
    NoAdapter {
        #[serde(with = "json")]
        account: Cow<'a, Arc<AccountKey>>,
    },
    AdapterArrived {
        #[serde(with = "json")]
        account: Cow<'a, Arc<AccountKey>>,
    },
    Signal {
        #[serde(with = "json")]
        signal: Cow<'a, Arc<ConversationSignal>>,
    },
    PreviewUnwanted {
        key: KeyVersion1<'a>,
        preview_id: Cow<'a, DeliveryId>,
    },
}

/// The positions of logs, by session.
type LogsVersion1<'a> = FormList<'a, (SessionKey, Cursor), (KeyVersion1<'a>, CursorVersion1)>;

/// The form of an [`OfferedEntry`].
#[derive(Serialize, Deserialize)]
pub(super) enum OfferedEntryVersion1<'a> {
    Input {
        position: InboxPosition,
        prev: InboxPosition,
        #[serde(with = "json")]
        input: Cow<'a, Arc<Input>>,
    },
    Control {
        position: InboxPosition,
        prev: InboxPosition,
        #[serde(with = "json")]
        control: Cow<'a, Arc<ControlEntry>>,
    },
}

/// The form of a [`SessionKey`].
#[derive(Serialize, Deserialize)]
pub(super) struct KeyVersion1<'a> {
    tenant: Cow<'a, TenantId>,
    session: Cow<'a, SessionId>,
}

/// The form of an [`OwnershipSnapshot`].
#[derive(Serialize, Deserialize)]
pub(super) struct OwnershipVersion1 {
    holder: Option<HolderVersion1>,
    epoch: Epoch,
}

/// The form of a [`Holder`].
#[derive(Serialize, Deserialize)]
pub(super) struct HolderVersion1 {
    node: NodeId,
    life: LeaseId,
}

/// The form of a [`Cursor`].
#[derive(Serialize, Deserialize)]
pub(super) struct CursorVersion1 {
    seq: Seq,
    epoch: Epoch,
}

/// The form of a [`TextChunk`].
#[derive(Serialize, Deserialize)]
pub(super) struct TextChunkVersion1<'a> {
    run_id: Cow<'a, RunId>,
    attempt: u32,
    offset: u64,
    kind: TextKindVersion1,
    text: Cow<'a, Arc<str>>,
}

/// The form of a [`TextKind`].
#[derive(Serialize, Deserialize)]
pub(super) enum TextKindVersion1 {
    Text,
    Reasoning,
}

/// The form of a [`ProcessOutput`].
#[derive(Serialize, Deserialize)]
pub(super) struct ProcessOutputVersion1<'a> {
    action_id: EventId,
    stream: OutputStreamVersion1,
    offset: u64,
    data: Cow<'a, Arc<str>>,
    encoding: OutputEncodingVersion1,
    truncated: bool,
}

/// The form of an [`OutputStream`].
#[derive(Serialize, Deserialize)]
enum OutputStreamVersion1 {
    Stdout,
    Stderr,
}

/// The form of an [`OutputEncoding`].
#[derive(Serialize, Deserialize)]
enum OutputEncodingVersion1 {
    Utf8,
    Base64,
}

impl<'a> VersionedForm<'a> for MessageVersion1<'a> {
    type Domain = PeerMessage;

    #[inline(always)]
    fn borrow(message: &'a PeerMessage) -> Self {
        match message {
            PeerMessage::Offer { key, owner, item } => Self::Offer {
                key: KeyVersion1::borrow(key),
                owner: OwnershipVersion1::borrow(owner),
                item: OfferedEntryVersion1::borrow(item),
            },
            PeerMessage::InputAccepted { key, run_id } => {
                Self::InputAccepted { key: KeyVersion1::borrow(key), run_id: Cow::Borrowed(run_id) }
            }
            PeerMessage::ControlAnswered { key, control, shown } => {
                Self::ControlAnswered { key: KeyVersion1::borrow(key), control: Cow::Borrowed(control), shown: *shown }
            }
            PeerMessage::NotOwner { key, owner } => {
                Self::NotOwner { key: KeyVersion1::borrow(key), owner: OwnershipVersion1::borrow(owner) }
            }
            PeerMessage::Subscribed { key, stamp } => Self::Subscribed { key: KeyVersion1::borrow(key), stamp: *stamp },
            PeerMessage::Facts { key, owner, after, facts } => Self::Facts {
                key: KeyVersion1::borrow(key),
                owner: OwnershipVersion1::borrow(owner),
                after: CursorVersion1::borrow(after),
                facts: Cow::Borrowed(facts),
            },
            PeerMessage::Chunk { key, epoch, chunk } => {
                Self::Chunk { key: KeyVersion1::borrow(key), epoch: *epoch, chunk: TextChunkVersion1::borrow(chunk) }
            }
            PeerMessage::FetchText { key, run_id, attempt, offset } => Self::FetchText {
                key: KeyVersion1::borrow(key),
                run_id: Cow::Borrowed(run_id),
                attempt: *attempt,
                offset: *offset,
            },
            PeerMessage::TailDigest { logs } => Self::TailDigest { logs: FormList::Borrowed(logs) },
            PeerMessage::Ack { logs } => Self::Ack { logs: FormList::Borrowed(logs) },
            PeerMessage::HandOff { key, released } => {
                Self::HandOff { key: KeyVersion1::borrow(key), released: OwnershipVersion1::borrow(released) }
            }
            PeerMessage::Probe => Self::Probe,
            PeerMessage::ProcessOutput { key, epoch, run_id, printed } => Self::ProcessOutput {
                key: KeyVersion1::borrow(key),
                epoch: *epoch,
                run_id: Cow::Borrowed(run_id),
                printed: ProcessOutputVersion1::borrow(printed),
            },
            PeerMessage::RemoteAttempt(message) => Self::RemoteAttempt(RemoteMessageVersion1::borrow(message)),
            PeerMessage::Reserve { key, epoch } => Self::Reserve { key: KeyVersion1::borrow(key), epoch: *epoch },
            PeerMessage::Reserved { key, epoch, holder, nonce } => Self::Reserved {
                key: KeyVersion1::borrow(key),
                epoch: *epoch,
                holder: HolderVersion1::borrow(holder),
                nonce: *nonce,
            },
            PeerMessage::Deliver { order } => Self::Deliver { order: Cow::Borrowed(order) },
            PeerMessage::DeliveryReport { key, report } => {
                Self::DeliveryReport { key: KeyVersion1::borrow(key), report: Cow::Borrowed(report) }
            }
            PeerMessage::NoAdapter { account } => Self::NoAdapter { account: Cow::Borrowed(account) },
            PeerMessage::AdapterArrived { account } => Self::AdapterArrived { account: Cow::Borrowed(account) },
            PeerMessage::Signal { signal } => Self::Signal { signal: Cow::Borrowed(signal) },
            PeerMessage::PreviewUnwanted { key, preview_id } => {
                Self::PreviewUnwanted { key: KeyVersion1::borrow(key), preview_id: Cow::Borrowed(preview_id) }
            }
        }
    }

    fn into_domain(self) -> PeerMessage {
        match self {
            Self::Offer { key, owner, item } => {
                PeerMessage::Offer { key: key.into_domain(), owner: owner.into_domain(), item: item.into_domain() }
            }
            Self::InputAccepted { key, run_id } => {
                PeerMessage::InputAccepted { key: key.into_domain(), run_id: run_id.into_owned() }
            }
            Self::ControlAnswered { key, control, shown } => {
                PeerMessage::ControlAnswered { key: key.into_domain(), control: control.into_owned(), shown }
            }
            Self::NotOwner { key, owner } => {
                PeerMessage::NotOwner { key: key.into_domain(), owner: owner.into_domain() }
            }
            Self::Subscribed { key, stamp } => PeerMessage::Subscribed { key: key.into_domain(), stamp },
            Self::Facts { key, owner, after, facts } => PeerMessage::Facts {
                key: key.into_domain(),
                owner: owner.into_domain(),
                after: after.into_domain(),
                facts: facts.into_owned(),
            },
            Self::Chunk { key, epoch, chunk } => {
                PeerMessage::Chunk { key: key.into_domain(), epoch, chunk: chunk.into_domain() }
            }
            Self::FetchText { key, run_id, attempt, offset } => {
                PeerMessage::FetchText { key: key.into_domain(), run_id: run_id.into_owned(), attempt, offset }
            }
            Self::TailDigest { logs } => PeerMessage::TailDigest { logs: logs.into_domain() },
            Self::Ack { logs } => PeerMessage::Ack { logs: logs.into_domain() },
            Self::HandOff { key, released } => {
                PeerMessage::HandOff { key: key.into_domain(), released: released.into_domain() }
            }
            Self::Probe => PeerMessage::Probe,
            Self::ProcessOutput { key, epoch, run_id, printed } => PeerMessage::ProcessOutput {
                key: key.into_domain(),
                epoch,
                run_id: run_id.into_owned(),
                printed: Box::new(printed.into_domain()),
            },
            Self::RemoteAttempt(message) => PeerMessage::RemoteAttempt(message.into_domain()),
            Self::Reserve { key, epoch } => PeerMessage::Reserve { key: key.into_domain(), epoch },
            Self::Reserved { key, epoch, holder, nonce } => {
                PeerMessage::Reserved { key: key.into_domain(), epoch, holder: holder.into_domain(), nonce }
            }
            Self::Deliver { order } => PeerMessage::Deliver { order: order.into_owned() },
            Self::DeliveryReport { key, report } => {
                PeerMessage::DeliveryReport { key: key.into_domain(), report: report.into_owned() }
            }
            Self::NoAdapter { account } => PeerMessage::NoAdapter { account: account.into_owned() },
            Self::AdapterArrived { account } => PeerMessage::AdapterArrived { account: account.into_owned() },
            Self::Signal { signal } => PeerMessage::Signal { signal: signal.into_owned() },
            Self::PreviewUnwanted { key, preview_id } => {
                PeerMessage::PreviewUnwanted { key: key.into_domain(), preview_id: preview_id.into_owned() }
            }
        }
    }
}

impl<'a> VersionedForm<'a> for OfferedEntryVersion1<'a> {
    type Domain = OfferedEntry;

    #[inline(always)]
    fn borrow(item: &'a OfferedEntry) -> Self {
        match item {
            OfferedEntry::Input { position, prev, input } => {
                Self::Input { position: *position, prev: *prev, input: Cow::Borrowed(input) }
            }
            OfferedEntry::Control { position, prev, control } => {
                Self::Control { position: *position, prev: *prev, control: Cow::Borrowed(control) }
            }
        }
    }

    fn into_domain(self) -> OfferedEntry {
        match self {
            Self::Input { position, prev, input } => OfferedEntry::Input { position, prev, input: input.into_owned() },
            Self::Control { position, prev, control } => {
                OfferedEntry::Control { position, prev, control: control.into_owned() }
            }
        }
    }
}

impl<'a> VersionedForm<'a> for KeyVersion1<'a> {
    type Domain = SessionKey;

    #[inline(always)]
    fn borrow(key: &'a SessionKey) -> Self {
        let SessionKey { tenant, session } = key;
        Self { tenant: Cow::Borrowed(tenant), session: Cow::Borrowed(session) }
    }

    fn into_domain(self) -> SessionKey {
        let Self { tenant, session } = self;
        SessionKey { tenant: tenant.into_owned(), session: session.into_owned() }
    }
}

impl VersionedForm<'_> for OwnershipVersion1 {
    type Domain = OwnershipSnapshot;

    #[inline(always)]
    fn borrow(owner: &OwnershipSnapshot) -> Self {
        let OwnershipSnapshot { holder, epoch } = owner;
        Self { holder: holder.as_ref().map(HolderVersion1::borrow), epoch: *epoch }
    }

    fn into_domain(self) -> OwnershipSnapshot {
        let Self { holder, epoch } = self;
        OwnershipSnapshot { holder: holder.map(HolderVersion1::into_domain), epoch }
    }
}

impl VersionedForm<'_> for HolderVersion1 {
    type Domain = Holder;

    #[inline(always)]
    fn borrow(holder: &Holder) -> Self {
        let Holder { node, life } = *holder;
        Self { node, life }
    }

    fn into_domain(self) -> Holder {
        let Self { node, life } = self;
        Holder { node, life }
    }
}

impl VersionedForm<'_> for CursorVersion1 {
    type Domain = Cursor;

    #[inline(always)]
    fn borrow(cursor: &Cursor) -> Self {
        let Cursor { seq, epoch } = *cursor;
        Self { seq, epoch }
    }

    fn into_domain(self) -> Cursor {
        let Self { seq, epoch } = self;
        Cursor { seq, epoch }
    }
}

impl<'a> VersionedForm<'a> for TextChunkVersion1<'a> {
    type Domain = TextChunk;

    #[inline(always)]
    fn borrow(chunk: &'a TextChunk) -> Self {
        let TextChunk { run_id, attempt, offset, kind, text: Private(text) } = chunk;
        Self {
            run_id: Cow::Borrowed(run_id),
            attempt: *attempt,
            offset: *offset,
            kind: TextKindVersion1::borrow(kind),
            text: Cow::Borrowed(text),
        }
    }

    fn into_domain(self) -> TextChunk {
        let Self { run_id, attempt, offset, kind, text } = self;
        let text = Private(text.into_owned());
        TextChunk { run_id: run_id.into_owned(), attempt, offset, kind: kind.into_domain(), text }
    }
}

impl VersionedForm<'_> for TextKindVersion1 {
    type Domain = TextKind;

    #[inline(always)]
    fn borrow(kind: &TextKind) -> Self {
        match kind {
            TextKind::Text => Self::Text,
            TextKind::Reasoning => Self::Reasoning,
        }
    }

    fn into_domain(self) -> TextKind {
        match self {
            Self::Text => TextKind::Text,
            Self::Reasoning => TextKind::Reasoning,
        }
    }
}

impl<'a> VersionedForm<'a> for ProcessOutputVersion1<'a> {
    type Domain = ProcessOutput;

    #[inline(always)]
    fn borrow(printed: &'a ProcessOutput) -> Self {
        let ProcessOutput { action_id, stream, offset, data: Private(data), encoding, truncated } = printed;
        Self {
            action_id: *action_id,
            stream: OutputStreamVersion1::borrow(stream),
            offset: *offset,
            data: Cow::Borrowed(data),
            encoding: OutputEncodingVersion1::borrow(encoding),
            truncated: *truncated,
        }
    }

    fn into_domain(self) -> ProcessOutput {
        let Self { action_id, stream, offset, data, encoding, truncated } = self;
        let data = Private(data.into_owned());
        let stream = stream.into_domain();
        ProcessOutput { action_id, stream, offset, data, encoding: encoding.into_domain(), truncated }
    }
}

impl VersionedForm<'_> for OutputStreamVersion1 {
    type Domain = OutputStream;

    #[inline(always)]
    fn borrow(stream: &OutputStream) -> Self {
        match stream {
            OutputStream::Stdout => Self::Stdout,
            OutputStream::Stderr => Self::Stderr,
        }
    }

    fn into_domain(self) -> OutputStream {
        match self {
            Self::Stdout => OutputStream::Stdout,
            Self::Stderr => OutputStream::Stderr,
        }
    }
}

impl VersionedForm<'_> for OutputEncodingVersion1 {
    type Domain = OutputEncoding;

    #[inline(always)]
    fn borrow(encoding: &OutputEncoding) -> Self {
        match encoding {
            OutputEncoding::Utf8 => Self::Utf8,
            OutputEncoding::Base64 => Self::Base64,
        }
    }

    fn into_domain(self) -> OutputEncoding {
        match self {
            Self::Utf8 => OutputEncoding::Utf8,
            Self::Base64 => OutputEncoding::Base64,
        }
    }
}
