//! Agents that dial in (protocol.md §1.6): their connections, and the attempts that run over one of them.
//!
//! A connection has a [`Line`](super::attempt::Line)'s other end: orders wait in its [`Extension`] until its task takes
//! them, and what its agent says goes to the attempt by a queue of the attempt's own, which is short, so that what is
//! not taken is not read. An agent without a connection here may have one at another node: then the attempt runs there,
//! by way of the [`Lines`] between nodes.
//!
//! - [`desk`]: the connections of one agent; [`lines`]: those between nodes; `call`: one attempt over either.
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

/// Where agents dial in: all that are configured to. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Exchange(Arc<BTreeMap<AgentId, Arc<Desk>>>);

/// Why somebody does not get a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// No such agent dials in here.
    Forbidden,
    /// It cannot say what follows an event, and the agent has to.
    Forgetful,
    /// There are enough.
    Crowded,
}

// === impl Exchange ===

impl Exchange {
    /// These desks; what is ordered by way of other nodes comes to them too.
    pub(super) fn new(desks: BTreeMap<AgentId, Arc<Desk>>, lines: &Lines) -> Self {
        let this = Self(Arc::new(desks));
        lines.reach(this.clone());
        this
    }

    pub(super) fn desk(&self, agent: &AgentId) -> Option<&Arc<Desk>> {
        self.0.get(agent)
    }

    /// Returns whom the configuration lets serve an agent for every tenant; none: no such agent dials in.
    pub fn served_by(&self, agent: &AgentId) -> Option<&ServedBy> {
        self.0.get(agent).map(|desk| &desk.served_by)
    }

    /// Takes in a connection that may serve this agent, for so many tenants.
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
