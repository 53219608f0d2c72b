//! Every limit of the client, with its reason. Names end with the unit, then the qualifier.
use std::time::Duration;

// === what lies in memory ===

/// Events that the application has not taken; at this limit the socket is not read, so the gateway slows down.
pub const EVENTS_MAX: usize = 1024;
/// Commands that the driver has not taken.
pub const COMMANDS_MAX: usize = 64;
/// Sessions of one client: the gateway allows this many subscriptions for each link.
pub const SESSIONS_MAX: usize = 64;
/// Unfinished inputs of one session: more than the gateway's limit for waiting inputs, so that the gateway decides.
pub const INPUTS_MAX: usize = 64;
/// Requests of one session, other than inputs, that wait for an answer.
pub const REQUESTS_MAX: usize = 64;
/// Open runs of one session whose text is assembled; the gateway accepts this many in a `subscribe`. The end of a run
/// beyond it is delivered without text.
pub const RUNS_MAX: usize = 64;
/// Messages about a run's end that are held until `done`.
pub const END_NOTES_MAX: usize = 4;
/// Ended runs that a session remembers, so that late text does not reopen them.
pub const ENDED_RUNS_MAX: usize = 64;
/// Bytes of text of one attempt; the gateway's own limit is 4 MiB.
pub const TEXT_BYTES_MAX: usize = 8 * 1024 * 1024;

// === what goes over the wire ===

/// Bytes of one message to the gateway until `welcome` has named the limit.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Bytes of `hello`: the gateway accepts no longer one before authentication. Sessions that do not fit into its
/// `resume` are subscribed to after `welcome`.
pub const HELLO_BYTES_MAX: usize = 4 * 1024;
/// Bytes of one message from the gateway: 4 MiB of text as one delta, each byte escaped as six.
pub const INCOMING_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Streams that the gateway may have open (QUIC): each carries the text of one attempt, and a session has one at a
/// time.
pub const STREAMS_MAX: u32 = 128;
/// Unread bytes in one stream; the gateway buffers no more for one either.
pub const STREAM_BYTES_MAX: u32 = 64 * 1024;
/// Unread bytes in all streams: half of the streams may be full while the control stream continues.
pub const STREAMS_BYTES_MAX: u32 = STREAMS_MAX / 2 * STREAM_BYTES_MAX;
/// Bytes sent but not acknowledged.
pub const SEND_BYTES_MAX: u64 = 1024 * 1024;

// === the life of a connection ===

/// Time that a run's end which arrived before its text waits for more text (QUIC); then the text is requested.
pub const TEXT_TIMEOUT: Duration = Duration::from_secs(2);

/// Time from dialling to an open connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time from `hello` to `welcome`.
pub const WELCOME_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for writing one message; after it the connection counts as lost.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time without a byte from the gateway after which the connection counts as lost (the gateway pings every 25 s).
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Silence after which the client sends a ping.
pub const PING_AFTER: Duration = Duration::from_secs(35);
/// The same while an answer is awaited. A machine without power sends nothing, and over QUIC neither does a killed
/// process: this has to be noticed soon, and a ping costs almost nothing.
pub const WAITING_PING_AFTER: Duration = Duration::from_secs(2);
/// The same over QUIC in the middle of an answer, where nothing tells that packets now reach another node or none. A
/// router that gave the client another port learns of the client by this ping, and the answer continues.
pub const QUIC_PING_AFTER: Duration = Duration::from_millis(400);
/// Bound to which the ping interval doubles while only pongs arrive: an agent may think for long, and of many waiting
/// clients each costs its node one ping a second.
pub const QUIC_PING_AFTER_MAX: Duration = Duration::from_secs(1);
/// Time from the ping until a second connection is tried (QUIC); the first one on which a message arrives stays. The
/// silence lasts 1.8 s at most, and the second connection is up within 2 s on any path with less than 50 ms. Longer
/// if the last pong took more than half of this time: a slow network is not given a second connection each time.
pub const QUIC_SPARE_AFTER: Duration = Duration::from_millis(800);
/// Silence after which a connection with an awaited answer is lost, 4 s after the ping however late the ping was: a
/// gateway that is merely busy has answered by then.
pub const WAITING_TIMEOUT: Duration = Duration::from_secs(6);
/// Time for a clean close.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// First delay before a reconnect; doubled by each failure, reduced by jitter to no less than half.
pub const BACKOFF_BASE: Duration = Duration::from_millis(250);
/// Maximum delay before a reconnect.
pub const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Minimum delay after close code 4429, by which the gateway limits the rate.
pub const BACKOFF_RATE_LIMITED: Duration = Duration::from_secs(5);
/// Lifetime from which a connection counts as stable: the next failure counts as the first.
pub const STABLE_AFTER: Duration = Duration::from_secs(10);

// === requests ===

/// Time for which a temporarily refused request is repeated before the error is reported.
pub const RETRY_BUDGET: Duration = Duration::from_secs(120);
/// Delay before a repeat if the gateway names none; doubled each time.
pub const RETRY_BASE: Duration = Duration::from_millis(500);
/// Maximum delay before a repeat.
pub const RETRY_MAX: Duration = Duration::from_secs(10);
/// Repairs (new subscriptions at the cursor) without progress, after which the incomplete text is reported.
pub const REPAIRS_MAX: u32 = 3;
/// Delay before the second repair without progress; the first one has none, and each later one has twice the delay of
/// the one before.
pub const REPAIR_BASE: Duration = Duration::from_millis(100);

// === adapters: orders of the gateway ===

/// Orders that are performed at a time, unless the author chooses another number: half of what the gateway gives an
/// adapter, because most platforms limit the rate long before.
pub const ORDERS_AT_A_TIME: usize = 32;
/// Orders that run or wait. The gateway has at most 64 parts at an adapter, so that more come only from a broken one;
/// the surplus is answered `not_sent`.
pub const ORDERS_MAX: usize = 256;
/// Orders whose outcome is remembered: as many as a node remembers of an account, so that neither asks again what the
/// other still knows.
pub const OUTCOMES_MAX: usize = 4096;
/// Time in which the same attempt that comes twice is one attempt: a session's owner repeats an order every 3 s. Later
/// the same number is a new attempt, because an operator's `retry` counts from 1 again.
pub const REPEATED_ORDER_WINDOW: Duration = Duration::from_secs(5);
/// Time from an order to its report: the gateway regards a part without an answer as unknown after 60 s.
pub const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(55);
/// Time for which an order may wait for its turn: the platform then still has 30 s for its answer.
pub const ORDER_WAIT: Duration = Duration::from_secs(25);
/// Conversations with signals (typing, previews) at a time: as many as a node remembers of a connection. Further
/// signals are dropped.
pub const SIGNAL_LANES_MAX: usize = 1024;
/// Signals of a conversation that wait for the one that is performed. A conversation has one typing state and one
/// preview in each turn, so that more means that the platform does not answer; the oldest is dropped.
pub const SIGNALS_MAX: usize = 16;
/// Time for performing a signal; after it the signal is worth nothing.
pub const SIGNAL_TIMEOUT: Duration = Duration::from_secs(30);
/// Time that running orders get when the adapter is stopped. Orders that have not ended are unknown to the gateway.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(10);

// === adapters: requests to the gateway, which takes 64 of a connection at a time ===

/// Events without an answer on a connection.
pub const INBOUND_AT_A_TIME: usize = 32;
/// Declarations of capabilities without an answer on a connection.
pub const DECLARATIONS_AT_A_TIME: usize = 16;
/// Other requests without an answer on a connection.
pub const PLAIN_REQUESTS_AT_A_TIME: usize = 16;
/// Calls of `forward` that have no answer; more of them wait. Twice what is sent at a time.
pub const FORWARDS_MAX: usize = 64;
/// Calls of `declare` that wait for an answer: enough for one in each of the busiest conversations.
pub const DECLARATIONS_MAX: usize = 64;
/// Conversations with capabilities of their own: a node remembers as many of a connection.
pub const OWN_CAPABILITIES_MAX: usize = 1024;
/// Capabilities of one declaration; the gateway takes no more.
pub const CAPABILITIES_MAX: usize = 64;
/// Smallest limit of a text: the gateway counts a smaller one as this.
pub const TEXT_LIMIT_MIN: u32 = 64;
/// Time for an answer of the gateway; the request counts as lost after it.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// First delay before an event is sent again; doubled each time.
pub const INBOUND_RETRY_BASE: Duration = Duration::from_millis(500);
/// Maximum delay before an event is sent again, and before a platform is read again: people wait for the answer.
pub const INBOUND_RETRY_MAX: Duration = Duration::from_secs(30);

// === adapters: the platform's updates ===

/// Updates of the feed that are on their way: half of `INBOUND_AT_A_TIME`, so that calls of `forward` find room.
pub const FEED_WINDOW_MAX: usize = 16;
/// Updates of one reading; the surplus is read again. Ten times what a chat platform gives at a time.
pub const UPDATES_MAX: usize = 1000;
/// Minimum time between two readings if the first one has brought nothing: a platform that does not wait for updates is
/// not asked in a loop.
pub const EMPTY_READ_INTERVAL: Duration = Duration::from_secs(1);
/// First delay before the platform is read again after a failure; doubled each time.
pub const FEED_RETRY_BASE: Duration = Duration::from_secs(1);

// === adapters: the connection ===

/// Silence after which an adapter sends a ping. Orders come unasked, and people wait for the answers in them.
pub const ADAPTER_PING_AFTER: Duration = Duration::from_secs(10);
/// Silence after which an adapter's connection counts as lost.
pub const ADAPTER_IDLE_TIMEOUT: Duration = Duration::from_secs(20);
