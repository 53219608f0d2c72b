//! Decides for which tenants a connection may serve as an agent or a tool runner. The decision depends on its
//! credential and the configuration, never on its scopes within the tenant (D12).
use super::Admitted;
use super::serves::{Serves, Serving};
use crate::config::ServedBy;
use turnway_bindings::channel::service::{Reach, ServerIdentity};

/// The extent of what a credential may serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// Anything, for every tenant: the node requires no credential and listens on loopback.
    Anything,
    /// The grants of its key, for its own tenant; and what the configuration names its user for, for every tenant.
    Own(Serves),
    /// Nothing: the connection acts as another user (`act_as`), and a delegation confers no role.
    Nothing,
}

impl Admitted {
    /// Returns the identity with which a connection serves in this role, or `None` if it may not. `served_by` names the
    /// users that the configuration allows to serve the whole node.
    pub fn serves(&self, role: Serving<'_>, served_by: &ServedBy) -> Option<ServerIdentity> {
        let reach = match &self.service {
            Service::Anything => Some(Reach::Everyone),
            Service::Nothing => None,
            Service::Own(_) if self.principal.writes && served_by.admits(&self.principal) => {
                Some(Reach::Everyone)
            }
            Service::Own(serves) if serves.allows(role) => Some(Reach::Tenant(self.principal.tenant.clone())),
            Service::Own(_) => None,
        };
        Some(ServerIdentity { reach: reach?, credential: self.bearer().map(Into::into) })
    }
}
