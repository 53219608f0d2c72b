//! The close codes of a connection: the same numbers in a WebSocket's close frame, in QUIC's `CONNECTION_CLOSE` and in
//! WebTransport's capsule. The connection machines of a node use the constants, and documents the table.

/// A close code, with its meaning for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseCode {
    pub number: u16,
    /// The cause, for the documents.
    pub summary: &'static str,
    /// The client should reconnect.
    pub reconnect: bool,
}

/// The peer has closed the connection.
pub const NORMAL: u16 = 1000;
/// Nothing was received for [`turnway_core::limits::IDLE_TIMEOUT`].
pub const IDLE: u16 = 1001;
/// A frame that RFC 6455 forbids.
pub const INVALID_FRAME: u16 = 1002;
/// A binary frame.
pub const BINARY: u16 = 1003;
/// Text that is not UTF-8.
pub const NOT_UTF8: u16 = 1007;
/// A bug in the gateway.
pub const INTERNAL_ERROR: u16 = 1011;
/// Too many malformed messages, or a broken stream of messages.
pub const MALFORMED: u16 = 4400;
/// No credential, an invalid one, or one that has ended.
pub const UNAUTHORIZED: u16 = 4401;
/// The credential does not allow the role.
pub const FORBIDDEN: u16 = 4403;
/// No `hello` within [`turnway_core::limits::HELLO_TIMEOUT`].
pub const HELLO_TIMEOUT: u16 = 4408;
/// The `runner_id` belongs to another credential or the `platform_bot_id` to another account, or another connection has
/// replaced this one.
pub const REPLACED: u16 = 4409;
/// A message over [`turnway_core::limits::MESSAGE_BYTES_MAX`].
pub const TOO_LARGE: u16 = 4413;
/// Too many connections, or too many messages that request nothing.
pub const RATE_LIMITED: u16 = 4429;
/// The node drains.
pub const DRAINING: u16 = 4503;
/// The client reads too slowly: see [`turnway_core::limits::STALL_TIMEOUT`].
pub const SLOW_READER: u16 = 4508;

/// All close codes, by number.
pub const CLOSE_CODES: [CloseCode; 15] = [
    code(NORMAL, "normal", true),
    code(IDLE, "nothing received for a minute", true),
    code(INVALID_FRAME, "a frame that RFC 6455 forbids", false),
    code(BINARY, "a binary frame", false),
    code(NOT_UTF8, "text that is not UTF-8", false),
    code(INTERNAL_ERROR, "a bug", true),
    code(MALFORMED, "too many malformed messages, or a broken stream of messages", false),
    code(UNAUTHORIZED, "unauthorized", false),
    code(FORBIDDEN, "forbidden", false),
    code(HELLO_TIMEOUT, "no `hello` in time", true),
    code(
        REPLACED,
        "replaced, or the `runner_id` is another credential's, or the `platform_bot_id` another account's",
        false,
    ),
    code(TOO_LARGE, "a message that is too large", false),
    code(RATE_LIMITED, "too much before `welcome`, or too many messages that request nothing", true),
    code(DRAINING, "draining", true),
    code(SLOW_READER, "the client reads too slowly", true),
];

const fn code(number: u16, summary: &'static str, reconnect: bool) -> CloseCode {
    CloseCode { number, summary, reconnect }
}
