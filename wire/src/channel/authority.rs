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
    /// `bind`, `unbind`, `touch`, `set_binding_expiry`: only operators.
    Bind,
    /// `resolve`: only operators, because the answer names a session of any user.
    ReadBindings,
    /// `pause_account`, `resume_account`: only operators.
    PauseAccount,
    /// `list_paused_accounts`, `show_account`: only operators, because the answer names sessions of any user.
    ReadAccounts,
    /// `inbound`, `delivered`: only adapters.
    Adapt,
}

impl ClientOperation {
    /// All operations; the matrix test has a row for each.
    pub const ALL: [Self; 12] = [
        Self::Open,
        Self::Close,
        Self::Read,
        Self::Invoke,
        Self::Cancel,
        Self::Change,
        Self::Decide,
        Self::Bind,
        Self::ReadBindings,
        Self::PauseAccount,
        Self::ReadAccounts,
        Self::Adapt,
    ];
    /// Returns whether the operation changes a session.
    pub fn writes(self) -> bool {
        match self {
            Self::Open
            | Self::Close
            | Self::Invoke
            | Self::Cancel
            | Self::Change
            | Self::Decide
            | Self::Bind
            | Self::PauseAccount
            | Self::Adapt => true,
            Self::Read | Self::ReadBindings | Self::ReadAccounts => false,
        }
    }
    /// Returns whether the operation is reserved for operators of the tenant. A conversation belongs to an account of the
    /// gateway and not to a user: whoever binds it decides who reads it.
    pub fn needs_operator(self) -> bool {
        match self {
            Self::Bind | Self::ReadBindings | Self::PauseAccount | Self::ReadAccounts => true,
            Self::Open
            | Self::Close
            | Self::Read
            | Self::Invoke
            | Self::Cancel
            | Self::Change
            | Self::Decide
            | Self::Adapt => false,
        }
    }
    /// Returns whether the operation creates a session that does not exist.
    pub fn creates(self) -> bool {
        match self {
            Self::Open | Self::Invoke => true,
            Self::Close
            | Self::Read
            | Self::Cancel
            | Self::Change
            | Self::Decide
            | Self::Bind
            | Self::ReadBindings
            | Self::PauseAccount
            | Self::ReadAccounts
            | Self::Adapt => false,
        }
    }
}

/// Checks whether a principal may perform an operation at all. The check ignores the session, so a refusal reveals
/// nothing about the session.
pub fn check_access(principal: &Principal, action: ClientOperation) -> Result<(), Refusal> {
    if action.writes() && !principal.writes {
        return Err(Refusal::new(Code::Forbidden, "this credential is read-only"));
    }
    if action.needs_operator() && !principal.operator {
        let is_of_accounts = matches!(action, ClientOperation::PauseAccount | ClientOperation::ReadAccounts);
        let why = if is_of_accounts {
            "only an operator of the tenant pauses and resumes accounts, and reads their state"
        } else {
            "only an operator of the tenant binds conversations and looks bindings up"
        };
        return Err(Refusal::new(Code::Forbidden, why));
    }
    Ok(())
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
