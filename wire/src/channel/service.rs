//! The tenants that a serving connection (an agent that dials in, or a tool runner) may receive work from. The
//! gateway derives them from the connection's credential; the state machines only compare them.
use std::sync::Arc;
use turnway_core::id::TenantId;

/// The tenants whose sessions may give work to a serving connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TenantScope {
    /// Every tenant: the node's configuration names the credential's user, or asks for no credentials.
    AllTenants,
    /// One tenant: the credential's own.
    Tenant(TenantId),
}

/// The identity of a serving connection; two connections of one server have the same identity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerIdentity {
    pub tenants: TenantScope,
    /// The credential's public name; `None` if the node requires no credentials.
    pub credential: Option<Arc<str>>,
}

// === impl TenantScope ===

impl TenantScope {
    /// Returns whether sessions of `tenant` may give work to the connection.
    pub fn covers(&self, tenant: &TenantId) -> bool {
        match self {
            Self::AllTenants => true,
            Self::Tenant(own) => own == tenant,
        }
    }
}

// === impl ServerIdentity ===

impl ServerIdentity {
    /// Returns the identity of a server at a node that requires no credentials.
    pub fn local() -> Self {
        Self { tenants: TenantScope::AllTenants, credential: None }
    }
}
