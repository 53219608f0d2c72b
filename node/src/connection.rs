//! The duties that connections of every role share. Clients, agents and tool runners plug their messages in; the
//! machines of the roles are in [`crate::link`], [`crate::dialin`] and [`crate::runner`].
mod expiry;

pub use expiry::TokenExpiry;

use turnway_core::time::Millis;

/// The result of authenticating a new credential on an open connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefreshOutcome {
    /// Accepted; the credential expires at this time.
    Until(Millis),
    /// Not needed: the link's present credential does not expire by itself.
    NotRequired,
    /// Invalid, or of another user (4401).
    Denied,
    /// Not checked: too many requests.
    RateLimited,
}
