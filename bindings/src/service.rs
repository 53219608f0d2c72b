//! Performs requests about bindings: looks conversations up, binds them, and ends or changes bindings one after the other.
//! Does no IO; the store decides about each row, and the upkeep reports what was changed.
mod request;
mod several;

use request::{BindingRequest, BindingTask, RequestStep};
pub use request::{planned_bind, planned_binding};
use several::{SeveralLookups, SeveralStep};
use std::collections::{BTreeMap, VecDeque};
use turnway_core::id::{LinkId, Principal, RequestId, SessionKey};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::protocol::binding::{Binding, UnbindReason};
use turnway_core::protocol::conversation::{ConversationKey, ConversationRef};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::rng::Rng;
use turnway_core::store::binding::{BindingAction, BindingOutcome, BindingRow, ConversationState};
use turnway_core::store::{ConversationOp, ConversationReply, Op, OpTicket, Reply, StoreError, StoreRefusal};
use turnway_core::time::{Deadline, Now};
use turnway_wire::channel::binding::{
    BindCommand, BindingCandidate, BindingCommand, BindingReply, BindingResolution, BindingTarget, CandidateVerdict,
};

/// The maximum number of aliases that lead from one conversation to its present id: a platform moves a conversation once
/// in its life, and a loop of aliases must end.
const ALIASES_MAX: u32 = 4;

/// An input of the service.
#[derive(Clone, Debug)]
pub enum Input {
    /// A request of a link, whose principal may make it.
    Command { asker: BindingAsker, command: BindingCommand },
    /// A session was closed or deleted: its bindings end, with this reason.
    SessionGone { session: SessionKey, reason: UnbindReason },
    /// A reply to an op of the service.
    Stored { op: ConversationOp, ticket: OpTicket, result: Result<Reply, StoreError> },
}

/// An output of the service.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Perform an op.
    Store(Op),
    /// Perform an op again after a while: its outcome is not known.
    StoreLater(Op),
    /// A row was changed: sessions' logs have to record it.
    Changed { key: ConversationKey, row: Box<BindingRow> },
    /// Answer a request.
    Reply { asker: BindingAsker, reply: Result<BindingReply, Refusal> },
}

/// The link that waits for an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindingAsker {
    pub link: LinkId,
    pub request_id: Option<RequestId>,
    pub principal: Principal,
    pub purpose: AskPurpose,
}

/// The use of an answer. The numbers are the asking node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskPurpose {
    /// The link gets the answer.
    Request,
    /// An event of an adapter waits for the answer; the link is told what follows from it.
    Inbound(u64),
    /// An adapter that wants to add files waits for the binding of their conversation.
    Files(u64),
    /// A message to a conversation waits for the bindings of its session; the link is told what follows from them.
    Send(u64),
}

/// The store's reply to a change of a row.
struct RowReply {
    key: ConversationKey,
    action: BindingAction,
    outcome: BindingOutcome,
    row: Option<BindingRow>,
}

/// The requests of one node.
#[derive(Debug)]
pub struct BindingService {
    rng: Rng,
    /// Bounded by [`limits::LINK_REQUESTS_MAX`] for each link, and by the sessions that are closed at one time.
    requests: BTreeMap<OpTicket, BindingRequest>,
    waiting: BTreeMap<LinkId, usize>,
    last_ticket: u64,
    outputs: VecDeque<Output>,
}

impl BindingService {
    /// Creates the service of a node that has just started.
    pub fn new(rng: Rng) -> Self {
        Self { rng, requests: BTreeMap::new(), waiting: BTreeMap::new(), last_ticket: 0, outputs: VecDeque::new() }
    }

    /// Returns the number of requests that wait for the store; 0 when all is quiet.
    pub fn waiting_count(&self) -> usize {
        self.requests.len()
    }

    // === requests ===

    fn handle_command(&mut self, now: Now, asker: BindingAsker, command: BindingCommand) {
        let waiting = self.waiting.entry(asker.link).or_default();
        if *waiting >= limits::LINK_REQUESTS_MAX {
            let refusal = Refusal::new(Code::RateLimited, "too many requests are waiting on this connection");
            let reply = Err(refusal.retry_after(limits::STORE_RETRY_AFTER));
            return self.outputs.push_back(Output::Reply { asker, reply });
        }
        *waiting += 1;
        let tenant = asker.principal.tenant.clone();
        let principal = asker.principal.clone();
        let list = |session| {
            let session = SessionKey { tenant: tenant.clone(), session };
            ConversationOp::List { session, principal: Some(principal.clone()) }
        };
        let (step, op) = match command {
            BindingCommand::Bind(bind) => self.bind(principal.clone(), *bind),
            BindingCommand::Unbind { target: BindingTarget::Binding { scope, id }, reason, farewell } => {
                let task = BindingTask::Unbind { reason, farewell };
                let op = change(scope.key_of(&tenant, &id), task.action(now, id.generation, None));
                (RequestStep::change_one(task), op)
            }
            BindingCommand::Unbind { target: BindingTarget::Session(session), reason, farewell } => {
                (RequestStep::Find(BindingTask::Unbind { reason, farewell }), list(session))
            }
            BindingCommand::Touch { scope, id } => {
                let op = change(scope.key_of(&tenant, &id), BindingTask::Touch.action(now, id.generation, None));
                (RequestStep::change_one(BindingTask::Touch), op)
            }
            BindingCommand::Move { scope, id, to } => {
                let action = BindingAction::StartMove { generation: id.generation, to };
                (RequestStep::Move, change(scope.key_of(&tenant, &id), action))
            }
            BindingCommand::SetExpiry { target: BindingTarget::Binding { scope, id }, change: expiry } => {
                let step = RequestStep::FindOne(BindingTask::SetExpiry(expiry), id.generation);
                (step, change(scope.key_of(&tenant, &id), BindingAction::Resolve))
            }
            BindingCommand::SetExpiry { target: BindingTarget::Session(session), change: expiry } => {
                (RequestStep::Find(BindingTask::SetExpiry(expiry)), list(session))
            }
            BindingCommand::Resolve { conversation, explain } => {
                let op = change(conversation.key(&tenant), BindingAction::Resolve);
                (RequestStep::look_up(conversation, explain), op)
            }
            BindingCommand::ResolveAll { conversations } => {
                let (lookups, keys) = SeveralLookups::new(tenant, conversations);
                (RequestStep::LookUpAll(Box::new(lookups)), ConversationOp::Read { keys })
            }
            BindingCommand::List { session } => (RequestStep::List, list(session)),
        };
        self.begin(Some(asker), step, op);
    }

    fn bind(&mut self, principal: Principal, bind: BindCommand) -> (RequestStep, ConversationOp) {
        let key = bind.conversation.key(&principal.tenant);
        let new = request::new_binding(principal, bind, self.rng.next_u128());
        let action = BindingAction::Bind(Box::new(new.clone()));
        (RequestStep::Bind { new: Box::new(new), aliases: 0 }, change(key, action))
    }

    fn begin(&mut self, asker: Option<BindingAsker>, step: RequestStep, op: ConversationOp) {
        self.last_ticket += 1;
        let ticket = OpTicket(self.last_ticket);
        self.requests.insert(ticket, BindingRequest { asker, step, unknown_since: None });
        self.outputs.push_back(Output::Store(Op::Conversation { op, ticket: Some(ticket) }));
    }

    /// Continues a request with the next op.
    fn proceed(&mut self, ticket: OpTicket, request: BindingRequest, op: ConversationOp) {
        self.requests.insert(ticket, BindingRequest { unknown_since: None, ..request });
        self.outputs.push_back(Output::Store(Op::Conversation { op, ticket: Some(ticket) }));
    }

    /// Ends a request; nobody waits for the end of the gateway's own.
    fn reply(&mut self, request: BindingRequest, reply: Result<BindingReply, Refusal>) {
        let Some(asker) = request.asker else { return };
        if let Some(waiting) = self.waiting.get_mut(&asker.link) {
            *waiting -= 1;
            if *waiting == 0 {
                self.waiting.remove(&asker.link);
            }
        }
        self.outputs.push_back(Output::Reply { asker, reply });
    }

    // === replies of the store ===

    fn handle_stored(&mut self, now: Now, op: ConversationOp, ticket: OpTicket, result: Result<Reply, StoreError>) {
        let Some(request) = self.requests.remove(&ticket) else { return };
        match (op, result) {
            (
                ConversationOp::Change { key, action },
                Ok(Reply::Conversation(ConversationReply::Row { outcome, row })),
            ) => {
                let row = row.map(|row| *row);
                self.use_row(now, ticket, request, RowReply { key, action, outcome, row });
            }
            (ConversationOp::List { session, .. }, Ok(Reply::Conversation(ConversationReply::Bindings(bindings)))) => {
                self.use_list(now, ticket, request, &session, bindings);
            }
            (ConversationOp::Read { keys }, Ok(Reply::Conversation(ConversationReply::Rows(rows)))) => {
                self.use_rows(now, ticket, request, (keys, rows));
            }
            (_, Ok(Reply::Refused(refused))) => self.reply(request, Err(refusal_of(refused))),
            (op, Err(error)) => self.use_failure(now, ticket, request, op, error),
            (_, Ok(_)) => self.reply(request, Err(unconfirmed())),
        }
    }

    /// Tries again what may have been performed; reports what was not.
    fn use_failure(
        &mut self,
        now: Now,
        ticket: OpTicket,
        mut request: BindingRequest,
        op: ConversationOp,
        error: StoreError,
    ) {
        let is_own = request.asker.is_none();
        if !is_own && error == StoreError::Unavailable && request.unknown_since.is_none() && !request.has_changed() {
            let refusal = Refusal::new(Code::StoreUnavailable, "the store is unavailable; nothing was changed");
            return self.reply(request, Err(refusal.retry_after(limits::STORE_RETRY_AFTER)));
        }
        let since = *request.unknown_since.get_or_insert(now.mono);
        if !is_own && now.mono - since >= limits::STORE_OUTCOME_TIMEOUT {
            return self.reply(request, Err(unconfirmed()));
        }
        self.requests.insert(ticket, request);
        self.outputs.push_back(Output::StoreLater(Op::Conversation { op, ticket: Some(ticket) }));
    }

    fn use_row(&mut self, now: Now, ticket: OpTicket, mut request: BindingRequest, reply: RowReply) {
        let RowReply { key, action, outcome, row } = reply;
        let key = &key;
        if let Some(row) = row.as_ref().filter(|row| !row.reports.is_empty()) {
            self.outputs.push_back(Output::Changed { key: key.clone(), row: Box::new(row.clone()) });
        }
        let row = row.unwrap_or_default();
        match std::mem::replace(&mut request.step, RequestStep::List) {
            RequestStep::Bind { new, aliases } => match (outcome, &row.state) {
                (BindingOutcome::Applied, ConversationState::Bound(binding)) => {
                    self.reply(request, Ok(BindingReply::Bound(binding.clone())));
                }
                (_, ConversationState::Moved { to, .. }) if aliases < ALIASES_MAX => {
                    let mut new = new;
                    new.conversation.conversation_id = to.clone();
                    let op = change(key.sibling(to), BindingAction::Bind(new.clone()));
                    let step = RequestStep::Bind { new, aliases: aliases + 1 };
                    self.proceed(ticket, BindingRequest { step, ..request }, op);
                }
                _ => self.reply(request, not_applied(outcome, &row)),
            },
            RequestStep::Move if outcome == BindingOutcome::Applied => {
                let binding = row.active().cloned();
                self.outputs.push_back(Output::Changed { key: key.clone(), row: Box::new(row) });
                self.reply(request, Ok(BindingReply::Updated(binding.into_iter().collect())));
            }
            RequestStep::Move => self.reply(request, not_applied(outcome, &row)),
            RequestStep::FindOne(task, generation) if let ConversationState::Moved { to, .. } = &row.state => {
                let step = RequestStep::FindOne(task, generation);
                self.proceed(ticket, BindingRequest { step, ..request }, change(key.sibling(to), action));
            }
            RequestStep::FindOne(task, generation) => {
                match row.active().filter(|binding| binding.generation == generation) {
                    Some(binding) => {
                        let left = VecDeque::from([binding.clone()]);
                        let step =
                            RequestStep::Change { task, left, is_one: true, done: Vec::new(), ended: Vec::new() };
                        self.change_next(now, ticket, BindingRequest { step, ..request }, key);
                    }
                    None => self.reply(request, not_applied(BindingOutcome::NotApplied, &row)),
                }
            }
            step @ RequestStep::Change { .. } => {
                self.use_change(
                    now,
                    ticket,
                    BindingRequest { step, ..request },
                    RowReply { key: key.clone(), action, outcome, row: Some(row) },
                );
            }
            step @ RequestStep::LookUp { .. } => {
                self.use_lookup(now, ticket, BindingRequest { step, ..request }, key, &row);
            }
            RequestStep::Find(_) | RequestStep::LookUpAll(_) | RequestStep::List => {
                self.reply(request, Err(unconfirmed()));
            }
        }
    }

    /// Uses the rows of several conversations, which were read at one moment.
    fn use_rows(
        &mut self,
        now: Now,
        ticket: OpTicket,
        mut request: BindingRequest,
        (keys, rows): (Vec<ConversationKey>, Vec<Option<BindingRow>>),
    ) {
        let RequestStep::LookUpAll(lookups) = &mut request.step else {
            return self.reply(request, Err(unconfirmed()));
        };
        match lookups.use_rows(now.store, keys, rows) {
            SeveralStep::Read(keys) => self.proceed(ticket, request, ConversationOp::Read { keys }),
            SeveralStep::Found(found) => self.reply(request, Ok(BindingReply::ResolvedAll(found))),
            SeveralStep::Moving => self.reply(request, Err(moving())),
        }
    }

    /// Uses the reply to the change of one of a request's bindings.
    fn use_change(&mut self, now: Now, ticket: OpTicket, mut request: BindingRequest, reply: RowReply) {
        let RowReply { key, action, outcome, row } = reply;
        let row = row.unwrap_or_default();
        let RequestStep::Change { task, is_one, done, ended, .. } = &mut request.step else { return };
        if outcome == BindingOutcome::Applied {
            match task {
                BindingTask::Unbind { .. } => ended.extend(row.last_ended.as_deref().cloned()),
                BindingTask::Touch | BindingTask::SetExpiry(_) => done.extend(row.active().cloned()),
            }
        } else if let ConversationState::Moved { to, .. } = &row.state {
            // An alias leads to the row that has the binding; a row that is an alias takes none over.
            return self.proceed(ticket, request, change(key.sibling(to), action));
        } else if row.is_moving() && request.asker.is_none() {
            self.requests.insert(ticket, request);
            let op = change(key, action);
            return self.outputs.push_back(Output::StoreLater(Op::Conversation { op, ticket: Some(ticket) }));
        } else if *is_one || row.is_moving() {
            return self.reply(request, not_applied(outcome, &row));
        }
        self.change_next(now, ticket, request, &key);
    }

    fn use_list(
        &mut self,
        now: Now,
        ticket: OpTicket,
        mut request: BindingRequest,
        session: &SessionKey,
        bindings: Vec<Binding>,
    ) {
        let step = std::mem::replace(&mut request.step, RequestStep::List);
        let RequestStep::Find(task) = step else { return self.reply(request, Ok(BindingReply::Listed(bindings))) };
        let Some(first) = bindings.first() else {
            return self.reply(request, Ok(task.reply(Vec::new(), Vec::new())));
        };
        let key = first.conversation.key(&session.tenant);
        let left = bindings.into();
        let step = RequestStep::Change { task, left, is_one: false, done: Vec::new(), ended: Vec::new() };
        self.change_next(now, ticket, BindingRequest { step, ..request }, &key);
    }

    /// Performs a task on the next binding, or ends the request. `key` is that of any conversation of the tenant.
    fn change_next(&mut self, now: Now, ticket: OpTicket, mut request: BindingRequest, key: &ConversationKey) {
        let RequestStep::Change { task, left, done, ended, .. } = &mut request.step else { return };
        match left.pop_front() {
            Some(binding) => {
                let key = binding.conversation.key(&key.tenant);
                let op = change(key, task.action(now, binding.generation, Some(&binding.expiry)));
                self.proceed(ticket, request, op);
            }
            None => {
                let reply = task.reply(std::mem::take(done), std::mem::take(ended));
                self.reply(request, Ok(reply));
            }
        }
    }

    /// Uses a row that a lookup has read: the conversation's, that of its present id, or that of its parent.
    fn use_lookup(
        &mut self,
        now: Now,
        ticket: OpTicket,
        mut request: BindingRequest,
        key: &ConversationKey,
        row: &BindingRow,
    ) {
        let RequestStep::LookUp { conversation, explain, found, candidates, aliases, was_tended, is_parent } =
            &mut request.step
        else {
            return;
        };
        let is_over = |binding: &Binding| !binding.stands(now.store) && !planted(Mutant::ExpiredBindingFound);
        if !*was_tended && matches!(&row.state, ConversationState::Bound(binding) if is_over(binding)) {
            *was_tended = true;
            return self.proceed(ticket, request, change(key.clone(), BindingAction::Tend));
        }
        let verdict = match &row.state {
            _ if *is_parent => CandidateVerdict::Parent,
            ConversationState::Bound(_) | ConversationState::Moving { .. } => CandidateVerdict::Bound,
            ConversationState::Moved { .. } => CandidateVerdict::Moved,
            ConversationState::Free => CandidateVerdict::Unbound,
            ConversationState::Arriving { .. } => return self.reply(request, Err(moving())),
        };
        candidates.push(BindingCandidate {
            conversation: conversation.clone(),
            verdict,
            binding: row.active().cloned(),
            last_ended: row.last_ended.as_deref().cloned(),
        });
        if let ConversationState::Moved { to, .. } = &row.state
            && !*is_parent
        {
            *aliases += 1;
            if *aliases > ALIASES_MAX {
                return self.reply(request, Err(moving()));
            }
            conversation.conversation_id = to.clone();
            return self.proceed(ticket, request, change(key.sibling(to), BindingAction::Resolve));
        }
        if !*is_parent {
            *found = row.active().cloned();
        }
        let parent = conversation.parent_conversation_id.take().filter(|_| *explain && !*is_parent);
        if let Some(parent) = parent {
            *is_parent = true;
            *conversation = ConversationRef { conversation_id: parent, ..conversation.clone() };
            let key = conversation.key(&key.tenant);
            return self.proceed(ticket, request, change(key, BindingAction::Resolve));
        }
        let candidates = explain.then(|| std::mem::take(candidates));
        let resolution = BindingResolution { binding: found.take(), candidates };
        self.reply(request, Ok(BindingReply::Resolved(Box::new(resolution))));
    }
}

impl Machine for BindingService {
    type Input = Input;
    type Output = Output;

    fn handle_input(&mut self, now: Now, input: Input) {
        match input {
            Input::Command { asker, command } => self.handle_command(now, asker, command),
            Input::SessionGone { session, reason } => {
                let step = RequestStep::Find(BindingTask::Unbind { reason, farewell: false });
                self.begin(None, step, ConversationOp::List { session, principal: None });
            }
            Input::Stored { op, ticket, result } => self.handle_stored(now, op, ticket, result),
        }
    }

    fn handle_timeout(&mut self, _: Now) {}

    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        None
    }
}

/// Returns an op on one row.
fn change(key: ConversationKey, action: BindingAction) -> ConversationOp {
    ConversationOp::Change { key, action }
}

/// Returns the reply to a change that was not made.
fn not_applied(outcome: BindingOutcome, row: &BindingRow) -> Result<BindingReply, Refusal> {
    if outcome == BindingOutcome::TooManyReports {
        let why = "the conversation was bound too often in a short time; try again later";
        return Err(Refusal::new(Code::RateLimited, why).retry_after(limits::BINDING_REPORT_DUE));
    }
    if row.is_moving() {
        return Err(moving());
    }
    let old = row.last_ended.as_ref().filter(|_| planted(Mutant::RefusedBindNamesOld)).map(|old| old.binding.clone());
    Ok(BindingReply::NotApplied { current: old.or_else(|| row.active().cloned()).map(Box::new) })
}

/// Returns the refusal for a conversation whose row is changing its place: nothing is known until then.
fn moving() -> Refusal {
    let why = "the conversation is getting another id; try again later";
    Refusal::new(Code::StoreUnavailable, why).retry_after(limits::STORE_RETRY_AFTER)
}

/// Returns the refusal for a request whose outcome is not known.
fn unconfirmed() -> Refusal {
    let why = "the store has not confirmed the request, which may have been performed; repeat it";
    Refusal::new(Code::StoreUnavailable, why).retry_after(limits::STORE_RETRY_AFTER)
}

/// Returns the refusal of a request that the store refused.
fn refusal_of(refused: StoreRefusal) -> Refusal {
    match refused {
        StoreRefusal::NotFound => Refusal::not_found(),
        StoreRefusal::Closed => Refusal::new(Code::SessionClosed, "the session is closed; open it first"),
        StoreRefusal::TooMany => {
            let why = format!("the session has {} bindings, the maximum", limits::SESSION_BINDINGS_MAX);
            Refusal::new(Code::OverShare, why).retry_after(limits::QUOTA_RETRY_AFTER)
        }
        StoreRefusal::Damaged => {
            Refusal::new(Code::StoreDamaged, "records of this session are damaged; the session is quarantined")
        }
        StoreRefusal::Quota
        | StoreRefusal::Full
        | StoreRefusal::ReadOnly
        | StoreRefusal::Forbidden
        | StoreRefusal::Busy
        | StoreRefusal::Conflict => {
            let refusal = Refusal::new(Code::StoreUnavailable, "the store takes no bindings for now; try again later");
            refusal.retry_after(limits::STORE_RETRY_AFTER)
        }
    }
}

#[cfg(test)]
mod tests;
