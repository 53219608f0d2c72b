//! Every limit of the product, with its reason. In a name the unit comes last, before `MAX` or `MIN`.
use std::time::Duration;

// === what a peer may send ===

/// One client message on any transport (S-11): a prompt fits; attachments are sent by reference.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// The first message of a connection, while the peer is still unknown (S-04).
pub const HELLO_BYTES_MAX: usize = 4 * 1024;
/// Nesting of client JSON (S-13): deeper is an attack or a bug.
pub const JSON_DEPTH_MAX: usize = 64;
/// One number in JSON that is passed on: exact arithmetic has no more digits, and parsers of agents and clients
/// refuse much longer numbers (Python from 4,300 digits on).
pub const JSON_NUMBER_BYTES_MAX: usize = 1024;
/// Values in one client message (S-13).
pub const JSON_NODES_MAX: usize = 10_000;
/// Bad messages a link may send within [`BAD_MESSAGES_WINDOW`] before it is closed with 4400.
pub const BAD_MESSAGES_MAX: usize = 10;
/// The period for [`BAD_MESSAGES_MAX`].
pub const BAD_MESSAGES_WINDOW: Duration = Duration::from_secs(60);
/// Sessions one link may be subscribed to: a UI shows a few; each costs an entry at the edge and at the owner.
pub const LINK_SUBSCRIPTIONS_MAX: usize = 64;
/// Requests of one link that wait for an answer: past it the link is answered `rate_limited`.
pub const LINK_REQUESTS_MAX: usize = 64;
/// Cancels of one link that may wait in addition to [`LINK_REQUESTS_MAX`] requests (S-17): a few for each of its
/// sessions.
pub const LINK_CANCELS_MAX: usize = 64;
/// A request whose answer takes longer than this no longer holds back the answers to later requests: two or three
/// round trips to a distant store fit; a request that waits for the end of a turn does not block later ones.
pub const ANSWER_ORDER_TIMEOUT: Duration = Duration::from_secs(3);
/// Patterns of one `subscribe.types`.
pub const SUBSCRIBE_TYPES_MAX: usize = 32;
/// Agents one session may have.
pub const SESSION_AGENTS_MAX: usize = 32;

// === how often ===

/// Invalid credentials from one address within [`AUTH_FAILURES_WINDOW`] before the address is locked out for
/// [`AUTH_LOCK`] (S-05). A person mistypes a credential about three times.
pub const AUTH_FAILURES_MAX: u32 = 10;
/// The period for [`AUTH_FAILURES_MAX`].
pub const AUTH_FAILURES_WINDOW: Duration = Duration::from_secs(60);
/// The time for which an address is locked out; see [`AUTH_FAILURES_MAX`].
pub const AUTH_LOCK: Duration = Duration::from_secs(5 * 60);
/// Addresses remembered for invalid credentials, 1 MiB of them; past it no new address is remembered. An attacker
/// with so many addresses does not guess a key of 128 bits any better with more of them.
pub const AUTH_FAILURES_ADDRESSES_MAX: usize = 16 * 1024;

/// The burst of a rate: what the rate allows in this time may come at once. Enough for a page that opens and requests
/// everything it shows.
pub const RATE_BURST: Duration = Duration::from_secs(2);
/// The least burst, however slow the rate is.
pub const RATE_BURST_MIN: u32 = 5;
/// Credentials and tenants whose use one node remembers for their rates. Only known ones are remembered; past it the
/// node forgets those that are not in use and have their whole burst available again.
pub const RATES_MAX: usize = 16 * 1024;
/// A node of a fleet may let through one burst divided by this number of a shared rate before it reports to the
/// store. The other nodes thus learn a few times a second of a caller that uses its full rate.
pub const RATE_REPORT_PARTS: u32 = 16;
/// Less than that part of a burst is reported after this time, with the next operation. A caller with a few requests
/// costs the store one call for each, among the several that each request costs anyway.
pub const RATE_REPORT_INTERVAL: Duration = Duration::from_millis(100);
/// Bursts that all nodes together may be ahead of a shared rate; more is forgiven. Each node may be ahead by one
/// burst, and after the store's clock is set back no caller may wait for longer than this.
pub const RATE_DEBT_BURSTS_MAX: u32 = 16;
/// Reports of shared rates that wait to be sent: a credential and a tenant have one each, so this is enough for two
/// thousand of them in the time of one answer. Past it nodes decide by their local view.
pub const RATE_REPORTS_MAX: usize = 4096;
/// Reports of shared rates sent to the store in one call.
pub const RATE_REPORTS_BATCH_MAX: usize = 256;

// === the life of a link ===

/// `hello` must come within this (S-04), or 4408.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// After its token has ended a connection has this long to show the next token (S-03), or 4401. Clients refresh when
/// they are asked to; a client that was asleep reconnects with a new token.
pub const TOKEN_GRACE: Duration = Duration::from_secs(25);
/// Between two pings of the server; ± 10 % jitter so that links do not ping at the same moments.
pub const HEARTBEAT: Duration = Duration::from_secs(25);
/// Without a byte from the peer for this long the link is dead (two pings unanswered).
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// A peer that accepts no byte for this long is closed with 4508 and may resume.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes in flight to one link: past it the link's cursor stops and its text is re-read later as one larger delta
/// (G8). Covers 250 ms at 1 MiB/s.
pub const LINK_UNWRITTEN_BYTES_MAX: usize = 256 * 1024;
/// A link reports its written bytes at the latest after this many, well below the cap above.
pub const LINK_REPORT_BYTES: usize = 64 * 1024;
/// Text of one session that waits for the session's own stream (QUIC): past it the session is held and its cursor
/// stops. All sessions that are not held have this much together, so sessions with slowly read streams share it.
pub const LANE_BYTES_MAX: usize = 64 * 1024;
/// Text of held sessions that counts as written, so that other sessions continue: what eight streams leave behind.
/// More than this counts as unwritten, and [`LINK_UNWRITTEN_BYTES_MAX`] then applies to the link.
pub const LANES_HELD_BYTES_MAX: usize = 512 * 1024;
/// This many held sessions at a time, whose streams accept no byte for [`STALL_TIMEOUT`], make a link a slow
/// consumer.
pub const LANES_HELD_MAX: usize = 16;
/// A link is told how much its streams have taken at the latest after this many bytes: together with
/// [`LINK_REPORT_BYTES`] less than what a full link waits for.
pub const LANES_REPORT_BYTES: usize = 16 * 1024;
/// Text of all sessions of a link that waits for its streams. The limits above stay far below it; this limit is a
/// safety net for a bug in those.
pub const LANES_BYTES_MAX: usize = 1024 * 1024;
/// Between two checks whether bytes of an unfinished message have arrived from an agent that has dialed in and
/// answers: the shortest sensible silence is a few times that.
pub const DIALIN_SILENCE_CHECK: Duration = Duration::from_secs(1);
/// Clients of a draining node are asked to reconnect elsewhere within this time, spread by jitter.
pub const GO_AWAY_WITHIN: Duration = Duration::from_secs(10);
/// The jitter of [`GO_AWAY_WITHIN`].
pub const GO_AWAY_JITTER: Duration = Duration::from_secs(3);

// === a session ===

/// From the request for a change of members until it fails (SR-D8, SR-E4): several times what the store takes and
/// what a speaking agent needs to stop.
pub const MEMBER_CHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// From an agent's request for a handover until the handover is rejected for want of a decision: as long as for an
/// approval, since a person may have to be called.
pub const HANDOVER_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// Handovers that one turn may request: more than a turn that starts again has reason to.
pub const RUN_HANDOVERS_MAX: u32 = 8;
/// Ended handovers that are remembered, so that a repeated decision is answered: more than a person has on one
/// screen.
pub const HANDOVERS_KEPT_MAX: usize = 16;
/// Summary that an agent passes to the next agent: a page or two, which stays in the state until it is delivered.
pub const HANDOVER_SUMMARY_BYTES_MAX: usize = 16 * 1024;
/// The end of the answer in which a handover was requested, as passed to the next agent. This much is kept in memory
/// and in the snapshot of every session with a speaking agent.
pub const HANDOVER_TEXT_BYTES_MAX: usize = 4 * 1024;
/// A reason for asking an agent to answer, to join or to leave: a line for a person, in bytes.
pub const REASON_BYTES_MAX: usize = 1024;
/// Inputs in one inbox: the running one and 20 that wait.
pub const INBOX_INPUTS_MAX: usize = 21;
/// Earlier messages sent along with one input, as JSON: some 60,000 tokens. Three such inputs fit in an inbox, and
/// one in a frame.
pub const HISTORY_BYTES_MAX: usize = 256 * 1024;
/// One call of an OpenAI client: a picture of some 12 MiB in base64, or more text than the longest context of a model. Files
/// and long histories of a call become files of its session, which may have as many bytes each.
pub const CHAT_CALL_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Calls longer than [`MESSAGE_BYTES_MAX`] that one node reads at a time, in bytes of their bodies, which the node's users
/// share: eight of the longest. Until its files are stored, a call takes about three times its body: the body, the message
/// that is read, and what becomes of the messages.
pub const CHAT_CALLS_BYTES_MAX: usize = 8 * CHAT_CALL_BYTES_MAX;
/// Content of waiting inputs that the owner of a session keeps in memory; more is read from the store when the
/// input's turn comes. Enough for a dozen typed lines, so that those need no second read.
pub const WAITING_CONTENT_BYTES_MAX: u64 = 8 * 1024;
/// Bytes in one inbox (S-48).
pub const INBOX_BYTES_MAX: usize = 1024 * 1024;
/// Entries in one control lane that were not taken yet.
pub const CONTROL_ENTRIES_MAX: usize = 64;
/// `retry_after_ms` of `too_many_pending`: about the time of a short answer.
pub const INBOX_RETRY_AFTER: Duration = Duration::from_secs(2);
/// `retry_after_ms` of `store_unavailable`.
pub const STORE_RETRY_AFTER: Duration = Duration::from_secs(1);
/// Nodes that may listen to one session.
pub const LISTENERS_MAX: usize = 64;
/// Text of one attempt (S-48); then `failed{too_large}`.
pub const TURN_TEXT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// `data` of one fact, as JSON (S-48). An input that would need more is refused with `too_large` before it is
/// accepted, text is recorded in parts that fit, and an agent that sends more in one event has failed.
pub const FACT_DATA_BYTES_MAX: usize = 64 * 1024;
/// Attempts at one turn: past it the turn is poison (ownership.md §2.5).
pub const TURN_ATTEMPTS_MAX: u32 = 3;
/// Wait before the third attempt; the second starts at once.
pub const TURN_ATTEMPT_WAIT: Duration = Duration::from_secs(1);
/// Text of an attempt after which a checkpoint is recorded.
pub const CHECKPOINT_BYTES: usize = 16 * 1024;
/// Time after the first unrecorded byte by which a checkpoint is recorded.
pub const CHECKPOINT_WAIT: Duration = Duration::from_secs(2);
/// The fact that an agent has its input is written with the next fact, or after this time (SR-G4): the end of a short
/// answer comes sooner, which saves the store one write for each turn.
pub const FACT_WAIT: Duration = Duration::from_millis(5);
/// The same where the session has no subscribers and nothing waits for the fact: as late as a checkpoint of text. A
/// node that takes over thousands of turns thus starts their attempts first.
pub const FACT_WAIT_UNSUBSCRIBED: Duration = CHECKPOINT_WAIT;
/// Live text is collected for this long after a first byte, which is sent at once.
pub const DELTA_WAIT: Duration = Duration::from_millis(20);
/// Live text is sent as soon as this much is collected.
pub const DELTA_BYTES: usize = 4 * 1024;
/// Text of a run that is not in a checkpoint: past it the agent is not read (ownership.md §2.4).
pub const UNSAVED_TEXT_BYTES_MAX: usize = 1024 * 1024;
/// Milliseconds by which a node may misjudge the store's clock when a message comes to a conversation that nobody has bound
/// lately: a day, which is far more than clocks differ and far less than an ended binding is remembered.
pub const ROUTE_CLOCK_TOLERANCE_MS: u64 = 24 * 60 * 60 * 1000;
/// A message id is known as long as the facts of its turn are kept, and at least this long: 72 h, because an adapter that
/// was away brings messages that late, and platforms send webhooks again for up to three days. An id takes the store some
/// 300 bytes, and a session has one turn at a time: a turn every ten seconds for all of the 72 h is 8 MB.
pub const MESSAGE_ID_KEPT_MS: u64 = 72 * 60 * 60 * 1000;
/// Between two scans of an owner for expired message ids of a session.
pub const EXPIRE_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// A snapshot is written at the latest after this many facts, so that the time to open a session does not grow with
/// its history.
pub const SNAPSHOT_FACTS: u64 = 512;
/// A snapshot is written at the latest after this many bytes of facts, for sessions with long answers.
pub const SNAPSHOT_BYTES: usize = 1024 * 1024;
/// Facts of one append: bounds a transaction and a frame.
pub const APPEND_FACTS_MAX: usize = 64;

// === agents ===

/// From the start of a connection to an agent until it is open.
pub const AGENT_CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// From the order to the INPUT_ACK of an HTTP agent: many servers send headers with their first byte.
pub const AGENT_ACK_TIMEOUT_HTTP: Duration = Duration::from_secs(15);
/// Between two signs of life of a running agent.
pub const AGENT_SILENCE_TIMEOUT: Duration = Duration::from_secs(120);
/// The shortest time between two reports that an agent is alive: limits the cost to the session's owner of an agent
/// that sends its answer byte by byte. With a shorter silence limit an agent is reported [`AGENT_ALIVE_SHARE`] times
/// in it.
pub const AGENT_ALIVE_WAIT: Duration = Duration::from_millis(250);
/// Reports of life within an agent's silence limit, at least: the silence clock is wrong by at most one part in this
/// many.
pub const AGENT_ALIVE_SHARE: u32 = 16;
/// Duration of a whole run.
pub const RUN_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// From CANCEL to CANCEL_ACK; then `CANCEL_TIMEOUT` and the request is closed (LN-SR2).
pub const CANCEL_ACK_TIMEOUT: Duration = Duration::from_secs(2);
/// From handing an input to a running agent until its answer (ST-8). After an agent's last event the run waits for
/// this long at most; inputs that the agent has not answered by then count as not taken.
pub const STEER_ACK_TIMEOUT: Duration = Duration::from_secs(2);
/// The run also waits at least this long after the agent's last event, however late that event arrived: an answer may
/// be queued behind it.
pub const STEER_ACK_AFTER_END_MIN: Duration = Duration::from_millis(500);
/// Tries to deliver such an input to an unreachable agent within [`STEER_ACK_TIMEOUT`].
pub const STEER_TRIES_MAX: u32 = 3;
/// One SSE event of an agent.
pub const AGENT_EVENT_BYTES_MAX: usize = 64 * 1024;
/// The whole answer of one agent in one attempt, framing included: text doubled by JSON escapes, with a margin.
pub const AGENT_BODY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Attempts of one node at agents outside this process, at a time: each HTTP attempt holds a socket, and clients need
/// sockets too.
pub const ATTEMPTS_MAX: u64 = 8192;
/// Content of the inputs whose turns run, of one node, in bytes: 8,192 turns of 32 KiB each.
pub const RUNNING_CONTENT_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Sessions that one node owns at a time. An idle session is given back after [`OWNED_SESSION_LINGER`], so these are
/// sessions with running or waiting turns; at some 10 KB each they take 320 MB.
pub const SESSIONS_OWNED_MAX: u64 = 32 * 1024;
/// Subscriptions of all connections of one node, at about 1 KB each: two for each of the most QUIC connections.
pub const SUBSCRIPTIONS_MAX: u64 = 200_000;
/// `retry_after_ms` of `over_share`: a share becomes free when turns end or connections close, which takes seconds.
pub const SHARE_RETRY_AFTER: Duration = Duration::from_secs(2);
/// `retry_after_ms` of `quota_exceeded`: stored bytes become free by deletion and by retention, which takes minutes.
pub const QUOTA_RETRY_AFTER: Duration = Duration::from_secs(60);
/// Idle connections kept to one agent.
pub const AGENT_IDLE_CONNECTIONS_MAX: usize = 32;
/// Lifetime of an idle connection to an agent: less than the 5 s of uvicorn and Node.js, which would otherwise close
/// first.
pub const AGENT_KEEP_ALIVE: Duration = Duration::from_secs(4);
/// If a kept connection closes without an answer within this time after the last byte of a request, the server had
/// closed before it saw the request; a later close means that the agent died while working.
pub const AGENT_STALE: Duration = Duration::from_secs(1);
/// Header fields of an answer: a proxy adds a few dozen, and each costs a parse.
pub const AGENT_HEADERS_MAX: usize = 256;
/// The head of an answer, and the bytes read ahead of its body.
pub const AGENT_HEAD_BYTES_MAX: usize = 64 * 1024;
/// The beginning of an error answer's body, kept for operators. Escaped as JSON it is at most six times as long,
/// which fits into a fact.
pub const AGENT_ERROR_BYTES_MAX: usize = 2 * 1024;
/// Time for reading such a body: the turn's end waits for it.
pub const AGENT_ERROR_WAIT: Duration = Duration::from_millis(500);
/// `Retry-After` of an agent: a longer one is reduced to this.
pub const AGENT_RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// `detail` of one agent state, as JSON.
pub const AGENT_DETAIL_BYTES_MAX: usize = 16 * 1024;

// === models ===

/// From the start of a connection to an upstream of models until it is open, DNS and TLS included.
pub const MODEL_CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The longest such time that the operator may set.
pub const MODEL_CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(30);
/// From a call to the head of its answer: a model that thinks, and answers as a whole, takes minutes.
pub const MODEL_FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// Between two pieces of an answer: providers send a comment or a `ping` event within seconds.
pub const MODEL_SILENCE_TIMEOUT: Duration = Duration::from_secs(120);
/// A whole call: as long as a run may take.
pub const MODEL_CALL_TIMEOUT: Duration = RUN_TIMEOUT;
/// Open calls of models of one node, which its users share: each holds a connection to an upstream.
pub const MODEL_CALLS_MAX: usize = 4096;
/// From the end of a call of a run until its report has reached the session's owner: the store may be away for a while.
/// A later report has no effect.
pub const MODEL_CALL_REPORT_WAIT: Duration = Duration::from_secs(60);
/// Longest time of a call that a node may report: the longest that the operator may set.
pub const MODEL_CALL_DEADLINE_MAX: Duration = Duration::from_secs(25 * 60 * 60);
/// Open calls of one session that its log records; further ones are made without a record. The state of a session has all of
/// them.
pub const MODEL_CALLS_RECORDED_MAX: usize = 256;
/// Open calls at one upstream, unless the operator sets another number.
pub const MODEL_UPSTREAM_CALLS: usize = 256;
/// Idle connections kept to one upstream: as many as calls that may come at once after a pause.
pub const MODEL_IDLE_CONNECTIONS_MAX: usize = 64;
/// Lifetime of an idle connection to an upstream: servers in front of providers keep theirs for 60 s and more.
pub const MODEL_KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Requests to upstreams for one call: the first, and fallbacks or retries.
pub const MODEL_ATTEMPTS_MAX: u32 = 4;
/// `Retry-After` of an upstream that is waited for; a longer one is passed on to the caller.
pub const MODEL_RETRY_AFTER_MAX: Duration = Duration::from_secs(10);
/// The longest time that the head of a streamed answer is held back until its first event is known, which may be an error that
/// another upstream can mend. Then the caller gets what there is.
pub const MODEL_OPENING_WAIT: Duration = Duration::from_secs(15);
/// Bytes held back for that reason: the first event of every provider is far shorter.
pub const MODEL_OPENING_BYTES_MAX: usize = 64 * 1024;
/// Decoded bytes of one compressed answer that are read for its usage: a small piece can decode to a thousand times its size.
pub const MODEL_DECODED_BYTES_MAX: usize = 16 * 1024 * 1024;
/// From the order to an agent that is a model until its upstream answers: the wait for the head, and for the first event.
pub const MODEL_AGENT_ACK_TIMEOUT: Duration = Duration::from_secs(6 * 60);
/// Tokens of the conversation that an agent that is a model sends, unless the operator sets another number: some hundred
/// messages, and less than the context of every common model.
pub const MODEL_AGENT_CONTEXT_TOKENS: u32 = 8000;
/// The most such tokens that the operator may set: the longest context of a model.
pub const MODEL_AGENT_CONTEXT_TOKENS_MAX: u32 = 1_000_000;
/// The most output tokens that the operator may set; a larger number is taken for a typing error.
pub const MODEL_AGENT_OUTPUT_TOKENS_MAX: u32 = 1_000_000;
/// Bytes of the conversation that such an agent sends at most: they are read from the log and held in memory with each call.
pub const MODEL_AGENT_HISTORY_BYTES_MAX: usize = 256 * 1024;
/// Messages of the conversation that such an agent sends at most.
pub const MODEL_AGENT_HISTORY_MESSAGES_MAX: usize = 1000;
/// Conversations that are read for such agents at a time; the others wait. Each takes some 2 MiB meanwhile.
pub const MODEL_AGENT_READS_MAX: usize = 16;
/// A file with the system prompt of such an agent: a long one has some pages.
pub const MODEL_AGENT_SYSTEM_BYTES_MAX: usize = 64 * 1024;
/// Longest wait for the end of a body after the last event of an answer: without the end, the connection is not kept.
pub const MODEL_AGENT_END_WAIT: Duration = Duration::from_millis(200);
/// Longest wait for the body of an upstream's error.
pub const MODEL_AGENT_ERROR_WAIT: Duration = Duration::from_secs(1);
/// Silence of a stream after which a comment is sent to the caller: proxies close silent connections after 30 s and more.
pub const MODEL_KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Failures of an upstream in a row after which it is not asked for [`MODEL_BREAKER_OPEN`].
pub const MODEL_BREAKER_FAILURES: u32 = 5;
/// The time for which a failing upstream is not asked; then one call tries it.
pub const MODEL_BREAKER_OPEN: Duration = Duration::from_secs(10);
/// `retry_after_ms` of `model_busy`: calls end within seconds.
pub const MODEL_BUSY_RETRY_AFTER: Duration = Duration::from_secs(1);
/// A provider's key: the longest known ones have some 200 characters.
pub const MODEL_API_KEY_BYTES_MAX: u64 = 4 * 1024;
/// Time between two looks whether the file of a provider's key has changed.
pub const MODEL_API_KEY_CHECK_INTERVAL: Duration = Duration::from_secs(1);

// === budgets of models ===

/// Open reservations of one budget: each change of the budget writes all of them to the store, some 80 bytes each. So many
/// calls at a time are some hundred calls a second.
pub const BUDGET_RESERVATIONS_MAX: usize = 1000;
/// Accounts of one tenant with budgets: every node that serves the tenant reads their list, some 40 bytes each, every few
/// seconds.
pub const BUDGET_ACCOUNTS_MAX: usize = 4096;
/// Bytes of an account's name: as long as the longest name of a user.
pub const BUDGET_NAME_BYTES_MAX: usize = 256;
/// The time after which a new budget takes effect at every node: for so long a node believes that an account has none.
pub const BUDGET_CACHE_TTL: Duration = Duration::from_secs(5);
/// The time for which a node that cannot reach the store believes that an account has no budget: calls without budgets outlast
/// a restart of the store, or the failover to its replica.
pub const BUDGET_CACHE_GRACE: Duration = Duration::from_secs(5 * 60);
/// Tenants whose lists of accounts with budgets one node remembers. Most tenants have no budget, or few.
pub const BUDGET_TENANTS_CACHED_MAX: usize = 4096;
/// Accounts with budgets that one node keeps in memory: one of each of the four kinds for every open call.
pub const BUDGET_CACHE_MAX: usize = 4 * MODEL_CALLS_MAX;
/// Reservations of one account that wait at one node: as many as may be open.
pub const BUDGET_WAITING_MAX: usize = BUDGET_RESERVATIONS_MAX;
/// Ends of calls of one account that wait at one node: those of all open reservations, and as many that were given up before
/// they were made.
pub const BUDGET_ENDS_MAX: usize = 2 * BUDGET_RESERVATIONS_MAX;
/// Ops for budgets that one node has in the store at a time; each account has at most one.
pub const BUDGET_STORE_OPS_MAX: usize = 64;
/// Budgets that one list reads at a time: a quarter of those ops, so that calls go on meanwhile.
pub const BUDGET_LIST_READS_MAX: usize = BUDGET_STORE_OPS_MAX / 4;
/// Writes of one change that may fail because another node was faster: with eight nodes that always write, one in 5,000
/// changes fails so often in a row.
pub const BUDGET_CONFLICTS_MAX: usize = 64;
/// The longest wait for one account: more than one op of the store may take, and less than a caller waits for an answer.
pub const BUDGET_WAIT_MAX: Duration = Duration::from_secs(6);
/// `retry_after` of a call that was refused because its budget could not be read or changed.
pub const BUDGET_RETRY_AFTER: Duration = Duration::from_secs(1);
/// The first pause before the end of a call is written to a store that did not answer; it doubles up to
/// [`BUDGET_BACKOFF_MAX`].
pub const BUDGET_BACKOFF: Duration = Duration::from_millis(100);
/// The longest such pause: the ends of many calls wait together, and are written within this time after the store's return.
pub const BUDGET_BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Milliseconds by which the clocks of two nodes may differ: a budget's period that begins later than this was begun by a clock
/// that was wrong.
pub const BUDGET_CLOCK_TOLERANCE_MS: u64 = 60 * 60 * 1000;

// === actions and tool runners ===

/// Actions of one session that are open at a time: more than an agent does at once; their arguments are kept in the
/// state.
pub const SESSION_ACTIONS_MAX: usize = 16;
/// Actions of one run: a long task has hundreds of steps, and an agent that loops is stopped.
pub const RUN_ACTIONS_MAX: u32 = 256;
/// Characters of the name of a task's conversation: Discord's limit for a thread's name.
pub const TASK_TITLE_CHARACTERS_MAX: usize = 100;
/// Tasks that were given in tasks: a chain of agents that is longer is taken for a loop.
pub const TASK_DEPTH_MAX: u32 = 8;
/// Bytes of a task's answer in the result of its action; the whole answer is in the task's session.
pub const TASK_RESULT_BYTES_MAX: usize = 8 * 1024;
/// Time before a step of a task that was refused for now is tried again, and before a route is asked for again.
pub const TASK_RETRY: Duration = Duration::from_secs(2);
/// The longest such time, whatever the refusal asks for: the deadline of the task's action does not move.
pub const TASK_RETRY_MAX: Duration = Duration::from_secs(60);
/// Ended actions that are remembered, so that a repeated request does nothing: those of the open run, and room for
/// actions that outlived their run.
pub const ACTIONS_ENDED_MAX: usize = RUN_ACTIONS_MAX as usize + SESSION_ACTIONS_MAX;
/// Results kept in the state, of the latest ended actions: an agent is sent these with its next turn.
pub const ACTION_RESULTS_KEPT_MAX: usize = 16;
/// `args` of an action, `data` of its progress, and its result, as JSON.
pub const ACTION_DATA_BYTES_MAX: usize = 16 * 1024;
/// Progress reports of one action: each is a fact.
pub const ACTION_PROGRESS_MAX: u32 = 256;
/// From the request for a tool to its result, unless the agent sets another time.
pub const TOOL_TIMEOUT: Duration = Duration::from_secs(60);
/// The same for a process: as long as a run may take.
pub const PROCESS_TIMEOUT: Duration = RUN_TIMEOUT;
/// The longest time that an agent may set.
pub const ACTION_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// An action without a connected runner waits this long for one: a runner whose node died or was restarted has
/// reconnected by then.
pub const RUNNER_WAIT: Duration = Duration::from_secs(5);
/// Facts that wait to be sent to an agent, of one attempt or connection: all facts about what a run may request at
/// once.
pub const FACT_DELIVERIES_MAX: usize = 1024;
/// Tool runners connected to one node: a few for each core of a large machine.
pub const RUNNERS_MAX: usize = 64;
/// Tool runners that serve only one tenant: three quarters, so that runners of other tenants and of the node itself
/// find a slot.
pub const RUNNERS_OF_TENANT_MAX: usize = RUNNERS_MAX / 4 * 3;
/// Agents, tools and accounts that one credential may serve: a process serves a few; the list is stored with its key.
pub const CREDENTIAL_SERVES_MAX: usize = 16;
/// Tools of one runner: more than can be described to an agent.
pub const RUNNER_TOOLS_MAX: usize = 256;
/// Messages queued for one runner; past it the runner is too slow and is closed.
pub const RUNNER_QUEUE_MAX: usize = 1024;
/// Actions that one node waits for at a time; past it a further action fails at once.
pub const NODE_ACTIONS_MAX: usize = 16 * 1024;

// === a tool runner's own side ===

/// Processes of one runner at a time, of all programs: a program's own limit is lower and set by the operator.
pub const TOOL_EXECUTOR_PROCESSES_MAX: usize = 64;
/// Actions that a runner remembers with their results: at 64 running at a time, hours of them.
pub const TOOL_EXECUTOR_ACTIONS_KEPT_MAX: usize = 4096;
/// An unknown action that was requested longer ago than this is not started: the requester has given up long before,
/// and the runner may have run and forgotten the action. A node waits 5 s for a runner, and 30 s for a stalled
/// connection.
pub const TOOL_EXECUTOR_REQUEST_AGE_MAX: Duration = Duration::from_secs(60);
/// An ended action is remembered for at least this long, counted from its request: more than the age above, so that
/// no action that may still be started is ever forgotten.
pub const TOOL_EXECUTOR_ACTIONS_KEPT_MIN: Duration = Duration::from_secs(180);
/// From TERM to KILL: time for the process to write its open files to disk.
pub const TOOL_EXECUTOR_KILL_GRACE: Duration = Duration::from_secs(5);
/// Size of one chunk of a process's output, in bytes.
pub const OUTPUT_CHUNK_BYTES_MAX: usize = 16 * 1024;
/// Size of one chunk as JSON, where control characters take six bytes each: a chunk fits a message of
/// [`MESSAGE_BYTES_MAX`].
pub const OUTPUT_CHUNK_JSON_BYTES_MAX: usize = 32 * 1024;
/// Longest wait before collected output is sent, so that output in single letters does not make a message of each.
pub const OUTPUT_CHUNK_WAIT: Duration = Duration::from_millis(50);
/// Output of one action in a second, of both streams; more is left out, and the gap is reported.
pub const RUNNER_OUTPUT_BYTES_PER_SECOND: u64 = 256 * 1024;
/// Output of one action that a node passes on in a second: twice what a runner sends, since it may come in bursts,
/// and base64 turns three bytes into four letters. More is left out, and the gap is reported.
pub const NODE_OUTPUT_BYTES_PER_SECOND: u64 = 2 * RUNNER_OUTPUT_BYTES_PER_SECOND;
/// The end of each output stream that is kept for the result: the lines that show what went wrong.
pub const OUTPUT_TAIL_BYTES: usize = 4 * 1024;
/// The same as JSON, where most of it may have to be escaped: both streams fit a result.
pub const OUTPUT_TAIL_JSON_BYTES_MAX: usize = 6 * 1024;
/// Results that were sent and not acknowledged.
pub const RESULTS_UNACKED_MAX: usize = 64;
/// Programs in one allow list.
pub const PROGRAMS_MAX: usize = 256;
/// Arguments of one program, and the words of its command line.
pub const PROGRAM_ARGS_MAX: usize = 64;
/// One argument as given by an agent: the length of a path.
pub const PROGRAM_ARG_BYTES_MAX: usize = 4 * 1024;
/// Size of a compiled pattern: enough for hundreds of letters.
pub const PATTERN_BYTES_MAX: usize = 256 * 1024;

// === agents that dial in ===

/// A run of an agent without a connection waits this long for one: an agent whose node died or was restarted has
/// reconnected by then.
pub const DIALIN_WAIT: Duration = Duration::from_secs(3);
/// Connections of one agent at a node: one process for each core of a large machine; runs are given to them by turns.
pub const DIALIN_CONNECTIONS_MAX: usize = 64;
/// Connections that serve only one tenant: three quarters, so that other tenants and the node itself find a slot.
pub const DIALIN_CONNECTIONS_OF_TENANT_MAX: usize = DIALIN_CONNECTIONS_MAX / 4 * 3;
/// Runs in progress on one connection. With [`DIALIN_RUN_EVENTS_MAX`] events of [`AGENT_EVENT_BYTES_MAX`] each they
/// take 64 MiB if an agent sends as much as it can while its sessions take none of it.
pub const DIALIN_RUNS_MAX: usize = 128;
/// Events of one run that were read and not yet taken; past it the connection is not read.
pub const DIALIN_RUN_EVENTS_MAX: usize = 8;
/// Orders queued for one connection: for each of its runs an invoke, a cancel, an end and one inbox of inputs. A slow
/// connection is detected long before; this limit is a safety net.
pub const DIALIN_ORDERS_MAX: usize = DIALIN_RUNS_MAX * (INBOX_INPUTS_MAX + 3);
/// Stopped runs of a connection about which late messages are ignored rather than treated as errors.
pub const DIALIN_STOPPED_RUNS_MAX: usize = 2 * DIALIN_RUNS_MAX;

// === agents that dial in at another node ===

/// Between two announcements of a node that agents are connected to it; a lost announcement is made up for by the
/// next.
pub const SERVING_ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
/// After this long without an announcement a node is no longer assumed to have agents: two announcements may be lost.
pub const SERVING_EXPIRY: Duration = Duration::from_secs(7);
/// Nodes with agents that are remembered; a fleet is far smaller.
pub const SERVING_NODES_MAX: usize = 1024;
/// Between two progress counts that nodes with a common attempt exchange: a lost message is resent within twice that.
pub const REMOTE_COUNT_INTERVAL: Duration = Duration::from_millis(500);
/// Progress counts in a row that no process at the other node received: the node is gone. A single one may only mean
/// that the node was cut off from Redis.
pub const REMOTE_UNDELIVERED_COUNTS_MAX: u32 = 3;
/// A node that is silent for this long, while this node receives its own messages, is gone: a suspended node has lost
/// its lease by then.
pub const REMOTE_SILENCE: Duration = Duration::from_secs(5);
/// Messages of one attempt that another node has sent and that are not yet taken: a round trip's worth of the fastest
/// agents, and with [`AGENT_EVENT_BYTES_MAX`] each at most 2 MiB.
pub const REMOTE_QUEUE_MAX: usize = 32;
/// Unacknowledged orders of one attempt: as many as the agent's connection would queue.
pub const REMOTE_ORDERS_MAX: usize = INBOX_INPUTS_MAX + FACT_DELIVERIES_MAX + 3;
/// A node without a call for this long is forgotten: its attempts here ended long before.
pub const REMOTE_NODE_KEPT: Duration = Duration::from_secs(3600);
/// Ended calls of one node that are remembered one by one by their number: more than a node has in progress at a
/// time; a still later call number is newer than any message in flight.
pub const REMOTE_ENDED_CALLS_MAX: usize = 16 * 1024;
/// Between two queries for nodes that serve an agent, while a run waits for one.
pub const REMOTE_QUERY_INTERVAL: Duration = Duration::from_millis(500);

// === time ===

/// A clock that differs by more than this from the node's time has stepped, and is not trusted. NTP's corrections
/// without a step and the differences between people's watches are smaller; a wrong zone, a lost battery or a bad
/// server causes more.
pub const CLOCK_STEP: Duration = Duration::from_secs(60);
/// A step is accepted once it has lasted for this long: longer than an NTP client needs to detect a lying server.
pub const CLOCK_STEP_CONFIRM: Duration = Duration::from_secs(30);
/// Readings of a clock that stepped agree while they differ by less than this.
pub const CLOCK_AGREEMENT: Duration = Duration::from_secs(5);
/// Readings of a clock that stepped agree only while less than this passes between them.
pub const CLOCK_READING_GAP_MAX: Duration = Duration::from_secs(10);
/// The time is corrected by at most one part in this many of the elapsed time: it runs at half or at one and a half
/// times its pace, so that it never stops or goes back, and 60 s are made up in two minutes.
pub const CLOCK_SLEW_PARTS: i64 = 2;
/// Between two readings of the system's clock: a glitch of one second is noticed, and the readings cost nothing.
pub const CLOCK_READ_INTERVAL: Duration = Duration::from_secs(1);
/// A difference between the system clock and the store's clock from which on a warning is logged: certificates of
/// agents and timestamps of logs depend on the system's clock.
pub const CLOCK_SKEW_WARN: Duration = Duration::from_secs(5);

// === ownership (ownership.md §1.6) ===

/// Duration of a node's lease.
pub const LEASE: Duration = Duration::from_secs(3);
/// Between two renewals, ± 10 %.
pub const LEASE_RENEW: Duration = Duration::from_millis(500);
/// Subtracted from the lease by its holder, for clock rate and scheduling: 300 ms and 1 %.
pub const LEASE_MARGIN: Duration = Duration::from_millis(330);
/// A node's death is accepted only after this much uninterrupted contact with the same store.
pub const LEASE_CONTACT: Duration = Duration::from_millis(3500);
/// Between two sweeps for sessions without an owner, doubled by jitter.
pub const SWEEP_INTERVAL: Duration = Duration::from_millis(750);
/// Sessions on one page of a sweep, and claims in flight at a time: enough that the round trip to the store hardly
/// counts, and few enough that the node's other messages do not wait.
pub const SWEEP_SESSIONS_MAX: u32 = 512;
/// Between two probes to the owner of a session with open turns that are shown here, and between two checks of its
/// node's lease.
pub const PROBE_INTERVAL: Duration = Duration::from_millis(250);
/// Between two digests to a node that has not acknowledged.
pub const TAIL_DIGEST_INTERVAL: Duration = Duration::from_secs(1);
/// A draining owner waits this long for a successor's reservation: two messages, and a store that is slow for a
/// moment.
pub const RESERVE_TIMEOUT: Duration = Duration::from_millis(250);
/// Between two checks of a successor whether a reserved session was handed over: the message may be lost.
pub const RESERVED_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// An owner keeps an idle session this long.
pub const OWNED_SESSION_LINGER: Duration = Duration::from_secs(2);
/// Base of the wait before an op of unknown outcome is retried; doubled by jitter.
pub const STORE_RETRY: Duration = Duration::from_millis(300);
/// Time for which the gateway tries to learn the outcome of an unanswered op, before it tells the client to retry:
/// one more try. A store that restarts is often back by then; the gateway does not wait for a store that is away.
pub const STORE_OUTCOME_TIMEOUT: Duration = Duration::from_millis(250);
/// Effects of a switchboard that have room without a new allocation: a command to every session may need more for once.
pub const EFFECTS_KEPT: usize = 1024;
/// Sessions in one list: each costs the store a read of its head.
pub const LIST_SESSIONS_MAX: u32 = 200;
/// Wait after a request that a live node of an earlier release does not know: nodes read each other's levels that often.
pub const UPGRADE_RETRY_AFTER: Duration = Duration::from_secs(10);
/// Names of annotations of one session: they lie in its head, which every op on the session reads and writes.
pub const ANNOTATION_NAMES_MAX: usize = 8;
/// Characters of one annotation, 256 bytes at most: part of one line in a list, for people.
pub const ANNOTATION_CHARACTERS_MAX: usize = 64;
/// The longest time between two stored touches of a binding: each is a write, and idle timeouts are hours.
pub const BINDING_TOUCH_INTERVAL: Duration = Duration::from_secs(60);
/// The time without a routed message after which a binding ends, unless the bind names another: a day, so that people
/// who answer the next morning are still understood.
pub const BINDING_IDLE_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
/// Changes of one conversation's binding that wait until the sessions' logs have them. A conversation is bound and
/// unbound by people; more changes in the second that a report takes are a loop, and wait.
pub const BINDING_REPORTS_MAX: usize = 8;
/// The time after which another node reports a change of a binding, because the node that made it may have stopped.
pub const BINDING_REPORT_DUE: Duration = Duration::from_secs(5);
/// The time that an ended binding is kept: long enough to explain an answer that was refused.
pub const BINDING_TOMBSTONE_KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Bindings of one session: a session is shown in a few places, and every message to it looks through them.
pub const SESSION_BINDINGS_MAX: usize = 64;
/// Blobs of one session, with its uploads under way: a long conversation with a few pictures a day. Their table is read
/// and written whole, some 50 KB at most.
pub const SESSION_BLOBS_MAX: usize = 256;
/// Bytes of the blobs of one session, with the room that is kept for uploads.
pub const SESSION_BLOB_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Attachments of one part of a delivery: what the large platforms take with a message (Discord: 10).
pub const ATTACHMENTS_MAX: usize = 10;
/// The time for which room is kept for an upload: the largest one by a line of 300 kbit/s takes 7 minutes.
pub const UPLOAD_KEPT: Duration = Duration::from_secs(10 * 60);
/// The time for which an adapter may add files to the session of a conversation once it has asked: the longest upload, and
/// others before it.
pub const UPLOAD_TOKEN_KEPT: Duration = Duration::from_secs(15 * 60);
/// Texts in a binding's metadata: a persona has a name, a picture, and a few properties. A row is read for every message.
pub const BINDING_METADATA_MAX: usize = 8;
/// Characters of one text in a binding's metadata: a name, or the address of a picture.
pub const BINDING_METADATA_CHARACTERS_MAX: usize = 256;
/// Rows of conversations in one of the two generations that the embedded store caches: the conversations of an hour in a
/// busy installation, about 5 MiB. A conversation that is not among them costs a look-up by the writer's thread.
pub const BINDING_CACHE_ROWS: usize = 8_192;
/// Bindings that one step of the expiry examines: a step takes the store some milliseconds.
pub const DUE_BINDINGS_MAX: u32 = 256;
/// Maximum capabilities that an adapter declares: about twice as many as are known.
pub const ADAPTER_CAPABILITIES_MAX: usize = 64;
/// Maximum conversations with capabilities of their own that are remembered for one connection: the threads that a busy
/// account writes to at a time. The oldest one is forgotten, and then has the capabilities of the connection.
pub const ADAPTER_CONVERSATIONS_MAX: usize = 1024;
/// Maximum edited messages of which a node knows the latest edit: those of a few minutes. An older one is found as it was
/// before its edit.
pub const EDITED_MESSAGES_MAX: usize = 1024;
/// Maximum characters of the id and of the name of a message's sender.
pub const SENDER_CHARACTERS_MAX: usize = 256;
/// Maximum adapter connections of one account at a node: a few that stand by.
pub const ADAPTER_LINKS_MAX: usize = 8;
/// Maximum accounts with adapters at a node.
pub const ADAPTER_ACCOUNTS_MAX: usize = 4096;
/// Maximum parts that one adapter is sending at a time: platforms send a few dozen messages a second.
pub const ADAPTER_IN_FLIGHT_MAX: usize = 64;
/// Maximum orders that wait for one adapter at its node; an owner repeats an order that finds no room.
pub const ADAPTER_QUEUE_MAX: usize = 1024;
/// Maximum orders for one account that a node has given to the adapter's node and repeats until they are answered: twice
/// as many as the adapter sends at a time, so that it need not wait for the next ones. Others wait at their own node: an
/// adapter that comes and goes with ten thousand deliveries pending must not have all of them sent to and fro each time.
pub const ACCOUNT_ORDERS_SENT_MAX: usize = 2 * ADAPTER_IN_FLIGHT_MAX;
/// Time for which a node remembers the parts of an account whose last adapter has left: a restart of the adapter.
pub const ADAPTER_DESK_KEPT: Duration = Duration::from_secs(5 * 60);
/// Maximum outcomes that are remembered for one account, for owners that ask again.
pub const ADAPTER_OUTCOMES_MAX: usize = 4096;
/// Time within which an adapter answers; after that, nobody knows whether the platform has the part.
pub const ADAPTER_ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Time after which an owner repeats an order that has no answer: the message may have been lost.
pub const DELIVERY_ORDER_REPEAT: Duration = Duration::from_secs(3);
/// Longest wait before an owner looks again for the adapter of an account that has none; an adapter that arrives tells
/// every node.
pub const ADAPTER_LOOKUP_WAIT_MAX: Duration = Duration::from_secs(30);
/// Maximum requests to pause or resume one account that wait for the store at a node: operators, not programs, send them.
pub const ACCOUNT_PAUSE_REQUESTS_MAX: usize = 8;
/// Maximum such requests of all accounts at a node, with the requests for lists.
pub const PAUSE_REQUESTS_MAX: usize = 256;
/// Maximum requests about the adapters of accounts that wait for the store at a node: each is two small reads, and people
/// and their scripts send them, not the messages of conversations.
pub const ACCOUNT_LOOKUPS_MAX: usize = 256;
/// Maximum conversations that one request looks up: their rows are read in one step, during which nobody else is served.
pub const CONVERSATIONS_RESOLVED_MAX: usize = 64;
/// Maximum requests that are refused, such as texts whose binding has ended, for which a node looks up whether they were
/// accepted before: each waits for one small read of the store.
pub const POSSIBLE_REPEATS_MAX: usize = 256;
/// Maximum paused accounts in the list of a tenant, which is one value of the store of some hundred kilobytes at most. A
/// further account is paused as well, and is listed once there is room and a node looks at it anew.
pub const PAUSED_ACCOUNTS_LISTED_MAX: usize = 128;
/// Maximum accounts whose adapter's node is remembered; the next order to another account reads the store.
pub const ADAPTER_LOCATIONS_MAX: usize = 16 * 1024;
/// Longest debounce of a channel: a larger value is taken for a typing error, because a person waits for an answer.
pub const DEBOUNCE_MAX: Duration = Duration::from_secs(30);
/// Bindings of one session whose conversations mirror its turns: each answer of a client's turn is recorded once more for
/// each of them.
pub const MIRRORS_MAX: usize = 8;
/// Characters of a channel's farewell: a sentence or two, and one message on every platform that is known.
pub const FAREWELL_CHARACTERS_MAX: usize = 300;
/// Longest time after which a channel's messages are stale: the time for which their ids are kept, since an older one may
/// be a repetition that nobody recognises.
pub const STALE_AFTER_MAX: Duration = Duration::from_millis(MESSAGE_ID_KEPT_MS);
/// Debounces after which a turn starts although its person writes on: the first message waits no longer.
pub const DEBOUNCE_WINDOWS_MAX: u32 = 5;
/// The time within which a new owner has read the messages that its predecessor did not record: a few reads of the inbox.
/// A turn that gathers messages waits for them.
pub const GATHERED_READ_WITHIN: Duration = Duration::from_millis(100);
/// Maximum bytes of inputs that one turn gathers: the prompt is no longer than one message may be.
pub const GATHERED_BYTES_MAX: u64 = MESSAGE_BYTES_MAX as u64;
/// Maximum bytes of an answer that are sent to a conversation: two dozen messages of Discord. All parts are in one fact,
/// which has room for [`FACT_DATA_BYTES_MAX`]; JSON may write a byte as two.
pub const DELIVERY_TEXT_BYTES_MAX: usize = 24 * 1024;
/// Time after which a typing signal is repeated: those of the large platforms last 5 to 10 s, and each costs a call.
pub const TYPING_REPEAT: Duration = Duration::from_secs(8);
/// Shortest time between two previews of an answer: platforms allow about one change of a message a second.
pub const PREVIEW_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes of an answer from which its first preview is shown at once: about a line. Most short answers need no preview.
pub const PREVIEW_BYTES_MIN: usize = 80;
/// Time after which a preview shows a shorter beginning.
pub const PREVIEW_FIRST_WAIT: Duration = Duration::from_secs(2);
/// Time after which a preview is not worth showing: the next ones have more text.
pub const PREVIEW_AGE_MAX: Duration = Duration::from_secs(10);
/// Ended answers of an account whose previews are not shown any more, should one be late: those of a few minutes.
pub const PREVIEWS_SEALED_MAX: usize = 1024;
/// Maximum deliveries of a session that are not sent; an adapter that is away for a day leaves as many.
pub const DELIVERIES_OPEN_MAX: usize = 256;
/// Maximum bytes of these deliveries: the session's snapshot, which may have [`FRAME_BYTES_MAX`], contains them.
pub const DELIVERIES_OPEN_BYTES_MAX: usize = 256 * 1024;
/// Maximum times that a session is opened for one message of its conversation, which needs one: more mean that somebody
/// closes the session as soon as it is open.
pub const MESSAGE_OPENS_MAX: u32 = 3;
/// Failed deliveries of a session that are kept for an operator; an older one is only in the log.
pub const DELIVERIES_FAILED_KEPT_MAX: usize = 8;
/// Places of a session that refused the gateway, to which nothing is sent; the oldest is forgotten. A session writes to few
/// places, and a forgotten one costs one more attempt.
pub const SUPPRESSED_PLACES_MAX: usize = 16;
/// Maximum buttons of one message: five rows of five, the most that Discord shows.
pub const BUTTONS_MAX: usize = 25;
/// Maximum bytes of a button's id: with the id of its delivery it fits into the 64 bytes that Telegram returns with a press.
pub const BUTTON_ID_BYTES_MAX: usize = 32;
/// Maximum characters of a button's label: those of Discord.
pub const BUTTON_LABEL_CHARACTERS_MAX: usize = 80;
/// Maximum bytes of an emoji, or of a platform's name of one: a Discord emoji has at most 32 characters and an id of 20.
pub const EMOJI_BYTES_MAX: usize = 64;
/// Edits, deletions and reactions that one run may ask for: a progress line that changes every few seconds for some
/// minutes. Each is a message to the platform in the lane of its conversation, before the answer.
pub const RUN_MESSAGE_CHANGES_MAX: usize = 64;
/// Answers of a session that can still be pressed, edited and deleted: the last ones that a person scrolls back to.
pub const RECENT_DELIVERIES_MAX: usize = 32;
/// Maximum bytes of the buttons of these answers: the session's snapshot contains them.
pub const RECENT_BUTTONS_BYTES_MAX: usize = 64 * 1024;
/// Time after which a delivery is not tried any more: an answer of yesterday confuses more than it helps.
pub const DELIVERY_AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Maximum attempts at one part: with waits up to [`DELIVERY_RETRY_MAX`] they take about as long as the maximum age.
pub const DELIVERY_ATTEMPTS_MAX: u32 = 300;
/// Longest wait before the second attempt; doubles with each attempt.
pub const DELIVERY_RETRY: Duration = Duration::from_secs(1);
/// Longest wait between two attempts, unless the platform asks for more.
pub const DELIVERY_RETRY_MAX: Duration = Duration::from_secs(5 * 60);
/// Shortest wait after a refused credential: each attempt with it may count against the account.
pub const DELIVERY_AUTH_RETRY: Duration = Duration::from_secs(60);
/// HTTP requests of one node that scan a list of sessions or a log, at a time: each keeps the store busy for up to
/// 10,000 facts, and the node's users share this.
pub const SCAN_REQUESTS_MAX: usize = 256;
/// Blobs that one node takes or sends at a time: each has a part of 256 KiB in memory, and the node's users share this.
pub const BLOB_TRANSFERS_MAX: usize = 256;
/// Bytes of the largest blob that an operator may allow: a session holds 16 of them.
pub const BLOB_BYTES_MAX: u64 = SESSION_BLOB_BYTES_MAX / 16;
/// Pause between two looks for stored bytes that no session names. They are harmless; each look asks the store about every
/// session with blobs.
pub const BLOB_SWEEP_INTERVAL: Duration = Duration::from_secs(10 * 60);
/// Deleted sessions whose bytes wait to be removed. More than that wait for the next look at all sessions.
pub const BLOB_SWEEPS_MAX: usize = 1024;
/// Largest random addition to that pause, as a share of it, so that the nodes of a fleet look at different times.
pub const BLOB_SWEEP_JITTER: f64 = 0.5;
/// Time for a TCP connection to an S3-compatible store: its client waits meanwhile.
pub const S3_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest pause of an S3-compatible store in a transfer, and before an answer: some close a connection after 20 s, too.
pub const S3_PAUSE_MAX: Duration = Duration::from_secs(20);
/// Connections to an S3-compatible store that are kept for further requests: as many downloads begin at a time on a busy
/// node.
pub const S3_IDLE_CONNECTIONS_MAX: usize = 32;
/// Time that they are kept: shorter than the idle time after which such stores close them.
pub const S3_IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// Bytes of a connection's buffers in each direction: with a part of a body, one transfer takes a few hundred KiB.
pub const S3_BUFFER_BYTES_MAX: usize = 64 * 1024;
/// Parts of an upload that wait for the connection to take them, beside the one that is being sent.
pub const S3_WAITING_PARTS_MAX: usize = 1;
/// Bytes of an error's answer that are read: its code is in the first few hundred.
pub const S3_ERROR_BYTES_MAX: usize = 8 * 1024;
/// Objects in one page of a list: some 150 KiB of XML.
pub const S3_PAGE_OBJECTS_MAX: usize = 500;
/// Bytes of one page, also from a store that sends its usual 1000 objects.
pub const S3_PAGE_BYTES_MAX: usize = 1024 * 1024;
/// Pages that one look at all sessions reads; the next one goes on behind them. The look asks the store about each session
/// in them.
pub const S3_PAGES_MAX: usize = 64;
/// Bytes of a file with credentials: session tokens have up to 4 KiB.
pub const S3_CREDENTIALS_BYTES_MAX: u64 = 16 * 1024;
/// Facts in one page of a read.
pub const READ_FACTS_MAX: u32 = 256;
/// Bytes of facts in one page of a read.
pub const READ_BYTES_MAX: usize = 512 * 1024;
/// Time that a draining node gives its running turns: in the rest of the 20 s of a deploy it has to record what still
/// runs, give its lease back and say goodbye.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(14);
/// Time for recording at the end of a drain; other nodes take over what is not recorded.
pub const DRAIN_RECORD_TIMEOUT: Duration = Duration::from_secs(2);

// === the wire between nodes, and snapshots ===

/// One binary frame or snapshot (S-14).
pub const FRAME_BYTES_MAX: usize = 1024 * 1024;
/// Messages in one frame: the shortest take a fortieth of their memory on the wire, so a hostile frame of full length
/// could otherwise take 40 MiB.
pub const FRAME_MESSAGES_MAX: usize = 1024;

// === the shell ===

/// Inputs queued for the switchboard: past it links are not read.
pub const DRIVER_QUEUE_MAX: usize = 4096;
/// Links that may come or go in one round of the scheduler, of some 60 steps. Each takes several steps and then a
/// replay of its sessions, so together they take no more than half of the work.
pub const LINK_CHANGES_PER_ROUND_MAX: usize = 8;
/// Inputs that the driver handles before it checks its timers again.
pub const DRIVER_BATCH_MAX: usize = 256;
/// Damaged sessions that one embedded store closes off at most, about 10 MiB of names: a disk with more damage is to
/// be replaced, and the process logs that and exits.
pub const STORE_DAMAGED_SESSIONS_MAX: usize = 100_000;
/// Size of a data file up to which every page is verified before use: at 1 GiB/s that takes 4 s. In a larger file
/// that was closed properly, damage is detected where it is read.
pub const STORE_VERIFIED_BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;
/// Ops waiting for the embedded store's writer; one batch is [`STORE_BATCH_MAX`].
pub const STORE_QUEUE_MAX: usize = 65_536;
/// Ops in one group commit.
pub const STORE_BATCH_MAX: usize = 512;
/// Free space the embedded store leaves: accepts are refused before the disk is full.
pub const STORE_RESERVE_BYTES: u64 = 64 * 1024 * 1024;
/// Total bytes of a store in memory: with the rest of the process some 4 GiB, the memory of a small machine. Such a
/// store is for trials and loses everything with the process; larger data belongs on a disk.
pub const MEMORY_STORE_BYTES_MAX: u64 = 2 * 1024 * 1024 * 1024;
/// Change in a session's size from which on it is counted for the user in Redis: otherwise each turn would write two
/// sums some four times, a quarter of the turn's cost there. A quota is exceeded by less than this for each owned
/// session.
pub const UNCOUNTED_BYTES_MAX: u64 = 4096;
/// Sessions examined in one step of a scan for `store.max_age`: some 5 ms of Redis.
pub const IDLE_SCAN_SESSIONS_MAX: u32 = 256;
/// Base of the wait between two such steps; doubled by jitter. A scan of a million sessions takes an hour and a half.
pub const IDLE_SCAN_STEP_WAIT: Duration = Duration::from_secs(1);
/// Base of the wait between two such scans; doubled by jitter.
pub const IDLE_SCAN_WAIT: Duration = Duration::from_secs(60);
/// Connections of one process (a process may open 20,000 files on many machines).
pub const CONNECTIONS_MAX: usize = 18_000;
/// QUIC connections of one process, which share one file: the highest value of `listen.quic_connections`. At some 40
/// KB each they take 4 GB, and one core answers their heartbeats.
pub const QUIC_CONNECTIONS_MAX: usize = 100_000;
/// Connections from one address other than this machine's (S-16): an office behind one address fits in, and 180 such
/// addresses fill a node.
pub const ADDRESS_CONNECTIONS_MAX: usize = 100;
/// `state` events of one attempt that are recorded; more are dropped and counted.
pub const AGENT_STATES_MAX: u32 = 1_000;

// === the chat in a terminal ===

/// Lines that are typed, or read from a pipe, ahead of the conversation.
pub const CHAT_LINES_MAX: usize = 64;
/// Text that waits for display while the editor is busy with keys (a search in the history): past it the chat waits,
/// and does not read from the gateway.
pub const CHAT_PENDING_BYTES_MAX: usize = 256 * 1024;
/// Lines in the history file: some weeks of use, and quick to read.
pub const CHAT_HISTORY_LINES_MAX: usize = 1_000;
/// The longest line that the history keeps: a longer line was pasted, and nobody searches the history for it.
pub const CHAT_HISTORY_LINE_BYTES_MAX: usize = 4 * 1024;
/// A larger history file was not written by this program, even with each byte escaped as two, and is not read.
pub const CHAT_HISTORY_BYTES_MAX: u64 = 2 * (CHAT_HISTORY_LINES_MAX * (CHAT_HISTORY_LINE_BYTES_MAX + 1)) as u64;
