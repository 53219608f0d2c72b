//! What a client says first: who it is, and what its connection is for.
use serde::{Deserialize, Serialize};
use std::fmt;
use turnway_core::id::{AgentId, RunnerId, ToolName, UserId};

/// Who a client says it is; the door decides whether that is so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// `user_id`.
    pub user: Option<UserId>,
    /// `api_key` or `token`; never printed.
    pub credential: Option<Credential>,
    /// `role`.
    pub role: Role,
    /// `agent_id` of `role: "agent"`.
    pub agent_id: Option<AgentId>,
    /// `capabilities` of `role: "agent"`.
    pub capabilities: Capabilities,
    /// What `role: "tool_runner"` says of itself.
    pub runner: Option<Box<RunnerHello>>,
    /// `streams`: takes streams of the server's own for text (QUIC); true unless it says no.
    pub streams: bool,
}

/// A tool runner, and what it can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerHello {
    /// `runner_id`: the same when it comes back.
    pub runner_id: RunnerId,
    /// `tools`.
    pub tools: Vec<ToolName>,
}

/// What an agent that dials in can do besides answering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Takes further inputs while it answers; no unless it says so.
    pub steer: bool,
    /// Says what follows an event, also on another connection; no unless it says so.
    pub resume: bool,
    /// Answers `cancel` with `cancel_ack`; yes unless it says no.
    pub cancel: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { steer: false, resume: false, cancel: true }
    }
}

/// A secret a client presents.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential(pub String);

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<credential>")
    }
}

/// What a link is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// A person's client.
    #[default]
    User,
    /// A channel's adapter.
    Adapter,
    /// An agent that dials in.
    Agent,
    /// Runs tools.
    ToolRunner,
}
