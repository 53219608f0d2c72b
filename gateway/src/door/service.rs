//! Whose work a connection may be given that serves the node as an agent or a tool runner: decided by its credential and
//! the configuration, never by its tenant's scopes (D12).
use super::Admitted;
use super::serves::{Serves, Serving};
use crate::config::ServedBy;
use turnway_bindings::channel::service::{Reach, ServerIdentity};

/// What a credential lets its bearer serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// Anything, for every tenant: the node asks nobody for a credential, and is on loopback.
    Anything,
    /// What its key was made for, for its own tenant; and what the configuration names its user for, for every tenant.
    Own(Serves),
    /// Nothing: it acts as somebody else (`act_as`), and no delegation is a role.
    Nothing,
}

impl Admitted {
    /// Returns as whom a connection serves in this role; none: it may not. `served_by`: whom the configuration lets serve
    /// the whole node.
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
