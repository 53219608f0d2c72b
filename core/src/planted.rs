//! Planted bugs of whatever runs in a node: mistakes somebody could make, of which one named test has to go red. They exist
//! only with the feature `planted`, which no build of the product has; else [`planted`] is `false` and the compiler drops
//! every trace. Those of [`crate::mutant`] are chosen by thread, for the simulator; these by process.

macro_rules! define_planted {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A mistake somebody could make.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Planted {
            $($(#[$doc])* $name,)*
        }

        #[cfg(feature = "planted")]
        impl Planted {
            /// Every planted bug, by the name that [`VARIABLE`] chooses it by.
            pub const ALL: &'static [(&'static str, Self)] = &[$((stringify!($name), Self::$name),)*];
        }
    };
}

define_planted! {
    // --- connections and addresses ---
    /// An address may have twice the connections of [`crate::limits::ADDRESS_CONNECTIONS_MAX`]: one host fills a node sooner.
    AddressBoundDoubled,
    /// A connection that ends still counts for its address: an office is locked out for ever after its hundredth.
    AddressNeverReleased,
    /// Only /64 networks count, not the /56 and /48 that one customer has: 65,536 times the bound for whoever has those.
    WideNetsUncounted,
    /// Twice the bad credentials of [`crate::limits::AUTH_FAILURES_MAX`] are heard before an address is not.
    LockoutDoubled,
    /// Addresses are remembered without bound for their bad credentials: memory for whoever has a network.
    LockoutTableUnbounded,
    /// An address that is locked out over HTTP is heard over QUIC: keys are guessed there.
    QuicLockoutUnchecked,
    /// A bad key in an HTTP request is not counted: keys are guessed there.
    HttpGuessUncounted,
    /// A bad token in `refresh` is not counted: tokens are guessed over a connection that is let in.
    RenewalGuessUncounted,
    /// A place of the node is lost with each connection that its address may not have: the node fills up for ever.
    CrowdedPlaceLost,
    /// A place of the node is lost with each QUIC handshake that fails: the node fills up for ever.
    QuicPlaceLost,
    /// A user's connections count as held after they have ended: the user cannot come in any more.
    ConnectionShareKept,
    /// Connections by QUIC count among those of TCP: who comes by one transport shuts the other.
    QuicSharesTcpPool,
    /// Requests over HTTP count for nobody's share: one user takes all connections of a node.
    HttpShareUncounted,
    /// Notes that a link has been shown weigh on its mailbox for ever: each link ends as a slow consumer.
    MailboxWeightKept,
    /// A socket whose peer takes nothing is kept a hundred times as long: stalled requests fill a node.
    StalledSocketKept,
    /// A message may have twice the fragments: each costs a frame of work for a byte.
    FragmentsDoubled,
    /// Twice the bad messages of [`crate::limits::BAD_MESSAGES_MAX`] are answered before a link is closed.
    BadMessagesDoubled,
    /// Any number of messages waits before `welcome`.
    WaitingUnbounded,
    /// Written bytes are credited twice: a slow reader has twice the bytes under way that it may.
    CreditTwice,
    /// What is asked behind a `session_open` begins at once: the session is not there yet.
    OrderOvertaken,
    /// An answer that comes early is shown early: a client takes it for that of an earlier request.
    OrderAnswersCross,
    /// A request that is never answered holds up its session for ever.
    OrderNeverPassesOver,
    /// Any number of requests waits behind one that is not answered.
    OrderUnbounded,
    /// What was answered keeps its place: nothing about the session is begun any more.
    OrderPlaceKept,
    /// An HTTP request that reads a page counts for nobody: one user keeps the store busy for all.
    ReadsUncounted,
    /// A read counts after it is over: its user can read nothing any more.
    ReadsKept,
    /// A release that did not happen takes the session out of the book of its node: nobody looks after its input.
    RedisFencedReleaseForgets,
    /// A token lets a connection live twice the grace after its end.
    TokenGraceDoubled,
    /// A link that goes keeps its subscriptions in the books: its user cannot subscribe any more.
    SubscriptionsKept,
    /// What a link asked counts as waiting after its answer: it is answered `rate_limited` for ever after 64 requests.
    AsksKept,

    // --- what a node holds for its users ---
    /// The content of a turn counts after its end: the node runs nothing any more after 256 MiB.
    ContentKept,
    /// A session that its owner has given back counts for its user: the user cannot open any more.
    SessionShareKept,
    /// A place for an attempt is lost with each call of an HTTP agent: the node asks nobody any more after 8,192.
    AttemptPlaceKept,
    /// An input counts for the quota of whoever sends it, not of the user whose session keeps it.
    QuotaOfTheAsker,
    /// Stored bytes count from zero after a restart: the quota is had anew each time.
    QuotaForgottenAtStart,
    /// A deleted session's bytes count on: deleting frees no quota.
    QuotaKeptAtDeletion,
    /// A snapshot counts beside the one that it takes the place of: a long session uses up its user's quota by itself.
    QuotaOfEverySnapshot,
    /// Inputs are accepted into the reserve of the disk: what is accepted cannot be ended.
    DiskReserveUsed,

    // --- how often ---
    /// A tenant's rate is counted for each of its keys: more keys, more rate.
    TenantRateByKey,
    /// Rates of those who are not there are remembered without bound.
    RatesNeverForgotten,
    /// `refresh` may be said without end: each costs a signature.
    RefreshUnlimited,
    /// `retry_after_ms` is rounded down: who comes when it is told comes too early.
    RateWaitRoundedDown,
    /// What stops work counts as work: a flood of requests keeps its own cancel out.
    CancelTakesWork,
    /// What the nodes of a fleet share has one bucket for work and for reading: resuming is refused after much work.
    RedisRateOneLane,

    // --- the store of a fleet, and its bus ---
    /// What was registered at one server is believed to be at the next: inputs lie there and nobody finds them.
    RedisTrustsNewServer,
    /// What was released stays in the index of its node for as long as that lives: each sweep reads all of it.
    RedisLeftNeverCleared,
    /// Nodes that are dead count among the listeners of a session: after 64 of them nobody may listen.
    RedisDeadListenersKept,
    /// What was said to other nodes weighs on the outbox for ever: after 16 MiB nothing is said any more.
    BusOutboxBytesKept,
    /// What was heard weighs on the inbox for ever: after 32 MiB nothing is heard any more.
    BusInboxBytesKept,
    /// Nodes that never came back stay in the list of nodes.
    RollKeepsTheGone,
    /// A node that leaves hands its sessions to a node that has no lease: they are nobody's until a sweep.
    HeirsMayBeDead,
    /// The bytes of an inbox are not written back when inputs end: a session refuses everything after 1 MiB.
    LuaInboxBytesKept,
    /// The bytes of an inbox are not added up: its bound in bytes is none.
    LuaInboxBytesUncounted,
    /// An inbox takes one input more.
    LuaInboxOneMore,
    /// A control lane has no bound.
    LuaControlUnbounded,
    /// A session may have twice the listeners of [`crate::limits::LISTENERS_MAX`].
    LuaListenersDoubled,
    /// A late `unlisten` undoes the `listen` after it: a node hears nothing of what it shows.
    LuaUnlistenUnstamped,
    /// The leases of a node that is gone stay as a key for ever.
    LuaLeaseKeyKept,
    /// Deleting a session leaves its facts.
    LuaDeletionKeepsLog,
    /// Message ids are forgotten while their facts are kept: what is said again is another turn.
    LuaExpiresEarly,
    /// Facts are trimmed that no snapshot stands for: a session cannot be opened any more.
    LuaTrimsPastSnapshot,
    /// Whose a run is, is not looked at: any user of a tenant is told that it is there.
    LuaFindForeign,
    /// A registration is cleared away though it was renewed since: its session is found by nobody.
    LuaUnregisterUnstamped,
    /// A value is written whatever its version: of two changes of keys one is lost.
    LuaPutAnyVersion,
    /// A session that was deleted is listed.
    LuaListsDeleted,
    /// A page of facts may have any number of bytes.
    LuaReadsWithoutRoom,
    /// What a node let through of a shared rate is not added up: each node has the rate for itself.
    LuaOweForgets,
    /// A bucket of a shared rate is kept for ever.
    LuaRateKeyKept,
    /// An input of a session that nobody owns is taken without a registration: no sweep finds it.
    LuaAcceptUnregistered,
    /// Bytes that a session has not counted for its user when it is let go are never counted.
    LuaReleaseUncounted,
    /// Bytes that a session has not counted yet do not count against the quota of its own inputs.
    LuaQuotaSeesSumsOnly,

    // --- agents ---
    /// A long piece's mark goes with each stretch of it: an agent that resumes leaves out what was not recorded.
    MarkOnEveryStretch,
    /// An agent is read on however much of its text is not recorded.
    UnsavedTextUnbounded,
    /// An agent that sends signs of life and no words falls silent.
    AliveNotReported,
    /// All that an agent is told of in a run has one idempotency key: it takes the second for a repeat.
    NewsWithRunKey,
    /// All inputs that a running agent is handed have one idempotency key: it takes the second for a repeat.
    SteerWithRunKey,
    /// An agent may answer any number of bytes.
    AgentBodyUnbounded,
    /// One event of an agent may have twice the bytes of [`crate::limits::AGENT_EVENT_BYTES_MAX`].
    AgentEventDoubled,
    /// What an agent says in `Retry-After` is told to nobody.
    AgentRetryAfterIgnored,
    /// An agent may say in `Retry-After` any time.
    AgentRetryAfterUncapped,
    /// An agent that goes on for a new owner is not told of a cancel: it works on for nobody.
    ResumedNotCancelled,
    /// A run's token is good after the run.
    RunTokenKept,
    /// An agent that died at its answer is asked again on another connection: it works twice.
    AnsweredAskedAgain,
    /// A connection is kept though its server has said that it closes: the next request meets the close.
    KeepAliveNotHeeded,
    /// An agent whose health page says that it is ill counts as healthy.
    IllAgentIsBack,
    /// The runs of a connection of an agent are never taken off: after 128 it is given none any more.
    DialinRunsKept,
    /// The connections of one tenant's agents may take all places.
    DialinTenantTakesAll,
    /// Connections of agents that are gone are shown as open.
    DialinGaugeKept,
    /// An agent of one tenant is given the runs of another.
    DialinReachIgnored,
    /// An agent may send bad messages without end.
    DialinBadForgiven,
    /// An agent that dials in may answer any number of bytes.
    DialinBodyUncounted,
    /// The tool runners of one tenant may take all places.
    RunnerTenantTakesAll,
    /// A tool runner of one tenant is given the actions of another.
    RunnerReachIgnored,
    /// Output that was left out is not said to be.
    OutputGapHidden,

    // --- HTTP ---
    /// Pages cannot read when to try again.
    CorsExposesNothing,
    /// A cache gives one origin's answer to another.
    CorsVaryMissing,
    /// A refusal says in its body when to try again and not in its header.
    RetryAfterHeaderMissing,
    /// A body may have twice the bytes.
    HttpBodyDoubled,
    /// Whoever resumes by `Last-Event-ID` is not told that the store forgot what it has seen.
    LastEventIdWithoutEpoch,
    /// A page of facts may have any number of bytes.
    HttpPageUnbounded,
    /// A stream does not give its credit back: it stands still after 256 KiB.
    HttpCreditKept,
    /// A stream goes on after its token has ended.
    StreamOutlivesToken,
    /// A call that nobody can come back for runs on after its client is gone.
    HangUpNotCancelled,
    /// Places for long requests are never given back: after 256 there are none.
    LongCallPlaceLost,
    /// A node that drains takes new turns.
    DrainTakesTurns,

    // --- keys and tokens ---
    /// A key that ends by itself leaves its connections open.
    EndedKeyStays,
    /// The sessions of named calls are named without their user: a user's call meets another's session.
    CallNamesWithoutUser,
    /// The keys of an identity provider that is away are good for ever.
    ProviderKeysKept,
    /// Whoever shows a token that names an unknown key has the provider asked each time.
    ProviderAskedByAnyone,

    // --- what operators see ---
    /// Connections that have ended are shown as open.
    LinkGaugeKept,
    /// Ops that were answered are shown as waiting.
    StoreWaitingKept,
    /// `POST` is counted as `other`.
    PostCountedAsOther,
    /// A store that has come back is shown as away: the node gets no work any more.
    StoreStaysAway,

    // --- the switchboard ---
    /// A node that listens to a session without showing it never says that it does not: its owner tells it of everything.
    NeverUnlistened,
    /// Retention trims the first fact of the turn that is open.
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

    /// Whether this bug is planted in this process. The choice is read once; names that others know are none here.
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

/// Whether this bug is planted: never, in a product build.
#[cfg(not(feature = "planted"))]
pub const fn planted(_: Planted) -> bool {
    false
}
