//! Decides for which tenants a connection may serve as an agent or a tool runner. The decision depends on its
//! credential and the configuration, never on its scopes within the tenant (D12).
use super::AuthenticatedClient;
use super::service_grants::{ServiceGrants, ServiceRole};
use crate::config::ServedBy;
use turnway_core::id::{Principal, UserId};
use turnway_wire::channel::adapter::AdapterHello;
use turnway_wire::channel::service::{ServerIdentity, TenantScope};

/// The extent of what a credential may serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceScope {
    /// Anything, for every tenant: the node requires no credential and listens on loopback.
    Anything,
    /// The grants of its key, for its own tenant; and what the configuration names its user for, for every tenant.
    Own(ServiceGrants),
    /// Nothing: the connection acts as another user (`act_as`), and a delegation confers no role.
    Nothing,
}

impl AuthenticatedClient {
    /// Returns the identity with which a connection serves in this role, or `None` if it may not. `served_by` names the
    /// users that the configuration allows to serve the whole node.
    pub fn service_identity(&self, role: ServiceRole<'_>, served_by: &ServedBy) -> Option<ServerIdentity> {
        let reach = match &self.service {
            ServiceScope::Anything => Some(TenantScope::AllTenants),
            ServiceScope::Nothing => None,
            ServiceScope::Own(_) if self.principal.writes && served_by.admits(&self.principal) => {
                Some(TenantScope::AllTenants)
            }
            ServiceScope::Own(serves) if serves.allows(role) => {
                Some(TenantScope::Tenant(self.principal.tenant.clone()))
            }
            ServiceScope::Own(_) => None,
        };
        Some(ServerIdentity { tenants: reach?, credential: self.credential_key().map(Into::into) })
    }

    /// Returns the principal of a connection that serves an account of a platform, or `None` if the credential does not
    /// allow it. The adapter acts as the account, whatever the user of the credential is.
    pub fn adapter_principal(&self, adapter: &AdapterHello) -> Option<Principal> {
        let may_serve = match &self.service {
            ServiceScope::Anything => true,
            ServiceScope::Own(grants) => grants.allows(ServiceRole::Adapter(adapter)),
            ServiceScope::Nothing => false,
        };
        let user = UserId::of_account(&adapter.channel, &adapter.account);
        let tenant = self.principal.tenant.clone();
        may_serve.then_some(Principal { tenant, user, operator: false, writes: true })
    }
}
