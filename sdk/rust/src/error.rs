//! The errors of this crate's own calls. Errors that the gateway reports are events.

/// The reason why a call of this crate did nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The client cannot use the address.
    #[error("{url}: {why}")]
    BadUrl {
        url: String,
        /// Problem of the address.
        why: &'static str,
    },
    /// [`crate::Options::ca`] holds no valid PEM certificates.
    #[error("expected certificates in PEM")]
    BadCa,
    /// The gateway could not be reached, or refused the client.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// The gateway would refuse the name; nothing was sent.
    #[error("not a valid {what}")]
    BadName {
        /// Kind of the name.
        what: &'static str,
    },
    /// The message exceeds the gateway's size limit; nothing was sent.
    #[error("the message has {bytes} bytes; the gateway accepts at most {max}")]
    TooLarge {
        /// Size of the encoded message in bytes.
        bytes: usize,
        /// Limit in bytes.
        max: usize,
    },
    /// A limit of this client is reached; nothing was sent.
    #[error("too many {what}: at most {max}")]
    TooMany {
        /// Kind of the limited items.
        what: &'static str,
        max: usize,
    },
    /// The gateway has refused a request of an adapter.
    #[error("the gateway refuses: {code}: {message}")]
    Refused {
        code: String,
        /// Text for people.
        message: String,
        /// True if the same request may succeed later.
        retryable: bool,
    },
    /// The connection was lost, and nobody knows whether the request was performed.
    #[error("no connection to the gateway; the request may have been performed")]
    ConnectionLost,
    /// The client has ended: it was closed, or the gateway refused it permanently.
    #[error("the client is closed")]
    Closed,
}
