//! Which sessions a connection that serves the gateway (an agent that dials in, a tool runner) may be given work of.
//! The gateway decides it from the connection's credential; the machines here only compare.
use std::sync::Arc;
use turnway_core::id::TenantId;

/// The tenants whose sessions a serving connection may be given work of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Every tenant: the node's configuration names the credential's user, or asks for no credentials.
    Everyone,
    /// One tenant: the credential's own.
    Tenant(TenantId),
}

/// The identity of a serving connection: two connections of one server have the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerIdentity {
    /// Whose work it may be given.
    pub reach: Reach,
    /// The credential's public name; none where the node asks for no credentials.
    pub credential: Option<Arc<str>>,
}

// === impl Reach ===

impl Reach {
    /// Returns whether work of this tenant's sessions may be given.
    pub fn covers(&self, tenant: &TenantId) -> bool {
        match self {
            Self::Everyone => true,
            Self::Tenant(own) => own == tenant,
        }
    }
}

// === impl ServerIdentity ===

impl ServerIdentity {
    /// Returns the identity of a server at a node that asks for no credentials.
    pub fn local() -> Self {
        Self { reach: Reach::Everyone, credential: None }
    }
}
