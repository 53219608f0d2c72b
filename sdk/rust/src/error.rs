//! What can go wrong before the gateway is even asked.

/// Why a call of this crate did nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The address is none this client can use.
    #[error("{url}: {why}")]
    BadUrl {
        /// The address.
        url: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// What [`crate::Options::ca`] has is no certificate in PEM.
    #[error("expected certificates in PEM")]
    BadCa,
    /// The gateway could not be reached, or would not have us.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// A name the gateway would not take; nothing was sent.
    #[error("not a valid {what}")]
    BadName {
        /// Of what.
        what: &'static str,
    },
    /// The gateway takes no message of this size; nothing was sent.
    #[error("the message has {bytes} bytes, the gateway takes {max}")]
    TooLarge {
        /// Its size on the wire.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// A limit of this client is reached; nothing was sent.
    #[error("too many {what}: at most {max}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The limit.
        max: usize,
    },
    /// The client has ended: it was closed, or the gateway has refused it for good.
    #[error("the client is closed")]
    Closed,
}
