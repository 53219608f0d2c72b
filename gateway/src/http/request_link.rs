//! Opens a link for a single HTTP request, and drops it with the answer. Notes for the link wait at the switchboard
//! under the same credit as any link's, and credit returns only as the client reads: a client that does not read costs
//! no more than one on a WebSocket.
use crate::auth::jwt::LEEWAY;
use crate::auth::{AuthProof, AuthenticatedClient};
use crate::http::{HttpContext, run_scope};
use crate::links::{CloseReason, MailboxHandle, MailboxItem, Pool, PoolPermit, SwitchboardGone};
use crate::rates::RateLimiter;
use crate::run_token::TokenRun;
use crate::socket::ClientWatch;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{Principal, SessionId, SessionKey};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::entry::{Fact, RunFact};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::time::Millis;
use turnway_wire::channel::command::{InvokeCommand, LinkCommand, SubscribeCommand};
use turnway_wire::channel::notification::{AcceptedTurn, CommandReply, Notification, RunSnapshot};

/// Longest wait of a request for its first answer. The store answers in milliseconds or not at all, and repeating the
/// request is safe: an accepted message stays accepted.
pub const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// A link that lasts as long as one HTTP request.
#[derive(Debug)]
pub struct RequestLink {
    context: Arc<HttpContext>,
    principal: Principal,
    mailbox: MailboxHandle,
    /// Rate limits of the credential.
    rates: RateLimiter,
    /// End of a token, leeway included, or of the time for which the token of a run was checked: a request cannot show
    /// another token. `None` for a key.
    credential_ends: Option<Millis>,
    /// The run whose token limits the link to its session.
    run: Option<TokenRun>,
    /// True if facts of the followed run may have been lost.
    must_follow_again: bool,
    /// Notes that have arrived and were not returned yet.
    ready_notes: VecDeque<Notification>,
    /// Weight of the notes that were returned and may not have been sent yet.
    delivered_weight: usize,
    /// Weight of the notes that were sent and not reported yet.
    unreported_weight: usize,
    /// The command to send if the client disconnects before its answer is complete.
    hang_up_command: Option<LinkCommand>,
    /// A watch on the client's connection.
    watch: Option<ClientWatch>,
}

/// The reason why the server ended the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkClosed {
    /// The client did not read the notes in time.
    Slow,
    /// The credential was revoked or has expired.
    Revoked,
    /// The process shuts down.
    Draining,
    /// The user has too many links or requests.
    OverLimit(Refusal),
}

/// The reason why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestFailure {
    /// The request was refused.
    Refused(Refusal),
    /// The link has ended.
    LinkClosed(LinkClosed),
    /// Nothing arrived within [`ANSWER_WAIT`]; the command may or may not have been performed.
    TimedOut,
}

// === impl RequestLink ===

impl RequestLink {
    /// Opens a link for an authenticated request.
    pub async fn open(context: Arc<HttpContext>, admitted: AuthenticatedClient) -> Result<Self, LinkClosed> {
        let mailbox = context.links.open();
        let rates = context.auth.rate_limiter(&admitted, context.clock.mono());
        let AuthenticatedClient { principal, proof, service: _, models: _ } = admitted;
        if let AuthProof::Key(key) = &proof {
            mailbox.set_credential(key.as_str());
        }
        if !planted(Planted::HttpShareUncounted) {
            mailbox.admit(Pool::Tcp, &principal).map_err(LinkClosed::OverLimit)?;
        }
        let now = context.clock.now();
        if !context.auth.still_admits(&proof, now.store) {
            return Err(LinkClosed::Revoked);
        }
        let ends = proof.expires().map(|end| end.after(LEEWAY));
        let mut link = Self::connect(context, principal, mailbox).await?;
        link.rates = rates;
        link.credential_ends = ends;
        Ok(link)
    }

    /// Opens a link for the node's own work, as this principal. No credential limits the link, and nobody's share counts it.
    pub async fn open_internal(context: Arc<HttpContext>, principal: Principal) -> Result<Self, LinkClosed> {
        let mailbox = context.links.open();
        Self::connect(context, principal, mailbox).await
    }

    /// Connects a mailbox to the switchboard, without limits.
    async fn connect(
        context: Arc<HttpContext>,
        principal: Principal,
        mailbox: MailboxHandle,
    ) -> Result<Self, LinkClosed> {
        context.commands.connect(mailbox.id(), principal.clone()).await?;
        Ok(Self {
            context,
            principal,
            mailbox,
            rates: RateLimiter::default(),
            credential_ends: None,
            run: None,
            must_follow_again: false,
            ready_notes: VecDeque::new(),
            delivered_weight: 0,
            unreported_weight: 0,
            hang_up_command: None,
            watch: None,
        })
    }

    /// Limits the link to the session of a run, if the run has not ended. The link closes before the next look at the run
    /// would be due.
    pub async fn limit_to_run(&mut self, run: TokenRun) -> Result<(), RequestFailure> {
        self.run = Some(run);
        self.check_run().await
    }

    /// Looks again whether the run has ended whose token limits the link, after a request that took long. Does nothing for
    /// any other credential.
    pub async fn check_run(&mut self) -> Result<(), RequestFailure> {
        let Some(TokenRun { run_id, .. }) = self.run.clone() else { return Ok(()) };
        self.credential_ends = None;
        let asked_at = self.context.clock.now().store;
        self.send(LinkCommand::FindRun { run_id }).await?;
        let found = |note| {
            if let Notification::Reply(CommandReply::RunLocation { ended, .. }) = note { Some(ended) } else { None }
        };
        let is_open = match self.wait_for(found).await {
            Ok(ended) => ended.is_none() || planted(Planted::RunTokenKept),
            // The session was deleted.
            Err(RequestFailure::Refused(refusal)) if refusal.code == Code::NotFound => false,
            Err(failure) => return Err(failure),
        };
        if !is_open {
            return Err(RequestFailure::LinkClosed(LinkClosed::Revoked));
        }
        self.credential_ends = Some(asked_at.after(run_scope::RUN_CHECK_MAX));
        Ok(())
    }

    /// Follows the session of the run whose token limits the link, so that [`Self::wait_run_ended`] learns of the run's end
    /// at once. Returns the run as it was at the beginning. Fails if the run has ended.
    pub async fn follow_run(&mut self) -> Result<Option<RunSnapshot>, RequestFailure> {
        let Some(TokenRun { run_id, .. }) = self.run.clone() else { return Ok(None) };
        let subscribe = SubscribeCommand {
            request_id: None,
            session: run_id.session(),
            after_seq: None,
            after_epoch: None,
            runs: Vec::new(),
            types: Vec::new(),
        };
        self.send(LinkCommand::Subscribe(subscribe)).await?;
        let subscribed = |note| {
            if let Notification::Reply(CommandReply::Subscribed { snapshot, .. }) = note {
                Some(snapshot)
            } else {
                None
            }
        };
        let snapshot = self.wait_for(subscribed).await?;
        // From here on the end is a fact that is sent to the link.
        self.check_run().await?;
        self.credential_ends = None;
        Ok(snapshot.runs.into_iter().find(|run| run.run_id == run_id))
    }

    /// Waits until the followed run is cancelled or has ended, or until the link ends. For ever without a run's token.
    /// Cancel-safe.
    pub async fn wait_run_ended(&mut self) -> LinkClosed {
        let Some(TokenRun { run_id, .. }) = self.run.clone() else { return std::future::pending().await };
        loop {
            if self.must_follow_again {
                if self.follow_run().await.is_err() {
                    return LinkClosed::Revoked;
                }
                self.must_follow_again = false;
            }
            match self.next_note().await {
                Err(closed) => return closed,
                Ok(Notification::Fact { entry, .. }) => {
                    let is_own = entry.run_id.as_ref() == Some(&run_id) && !planted(Planted::EndedRunCallsOn);
                    let is_cancelling = matches!(entry.fact, Fact::Run(RunFact::Cancelling { .. }));
                    if is_own && (entry.fact.is_terminal() || is_cancelling) {
                        return LinkClosed::Revoked;
                    }
                }
                // Facts were lost, or the session was deleted: the run is looked up again.
                Ok(Notification::Reply(
                    CommandReply::Subscribed { reset: Some(_), .. } | CommandReply::Refused { .. },
                )) => self.must_follow_again = true,
                Ok(
                    Notification::Chunk { .. }
                    | Notification::Reply(_)
                    | Notification::ProcessOutput { .. }
                    | Notification::Deliver(_)
                    | Notification::Signal(_)
                    | Notification::AdapterState(_)
                    | Notification::LimitReached(_)
                    | Notification::GoAway { .. },
                ) => {}
            }
        }
    }

    /// Returns the key of a session in the caller's tenant.
    pub fn session_key(&self, session: &SessionId) -> SessionKey {
        SessionKey { tenant: self.principal.tenant.clone(), session: session.clone() }
    }

    /// Returns the dependencies of a request.
    pub fn context(&self) -> &HttpContext {
        &self.context
    }

    /// Returns a shared handle of the dependencies, to open another link.
    pub fn context_handle(&self) -> Arc<HttpContext> {
        Arc::clone(&self.context)
    }

    /// Sets the watch that detects a disconnected client.
    pub fn set_watch(&mut self, watch: Option<ClientWatch>) {
        self.watch = watch;
    }

    /// Returns the watch on the client, if there is one.
    pub fn watch(&self) -> Option<ClientWatch> {
        self.watch.clone()
    }

    /// Sets the command to send if the client disconnects before its answer is complete.
    pub fn on_hang_up(&mut self, command: LinkCommand) {
        self.hang_up_command = Some(command);
    }

    /// Returns true if a command is sent when the client disconnects.
    pub fn has_hang_up_command(&self) -> bool {
        self.hang_up_command.is_some()
    }

    /// Marks the answer as complete: a disconnect sends no command any more.
    pub fn complete(&mut self) {
        self.hang_up_command = None;
    }

    /// Stops counting commands in rates: the request that they are a part of was counted.
    pub fn stop_counting(&mut self) {
        self.rates = RateLimiter::default();
    }

    /// Takes a slot among the requests that scan sessions or their logs; dropping the slot releases it.
    pub fn acquire_read_slot(&self) -> Result<PoolPermit, LinkClosed> {
        self.context.links.acquire(Pool::Reads, &self.principal).map_err(LinkClosed::OverLimit)
    }

    /// Takes a slot among the requests that transfer a blob; dropping the slot releases it.
    pub fn acquire_transfer_slot(&self) -> Result<PoolPermit, LinkClosed> {
        self.context.links.acquire(Pool::Blobs, &self.principal).map_err(LinkClosed::OverLimit)
    }

    /// Returns the authenticated principal.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Sends a command to the switchboard. A command over a rate limit is answered with a refusal instead.
    pub async fn send(&self, command: LinkCommand) -> Result<(), LinkClosed> {
        let beyond = self.run.as_ref().and_then(|run| run_scope::refuse_beyond(&run.run_id, &command));
        if let Some(refused) = beyond {
            self.context.links.send(self.mailbox.id(), refused);
            return Ok(());
        }
        if let Some(refused) = self.rates.check_command(&command, self.context.clock.mono()) {
            self.context.links.send(self.mailbox.id(), refused);
            return Ok(());
        }
        Ok(self.context.commands.send_command(self.mailbox.id(), command).await?)
    }

    /// Waits for the next note. The call confirms that all earlier notes were passed on, and only then does the
    /// switchboard send more. Cancel-safe.
    pub async fn next_note(&mut self) -> Result<Notification, LinkClosed> {
        self.unreported_weight += std::mem::take(&mut self.delivered_weight);
        if self.unreported_weight >= limits::LINK_REPORT_BYTES && !planted(Planted::HttpCreditKept) {
            self.context.commands.written(self.mailbox.id(), self.unreported_weight).await?;
            self.unreported_weight = 0;
        }
        loop {
            // A revoked or expired credential also ends the delivery of notes that have already arrived.
            let left = self.credential_remaining();
            if left.is_some_and(|left| left.is_zero()) {
                return Err(LinkClosed::Revoked);
            }
            if let Some(note) = self.try_next_note() {
                return Ok(note);
            }
            let item = match left {
                None => Ok(self.mailbox.recv().await),
                // Waits in steps, because the clock may step meanwhile.
                Some(left) => tokio::time::timeout(left.min(limits::HEARTBEAT), self.mailbox.recv()).await,
            };
            match item {
                Ok(MailboxItem::Notes(notes)) => self.ready_notes = notes,
                Ok(MailboxItem::Close(fate)) => return Err(fate.into()),
                // The clock is checked again above.
                Err(_) => {}
            }
        }
    }

    /// Returns for how long the credential is still good, by the present time.
    fn credential_remaining(&self) -> Option<Duration> {
        let left = |ends: Millis| ends.0.saturating_sub(self.context.clock.now().store.0);
        let ends = self.credential_ends.filter(|_| !planted(Planted::StreamOutlivesToken));
        ends.map(|ends| Duration::from_millis(left(ends)))
    }

    /// Returns the next note if it has already arrived, to be sent together with the one before.
    pub fn try_next_note(&mut self) -> Option<Notification> {
        // The mailbox holds nothing but the end of the link.
        if self.mailbox.must_close() {
            return None;
        }
        let note = self.ready_notes.pop_front()?;
        self.delivered_weight += note.weight();
        Some(note)
    }

    /// Waits up to [`ANSWER_WAIT`] for the first note that `fits`, or for a refusal of the command. Other notes are
    /// skipped.
    pub async fn wait_for<T>(&mut self, mut fits: impl FnMut(Notification) -> Option<T>) -> Result<T, RequestFailure> {
        let answered = async {
            loop {
                match self.next_note().await? {
                    Notification::Reply(CommandReply::Refused { refusal, .. }) => {
                        return Err(RequestFailure::Refused(refusal));
                    }
                    note @ (Notification::Fact { .. }
                    | Notification::Chunk { .. }
                    | Notification::Reply(_)
                    | Notification::ProcessOutput { .. }
                    | Notification::Deliver(_)
                    | Notification::Signal(_)
                    | Notification::AdapterState(_)
                    | Notification::LimitReached(_)
                    | Notification::GoAway { .. }) => {
                        if let Some(found) = fits(note) {
                            return Ok(found);
                        }
                    }
                }
            }
        };
        tokio::time::timeout(ANSWER_WAIT, answered).await.unwrap_or(Err(RequestFailure::TimedOut))
    }

    /// Invokes an agent and waits until the input is accepted. The notes that follow are those of the turn, from
    /// directly before its first fact, and everything else that happens in the session.
    pub async fn invoke(&mut self, invoke: InvokeCommand) -> Result<AcceptedTurn, RequestFailure> {
        self.send(LinkCommand::Invoke(Box::new(invoke))).await?;
        self.wait_for(|note| {
            if let Notification::Reply(CommandReply::TurnAccepted(accepted)) = note { Some(*accepted) } else { None }
        })
        .await
    }
}

impl Drop for RequestLink {
    fn drop(&mut self) {
        let last_word = self.hang_up_command.take().filter(|_| !planted(Planted::HangUpNotCancelled));
        self.context.commands.disconnect_detached(self.mailbox.id(), last_word);
    }
}

// === impl LinkClosed ===

impl From<SwitchboardGone> for LinkClosed {
    fn from(SwitchboardGone: SwitchboardGone) -> Self {
        Self::Draining
    }
}

impl From<CloseReason> for LinkClosed {
    fn from(fate: CloseReason) -> Self {
        match fate {
            CloseReason::SlowConsumer => Self::Slow,
            CloseReason::Revoked => Self::Revoked,
            CloseReason::Shutdown => Self::Draining,
        }
    }
}

// === impl RequestFailure ===

impl From<LinkClosed> for RequestFailure {
    fn from(parted: LinkClosed) -> Self {
        Self::LinkClosed(parted)
    }
}
