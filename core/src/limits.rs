//! Every limit of the house, each with its reason. Unit last, qualifier last of all.
use std::time::Duration;

// === what a peer may send ===

/// One client message on any transport (S-11): a prompt fits, an attachment goes by reference.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// The first message of a connection, before anything is known of the peer (S-04).
pub const HELLO_BYTES_MAX: usize = 4 * 1024;
/// Nesting of client JSON (S-13): deeper is an attack or a bug.
pub const JSON_DEPTH_MAX: usize = 64;
/// One number in JSON that is carried on: exact arithmetic has no more digits, and parsers of agents and clients refuse numbers
/// that are much longer (Python from 4,300 digits on).
pub const JSON_NUMBER_BYTES_MAX: usize = 1024;
/// Values in one client message (S-13).
pub const JSON_NODES_MAX: usize = 10_000;
/// Bad messages a link may send within [`BAD_MESSAGES_WINDOW`] before it is closed with 4400.
pub const BAD_MESSAGES_MAX: usize = 10;
/// See [`BAD_MESSAGES_MAX`].
pub const BAD_MESSAGES_WINDOW: Duration = Duration::from_secs(60);
/// Sessions one link may be subscribed to: a UI shows a handful; each costs an entry here and there.
pub const LINK_SUBSCRIPTIONS_MAX: usize = 64;
/// Requests of one link that wait for an answer: past it the link is answered `rate_limited`.
pub const LINK_ASKS_MAX: usize = 64;
/// Cancels of one link that may wait beside as many requests as [`LINK_ASKS_MAX`] (S-17): of its sessions each a few.
pub const LINK_CANCELS_MAX: usize = 64;
/// A request whose answer takes longer than this loses its place before those that came after it: two or three steps of a
/// store that is far away fit; a wish that waits for the end of a turn does not hold up what is said meanwhile.
pub const ANSWER_ORDER_PATIENCE: Duration = Duration::from_secs(3);
/// Patterns of one `subscribe.types`.
pub const SUBSCRIBE_TYPES_MAX: usize = 32;
/// Agents one session may have.
pub const SESSION_AGENTS_MAX: usize = 32;

// === how often ===

/// Credentials that are not good, from one address within [`AUTH_FAILURES_WINDOW`], before it is not heard for
/// [`AUTH_LOCK`] (S-05). Whoever mistypes one does so three times.
pub const AUTH_FAILURES_MAX: u32 = 10;
/// See [`AUTH_FAILURES_MAX`].
pub const AUTH_FAILURES_WINDOW: Duration = Duration::from_secs(60);
/// See [`AUTH_FAILURES_MAX`].
pub const AUTH_LOCK: Duration = Duration::from_secs(5 * 60);
/// Addresses that are remembered for it, 1 MiB of them: beyond these nobody new is, for who has so many does not
/// guess a key of 128 bits any better with more.
pub const AUTH_FAILURES_ADDRESSES_MAX: usize = 16 * 1024;

/// What may come at once where a rate is set: what it allows in so long. Enough for a page that opens and asks
/// for everything it shows.
pub const RATE_BURST: Duration = Duration::from_secs(2);
/// … and never less than so many, however slow the rate is.
pub const RATE_BURST_MIN: u32 = 5;
/// Credentials and tenants whose use one node remembers for their rates. Only known ones are among them; past it
/// those are forgotten that are not in use and could do everything at once again.
pub const RATES_MAX: usize = 16 * 1024;
/// What a node of a fleet lets through of a shared rate before it tells the others: a part of a burst, so that they
/// are told a few times a second of whoever does all that it may, …
pub const RATE_TELL_PARTS: u32 = 16;
/// … and what is less than that after so long, with the next that comes. Whoever asks once in a while costs the
/// store one call for each, among the several that each costs it anyway.
pub const RATE_TELL_EVERY: Duration = Duration::from_millis(100);
/// Bursts that nodes may be ahead of a shared rate together, before what is more is forgiven. Each may be ahead by
/// one, and a clock that is set back shall make nobody wait for longer.
pub const RATE_DEBT_BURSTS_MAX: u32 = 16;
/// What is to be told of shared rates and is not on its way yet: a credential and a tenant each have one place, so
/// that is two thousand of them in the time of one answer. Past it nodes go by what they know.
pub const RATE_TELLS_MAX: usize = 4096;
/// Of these, how many go to the store in one go.
pub const RATE_TELLS_AT_ONCE: usize = 256;

// === the life of a link ===

/// `hello` must come within this (S-04), or 4408.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// After its token has ended a connection has so long to show the next one (S-03), or 4401. Clients refresh when
/// they are told to, and one that slept over it comes back with a new one.
pub const TOKEN_GRACE: Duration = Duration::from_secs(25);
/// Between two pings of the server; ± 10 % jitter so that links do not march in step.
pub const HEARTBEAT: Duration = Duration::from_secs(25);
/// Without a byte from the peer for this long the link is dead (two pings unanswered).
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// A peer that takes no byte for this long is closed with 4508 and may resume.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes under way to one link: past it the link's cursor stands still and its text is re-read
/// later as one larger delta (G8). Covers 250 ms at 1 MiB/s.
pub const LINK_UNWRITTEN_BYTES_MAX: usize = 256 * 1024;
/// A link reports what it has written at the latest after this much, well below the cap above.
pub const LINK_REPORT_BYTES: usize = 64 * 1024;
/// Text of one session that waits for its own stream (QUIC): past it the session is held, its cursor stands still. All
/// sessions that are not held have no more together, so that those whose streams are read slowly share it.
pub const LANE_BYTES_MAX: usize = 64 * 1024;
/// Text of held sessions that counts as written, so that the others go on: what eight streams leave behind. More than
/// this counts as unwritten, and [`LINK_UNWRITTEN_BYTES_MAX`] ends it.
pub const LANES_HELD_BYTES_MAX: usize = 512 * 1024;
/// So many sessions held at a time, of which no stream takes a byte for [`STALL_TIMEOUT`], are one slow consumer.
pub const LANES_HELD_MAX: usize = 16;
/// A link is told what its streams have taken at the latest after so much: with [`LINK_REPORT_BYTES`] it is less than
/// what a full link waits for.
pub const LANES_REPORT_BYTES: usize = 16 * 1024;
/// Text that waits for its streams, of all sessions of a link. The limits above leave it far behind; this net catches
/// what they would do wrong.
pub const LANES_BYTES_MAX: usize = 1024 * 1024;
/// Between two looks whether bytes of an unfinished message have come of an agent that has dialed in and answers: the
/// shortest silence that makes sense is a few times that.
pub const DIALIN_LOOK: Duration = Duration::from_secs(1);
/// Clients of a draining node are asked to come back elsewhere within this, spread by jitter.
pub const GO_AWAY_WITHIN: Duration = Duration::from_secs(10);
/// See [`GO_AWAY_WITHIN`].
pub const GO_AWAY_JITTER: Duration = Duration::from_secs(3);

// === a session ===

/// From asking for a change of members until it has failed (SR-D8, SR-E4): several times what the store takes, and
/// what a speaking agent has to stop.
pub const MEMBER_CHANGE: Duration = Duration::from_secs(10);
/// From an agent's asking for a handover until it is rejected if nobody has decided: as long as for an approval,
/// since a person may have to be called.
pub const HANDOVER: Duration = Duration::from_secs(10 * 60);
/// How often one turn may ask for a handover: more than one that begins again has reason to.
pub const RUN_HANDOVERS_MAX: u32 = 8;
/// Ends of handovers that are known, so that whoever decides again is told: more than a person has on one screen.
pub const HANDOVERS_KEPT_MAX: usize = 16;
/// What an agent that hands over tells the other: a page or two, which stays in the state until it is told.
pub const HANDOVER_SUMMARY_BYTES_MAX: usize = 16 * 1024;
/// Of the answer in which a handover was asked for, what the other agent is told: its end. So much is in memory, and in
/// the snapshot, of every session in which somebody speaks.
pub const HANDOVER_TEXT_BYTES_MAX: usize = 4 * 1024;
/// Why somebody wants an agent to answer, to come or to go: a line for a person, in bytes.
pub const REASON_BYTES_MAX: usize = 1024;
/// Inputs in one inbox: the running one and 20 that wait.
pub const INBOX_INPUTS_MAX: usize = 21;
/// Earlier messages that come with one input, as JSON: some 60,000 tokens. Three such inputs fit in an
/// inbox, and one in a frame.
pub const HISTORY_BYTES_MAX: usize = 256 * 1024;
/// Content of waiting inputs that the owner of a session keeps in memory; what is more is read from the store when its
/// turn comes. Enough for a dozen typed lines, so that they need no second read.
pub const WAITING_CONTENT_BYTES_MAX: u64 = 8 * 1024;
/// Bytes in one inbox (S-48).
pub const INBOX_BYTES_MAX: usize = 1024 * 1024;
/// Entries in one control lane that nobody has taken.
pub const CONTROL_ENTRIES_MAX: usize = 64;
/// `retry_after_ms` of `too_many_pending`: about what a short answer takes.
pub const INBOX_RETRY_AFTER: Duration = Duration::from_secs(2);
/// `retry_after_ms` of `store_unavailable`.
pub const STORE_RETRY_AFTER: Duration = Duration::from_secs(1);
/// Nodes that may listen to one session.
pub const LISTENERS_MAX: usize = 64;
/// Text of one attempt (S-48); then `failed{too_large}`.
pub const TURN_TEXT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// `data` of one fact, as JSON (S-48). An input that would need more is refused with `too_large` before it
/// is accepted, text is recorded in stretches that fit, and an agent that says more at once has failed.
pub const FACT_DATA_BYTES_MAX: usize = 64 * 1024;
/// Attempts at one turn: past it the turn is poison (ownership.md §2.5).
pub const TURN_ATTEMPTS_MAX: u32 = 3;
/// Wait before the third attempt; the second is at once.
pub const TURN_ATTEMPT_WAIT: Duration = Duration::from_secs(1);
/// A checkpoint each so much text …
pub const CHECKPOINT_BYTES: usize = 16 * 1024;
/// … or so long after the first unrecorded byte.
pub const CHECKPOINT_WAIT: Duration = Duration::from_secs(2);
/// That an agent has its input is written with the next fact, or after so long (SR-G4): the end of a short answer comes
/// sooner and spares the store a write for each turn.
pub const FACT_WAIT: Duration = Duration::from_millis(5);
/// … or, where nobody follows the session and nothing waits for it, as late as a checkpoint of text: a node that takes
/// over thousands of turns has them asked first.
pub const FACT_WAIT_UNFOLLOWED: Duration = CHECKPOINT_WAIT;
/// Live text is gathered for this long after a first byte that goes at once …
pub const DELTA_WAIT: Duration = Duration::from_millis(20);
/// … or until so much of it is there.
pub const DELTA_BYTES: usize = 4 * 1024;
/// Text of a run that is not checkpointed: past it the agent is not read (ownership.md §2.4).
pub const UNSAVED_TEXT_BYTES_MAX: usize = 1024 * 1024;
/// A message id is known as long as the facts of its turn are kept, and at least this long: 24 h.
pub const MESSAGE_ID_KEPT_MS: u64 = 24 * 60 * 60 * 1000;
/// Between two looks of an owner through a session's message ids for old ones.
pub const EXPIRE_EVERY: Duration = Duration::from_secs(60 * 60);
/// A snapshot is written at the latest after so many facts, so that opening a session never grows
/// with its history.
pub const SNAPSHOT_FACTS: u64 = 512;
/// … or so many bytes of facts, so that it never grows with long answers either.
pub const SNAPSHOT_BYTES: usize = 1024 * 1024;
/// Facts of one append: bounds a transaction and a frame.
pub const APPEND_FACTS_MAX: usize = 64;

// === agents ===

/// From opening a connection to an agent until it is open.
pub const AGENT_CONNECT: Duration = Duration::from_secs(3);
/// From the order to the INPUT_ACK of an HTTP agent: many servers send headers with their first byte.
pub const AGENT_ACK_HTTP: Duration = Duration::from_secs(15);
/// Between two signs of life of a running agent.
pub const AGENT_SILENCE: Duration = Duration::from_secs(120);
/// Between two reports that an agent is alive, at most: an agent that sends its answer byte by byte costs its session's
/// owner no more than these. An agent with a shorter silence is reported [`AGENT_ALIVE_SHARE`] times in it.
pub const AGENT_ALIVE_WAIT: Duration = Duration::from_millis(250);
/// How often within an agent's silence a sign of life is reported at least: its clock is wrong by that part at the most.
pub const AGENT_ALIVE_SHARE: u32 = 16;
/// The whole run.
pub const RUN_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// From CANCEL to CANCEL_ACK; then `CANCEL_TIMEOUT` and the request is closed (LN-SR2).
pub const CANCEL_ACK: Duration = Duration::from_secs(2);
/// From handing an input to a running agent to its answer (ST-8). An agent that has said its last word is waited for
/// this long at the most, and what it has not answered by then it has not taken.
pub const STEER_ACK: Duration = Duration::from_secs(2);
/// … and at least this long after its last word, however late that was heard: an answer may lie behind it in the queue.
pub const STEER_ACK_AFTER_END: Duration = Duration::from_millis(500);
/// How often an agent that could not be reached with such an input is tried within [`STEER_ACK`].
pub const STEER_TRIES_MAX: u32 = 3;
/// One SSE event of an agent.
pub const AGENT_EVENT_BYTES_MAX: usize = 64 * 1024;
/// Everything one agent answers in one attempt, its framing included: text doubled by JSON escapes, and room.
pub const AGENT_BODY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Attempts at agents outside this process at a time, of one node: each of HTTP holds a socket, and clients need theirs.
pub const ATTEMPTS_MAX: u64 = 8192;
/// Content of the inputs whose turns run, of one node, in bytes: 8,192 turns of 32 KiB each.
pub const RUNNING_CONTENT_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Sessions that one node owns at a time. One at rest is given back after [`SEAT_LINGER`], so these are sessions with
/// turns that run or wait; at some 10 KB each it is 320 MB.
pub const SESSIONS_OWNED_MAX: u64 = 32 * 1024;
/// Subscriptions of all connections of one node, at about 1 KB each: two for each connection by QUIC that it may have.
pub const SUBSCRIPTIONS_MAX: u64 = 200_000;
/// `retry_after_ms` of `over_share`: a share is free again when turns end or connections close, which takes seconds.
pub const SHARE_RETRY_AFTER: Duration = Duration::from_secs(2);
/// `retry_after_ms` of `quota_exceeded`: stored bytes become free by deleting and by retention, which takes minutes.
pub const QUOTA_RETRY_AFTER: Duration = Duration::from_secs(60);
/// Idle connections kept to one agent.
pub const AGENT_IDLE_CONNECTIONS_MAX: usize = 32;
/// How long an idle connection to an agent is kept: less than the 5 s of uvicorn and Node.js, which close first otherwise.
pub const AGENT_KEEP_ALIVE: Duration = Duration::from_secs(4);
/// From the last byte of a request on a kept connection to its close without an answer: within it the server did not see
/// the request, for it had closed already; a later close is an agent that died at work.
pub const AGENT_STALE: Duration = Duration::from_secs(1);
/// Header fields of an answer: a proxy adds some dozens, and each costs a parse.
pub const AGENT_HEADERS_MAX: usize = 256;
/// The head of an answer, and what is read ahead of its body.
pub const AGENT_HEAD_BYTES_MAX: usize = 64 * 1024;
/// What is kept of the body of an answer that is an error: its beginning, for operators. Escaped as JSON it is at most six
/// times as long, which fits into a fact.
pub const AGENT_ERROR_BYTES_MAX: usize = 2 * 1024;
/// How long such a body is read: the turn's end waits for it.
pub const AGENT_ERROR_WAIT: Duration = Duration::from_millis(500);
/// `Retry-After` of an agent: a longer one is taken for this.
pub const AGENT_RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// `detail` of one agent state, as JSON.
pub const AGENT_DETAIL_BYTES_MAX: usize = 16 * 1024;

// === actions and tool runners ===

/// Actions of one session that are open at a time: more than an agent does at once, and their arguments lie in the state.
pub const SESSION_ACTIONS_MAX: usize = 16;
/// Actions of one run: a long task has hundreds of steps, and one that goes round in circles ends.
pub const RUN_ACTIONS_MAX: u32 = 256;
/// Actions that have ended and are known, so that a repeat does nothing: those of the run that is open, and room for
/// those that outlived theirs.
pub const ACTIONS_ENDED_MAX: usize = RUN_ACTIONS_MAX as usize + SESSION_ACTIONS_MAX;
/// Of these, whose results are kept in the state, the latest: what an agent is told with its next turn.
pub const ACTION_RESULTS_KEPT_MAX: usize = 16;
/// `args` of an action, `data` of its progress, and its result, as JSON.
pub const ACTION_DATA_BYTES_MAX: usize = 16 * 1024;
/// How often one action may tell how far it is: each is a fact.
pub const ACTION_PROGRESS_MAX: u32 = 256;
/// From asking for a tool to its result where its agent says nothing else.
pub const TOOL_TIMEOUT: Duration = Duration::from_secs(60);
/// The same of a process: as long as a run may take.
pub const PROCESS_TIMEOUT: Duration = RUN_TIMEOUT;
/// … and what an agent may ask for at most.
pub const ACTION_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// An action of which no runner is there, or whose runner is gone, waits for one so long: a runner that lost its node,
/// or whose node was started again, is back by then.
pub const RUNNER_WAIT: Duration = Duration::from_secs(5);
/// Facts that an agent was to be told of and was not yet, of one attempt or connection: all that becomes of what a run may
/// ask for at once.
pub const NEWS_MAX: usize = 1024;
/// Tool runners connected to one node: some for each core of a large machine.
pub const RUNNERS_MAX: usize = 64;
/// Tool runners that serve one tenant only: three quarters, so that the other tenants' and the node's own find a place.
pub const RUNNERS_OF_TENANT_MAX: usize = RUNNERS_MAX / 4 * 3;
/// Agents, tools and accounts that one credential may serve: a process serves a few, and the list is stored with its key.
pub const CREDENTIAL_SERVES_MAX: usize = 16;
/// Tools of one runner: more than an agent could be told of.
pub const RUNNER_TOOLS_MAX: usize = 256;
/// Messages to one runner that it has not taken, past which it is slow and closed.
pub const RUNNER_UNTAKEN_MAX: usize = 1024;
/// Actions that a node waits for at a time; past it they fail at once.
pub const NODE_ACTIONS_MAX: usize = 16 * 1024;

// === a tool runner's own side ===

/// Processes of one runner at a time, of all programs: a program has less, as its operator says.
pub const TOOLBOX_PROCESSES_MAX: usize = 64;
/// Actions that a runner knows of, with what came of them: at the 64 that it can have under way, hours of them.
pub const TOOLBOX_KNOWN_MAX: usize = 4096;
/// An action that was asked for so long ago and is not known is not begun: whoever asked has long given it up, and
/// it may be one that was forgotten. A node waits for a runner 5 s, and for a connection that stalls 30 s.
pub const TOOLBOX_AGE_MAX: Duration = Duration::from_secs(60);
/// What has ended is known so long at least, counted from when it was asked for: more than the age above, so that
/// nothing that may still be begun is ever forgotten.
pub const TOOLBOX_KNOWN_MIN: Duration = Duration::from_secs(180);
/// From TERM to KILL: time to write what is open to a disk.
pub const TOOLBOX_GRACE: Duration = Duration::from_secs(5);
/// What a process prints leaves in pieces of this size …
pub const CHUNK_BYTES_MAX: usize = 16 * 1024;
/// … and of this size as JSON, where control characters take six bytes each: a piece fits a message of [`MESSAGE_BYTES_MAX`].
pub const OUTPUT_CHUNK_JSON_BYTES_MAX: usize = 32 * 1024;
/// … after so long at the latest, so that a line at a time is not a message a letter …
pub const CHUNK_WAIT: Duration = Duration::from_millis(50);
/// … and no more than this in a second, of both streams; what is more is left out, and said to be.
pub const CHUNK_BYTES_PER_SECOND: u64 = 256 * 1024;
/// What a node shows of one action's output in a second: twice what a runner lets go, for that may come in heaps and with
/// every third byte in four letters (base64). What is more is left out, and said to be.
pub const OUTPUT_BYTES_PER_SECOND: u64 = 2 * CHUNK_BYTES_PER_SECOND;
/// The end of each stream that is kept for its result: the lines that say what went wrong.
pub const OUTPUT_TAIL_BYTES: usize = 4 * 1024;
/// The same as JSON, where most of it may have to be escaped: both fit a result.
pub const OUTPUT_TAIL_JSON_BYTES_MAX: usize = 6 * 1024;
/// Results that were said and are not known to have been read.
pub const RESULTS_UNREAD_MAX: usize = 64;
/// Programs of one list of what is allowed.
pub const PROGRAMS_MAX: usize = 256;
/// Arguments of one program, and the words of its command line.
pub const PROGRAM_ARGS_MAX: usize = 64;
/// One argument as an agent gives it: the length of a path.
pub const PROGRAM_ARG_BYTES_MAX: usize = 4 * 1024;
/// What a pattern may take once compiled: hundreds of letters' worth.
pub const PATTERN_BYTES_MAX: usize = 256 * 1024;

// === agents that dial in ===

/// A run of an agent of which no connection is there waits for one so long: an agent that lost its node, or whose node
/// was started again, is back by then.
pub const DIALIN_WAIT: Duration = Duration::from_secs(3);
/// Connections of one agent at a node: a process of each core of a large machine, and each is asked by turns.
pub const DIALIN_CONNECTIONS_MAX: usize = 64;
/// Those that serve one tenant only: three quarters, so that the other tenants' and the node's own find a place.
pub const DIALIN_CONNECTIONS_OF_TENANT_MAX: usize = DIALIN_CONNECTIONS_MAX / 4 * 3;
/// Runs under way at one connection. With [`DIALIN_UNTAKEN_MAX`] events of [`AGENT_EVENT_BYTES_MAX`] each it is 64 MiB of
/// an agent that says as much as it can while nothing is taken of it.
pub const DIALIN_RUNS_MAX: usize = 128;
/// Events of one run that were read and are not taken; past it nothing more is read of its connection.
pub const DIALIN_UNTAKEN_MAX: usize = 8;
/// Orders to one connection that it has not taken: for each of its runs an invoke, a cancel, an end and an inbox of
/// inputs. The connection is found out to be slow long before; this net catches what that would do wrong.
pub const DIALIN_ORDERS_MAX: usize = DIALIN_RUNS_MAX * (INBOX_INPUTS_MAX + 3);
/// Runs that a connection was told to stop and is still forgiven words about: they were under way.
pub const DIALIN_FORGIVEN_MAX: usize = 2 * DIALIN_RUNS_MAX;

// === agents that dial in at another node ===

/// A node whose agents are connected says so again this often: a word that was lost is made up for in that time.
pub const SERVING: Duration = Duration::from_secs(2);
/// Not said for so long, they are not counted on: twice it may have been lost.
pub const SERVING_LAPSE: Duration = Duration::from_secs(7);
/// Nodes with agents that are remembered; a fleet is far smaller.
pub const SERVING_NODES_MAX: usize = 1024;
/// Two nodes that have an attempt in common tell each other this often how much of it they have: what was lost is said
/// again within twice that.
pub const TRUNK_COUNT: Duration = Duration::from_millis(500);
/// Counts in a row that nobody listened to at the other node: it is gone. One alone may only have been cut off from Redis.
pub const TRUNK_UNHEARD_MAX: u32 = 3;
/// A node that says nothing for so long, while this one hears itself, is gone: one that sleeps has lost its lease by then.
pub const TRUNK_SILENCE: Duration = Duration::from_secs(5);
/// Words of one attempt that another node has said and that are not taken: a round trip's worth of the fastest agents,
/// and with [`AGENT_EVENT_BYTES_MAX`] each 2 MiB at the most.
pub const TRUNK_UNTAKEN_MAX: usize = 32;
/// Orders of one attempt that are not known to have been heard, as many as its connection would take.
pub const TRUNK_ORDERS_MAX: usize = INBOX_INPUTS_MAX + NEWS_MAX + 3;
/// A node with which there was no call for so long is forgotten: what it had under way here ended long before.
pub const TRUNK_MEMORY: Duration = Duration::from_secs(3600);
/// Calls of one node that are over and remembered each by its number: more than it has under way at a time, and what
/// comes later is older than any word on its way.
pub const TRUNK_OVER_MAX: usize = 16 * 1024;
/// Between two questions who serves agents, while somebody waits for one.
pub const TRUNK_ASK: Duration = Duration::from_millis(500);

// === time ===

/// A clock that differs by more than this from the time has stepped: it is doubted. What NTP corrects without a step,
/// and what people's watches differ by, is less; a wrong zone, a lost battery or a bad server is more.
pub const CLOCK_STEP: Duration = Duration::from_secs(60);
/// A step is believed once it has lasted for this long: longer than an NTP client needs to find out that one of its
/// servers lied.
pub const CLOCK_BELIEF: Duration = Duration::from_secs(30);
/// Readings of a clock that stepped agree while they differ by less than this.
pub const CLOCK_AGREEMENT: Duration = Duration::from_secs(5);
/// Readings of a clock that stepped agree only while less than this passes between them.
pub const CLOCK_SILENCE: Duration = Duration::from_secs(10);
/// The time is corrected by at most one part in so many of the time that passes: it runs at half or at one and a half
/// times its pace, so that it never stands still or goes back, and 60 s are made up in two minutes.
pub const CLOCK_SLEW_PARTS: i64 = 2;
/// Between two readings of the system's clock: a glitch of a second is seen, and it costs nothing.
pub const CLOCK_LOOK: Duration = Duration::from_secs(1);
/// A system clock that differs by this much from the store's is warned about: certificates of agents and timestamps of
/// logs go by the system's clock.
pub const CLOCK_SKEW_WARN: Duration = Duration::from_secs(5);

// === ownership (ownership.md §1.6) ===

/// A node's lease.
pub const LEASE: Duration = Duration::from_secs(3);
/// Between two renewals, ± 10 %.
pub const LEASE_RENEW: Duration = Duration::from_millis(500);
/// Subtracted from the lease by its holder, for clock rate and scheduling: 300 ms and 1 %.
pub const LEASE_MARGIN: Duration = Duration::from_millis(330);
/// A death is believed only after so much uninterrupted contact with the same store.
pub const LEASE_CONTACT: Duration = Duration::from_millis(3500);
/// Between two looks for what nobody owns, doubled by jitter.
pub const SWEEP: Duration = Duration::from_millis(750);
/// Sessions on one page of what nobody owns, and claims of them that are under way at a time: enough that
/// the way to the store and back counts little, and few enough that a node's other words do not wait.
pub const SWEEP_SESSIONS_MAX: u32 = 512;
/// Between two words to an owner whose open turns are shown here, and two looks at its node's lease.
pub const KNOCK: Duration = Duration::from_millis(250);
/// Between two digests to a node that has not acknowledged.
pub const BEACON: Duration = Duration::from_secs(1);
/// A leaving owner waits so long for who would own a session: two words, and a store that is slow for a moment.
pub const RESERVE_WITHIN: Duration = Duration::from_millis(250);
/// Who has reserved a session looks this often whether it was handed over: the word of it may be lost.
pub const RESERVED_LOOK: Duration = Duration::from_secs(1);
/// An owner keeps an idle session this long.
pub const SEAT_LINGER: Duration = Duration::from_secs(2);
/// Base of the wait before an op of unknown outcome is asked again; doubled by jitter.
pub const STORE_RETRY: Duration = Duration::from_millis(300);
/// How long it is tried to learn whether an op of unknown outcome was done, before whoever can ask again is told to:
/// one more try. A store that restarts is often back by then, and one that is away is not waited for.
pub const STORE_DOUBT: Duration = Duration::from_millis(250);
/// Sessions in one list: each costs the store a look at its head.
pub const LIST_SESSIONS_MAX: u32 = 200;
/// Requests over HTTP that look through a list of sessions or a log at a time, of one node: each keeps the store at work for
/// up to 10,000 facts, and its users share this.
pub const READINGS_MAX: usize = 256;
/// Facts in one page of a read.
pub const READ_FACTS_MAX: u32 = 256;
/// Bytes of facts in one page of a read.
pub const READ_BYTES_MAX: usize = 512 * 1024;
/// What a draining node gives its running turns: of the 20 s that a deploy may take it has to record what still
/// runs, give its lease back and say goodbye in the rest.
pub const DRAIN: Duration = Duration::from_secs(14);
/// What recording may take then; what is not recorded is found by others all the same.
pub const DRAIN_RECORD: Duration = Duration::from_secs(2);

// === the wire between nodes, and snapshots ===

/// One binary frame or snapshot (S-14).
pub const FRAME_BYTES_MAX: usize = 1024 * 1024;
/// Words in one frame: the shortest take a fortieth of their memory on the way, so a hostile frame of
/// full length could else take 40 MiB.
pub const FRAME_WORDS_MAX: usize = 1024;

// === the shell ===

/// Inputs waiting for the switchboard: past it links are not read.
pub const DRIVER_QUEUE_MAX: usize = 4096;
/// Links that may come or go in one round of the scheduler, of some 60 steps. Each is several steps by itself, and
/// then has its sessions shown to it: so together they take no more than half of what is done.
pub const TURNSTILE_MAX: usize = 8;
/// Inputs the driver takes before it looks at its timers again.
pub const DRIVER_BATCH_MAX: usize = 256;
/// Sessions of one embedded store that are closed off at most, about 10 MiB of names: where more are damaged, the disk
/// is to be replaced, and the process says so and ends.
pub const STORE_DAMAGED_SESSIONS_MAX: usize = 100_000;
/// Every page of a data file up to this size is looked at before it is used: at 1 GiB/s that takes 4 s. Of a larger one
/// that was closed in order, damage shows where it is read.
pub const STORE_VERIFIED_BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;
/// Ops waiting for the embedded store's writer; one batch is [`STORE_BATCH_MAX`].
pub const STORE_QUEUE_MAX: usize = 65_536;
/// Ops in one group commit.
pub const STORE_BATCH_MAX: usize = 512;
/// Free space the embedded store leaves: accepts are refused before the disk is full.
pub const STORE_RESERVE_BYTES: u64 = 64 * 1024 * 1024;
/// Bytes that a store in memory holds in all: with what the process needs beside them some 4 GiB, the memory of a small
/// machine. It is for trials, and loses everything with the process; what needs more belongs on a disk.
pub const MEMORY_STORE_BYTES_MAX: u64 = 2 * 1024 * 1024 * 1024;
/// Bytes from which on a session's gain or loss is counted for its user in Redis: in each turn two sums would be written
/// some four times, a quarter of what the turn costs there. A quota is exceeded by less than this for each session that
/// is owned.
pub const UNCOUNTED_BYTES_MAX: u64 = 4096;
/// Sessions that are looked at in one step of a walk for `store.max_age`: some 5 ms of Redis.
pub const IDLE_SESSIONS_MAX: u32 = 256;
/// Base of the wait between two such steps; doubled by jitter. A million sessions are walked through in an hour and a half.
pub const IDLE_STEP: Duration = Duration::from_secs(1);
/// Base of the wait between two such walks; doubled by jitter.
pub const IDLE_WALK: Duration = Duration::from_secs(60);
/// Connections of one process (a process may open 20,000 files on many machines).
pub const CONNECTIONS_MAX: usize = 18_000;
/// The same by QUIC, where they share one file: what a node may be told to hold (`listen.quic_connections`). At some 40 KB
/// each it is 4 GB, and one core answers their beats.
pub const QUIC_CONNECTIONS_MAX: usize = 100_000;
/// Connections from one address that is not this machine's (S-16): an office behind one address fits in, and a
/// hundred and eighty of them fill a node.
pub const ADDRESS_CONNECTIONS_MAX: usize = 100;
/// `state` events of one attempt that are recorded; more are dropped and counted.
pub const AGENT_STATES_MAX: u32 = 1_000;

// === the chat in a terminal ===

/// Lines that are typed, or read from a pipe, ahead of the conversation.
pub const CHAT_LINES_MAX: usize = 64;
/// Text that waits to be shown while the editor is busy with keys (a search in the history): past it the chat waits,
/// and the gateway is not read.
pub const CHAT_UNSHOWN_BYTES_MAX: usize = 256 * 1024;
/// Lines in the file of the history: some weeks of talking, and read in a moment.
pub const CHAT_HISTORY_LINES_MAX: usize = 1_000;
/// The longest line that is remembered: what is longer was pasted, and nobody looks for it line by line.
pub const CHAT_HISTORY_LINE_BYTES_MAX: usize = 4 * 1024;
/// A file of the history that is larger is not one of ours, each byte escaped as two, and is not read.
pub const CHAT_HISTORY_BYTES_MAX: u64 =
    2 * (CHAT_HISTORY_LINES_MAX * (CHAT_HISTORY_LINE_BYTES_MAX + 1)) as u64;
