//! Adapters that want to add files to the session of a conversation: finds the session that a message would go to now, and
//! whether it takes files. The conversation's own session is opened for them.
use super::inbound::{InboundSession, PlaceBindings};
use crate::switchboard::delivery::snapshot_waiters::SnapshotPurpose;
use crate::switchboard::effect::{BindingsCommand, DeliveryCommand, PartEffect};
use crate::switchboard::router::requests::{end_of_bindings, inbound_refusal};
use crate::switchboard::sink::EffectSink;
use std::collections::BTreeMap;
use turnway_bindings::service::AskPurpose;
use turnway_core::id::{LinkId, Principal, RequestId, SessionKey, UserId};
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::delivery::AccountKey;
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::session::SessionPhase;
use turnway_wire::channel::adapter::{PrepareFilesCommand, PreparedFiles};
use turnway_wire::channel::binding::BindingCommand;
use turnway_wire::channel::notification::{CommandReply, Notification};

/// The adapters that wait for a session, by a number of this node. Bounded by the requests that each link may have.
#[derive(Debug, Default)]
pub(super) struct FilePreparations {
    waiting: BTreeMap<u64, FilePreparation>,
    last: u64,
}

/// An adapter that waits for the session of a conversation.
#[derive(Debug)]
struct FilePreparation {
    link: LinkId,
    request_id: Option<RequestId>,
    conversation: ConversationRef,
    /// The session, once it is known.
    session: Option<(InboundSession, SessionKey)>,
}

/// The request to open the own session of a conversation for files.
#[derive(Debug)]
pub(in crate::switchboard) struct FileSessionOpening {
    pub(in crate::switchboard) link: LinkId,
    pub(in crate::switchboard) request_id: Option<RequestId>,
    pub(in crate::switchboard) key: SessionKey,
    pub(in crate::switchboard) principal: Principal,
}

// === impl FilePreparations ===

impl FilePreparations {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Looks up the binding of a conversation of the adapter's own account.
    pub(super) fn begin(&mut self, link: LinkId, command: PrepareFilesCommand, sink: &mut EffectSink) {
        let PrepareFilesCommand { request_id, conversation } = command;
        // Without the parent's binding, which is never used.
        let alone = ConversationRef { parent_conversation_id: None, ..conversation.clone() };
        let command = BindingCommand::Resolve { conversation: alone, explain: false };
        let asked = request_id.clone();
        let number = self.add(FilePreparation { link, request_id, conversation, session: None });
        let purpose = AskPurpose::Files(number);
        sink.push(BindingsCommand::Perform { link, request_id: asked, command, purpose });
    }

    fn add(&mut self, preparation: FilePreparation) -> u64 {
        self.last += 1;
        self.waiting.insert(self.last, preparation);
        self.last
    }

    /// Forgets an adapter whose connection has ended.
    pub(super) fn forget(&mut self, number: u64) {
        self.waiting.remove(&number);
    }

    /// Continues with the binding of the conversation: reads the state of the session to which it leads.
    pub(super) fn use_binding(
        &mut self,
        number: u64,
        account: &AccountKey,
        result: Result<PlaceBindings, Refusal>,
        sink: &mut EffectSink,
    ) {
        let Some(mut preparation) = self.waiting.remove(&number) else { return };
        let active = match result {
            Ok(bindings) => bindings.active.filter(|_| !planted(Planted::FilesPreparedUnbound)),
            Err(refusal) => return preparation.refuse(refusal, sink),
        };
        let (kind, session) = match active {
            Some(binding) => (InboundSession::Bound, binding.session.clone()),
            None => (InboundSession::Own, preparation.conversation.own_session(&account.tenant)),
        };
        let key = SessionKey { tenant: account.tenant.clone(), session };
        preparation.session = Some((kind, key.clone()));
        let link = preparation.link;
        let purpose = SnapshotPurpose::Files(self.add(preparation));
        sink.push(DeliveryCommand::AwaitState { key, link, request_id: None, purpose });
    }

    /// Continues with the phase of the session, or with the reason why it could not be read.
    pub(super) fn use_phase(&mut self, number: u64, phase: Result<SessionPhase, Refusal>, sink: &mut EffectSink) {
        let Some(preparation) = self.waiting.remove(&number) else { return };
        let Some((kind, key)) = preparation.session.clone() else { return };
        let closed = || Refusal::new(Code::SessionClosed, "the session is closed");
        let missing = match phase {
            Ok(SessionPhase::Open) => return preparation.grant(key, sink),
            Ok(SessionPhase::New | SessionPhase::Closing | SessionPhase::Closed) => closed(),
            Err(refusal) if refusal.code == Code::NotFound => refusal,
            Err(refusal) => return preparation.refuse(refusal, sink),
        };
        match kind {
            InboundSession::Own => preparation.open(key, sink),
            InboundSession::Bound | InboundSession::Earlier => {
                sink.push(end_of_bindings(key, &missing));
                preparation.refuse(inbound_refusal(kind, &missing).unwrap_or(missing), sink);
            }
        }
    }
}

// === impl FilePreparation ===

impl FilePreparation {
    fn refuse(self, refusal: Refusal, sink: &mut EffectSink) {
        sink.refuse(self.link, self.request_id, None, None, refusal);
    }

    fn grant(self, key: SessionKey, sink: &mut EffectSink) {
        let user = self.user();
        sink.notify(self.link, prepared(key, user, self.request_id));
    }

    /// Returns the user as whom an adapter acts in the conversation.
    fn user(&self) -> UserId {
        UserId::of_account(&self.conversation.channel, &self.conversation.account_id)
    }

    /// Opens the conversation's own session, as a message would.
    fn open(self, key: SessionKey, sink: &mut EffectSink) {
        let user = self.user();
        let Self { link, request_id, .. } = self;
        let principal = Principal { tenant: key.tenant.clone(), user, operator: false, writes: true };
        let opening = FileSessionOpening { link, request_id, key, principal };
        sink.push(PartEffect::OpenForFiles(Box::new(opening)));
    }
}

/// Returns the answer to an adapter: it may add files to the session, as this user.
pub(in crate::switchboard) fn prepared(key: SessionKey, user: UserId, request_id: Option<RequestId>) -> Notification {
    let files = PreparedFiles { request_id, key, user, token: None };
    Notification::Reply(CommandReply::FilesPrepared(Box::new(files)))
}
