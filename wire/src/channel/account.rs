//! Requests about the accounts that adapters serve, and their replies. Authority is checked where they are performed.
use turnway_core::id::{AccountId, ChannelName, TenantId};
use turnway_core::protocol::delivery::{AccountKey, PausedAccount};

/// An estimate of the bytes of a paused account on the wire, its misplaced part included.
const PAUSED_BYTES: usize = 1024;

/// An account of a platform, within the tenant of whoever names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedAccount {
    pub channel: ChannelName,
    pub account: AccountId,
}

/// A request about accounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccountCommand {
    /// Send nothing more for an account until it is resumed.
    Pause(NamedAccount),
    /// Send for an account again.
    Resume(NamedAccount),
    /// Return the paused accounts of the tenant.
    ListPaused,
}

/// The answer to a request about accounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccountReply {
    /// The account is paused.
    Paused {
        /// The pause that the account has: an earlier one stays.
        account: Box<PausedAccount>,
        /// The request has paused it.
        changed: bool,
    },
    /// The account is not paused.
    Resumed {
        account: NamedAccount,
        /// The request has resumed it.
        changed: bool,
    },
    /// The paused accounts, in the order of their names.
    Listed {
        accounts: Vec<PausedAccount>,
        /// The list is full: others may be paused.
        more: bool,
    },
}

// === impl NamedAccount ===

impl NamedAccount {
    /// Returns the account within a tenant.
    pub fn key(&self, tenant: &TenantId) -> AccountKey {
        AccountKey { tenant: tenant.clone(), channel: self.channel.clone(), account: self.account.clone() }
    }
}

// === impl AccountReply ===

impl AccountReply {
    /// Returns an estimate of the reply's size on the wire in bytes.
    pub fn weight(&self) -> usize {
        match self {
            Self::Paused { .. } => 256 + PAUSED_BYTES,
            Self::Resumed { .. } => 512,
            Self::Listed { accounts, .. } => 256 + PAUSED_BYTES * accounts.len(),
        }
    }
}
