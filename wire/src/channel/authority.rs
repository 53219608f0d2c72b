//! Authorisation of client operations: every operation is checked here (S-06). Authority comes only from the
//! principal of the connection, never from a message.
use turnway_core::id::{Principal, UserId};
use turnway_core::protocol::refusal::{Code, Refusal};

/// An operation that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientOperation {
    /// `session_open`.
    Open,
    /// `session_close`.
    Close,
    /// `subscribe`, `unsubscribe`, and every read of a session or of a list of them.
    Read,
    /// `agent_invoke`.
    Invoke,
    /// `cancel_run`.
    Cancel,
    /// Changes of a session's own data: `switch_agent`, `invite_agent`, `remove_agent`.
    Change,
    /// `handover_decision`.
    Decide,
}

impl ClientOperation {
    /// All operations; the matrix test has a row for each.
    pub const ALL: [Self; 7] =
        [Self::Open, Self::Close, Self::Read, Self::Invoke, Self::Cancel, Self::Change, Self::Decide];
    /// Returns whether the operation changes a session.
    pub fn writes(self) -> bool {
        match self {
            Self::Open | Self::Close | Self::Invoke | Self::Cancel | Self::Change | Self::Decide => true,
            Self::Read => false,
        }
    }
    /// Returns whether the operation creates a session that does not exist.
    pub fn creates(self) -> bool {
        match self {
            Self::Open | Self::Invoke => true,
            Self::Close | Self::Read | Self::Cancel | Self::Change | Self::Decide => false,
        }
    }
}

/// Checks whether a principal may perform an operation at all. The check ignores the session, so a refusal reveals
/// nothing about the session.
pub fn check_access(principal: &Principal, action: ClientOperation) -> Result<(), Refusal> {
    if principal.writes || !action.writes() {
        return Ok(());
    }
    Err(Refusal::new(Code::Forbidden, "this credential is read-only"))
}

/// Checks whether a principal may perform an operation on a session. `owner` is the session's user within the
/// principal's tenant, or `None` if no such session exists. Another user's session is answered exactly as a session
/// that does not exist.
pub fn authorize(principal: &Principal, action: ClientOperation, owner: Option<&UserId>) -> Result<(), Refusal> {
    let allowed = match owner {
        Some(owner) => principal.operator || *owner == principal.user,
        None => action.creates(),
    };
    if allowed { Ok(()) } else { Err(Refusal::not_found()) }
}
