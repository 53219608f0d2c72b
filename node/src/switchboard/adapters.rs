//! The adapters of platforms at this node, and the deliveries of this node's sessions: brings what people wrote to
//! sessions, and what is to be sent to the adapter that holds the account's lease, on whichever node.
mod accounts;
mod bots;
mod capabilities;
pub(super) mod changes;
mod desk;
pub(super) mod files;
pub(super) mod inbound;
mod lease;
mod lookups;
mod orders;
mod paused_list;
mod pauses;
pub(super) mod presses;
mod sealed;
mod served_account;
pub(super) mod signals;

use super::delivery::snapshot_waiters::SnapshotPurpose;
use super::effect::{AdaptersCommand, BindingsCommand, DeliveryCommand, OwnershipCommand, PartEffect};
use super::membership::lease::Lease;
use super::router::queries;
use super::sink::{EffectSink, Timer};
use bots::{BotClaims, BotEffect, BotKey, ClaimReply, ClaimingNode};
use changes::{ChangeStep, MessageChanges};
use desk::{AdapterDesk, DeskEffect, ReceivedOrder};
use files::FilePreparations;
use inbound::{EarlierTurn, InboundEvents, InboundResult, InboundStage, PendingInbound, PlaceBindings};
use lease::{LeaseChange, LeaseRecord, StoredAccount};
use lookups::{AccountLookups, HolderPlace};
use orders::{OrderEffect, OutgoingOrders};
use pauses::{AccountAsker, AccountPauses};
use presses::{ButtonPresses, PressStep};
use served_account::ServedAccount;
use signals::{SignalEffect, TurnEvent, TurnSignals};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use turnway_bindings::service::AskPurpose;
use turnway_core::id::{DeliveryId, LeaseId, LinkId, NodeId, RequestId, RunId, SessionKey};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::agent::AgentDirectory;
use turnway_core::protocol::channels::ChannelSettings;
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::delivery::{AccountKey, DeliveryKind, DeliveryOrder, DeliveryOutcome, DeliveryReport};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::protocol::signal::{ConversationSignal, SignalKind, preview_id};
use turnway_core::session::{Input as RuntimeInput, RecentDelivery};
use turnway_core::store::{Op, Reply, StoreError, StoreRefusal};
use turnway_core::time::{Millis, Mono, Now};
use turnway_wire::channel::adapter::{
    AdapterHello, CapabilitiesCommand, DeliveredCommand, InboundCommand, PrepareFilesCommand,
};
use turnway_wire::channel::binding::BindingCommand;
use turnway_wire::channel::notification::{CommandReply, Notification};
use turnway_wire::peer::PeerMessage;
use turnway_wire::peer::remote::ALL_NODES;

/// The fact that every node must know before a conversation's message is accepted.
pub(super) const DELIVERY_FACT: &str = "delivery.requested";
/// The fact that every node must know before a message waits for further ones.
const GATHER_FACT: &str = "turn.gathered";

/// The time within which the part looks at its deadlines after a message.
const WAKE_WITHIN: Duration = Duration::from_millis(500);

/// The adapters of one node.
#[derive(Debug)]
pub(super) struct Adapters {
    me: NodeId,
    accounts: BTreeMap<AccountKey, ServedAccount>,
    orders: OutgoingOrders,
    signals: TurnSignals,
    inbound: InboundEvents,
    changes: MessageChanges,
    pauses: AccountPauses,
    lookups: AccountLookups,
    /// Accounts whose value is being read because an order has found no connection that sends.
    checks: BTreeSet<AccountKey>,
    bots: BotClaims,
    presses: ButtonPresses,
    files: FilePreparations,
    /// Every live node knows the messages between nodes about deliveries.
    may_publish: bool,
    /// Every live node knows the fact of a gathered message.
    may_gather: bool,
    directory: Arc<AgentDirectory>,
    /// The latest time of the store's clock that this part has seen: the clock may go back.
    latest: Millis,
}

/// The time, and what the part reads of this node's lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdapterContext {
    pub(super) now: Now,
    life: LeaseId,
    may_own: bool,
}

impl AdapterContext {
    pub(super) fn new(now: Now, lease: &Lease) -> Self {
        Self { now, life: lease.holder().life, may_own: lease.may_own(now) }
    }
}

impl Adapters {
    /// Creates the part; `is_known` returns whether every live node knows a fact.
    pub(super) fn new(me: NodeId, directory: Arc<AgentDirectory>, is_known: impl Fn(&str) -> bool) -> Self {
        let mut adapters = Self {
            me,
            accounts: BTreeMap::new(),
            orders: OutgoingOrders::default(),
            signals: TurnSignals::default(),
            inbound: InboundEvents::default(),
            changes: MessageChanges::default(),
            pauses: AccountPauses::default(),
            lookups: AccountLookups::default(),
            checks: BTreeSet::new(),
            bots: BotClaims::default(),
            presses: ButtonPresses::default(),
            files: FilePreparations::default(),
            may_publish: false,
            may_gather: false,
            directory,
            latest: Millis(0),
        };
        adapters.use_known_facts(is_known);
        adapters
    }

    /// Sets what every live node knows: the messages between nodes about deliveries, and facts.
    pub(super) fn use_known_facts(&mut self, is_known: impl Fn(&str) -> bool) {
        self.may_publish = is_known(DELIVERY_FACT);
        self.may_gather = is_known(GATHER_FACT);
    }

    /// Returns the number of orders, parts and events that are on their way; 0 when all is quiet.
    pub(super) fn open_count(&self) -> usize {
        let desks = self.accounts.values().filter_map(|account| account.desk.as_ref());
        let open = self.orders.len() + self.inbound.len() + self.changes.len() + self.presses.len();
        let asked = self.pauses.len() + self.lookups.len() + self.files.len();
        open + asked + desks.map(AdapterDesk::open_count).sum::<usize>()
    }

    /// Returns the number of accounts with adapters at this node that are paused.
    pub(super) fn paused_count(&self) -> usize {
        self.accounts.values().filter(|served| !served.lease.is_empty() && served.is_paused()).count()
    }

    /// Returns the number of connections of adapters.
    pub(super) fn link_count(&self) -> usize {
        self.accounts.values().map(|account| account.lease.link_count()).sum()
    }

    // === connections ===

    /// Adds the connection of an adapter.
    pub(super) fn connect(
        &mut self,
        context: AdapterContext,
        link: LinkId,
        hello: &AdapterHello,
        sink: &mut EffectSink,
    ) {
        let Some(there) = sink.links.get_mut(link) else { return };
        let tenant = there.principal.tenant.clone();
        let account = AccountKey { tenant, channel: hello.channel.clone(), account: hello.account.clone() };
        let is_known = self.accounts.contains_key(&account);
        let links = self.accounts.get(&account).map_or(0, |served| served.lease.link_count());
        if links >= limits::ADAPTER_LINKS_MAX || !is_known && self.accounts.len() >= limits::ADAPTER_ACCOUNTS_MAX {
            let refusal = Refusal::new(Code::RateLimited, "too many adapters of this account, or at this node");
            sink.stats.refused.add(refusal.code as usize);
            let refusal = Box::new(refusal.retry_after(limits::RUNNER_WAIT));
            return sink.notify(link, Notification::LimitReached(refusal));
        }
        there.adapter = Some(Box::new(account.clone()));
        let served = self.accounts.entry(account.clone()).or_insert_with(|| ServedAccount::new(&account));
        served.lease.add(context.now, link, hello);
        served.empty_since = None;
        sink.notify(link, Notification::AdapterState(served.lease.state_of(link)));
        if let Some(bot) = hello.platform_bot_id.clone() {
            let AccountKey { tenant, channel, .. } = account;
            sink.store(Op::Get { name: BotKey { tenant, channel, bot }.name() });
        }
        self.handle_timeout(context, sink);
    }

    /// Removes the connection of an adapter: what it was given and did not answer may have been sent.
    pub(super) fn disconnect(
        &mut self,
        context: AdapterContext,
        link: LinkId,
        account: &AccountKey,
        sink: &mut EffectSink,
    ) {
        let Some(served) = self.accounts.get_mut(account) else { return };
        let recognises = served.recognises_key(link);
        let mut effects = Vec::new();
        if let Some(desk) = &mut served.desk {
            desk.give_up(context.now, Some(link), recognises, &mut effects);
        }
        served.lease.remove(link).into_iter().for_each(|op| sink.store(op));
        // The desk is kept for a while: an adapter that is back soon may report what it has sent.
        served.empty_since = served.lease.is_empty().then_some(context.now.mono);
        self.perform(context.now, effects, sink);
        self.handle_timeout(context, sink);
    }

    // === commands ===

    /// Handles an effect of another part.
    pub(super) fn handle_effect(&mut self, context: AdapterContext, command: AdaptersCommand, sink: &mut EffectSink) {
        match command {
            AdaptersCommand::Inbound { link, inbound } => self.handle_inbound(context.now, link, *inbound, sink),
            AdaptersCommand::Delivered { link, delivered } => self.handle_delivered(context, link, delivered, sink),
            AdaptersCommand::SetCapabilities { link, change } => self.set_capabilities(link, *change, sink),
            AdaptersCommand::Account { link, request_id, command } => {
                let parts = (&mut self.pauses, &mut self.lookups);
                accounts::ask(parts, context.now, AccountAsker { link, request_id }, command, sink);
            }
            AdaptersCommand::CheckPlacement { link, bind } => {
                accounts::check_placement(&mut self.lookups, link, bind, sink);
            }
            AdaptersCommand::UseBinding { number, result } => self.use_binding(context.now, number, result, sink),
            AdaptersCommand::UseAnswers { number, answers } => self.use_answers(number, answers, sink),
            AdaptersCommand::PrepareFiles { link, files } => self.prepare_files(link, *files, sink),
            AdaptersCommand::UseFilesBinding { link, number, result } => {
                let Some(account) = account_of(link, sink) else { return self.files.forget(number) };
                self.files.use_binding(number, &account, result, sink);
            }
            AdaptersCommand::UsePhase { number, phase } => self.files.use_phase(number, phase, sink),
            AdaptersCommand::Send(order) => {
                let mut effects = Vec::new();
                self.orders.add(context.now, order, &mut effects);
                self.send_orders(context, effects, sink);
            }
            AdaptersCommand::Turn { turn, event } => self.handle_turn(context, turn, event, sink),
            AdaptersCommand::ForgetSession(key) => {
                self.orders.forget_session(&key);
                self.signals.forget_session(&key);
            }
            AdaptersCommand::Withdraw { key, delivery_id } => self.orders.withdraw(key, delivery_id),
        }
    }

    fn handle_inbound(&mut self, now: Now, link: LinkId, inbound: InboundCommand, sink: &mut EffectSink) {
        let Some(account) = account_of(link, sink) else {
            return refuse_stranger(link, inbound.request_id, sink);
        };
        if AccountKey::of(&account.tenant, &inbound.conversation) != account {
            return refuse_foreign_place(link, inbound.request_id, sink);
        }
        let Some(served) = self.accounts.get(&account) else { return };
        let capabilities = served.lease.capabilities_of(link);
        let text_limit = capabilities.map(|it| it.text_limit(&inbound.conversation)).unwrap_or_default();
        let buttons = capabilities.and_then(|it| it.button_level(&inbound.conversation));
        // With the binding that ended last, but without the parent's, which is never used.
        let conversation = ConversationRef { parent_conversation_id: None, ..inbound.conversation.clone() };
        let command = BindingCommand::Resolve { conversation, explain: true };
        let request_id = inbound.request_id.clone();
        let settings = self.directory.channels.settings(&account.channel);
        let settings = ChannelSettings { debounce: settings.debounce.filter(|_| self.may_gather), ..settings };
        let stage = InboundStage::Lookup;
        let pending = PendingInbound { link, inbound, text_limit, buttons, settings, arrived_at: now.store, stage };
        let number = self.inbound.add(pending);
        sink.push(BindingsCommand::Perform { link, request_id, command, purpose: AskPurpose::Inbound(number) });
    }

    fn prepare_files(&mut self, link: LinkId, files: PrepareFilesCommand, sink: &mut EffectSink) {
        let Some(account) = account_of(link, sink) else { return refuse_stranger(link, files.request_id, sink) };
        let is_own = AccountKey::of(&account.tenant, &files.conversation) == account;
        if !is_own && !planted(Planted::FilesForeignAccount) {
            return refuse_foreign_place(link, files.request_id, sink);
        }
        self.files.begin(link, files, sink);
    }

    fn set_capabilities(&mut self, link: LinkId, change: CapabilitiesCommand, sink: &mut EffectSink) {
        let CapabilitiesCommand { request_id, conversation, capabilities } = change;
        let Some(account) = account_of(link, sink) else { return refuse_stranger(link, request_id, sink) };
        if conversation.as_ref().is_some_and(|place| AccountKey::of(&account.tenant, place) != account) {
            return refuse_foreign_place(link, request_id, sink);
        }
        let Some(served) = self.accounts.get_mut(&account).filter(|served| served.lease.has_link(link)) else { return };
        let write = served.lease.set_capabilities(link, conversation, capabilities);
        write.into_iter().for_each(|op| sink.store(op));
        sink.notify(link, Notification::Reply(CommandReply::CapabilitiesSet { request_id }));
    }

    /// Continues with an event whose conversation was looked up.
    fn use_binding(&mut self, now: Now, number: u64, result: Result<PlaceBindings, Refusal>, sink: &mut EffectSink) {
        let Some(pending) = self.inbound.take(number) else { return };
        let link = pending.link;
        let Some(account) = account_of(link, sink) else { return };
        let result = match result {
            Ok(bindings) => pending.decide(now, &account, bindings),
            Err(refusal) => pending.handle_refusal(refusal),
        };
        self.perform_inbound(link, result, sink);
    }

    /// Continues with a message that was looked for in an earlier session of its conversation. Returns whether a message
    /// was looked for.
    pub(super) fn handle_found(
        &mut self,
        now: Now,
        link: LinkId,
        run_id: &RunId,
        result: &Result<Reply, StoreError>,
        sink: &mut EffectSink,
    ) -> bool {
        if let Some(step) = self.changes.use_answer(link, run_id, result) {
            self.perform_change(link, step, sink);
            return true;
        }
        let Some(message) = self.inbound.take_searched(link, run_id) else { return false };
        let Some(account) = account_of(link, sink) else { return true };
        match result {
            Ok(Reply::Found(_)) => {
                let receipt = message.duplicate_receipt(run_id.clone());
                self.perform_inbound(link, InboundResult::Done(receipt), sink);
            }
            // The records of a damaged session cannot be read, and the session runs nothing.
            Ok(Reply::Refused(StoreRefusal::NotFound | StoreRefusal::Damaged)) => {
                self.perform_inbound(link, message.search_or_submit(now, &account), sink);
            }
            Ok(_) | Err(StoreError::Unknown | StoreError::Unavailable) => {
                sink.refuse(link, message.pending.inbound.request_id, None, None, queries::unavailable());
            }
        }
        true
    }

    fn perform_inbound(&mut self, link: LinkId, result: InboundResult, sink: &mut EffectSink) {
        match result {
            InboundResult::Turn(turn, touched) => {
                touched.into_iter().for_each(|op| sink.store(op.into()));
                sink.push(PartEffect::SubmitInbound(turn));
            }
            InboundResult::Search(message, search) => {
                let EarlierTurn { key, principal, run_id, fence } = search;
                self.inbound.add_searched(run_id.clone(), message);
                sink.store(Op::Find { key, principal, run_id, link, fence });
            }
            InboundResult::Changed(changed) => {
                let step = self.changes.begin(*changed);
                self.perform_change(link, step, sink);
            }
            InboundResult::Press(press) => {
                let step = self.presses.begin(*press);
                self.perform_press(step, sink);
            }
            InboundResult::Cancel(cancel) => sink.push(PartEffect::CancelInbound(cancel)),
            InboundResult::Refused(pending, refusal) => {
                sink.refuse(link, pending.inbound.request_id, None, None, refusal);
            }
            InboundResult::Change(pending, command) => {
                let request_id = pending.inbound.request_id.clone();
                let purpose = AskPurpose::Inbound(self.inbound.add(pending));
                sink.push(BindingsCommand::Perform { link, request_id, command, purpose });
            }
            InboundResult::Stale(receipt) => {
                sink.stats.stale_messages += 1;
                sink.notify(link, Notification::Reply(CommandReply::InboundAccepted(Box::new(receipt))));
            }
            InboundResult::Done(receipt) => {
                sink.notify(link, Notification::Reply(CommandReply::InboundAccepted(Box::new(receipt))));
            }
        }
    }

    /// Continues with a press, whose answer was looked for in the state of a session.
    fn use_answers(&mut self, number: u64, answers: Result<Vec<RecentDelivery>, Refusal>, sink: &mut EffectSink) {
        if let Some(step) = self.presses.use_answers(number, answers) {
            self.perform_press(step, sink);
        }
    }

    fn perform_press(&mut self, step: PressStep, sink: &mut EffectSink) {
        match step {
            PressStep::Read { number, link, key } => {
                let purpose = SnapshotPurpose::Press(number);
                sink.push(DeliveryCommand::AwaitState { key, link, request_id: None, purpose });
            }
            PressStep::Result(link, result) if account_of(link, sink).is_some() => {
                self.perform_inbound(link, *result, sink);
            }
            PressStep::Result(..) => {}
        }
    }

    fn perform_change(&mut self, link: LinkId, step: ChangeStep, sink: &mut EffectSink) {
        match step {
            ChangeStep::LookUp(op) => sink.store(op),
            // Nobody waits for the answer any more: the adapter's next connection brings the event again.
            ChangeStep::Result(_) if account_of(link, sink).is_none() => {}
            ChangeStep::Result(result) => self.perform_inbound(link, *result, sink),
            ChangeStep::Unavailable(request_id) => sink.refuse(link, request_id, None, None, queries::unavailable()),
        }
    }

    fn handle_delivered(
        &mut self,
        context: AdapterContext,
        link: LinkId,
        delivered: DeliveredCommand,
        sink: &mut EffectSink,
    ) {
        let Some(account) = account_of(link, sink) else {
            return refuse_stranger(link, None, sink);
        };
        let Some(served) = self.accounts.get_mut(&account) else { return };
        let mut effects = Vec::new();
        let pause = served.handle_delivered(context.now, (link, delivered), &mut effects);
        served.send_queued(context, &mut effects);
        self.perform(context.now, effects, sink);
        if let Some(op) = pause.and_then(|pause| self.pauses.pause(&account, pause)) {
            sink.store(op);
        }
    }

    // === orders ===

    /// Handles an order of a session's owner, which may be this node.
    pub(super) fn handle_order(
        &mut self,
        context: AdapterContext,
        from: NodeId,
        order: Arc<DeliveryOrder>,
        sink: &mut EffectSink,
    ) {
        let account = order.account();
        let mut effects = Vec::new();
        let answered = order.reply_to.as_ref().filter(|_| order.kind != DeliveryKind::Conversation);
        if let (Some(served), Some(message)) = (self.accounts.get_mut(&account), answered) {
            served.sealed.seal(preview_id(&order.key, &order.conversation, message));
        }
        let served = self.accounts.get(&account);
        let sending = served.and_then(|served| served.sending_link(context));
        let mut is_supported = served.is_some_and(|served| served.supports(context, &order));
        let takes_files = served.is_some_and(|served| served.takes_files(context, &order));
        let mut order = order;
        if !is_supported && planted(Planted::UnsupportedChangeSent) {
            is_supported = true;
            order =
                Arc::new(DeliveryOrder { kind: DeliveryKind::Notice, change: None, ..DeliveryOrder::clone(&order) });
        }
        match (sending, self.accounts.get_mut(&account).and_then(|served| served.desk.as_mut())) {
            (Some(link), Some(desk)) => {
                let received = ReceivedOrder { from, order, is_supported, takes_files };
                desk.accept(context.now, received, link, &mut effects);
            }
            (_, _) => {
                // The store may still name a connection of this node that is gone.
                if self.checks.insert(account.clone()) || planted(Planted::LeaseTakenByEveryReply) {
                    sink.store(Op::Get { name: lease::lease_name(&account) });
                }
                sink.send_peer(from, PeerMessage::NoAdapter { account: Arc::new(account) });
            }
        }
        self.perform(context.now, effects, sink);
    }

    /// Handles what became of a part of a session that this node owns.
    pub(super) fn handle_report(
        &mut self,
        context: AdapterContext,
        key: SessionKey,
        report: DeliveryReport,
        sink: &mut EffectSink,
    ) {
        let mut effects = Vec::new();
        // A receipt counts also if the order was answered before.
        let is_receipt = matches!(report.outcome, DeliveryOutcome::Sent { .. });
        if self.orders.finish(context.now, &key, &report, &mut effects) || is_receipt {
            sink.push(OwnershipCommand::Report { key, input: RuntimeInput::Delivery(report) });
        }
        self.send_orders(context, effects, sink);
    }

    /// Handles that an adapter of an account has arrived at some node.
    pub(super) fn handle_arrived(&mut self, context: AdapterContext, account: &AccountKey, sink: &mut EffectSink) {
        let mut effects = Vec::new();
        self.orders.adapter_arrived(context.now, account, &mut effects);
        self.send_orders(context, effects, sink);
    }

    /// Handles that a node has no adapter that sends for an account.
    pub(super) fn handle_no_adapter(&mut self, now: Now, from: NodeId, account: &AccountKey, sink: &mut EffectSink) {
        self.orders.adapter_failed(now, account, from);
        wake_soon(now, sink);
    }

    /// Handles that a message did not reach a node.
    pub(super) fn handle_unreachable(&mut self, now: Now, node: NodeId, sink: &mut EffectSink) {
        self.orders.handle_unreachable(now, node);
        if self.orders.len() > 0 {
            wake_soon(now, sink);
        }
    }

    // === signals ===

    /// Handles an event of a turn of this node's sessions.
    fn handle_turn(
        &mut self,
        context: AdapterContext,
        turn: (SessionKey, DeliveryId),
        event: TurnEvent,
        sink: &mut EffectSink,
    ) {
        let mut effects = Vec::new();
        self.signals.handle_event(context.now, turn, event, &mut self.orders, &mut effects);
        self.send_signals(context, effects, sink);
    }

    /// Sends signals, unless a node of the fleet does not know them. Without a lease of its own, a node owns nothing.
    fn send_signals(&mut self, context: AdapterContext, effects: Vec<SignalEffect>, sink: &mut EffectSink) {
        if !self.signals.is_empty() {
            wake_soon(context.now, sink);
        }
        for effect in effects {
            match effect {
                SignalEffect::Send { to, signal } if context.may_own && (self.may_publish || to == self.me) => {
                    sink.send_peer(to, PeerMessage::Signal { signal: Arc::new(signal) });
                }
                SignalEffect::Send { .. } => {}
                SignalEffect::LookUp(order) => self.send_orders(context, vec![order], sink),
            }
        }
    }

    /// Handles a signal of a session's owner, which may be this node.
    pub(super) fn handle_signal(
        &mut self,
        context: AdapterContext,
        from: NodeId,
        signal: Arc<ConversationSignal>,
        sink: &mut EffectSink,
    ) {
        let account = signal.account();
        let sending = self.accounts.get(&account).and_then(|served| served.sending_link(context));
        let (Some(sending), Some(served)) = (sending, self.accounts.get_mut(&account)) else {
            return sink.send_peer(from, PeerMessage::NoAdapter { account: Arc::new(account) });
        };
        let Some(capabilities) = served.lease.capabilities_of(sending.link) else { return };
        let shows_previews = capabilities.shows_previews(&signal.conversation);
        let is_shown = match &signal.kind {
            SignalKind::Typing { .. } => capabilities.shows_typing(&signal.conversation),
            SignalKind::Preview(preview) if !shows_previews => {
                let key = signal.key.clone();
                let preview_id = preview.preview_id.clone();
                return sink.send_peer(from, PeerMessage::PreviewUnwanted { key, preview_id });
            }
            SignalKind::Preview(preview) => {
                preview.deadline > context.now.store && !served.sealed.has(&preview.preview_id)
            }
            SignalKind::RemovePreview { preview_id } => {
                served.sealed.seal(preview_id.clone());
                shows_previews
            }
        };
        if is_shown {
            sink.stats.signals_sent.add(signal_index(&signal.kind));
            sink.notify(sending.link, Notification::Signal(signal));
        }
    }

    /// Handles that an adapter shows no previews in a conversation.
    pub(super) fn handle_preview_unwanted(&mut self, key: &SessionKey, preview_id: &DeliveryId) {
        self.signals.handle_unwanted(key, preview_id);
    }

    // === the store ===

    /// Handles the reply to a read or a write of a value of adapters.
    pub(super) fn handle_value(
        &mut self,
        context: AdapterContext,
        op: Op,
        result: Result<Reply, StoreError>,
        sink: &mut EffectSink,
    ) {
        let (Op::Get { name } | Op::Put { name, .. }) = &op else { return };
        if let Some(bot) = BotKey::parse(name) {
            return self.handle_claim(context, (&bot, op), result, sink);
        }
        let Some(tenant) = paused_list::parse_list_name(name) else {
            return self.handle_lease(context, op, result, sink);
        };
        let stored =
            if let Ok(Reply::Value { version, value }) = &result { Some((*version, value.as_deref())) } else { None };
        let mut effects = Vec::new();
        self.pauses.use_list(&tenant, stored, &mut effects);
        accounts::perform(context.now, effects, sink);
    }

    /// Handles the reply to a read or a write of a lease.
    fn handle_lease(
        &mut self,
        context: AdapterContext,
        op: Op,
        result: Result<Reply, StoreError>,
        sink: &mut EffectSink,
    ) {
        let now = context.now;
        let (Op::Get { name } | Op::Put { name, .. }) = &op else { return };
        let Some(account) = lease::parse_name(name) else { return };
        self.checks.remove(&account);
        let mut pauses = Vec::new();
        let Ok(Reply::Value { version, value }) = result else {
            self.orders.handle_lookup_failed(now, &account);
            self.pauses.handle_failure(&account, &op, &mut pauses);
            accounts::perform(now, pauses, sink);
            if let Op::Put { .. } = op {
                // A lease that nobody gives up would keep every other adapter from sending.
                sink.retry(now, op);
            } else {
                let mut lookups = Vec::new();
                self.lookups.handle_failure(&account, &mut lookups);
                accounts::perform_lookups(lookups, sink);
            }
            return wake_soon(now, sink);
        };
        if let (Op::Put { .. }, Some(served)) = (&op, self.accounts.get_mut(&account)) {
            served.lease.handle_written();
        }
        let stored = StoredAccount::read(value.as_deref());
        let mut orders = Vec::new();
        self.orders.use_lease(now, &account, &stored, &mut orders);
        self.pauses.use_value(&account, &op, (version, value.as_deref()), &mut pauses);
        let mut lookups = Vec::new();
        let place = self.place_of_holder(context, &account, &stored);
        self.lookups.use_value(now, &account, (&stored, place), &mut lookups);
        self.use_lease(context, &account, (version, stored), sink);
        accounts::perform(now, pauses, sink);
        accounts::perform_lookups(lookups, sink);
        self.send_orders(context, orders, sink);
        self.send_due_signals(context, sink);
    }

    fn place_of_holder(&self, context: AdapterContext, account: &AccountKey, stored: &StoredAccount) -> HolderPlace {
        let is_here = |link| self.accounts.get(account).is_some_and(|served| served.lease.has_link(link));
        match stored.lease.as_ref().and_then(LeaseRecord::holder) {
            Some((node, _)) if node != self.me => HolderPlace::Elsewhere(node),
            Some((_, link)) if is_here(link) && context.may_own => HolderPlace::Here,
            Some(_) | None => HolderPlace::Nowhere,
        }
    }

    fn use_lease(
        &mut self,
        context: AdapterContext,
        account: &AccountKey,
        (version, stored): (u64, StoredAccount),
        sink: &mut EffectSink,
    ) {
        let mut ops = Vec::new();
        let mut effects = Vec::new();
        let mut is_changed = false;
        if let Some(served) = self.accounts.get_mut(account) {
            is_changed = served.use_pause((version, &stored), &mut ops, &mut effects);
        }
        self.perform(context.now, std::mem::take(&mut effects), sink);
        if !ops.is_empty() {
            // The value may be older than the known one.
            return ops.into_iter().for_each(|op| sink.store(op));
        }
        let Some(served) = self.accounts.get_mut(account).filter(|served| !served.lease.is_empty()) else {
            // A connection that is gone holds the lease.
            if stored.node_id() == Some(self.me) {
                let value = StoredAccount { lease: None, ..stored }.to_value();
                sink.store(Op::Put { name: lease::lease_name(account), expect: version, value });
            }
            return;
        };
        let change = served.lease.use_value(context.now, (self.me, context.life), (version, stored), &mut ops);
        ops.into_iter().for_each(|op| sink.store(op));
        self.latest = self.latest.max(context.now.store);
        served.use_change(Now { store: self.latest, ..context.now }, &change, sink);
        if is_changed && change == LeaseChange::None {
            served.notify_links(sink);
        }
        if is_changed {
            sink.store(self.pauses.record(account, served.lease.pause().cloned()));
        }
        served.send_queued(context, &mut effects);
        // Owners look for the account anew, also if it is paused: they then know that nobody has their orders.
        if change == LeaseChange::Gained || is_changed && served.active_link(context).is_some() {
            self.announce(account, sink);
        }
        self.perform(context.now, effects, sink);
    }

    /// Handles the reply to a read or a write of the claim of a bot id.
    fn handle_claim(
        &mut self,
        context: AdapterContext,
        (bot, op): (&BotKey, Op),
        result: Result<Reply, StoreError>,
        sink: &mut EffectSink,
    ) {
        let is_put = matches!(op, Op::Put { .. });
        let Ok(Reply::Value { version, value }) = result else {
            // A claim that nobody gives up would keep every other account from sending. A read comes again with the lease.
            return if is_put {
                sink.retry(context.now, op)
            };
        };
        let reply = ClaimReply { version, value: value.as_deref(), is_put };
        let mut effects = Vec::new();
        self.bots.use_value(self.claiming(context), bot, reply, &mut self.accounts, &mut effects);
        self.perform_claims(context, effects, sink);
    }

    fn claiming(&self, context: AdapterContext) -> ClaimingNode {
        ClaimingNode { me: self.me, life: context.life, now: context.now }
    }

    fn perform_claims(&mut self, context: AdapterContext, effects: Vec<BotEffect>, sink: &mut EffectSink) {
        for effect in effects {
            match effect {
                BotEffect::Store(op) => sink.store(op),
                BotEffect::Refuse { account, link, refusal } => {
                    self.disconnect(context, link, &account, sink);
                    if let Some(there) = sink.links.get_mut(link) {
                        there.adapter = None;
                    }
                    sink.stats.refused.add(refusal.code as usize);
                    sink.notify(link, Notification::LimitReached(Box::new(refusal)));
                }
            }
        }
    }

    /// Handles whether a node has a lease: takes the leases of a dead one, and refuses connections whose bot id a living one
    /// has claimed for another account.
    pub(super) fn handle_lease_check(
        &mut self,
        context: AdapterContext,
        (node, is_alive): (NodeId, bool),
        sink: &mut EffectSink,
    ) {
        if !is_alive {
            self.handle_dead_node(context.now, node, sink);
        }
        let mut lookups = Vec::new();
        self.lookups.handle_lease_check(node, is_alive, &mut lookups);
        accounts::perform_lookups(lookups, sink);
        let mut effects = Vec::new();
        let checked = (node, is_alive);
        self.bots.handle_lease_check(self.claiming(context), checked, &mut self.accounts, &mut effects);
        self.perform_claims(context, effects, sink);
    }

    /// Handles that the store has not answered whether a node has a lease.
    pub(super) fn handle_lease_check_failed(&mut self, node: NodeId, sink: &mut EffectSink) {
        let mut lookups = Vec::new();
        self.lookups.handle_check_failed(node, &mut lookups);
        accounts::perform_lookups(lookups, sink);
    }

    fn handle_dead_node(&mut self, now: Now, node: NodeId, sink: &mut EffectSink) {
        for served in self.accounts.values_mut() {
            let mut ops = Vec::new();
            served.lease.use_dead_node(now, node, self.me, &mut ops);
            ops.into_iter().for_each(|op| sink.store(op));
        }
    }

    /// Tells every node that an account has an adapter here.
    fn announce(&mut self, account: &AccountKey, sink: &mut EffectSink) {
        let account = Arc::new(account.clone());
        sink.push(PartEffect::Peer(PeerMessage::AdapterArrived { account: Arc::clone(&account) }));
        if self.may_publish {
            sink.send_peer(ALL_NODES, PeerMessage::AdapterArrived { account });
        }
    }

    // === time ===

    /// Reads leases, repeats orders and gives up answers, as far as it is time to.
    pub(super) fn handle_timeout(&mut self, context: AdapterContext, sink: &mut EffectSink) {
        let now = context.now;
        self.latest = self.latest.max(now.store);
        let mut effects = Vec::new();
        let is_over = |since: Mono| now.mono - since >= limits::ADAPTER_DESK_KEPT;
        self.accounts.retain(|_, served| !served.empty_since.is_some_and(is_over));
        for served in self.accounts.values_mut() {
            if served.empty_since.is_none()
                && let Some(op) = served.lease.check(now)
            {
                sink.store(op);
            }
            let recognises = served.active_link(context).is_some_and(|link| link.recognises_key);
            if let Some(desk) = &mut served.desk {
                desk.give_up(now, None, recognises, &mut effects);
            }
            served.send_queued(context, &mut effects);
        }
        self.perform(now, effects, sink);
        let mut orders = Vec::new();
        self.orders.handle_timeout(now, &mut orders);
        self.send_orders(context, orders, sink);
        self.send_due_signals(context, sink);
        let due = self.accounts.values().filter_map(ServedAccount::next_deadline);
        // Signals of many turns are sent together.
        let signals = self.signals.next_deadline().map(|at| at.max(now.mono + WAKE_WITHIN));
        sink.timers.set_or_clear(Timer::Adapters, due.chain(self.orders.next_deadline()).chain(signals).min());
    }

    fn send_due_signals(&mut self, context: AdapterContext, sink: &mut EffectSink) {
        if self.signals.is_empty() {
            return;
        }
        let mut effects = Vec::new();
        self.signals.send_all_due(context.now, &mut self.orders, &mut effects);
        self.send_signals(context, effects, sink);
    }

    fn perform(&mut self, now: Now, effects: Vec<DeskEffect>, sink: &mut EffectSink) {
        if !effects.is_empty() {
            wake_soon(now, sink);
        }
        for effect in effects {
            match effect {
                DeskEffect::Send { link, message } => {
                    sink.stats.parts_sent += 1;
                    sink.notify(link, Notification::Deliver(Box::new(message)));
                }
                DeskEffect::Report { to, key, report } => {
                    sink.send_peer(to, PeerMessage::DeliveryReport { key, report: Arc::new(report) });
                }
            }
        }
    }

    /// Sends orders and reads leases. Without a lease of its own, a node owns nothing: its orders are repeated later, as
    /// parts that may have been sent.
    fn send_orders(&mut self, context: AdapterContext, effects: Vec<OrderEffect>, sink: &mut EffectSink) {
        if self.orders.len() > 0 {
            wake_soon(context.now, sink);
        }
        for effect in effects {
            match effect {
                OrderEffect::Send { to, order } if context.may_own => {
                    sink.send_peer(to, PeerMessage::Deliver { order });
                }
                OrderEffect::Send { .. } => {}
                OrderEffect::LookUp(op) => sink.store(op),
            }
        }
    }
}

/// Has the part look at its deadlines within a moment. The exact time is found then: finding it after each of many
/// thousand messages would cost more than looking twice a second.
fn wake_soon(now: Now, sink: &mut EffectSink) {
    sink.timers.set_earlier(Timer::Adapters, now.mono + WAKE_WITHIN);
}

/// Returns the account that a connection serves.
fn account_of(link: LinkId, sink: &EffectSink) -> Option<AccountKey> {
    sink.links.get(link).and_then(|there| there.adapter.as_deref()).cloned()
}

/// Returns whether a named value of the store belongs to this part.
pub(super) fn is_adapter_value(name: &str) -> bool {
    lease::is_lease(name) || paused_list::is_list(name) || bots::is_claim(name)
}

fn refuse_foreign_place(link: LinkId, request_id: Option<RequestId>, sink: &mut EffectSink) {
    let refusal = Refusal::new(Code::Forbidden, "the conversation belongs to another account");
    sink.refuse(link, request_id, None, None, refusal);
}

fn refuse_stranger(link: LinkId, request_id: Option<RequestId>, sink: &mut EffectSink) {
    let why = "only a connection with `role: \"adapter\"` brings messages of conversations";
    sink.refuse(link, request_id, None, None, Refusal::new(Code::Forbidden, why));
}

/// Returns the index of a signal's counter, in the order of [`crate::switchboard::SwitchboardStats::SIGNALS`].
fn signal_index(kind: &SignalKind) -> usize {
    match kind {
        SignalKind::Typing { .. } => 0,
        SignalKind::Preview(_) => 1,
        SignalKind::RemovePreview { .. } => 2,
    }
}
