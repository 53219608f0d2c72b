//! Agents that dial in (protocol.md §1.6): their connections ([`pool`]), and the attempts that run over one of them
//! (`call`). Events reach an attempt by a short queue of its own; while it is full, the agent is not read. An agent
//! that is connected only to another node is reached by [`remote_calls`].
mod call;
pub mod pool;
pub mod remote_calls;

pub(super) use call::run;
pub use pool::{AgentCommand, AgentConnectionPool, PoolRegistration};
pub use remote_calls::RemoteCalls;

use crate::agent::dialin::pool::AgentConnection;
use crate::config::ServedBy;
use std::collections::BTreeMap;
use std::sync::Arc;
use turnway_core::id::AgentId;
use turnway_core::limits;
use turnway_wire::channel::hello::DialInCapabilities;
use turnway_wire::channel::service::TenantScope;

/// The registry of all agents that are configured to dial in. Clones share one registry.
#[derive(Clone, Debug)]
pub struct AgentRegistry(Arc<BTreeMap<AgentId, Arc<AgentConnectionPool>>>);

/// A reason why a connection is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialInRefusal {
    /// No agent of this name dials in.
    Forbidden,
    /// The connection cannot resume after an event, and the agent's configuration requires that.
    ResumeRequired,
    /// The agent has its maximum of connections.
    TooManyConnections,
}

// === impl AgentRegistry ===

impl AgentRegistry {
    /// Creates the registry, and registers it to receive the orders that other nodes send.
    pub(super) fn new(pools: BTreeMap<AgentId, Arc<AgentConnectionPool>>, remote_calls: &RemoteCalls) -> Self {
        let this = Self(Arc::new(pools));
        remote_calls.set_registry(this.clone());
        this
    }

    pub(super) fn pool(&self, agent: &AgentId) -> Option<&Arc<AgentConnectionPool>> {
        self.0.get(agent)
    }

    /// Returns the identities that the configuration lets serve an agent for every tenant; `None` if no such agent
    /// dials in.
    pub fn served_by(&self, agent: &AgentId) -> Option<&ServedBy> {
        self.0.get(agent).map(|pool| &pool.served_by)
    }

    /// Accepts a connection that may serve this agent for the tenants of `reach`.
    pub fn register(
        &self,
        agent: &AgentId,
        capabilities: DialInCapabilities,
        reach: TenantScope,
    ) -> Result<PoolRegistration, DialInRefusal> {
        let pool = self.0.get(agent).ok_or(DialInRefusal::Forbidden)?;
        if pool.resumes && !capabilities.resume {
            return Err(DialInRefusal::ResumeRequired);
        }
        let connection = Arc::new(AgentConnection::new(capabilities, reach));
        if !pool.add(&connection, limits::DIALIN_CONNECTIONS_MAX, limits::DIALIN_CONNECTIONS_OF_TENANT_MAX) {
            return Err(DialInRefusal::TooManyConnections);
        }
        Ok(PoolRegistration::new(Arc::clone(pool), connection))
    }
}
