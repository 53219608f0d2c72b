//! Requests about the accounts that adapters serve, and their replies. Authority is checked where they are performed.
use super::adapter::AdapterCapabilities;
use turnway_core::id::{AccountId, ChannelName, NodeId, TenantId};
use turnway_core::protocol::delivery::{AccountKey, AccountPause, PausedAccount};
use turnway_core::time::Millis;

/// An estimate of the bytes of a paused account on the wire, its misplaced part included.
const PAUSED_BYTES: usize = 1024;
/// An estimate of the bytes of a capability on the wire.
const CAPABILITY_BYTES: usize = 64;

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
    /// Return whether an adapter serves an account, and the adapter's capabilities.
    Show(NamedAccount),
}

/// The state of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountView {
    pub account: NamedAccount,
    /// `None`: no adapter serves the account.
    pub service: Option<AccountService>,
    pub pause: Option<AccountPause>,
}

/// The connection of an adapter that serves an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountService {
    pub node: NodeId,
    /// The time since which the connection has the account's lease.
    pub since: Millis,
    /// The capabilities of the connection, without those of single conversations. `None`: a node of an earlier release has
    /// the connection, and does not store them.
    pub capabilities: Option<AdapterCapabilities>,
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
    Shown(Box<AccountView>),
}

// === impl NamedAccount ===

impl NamedAccount {
    /// Returns the account within a tenant.
    pub fn key(&self, tenant: &TenantId) -> AccountKey {
        AccountKey { tenant: tenant.clone(), channel: self.channel.clone(), account: self.account.clone() }
    }
}

// === impl AccountView ===

impl AccountView {
    /// Returns whether the account's adapter makes conversations; `None` if no adapter serves the account, or if its
    /// capabilities are not known.
    pub fn creates_conversations(&self) -> Option<bool> {
        let capabilities = self.service.as_ref()?.capabilities.as_ref()?;
        Some(capabilities.creates_conversations())
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
            Self::Shown(view) => {
                let capabilities = view.service.as_ref().and_then(|service| service.capabilities.as_ref());
                512 + PAUSED_BYTES + CAPABILITY_BYTES * capabilities.map_or(0, |known| known.0.len())
            }
        }
    }
}
