//! Events of conversations, on their way to a session: the session of the conversation's binding, or the
//! conversation's own. The adapter is answered once what follows is durable.
use super::changes::{ChangedMessage, InboundCancel};
use super::presses::PendingPress;
use serde_json::json;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use turnway_core::id::{ConversationId, LinkId, MessageId, Principal, RequestId, RunId, SessionId, SessionKey, UserId};
use turnway_core::limits;
use turnway_core::mutant::{self, Mutant};
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::binding::{Binding, EndedBinding, TargetKind, UnbindReason};
use turnway_core::protocol::channels::ChannelSettings;
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::delivery::{AccountKey, InputOrigin, TextLimit};
use turnway_core::protocol::file_url::names_foreign_file;
use turnway_core::protocol::input::{Content, Input, Message, Role, Strategy};
use turnway_core::protocol::json::Json;
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::store::binding::BindingAction;
use turnway_core::store::{ConversationOp, RouteVersion};
use turnway_core::time::{Millis, Now};
use turnway_wire::channel::adapter::{IgnoreReason, InboundCommand, InboundDisposition, InboundEvent, InboundReceipt};
use turnway_wire::channel::binding::{
    BindCommand, BindingCommand, BindingReply, BindingScope, BindingTarget, ExpiryChange,
};

/// Events whose binding is being looked up, by a number of this node. Bounded by the requests that each link may have.
#[derive(Debug, Default)]
pub(super) struct InboundEvents {
    waiting: BTreeMap<u64, PendingInbound>,
    /// Messages that are looked for in an earlier session of their conversation, by link and by their turn there.
    searching: BTreeMap<(LinkId, RunId), Vec<SearchedMessage>>,
    last: u64,
}

/// An event whose binding is being looked up.
#[derive(Debug)]
pub(super) struct PendingInbound {
    pub(super) link: LinkId,
    pub(super) inbound: InboundCommand,
    pub(super) text_limit: TextLimit,
    /// The level of buttons in the conversation, if it is declared.
    pub(super) buttons: Option<i8>,
    /// The channel's settings, as far as every live node can follow them.
    pub(super) settings: ChannelSettings,
    /// The time by the store's clock at which the adapter brought the event.
    pub(super) arrived_at: Millis,
    pub(super) stage: InboundStage,
}

/// The next step of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InboundStage {
    /// The binding of its conversation.
    Lookup,
    /// The end or the move of that binding.
    Change,
    /// A binding of the conversation's new id to the session that it has had.
    Adoption,
}

/// A message that an earlier session of its conversation may have accepted.
#[derive(Debug)]
pub(super) struct SearchedMessage {
    pub(super) pending: PendingInbound,
    content: Content,
    /// The present binding of the conversation.
    binding: Option<Box<Binding>>,
    /// The sessions to be asked that were not asked yet, the next one last.
    earlier: Vec<SessionId>,
    /// The message starts no turn, unless a session has accepted it before.
    is_stale: bool,
    /// The version of the conversation's binding.
    version: u64,
}

/// The binding of a place, and the one that ended there last.
#[derive(Debug, Default)]
pub(in crate::switchboard) struct PlaceBindings {
    /// A change was not made, because the place has another binding by now.
    is_refused: bool,
    pub(in crate::switchboard) active: Option<Box<Binding>>,
    last_ended: Option<Box<EndedBinding>>,
}

/// The turn that a message led to if an earlier session of its conversation has accepted it.
#[derive(Debug)]
pub(super) struct EarlierTurn {
    pub(super) key: SessionKey,
    pub(super) principal: Principal,
    pub(super) run_id: RunId,
    /// The session accepts no message any more that an older version of the binding has led there: another node may
    /// still be about to submit a copy of this one.
    pub(super) fence: Option<RouteVersion>,
}

/// A message that becomes a turn of a session.
#[derive(Debug)]
pub(in crate::switchboard) struct InboundTurn {
    pub(in crate::switchboard) link: LinkId,
    pub(in crate::switchboard) request_id: Option<RequestId>,
    pub(in crate::switchboard) key: SessionKey,
    pub(in crate::switchboard) principal: Principal,
    pub(in crate::switchboard) input: Arc<Input>,
    pub(in crate::switchboard) session: InboundSession,
    /// The version of the binding that leads the message there; absent: nothing else could have led it elsewhere.
    pub(in crate::switchboard) route: Option<RouteVersion>,
}

/// The session that a message of a conversation goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::switchboard) enum InboundSession {
    /// The session that the conversation has while nobody has bound it.
    Own,
    /// The session that the conversation is bound to.
    Bound,
    /// A session that the conversation has left, in which an earlier message is changed or a button is pressed. If it is
    /// closed, then nothing else can take the event.
    Earlier,
}

/// A session that a conversation has or has had.
#[derive(Debug)]
pub(super) struct ConversationSession {
    pub(super) id: SessionId,
    pub(super) kind: InboundSession,
}

/// The result of an event.
#[derive(Debug)]
pub(super) enum InboundResult {
    Turn(Box<InboundTurn>, Option<ConversationOp>),
    /// An earlier session of the conversation may have accepted the message.
    Search(SearchedMessage, EarlierTurn),
    /// The binding changes; then the event is answered.
    Change(PendingInbound, BindingCommand),
    /// A message was changed or deleted, whose turn is to be looked for.
    Changed(Box<ChangedMessage>),
    /// A button was pressed, whose message is to be looked for.
    Press(Box<PendingPress>),
    /// The turn of a deleted message ends.
    Cancel(Box<InboundCancel>),
    /// The event is to be brought again.
    Refused(PendingInbound, Refusal),
    Done(InboundReceipt),
    /// The message is too old.
    Stale(InboundReceipt),
}

impl InboundEvents {
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.searching.values().map(Vec::len).sum::<usize>()
    }

    /// Adds an event; returns its number.
    pub(super) fn add(&mut self, pending: PendingInbound) -> u64 {
        self.last += 1;
        self.waiting.insert(self.last, pending);
        self.last
    }

    pub(super) fn take(&mut self, number: u64) -> Option<PendingInbound> {
        self.waiting.remove(&number)
    }

    /// Adds a message that is looked for as this turn.
    pub(super) fn add_searched(&mut self, run_id: RunId, message: SearchedMessage) {
        self.searching.entry((message.pending.link, run_id)).or_default().push(message);
    }

    /// Takes a message that was looked for as this turn.
    pub(super) fn take_searched(&mut self, link: LinkId, run_id: &RunId) -> Option<SearchedMessage> {
        let Entry::Occupied(mut found) = self.searching.entry((link, run_id.clone())) else { return None };
        let message = found.get_mut().pop();
        if found.get().is_empty() {
            found.remove();
        }
        message
    }
}

impl PlaceBindings {
    /// Returns what a lookup has found; nothing for other replies.
    pub(in crate::switchboard) fn of_reply(reply: BindingReply) -> Self {
        let is_refused = matches!(reply, BindingReply::NotApplied { .. });
        let BindingReply::Resolved(mut found) = reply else { return Self { is_refused, ..Self::default() } };
        if mutant::planted(Mutant::BindingIgnored) {
            found.binding = None;
        }
        // The last candidate is the conversation by its present id.
        let last_ended = found.candidates.and_then(|mut rows| rows.pop()?.last_ended);
        Self { is_refused, active: found.binding.map(Box::new), last_ended: last_ended.map(Box::new) }
    }

    /// Returns the version of the conversation's binding, which grows with every bind and every end. A conversation that
    /// nobody has bound lately has that of a time before every later bind and after every end that is forgotten.
    fn version(&self, now: Now) -> u64 {
        let unbound = || {
            let before = now.store.0.saturating_sub(limits::ROUTE_CLOCK_TOLERANCE_MS);
            self.last_ended.as_ref().map_or(before * 2, |ended| ended.binding.generation.0 * 2 + 1)
        };
        self.active.as_ref().map_or_else(unbound, |binding| binding.generation.0 * 2)
    }

    /// Returns the other sessions that had the conversation within the time for which platforms repeat messages, the
    /// latest last.
    fn earlier_sessions(&self, now: Now, own: SessionId) -> Vec<SessionId> {
        let is_recent = |at: Millis| at.0 + limits::MESSAGE_ID_KEPT_MS > now.store.0;
        let present = self.active.as_ref().map_or(&own, |binding| &binding.session).clone();
        let was_own = self.active.as_ref().is_some_and(|binding| is_recent(binding.bound_at));
        let ended = self.last_ended.as_ref().filter(|ended| is_recent(ended.ended_at));
        let ended = ended.map(|ended| ended.binding.session.clone());
        let earlier = was_own.then_some(own).into_iter().chain(ended);
        earlier.filter(|session| *session != present).collect()
    }

    /// Returns the sessions that had the conversation within that time, the present one last.
    fn sessions(&self, now: Now, own: SessionId) -> Vec<ConversationSession> {
        let earlier = self.earlier_sessions(now, own.clone()).into_iter();
        let present = match &self.active {
            Some(binding) => ConversationSession { id: binding.session.clone(), kind: InboundSession::Bound },
            None => ConversationSession { id: own, kind: InboundSession::Own },
        };
        earlier.map(|id| ConversationSession { id, kind: InboundSession::Earlier }).chain([present]).collect()
    }
}

impl PendingInbound {
    /// Decides what follows, now that the conversation's binding is known.
    pub(super) fn decide(self, now: Now, account: &AccountKey, bindings: PlaceBindings) -> InboundResult {
        match self.stage {
            InboundStage::Lookup => {}
            InboundStage::Change if bindings.is_refused => {
                let why = "the binding of the conversation has changed; send the event again";
                let refusal = Refusal::new(Code::Busy, why).retry_after(limits::INBOX_RETRY_AFTER);
                return InboundResult::Refused(self, refusal);
            }
            InboundStage::Adoption if bindings.is_refused => {
                return InboundResult::Done(self.receipt(InboundDisposition::Ignored));
            }
            InboundStage::Change | InboundStage::Adoption => {
                return InboundResult::Done(self.receipt(InboundDisposition::Recorded));
            }
        }
        match (&self.inbound.event, &bindings.active) {
            (InboundEvent::Message(content), _) => {
                let content = content.clone();
                let own = self.inbound.conversation.own_session(&account.tenant);
                let is_searched = !planted(Planted::InboundRunsTwice) && !mutant::planted(Mutant::RepeatUnsearched);
                let mut earlier = if is_searched { bindings.earlier_sessions(now, own.clone()) } else { Vec::new() };
                let is_stale = self.is_stale(bindings.active.is_some());
                if is_stale {
                    // A message that was accepted in time, and whose answer was lost, is a repetition.
                    earlier.insert(0, bindings.active.as_ref().map_or(own, |binding| binding.session.clone()));
                }
                let version = bindings.version(now);
                let binding = bindings.active;
                let message = SearchedMessage { pending: self, content, binding, earlier, is_stale, version };
                message.search_or_submit(now, account)
            }
            (InboundEvent::Closed, Some(binding)) => {
                let target = BindingTarget::Binding { scope: scope_of(account), id: binding.id() };
                let reason = UnbindReason::ConversationArchived;
                let command = BindingCommand::Unbind { target, reason, farewell: false };
                InboundResult::Change(Self { stage: InboundStage::Change, ..self }, command)
            }
            // The event has come before.
            (InboundEvent::Moved(to), Some(binding)) if binding.conversation.conversation_id == *to => {
                InboundResult::Done(self.receipt(InboundDisposition::Recorded))
            }
            (InboundEvent::Moved(to), binding) if *to != self.inbound.conversation.conversation_id => {
                let (stage, command) = match binding {
                    Some(binding) => {
                        let scope = scope_of(account);
                        (InboundStage::Change, BindingCommand::Move { scope, id: binding.id(), to: to.clone() })
                    }
                    None => (InboundStage::Adoption, self.adoption(account, to)),
                };
                InboundResult::Change(Self { stage, ..self }, command)
            }
            (InboundEvent::Edit(Some(_)) | InboundEvent::Delete, _) => {
                let sessions = bindings.sessions(now, self.inbound.conversation.own_session(&account.tenant));
                InboundResult::Changed(Box::new(ChangedMessage::new(self, account, sessions)))
            }
            (InboundEvent::Decision(_), _) => {
                let sessions = bindings.sessions(now, self.inbound.conversation.own_session(&account.tenant));
                InboundResult::Press(Box::new(PendingPress::new(self, account, sessions)))
            }
            (InboundEvent::Closed | InboundEvent::Moved(_) | InboundEvent::Edit(None) | InboundEvent::Reaction, _) => {
                InboundResult::Done(self.receipt(InboundDisposition::Ignored))
            }
        }
    }

    /// Returns whether the message was too old when it arrived. A time that this node or the store takes is none of its
    /// age.
    fn is_stale(&self, is_bound: bool) -> bool {
        let ChannelSettings { stale_after, stale_after_bound, .. } = self.settings;
        let stale_after = if is_bound { stale_after_bound } else { stale_after };
        let written_at = self.inbound.platform_time.filter(|_| !planted(Planted::StaleMessagesRun));
        stale_after.zip(written_at).is_some_and(|(age, written_at)| written_at.after(age) < self.arrived_at)
    }

    /// Returns the request that binds the new id of a conversation that nobody has bound to the session that it has had:
    /// a name that changes ends no talk, so the binding does not expire.
    fn adoption(&self, account: &AccountKey, to: &ConversationId) -> BindingCommand {
        let known = &self.inbound.conversation;
        BindingCommand::Bind(Box::new(BindCommand {
            conversation: ConversationRef { conversation_id: to.clone(), ..known.clone() },
            session: known.own_session(&account.tenant),
            target_kind: TargetKind::default(),
            expected: None,
            expiry: ExpiryChange { idle_timeout: Some(0), ..ExpiryChange::default() },
            mirror: None,
            metadata: BTreeMap::new(),
            nonce: None,
        }))
    }

    /// Decides what follows if the request about the binding was refused.
    pub(super) fn handle_refusal(self, refusal: Refusal) -> InboundResult {
        // Nothing was said at the old id, or what was said there is over: there is no session to keep. A closed session
        // takes no binding, however often the event comes.
        let is_over = matches!(refusal.code, Code::NotFound | Code::SessionClosed);
        if self.stage == InboundStage::Adoption && is_over {
            InboundResult::Done(self.receipt(InboundDisposition::Ignored))
        } else {
            InboundResult::Refused(self, refusal)
        }
    }

    /// Returns the origin of the input that the event leads to.
    pub(super) fn origin(&self) -> InputOrigin {
        let InboundCommand { conversation, sender, message_id, platform_time, .. } = &self.inbound;
        InputOrigin {
            conversation: conversation.clone(),
            message_id: message_id.clone(),
            sender: sender.clone(),
            platform_time: *platform_time,
            text_limit: self.text_limit,
            debounce_ms: None,
            task: None,
            buttons: self.buttons,
            decision: None,
        }
    }

    pub(super) fn receipt(&self, disposition: InboundDisposition) -> InboundReceipt {
        let request_id = self.inbound.request_id.clone();
        InboundReceipt { request_id, disposition, reason: None, session: None, run_id: None, duplicate: false }
    }
}

impl SearchedMessage {
    /// Looks for the message in the next earlier session; when there is none left, the message becomes a turn.
    pub(super) fn search_or_submit(mut self, now: Now, account: &AccountKey) -> InboundResult {
        if let Some(session) = self.earlier.pop() {
            let search = self.earlier_turn(account, session);
            return InboundResult::Search(self, search);
        }
        if self.is_stale {
            let receipt = self.pending.receipt(InboundDisposition::Ignored);
            return InboundResult::Stale(InboundReceipt { reason: Some(IgnoreReason::Stale), ..receipt });
        }
        if names_foreign_file(&self.session(account), &self.content) && !planted(Planted::ForeignFilesTaken) {
            let why =
                "a file of the message is in another session; prepare the files again, and send the message again";
            let refusal = Refusal::new(Code::Busy, why).retry_after(limits::INBOX_RETRY_AFTER);
            return InboundResult::Refused(self.pending, refusal);
        }
        let touched = self.binding.as_ref().map(|binding| {
            let key = binding.conversation.key(&account.tenant);
            let action = BindingAction::Touch { generation: binding.generation, at: now.store };
            ConversationOp::Change { key, action }
        });
        InboundResult::Turn(Box::new(self.turn(account)), touched)
    }

    /// Returns the session that the conversation leads to now.
    fn session(&self, account: &AccountKey) -> SessionId {
        let own = || self.pending.inbound.conversation.own_session(&account.tenant);
        self.binding.as_ref().map_or_else(own, |binding| binding.session.clone())
    }

    /// Returns the turn that the message has if this session has accepted it.
    fn earlier_turn(&self, account: &AccountKey, session: SessionId) -> EarlierTurn {
        let key = SessionKey { tenant: account.tenant.clone(), session };
        let user = UserId::of_account(&account.channel, &account.account);
        let inbound = &self.pending.inbound;
        let run_id = RunId::derive(&key, &user, &inbound.conversation.inbox_message_id(&inbound.message_id));
        // The conversation may have written to a session of another user.
        let principal = Principal { tenant: account.tenant.clone(), user, operator: true, writes: false };
        // A message that is stale is submitted to no session.
        let fence = (!self.is_stale && !planted(Planted::LateCopyRuns)).then(|| self.route(&key, &principal.user));
        EarlierTurn { key, principal, run_id, fence }
    }

    /// Returns the version of the binding as a session knows it.
    fn route(&self, key: &SessionKey, user: &UserId) -> RouteVersion {
        let place = RunId::derive(key, user, &self.pending.inbound.conversation.inbox_place_id());
        RouteVersion { place, version: self.version }
    }

    /// Returns the receipt of a message that an earlier session has accepted.
    pub(super) fn duplicate_receipt(&self, run_id: RunId) -> InboundReceipt {
        let session = Some(run_id.session());
        let run_id = Some(run_id);
        InboundReceipt { session, run_id, duplicate: true, ..self.pending.receipt(InboundDisposition::Run) }
    }

    fn turn(self, account: &AccountKey) -> InboundTurn {
        let session = SessionKey { tenant: account.tenant.clone(), session: self.session(account) };
        let Self { pending, content, binding, version, .. } = self;
        let origin = pending.origin();
        let conversation = &origin.conversation;
        let kind = if binding.is_some() { InboundSession::Bound } else { InboundSession::Own };
        let user = UserId::of_account(&account.channel, &account.account);
        // The binding lets the conversation write to its session.
        let principal =
            Principal { tenant: account.tenant.clone(), user: user.clone(), operator: binding.is_some(), writes: true };
        let inbox_id = conversation.inbox_message_id(&origin.message_id);
        let place = RunId::derive(&session, &user, &conversation.inbox_place_id());
        let route = Some(RouteVersion { place, version });
        let debounce = pending.settings.debounce;
        let debounce_ms = debounce.and_then(|debounce| u64::try_from(debounce.as_millis()).ok());
        let origin = InputOrigin { debounce_ms, ..origin };
        let PendingInbound { link, inbound: InboundCommand { request_id, .. }, .. } = pending;
        let input = conversation_input(&session, user, inbox_id, content, origin, None);
        InboundTurn { link, request_id, key: session, principal, input, session: kind, route }
    }
}

/// Returns the input that a message of a conversation leads to, or its edit in place of the turn that it `replaces`.
pub(super) fn conversation_input(
    session: &SessionKey,
    user: UserId,
    message_id: MessageId,
    content: Content,
    origin: InputOrigin,
    replaces: Option<RunId>,
) -> Arc<Input> {
    let InputOrigin { conversation, message_id: platform_id, sender, .. } = &origin;
    let metadata = json!({"conversation": conversation, "message_id": platform_id, "sender": sender});
    Arc::new(Input {
        run_id: RunId::derive(session, &user, &message_id),
        message_id,
        request_id: None,
        user,
        agent_id: None,
        message: Message { role: Role::User, content },
        history: None,
        // Each message has an answer of its own, at its place.
        strategy: Strategy::Enqueue,
        replaces,
        metadata: Some(Json(metadata)),
        origin: Some(Box::new(origin)),
        traceparent: None,
    })
}

fn scope_of(account: &AccountKey) -> BindingScope {
    BindingScope { channel: account.channel.clone(), account: account.account.clone() }
}
