//! Agents: orders go out, reports come back.
use turnway_core::id::{RunId, SessionKey};
use turnway_core::protocol::agent::AgentEvent;

/// What one attempt at one run reports; the switchboard knows what to do with it.
#[derive(Clone, Debug)]
pub struct Report {
    /// Which session.
    pub key: SessionKey,
    /// Which run.
    pub run_id: RunId,
    /// Which attempt.
    pub attempt: u32,
    /// What.
    pub event: AgentEvent,
}
