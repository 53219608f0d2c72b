//! Deliberate bugs of a running node, each of which one named test must detect (`tests/planted.txt`). Only builds
//! with the feature `planted` have them, no product build; otherwise [`planted`] is a constant `false` and each use
//! is compiled away. The bugs of [`crate::mutant`] are chosen for a thread, by the simulator; these for the process.

macro_rules! define_planted {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A deliberate bug, of a kind that a programmer could introduce.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Planted {
            $($(#[$doc])* $name,)*
        }

        #[cfg(feature = "planted")]
        impl Planted {
            /// Every deliberate bug, with its name as a value of [`VARIABLE`].
            pub const ALL: &'static [(&'static str, Self)] = &[$((stringify!($name), Self::$name),)*];
        }
    };
}

define_planted! {
    // --- calls of models ---
    /// A stream whose first event is an error is relayed, though another upstream could answer.
    FirstErrorRelayed,
    /// A call that got no answer in time is sent to the next upstream: it may be served twice.
    TimedOutCallRetried,
    /// A call whose connection broke is sent to the next upstream: it may be served twice.
    BrokenCallRetried,
    /// The upstream's words about a refused key, which repeat parts of it, reach the caller.
    KeyErrorRelayed,
    /// A failing upstream is asked by every call.
    ModelBreakerIgnored,
    /// A call waits for as long as an upstream asks for.
    ModelRetryAfterUncapped,
    /// The upstream's connection stays open after the caller has gone.
    StoppedCallGoesOn,
    /// A stream that was cut off ends as if it were complete.
    CutAnswerLooksWhole,
    /// A call of a run's token goes on after the run's end.
    EndedRunCallsOn,
    /// Open calls of models do not count in the shares of users and tenants.
    ModelCallsUncounted,
    /// Calls of models leave no record in the log of their run.
    RunCallsUnrecorded,
    /// The end of a call is not reported to the log of its run.
    CallEndUnreported,
    /// A call under a budget is made without a reservation.
    BudgetUnreserved,
    /// All that was reserved for a call counts as used.
    BudgetUnsettled,
    /// Any credential may call models.
    ModelScopeUnchecked,
    // --- deliveries to conversations ---
    /// Two deliveries to one place may be on their way at a time: an answer overtakes the one before it.
    DeliveryLanesCross,
    /// A press counts in whichever conversation it is reported: a stranger decides for the people of another one.
    PressFromElsewhere,
    /// An agent's edit changes the newest answer, whichever one the agent names.
    EditOfNewestAnswer,
    /// Each part of a deletion removes the first message of the answer.
    ChangeOfFirstTarget,
    /// An agent changes the answers of other conversations of its session.
    ChangeInOtherPlace,
    /// An edit that the adapter cannot make is sent as a new message.
    UnsupportedChangeSent,
    /// A change of a message is held if nobody knows whether the platform has it.
    UnknownChangeHeld,
    /// A message that cannot be changed any more ends all deliveries to its conversation.
    ChangeSuppressesPlace,
    /// An operator has an edit sent again after a later one, and the earlier text is back.
    OldEditRedriven,
    /// A run asks for any number of edits and reactions.
    RunChangesUnbounded,
    /// A reaction on its way holds back the previews of the conversation.
    ChangeHoldsPreviews,
    /// Presses of different people below one answer are taken for one, so that each is answered as the first.
    EveryPressCounts,
    /// A delivery to a place that has refused earlier ones for good is tried.
    SuppressedPlacesTried,
    /// A conversation that mirrors its session also gets the answers that go to other conversations, or to itself.
    MirrorTakesAnswers,
    /// A user sends a text to a conversation that is not bound to the session.
    SendLeavesBindings,
    /// Each read of an account that no connection serves leads to a further read or write of the account.
    LeaseTakenByEveryReply,
    /// A conversation is requested of an adapter that has not declared that it makes any.
    PlacementUnchecked,
    /// A conversation that the platform has made for a binding is forgotten before it is bound.
    MadeConversationForgotten,
    /// A message that a client sends again, because it got no answer, is another message.
    SendRepeated,
    /// The last word of a binding is requested again by an owner that finds it requested.
    FarewellRepeated,
    /// A message that is older than its channel allows starts a turn.
    StaleMessagesRun,
    /// The turn of a person who writes on and on in a channel with a debounce never starts.
    DebounceUncapped,
    /// A message that is brought again after the binding of its conversation has changed runs once more.
    InboundRunsTwice,
    /// A message whose copy was submitted by an older version of its conversation's binding runs in both sessions.
    LateCopyRuns,
    /// The place that an adapter reports is not compared with the place of the delivery.
    DeliveryPlaceUnchecked,
    /// A part in the wrong place does not pause its account: what follows goes to the wrong place as well.
    MisplacedSendsOn,
    /// A stored pause of an account has no effect on its adapter.
    PauseIgnored,
    /// All orders of an account are sent to its adapter's node at once.
    OrdersUnlimited,
    /// Two accounts with one platform bot id send at a time.
    BotIdUnclaimed,
    /// Several conversations are looked up without the present ids of those that were moved.
    LookupOfMovedIds,
    /// An accepted text is refused when it is repeated after its binding has ended, and an accepted request for a conversation
    /// when it is repeated after the adapter has left.
    RepeatedSendUnplaced,
    /// The lease of an account keeps the capabilities that its adapter declared first.
    CapabilitiesNotStored,
    /// An account is shown as served although the node of its adapter is dead.
    DeadAdapterShown,
    /// An adapter that has started again stands by until the end of its earlier connection.
    NewIncarnationWaits,
    /// A binding whose session cannot be looked at, because the store is away, is taken for a stale one.
    UncheckedBindingEnds,
    /// A routed delivery is sent although its binding has ended since.
    DeliveryStandingUnchecked,
    /// The end of a task that the router gives no place is shown in the conversation of the requester.
    TaskRefusedShown,
    /// An agent chooses the conversation that its task is said to come from.
    TaskRequesterForged,
    /// Agents give tasks in tasks without an end.
    TaskDepthUnbounded,
    /// A task goes on although the turn that gave it was cancelled.
    TaskOutlivesCancel,
    /// An edit of a message that its agent has is answered as a message of its own.
    LateEditAnswered,
    /// A preview that arrives after the answer is shown, and stays.
    LatePreviewShown,
    /// A user may create the session of a conversation before the conversation does, and reads what people write there.
    ConversationSessionOpen,
    /// A part that the platform refuses for good is tried again: the person who blocked the bot gets it every few minutes.
    DeliveryRefusalRetried,
    /// A part that may have been sent is sent again though nobody recognises it: it appears twice.
    DeliveryUnknownResent,
    /// A part that was not sent for certain counts as possibly sent: it is held where nobody recognises a repetition.
    DeliveryProofIgnored,
    /// A part that may have been sent counts as not sent: the platform is not asked whether it has the part.
    DeliveryDoubtForgotten,
    /// A receipt counts for the present attempt only: what a late one reports is sent again.
    DeliveryLateReceiptLost,
    /// A report on an attempt that is over counts: a held delivery fails by an old refusal.
    DeliveryLateRefusalCounts,
    /// A receipt counts for whichever part is next: a receipt that comes twice skips a part.
    DeliveryAnyPartReceipted,
    /// The receipt of a part is taken for the whole: further parts are never sent.
    DeliveryEndsAtFirstPart,
    /// A delivery has twice the age: an answer of the day before yesterday appears.
    DeliveryAgeDoubled,
    /// A part has any number of attempts.
    DeliveryAttemptsUnbounded,
    /// Attempts after the first are not recorded: each new owner counts them from the beginning.
    DeliveryAttemptUnrecorded,
    /// The time that a platform asks for is not waited.
    DeliveryRetryAfterIgnored,
    /// A refused credential is tried again like a passing error: platforms lock bots out for that.
    DeliveryAuthRetriedSoon,
    /// A delivery that is sent again by an operator is as old as it was: what was too old stays so.
    DeliveryRedriveKeepsAge,
    /// A delivery that is sent again by an operator begins with its first part.
    DeliveryRedriveRestarts,
    /// A delivery that is on its way may be sent again by an operator: it appears twice.
    DeliveryRedrivesPending,
    /// An order whose delivery was dropped stays with its adapter, which sends it.
    DeliveryDropNotWithdrawn,

    // --- the router of completions ---
    /// A binding of another account of the channel is chosen.
    RouterIgnoresAccount,
    /// A binding of an account with the same name on another channel is chosen.
    RouterIgnoresChannel,
    /// A binding of another session is chosen.
    RouterIgnoresSession,
    /// One of several bindings is chosen though the requester's conversation is none of theirs.
    RouterPicksSibling,
    /// A completion goes to the conversation that contains the bound one.
    RouterPicksParent,
    /// A completion goes to the requester though only bound conversations are allowed.
    RouterFallsBackClosed,
    /// A session whose bindings cannot be read counts as not bound.
    RouterUnavailableAsNone,
    /// The only binding of an account is chosen whatever the requester's conversation is.
    RouterOnlyBindingAnywhere,
    /// The only binding of a session is chosen without a requester.
    RouterRequesterUnneeded,

    // --- connections and addresses ---
    /// An address may have twice [`crate::limits::ADDRESS_CONNECTIONS_MAX`] connections: one host fills a node
    /// sooner.
    AddressBoundDoubled,
    /// A connection that ends still counts for its address: an office is locked out for ever after its hundredth
    /// connection.
    AddressNeverReleased,
    /// Only /64 networks count, not the /56 and /48 of one customer: the owner of such a network has 65,536 times the
    /// bound.
    WideNetsUncounted,
    /// Twice the bad credentials of [`crate::limits::AUTH_FAILURES_MAX`] are checked before an address is locked out.
    LockoutDoubled,
    /// The number of addresses remembered for bad credentials is unbounded: the owner of a network can fill the
    /// memory.
    LockoutTableUnbounded,
    /// An address that is locked out over HTTP may still log in over QUIC, and guess keys there.
    QuicLockoutUnchecked,
    /// A bad key in an HTTP request is not counted, so keys can be guessed over HTTP.
    HttpGuessUncounted,
    /// A bad token in `refresh` is not counted, so tokens can be guessed over an admitted connection.
    RenewalGuessUncounted,
    /// A connection slot of the node leaks with each connection over its address's limit: the node fills up for ever.
    CrowdedPlaceLost,
    /// A connection slot of the node leaks with each failed QUIC handshake: the node fills up for ever.
    QuicPlaceLost,
    /// A user's connections still count after they have ended: in the end the user cannot connect any more.
    ConnectionShareKept,
    /// QUIC connections count among TCP connections: clients of one transport shut out the other's.
    QuicSharesTcpPool,
    /// HTTP requests count for no user's share: one user can take all connections of a node.
    HttpShareUncounted,
    /// Notes that were shown to a link count against its mailbox for ever: each link ends as a slow consumer.
    MailboxWeightKept,
    /// A socket whose peer reads nothing is kept a hundred times as long: stalled requests fill a node.
    StalledSocketKept,
    /// A message may have twice the fragments: each fragment costs a frame of work for one byte.
    FragmentsDoubled,
    /// Twice the bad messages of [`crate::limits::BAD_MESSAGES_MAX`] are answered before a link is closed.
    BadMessagesDoubled,
    /// Any number of messages may wait before `welcome`.
    WaitingUnbounded,
    /// Written bytes are credited twice: a slow reader has twice the permitted bytes in flight.
    CreditTwice,
    /// A request that follows a `session_open` starts at once, before the session exists.
    OrderOvertaken,
    /// An early answer is shown early: a client takes it for the answer to an earlier request.
    OrderAnswersCross,
    /// A request that is never answered blocks its session for ever.
    OrderNeverPassesOver,
    /// Any number of requests may wait behind an unanswered one.
    OrderUnbounded,
    /// An answered request keeps its place in the order: no later request of the session starts.
    OrderPlaceKept,
    /// An HTTP request that reads a page counts for no user: one user keeps the store busy for all.
    ReadsUncounted,
    /// A read still counts after its end: in the end its user can read nothing any more.
    ReadsKept,
    /// A release that was refused removes the session from its node's registration cache: no node takes care of its
    /// input.
    RedisFencedReleaseForgets,
    /// A connection may outlive its token by twice the grace period.
    TokenGraceDoubled,
    /// A link that closes stays in the subscription counts: in the end its user cannot subscribe any more.
    SubscriptionsKept,
    /// A link's request counts as waiting after its answer: after 64 requests the link gets `rate_limited` for ever.
    AsksKept,

    // --- what a node holds for its users ---
    /// The content of a turn counts after the turn's end: after 256 MiB the node runs no turns any more.
    ContentKept,
    /// A session that its owner has given back still counts for its user: in the end the user cannot open sessions.
    SessionShareKept,
    /// A slot for an attempt leaks with each call of an HTTP agent: after 8,192 the node calls no agents any more.
    AttemptPlaceKept,
    /// An input counts against the quota of its sender, not of the user whose session stores it.
    QuotaOfTheAsker,
    /// Stored bytes count from zero after a restart: each restart renews the quota.
    QuotaForgottenAtStart,
    /// A deleted session's bytes still count: deleting frees no quota.
    QuotaKeptAtDeletion,
    /// A snapshot counts beside the snapshot that it replaces: one long session uses up its user's quota.
    QuotaOfEverySnapshot,
    /// A cached row is used although a change of the row is queued.
    CachedRowBeforeChange,
    /// A row that was read before a queued change is cached when the change is done.
    CachedRowOutdated,
    /// Inputs are accepted into the reserve of the disk: an accepted input can then not be ended.
    DiskReserveUsed,

    // --- how often ---
    /// A tenant's rate is counted for each of its keys: more keys give a higher rate.
    TenantRateByKey,
    /// Rates of absent users are remembered without a bound.
    RatesNeverForgotten,
    /// `refresh` may be sent without a limit: each one costs a signature check.
    RefreshUnlimited,
    /// `retry_after_ms` is rounded down: a client that waits exactly that long comes too early.
    RateWaitRoundedDown,
    /// Requests that stop work count as work: a flood of requests blocks its own cancel.
    CancelTakesWork,
    /// The rates that a fleet shares have one bucket for work and for reading: resuming is refused after much work.
    RedisRateOneLane,

    // --- the store of a fleet, and its bus ---
    /// A registration at one Redis server is assumed to exist at the next: no node finds the inputs there.
    RedisTrustsNewServer,
    /// Released sessions stay in the index of their node for the node's life: each sweep reads all of them.
    RedisLeftNeverCleared,
    /// Dead nodes count among the listeners of a session: after 64 of them no node may listen.
    RedisDeadListenersKept,
    /// Messages sent to other nodes count against the outbox for ever: after 16 MiB none is sent any more.
    BusOutboxBytesKept,
    /// Received messages count against the inbox for ever: after 32 MiB none is received any more.
    BusInboxBytesKept,
    /// Nodes that never came back stay in the list of nodes.
    RollKeepsTheGone,
    /// A leaving node hands its sessions to a node without a lease: the sessions have no owner until a sweep.
    HeirsMayBeDead,
    /// The bytes of an inbox are not written back when inputs end: after 1 MiB the session refuses every input.
    LuaInboxBytesKept,
    /// The bytes of an inbox are not added up, so the inbox has no bound in bytes.
    LuaInboxBytesUncounted,
    /// An inbox takes one input more than its bound.
    LuaInboxOneMore,
    /// A control lane has no bound.
    LuaControlUnbounded,
    /// A session may have twice the listeners of [`crate::limits::LISTENERS_MAX`].
    LuaListenersDoubled,
    /// A late `unlisten` undoes the `listen` after it: a node receives no facts of a session that it shows.
    LuaUnlistenUnstamped,
    /// The key with the leases of a dead node stays for ever.
    LuaLeaseKeyKept,
    /// Deleting a session leaves its facts.
    LuaDeletionKeepsLog,
    /// Message ids are forgotten while their facts are kept: a resent message opens another turn.
    LuaExpiresEarly,
    /// Facts without a snapshot of them are trimmed: the session cannot be opened any more.
    LuaTrimsPastSnapshot,
    /// The owner of a run is not checked: any user of a tenant learns that the run exists.
    LuaFindForeign,
    /// A registration is cleared though it was renewed since: no node finds its session.
    LuaUnregisterUnstamped,
    /// A value is written whatever its version: one of two concurrent key changes is lost.
    LuaPutAnyVersion,
    /// A deleted session is listed.
    LuaListsDeleted,
    /// A page of facts may have any number of bytes.
    LuaReadsWithoutRoom,
    /// Operations that a node let through of a shared rate are not added up: each node has the whole rate.
    LuaOweForgets,
    /// A bucket of a shared rate is kept for ever.
    LuaRateKeyKept,
    /// An input of a session without an owner is accepted without a registration: no sweep finds the input.
    LuaAcceptUnregistered,
    /// Bytes that a session has not yet counted for its user when the session is released are never counted.
    LuaReleaseUncounted,
    /// Bytes that a session has not yet counted do not count against the quota of the session's own inputs.
    LuaQuotaSeesSumsOnly,

    // --- agents ---
    /// A long piece's mark is repeated on each part of it: an agent that resumes leaves out text that was not
    /// recorded.
    MarkOnEveryStretch,
    /// An agent is read however much of its text is not recorded.
    UnsavedTextUnbounded,
    /// An agent that sends signs of life but no text times out as silent.
    AliveNotReported,
    /// All events that an agent is sent in a run have one idempotency key: the agent takes the second for a repeat.
    NewsWithRunKey,
    /// All inputs that a running agent is handed have one idempotency key: the agent takes the second for a repeat.
    SteerWithRunKey,
    /// An agent's answer may have any number of bytes.
    AgentBodyUnbounded,
    /// One event of an agent may have twice the bytes of [`crate::limits::AGENT_EVENT_BYTES_MAX`].
    AgentEventDoubled,
    /// An agent's `Retry-After` is not passed on.
    AgentRetryAfterIgnored,
    /// An agent's `Retry-After` is not capped.
    AgentRetryAfterUncapped,
    /// An agent that was resumed by a new owner is not sent a cancel, and works on without a purpose.
    ResumedNotCancelled,
    /// A run token is not checked for its signature: a client makes one for any run.
    RunTokenForged,
    /// A run token is accepted after the end of its run.
    RunTokenKept,
    /// A run token reads other sessions of its tenant.
    RunTokenUnscoped,
    /// An agent that died while answering is asked again on another connection: it does the work twice.
    AnsweredAskedAgain,
    /// A connection is kept though its server announced that it closes: the next request meets the close.
    KeepAliveNotHeeded,
    /// An agent whose health page reports a failure counts as healthy.
    IllAgentIsBack,
    /// Ended runs still count for the agent's connection: after 128 the connection is given no runs any more.
    DialinRunsKept,
    /// The connections of one tenant's agents may take all slots.
    DialinTenantTakesAll,
    /// Closed connections of agents are shown as open.
    DialinGaugeKept,
    /// An agent of one tenant is given the runs of another.
    DialinReachIgnored,
    /// An agent may send any number of bad messages.
    DialinBadForgiven,
    /// The answer of an agent that dials in may have any number of bytes.
    DialinBodyUncounted,
    /// The tool runners of one tenant may take all slots.
    RunnerTenantTakesAll,
    /// A tool runner of one tenant is given the actions of another.
    RunnerReachIgnored,
    /// A gap where output was left out is not reported.
    OutputGapHidden,

    // --- HTTP ---
    /// CORS does not let pages read when to try again.
    CorsExposesNothing,
    /// A cache may give one origin's answer to another origin.
    CorsVaryMissing,
    /// A refusal says when to try again in its body but not in its header.
    RetryAfterHeaderMissing,
    /// A body may have twice the permitted bytes.
    HttpBodyDoubled,
    /// A client that resumes by `Last-Event-ID` is not told that the store lost facts which the client has seen.
    LastEventIdWithoutEpoch,
    /// A page of facts may have any number of bytes.
    HttpPageUnbounded,
    /// A stream does not return its credit: it stalls after 256 KiB.
    HttpCreditKept,
    /// A stream continues after its token has expired.
    StreamOutlivesToken,
    /// A call that cannot be resumed runs on after its client has disconnected.
    HangUpNotCancelled,
    /// The room of long calls is never given back: after a hundred MiB of calls there is none.
    LongCallPlaceLost,
    /// Long calls are read however many there are: together they need more memory than a node has.
    LongCallsUncounted,
    /// A draining node accepts new turns.
    DrainTakesTurns,

    // --- keys and tokens ---
    /// A key that expires leaves its connections open.
    EndedKeyStays,
    /// Sessions of named calls are named without their user: a user's call may reach another user's session.
    CallNamesWithoutUser,
    /// The keys of an unreachable identity provider stay valid for ever.
    ProviderKeysKept,
    /// Each token that names an unknown key causes a request to the identity provider.
    ProviderAskedByAnyone,

    // --- files in sessions ---
    /// A client that goes away during an upload keeps its room: the user's quota fills with nothing.
    UploadRoomKept,
    /// Files of every media type are taken.
    BlobTypesIgnored,
    /// The bytes of a deleted session's files stay on the disk until somebody looks.
    BlobBytesLeft,
    /// A file is served as whatever its uploader says, without a sandbox: a page of a user acts on the gateway's origin.
    BlobUnsandboxed,
    /// The signature of a request to an S3-compatible store leaves out the host: the store refuses all of them.
    S3HostUnsigned,
    /// Only the first page of a session's objects is read: the bytes of a deleted session with many files stay for ever.
    S3PagesNotFollowed,
    /// The secret key appears in the log with a refused request.
    S3CredentialsLogged,
    /// An upload without a length is begun, and fails only after all of its bytes were sent.
    S3LengthGuessed,
    /// The token of a delivery's files is accepted after its end.
    FileTokenEndless,
    /// The token of a delivery's files opens those of each session of its tenant.
    FileTokenUnscoped,
    /// An agent gets the bare paths of files, which are no URLs for it.
    FileUrlsBare,
    /// The token of a run adds files to sessions of others, too.
    RunUploadsAnywhere,
    /// An adapter may add files for conversations of other accounts.
    FilesForeignAccount,
    /// Files of a bound conversation are added to its own session.
    FilesPreparedUnbound,
    /// A message may name files of a session that its conversation has left: the agent cannot read them.
    ForeignFilesTaken,
    /// The token for adding files adds them to each session of its tenant.
    UploadTokenUnscoped,
    /// The token of a delivery's files adds files, too.
    FileTokenWrites,
    /// The files of a refused call stay in its session: the user's quota fills with what no message refers to.
    CallFilesKept,
    /// A `data:` URL in an earlier message is passed on as it is: the inbox and the agent get all of its bytes in every attempt.
    EarlierDataUrlKept,
    /// An agent gets the address of another session's file as its earlier messages.
    HistoryOfAnotherSession,

    // --- what operators see ---
    /// Closed connections are shown as open.
    LinkGaugeKept,
    /// Answered ops are shown as waiting.
    StoreWaitingKept,
    /// `POST` is counted as `other`.
    PostCountedAsOther,
    /// A store that has come back is shown as unreachable: the node gets no work any more.
    StoreStaysAway,

    // --- the switchboard ---
    /// A node that listens to a session without showing it never unlistens: the owner keeps sending it every fact.
    NeverUnlistened,
    /// Retention trims the first fact of the open turn.
    TrimsFirstFact,
}

/// The environment variable that chooses a bug.
#[cfg(feature = "planted")]
pub const VARIABLE: &str = "TURNWAY_PLANTED";

#[cfg(feature = "planted")]
mod active {
    use super::{Planted, VARIABLE};
    use std::sync::OnceLock;

    static CHOSEN: OnceLock<Option<Planted>> = OnceLock::new();

    /// Returns whether this bug is active in this process. The environment is read once; an unknown name activates
    /// nothing here.
    pub fn planted(bug: Planted) -> bool {
        let chosen = || {
            let name = std::env::var(VARIABLE).ok()?;
            Planted::ALL.iter().find(|(known, _)| *known == name).map(|(_, bug)| *bug)
        };
        *CHOSEN.get_or_init(chosen) == Some(bug)
    }
}

#[cfg(feature = "planted")]
pub use active::planted;

/// Returns whether this bug is active: never, in a product build.
#[cfg(not(feature = "planted"))]
pub const fn planted(_: Planted) -> bool {
    false
}
