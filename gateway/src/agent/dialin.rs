//! Agents that dial in (protocol.md §1.6): their connections ([`desk`]), and the attempts that run over one of them
//! (`call`). Events reach an attempt by a short queue of its own; while it is full, the agent is not read. An agent
//! that is connected only to another node is reached by [`lines`].
mod call;
pub mod desk;
pub mod lines;

pub(super) use call::run;
pub use desk::{Desk, Letter, Place};
pub use lines::Lines;

use crate::agent::dialin::desk::Extension;
use crate::config::ServedBy;
use std::collections::BTreeMap;
use std::sync::Arc;
use turnway_bindings::channel::service::Reach;
use turnway_bindings::link::Capabilities;
use turnway_core::id::AgentId;
use turnway_core::limits;

/// The registry of all agents that are configured to dial in. Clones share one registry.
#[derive(Clone, Debug)]
pub struct Exchange(Arc<BTreeMap<AgentId, Arc<Desk>>>);

/// A reason why a connection is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// No agent of this name dials in.
    Forbidden,
    /// The connection cannot resume after an event, and the agent's configuration requires that.
    Forgetful,
    /// The agent has its maximum of connections.
    Crowded,
}

// === impl Exchange ===

impl Exchange {
    /// Creates the registry, and registers it to receive the orders that other nodes send.
    pub(super) fn new(desks: BTreeMap<AgentId, Arc<Desk>>, lines: &Lines) -> Self {
        let this = Self(Arc::new(desks));
        lines.reach(this.clone());
        this
    }

    pub(super) fn desk(&self, agent: &AgentId) -> Option<&Arc<Desk>> {
        self.0.get(agent)
    }

    /// Returns the identities that the configuration lets serve an agent for every tenant; `None` if no such agent
    /// dials in.
    pub fn served_by(&self, agent: &AgentId) -> Option<&ServedBy> {
        self.0.get(agent).map(|desk| &desk.served_by)
    }

    /// Accepts a connection that may serve this agent for the tenants of `reach`.
    pub fn enter(&self, agent: &AgentId, capabilities: Capabilities, reach: Reach) -> Result<Place, NoPlace> {
        let desk = self.0.get(agent).ok_or(NoPlace::Forbidden)?;
        if desk.resumes && !capabilities.resume {
            return Err(NoPlace::Forgetful);
        }
        let line = Arc::new(Extension::new(capabilities, reach));
        if !desk.add(&line, limits::DIALIN_CONNECTIONS_MAX, limits::DIALIN_CONNECTIONS_OF_TENANT_MAX) {
            return Err(NoPlace::Crowded);
        }
        Ok(Place::new(Arc::clone(desk), line))
    }
}
