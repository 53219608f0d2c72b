//! Every limit of the client, each with its reason. Unit last, qualifier last of all.
use std::time::Duration;

// === what lies in memory ===

/// Events the application has not taken: past it the socket is not read, so the gateway slows down.
pub const EVENTS_MAX: usize = 1024;
/// Commands the driver has not taken.
pub const COMMANDS_MAX: usize = 64;
/// Sessions of one client: the gateway allows a link so many subscriptions.
pub const SESSIONS_MAX: usize = 64;
/// Inputs of one session that have not ended: more than the gateway lets wait, so that it decides.
pub const INPUTS_MAX: usize = 64;
/// Requests of one session, other than inputs, that wait for an answer.
pub const ASKS_MAX: usize = 64;
/// Open runs of one session that text is assembled for; the gateway takes so many in a `subscribe`.
pub const RUNS_MAX: usize = 64;
/// What is told of a run's end before `done`.
pub const LAST_WORDS_MAX: usize = 4;
/// Ended runs a session remembers, so that late text does not bring them back.
pub const ENDED_RUNS_MAX: usize = 64;
/// Text of one attempt; the gateway's own limit is 4 MiB.
pub const TEXT_BYTES_MAX: usize = 8 * 1024 * 1024;

// === what goes over the wire ===

/// One message to the gateway until `welcome` has told its limit.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// `hello`: the gateway takes no longer one from somebody it does not know. What does not fit into
/// its `resume` is subscribed to after `welcome`.
pub const HELLO_BYTES_MAX: usize = 4 * 1024;
/// One message from the gateway: 4 MiB of text as one delta, each byte escaped as six.
pub const INCOMING_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Streams that the gateway may have open (QUIC): each carries the text of one attempt, and each session speaks in
/// one at a time.
pub const STREAMS_MAX: u32 = 128;
/// What lies unread in one stream; the gateway keeps no more than that for one either.
pub const STREAM_BYTES_MAX: u32 = 64 * 1024;
/// What lies unread in all of them: half of them may be full, and the control stream goes on.
pub const STREAMS_BYTES_MAX: u32 = STREAMS_MAX / 2 * STREAM_BYTES_MAX;
/// What is sent and not acknowledged.
pub const SEND_BYTES_MAX: u64 = 1024 * 1024;

// === the life of a connection ===

/// A run's end that has overtaken its text waits so long for more of it (QUIC); then the text is asked for.
pub const TEXT_TIMEOUT: Duration = Duration::from_secs(2);

/// From dialling to an open connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// From `hello` to `welcome`.
pub const WELCOME_TIMEOUT: Duration = Duration::from_secs(10);
/// One message must have been written within this, or the connection counts as lost.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Without a byte from the gateway for this long the connection is lost (it pings every 25 s).
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// After so much silence the client asks whether anybody is there.
pub const PING_AFTER: Duration = Duration::from_secs(35);
/// The same while something is awaited. A machine that has lost its power says nothing, and over QUIC neither does a
/// process that was killed: that is to be noticed soon, and to ask costs next to nothing.
pub const WAITING_PING_AFTER: Duration = Duration::from_secs(2);
/// The same over QUIC, where nothing tells that the way leads to another node now, or to none: this long in mid-answer.
/// A router that gave the client another port learns of it by this question, and the answer goes on.
pub const QUIC_PING_AFTER: Duration = Duration::from_millis(400);
/// It doubles up to this while nothing comes but answers to it: an agent may think for long, and of many clients that
/// wait each costs its node one question in a second.
pub const QUIC_PING_AFTER_MAX: Duration = Duration::from_secs(1);
/// From the question until another connection is tried beside this one (QUIC); whichever speaks first stays. Silent
/// for 1.8 s at the most, and there on any road of less than 50 ms before 2 s are over. Longer where the gateway's
/// last answer took more than half of this: a network that is only slow is not given a second connection each time.
pub const QUIC_SPARE_AFTER: Duration = Duration::from_millis(800);
/// And then the connection is lost, 4 s after the question however late that came: a gateway that is merely busy has
/// answered by then.
pub const WAITING_TIMEOUT: Duration = Duration::from_secs(6);
/// A polite close may take this long.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// First wait before a reconnect; doubled by each failure, halved at most by jitter.
pub const BACKOFF_BASE: Duration = Duration::from_millis(250);
/// Longest wait before a reconnect.
pub const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Least wait after 4429: the gateway has said that it is too much.
pub const BACKOFF_RATE_LIMITED: Duration = Duration::from_secs(5);
/// A connection that lasted so long was a good one: the next failure counts as the first.
pub const STABLE_AFTER: Duration = Duration::from_secs(10);

// === requests ===

/// A request the gateway refuses "for now" is repeated for so long, then surfaced.
pub const RETRY_BUDGET: Duration = Duration::from_secs(120);
/// Wait before a repeat where the gateway names none; doubled each time.
pub const RETRY_BASE: Duration = Duration::from_millis(500);
/// Longest wait before a repeat.
pub const RETRY_MAX: Duration = Duration::from_secs(10);
/// Repairs (subscribing again at the cursor) without progress; then what is there is reported.
pub const REPAIRS_MAX: u32 = 3;
/// Wait before the second repair; doubled each time.
pub const REPAIR_BASE: Duration = Duration::from_millis(100);
