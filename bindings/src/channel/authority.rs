//! Who may do what: every operation passes here (S-06). Authority comes only from the principal of
//! the connection, never from a message.
use turnway_core::id::{Principal, UserId};
use turnway_core::protocol::refusal::{Code, Refusal};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
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
    /// `switch_agent`, `invite_agent`, `remove_agent`.
    Members,
    /// `handover_decision`.
    Decide,
}

impl Action {
    /// All of them: the matrix test has a row for each.
    pub const ALL: [Self; 7] =
        [Self::Open, Self::Close, Self::Read, Self::Invoke, Self::Cancel, Self::Members, Self::Decide];
    /// Whether it changes anything.
    pub fn writes(self) -> bool {
        match self {
            Self::Open | Self::Close | Self::Invoke | Self::Cancel | Self::Members | Self::Decide => true,
            Self::Read => false,
        }
    }
    /// Whether it makes a session that does not exist.
    pub fn creates(self) -> bool {
        match self {
            Self::Open | Self::Invoke => true,
            Self::Close | Self::Read | Self::Cancel | Self::Members | Self::Decide => false,
        }
    }
}

/// Decides what a principal may do at all, whatever it is done to: so the answer tells nothing about that.
pub fn permit(principal: &Principal, action: Action) -> Result<(), Refusal> {
    if principal.writes || !action.writes() {
        return Ok(());
    }
    Err(Refusal::new(Code::Forbidden, "this credential may only read"))
}

/// Decides. `owner` is whose the session is, within the principal's tenant; none: there is no such
/// session. A foreign session is answered exactly as one that does not exist.
pub fn authorize(principal: &Principal, action: Action, owner: Option<&UserId>) -> Result<(), Refusal> {
    let allowed = match owner {
        Some(owner) => principal.operator || *owner == principal.user,
        None => action.creates(),
    };
    if allowed { Ok(()) } else { Err(Refusal::not_found()) }
}
